"""Values that shapes depend on: given by name, or taken from a session's inputs, which compiles for them."""

from __future__ import annotations

import pathlib

import numpy as np
import onnx
import onnxruntime
import pytest
from click.testing import CliRunner
from onnx import parser

import minitvm
from minitvm import InferenceSession, from_onnx
from minitvm.cli import cli
from minitvm.errors import InputError, MiniTVMError, UnknownValueError
from minitvm.ir.evaluate import evaluate
from minitvm.ort.compiling import VALUE_LIMIT

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
SUMS = "g (float[2, n, 4] x, int64[1] a, int64[1] b) => (float y) { c = Add(a, b) y = ReduceSum<keepdims = 0>(x, c) }"
BRANCH = """g (float[2, 6] x, int64[2] s, bool sure) => (float y) {
  y = If (sure) <
    then_branch = one () => (float z) { t = Abs(s) z = Reshape(x, t) },
    else_branch = two () => (float z) { h = Reshape(x, s) z = Neg(h) }
  >
}"""
STEPS = """g (int64 n, int64[1] s, float[6] x) => (float y, int64[k, 1] grown) {
  go = Constant<value = bool {1}>()
  y, grown = Loop (n, go, x) <
    body = step (int64 i, bool c, float[6] h) => (bool more, float after, int64[1] out) {
      more = Identity(c)
      r = Reshape(h, s)
      t = Neg(r)
      flat = Constant<value = int64[1] {6}>()
      after = Reshape(t, flat)
      out = Add(s, i)
    }
  >
}"""
CARRIED = """g (int64 n, int64[1] s, float[6] x) => (int64[1] s2, float[k] grown) {
  go = Constant<value = bool {1}>()
  s2, grown = Loop (n, go, s) <
    body = step (int64 i, bool c, int64[1] h) => (bool more, int64[1] after, float[k] out) {
      more = Identity(c)
      after = Identity(h)
      out = Reshape(x, h)
    }
  >
}"""


def model(text: str) -> onnx.ModelProto:
    return parser.parse_model(HEAD + text)


def x(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def check(session: InferenceSession, text: str, feeds: dict[str, np.ndarray]) -> None:
    peer = onnxruntime.InferenceSession(model(text).SerializeToString(), providers=["CPUExecutionProvider"])
    for found, expected in zip(session.run(None, feeds), peer.run(None, feeds), strict=True):
        assert found.shape == expected.shape and found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_session_compiles_for_the_values_that_shapes_depend_on() -> None:
    session = InferenceSession(model(SUMS), num_threads=1, specialisations=3)
    assert session.inputs_by_value == []
    for a, b, size in [(0, 0, 3), (1, 1, 3), (2, -2, 3), (1, 0, 3), (0, 0, 5), (0, 0, 3)]:
        check(session, SUMS, {"x": x(2, size, 4), "a": ints(a), "b": ints(b)})
    assert session.inputs_by_value == ["a", "b"] and len(session.libraries) == 3
    before = session.libraries[-1]
    session.run(None, {"x": 2 * x(2, 3, 4), "a": ints(0), "b": ints(0)})
    assert session.libraries[-1] is before


def test_where_all_shapes_are_known_values_may_still_be_missing() -> None:
    text = SUMS.replace("n, 4", "3, 4")
    session = InferenceSession(model(text), num_threads=1)
    assert session.inputs_by_value == ["a", "b"] and session.libraries == []
    check(session, text, {"x": x(2, 3, 4), "a": ints(1), "b": ints(1)})


@pytest.mark.parametrize("sure", [True, False])
def test_a_branch_reshapes_to_a_value_from_outside(sure: bool) -> None:
    session = InferenceSession(model(BRANCH), num_threads=1)
    for shape in ((3, 4), (12, 1)):
        check(session, BRANCH, {"x": x(2, 6), "s": ints(*shape), "sure": np.array(sure)})


def test_a_loop_reshapes_to_a_value_from_outside() -> None:
    session = InferenceSession(model(STEPS), num_threads=1)
    for count in (3, 2):
        check(session, STEPS, {"n": np.array(count), "s": ints(6), "x": x(6)})
    assert (session.inputs_by_value, session.host_calls) == ([], [])


def test_what_a_loop_carries_is_no_input() -> None:
    session = InferenceSession(model(CARRIED), num_threads=1)
    check(session, CARRIED, {"n": np.array(3), "s": ints(6), "x": x(6)})
    assert (session.inputs_by_value, session.host_calls) == ([], [])


def test_wrong_values_leave_the_session_usable() -> None:
    session = InferenceSession(model(SUMS), num_threads=1)
    for wrong in (7, -9):
        with pytest.raises(MiniTVMError, match="axis"):
            session.run(None, {"x": x(2, 3, 4), "a": ints(wrong), "b": ints(0)})
    check(session, SUMS, {"x": x(2, 3, 4), "a": ints(1), "b": ints(1)})


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((4, 2), r"Expand: Tensor\[\(3,\), float32\] cannot be broadcast to shape \[4, 2\]: 3 and 2"),
        ((-4, 3), r"shape \(-4, 3\) has a negative dimension"),
        ((2**61, 3), "would take"),
    ],
)
def test_shapes_that_no_tensor_has(shape: tuple[int, int], message: str) -> None:
    session = InferenceSession(model("g (float[3] x, int64[2] s) => (float y) { y = Expand(x, s) }"), num_threads=1)
    with pytest.raises(MiniTVMError, match=message) as error:
        session.run(None, {"x": x(3), "s": ints(*shape)})
    assert "ONNX node" in str(error.value)
    assert session.run(None, {"x": x(3), "s": ints(4, 3)})[0].shape == (4, 3)


