"""Text, sequences, optionals and tensors of any rank: what Python holds between the kernels."""

from __future__ import annotations

import pathlib
import warnings
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from click.testing import CliRunner
from onnx import parser

import minitvm
from minitvm import InferenceSession, from_onnx
from minitvm.cli import cli
from minitvm.driver.program import HostCallWarning
from minitvm.errors import FrontendError, InputError, MiniTVMError
from minitvm.ir.parser import parse_module
from minitvm.ir.text import print_module
from minitvm.ir.types import AnyTensor, SequenceType, TensorType, Type, accepts, common
from minitvm.runtime.debug import GraphModuleDebug
from minitvm.runtime.executor import GraphModule

pytestmark = pytest.mark.filterwarnings("ignore::minitvm.driver.program.HostCallWarning")

HEAD = '<ir_version: 10, opset_import: ["" : 20]>\n'
GROWN = """g (int64 n, float[2, 3] x) => (float[2, k] y, int64 length, seq(float[2, 3]) parts) {
  go = Constant<value = bool {1}>()
  none = SequenceEmpty()
  parts = Loop (n, go, none) <
    body = step (int64 i, bool c, seq(float[2, 3]) before) => (bool more, seq(float[2, 3]) after) {
      more = Identity(c)
      t = Cast<to = 1>(i)
      u = Add(x, t)
      v = Tanh(u)
      after = SequenceInsert(before, v)
    }
  >
  length = SequenceLength(parts)
  whole = ConcatFromSequence<axis = 1>(parts)
  y = Neg(whole)
}"""
CHOSEN = """g (seq(float[n, 2]) parts, int64 at, float[2, 2] w) => (float[n, 2] y, seq(float[n, 2]) rest) {
  one = SequenceAt(parts, at)
  y = MatMul(one, w)
  rest = SequenceErase(parts, at)
}"""
MAPPED = """g (seq(float[n]) parts, float[1] by) => (seq(float[n]) y) {
  y = SequenceMap(parts, by) < body = one (float[n] p, float[1] b) => (float[n] q) { r = Exp(p) q = Mul(r, b) } >
}"""
MAYBE = """g (optional(float[3]) x, float[3] otherwise) => (float[3] y) {
  there = OptionalHasElement(x)
  y = If (there) <
    then_branch = one () => (float[3] a) { v = OptionalGetElement(x) a = Neg(v) },
    else_branch = two () => (float[3] b) { b = Identity(otherwise) }
  >
}"""
CARRIED = """g (int64 n, optional(seq(float[])) given, float[2] x) => (seq(float[]) y) {
  go = Constant<value = bool {1}>()
  y = Loop (n, go, given) <
    body = step (int64 i, bool c, optional(seq(float[])) before) => (bool more, seq(float[]) after) {
      more = Identity(c)
      there = OptionalHasElement(before)
      s = If (there) <
        then_branch = one () => (seq(float[]) a) { a = OptionalGetElement(before) },
        else_branch = two () => (seq(float[]) b) { b = SequenceConstruct(x) }
      >
      u = Exp(x)
      after = SequenceInsert(s, u)
    }
  >
}"""
WORDS = """g (string[n] a, float[n] x) => (string[n] joined, float[n] y) {
  tail = Constant<value_strings = ["!"]>()
  joined = StringConcat(a, tail)
  wanted = Constant<value = string[1] {"no"}>()
  same = Equal(a, wanted)
  factor = Cast<to = 1>(same)
  y = Mul(x, factor)
}"""


def model(text: str) -> Any:
    return parser.parse_model(HEAD + text)


def session(text: str) -> InferenceSession:
    return InferenceSession(model(text), num_threads=1)


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def assert_same(mine: Any, theirs: Any) -> None:
    if isinstance(theirs, list):
        assert isinstance(mine, list) and len(mine) == len(theirs)
        for one, other in zip(mine, theirs, strict=True):
            assert_same(one, other)
    elif theirs.dtype == object:
        np.testing.assert_array_equal(mine, theirs)
    else:
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def check(text: str, *feeds: dict[str, Any]) -> InferenceSession:
    peer = onnxruntime.InferenceSession(model(text).SerializeToString(), providers=["CPUExecutionProvider"])
    found = session(text)
    for feed in feeds:
        assert_same(found.run(None, feed), peer.run(None, feed))
    return found


def test_a_sequence_that_grows_in_a_loop_has_compiled_steps() -> None:
    found = check(GROWN, {"n": np.array(3), "x": floats(2, 3)}, {"n": np.array(1), "x": floats(2, 3)})
    assert {call.op for call in found.host_calls} == {"sequence.split"}  # a result is a list


