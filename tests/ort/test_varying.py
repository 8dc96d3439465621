"""Sessions whose runs differ in what they give: weights that are defaults, inputs of which the model says no rank."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import minitvm
from minitvm import InferenceSession
from minitvm.errors import FrontendError, InputError, LibraryError

X, W = np.zeros(2, np.float32), np.array([10, 20], np.float32)


def model_of(text: str, ir_version: int = 9, **defaults: np.ndarray) -> onnx.ModelProto:
    """``defaults`` are initializers; those that the text has among its inputs may be fed."""
    found = parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["": 18]> g {text}')
    found.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in defaults.items())
    return found


def beside(model: onnx.ModelProto, **options: Any) -> tuple[Any, InferenceSession]:
    runtime = pytest.importorskip("onnxruntime")
    settings = runtime.SessionOptions()
    settings.log_severity_level = 4
    return runtime.InferenceSession(model.SerializeToString(), settings), InferenceSession(model, **options)


def check(model: onnx.ModelProto, *feeds: Mapping[str, np.ndarray]) -> InferenceSession:
    """Runs one after the other, each as ONNX Runtime has it."""
    theirs, mine = beside(model)
    for feed in feeds:
        for found, expected in zip(mine.run(None, feed), theirs.run(None, feed), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-6, strict=True)
    return mine


ADD = model_of("(float[2] x, float[2] w) => (float[2] y) { y = Add (x, w) }", w=np.array([1, 2], np.float32))


def test_a_default_is_replaced_by_what_is_fed() -> None:
    session = check(ADD, {"x": X}, {"x": X, "w": W}, {"x": X}, {"w": W * 2, "x": X})
    assert [v.name for v in session.get_inputs()] == ["x"]
    assert [(v.name, v.type, v.shape) for v in session.get_overridable_initializers()] == [("w", "tensor(float)", [2])]
    assert len(session.libraries) == 2 and not session.host_calls


def test_nothing_was_folded_that_follows_from_a_default() -> None:
    """Values, shapes, branches and trips."""
    values = "{ a = Add (w, w) b = Exp (a) y = Mul (x, b) }"
    check(model_of(f"(float[2] x, float[2] w) => (y) {values}", w=W / 10), {"x": X + 1}, {"x": X + 1, "w": W / 20})
    shapes = model_of("(float[6] x, int64[2] s) => (y) { y = Reshape (x, s) }", s=np.array([2, 3]))
    x = np.arange(6, dtype=np.float32)
    check(shapes, {"x": x}, {"x": x, "s": np.array([3, 2])}, {"x": x, "s": np.array([6, -1])})
    branch = "b = If (c) <then_branch = t () => (p) { p = Neg (x) }, else_branch = e () => (p) { p = Abs (x) }>"
    choice = model_of(f"(float[2] x, bool c) => (y) {{ {branch} y = Exp (b) }}", c=np.array(True))
    check(choice, {"x": X - 1}, {"x": X - 1, "c": np.array(False)}, {"x": X - 1, "c": np.array(True)})
    step = "b (int64 i, bool c, float[2] v) => (bool d, float[2] u) { d = Identity (c) u = Add (v, x) }"
    trips = model_of(f"(float[2] x, int64 n) => (y) {{ y = Loop (n, , x) <body = {step}> }}", n=np.array(3))
    check(trips, {"x": X + 1}, {"x": X + 1, "n": np.array(5)}, {"x": X + 1, "n": np.array(0)})


def test_defaults_with_open_dimensions() -> None:
    text = "(float[n,2] x, float[m,2] w) => (y) { y = Concat <axis = 0> (x, w) }"
    rows = [np.full((count, 2), count, np.float32) for count in (1, 2, 3)]
    session = check(
        model_of(text, w=rows[0]), {"x": rows[1]}, {"x": rows[1], "w": rows[2]}, {"x": rows[0], "w": rows[1]}
    )
    assert len(session.libraries) == 2


def test_weights_of_old_models_are_no_defaults() -> None:
    """Before version 4 of the format all weights were among the inputs."""
    old = onnx.ModelProto.FromString(ADD.SerializeToString())
    old.ir_version = 3
    session = check(old, {"x": X})
    assert session.get_overridable_initializers() == []
    with pytest.raises(InputError) as caught:
        session.run(None, {"x": X, "w": W})
    assert str(caught.value) == "the model has no input 'w'\n  = hint: its inputs are: x"


def test_errors_of_defaults() -> None:
    session = InferenceSession(ADD)
    with pytest.raises(InputError, match=r"input 'w' has shape \(3,\)"):
        session.run(None, {"x": X, "w": np.zeros(3, np.float32)})
    with pytest.raises(InputError, match="input 'w'"):
        session.run(None, {"x": X, "w": W.astype(np.float64)})
    with pytest.raises(InputError, match="input missing: x"):
        session.run(None, {"w": W})
    with pytest.raises(InputError, match="the model has no input 'v'") as caught:
        session.run(None, {"x": X, "v": W})
    assert "its inputs are: x, w" in str(caught.value)


def test_compile_and_defaults() -> None:
    """A library has the default, another one, or an input."""
    np.testing.assert_array_equal(minitvm.compile(ADD).run({"x": X})[0], [1, 2])
    np.testing.assert_array_equal(minitvm.compile(ADD, value_dict={"w": W}).run({"x": X})[0], W)
    np.testing.assert_array_equal(minitvm.compile(ADD, shape_dict={"w": (2,)}).run({"x": X, "w": W})[0], W)


def test_a_session_with_defaults_is_saved(tmp_path: Path) -> None:
    session = InferenceSession(ADD)
    session.run(None, {"x": X, "w": W})
    session.save(tmp_path / "m.mtvm")
    np.testing.assert_array_equal(InferenceSession(tmp_path / "m.mtvm").run(None, {"x": X})[0], [1, 2])


def test_binding_of_a_default() -> None:
    session = InferenceSession(ADD)
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_cpu_input("w", W)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], W)


# --- inputs without a rank --------------------------------------------------------------------------------------------


def unranked(*names: str, nodes: list[onnx.NodeProto], outputs: tuple[str, ...] = ("y",)) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
    graph = helper.make_graph(nodes, "g", inputs, [onnx.ValueInfoProto(name=name) for name in outputs])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


RELU = unranked("x", "unused", nodes=[helper.make_node("Relu", ["x"], ["y"])])


def test_an_input_without_a_rank_takes_what_comes() -> None:
    grids = [np.linspace(-1, 1, 6, dtype=np.float32).reshape(shape) for shape in ((6,), (2, 3), (1, 2, 3), (3, 2))]
    nothing = np.zeros((), np.float32)
    session = check(RELU, *({"x": grid, "unused": nothing} for grid in grids), {"x": nothing, "unused": grids[0]})
    assert [(v.name, v.shape) for v in session.get_inputs()] == [("x", []), ("unused", [])]


def test_ranks_that_depend_on_each_other() -> None:
    nodes = [
        helper.make_node("Add", ["a", "b"], ["s"]),
        helper.make_node("Shape", ["s"], ["n"]),
        helper.make_node("Softmax", ["s"], ["y"], axis=-1),
    ]
    model = unranked("a", "b", nodes=nodes, outputs=("y", "n"))
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    check(model, {"a": a, "b": a[0]}, {"a": a[0], "b": a}, {"a": a, "b": a}, {"a": a, "b": np.array(2, np.float32)})


def test_a_default_without_a_rank() -> None:
    model = model_of("(float[n,2] x, float[] w) => (y) { y = Add (x, w) }", w=W)
    model.graph.input[1].type.tensor_type.ClearField("shape")
    x = np.ones((3, 2), np.float32)
    check(model, {"x": x}, {"x": x, "w": np.array(5, np.float32)}, {"x": x, "w": np.outer(x[:, 0], W)}, {"x": x})


def test_scans_of_open_dimensions_in_a_branch() -> None:
    """Found: how often it goes was text, so that the branch was taken for one that does not fit; and the state is of
    the body's shape, which the input need not say."""
    step = "b (v, e) => (u, t) { t = Add (v, e) u = Add (t, w) }"
    scan = f"p, q = Scan <num_scan_inputs = 1, body = {step}> (s, x)"
    branches = f"then_branch = t () => (p, q) {{ {scan} }}, else_branch = e () => (p, q) {{ p = Neg (s) q = Abs (x) }}"
    text = f"(float[n,2] x, float[m] s, bool c) => (y, z) {{ y, z = If (c) <{branches}> }}"
    inputs = {"x": np.arange(6, dtype=np.float32).reshape(3, 2), "s": W}
    check(model_of(text, w=W), *({**inputs, "c": np.array(c)} for c in (True, False)))


