"""What a user can get wrong, end to end: the error's text word for word, and that everything works afterwards."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import minitvm
from minitvm.runtime.cache import CacheWarning

X = np.random.default_rng(41).normal(size=(2, 3)).astype("float32")


def model(*nodes: onnx.NodeProto, weights: tuple[onnx.TensorProto, ...] = ()) -> onnx.ModelProto:
    """``x``: (2, 3) -> ``y``; a relu unless ``nodes`` say otherwise."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 3))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    inside = list(nodes) or [helper.make_node("Relu", ["x"], ["y"], "relu")]
    graph = helper.make_graph(inside, "g", [x], [y], list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def outside(location: str) -> onnx.ModelProto:
    """A model whose weight lies in another file."""
    weight = helper.make_tensor("w", TensorProto.FLOAT, [3], bytes(12), raw=True)
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    entry = weight.external_data.add()
    entry.key, entry.value = "location", location
    return model(helper.make_node("Add", ["x", "w"], ["y"], "add"), weights=(weight,))


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    data = model().SerializeToString()
    (tmp_path / "m.onnx").write_bytes(data)
    (tmp_path / "cut.onnx").write_bytes(data[: len(data) // 2])
    (tmp_path / "text.onnx").write_text("<html>not found</html>")
    (tmp_path / "empty.onnx").write_bytes(b"")
    (tmp_path / "leaves.onnx").write_bytes(outside("../w.bin").SerializeToString())
    return tmp_path


def run(feeds: Any, names: list[str] | None = None) -> Callable[[], object]:
    return lambda: minitvm.InferenceSession("m.onnx").run(names, feeds)


def compiled(*arguments: Any, **options: Any) -> Callable[[], object]:
    return lambda: minitvm.compile(*arguments, **options)


NODE = helper.make_node
CYCLE = model(NODE("Add", ["x", "b"], ["a"], "one"), NODE("Relu", ["a"], ["b"], "two"), NODE("Relu", ["b"], ["y"], "r"))
FOREIGN = model(NODE("Foo", ["x"], ["a"], "first", domain="my"), NODE("Foo", ["a"], ["y"], "second", domain="my"))

CASES: dict[str, tuple[Callable[[], object], str]] = {
    "text": (
        compiled("text.onnx"),
        "text.onnx: text, not an ONNX model\n  = hint: an ONNX file is binary; was it a download page?",
    ),
    "empty": (
        compiled("empty.onnx"),
        "empty.onnx: empty, not an ONNX model\n  = hint: was the download or export interrupted?",
    ),
    "truncated": (
        compiled("cut.onnx"),
        "cut.onnx: a truncated or damaged ONNX model\n  = hint: copy or export the file again",
    ),
    "missing input": (run({}), "input missing: x\n  = hint: give an array for every input: x"),
    "not a dictionary": (run([X]), "the inputs are a list, not a dictionary\n  = hint: run(None, {name: array, ...})"),
    "mistyped": (
        run({"x": X.astype("float64")}),
        "input 'x' is float64, the model expects float32\n  | %x: Tensor[(2, 3), float32]\n"
        "  = hint: convert it: array.astype('float32')",
    ),
    "wrong rank": (
        run({"x": X[0]}),
        "input 'x' has rank 1, shape (3,); the model expects rank 2\n  | %x: Tensor[(2, 3), float32]\n"
        "  = hint: add or remove dimensions, for example array[np.newaxis] for a batch of one",
    ),
    "wrong shape": (
        run({"x": X.T}),
        "input 'x' has shape (3, 2), the model expects (2, 3)\n  | %x: Tensor[(2, 3), float32]\n"
        "  = hint: reshape or resize the array, or compile the model for this shape",
    ),
    "unknown input": (run({"x": X, "z": X}), "the model has no input 'z'\n  = hint: its inputs are: x"),
    "unknown output": (run({"x": X}, ["q"]), "the model has no output 'q'\n  = hint: its outputs are: y"),
    "NaN shape": (
        compiled("m.onnx", shape_dict={"x": (float("nan"), 3)}),
        "shape_dict gives dimension 0 of input 'x' as nan\n  = hint: a dimension is a whole number, 0 or more",
    ),
    "path that leaves": (
        compiled("leaves.onnx"),
        "external data '../w.bin' leaves the model's folder\n  | ONNX tensor \"w\"\n"
        "  = hint: external data must lie in the folder of the .onnx file or below it",
    ),
    "unknown target": (
        compiled("m.onnx", target="lvm"),
        "unknown target 'lvm'\n  = hint: did you mean 'llvm'? known targets: llvm, interp, cuda",
    ),
    "unknown option": (
        compiled("m.onnx", target="llvm -mcup=x"),
        "unknown option '-mcup=x' of target 'llvm'\n"
        "  = hint: did you mean 'mcpu'? known options: mtriple, mcpu, mtune, mattr, libs, caches",
    ),
    "unknown pass": (
        lambda: minitvm.PassContext(disabled_pass=["FuseOp"]),
        "disabled_pass: there is no pass 'FuseOp'\n  = hint: did you mean 'FuseOps'?",
    ),
    "unknown level": (compiled("m.onnx", opt_level=4), "opt_level is 4\n  = hint: the levels are 0 to 3"),
    "unknown config": (
        lambda: minitvm.PassContext(config={"minitvm.FuseOps.max_dept": 3}),
        "there is no option 'minitvm.FuseOps.max_dept'\n  = hint: did you mean 'minitvm.FuseOps.max_depth'?",
    ),
    "cycle": (
        compiled(CYCLE),
        'the graph has a cycle of 2 nodes\n  | ONNX node "one" (Add)\n  | ONNX node "two" (Relu)\n'
        "  = hint: an ONNX graph has no cycles; recurrence is written with Loop or Scan",
    ),
    "dangling": (
        compiled(model(NODE("Add", ["x", "nowhere"], ["y"], "add"))),
        "value 'nowhere' is read but never produced\n  | ONNX node \"add\" (Add)\n"
        "  = hint: it is no input, no initializer and no node's output; check the model with onnx.checker",
    ),
    "unsupported operators, all at once": (
        compiled(FOREIGN),
        "the model has operators that minitvm cannot import: my.Foo (2)\n  | my.Foo: first, second\n"
        "  = hint: write a builder for them: @minitvm.frontend.onnx_op(name, since=..., domain=...)",
    ),
    "not a library": (
        lambda: minitvm.load("text.onnx"),
        "text.onnx is not a minitvm library\n  = hint: libraries are written by lib.save(path) or `minitvm compile`",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_text_says_what_where_and_what_next(name: str, folder: pathlib.Path) -> None:
    session = minitvm.InferenceSession("m.onnx")
    act, text = CASES[name]
    with pytest.raises(minitvm.MiniTVMError) as caught:
        act()
    assert str(caught.value) == text
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], np.maximum(X, 0))


def test_missing_external_data(folder: pathlib.Path) -> None:
    (folder / "e.onnx").write_bytes(outside("w.bin").SerializeToString())
    with pytest.raises(minitvm.MiniTVMError) as caught:
        minitvm.compile("e.onnx")
    assert str(caught.value).startswith(
        "external data 'w.bin' does not exist\n  | ONNX tensor \"w\"\n  = hint: put the "
    )


def test_unknown_input_by_keyword_and_result_before_a_run(folder: pathlib.Path) -> None:
    module = minitvm.GraphModule(minitvm.compile("m.onnx")["default"](minitvm.cpu()))
    with pytest.raises(minitvm.MiniTVMError) as unknown:
        module.set_input(z=X)
    assert str(unknown.value) == "the model has no input 'z'\n  = hint: its inputs are: x"
    with pytest.raises(minitvm.MiniTVMError) as early:
        module.get_output(0)
    assert str(early.value) == "output 0 has no value: the model has not run\n  = hint: call run() first"
    with pytest.raises(minitvm.MiniTVMError) as unset:
        module.run()
    assert str(unset.value) == (
        "input not set: x\n  = hint: give every input, in run(name=array) or by set_input(name, array)"
    )
    module.run(x=X)
    np.testing.assert_array_equal(module.get_output(0).numpy(), np.maximum(X, 0))


@pytest.mark.parametrize("array", [np.asfortranarray(X), X[::-1][::-1], X.astype(">f4"), X.tolist()], ids=str)
def test_unusual_arrays_work(folder: pathlib.Path, array: Any) -> None:
    given = np.asarray(array, "float32") if isinstance(array, list) else array
    (result,) = minitvm.InferenceSession("m.onnx").run(None, {"x": given})
    np.testing.assert_array_equal(result, np.maximum(X, 0))


def test_a_batch_of_none_works() -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ("n", 3))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    nodes = [NODE("Softmax", ["x"], ["s"], axis=-1), NODE("ReduceSum", ["s"], ["y"], keepdims=1)]
    graph = helper.make_graph(nodes, "g", [x], [y])
    session = minitvm.InferenceSession(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    )
    assert session.run(None, {"x": np.zeros((0, 3), "float32")})[0].tolist() == [[0.0]]
    assert session.run(None, {"x": X})[0] == pytest.approx(2.0)


def test_no_cut_and_no_flip_of_a_library_is_taken_or_crashes(folder: pathlib.Path) -> None:
    library = minitvm.compile("m.onnx")
    library.save("good.mtvm")
    data = (folder / "good.mtvm").read_bytes()
    rng = np.random.default_rng(3)
    damaged = [data[:cut] for cut in range(0, len(data), max(64, len(data) // 60))]
    for position in rng.integers(0, len(data), 60):
        damaged.append(data[:position] + bytes([data[position] ^ 0x55]) + data[position + 1 :])
    refused = 0
    for number, content in enumerate(damaged):
        path = folder / f"bad{number}.mtvm"
        path.write_bytes(content)
        try:
            minitvm.load(path)
        except minitvm.MiniTVMError as error:
            refused += 1
            assert str(path) in str(error) or path.name in str(error)
    assert refused >= len(damaged) - 20  # what is left: bytes of the archive's own bookkeeping, which mean nothing


def test_an_unwritable_cache_is_one_warning(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "file").write_text("")
    monkeypatch.setenv("MINITVM_CACHE_DIR", str(folder / "file" / "cache"))
    with pytest.warns(CacheWarning, match=r"the kernel cache .* cannot be written \(Not a directory\)"):
        session = minitvm.InferenceSession(model(NODE("Tanh", ["x"], ["y"], "tanh")))
    np.testing.assert_allclose(session.run(None, {"x": X})[0], np.tanh(X), rtol=1e-6)