def test_sequences_come_in_and_go_out() -> None:
    parts = [floats(1, 2), floats(4, 2), floats(3, 2)]
    found = check(CHOSEN, *({"parts": parts, "at": np.array(at), "w": floats(2, 2)} for at in (0, 2, -2)))
    assert (found.get_inputs()[0].name, found.get_inputs()[0].type) == ("parts", "seq(tensor(float))")
    assert [a.type for a in found.get_outputs()] == ["tensor(float)", "seq(tensor(float))"]
    with pytest.raises(InputError, match=r"sequence.at: index 3 is outside of a sequence of 3"):
        found.run(None, {"parts": parts, "at": np.array(3), "w": floats(2, 2)})
    with pytest.raises(InputError, match=r"input 'parts' is a ndarray, the model expects a list: Sequence\["):
        found.run(None, {"parts": parts[0], "at": np.array(0), "w": floats(2, 2)})
    with pytest.raises(InputError, match=r"input 'parts\[1\]' has shape \(4, 3\), the model expects \(\?, 2\)"):
        found.run(None, {"parts": [parts[0], floats(4, 3)], "at": np.array(0), "w": floats(2, 2)})
    (first, _) = found.run(None, {"parts": parts, "at": np.array(0), "w": floats(2, 2)})
    assert first.shape == (1, 2)


def test_a_map_over_a_sequence() -> None:
    check(MAPPED, {"parts": [floats(3), floats(5)], "by": floats(1)}, {"parts": [floats(2)], "by": floats(1)})


def test_optionals() -> None:
    found = session(MAYBE)
    x, other = floats(3), np.ones(3, np.float32)
    np.testing.assert_array_equal(found.run(None, {"x": x, "otherwise": other})[0], -x)
    np.testing.assert_array_equal(found.run(None, {"x": None, "otherwise": other})[0], other)
    assert found.get_inputs()[0].type == "optional(tensor(float))"
    taken = session("g (optional(float[3]) x) => (float[3] y) { y = OptionalGetElement(x) }")
    with pytest.raises(InputError, match="the optional has no value"):
        taken.run(None, {"x": None})


def test_an_optional_becomes_a_sequence_in_a_loop() -> None:
    found, x, scalar = session(CARRIED), floats(2), np.float32(2).reshape(())
    for given, first in ((None, [x]), ([scalar], [scalar]), ([], [])):
        (y,) = found.run(None, {"n": np.array(2), "given": given, "x": x})
        assert_same(y, [*first, np.exp(x), np.exp(x)])


def test_text() -> None:
    found = check(WORDS, {"a": np.array(["no", "\u00e4hm", ""], object), "x": floats(3)})
    assert_same(found.run(None, {"a": ["no"], "x": floats(1)})[0], np.array(["no!"], object))
    with pytest.raises(InputError, match="input 'a' is int64, the model expects string"):
        found.run(None, {"a": np.array([1]), "x": floats(1)})


def test_sequences_of_known_values_leave_nothing_behind() -> None:
    text = """g (float[4, 3] x, float[2, 3] z) => (float[6, 3] y, int64 n, float[2, 3] w) {
      halves = SplitToSequence<axis = 0>(x, sizes)
      more = SequenceInsert(halves, z, at)
      fewer = SequenceErase(more)
      both = SequenceConstruct(x, z)
      y = ConcatFromSequence<axis = 0>(both)
      n = SequenceLength(more)
      last = Constant<value = int64 {-1}>()
      w = SequenceAt(fewer, last)
    }"""
    text = text.replace(
        "halves =", "sizes = Constant<value = int64[2] {2, 2}>() at = Constant<value = int64 {0}>() halves ="
    )
    assert check(text, {"x": floats(4, 3), "z": floats(2, 3)}).host_calls == []
    outside = """g (float[1] x) => (float[1] y) {
      s = SequenceConstruct(x, x) i = Constant<value = int64 {2}>() y = SequenceAt(s, i)
    }"""
    with pytest.raises(MiniTVMError, match="SequenceAt: index 2 is outside of a sequence of 2"):
        session(outside)


def test_tensors_of_any_rank() -> None:
    text = "g (seq(float[]) parts, int64 at) => (float[] y) { one = SequenceAt(parts, at) h = Relu(one) y = Neg(h) }"
    text = text.replace("float[] y", "float y")
    found = session(text)
    parts = [floats(2, 3), floats(4), np.float32(-1.5).reshape(())]
    for at, part in enumerate(parts):
        (y,) = found.run(None, {"parts": parts, "at": np.array(at)})
        np.testing.assert_array_equal(y, -np.maximum(part, 0))
    assert {call.op for call in found.host_calls} == {"sequence.at", "onnx.Relu", "onnx.Neg"}