def test_what_is_said_of_a_rank() -> None:
    session = InferenceSession(RELU, shape_dict={"x": ("n", 2), "unused": ()})
    session.run(None, {"x": np.zeros((3, 2), np.float32), "unused": np.zeros((), np.float32)})
    with pytest.raises(InputError, match="input 'x'"):
        session.run(None, {"x": np.zeros(2, np.float32), "unused": np.zeros((), np.float32)})
    with pytest.raises(FrontendError) as caught:
        minitvm.compile(RELU)
    assert str(caught.value) == ("input 'x' has no shape in the model\n  = hint: give it: shape_dict={'x': (...)}")
    with pytest.raises(InputError, match="does not say how many dimensions input 'unused' has"):
        InferenceSession(RELU).prepare({"x": (2,)})


def test_all_ranks_are_saved(tmp_path: Path) -> None:
    session = InferenceSession(RELU)
    with pytest.raises(LibraryError, match="nothing is compiled"):
        session.save(tmp_path / "m.mtvm")
    shapes = ((2,), (3, 2))
    for shape in shapes:
        session.prepare({"x": shape, "unused": ()})
    session.save(tmp_path / "m.mtvm")
    saved = InferenceSession(tmp_path / "m.mtvm")
    for shape in shapes:
        feeds = {"x": np.full(shape, -1, np.float32), "unused": np.zeros((), np.float32)}
        np.testing.assert_array_equal(saved.run(None, feeds)[0], np.zeros(shape))