def test_large_inputs_are_not_compiled_for() -> None:
    text = "g (float[n] x, int64[n] s) => (float y) { y = Expand(x, s) }"
    session = InferenceSession(model(text), num_threads=1)
    feeds = {"x": x(VALUE_LIMIT + 1), "s": np.ones(VALUE_LIMIT + 1, np.int64)}
    with pytest.raises(UnknownValueError, match=r"the shape \(input 1\) is computed when the model runs"):
        session.run(None, feeds)
    assert session.inputs_by_value == []


def test_values_by_name() -> None:
    shapes = {"x": (2, 3, 4)}
    with pytest.raises(UnknownValueError) as caught:
        from_onnx(model(SUMS), shapes)
    assert caught.value.inputs == ("a", "b")
    assert str(caught.value) == (
        "ReduceSum: axes (input 1) is computed when the model runs; minitvm needs it while importing\n"
        '  | ONNX node that produces "y" (ReduceSum)\n'
        "  = hint: give the value that it follows from: from_onnx(model, value_dict={'a': array, 'b': array})"
    )
    module, _ = from_onnx(model(SUMS), shapes, value_dict={"a": ints(1), "b": [1]})
    assert [p.name for p in module.main.params] == ["x"]
    library = minitvm.compile(model(SUMS), shape_dict=shapes, value_dict={"a": ints(1), "b": ints(1)}, num_threads=1)
    assert [library.graph.nodes[i].name for i in library.graph.arg_nodes] == ["x"]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"z": ints(1)}, "value_dict names 'z', which is no input of the model"),
        ({"a": np.float32([1])}, "value_dict gives input 'a' an array of float32; the model takes int64"),
        ({"a": ints(1, 2)}, "gives dimension 0 of input 'a' as 2; the model fixes it at 1"),
        ([1], "value_dict is a list, not a dictionary"),
    ],
)
def test_values_that_do_not_fit(values: object, text: str) -> None:
    with pytest.raises(InputError, match=text):
        from_onnx(model(SUMS), {"x": (2, 3, 4)}, value_dict=values)  # type: ignore[arg-type]


def test_the_open_size_of_an_input_is_no_value() -> None:
    text = "g (float[n] x, float[6] z) => (float y) { s = Shape(x) y = Reshape(z, s) }"
    module, _ = from_onnx(model(text), {"x": (None,)})
    assert "onnx.Reshape" in str(module)
    np.testing.assert_array_equal(evaluate(module, x(6), x(6)), x(6))


def test_on_the_command_line(tmp_path: pathlib.Path) -> None:
    path, feeds = tmp_path / "sums.onnx", tmp_path / "feeds.npz"
    onnx.save(model(SUMS), path)
    np.savez(feeds, x=x(2, 3, 4), a=ints(1), b=ints(1))
    run = lambda *args: CliRunner().invoke(cli, ["run", str(path), *args])  # noqa: E731
    assert "(2, 3)" in run("-i", str(feeds)).output
    assert "(2, 4)" in run("--shape", "x:2x3x4", "--value", "a:1", "--value", "b:0").output
    failed = run("--shape", "x:2x3x4", "--value", "a:1")
    assert isinstance(failed.exception, UnknownValueError) and failed.exception.hint is not None
    assert failed.exception.hint.endswith(": --value b:0,1")
    assert "is not NAME:VALUES" in run("--value", "a").output
