"""Operators that ONNX Runtime's optimiser and its static quantisation write into models (domain ``com.microsoft``).

ONNX has no schemas for them, so defaults stand here.  A layer on quantized tensors, each with its scale and zero point,
is what it is on the real numbers, between dequantize and quantize; only QGemm, whose sums are exact, stays in integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import onnx

from minitvm.frontend.onnx.activation import compared, gated, gelu
from minitvm.frontend.onnx.matmul import matmul, scaled, transposed, wide_enough
from minitvm.frontend.onnx.nn import nothing_added
from minitvm.frontend.onnx.node import OnnxNode, cast, emit, rank, scalar, single
from minitvm.frontend.onnx.quantize import centred, requantized, same_width, scalar_or_vector, zero_point
from minitvm.frontend.onnx.registry import MICROSOFT, builder_for, formulas, onnx_op
from minitvm.ir.expr import Expr

contrib_op = partial(onnx_op, domain=MICROSOFT)


@contrib_op("FusedMatMul")
def fused_matmul(node: OnnxNode) -> Expr:
    """alpha * A' B', with the last two dimensions of A and B swapped on demand."""
    if node.attr("transBatchA", 0) or node.attr("transBatchB", 0):
        raise node.fail("transBatchA and transBatchB are not supported")
    a = _swapped(node[0]) if node.attr("transA", 0) else node[0]
    b = _swapped(node[1]) if node.attr("transB", 0) else node[1]
    alpha = node.attr("alpha", 1.0)
    return cast(scaled(matmul(node, a, b, wide_enough(a, alpha)), alpha), a.dtype)


def _swapped(x: Expr) -> Expr:
    last = rank(x) - 1
    return emit("transpose", x, axes=(*range(last - 1), last, last - 1)) if last > 0 else x


@contrib_op("SkipLayerNormalization")
def skip_layer_normalization(node: OnnxNode) -> list[Expr | None]:
    """Inputs: x, skip, scale, beta, bias.  Layer norm of x + skip + bias, and as fourth output that sum, which float16
    may not hold."""
    if node.wants(1) or node.wants(2):
        raise node.fail("its mean and deviation are training outputs, which are not supported")
    dtype, (x, skip, scale) = node[0].dtype, (single(node[i]) for i in range(3))
    total = x + skip if node.get(4) is None else x + skip + single(node[4])
    beta = nothing_added(scale) if node.get(3) is None else single(node[3])
    normed = emit("nn.layer_norm", total, scale, beta, axis=rank(total) - 1, epsilon=node.attr("epsilon", 1e-12))
    return [cast(normed, dtype), None, None, cast(total, dtype)]


# --- quantized layers -----------------------------------------------------------------------------------------


def _real(node: OnnxNode, index: int = 0) -> Expr:
    """Input ``index`` as real numbers: its scale and its zero point follow it."""
    scale = scalar_or_vector(node[index + 1])
    zero = scalar_or_vector(zero_point(node, index + 2, scale, node[index].dtype))
    if rank(scale) or rank(zero):
        raise node.fail(f"the scale of input {index} is {node[index + 1].tensor_type}; expected one number")
    return emit("qnn.dequantize", node[index], scale, zero, axis=0)


def _stored(node: OnnxNode, x: Expr, scale: int, dtype: str) -> Expr:
    """``x`` by the result's scale, input ``scale``, and the zero point behind it."""
    return requantized(x, node[scale], zero_point(node, scale + 1, node[scale], dtype))


formulas(
    {
        "BiasGelu": lambda n: gelu(n[0], n[1]),
        "FastGelu": lambda n: gelu(n[0], n.get(1), tanh=True),
        "Gelu": lambda n: gelu(n[0]),
        "QuickGelu": lambda n: cast(gated(compared(n[0]), n.attr("alpha", 1.702)), n[0].dtype),
    },
    domain=MICROSOFT,
)


_PARTS_AND_RESULT = {"Add": ((0, 3), 6), "Mul": ((0, 3), 6), "Where": ((1, 4), 7)}
"""Where operands and the result's scale stand among the inputs; of layers of one operand at 0 and 3."""
_OF_ONE = ("AveragePool", "GlobalAveragePool", "LeakyRelu", "Sigmoid", "Softmax")


@contrib_op(*(f"QLinear{name}" for name in ("Concat", *_OF_ONE, *_PARTS_AND_RESULT)))
def on_real_numbers(node: OnnxNode) -> Expr:
    """ONNX's layer of the same name over what the tensors stand for; ``opset`` says which Softmax it was."""
    layer = onnx.NodeProto()
    layer.CopyFrom(node.proto)
    layer.op_type, layer.domain = node.op_type.removeprefix("QLinear"), ""
    if node.attr("channels_last", 0):
        raise node.refuse("channels_last")
    parts: Sequence[int]
    parts, result = _PARTS_AND_RESULT.get(layer.op_type, ((0,), 3))
    if layer.op_type == "Concat":
        parts, result = _parts_of_concat(node), 0
    operands = [*node.inputs[: layer.op_type == "Where"], *(_real(node, i) for i in parts)]
    opset = node.attr("opset", onnx.defs.onnx_opset_version())
    builder = builder_for("", layer.op_type, opset)
    assert builder is not None
    found = builder(OnnxNode(layer, operands, opset, {}, node.control))
    assert isinstance(found, Expr)
    return _stored(node, found, result, node[parts[0]].dtype)


def _parts_of_concat(node: OnnxNode) -> range:
    """The result's scale and zero point come first, then each part with its own."""
    if len(node.inputs) < 5 or len(node.inputs) % 3 != 2:
        raise node.fail(f"takes 2 inputs and 3 for each part, {len(node.inputs)} given")
    return range(2, len(node.inputs), 3)


@contrib_op("QGemm")
def gemm(node: OnnxNode) -> Expr:
    """Inputs: a, b with scale and zero point, the bias (int32), the result's scale and zero point.

    alpha * (A' B' + C) in the scale of the products, one scale per column at most; real numbers without a result scale.
    """
    a, b = centred(node, 0, 2, lambda p: [p.shape[0], 1]), centred(node, 3, 5, lambda p: _per_column(node, p))
    a = transposed(a) if node.attr("transA", 0) else a
    b = transposed(b) if node.attr("transB", 0) else b
    total = matmul(node, *same_width(a, b), out_dtype="int32")
    if node.get(6) is not None:
        total = emit("add", total, node[6])
    scale = emit("multiply", scalar_or_vector(node[1]), scalar_or_vector(node[4]))
    scale = emit("multiply", scale, scalar(node.attr("alpha", 1.0), scale))
    result = emit("multiply", cast(total, scale.dtype), scale)
    return result if node.get(7) is None else _stored(node, result, 7, node[0].dtype)


def _per_column(node: OnnxNode, point: Expr) -> list[int]:
    """The shape of zero points, one per column of B', beside B."""
    return [point.shape[0], 1] if node.attr("transB", 0) else [point.shape[0]]