def test_outputs_whose_types_the_model_does_not_say() -> None:
    text = "(float[n,3] x) => (y, z, s) { y = Relu (x) z = Shape (x) s = SequenceConstruct (x, y) }"
    theirs, mine = beside(model_of(text))
    for found, expected in zip(mine.get_outputs(), theirs.get_outputs(), strict=True):
        assert (found.name, found.type, found.shape) == (expected.name, expected.type, list(expected.shape))


# --- outputs ----------------------------------------------------------------------------------------------------------

X12 = np.array([1, -2], np.float32)
LOOP = """b (int64 i, bool c, float[2] v) => (bool d, float[2] u, float[2] u, float[2] v, d, c)
    { d = Identity (c) u = Add (v, w) }"""
U3 = [X12 + W, X12 + 2 * W, X12 + 3 * W]
OUTPUTS: dict[str, tuple[str, list[Any]]] = {
    "one value twice": ("(float[2] x) => (float[2] y, float[2] y) { y = Neg (x) }", [-X12, -X12]),
    "an input": ("(float[2] x) => (float[2] x, float[2] x, float[2] y) { y = Neg (x) }", [X12, X12, -X12]),
    "a weight": ("(float[2] x) => (float[2] w, float[2] w, float[2] x) { y = Neg (x) }", [W, W, X12]),
    "of a branch": (
        "(float[2] x, bool c) => (p, q, r) { p, q, r = If (c) "
        "<then_branch = t () => (a, a, w) { a = Neg (x) }, else_branch = e () => (x, w, x) { }> }",
        [-X12, -X12, W],
    ),
    "of the other branch": (
        "(float[2] x, bool c) => (p, q, r) { p, q, r = If (c) "
        "<else_branch = e () => (a, a, w) { a = Neg (x) }, then_branch = t () => (x, w, x) { }> }",
        [X12, W, X12],
    ),
    "of a loop": (
        f"(float[2] x, int64 n) => (p, q, r, s, t) {{ p, q, r, s, t = Loop (n, , x) <body = {LOOP}> }}",
        [U3[-1], np.stack(U3), np.stack([X12, *U3[:-1]]), np.ones(3, bool), np.ones(3, bool)],
    ),
    "of a loop of constants": (
        "(float[2] x) => (p, q) { n = Constant <value_int = 3> () p, q = Loop (n, , x) <body = "
        "b (int64 i, bool c, float[2] v) => (bool c, float[2] w, float[2] w) { }> }",
        [W, np.stack([W] * 3)],
    ),
    "of a loop that carries one value twice": (
        "(float[2] x, int64 n) => (p, q) { p, q = Loop (n, , x, x) <body = b (int64 i, bool c, float[2] v, float[2] u) "
        "=> (bool c, float[2] u, float[2] u) { }> }",
        [X12, X12],
    ),
    "of a scan": (
        "(float[2] x, float[1,2] e) => (p, q, r, s) { p, q, r, s = Scan <num_scan_inputs = 1, body = "
        "b (float[2] v, float[2] e) => (float[2] u, float[2] u, float[2] e, float[2] v) { u = Add (v, e) }> (x, e) }",
        [X12 + W, [X12 + W], [W], [X12]],
    ),
}
"""By numpy: ONNX Runtime refuses branches that give what is outside, and a scan's second output is of other memory."""


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize("level", [0, 3])
def test_outputs_that_are_one_value_or_an_input(name: str, level: int) -> None:
    text, expected = OUTPUTS[name]
    session = InferenceSession(model_of(text, w=W), opt_level=level)
    given = {"x": X12, "c": np.array(True), "n": np.array(3), "e": W[None]}
    feeds = {v.name: given[v.name].copy() for v in session.get_inputs()}
    for _ in range(2):
        results = session.run(None, feeds)
        for found, right in zip(results, expected, strict=True):
            np.testing.assert_array_equal(found, right)
        for result in results:  # they are the caller's: nobody else's, and no two the same
            result[...] = 7 + result.astype(np.float32)
        for found, right in zip(results, expected, strict=True):
            if found.dtype != bool:
                np.testing.assert_array_equal(found, 7 + np.asarray(right))
