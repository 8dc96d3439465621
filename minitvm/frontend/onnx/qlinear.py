"""Layers on quantized tensors as ONNX Runtime's static quantisation writes them (domain ``com.microsoft``).

Each tensor comes with its scale and zero point.  A layer is what it is on the real numbers, between dequantize and
quantize; only QGemm, whose sums are exact, stays in integers.  ONNX has no schemas for them, so defaults stand here.
"""

from __future__ import annotations

import numpy as np

from minitvm.frontend.onnx.activation import flattened, softmax
from minitvm.frontend.onnx.contrib import DOMAIN
from minitvm.frontend.onnx.matmul import matmul, transposed
from minitvm.frontend.onnx.nn import pool_of
from minitvm.frontend.onnx.node import OnnxNode, cast, emit, normalize_axis, rank, scalar
from minitvm.frontend.onnx.quantize import centred, requantized, same_width, scalar_or_vector
from minitvm.frontend.onnx.registry import onnx_op
from minitvm.ir.expr import Constant, Expr


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


@onnx_op("QLinearAdd", "QLinearMul", domain=DOMAIN)
def binary(node: OnnxNode) -> Expr:
    name = {"QLinearAdd": "add", "QLinearMul": "multiply"}[node.op_type]
    return _stored(node, emit(name, _real(node, 0), _real(node, 3)), 6)


@onnx_op("QLinearSigmoid", domain=DOMAIN)
def sigmoid(node: OnnxNode) -> Expr:
    return _stored(node, emit("sigmoid", _real(node)), 3)


@onnx_op("QLinearLeakyRelu", domain=DOMAIN)
def leaky_relu(node: OnnxNode) -> Expr:
    return _stored(node, emit("nn.leaky_relu", _real(node), alpha=node.attr("alpha", 0.01)), 3)


@onnx_op("QLinearSoftmax", domain=DOMAIN)
def qlinear_softmax(node: OnnxNode) -> Expr:
    """``opset`` says which Softmax it was."""
    x, old = _real(node), node.attr("opset", 13) < 13
    found = flattened(node, x, softmax) if old else softmax(x, normalize_axis(node, node.attr("axis", -1), rank(x)))
    return _stored(node, found, 3)


@onnx_op("QLinearAveragePool", domain=DOMAIN)
def average_pool(node: OnnxNode) -> Expr:
    _check_layout(node)
    included = bool(node.attr("count_include_pad", 0))
    return _stored(node, pool_of(node).of("avg", _real(node), count_include_pad=included), 3)


@onnx_op("QLinearGlobalAveragePool", domain=DOMAIN)
def global_average_pool(node: OnnxNode) -> Expr:
    _check_layout(node)
    x = _real(node)
    return _stored(node, emit("mean", x, axis=tuple(range(2, rank(x))), keepdims=True), 3)


@onnx_op("QLinearConcat", domain=DOMAIN)
def concat(node: OnnxNode) -> Expr:
    """Inputs: the result's scale and zero point, then each part with its own."""
    if len(node.inputs) < 5 or len(node.inputs) % 3 != 2:
        raise node.fail(f"takes 2 inputs and 3 for each part, {len(node.inputs)} given")
    parts = [_real(node, i) for i in range(2, len(node.inputs), 3)]
    axis = normalize_axis(node, node.require("axis"), rank(parts[0]))
    return requantized(emit("concatenate", parts, axis=axis), node[0], _zero_point(node, 1, node[2].dtype))


@onnx_op("QLinearWhere", domain=DOMAIN)
def where(node: OnnxNode) -> Expr:
    chosen = emit("where", node[0], _real(node, 1), _real(node, 4))
    return requantized(chosen, node[7], _zero_point(node, 8, node[1].dtype))


@onnx_op("QGemm", domain=DOMAIN)
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
