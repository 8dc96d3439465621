"""The long tail: operators that onnx's reference evaluator runs in Python: named, saved, refused where asked."""

from __future__ import annotations

import json
import pathlib
import sys
import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
from google.protobuf import json_format
from onnx import parser

import minitvm
from minitvm import InferenceSession
from minitvm.driver.program import HostCallWarning
from minitvm.errors import CompilerError, FrontendError, InputError, MiniTVMError
from minitvm.frontend import from_onnx
from minitvm.frontend.onnx.more import late
from minitvm.frontend.onnx.more.foreign import evaluator
from minitvm.ir.ops.more.foreign import Foreign
from minitvm.ir.visitor import calls
from minitvm.runtime.executor import GraphModule

HEAD = '<ir_version: 10, opset_import: ["" : 20]>\n'
GRID = """g (float[1, 2, 4, 5] x, float[1, 3, 3, 2] grid) => (float y) {
  h = Relu(x) s = GridSample<mode = "linear", padding_mode = "border">(h, grid) y = Neg(s)
}"""
WHOLE = """g (int32[1, 2, 4, 5] x, float[1, 3, 3, 2] grid) => (int32 y) {
  h = Relu(x) s = GridSample<mode = "nearest", padding_mode = "border">(h, grid) y = Neg(s)
}"""
"""Of integers there is no kernel."""
UNIQUE = "g (int64[n] x) => (int64 y, int64 first, int64 back, int64 count) { y, first, back, count = Unique(x) }"
FRAMES = "g (float[1, 32, 1] x, int64 step, int64 length) => (float y) { y = STFT<onesided = 1>(x, step, , length) }"
NOISE = "g (float[4, 5] x) => (float y) { r = RandomNormalLike(x) y = Add(x, r) }"
DET = "g (float[2, 3, 3] x) => (float y) { y = Det(x) }"


def session(text: str, **options: object) -> InferenceSession:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HostCallWarning)
        return InferenceSession(parser.parse_model(HEAD + text), num_threads=1, **options)  # type: ignore[arg-type]


def whole() -> dict[str, np.ndarray]:
    places = np.clip(normal(1, 3, 3, 2), -1, 1)
    return {"x": np.random.default_rng(2).integers(-9, 9, (1, 2, 4, 5), "int32"), "grid": places}


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def check(text: str, feeds: dict[str, np.ndarray]) -> None:
    data = parser.parse_model(HEAD + text).SerializeToString()
    peer = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HostCallWarning)
        found = session(text).run(None, feeds)
    for mine, theirs in zip(found, peer.run(None, feeds), strict=True):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("text", "feeds"),
    [
        (GRID, {"x": normal(1, 2, 4, 5), "grid": np.clip(normal(1, 3, 3, 2), -1, 1)}),
        (UNIQUE, {"x": np.array([3, 1, 3, 3, 2, 1])}),
        (FRAMES, {"x": normal(1, 32, 1), "step": np.array(4), "length": np.array(16)}),
        (DET, {"x": normal(2, 3, 3)}),
    ],
    ids=["GridSample", "Unique", "STFT", "Det"],
)
def test_as_onnx_runtime(text: str, feeds: dict[str, np.ndarray]) -> None:
    check(text, feeds)


def test_the_domain_may_be_written_out() -> None:
    check(DET.replace("Det", "ai.onnx.Det"), {"x": normal(2, 3, 3)})
    with pytest.warns(HostCallWarning, match=r"onnx\.GridSample"):
        minitvm.compile(parser.parse_model(HEAD + WHOLE.replace("Grid", "ai.onnx.Grid")), num_threads=1)


def test_a_node_of_a_library_opens_no_file() -> None:
    node = onnx.helper.make_node("Constant", [], ["y"], value=onnx.numpy_helper.from_array(np.ones(2, np.float32)))
    node.attribute[0].t.data_location = onnx.TensorProto.EXTERNAL
    for made in (evaluator, late.evaluator):
        with pytest.raises(MiniTVMError, match="Constant: a tensor of an attribute is in a file"):
            made(json_format.MessageToJson(node), 20)


def test_they_are_named_in_the_warning_and_refused_where_asked() -> None:
    model = parser.parse_model(HEAD + WHOLE)
    with pytest.warns(HostCallWarning, match=r"onnx.GridSample .from ONNX node .GridSample_s.."):
        library = minitvm.compile(model, num_threads=1)
    assert [call.op for call in library.host_calls] == ["onnx.GridSample"]
    with pytest.raises(CompilerError, match="1 operator would run in Python"):
        minitvm.compile(model, num_threads=1, strict=True)


