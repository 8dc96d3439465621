"""Weights, names, folding, provenance, local functions, descriptions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_build import build, one_node, run, value

from minitvm.errors import FrontendError, UserCodeError
from minitvm.frontend import describe_onnx, from_onnx, onnx_op, supported_operators
from minitvm.frontend.onnx.node import FOLD_LIMIT, OnnxNode, emit
from minitvm.frontend.onnx.registry import BUILDERS, builder_for
from minitvm.ir.expr import Constant, Expr
from minitvm.ir.visitor import calls

RNG = np.random.default_rng(7)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def node(op_type: str, inputs: list[str], outputs: list[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs, outputs, **attributes)


def operators(model: Any, **options: Any) -> list[str]:
    """Names of the calls that a model becomes, in order."""
    return [call.op.name for call in calls(from_onnx(model, **options)[0].main.body)]


# --- weights --------------------------------------------------------------------------------------------------


def dense_model() -> onnx.ModelProto:
    nodes = [node("Gemm", ["0", "fc.weight", "fc.bias"], ["h"], transB=1), node("Relu", ["h"], ["1"])]
    weights = {"fc.weight": floats(5, 3), "fc.bias": floats(5), "unused": floats(2)}
    return build(nodes, [value("0", (2, 3))], ["1"], weights)


def test_weights_follow_the_inputs_under_their_names() -> None:
    module, params = from_onnx(dense_model())
    assert [p.name for p in module.main.params] == ["0", "fc.weight", "fc.bias"]
    assert list(params) == ["fc.weight", "fc.bias"]
    assert operators(dense_model()) == ["nn.dense", "nn.bias_add", "nn.relu"]


def test_frozen_weights_are_constants() -> None:
    module, params = from_onnx(dense_model(), freeze_params=True)
    assert [p.name for p in module.main.params] == ["0"] and params == {}
    (product, *_) = calls(module.main.body)
    assert isinstance(product.args[1], Constant) and product.args[1].name == "fc.weight"


def test_an_initializer_that_is_an_input_is_a_weight_unless_its_shape_is_given() -> None:
    weight = floats(3)
    model = build([node("Mul", ["x", "w"], ["y"])], [value("x", (2, 3)), value("w", (3,))], ["y"], {"w": weight})
    module, params = from_onnx(model)
    assert list(params) == ["w"] and [v.name for v in describe_onnx(model).inputs] == ["x"]
    module, params = from_onnx(model, {"w": (3,)})
    assert params == {} and [p.name for p in module.main.params] == ["x", "w"]


def test_large_constant_nodes_are_weights_small_integers_are_not() -> None:
    table, bias = floats(4, 3), floats(3)
    nodes = [
        node("Constant", [], ["table"], value=onnx.numpy_helper.from_array(table)),
        node("Gather", ["table", "rows"], ["g"], axis=0),
        node("Add", ["g", "bias"], ["y"]),
    ]
    model = build(nodes, [value("unused", (1,))], ["y"], {"rows": np.array([2, -1]), "bias": bias})
    assert list(from_onnx(model)[1]) == ["bias", "table"]
    (found,) = run(model, {"unused": floats(1)})
    np.testing.assert_array_equal(found, table[[2, 3]] + bias)


def test_an_input_that_is_an_output() -> None:
    x = floats(2)
    model = build([node("Neg", ["x"], ["y"])], [value("x", x)], ["x", "y"])
    first, second = run(model, {"x": x})
    np.testing.assert_array_equal(first, x)
    np.testing.assert_array_equal(second, -x)


def test_other_dtypes_of_inputs() -> None:
    module, _ = from_onnx(build([node("Relu", ["x"], ["y"])], [value("x", (2,))], ["y"]), dtype_dict={"x": "float64"})
    assert module.main.ret_type.dtype == "float64"  # type: ignore[union-attr]


def test_three_ways_to_give_a_model(tmp_path: Path) -> None:
    model = dense_model()
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    x = floats(2, 3)
    results = [run(m, {"0": x})[0] for m in (model, path, str(path), model.SerializeToString())]
    assert all(np.array_equal(results[0], other) for other in results[1:])


# --- folding --------------------------------------------------------------------------------------------------


def test_shape_arithmetic_disappears() -> None:
    """x.reshape(x.shape[0], -1), as exporters write it."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["n"], axis=0),
        node("Unsqueeze", ["n", "axes"], ["n1"]),
        node("Concat", ["n1", "rest"], ["shape"], axis=0),
        node("Reshape", ["x", "shape"], ["y"]),
    ]
    weights = {"zero": np.array(0), "axes": np.array([0]), "rest": np.array([-1])}
    model = build(nodes, [value("x", ["n", 3, 4])], ["y"], weights)
    module, params = from_onnx(model, {"x": (2, 3, 4)})
    assert operators(model, shape_dict={"x": (2, 3, 4)}) == ["reshape"]
    assert module.main.ret_type.shape == (2, 12) and params == {}  # type: ignore[union-attr]


