"""If, Loop and Scan: taken at import where the condition is known, functions with explicit arguments otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx_build import build, run, value

from minitvm.errors import InputError
from minitvm.frontend import from_onnx
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Call, Function
from minitvm.ir.ops.control import If, Loop
from minitvm.ir.visitor import calls, free_vars

RNG = np.random.default_rng(11)
FLAG = value("flag", (), "bool")


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def node(op_type: str, inputs: list[str], outputs: list[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs, outputs, **attributes)


def body(
    nodes: list[onnx.NodeProto], outputs: list[str], inputs: list[onnx.ValueInfoProto] | None = None, **weights: Any
) -> onnx.GraphProto:
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    return helper.make_graph(nodes, "body", inputs or [], [value(name, None) for name in outputs], tensors)


def only(module: Any, op: type[Any]) -> Call:
    (found,) = [c for c in calls(module.main.body) if isinstance(c.op, op)]
    return found


def choice() -> onnx.ModelProto:
    """x @ w where the flag is set, else x - c: the branches take different values from outside."""
    then = body([node("MatMul", ["x", "w"], ["t"])], ["t"])
    other = body([node("Neg", ["c"], ["n"]), node("Add", ["x", "n"], ["e"])], ["e"], c=np.float32([1, 2, 3]))
    nodes = [node("If", ["flag"], ["y"], name="choose", then_branch=then, else_branch=other)]
    return build(nodes, [FLAG, value("x", (2, 3))], ["y"], {"w": floats(3, 3)})


def test_if_at_run_time() -> None:
    module, params = from_onnx(choice())
    call, x = only(module, If), floats(2, 3)
    for branch in (call.op.then_branch, call.op.else_branch):
        assert isinstance(branch, Function) and free_vars(branch) == []
    then, other = (evaluate(module, np.array(flag), x, *params.values()) for flag in (True, False))
    np.testing.assert_allclose(then, x @ params["w"], rtol=1e-5)
    np.testing.assert_array_equal(other, x - np.float32([1, 2, 3]))


def test_what_branches_compute_from_weights_is_computed_outside() -> None:
    module, _ = from_onnx(choice())
    call = only(module, If)
    assert [c.op.name for c in calls(call.op.then_branch.body)] == ["nn.dense"]
    assert [c.op.name for c in calls(module.main.body)] == ["transpose", "control.if"]


@pytest.mark.parametrize("flag", [True, False])
def test_if_at_import(flag: bool) -> None:
    model = choice()
    model.graph.initializer.append(numpy_helper.from_array(np.array(flag), "flag"))
    module, params = from_onnx(model)
    assert [c.op.name for c in calls(module.main.body)] == (["transpose", "nn.dense"] if flag else ["add"])
    assert list(params) == (["w"] if flag else [])


def test_nested_branches_take_values_from_two_levels_up() -> None:
    inner = body([node("Mul", ["x", "k"], ["i"])], ["i"])
    deep = body([node("Sub", ["x", "m"], ["j"])], ["j"])
    then = body([node("Neg", ["x"], ["m"]), node("If", ["other"], ["t"], then_branch=inner, else_branch=deep)], ["t"])
    last = body([node("Identity", ["x"], ["e"])], ["e"])
    nodes = [node("Exp", ["x"], ["k"]), node("If", ["flag"], ["y"], then_branch=then, else_branch=last)]
    x = floats(4)
    model = build(nodes, [FLAG, value("other", (), "bool"), value("x", x)], ["y"])
    module, _ = from_onnx(model)
    for flag, other, expected in [(1, 1, x * np.exp(x)), (1, 0, 2 * x), (0, 1, x)]:
        found = evaluate(module, np.array(bool(flag)), np.array(bool(other)), x)
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_branch_that_the_shapes_rule_out_raises_when_it_is_taken() -> None:
    fits = body([node("Reshape", ["x", "to4"], ["t"])], ["t"], to4=np.array([4]))
    never = body([node("Reshape", ["x", "to9"], ["e"])], ["e"], to9=np.array([9]))
    nodes = [node("If", ["flag"], ["y"], name="choose", then_branch=fits, else_branch=never)]
    module, _ = from_onnx(build(nodes, [FLAG, value("x", (2, 2))], ["y"]))
    x = floats(2, 2)
    np.testing.assert_array_equal(evaluate(module, np.array(True), x), x.reshape(4))
    with pytest.raises(InputError) as caught:
        evaluate(module, np.array(False), x)
    assert caught.value.message == (
        'ONNX node "choose" (If) takes a branch that the shapes of the inputs rule out: '
        "reshape: Tensor[(2, 2), float32] cannot have shape [9]: the numbers of elements differ"
    )


def counting_loop(trips: list[str], condition: str) -> onnx.ModelProto:
    """total += i * w until it exceeds a limit; every total is recorded."""
    inputs = [value("i", (), "int64"), value("go", (), "bool"), value("total", (2,))]
    nodes = [
        node("Cast", ["i"], ["f"], to=onnx.TensorProto.FLOAT),
        node("Mul", ["f", "w"], ["step"]),
        node("Add", ["total", "step"], ["next"]),
        node("ReduceSum", ["next"], ["sum"], keepdims=0),
        node("Less", ["sum", "limit"], ["again"]),
        node("Identity", ["next"], ["seen"]),
    ]
    loop = body(nodes, ["again", "next", "seen"], inputs)
    return build(
        [node("Loop", [*trips, condition, "start"], ["last", "all"], body=loop)],
        [value("start", (2,)), value("limit", ())],
        ["last", "all"],
        {"w": np.float32([1, 2]), "count": np.array(8)},
    )


@pytest.mark.parametrize("limit", [20.0, 1000.0, -50.0])
def test_loop_stops_at_its_condition_or_its_count(limit: float) -> None:
    start, expected = floats(2), []
    for i in range(8):
        expected.append((expected[-1] if expected else start) + np.float32([i, 2 * i]))
        if expected[-1].sum() >= limit:
            break
    last, seen = run(counting_loop(["count"], ""), {"start": start, "limit": np.float32(limit)})
    np.testing.assert_allclose(seen, expected, rtol=1e-5, strict=True)
    np.testing.assert_array_equal(last, seen[-1])


def test_loop_without_a_count() -> None:
    start = floats(2)
    _, seen = run(counting_loop([""], ""), {"start": start, "limit": np.float32(1000)})
    assert len(seen) > 8


def test_a_carried_value_that_grows() -> None:
    inputs = [value("i", (), "int64"), value("go", (), "bool"), value("list", None)]
    grow = body([node("Concat", ["list", "x"], ["longer"], axis=0)], ["go", "longer"], inputs)
    loop = node("Loop", ["count", "", "start"], ["y"], body=grow)
    model = build([loop], [value("x", (2,)), value("start", (1,))], ["y"], {"count": np.array(3)})
    module, _ = from_onnx(model)
    assert str(module.main.ret_type) == "Tensor[(?,), float32]"
    assert str(only(module, Loop).op.body.params[2].type) == "Tensor[(?,), float32]"
    x, start = floats(2), floats(1)
    np.testing.assert_array_equal(run(model, {"x": x, "start": start})[0], np.concatenate([start, x, x, x]))


def test_scan_backwards_over_the_second_axis() -> None:
    inputs = [value("sum_in", (2,)), value("column", (2,))]
    add = [node("Add", ["sum_in", "column"], ["sum_out"]), node("Identity", ["sum_out"], ["seen"])]
    scan = node(
        "Scan",
        ["zero", "x"],
        ["last", "all"],
        body=body(add, ["sum_out", "seen"], inputs),
        num_scan_inputs=1,
        scan_input_axes=[1],
        scan_input_directions=[1],
        scan_output_axes=[1],
    )
    x = floats(2, 4)
    model = build([scan], [value("x", x)], ["last", "all"], {"zero": np.zeros(2, np.float32)})
    last, seen = run(model, {"x": x})
    np.testing.assert_allclose(seen, np.cumsum(x[:, ::-1], axis=1), rtol=1e-5)
    np.testing.assert_allclose(last, x.sum(1), rtol=1e-5, atol=1e-6)
    assert str(from_onnx(model)[0].main.ret_type) == "(Tensor[(2,), float32], Tensor[(2, 4), float32])"