LATE = """g (float[3, N, 5] x, bool[N] kept, float[2, %(rows)d, 5] w, float[2, %(rows)d, 4] r) => (float y, float h) {
  some = Compress<axis = 1>(x, kept)
  y, h = %(op)s<hidden_size = 4, direction = "bidirectional">(some, w, r)
}"""
"""Of a batch whose size values decide."""


@pytest.mark.filterwarnings("ignore::minitvm.driver.program.HostCallWarning")
@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_sizes_that_come_up_inside_the_model(op: str, gates: int) -> None:
    """Computed by minitvm's builder: onnx's evaluator knows neither two directions nor no steps."""
    text = LATE % {"op": op, "rows": gates * 4}
    feeds = {"x": normal(3, 4, 5), "kept": np.array([1, 0, 1, 1], bool), "w": normal(2, gates * 4, 5)}
    feeds["r"] = normal(2, gates * 4, 4)
    check(text, feeds)
    y, h = session(text.replace("float[3, N, 5]", "float[0, N, 5]")).run(None, {**feeds, "x": feeds["x"][:0]})
    assert y.shape == (0, 2, 3, 4)
    np.testing.assert_array_equal(h, np.zeros((2, 3, 4), np.float32), strict=True)


SOME = "g (float[2, N, 8, 1] x, bool[N] kept) => (float y) { s = Compress<axis = 1>(x, kept) %s }"


@pytest.mark.parametrize(
    "node",
    [
        "axis = Constant<value_int = 1>() y = DFT(s, , axis)",
        "three = Constant<value_ints = [2, -1, 8]>() f = Reshape(s, three) "
        'y = MaxPool<kernel_shape = [3], strides = [2], auto_pad = "SAME_UPPER">(f)',
        "three = Constant<value_ints = [2, 8, -1]>() f = Reshape(s, three) "
        'y = MaxPool<kernel_shape = [3], strides = [2], auto_pad = "SAME_LOWER">(f)',
        "to = Constant<value_ints = [5, 1, 1, 1, 4]>() z = ConstantOfShape<value = float[1] {0.5}>(to) "
        "y = MatMul(s, z)",
    ],
)
def test_what_needs_a_size_that_comes_up(node: str) -> None:
    check(SOME % node, {"x": normal(2, 4, 8, 1), "kept": np.array([1, 0, 1, 1], bool)})


@pytest.mark.filterwarnings("ignore::minitvm.driver.program.HostCallWarning")
@pytest.mark.parametrize("batch", [0, 1, 3])
def test_a_batch_that_one_factor_alone_knows(batch: int) -> None:
    """Of the other, all sizes come up."""
    found = session("""g (float[N, T, 4] x, bool[T] keep) => (float[A, B, C] y) {
      kept = Compress<axis = 1>(x, keep) sizes = Shape(kept) zeros = ConstantOfShape(sizes)
      turned = Transpose<perm = [0, 2, 1]>(zeros) y = MatMul(kept, turned) }""")
    feeds = {"x": normal(batch, 3, 4), "keep": np.array([True, False, True])}
    np.testing.assert_array_equal(found.run(None, feeds)[0], np.zeros((batch, 2, 2), "float32"))


def test_sizes_that_come_up_and_do_not_fit() -> None:
    text = LATE % {"op": "RNN", "rows": 4}
    made = session(text.replace("bool[N] kept", "bool[N] kept, float[2, 3, 4] h0").replace("w, r)", "w, r, , , h0)"))
    feeds = {"x": normal(3, 4, 5), "w": normal(2, 4, 5), "r": normal(2, 4, 4), "h0": normal(2, 3, 4)}
    made.run(None, {**feeds, "kept": np.array([1, 0, 1, 1], bool)})
    with pytest.raises(InputError, match="initial_h is"):
        made.run(None, {**feeds, "kept": np.array([1, 0, 1, 0], bool)})


def test_a_saved_library_has_them(tmp_path: pathlib.Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HostCallWarning)
        library = minitvm.compile(parser.parse_model(HEAD + WHOLE), num_threads=1)
    feeds = whole()
    library.save(tmp_path / "grid.mtvm")
    before, after = (GraphModule(lib["default"]()) for lib in (library, minitvm.load(tmp_path / "grid.mtvm")))
    before.run(feeds)
    after.run(feeds)
    np.testing.assert_array_equal(before.get_output(0).numpy(), after.get_output(0).numpy())


