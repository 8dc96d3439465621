"""What operators mean at the edges: attributes of another dtype than the tensor, windows that stick out, norms of
integers, zeros, single elements, unknown dimensions.  Against ONNX Runtime, or ONNX's reference where it has none."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx_build import build, error_of, one_node, run, value
from onnx_oracle import check_as_onnx_runtime, check_same, compiled, onnx_runtime, onnx_runtime_refuses

from minitvm.errors import FrontendError, MiniTVMError, TypeInferenceError
from minitvm.frontend import from_onnx
from minitvm.ir.evaluate import evaluate

RNG = np.random.default_rng(17)
X = RNG.standard_normal((1, 2, 5, 6)).astype(np.float32)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


# --- attributes and tensors of different dtypes ----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64", "float16", "float32", "float64"])
@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 1.0), (1.0, 0.25), (2.0, 3.0), (1.5, 0.0), (1.0, 1.0)])
def test_gemm_scales_integers_by_fractions(dtype: str, alpha: float, beta: float) -> None:
    a, b, c = (RNG.integers(0, 9, s).astype(dtype) for s in ((3, 4), (4, 5), (5,)))
    model = one_node("Gemm", a, b, c, alpha=alpha, beta=beta)
    feeds = {"x0": a, "x1": b, "x2": c}
    (expected,) = ReferenceEvaluator(model).run(None, feeds)
    exact = (a.astype("float64") @ b.astype("float64") * alpha + c.astype("float64") * beta).astype(dtype)
    np.testing.assert_array_equal(expected, exact)
    check_same(compiled(model, feeds), [exact], rtol=1e-3 if dtype == "float16" else 1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_mean_variance_normalization_holds_squares(dtype: str) -> None:
    x = np.array([[1000, -3000], [2000, 500]], dtype).reshape(1, 2, 1, 2)
    (found,) = compiled(one_node("MeanVarianceNormalization", x), {"x0": x})
    np.testing.assert_allclose(found, np.array([1, -1, 1, -1], dtype).reshape(x.shape), rtol=2e-3)


@pytest.mark.parametrize("op", ["LayerNormalization"])
def test_a_normalization_without_bias_keeps_the_sign_of_zero(op: str) -> None:
    x, scale = np.float32([[-3, -2], [2, 1]]), np.float32([0, 0])
    (found,) = compiled(one_node(op, x, scale), {"x0": x, "x1": scale})
    np.testing.assert_array_equal(np.signbit(found), [[True, False], [False, True]])


@pytest.mark.parametrize("shape", [(0, 1, 0, 0, 1), (1, 2, 0, 3), (2, 1, 0)])
def test_transposed_convolutions_of_no_pixels(shape: tuple[int, ...]) -> None:
    """ONNX Runtime has none of these either."""
    x, w = np.zeros(shape, np.float32), np.ones((shape[1], 2, *[6] * (len(shape) - 2)), np.float32)
    model = one_node("ConvTranspose", x, w, strides=[2] * (len(shape) - 2))
    sizes = tuple((n - 1) * 2 + 6 for n in shape[2:])
    for found in (*run(model, {"x0": x, "x1": w}), *compiled(model, {"x0": x, "x1": w})):
        np.testing.assert_array_equal(found, np.zeros((shape[0], 2, *sizes), np.float32))


@pytest.mark.parametrize("is_constant", [False, True])
@pytest.mark.parametrize("exponent", ["int32", "int64"])
@pytest.mark.parametrize("base", ["float32", "float64"])
def test_odd_powers_stay_odd(base: str, exponent: str, is_constant: bool) -> None:
    x, n = np.array([-1, -3, -1, -1.5], base), np.array([2**24 + 1, 2**24 + 1, 2**24, 3], exponent)
    model = one_node("Pow", x, constants={1: n}) if is_constant else one_node("Pow", x, n)
    with np.errstate(over="ignore"):
        check_as_onnx_runtime(model, {"x0": x} if is_constant else {"x0": x, "x1": n})


@pytest.mark.parametrize("op", ["ReduceMean", "ReduceSum", "ReduceL2", "ReduceMax"])
@pytest.mark.parametrize("axes", [[0, 0], [0, -4], [1, 2, 1], [3, -1, 2]])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_an_axis_that_is_given_twice_is_reduced_once(op: str, axes: list[int], keepdims: int) -> None:
    check_as_onnx_runtime(one_node(op, X, opset=11, axes=axes, keepdims=keepdims), {"x0": X})


@pytest.mark.parametrize(
    "dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "float16", "float32"]
)
def test_shrink(dtype: str) -> None:
    x = np.array([0, 1, 2, 3, 4, 100, 127, -1, -2, -3, -100][: 7 if dtype[0] == "u" else 11], dtype)
    for lambd, bias in ((1.5, 0.5), (0.5, 0.0), (2.0, 1.5), (0.999, 1.0)):
        check_as_onnx_runtime(one_node("Shrink", x, lambd=lambd, bias=bias), {"x0": x})


def test_limits_are_not_rounded_to_half_precision() -> None:
    """0.0999 is below float16's neighbour of 0.1, 0.1 is not."""
    x = np.array([0.1, -0.1, 0.09998, 0.2], np.float16)
    for limit in (0.0999, 0.1, 0.09998):
        model = one_node("Shrink", x, lambd=limit)
        check_as_onnx_runtime(model, {"x0": x})