def test_weights_decide_shapes_where_they_must() -> None:
    """Float weights stay parameters, but a size computed from them is computed at import."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Cast", ["s"], ["f"], to=onnx.TensorProto.FLOAT),
        node("Mul", ["f", "scales"], ["g"]),
        node("Cast", ["g"], ["sizes"], to=onnx.TensorProto.INT64),
        node("Resize", ["x", "", "", "sizes"], ["y"], mode="nearest"),
    ]
    model = build(nodes, [value("x", (1, 1, 2, 3))], ["y"], {"scales": np.array([1, 1, 2, 2], np.float32)})
    module, params = from_onnx(model)
    assert module.main.ret_type.shape == (1, 1, 4, 6) and params == {}  # type: ignore[union-attr]


def test_float_weights_are_not_folded() -> None:
    nodes = [node("Mul", ["w", "v"], ["p"]), node("Add", ["x", "p"], ["y"])]
    model = build(nodes, [value("x", (3,))], ["y"], {"w": floats(3), "v": floats(3)})
    assert operators(model) == ["multiply", "add"]
    assert operators(model, freeze_params=True) == ["add"]


def test_large_results_are_not_folded() -> None:
    shape = np.array([FOLD_LIMIT // 4 + 1, 4])
    model = build([node("ConstantOfShape", ["shape"], ["y"])], [value("x", (1,))], ["y"], {"shape": shape})
    assert operators(model) == ["full"]


def test_unknown_dimensions_flow_on() -> None:
    model = build([node("MatMul", ["x", "w"], ["h"]), node("Relu", ["h"], ["y"])], [value("x", ["n", 5, 3])], ["y"])
    model.graph.initializer.append(onnx.numpy_helper.from_array(floats(3, 4), "w"))
    module, params = from_onnx(model, {"x": (None, 5, 3)})
    assert str(module.main.ret_type) == "Tensor[(n, 5, 4), float32]"
    from minitvm.ir.evaluate import evaluate

    x = floats(6, 5, 3)
    np.testing.assert_allclose(evaluate(module, x, *params.values()), np.maximum(x @ params["w"], 0), rtol=1e-5)


# --- places ---------------------------------------------------------------------------------------------------


def test_calls_remember_their_nodes() -> None:
    nodes = [node("MatMul", ["x", "w"], ["h"], name="fc"), node("Relu", ["h"], ["y"])]
    module, _ = from_onnx(build(nodes, [value("x", (2, 3))], ["y"], {"w": floats(3, 4)}))
    assert [(c.op.name, c.span) for c in calls(module.main.body)] == [
        ("transpose", ("fc",)),
        ("nn.dense", ("fc",)),
        ("nn.relu", ("Relu_y",)),
    ]


def test_nodes_in_any_order() -> None:
    nodes = [node("Relu", ["h"], ["y"]), node("Neg", ["x"], ["h"])]
    x = floats(4)
    (found,) = run(build(nodes, [value("x", x)], ["y"]), {"x": x})
    np.testing.assert_array_equal(found, np.maximum(-x, 0))


def test_a_chain_of_thousands_of_nodes() -> None:
    count = 5000
    nodes = [node("Neg", [f"v{i}"], [f"v{i + 1}"]) for i in range(count)]
    module, _ = from_onnx(build(nodes, [value("v0", (2,))], [f"v{count}"]))
    assert len(calls(module.main.body)) == count


# --- functions, and operators of one's own --------------------------------------------------------------------


def test_local_functions_are_inlined() -> None:
    body = [node("Mul", ["a", "a"], ["sq"]), node("Add", ["sq", "b"], ["out"])]
    imports = [helper.make_opsetid("", 21)]
    function = helper.make_function("local", "SquareAdd", ["a", "b"], ["out"], body, imports)
    call = helper.make_node("SquareAdd", ["x", "x"], ["y"], domain="local", name="call")
    x = floats(3)
    model = build([call], [value("x", x)], ["y"], functions=[function])
    np.testing.assert_allclose(run(model, {"x": x})[0], x * x + x, rtol=1e-6)


def test_operators_that_onnx_defines_by_others_are_imported_as_those() -> None:
    assert builder_for("", "NegativeLogLikelihoodLoss", 22) is None
    scores, labels = floats(4, 3), np.array([0, 2, 1, 1])
    model = one_node("NegativeLogLikelihoodLoss", scores, labels, opset=22, reduction="none")
    np.testing.assert_allclose(run(model, {"x0": scores, "x1": labels})[0], -scores[range(4), labels])
    module, _ = from_onnx(model)
    assert {c.span for c in calls(module.main.body)} == {("the_node",)}


def test_a_builder_of_ones_own() -> None:
    @onnx_op("Twice", domain="test.company")
    def twice(node: OnnxNode) -> Expr:
        return emit("add", node[0], node[0])

    try:
        assert "test.company.Twice" in supported_operators()
        x = floats(3)
        model = build([helper.make_node("Twice", ["x"], ["y"], domain="test.company")], [value("x", x)], ["y"])
        np.testing.assert_array_equal(run(model, {"x": x})[0], 2 * x)
    finally:
        del BUILDERS["test.company", "Twice"]


def test_an_exception_in_a_builder_of_ones_own() -> None:
    @onnx_op("Fails", domain="test.company")
    def fails(node: OnnxNode) -> Expr:
        raise KeyError("missing")

    model = build(
        [helper.make_node("Fails", ["x"], ["y"], "n7", domain="test.company")], [value("x", floats(3))], ["y"]
    )
    try:
        with pytest.raises(
            UserCodeError, match=r"^ONNX builder of Fails raised KeyError: 'missing'\n  \| .*n7"
        ) as caught:
            from_onnx(model)
    finally:
        del BUILDERS["test.company", "Fails"]
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("made", "said"), [(None, "None"), (3, "a int"), (np.ones(3), "a ndarray"), ([3], "a list"), ("y", "a str")]
)
def test_what_a_builder_of_ones_own_returns(made: Any, said: str) -> None:
    onnx_op("Returns", domain="test.company")(lambda node: made)
    model = build(
        [helper.make_node("Returns", ["x"], ["y"], "n7", domain="test.company")], [value("x", floats(3))], ["y"]
    )
    try:
        with pytest.raises(FrontendError, match=f"^Returns: its builder returned {said}\n  .*n7") as caught:
            from_onnx(model)
    finally:
        del BUILDERS["test.company", "Returns"]
    assert caught.value.hint == "return an expression, or a list with one for each output (None: not there)"


@pytest.mark.parametrize(("opset", "since"), [(10, 6), (11, 11), (21, 11)])
def test_the_newest_builder_not_newer_than_the_opset_is_taken(opset: int, since: int) -> None:
    assert builder_for("", "Clip", opset) is BUILDERS["", "Clip"][since]


# --- descriptions ---------------------------------------------------------------------------------------------


def test_descriptions_are_onnx_runtimes() -> None:
    runtime = pytest.importorskip("onnxruntime")
    inputs = [value("a", ["batch", 3, None]), value("b", (), "int64"), value("c", (2,), "bool")]
    model = build([node("Identity", [n], [f"{n}_out"]) for n in "abc"], inputs, [])
    model.graph.output.extend(
        [value("a_out", ["batch", 3, None]), value("b_out", (), "int64"), value("c_out", (2,), "bool")]
    )
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = describe_onnx(model)
    for mine, theirs in zip(
        (*found.inputs, *found.outputs), (*session.get_inputs(), *session.get_outputs()), strict=True
    ):
        assert (mine.name, mine.type, list(mine.shape)) == (theirs.name, theirs.type, theirs.shape)
    assert [v.dtype for v in found.inputs] == ["float32", "int64", "bool"]
