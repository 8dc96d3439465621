"""ONNX quantisation: QuantizeLinear and DequantizeLinear, and layers on integers."""

from collections.abc import Callable

import numpy as np

from minitvm.frontend.onnx.matmul import matmul
from minitvm.frontend.onnx.nn import convolution
from minitvm.frontend.onnx.node import OnnxNode, cast, dims, emit, normalize_axis, onnx_dtype, rank, wide
from minitvm.frontend.onnx.registry import MICROSOFT, formulas, onnx_op
from minitvm.frontend.onnx.tensor import first, reshaped
from minitvm.ir.dtypes import STORED, carrier, is_float, limits
from minitvm.ir.expr import Constant, Expr


def scalar_or_vector(parameter: Expr) -> Expr:
    """Parameters of one element are scalars, whatever their rank."""
    return reshaped(parameter, []) if rank(parameter) and parameter.tensor_type.size == 1 else parameter


def zero_point(node: OnnxNode, index: int, scale: Expr, dtype: str) -> Expr:
    return node.get(index) or Constant(np.zeros(scale.shape, dtype))


def _axis(node: OnnxNode) -> int:
    """The axis that parameters belong to; a single scale belongs to none, whatever the attribute says."""
    single = node[1].tensor_type.is_static and node[1].tensor_type.size == 1
    return 0 if single else normalize_axis(node, node.attr("axis", 1), rank(node[0]))


def _along_blocks(node: OnnxNode, axis: int, *parameters: Expr) -> list[Expr]:
    """Parameters per block, repeated to one per element."""
    extent = node[0].shape[axis]
    grown = [emit("repeat", p, repeats=node.attr("block_size"), axis=axis) for p in parameters]
    return [first(p, extent, axis) for p in grown]


def _spread(node: OnnxNode, axis: int, scale: Expr) -> Expr:
    """Scales in a shape that broadcasts with the data's."""
    if node.attr("block_size", 0):
        return _along_blocks(node, axis, scale)[0]
    found = scalar_or_vector(scale)
    return reshaped(found, [-1, *(1,) * (rank(node[0]) - axis - 1)]) if rank(found) else found


def _require_no_offset(node: OnnxNode) -> None:
    """Zero points of floats say only of which dtype they are."""
    known = node.known(2)
    if known is not None and np.any(known != 0):
        raise node.fail(f"the zero point of {known.dtype.name} is not 0", hint="floats are quantized around zero")


def _dtype(node: OnnxNode, default: str) -> str:
    code = node.attr("output_dtype", 0)
    return onnx_dtype(node, code) if code else default


@onnx_op("DequantizeLinear", since=10)
@onnx_op("DequantizeLinear", domain=MICROSOFT)
def dequantize(node: OnnxNode) -> Expr:
    x, scale, axis = node[0], node[1], _axis(node)
    zero, dtype, exact = zero_point(node, 2, scale, x.dtype), _dtype(node, scale.dtype), wide(scale.dtype)
    if scale.dtype in STORED:
        scale = cast(scale, exact)
    if is_float(x.dtype):
        _require_no_offset(node)
        return cast(emit("multiply", cast(x, exact), cast(_spread(node, axis, scale), exact)), dtype)
    x, zero = cast(x, carrier(x.dtype)), cast(zero, carrier(zero.dtype))
    if node.attr("block_size", 0):
        given = (x, scale, zero if rank(zero) == rank(x) else scalar_or_vector(zero))
        return cast(emit("qnn.dequantize_blocks", *given, axis=axis, block=node.attr("block_size")), dtype)
    parameters = [scalar_or_vector(p) for p in (scale, zero)]
    return cast(emit("qnn.dequantize", x, *parameters, axis=axis, out_dtype=scale.dtype), dtype)


def _precision(node: OnnxNode) -> str:
    """What quotients are rounded to before they are integers: from opset 23 on the scale's dtype, or ``precision``."""
    code = node.attr("precision", 0)
    narrow = onnx_dtype(node, code) if code else node[1].dtype if node.opset >= 23 else ""
    return narrow if narrow in ("float16", "bfloat16") else ""


@onnx_op("QuantizeLinear", since=10)
@onnx_op("QuantizeLinear", domain=MICROSOFT)
def quantize(node: OnnxNode) -> Expr:
    """The result's dtype is the zero point's, or ``output_dtype``, or uint8."""
    given = node[0].dtype if node[0].dtype != "int32" else node[1].dtype
    x, scale = (cast(v, wide(given) if given in STORED else given) for v in (node[0], node[1]))
    axis, narrow, exact = _axis(node), _precision(node), wide(x.dtype)
    zero = zero_point(node, 2, scale, _dtype(node, "uint8"))
    if not (is_float(zero.dtype) or node.attr("block_size", 0) or narrow):
        return requantized(x, scale, zero, axis)
    steps = cast(x, exact) / cast(_spread(node, axis, scale), exact)
    steps = cast(cast(steps, narrow), exact) if narrow else steps
    if is_float(zero.dtype):
        _require_no_offset(node)
        return emit("cast", steps, dtype=zero.dtype, saturate=bool(node.attr("saturate", 1)))
    shifted = emit("round", steps) + cast(_spread(node, axis, cast(zero, carrier(zero.dtype))), exact)
    low, high = limits(zero.dtype)
    return cast(emit("clip", shifted, a_min=low, a_max=high), zero.dtype)