def test_without_the_onnx_package(monkeypatch: pytest.MonkeyPatch) -> None:
    from minitvm.ir.ops.more import foreign

    made = session(WHOLE)
    foreign._evaluator.cache_clear()
    monkeypatch.setitem(sys.modules, "onnx.reference", None)
    with pytest.raises(MiniTVMError, match="reference evaluator is missing"):
        made.run(None, whole())


@pytest.mark.parametrize("location", [".", "../outside.bin", "no.bin", "/etc/passwd"])
def test_tensors_of_attributes_lie_beside_the_model(location: str, tmp_path: pathlib.Path) -> None:
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20, "ai.onnx.ml" : 4]> g (int64[2] x) => (float[2] y) {'
        " y = ai.onnx.ml.LabelEncoder<keys_tensor = int64[2] {1, 2}, values_tensor = float[2] {0.5, 1.5},"
        " default_tensor = float[1] {0.0}>(x) }"
    )
    (tmp_path / "model").mkdir()
    (tmp_path / "outside.bin").write_bytes(bytes(8))
    path = tmp_path / "model" / "m.onnx"
    (tensor,) = (a.t for a in model.graph.node[0].attribute if a.name == "values_tensor")
    data = tensor.raw_data or np.float32([0.5, 1.5]).tobytes()
    del tensor.float_data[:]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="values.bin")
    (tmp_path / "model" / "values.bin").write_bytes(data)
    path.write_bytes(model.SerializeToString())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HostCallWarning)
        (found,) = InferenceSession(path, num_threads=1).run(None, {"x": np.array([2, 1])})
    np.testing.assert_array_equal(found, np.float32([1.5, 0.5]))
    tensor.external_data[0].value = location
    path.write_bytes(model.SerializeToString())
    with pytest.raises(FrontendError, match="external data"):
        InferenceSession(path, num_threads=1)


def test_random_numbers_are_neither_folded_nor_repeated() -> None:
    made = session(NOISE)
    x = np.zeros((4, 5), np.float32)
    (one,), (other,) = made.run(None, {"x": x}), made.run(None, {"x": x})
    assert one.shape == (4, 5) and not np.array_equal(one, other)


def test_values_that_the_evaluator_refuses() -> None:
    module, _ = from_onnx(parser.parse_model(HEAD + WHOLE))
    (op,) = (call.op for call in calls(module.main.body) if isinstance(call.op, Foreign))
    with pytest.raises(InputError, match=r"onnx\.GridSample fails for these inputs"):
        op.reference(np.zeros((1, 2, 4, 5), "int32"), normal(3, 2))


def test_columns_that_are_not_those_of_the_image() -> None:
    made = session("g (float[1, 6, 5] x, int64[2] size, int64[2] block) => (float y) { y = Col2Im(x, size, block) }")
    with pytest.raises(MiniTVMError, match=r"an image of \[5, 5\] has 1 windows of 25 elements"):
        made.run(None, {"x": normal(1, 6, 5), "size": np.array([5, 5]), "block": np.array([5, 5])})
    (found,) = made.run(None, {"x": normal(1, 6, 5), "size": np.array([1, 7]), "block": np.array([1, 3])})
    assert found.shape == (1, 2, 1, 7)
    assert made.host_calls == []


def test_dropout_of_a_seed() -> None:
    """What stays is larger by what goes; the mask says which; the same each time, where a seed is given."""
    x = np.arange(1, 401, dtype=np.float32).reshape(20, 20)
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20]> g (float[20, 20] x) => (float[20, 20] y, bool[20, 20] m)'
        " <float r = {0.25}, bool t = {1}> { y, m = Dropout<seed = 3>(x, r, t) }"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HostCallWarning)
        made = InferenceSession(model, num_threads=1)
    y, mask = made.run(None, {"x": x})
    np.testing.assert_allclose(y, np.where(mask, x / np.float32(0.75), 0), rtol=1e-6)
    assert 0.6 < mask.mean() < 0.9
    assert all(np.array_equal(a, b) for a, b in zip(made.run(None, {"x": x}), (y, mask), strict=True))
    model.graph.initializer[0].float_data[:] = [0.0]
    none = InferenceSession(model, num_threads=1)
    y, mask = none.run(None, {"x": x})
    assert none.host_calls == []
    assert np.array_equal(y, x) and mask.all()