@pytest.mark.parametrize("text", [GROWN, CHOSEN, MAYBE, WORDS], ids=["grown", "chosen", "maybe", "words"])
def test_a_saved_library_has_them(text: str, tmp_path: pathlib.Path) -> None:
    shapes = {"a": (3,), "x": (3,)} if text is WORDS else None
    library = minitvm.compile(model(text), num_threads=1, shape_dict=shapes)
    library.save(tmp_path / "m.mtvm")
    values = {
        "n": np.array(2), "parts": [floats(1, 2), floats(3, 2)], "at": np.array(1), "w": floats(2, 2),
        "x": floats(2, 3) if text is GROWN else floats(3), "otherwise": floats(3), "a": ["no", "b", "c"],
    }  # fmt: skip
    found = []
    for lib in (library, minitvm.load(tmp_path / "m.mtvm")):
        module = GraphModule(lib["default"]())
        feeds = {name: values[name] for name in module.get_input_info()[0]}
        module.run(feeds)
        found.append(module.outputs())
        debug = GraphModuleDebug(lib["default"]())
        debug.run_quietly(feeds)
        assert_same(debug.outputs(), found[-1])
        assert len(module.get_output(0).numpy()) == len(found[-1][0])
    assert_same(*found)


@pytest.mark.parametrize("text", [GROWN, CHOSEN, MAPPED, MAYBE], ids=["grown", "chosen", "mapped", "maybe"])
def test_as_text(text: str) -> None:
    module, _ = from_onnx(model(text), {"x": (2, 3)} if text is GROWN else None)
    printed = print_module(module)
    assert print_module(parse_module(printed)) == printed


F3, ANY, NONE = TensorType((3,)), AnyTensor("float32"), AnyTensor("float32", none=True)


@pytest.mark.parametrize(
    ("a", "b", "both"),
    [
        (F3, TensorType((4,)), "Tensor[(?), float32]"),
        (F3, TensorType((3, 1)), "AnyTensor[float32]"),
        (F3, TensorType((3,), "int64"), "None"),
        (SequenceType(NONE), SequenceType(F3), "Sequence[Tensor[(3,), float32]]"),
        (SequenceType(F3), F3, "None"),
        (SequenceType(F3, True), F3, "Optional[Tensor[(3,), float32]]"),
        (SequenceType(F3), SequenceType(SequenceType(ANY), True), "Optional[Sequence[AnyTensor[float32]]]"),
        (ANY, TensorType((), "int32"), "None"),
    ],
)  # fmt: skip
def test_the_type_of_either(a: Type, b: Type, both: str) -> None:
    for one, other in ((a, b), (b, a)):
        found = common(one, other)
        assert str(found).replace("?,", "?") == both
        assert found is None or (accepts(found, one) and accepts(found, other))


def test_a_name_of_a_sequence_in_shape_dict() -> None:
    with pytest.raises(
        InputError, match=r"shape_dict names input 'parts', which is seq\(tensor\(float\)\) and has no shape"
    ):
        from_onnx(model(CHOSEN), {"parts": (3, 2)})


def test_what_no_operator_takes() -> None:
    with pytest.raises(FrontendError, match="Neg"):
        from_onnx(model("g (seq(float[2]) x) => (float[2] y) { y = Neg(x) }"))


def test_one_warning_names_them() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", HostCallWarning)
        minitvm.compile(model(CHOSEN), num_threads=1)
    assert 'sequence.at (from ONNX node "SequenceAt_one"): values that only Python holds' in str(caught[0].message)


def test_on_the_command_line(tmp_path: pathlib.Path) -> None:
    for name, text in (("chosen", CHOSEN), ("words", WORDS)):
        onnx.save(model(text), tmp_path / f"{name}.onnx")
    parts, w = [floats(1, 2), floats(3, 2)], floats(2, 2)
    feeds = {"parts[0]": parts[0], "parts[1]": parts[1], "at": np.array(1), "w": w}
    np.savez(tmp_path / "feeds.npz", **feeds)
    run = lambda *args: CliRunner().invoke(cli, ["run", *map(str, args)], catch_exceptions=False)  # noqa: E731
    done = run(tmp_path / "chosen.onnx", "-i", tmp_path / "feeds.npz", "-o", tmp_path / "out.npz", "--top", "1")
    assert done.exit_code == 0
    found = np.load(tmp_path / "out.npz")
    assert found.files == ["y", "rest[0]"]
    np.testing.assert_allclose(found["y"], parts[1] @ w, rtol=1e-5)
    np.testing.assert_array_equal(found["rest[0]"], parts[0])
    np.savez(tmp_path / "words.npz", a=np.array(["no", "yes"]), x=floats(2))
    assert run(tmp_path / "words.onnx", "-i", tmp_path / "words.npz", "-o", tmp_path / "out.npz").exit_code == 0
    assert np.load(tmp_path / "out.npz")["joined"].tolist() == ["no!", "yes!"]
    assert run(tmp_path / "chosen.onnx").exit_code == 0
    assert run(tmp_path / "words.onnx", "--shape", "a:3").exit_code == 0
