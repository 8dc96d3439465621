"""Operators that ONNX Runtime's optimiser and its static quantisation write into models (domain ``com.microsoft``).

ONNX has no schemas for them, so defaults stand here.  A layer on quantized tensors, each with its scale and zero point,
is what it is on the real numbers, between dequantize and quantize; only QGemm, whose sums are exact, stays in integers.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from minitvm.frontend.onnx.activation import compared, flattened, gated, gelu, softmax
from minitvm.frontend.onnx.matmul import matmul, scaled, transposed, wide_enough
from minitvm.frontend.onnx.nn import nothing_added, pool_of
from minitvm.frontend.onnx.node import OnnxNode, cast, emit, normalize_axis, rank, scalar
from minitvm.frontend.onnx.quantize import centred, requantized, same_width, scalar_or_vector
from minitvm.frontend.onnx.registry import MICROSOFT, formulas, onnx_op
from minitvm.ir.expr import Constant, Expr

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
    """Inputs: x, skip, scale, beta, bias.  Layer norm of x + skip + bias, and as fourth output that sum."""
    if node.wants(1) or node.wants(2):
        raise node.fail("its mean and deviation are training outputs, which are not supported")
    total = node[0] + node[1] if node.get(4) is None else node[0] + node[1] + node[4]
    scale = node[2]
    beta = node.get(3) or nothing_added(scale)
    epsilon = node.attr("epsilon", 1e-12)
    return [emit("nn.layer_norm", total, scale, beta, axis=rank(total) - 1, epsilon=epsilon), None, None, total]


# --- quantized layers -----------------------------------------------------------------------------------------


def _zero_point(node: OnnxNode, index: int, like: str) -> Expr:
    return node.get(index) or Constant(np.zeros((), like))


def _real(node: OnnxNode, index: int = 0) -> Expr:
    """Input ``index`` as real numbers: its scale and its zero point follow it."""
    parameters = [scalar_or_vector(p) for p in (node[index + 1], _zero_point(node, index + 2, node[index].dtype))]
    if any(rank(p) for p in parameters):
        raise node.fail(f"the scale of input {index} is {node[index + 1].tensor_type}; expected one number")
    return emit("qnn.dequantize", node[index], *parameters, axis=0)


def _stored(node: OnnxNode, x: Expr, scale: int) -> Expr:
    """``x`` by the result's scale, input ``scale``, and the zero point behind it."""
    return requantized(x, node[scale], _zero_point(node, scale + 1, node[0].dtype))


def _check_layout(node: OnnxNode) -> None:
    if node.attr("channels_last", 0):
        raise node.refuse("channels_last")


formulas(
    {
        "BiasGelu": lambda n: gelu(n[0], n[1]),
        "FastGelu": lambda n: gelu(n[0], n.get(1), tanh=True),
        "Gelu": lambda n: gelu(n[0]),
        "QLinearAdd": lambda n: _stored(n, emit("add", _real(n, 0), _real(n, 3)), 6),
        "QLinearLeakyRelu": lambda n: _stored(n, emit("nn.leaky_relu", _real(n), alpha=n.attr("alpha", 0.01)), 3),
        "QLinearMul": lambda n: _stored(n, emit("multiply", _real(n, 0), _real(n, 3)), 6),
        "QLinearSigmoid": lambda n: _stored(n, emit("sigmoid", _real(n)), 3),
        "QuickGelu": lambda n: cast(gated(compared(n[0]), n.attr("alpha", 1.702)), n[0].dtype),
    },
    domain=MICROSOFT,
)


@contrib_op("QLinearSoftmax")
def qlinear_softmax(node: OnnxNode) -> Expr:
    """``opset`` says which Softmax it was."""
    x, old = _real(node), node.attr("opset", 13) < 13
    found = flattened(node, x, softmax) if old else softmax(x, normalize_axis(node, node.attr("axis", -1), rank(x)))
    return _stored(node, found, 3)


@contrib_op("QLinearAveragePool")
def average_pool(node: OnnxNode) -> Expr:
    _check_layout(node)
    included = bool(node.attr("count_include_pad", 0))
    return _stored(node, pool_of(node).of("avg", _real(node), count_include_pad=included), 3)


@contrib_op("QLinearGlobalAveragePool")
def global_average_pool(node: OnnxNode) -> Expr:
    _check_layout(node)
    x = _real(node)
    return _stored(node, emit("mean", x, axis=tuple(range(2, rank(x))), keepdims=True), 3)


@contrib_op("QLinearConcat")
def concat(node: OnnxNode) -> Expr:
    """Inputs: the result's scale and zero point, then each part with its own."""
    if len(node.inputs) < 5 or len(node.inputs) % 3 != 2:
        raise node.fail(f"takes 2 inputs and 3 for each part, {len(node.inputs)} given")
    parts = [_real(node, i) for i in range(2, len(node.inputs), 3)]
    axis = normalize_axis(node, node.require("axis"), rank(parts[0]))
    return requantized(emit("concatenate", parts, axis=axis), node[0], _zero_point(node, 1, node[2].dtype))


@contrib_op("QLinearWhere")
def where(node: OnnxNode) -> Expr:
    chosen = emit("where", node[0], _real(node, 1), _real(node, 4))
    return requantized(chosen, node[7], _zero_point(node, 8, node[1].dtype))


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
    return result if node.get(7) is None else _stored(node, result, 7)


def _per_column(node: OnnxNode, point: Expr) -> list[int]:
    """The shape of zero points, one per column of B', beside B."""
    return [point.shape[0], 1] if node.attr("transB", 0) else [point.shape[0]]