@pytest.mark.parametrize("dtype", ["int8", "uint64", "int32"])
def test_the_error_function_of_integers(dtype: str) -> None:
    x = np.array([0, 1, 2, 3, 4, 5, 100], dtype)
    model = one_node("Erf", x, opset=9)
    check_same(run(model, {"x0": x}), ReferenceEvaluator(model).run(None, {"x0": x}))


@pytest.mark.parametrize(
    "op", ["Elu", "LeakyRelu", "Selu", "HardSigmoid", "Celu", "ThresholdedRelu", "LpPool", "Softmax"]
)
def test_integers_where_onnx_takes_floats(op: str) -> None:
    x = np.arange(6, dtype=np.int32).reshape(1, 1, 6)
    model = one_node(op, x, **({"kernel_shape": [2]} if op == "LpPool" else {}))
    assert onnx_runtime_refuses(model, {"x0": x})
    message = error_of(FrontendError, model)
    assert re.match(rf"{op}: input 0 is int32; opset 21 allows (bfloat16, )?float", message), message
    assert "hint: cast the input" in message


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64", "float32", "float64"])
@pytest.mark.parametrize("shape", [(3, 1), (3, 5), (1,)])
def test_prelu_of_every_dtype(dtype: str, shape: tuple[int, ...]) -> None:
    x = np.arange(30).reshape(2, 3, 5).astype(dtype) - np.array(0 if dtype[0] == "u" else 15, dtype)
    slope = np.full(shape, 3, dtype)
    found = compiled(one_node("PRelu", x, slope), {"x0": x, "x1": slope})
    np.testing.assert_array_equal(found[0], np.where(x > 0, x, x * slope))


@pytest.mark.parametrize("alpha", [-2.5, -0.5, 0.5, 2.5])
@pytest.mark.parametrize("op", ["Celu", "Elu", "LeakyRelu", "Selu", "ThresholdedRelu"])
def test_activations_with_parameters_of_both_signs(op: str, alpha: float) -> None:
    x = np.linspace(-4, 4, 17, dtype=np.float32)
    check_as_onnx_runtime(one_node(op, x, alpha=alpha), {"x0": x})


@pytest.mark.parametrize(
    ("base", "exponent"),
    [("int32", "float32"), ("int64", "float32"), ("float32", "float64"), ("float32", "int64"), ("int32", "int64")],
)
def test_powers_of_another_dtype(base: str, exponent: str) -> None:
    x, y = np.array([1, 2, 3, 40, 101], base), np.array([2, 0.5, 3, 1, 2]).astype(exponent)
    check_as_onnx_runtime(one_node("Pow", x, y), {"x0": x, "x1": y})


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32"])
@pytest.mark.parametrize(
    "op", ["ReduceLogSum", "ReduceLogSumExp", "ReduceL1", "ReduceL2", "ReduceMean", "ReduceSumSquare", "ReduceProd"]
)
def test_reductions_of_integers(op: str, dtype: str) -> None:
    x = RNG.integers(1, 60, (3, 5)).astype(dtype)
    check_as_onnx_runtime(one_node(op, x, constants={1: np.int64([1])}), {"x0": x})


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("axis", [-1, 1])
def test_statistics_of_layer_normalization_are_float32(dtype: str, axis: int) -> None:
    x = (np.arange(30).reshape(2, 3, 5) ** 2).astype(dtype)
    scale = np.ones(x.shape[axis:], dtype)
    model = one_node("LayerNormalization", x, scale, outputs=3, opset=17, axis=axis)
    found = compiled(model, {"x0": x, "x1": scale})
    assert [r.dtype for r in found] == [x.dtype, np.float32, np.float32]
    wide, axes = x.astype("float64"), tuple(range(axis % 3, 3))
    np.testing.assert_allclose(found[1], wide.mean(axes, keepdims=True), rtol=1e-6)
    np.testing.assert_allclose(found[2], 1 / np.sqrt(wide.var(axes, keepdims=True) + 1e-5), rtol=1e-6)