@onnx_op("DynamicQuantizeLinear", since=11)
def dynamic_quantize(node: OnnxNode) -> list[Expr]:
    return dynamically_quantized(node[0])


def dynamically_quantized(x: Expr) -> list[Expr]:
    """Quantizes to uint8 with a range that holds 0 and all of x; its scale (1 of nothing but zeros) and zero point."""
    axes = tuple(range(rank(x)))
    low = emit("minimum", emit("min", x, axis=axes), 0)
    high = emit("maximum", emit("max", x, axis=axes), 0)
    scale = emit("where", emit("equal", high, low), 1, (high - low) / 255)
    zero = cast(emit("clip", emit("round", -low / scale), a_min=0.0, a_max=255.0), "uint8")
    return [requantized(x, scale, zero), scale, zero]


def requantized(x: Expr, scale: Expr, zero: Expr, axis: int = 0) -> Expr:
    parameters = [scalar_or_vector(p) for p in (scale, cast(zero, carrier(zero.dtype)))]
    return emit("qnn.quantize", x, *parameters, axis=axis, out_dtype=zero.dtype)


def centred(node: OnnxNode, x: Expr, point: Expr | None, shape: Callable[[Expr], list[int]]) -> Expr:
    """An operand less its zero point, as int32; the operand itself where the zero point is 0."""
    known = None if point is None else node.value(point)
    if point is None or (known is not None and not np.any(known)):
        return x
    if rank(point) == 1 and dims(point) != (1,):
        point = reshaped(point, shape(point))
    return emit("subtract", cast(x, "int32"), cast(scalar_or_vector(point), "int32"))


def same_width(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """Both in 8 bits, or both in int32."""
    return (a, b) if "int32" not in (a.dtype, b.dtype) else (cast(a, "int32"), cast(b, "int32"))


def integer_matmul(node: OnnxNode, a: Expr, b: Expr, a_zero: Expr | None, b_zero: Expr | None) -> Expr:
    """Zero points are scalars, one per row of the left or one per column of the right."""
    lhs = centred(node, a, a_zero, lambda p: [p.shape[0], 1])
    rhs = centred(node, b, b_zero, lambda p: [p.shape[0]] if rank(p) == 1 else list(p.shape))
    return matmul(node, *same_width(lhs, rhs), out_dtype="int32")


def _integer_conv(node: OnnxNode, x: Expr, w: Expr, x_zero: Expr | None, w_zero: Expr | None) -> Expr:
    lhs = centred(node, x, x_zero, lambda p: [p.shape[0]])
    rhs = centred(node, w, w_zero, lambda p: [p.shape[0], *(1,) * (rank(x) - 1)])
    return convolution(node, *same_width(lhs, rhs), out_dtype="int32")


formulas(
    {
        "ConvInteger-10": lambda n: _integer_conv(n, n[0], n[1], n.get(2), n.get(3)),
        "MatMulInteger-10": lambda n: integer_matmul(n, n[0], n[1], n.get(2), n.get(3)),
    }
)


@onnx_op("QLinearMatMul", since=10)
def qlinear_matmul(node: OnnxNode) -> Expr:
    """Inputs: a, its scale and zero point, b, its scale and zero point, the result's scale and zero point."""
    total = cast(integer_matmul(node, node[0], node[3], node[2], node[5]), "float32")
    scale = emit("multiply", cast(scalar_or_vector(node[1]), "float32"), cast(scalar_or_vector(node[4]), "float32"))
    return requantized(emit("multiply", total, scale), cast(node[6], "float32"), node[7])


def qlinear_convolution(node: OnnxNode) -> Expr:
    """A convolution as QLinearMatMul has products, with weights scaled per filter and a bias in the scale of the
    products."""
    total = _integer_conv(node, node[0], node[3], node[2], node[5])
    if node.get(8) is not None:
        total = emit("nn.bias_add", total, node[8], axis=1)
    scale = scalar_or_vector(node[4])
    if rank(scale):
        scale = reshaped(scale, [scale.shape[0], *(1,) * (rank(node[0]) - 2)])
    scale = emit("multiply", scale, scalar_or_vector(node[1]))
    return requantized(emit("multiply", cast(total, "float32"), scale), node[6], node[7])


onnx_op("QLinearConv", since=10)(qlinear_convolution)