def matches(pattern: str, *texts: str) -> list[bool]:
    count, text = len(texts), json.dumps(pattern)
    made = session(f"g (string[{count}] x) => (bool[{count}] y) {{ y = RegexFullMatch<pattern = {text}>(x) }}")
    return made.run(None, {"x": np.array(texts, object)})[0].tolist()


def test_patterns_take_linear_time() -> None:
    """Python's ``re`` would try more ways through each than it can."""
    for pattern in ("(a+)+$", "(a|a)*b", "(a*)*c", "(.*a){12}d", "(a?){40}a{40}x"):
        assert matches(pattern, "a" * 2000 + "!") == [False]


def test_patterns_mean_what_they_mean_to_re2() -> None:
    assert matches("[a-c]+", "abc", "abd", "", "cab") == [True, False, False, True]
    assert matches(r"\pL+", "Grüße", "a1") == [True, False]
    assert matches("(?P<n>x)y|.", "xy", "é", "\n") == [True, True, False]
    assert matches(r"\d", "7", "\u0667") == [True, False], "digits of other scripts are Python's alone"
    assert matches("a$", "a", "a\n") == [True, False], "the end is the end"


@pytest.mark.parametrize(("pattern", "why"), [(r"(a)\1", "escape"), ("a(?=b)", "perl"), ("(a", "missing"), ("x**", "")])
def test_patterns_that_re2_refuses(pattern: str, why: str) -> None:
    with pytest.raises(FrontendError, match=rf"RE2 refuses the pattern .*{why}"):
        matches(pattern, "a")


def test_patterns_without_re2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(MiniTVMError, match=r"needs the package google-re2(.|\n)*pip install google-re2"):
        matches("a", "a")


CHANCES = np.float32([[0.1, 0.2, 0.7], [0.5, 0.5, 0.0], [0.0, 1.0, 0.0]])


def drawn(attributes: str, dtype: str = "int32") -> InferenceSession:
    return session(f"g (float[3, 3] x) => ({dtype} y) {{ y = Multinomial<sample_size = 4000{attributes}>(x) }}")


def test_multinomial_draws_as_often_as_it_is_likely() -> None:
    with np.errstate(divide="ignore"):
        logs = np.log(CHANCES) + np.float32([[3], [-2], [80]])  # what all have in common does not count
    for attributes, dtype in (("", "int32"), (", dtype = 7, seed = 2.5", "int64")):
        [found] = drawn(attributes, dtype).run(None, {"x": logs})
        assert found.shape == (3, 4000) and found.dtype == dtype
        counts = np.stack([np.bincount(row, minlength=3) for row in found]) / 4000
        np.testing.assert_allclose(counts, CHANCES, atol=0.04)
        assert (counts[CHANCES == 0] == 0).all()


def test_multinomial_of_a_seed_draws_the_same() -> None:
    logs = np.zeros((3, 3), np.float32)
    seeded = drawn(", seed = 1.5")
    [first], [again] = (seeded.run(None, {"x": logs}) for _ in range(2))
    [other], [free], [freer] = (one.run(None, {"x": logs}) for one in (drawn(", seed = 2.5"), drawn(""), drawn("")))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any() and (free != freer).any()


def test_multinomial_of_nothing() -> None:
    with pytest.raises(FrontendError, match="sample_size=0"):
        session("g (float[3, 3] x) => (int32 y) { y = Multinomial<sample_size = 0>(x) }")


@pytest.mark.parametrize("operator", ["ScatterElements", "ScatterND"])
def test_scatters_that_say_update(operator: str) -> None:
    """No word of ONNX's, which ONNX Runtime takes for ``none``."""
    places = {"ScatterElements": np.int64([[0, 2], [3, 1]]), "ScatterND": np.int64([[1, 2], [0, 3]])}[operator]
    updates = "float[2, 2]" if operator == "ScatterElements" else "float[2]"
    text = f"g (float[2, 4] x, int64[2, 2] i, {updates} u) => (float y) {{ y = {operator}"
    text += f'<{"axis = 1, " if operator == "ScatterElements" else ""}reduction = "update">(x, i, u) }}'
    check(text, {"x": normal(2, 4), "i": places, "u": normal(2, 2) if operator == "ScatterElements" else normal(2)})