@pytest.mark.parametrize("scale", [(1,), (5,), (3, 1), (1, 5), (3, 5)])
def test_layer_normalization_broadcasts_its_scale(scale: tuple[int, ...]) -> None:
    x, gamma = RNG.normal(size=(2, 3, 5)).astype("float32"), RNG.normal(size=scale).astype("float32")
    for axis in range(3 - len(scale), 3 if len(scale) == 1 else 2):
        model = one_node("LayerNormalization", x, gamma, opset=17, axis=axis)
        check_as_onnx_runtime(model, {"x0": x, "x1": gamma})


@pytest.mark.parametrize("opset", [11, 13])
def test_hardmax_of_nothing(opset: int) -> None:
    x = np.ones((2, 0), np.float32)
    assert compiled(one_node("Hardmax", x, opset=opset, axis=1), {"x0": x})[0].shape == (2, 0)


@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 3, 3), (2, 3, 0)])
def test_layer_normalization_of_nothing(shape: tuple[int, ...]) -> None:
    x, scale = np.ones(shape, np.float32), np.ones(shape[1:], np.float32)
    found = compiled(one_node("LayerNormalization", x, scale, opset=17, axis=1), {"x0": x, "x1": scale})
    assert found[0].shape == shape


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "size", [[1, 2, 2, 7], [3, 1, 1, 5], [2, 3, 4, 1], [1, 1, 1, 1], [1, 2, 3, 5, 2], [2, 1, 1, 1, 4]]
)
def test_affine_grid_of_any_batch(size: list[int], dtype: str, align: int) -> None:
    rank = len(size) - 2
    theta = RNG.normal(size=(size[0], rank, rank + 1)).astype(dtype)
    model = one_node("AffineGrid", theta, constants={1: np.int64(size)}, align_corners=align)
    check_as_onnx_runtime(model, {"x0": theta})


def test_affine_grid_of_another_size() -> None:
    model = one_node("AffineGrid", np.ones((2, 2, 3), "float32"), constants={1: np.int64([1, 1, 4, 4])})
    assert "theta is Tensor[(2, 2, 3), float32]; size [1, 1, 4, 4] takes (1, 2, 3)" in error_of(
        TypeInferenceError, model
    )


# --- quantisation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_quantize_of_integers(dtype: str) -> None:
    x = np.array([[0, 1, -1, 7, 100, -1000, 2**31 - 1, -(2**31), 13]], "int32")
    scale, zero = np.array(0.3, "float32"), np.array(5, dtype)
    found = compiled(one_node("QuantizeLinear", x, constants={1: scale, 2: zero}, opset=13), {"x0": x})
    steps = np.rint(x.astype("float32") / scale) + np.float32(5)
    np.testing.assert_array_equal(found[0], np.clip(steps, np.iinfo(dtype).min, np.iinfo(dtype).max).astype(dtype))


@pytest.mark.parametrize("dtype", ["uint16", "int16", "uint8", "int8"])
@pytest.mark.parametrize("float_dtype", ["float16", "float32"])
def test_quantize_to_16_bits(dtype: str, float_dtype: str) -> None:
    """Zero points are exact: float16 has 11 bits."""
    info = np.iinfo(dtype)
    x = np.array([[1, -65504, 300, -7.5, 0.3]], float_dtype)
    for zero in (info.max, info.max // 2 + 1, info.min, 3):
        model = one_node("QuantizeLinear", x, constants={1: np.array(2, float_dtype), 2: np.array(zero, dtype)})
        check_as_onnx_runtime(model, {"x0": x})


def test_dequantize_to_float16() -> None:
    q = np.array([65535, 3, 40001], np.uint16)
    for dtype in ("float16", "float32"):
        constants = {1: np.array(0.01, dtype), 2: np.uint16(5)}
        check_as_onnx_runtime(one_node("DequantizeLinear", q, constants=constants), {"x0": q}, rtol=1e-3)
        model = one_node("DequantizeLinear", q, opset=23, constants=constants, output_dtype=onnx.TensorProto.FLOAT16)
        check_as_onnx_runtime(model, {"x0": q}, rtol=1e-3)


def test_dequantize_blocks_to_float16() -> None:
    """65535 alone is infinite in float16."""
    q, scale = np.array([[65535, 3, 40001, 7]], np.uint16), np.array([[0.01, 0.5]], "float16")
    model = one_node("DequantizeLinear", q, opset=23, constants={1: scale}, axis=1, block_size=2)
    check_as_onnx_runtime(model, {"x0": q}, rtol=1e-3)


@pytest.mark.parametrize("x", [np.zeros((2, 3)), np.full((2, 3), 5.0), np.full((2, 3), -5.0), floats(4, 7)])
def test_dynamic_quantization(x: np.ndarray) -> None:
    x = x.astype(np.float32)
    check_as_onnx_runtime(one_node("DynamicQuantizeLinear", x, outputs=3), {"x0": x})


@pytest.mark.parametrize("axis", [-7, 0, 1, 5])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_single_scale_has_no_axis(shape: tuple[int, ...], axis: int) -> None:
    x = floats(3)
    constants = {1: np.full(shape, 0.1, np.float32), 2: np.full(shape, 3, np.int8)}
    check_as_onnx_runtime(one_node("QuantizeLinear", x, constants=constants, axis=axis), {"x0": x})


# --- windows ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize(
    "window",
    [
        {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1},
        {"kernel_shape": [3, 2], "strides": [2, 3], "ceil_mode": 1, "pads": [1, 0, 2, 1]},
        {"kernel_shape": [6, 7], "strides": [2, 2], "ceil_mode": 1},
        {"kernel_shape": [6, 6]},
        {"kernel_shape": [6, 2], "strides": [3, 1]},
        {"kernel_shape": [2, 3], "dilations": [2, 2], "strides": [2, 2], "ceil_mode": 1},
        {"kernel_shape": [3, 3], "auto_pad": "SAME_LOWER", "strides": [2, 2]},
    ],
)
def test_windows_that_stick_out(op: str, window: dict[str, Any]) -> None:
    check_as_onnx_runtime(one_node(op, X, opset=22, **window), {"x0": X}, rtol=1e-5)


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("op", ["LpPool", "GlobalLpPool"])
def test_norms(op: str, p: int) -> None:
    window = {"kernel_shape": [3, 2], "ceil_mode": 1, "strides": [2, 2]} if op == "LpPool" else {}
    check_as_onnx_runtime(one_node(op, X, p=p, **window), {"x0": X})


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
def test_windows_with_nothing_under_them(op: str) -> None:
    model = one_node(op, X, kernel_shape=[2, 2], pads=[0, 0, 2, 0])
    assert onnx_runtime_refuses(model, {"x0": X})
    assert error_of(FrontendError, model) == (
        f'{op}: padding [0, 0, 2, 0] must be smaller than the window, [2, 2]\n  | ONNX node "the_node" ({op})'
    )
    wide = one_node(op, X, kernel_shape=[7, 2])
    assert onnx_runtime_refuses(wide, {"x0": X})
    assert "the window spans 7 along H but the padded input has 5" in error_of(TypeInferenceError, wide)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("stride", [1, 2, 3, 4])
@pytest.mark.parametrize("mode", ["VALID", "NOTSET", "SAME_UPPER", "SAME_LOWER"])
def test_the_last_window_of_ceil_mode(op: str, stride: int, mode: str) -> None:
    """VALID means no padding; the last window hangs over the end as it does without."""
    model = one_node(op, X, opset=19, kernel_shape=[4, 4], strides=[stride] * 2, ceil_mode=1, auto_pad=mode)
    check_as_onnx_runtime(model, {"x0": X})


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("ceil_mode", [0, 1])
@pytest.mark.parametrize("kernel", [7, 8, 11, 17])
@pytest.mark.parametrize("stride", [1, 2, 3, 5, 7])
def test_windows_larger_than_the_image(op: str, ceil_mode: int, kernel: int, stride: int) -> None:
    """One window, none, or a refusal: ONNX Runtime divides what is left of the image by the stride towards zero."""
    model = one_node(op, X, opset=19, kernel_shape=[1, kernel], strides=[1, stride], ceil_mode=ceil_mode)
    if onnx_runtime_refuses(model, {"x0": X}):
        assert f"the window spans {kernel} along W but the padded input has 6" in error_of(TypeInferenceError, model)
    else:
        check_as_onnx_runtime(model, {"x0": X})


# --- products over unknown batches -----------------------------------------------------------------------------------


def product_of(a: tuple[int | None, ...], b: tuple[int | None, ...]) -> onnx.ModelProto:
    return build([helper.make_node("MatMul", ["a", "b"], ["y"])], [value("a", a), value("b", b)], ["y"])


@pytest.mark.parametrize(
    ("a", "b", "unknown"),
    [((3, 4, 2, 5), (3, 4, 5, 6), 0), ((3, 2, 5), (3, 5, 6), 0), ((3, 2, 5), (1, 5, 6), 0), ((3, 4, 2, 5), (5, 6), 0)],
)
def test_matmul_over_an_unknown_batch(a: tuple[int, ...], b: tuple[int, ...], unknown: int) -> None:
    left, right = floats(*a), floats(*b)
    opened = [
        tuple(None if d == unknown and len(s) == len(a) and s[d] > 1 else n for d, n in enumerate(s)) for s in (a, b)
    ]
    module, _ = from_onnx(product_of(a, b), {"a": opened[0], "b": opened[1]})
    found = evaluate(module, left, right)
    np.testing.assert_allclose(found, left @ right, rtol=1e-5, atol=1e-5, strict=True)


@pytest.mark.parametrize(("a", "b"), [((None, 1, 2, 5), (1, 4, 5, 6)), ((None, 4, 2, 5), (4, 5, 6))])
def test_a_batch_is_repeated_when_it_is_known(a: tuple[int | None, ...], b: tuple[int, ...]) -> None:
    left, right = floats(3, *a[1:]), floats(*b)
    module, _ = from_onnx(product_of(a, b), {"a": a, "b": b})
    np.testing.assert_allclose(evaluate(module, left, right), left @ right, rtol=1e-5, atol=1e-5, strict=True)


# --- the rest --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [7, 10, 11, 24])
def test_the_top_none(opset: int) -> None:
    if opset < 10:
        model = one_node("TopK", X, opset=opset, k=0, outputs=2)
    else:
        model = one_node("TopK", X, opset=opset, constants={1: np.int64([0])}, outputs=2)
    values, indices = run(model, {"x0": X})
    assert values.shape == indices.shape == (1, 2, 5, 0) and indices.dtype == np.int64


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (1, 1, 1)])
def test_a_condition_of_any_rank(shape: tuple[int, ...]) -> None:
    branches = {}
    for name, op in (("then_branch", "Neg"), ("else_branch", "Abs")):
        branches[name] = helper.make_graph([helper.make_node(op, ["x"], ["r"])], name, [], [value("r", None)])
    node = helper.make_node("If", ["flag"], ["y"], **branches)
    model = build([node], [value("flag", shape, "bool"), value("x", (3,))], ["y"])
    for flag in (True, False):
        feeds = {"flag": np.full(shape, flag), "x": np.float32([-1, 2, -3])}
        check_as_onnx_runtime(model, feeds)


def test_a_condition_of_two_elements() -> None:
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["r"])], "g", [], [value("r", None)])
    node = helper.make_node("If", ["flag"], ["y"], name="choose", then_branch=graph, else_branch=graph)
    flags = np.array([True, True])
    known = build([node], [value("x", (3,))], ["y"], {"flag": flags})
    assert error_of(FrontendError, known) == (
        'If: its condition has 2 elements; expected one\n  | ONNX node "choose" (If)'
    )
    with pytest.raises(MiniTVMError, match="expected a single bool"):
        from_onnx(build([node], [value("flag", flags), value("x", (3,))], ["y"]))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_loop_that_counts_in_vectors(rank: int) -> None:
    """ONNX lets a body declare the iteration and the condition as vectors of one element."""
    shape = (1,) * rank
    nodes = [
        helper.make_node("Cast", ["i"], ["f"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Add", ["s", "f"], ["t"]),
        helper.make_node("Identity", ["going"], ["still"]),
    ]
    inputs = [value("i", shape, "int64"), value("going", shape, "bool"), value("s", (3,))]
    graph = helper.make_graph(nodes, "body", inputs, [value("still", shape, "bool"), value("t", (3,))])
    node = helper.make_node("Loop", ["n", "", "x"], ["y"], body=graph)
    model = build([node], [value("n", shape, "int64"), value("x", (3,))], ["y"])
    feeds = {"n": np.full(shape, 4), "x": np.float32([1, 2, 3])}
    check_same(run(model, feeds), onnx_runtime(model, feeds))


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize(("shape", "axis"), [((5,), 1), ((2, 3), 2), ((2, 0), 2), ((2, 3), -2)])
def test_before_opset_13_softmax_may_go_over_no_axis(op: str, shape: tuple[int, ...], axis: int) -> None:
    """The axis, 1 by default, may be the rank: each element is then alone."""
    x = floats(*shape)
    expected = {"Softmax": np.ones_like(x), "LogSoftmax": np.zeros_like(x), "Hardmax": np.ones_like(x)}[op]
    model = one_node(op, x, opset=11, axis=axis) if axis != 1 else one_node(op, x, opset=11)
    found = compiled(model, {"x0": x})
    check_same(found, [expected] if axis > 0 else onnx_runtime(model, {"x0": x}))
