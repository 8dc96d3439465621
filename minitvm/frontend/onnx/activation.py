"""ONNX activations, written with elementwise operators where Relay has no operator of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from minitvm.frontend.onnx.node import OnnxNode, cast, dims, emit, normalize_axis, rank, scalar
from minitvm.frontend.onnx.registry import onnx_op
from minitvm.frontend.onnx.tensor import reshaped
from minitvm.ir.expr import Expr

OverAxis: TypeAlias = Callable[[Expr, int], Expr]
"""A function of one axis of a tensor."""


def _scaled_exp(x: Expr, alpha: float, divisor: float = 1.0) -> Expr:
    """alpha * (exp(x / divisor) - 1) where x is negative; 0 elsewhere, so that nothing overflows."""
    below = emit("minimum", x, 0)
    return emit("expm1", below if divisor == 1.0 else below / divisor) * alpha


def hard_sigmoid(x: Expr, alpha: float, beta: float) -> Expr:
    return emit("clip", x * alpha + beta, a_min=0.0, a_max=1.0)


def softplus(x: Expr) -> Expr:
    """log(1 + exp(x)) without overflow."""
    return emit("nn.relu", x) + emit("log1p", emit("exp", -emit("abs", x)))


@onnx_op("LeakyRelu", since=6)
def leaky_relu(node: OnnxNode) -> Expr:
    return emit("nn.leaky_relu", node[0], alpha=node.attr("alpha"))


@onnx_op("Elu", since=6)
def elu(node: OnnxNode) -> Expr:
    return emit("nn.relu", node[0]) + _scaled_exp(node[0], node.attr("alpha"))


@onnx_op("Selu", since=6)
def selu(node: OnnxNode) -> Expr:
    found: Expr = elu(node) * node.attr("gamma")
    return found


@onnx_op("Celu", since=12)
def celu(node: OnnxNode) -> Expr:
    return emit("nn.relu", node[0]) + _scaled_exp(node[0], node.attr("alpha"), node.attr("alpha"))


@onnx_op("ThresholdedRelu", since=10)
def thresholded_relu(node: OnnxNode) -> Expr:
    x = compared(node[0])
    return emit("where", emit("greater", x, node.attr("alpha")), node[0], 0)


@onnx_op("Softplus")
def softplus_op(node: OnnxNode) -> Expr:
    return softplus(node[0])


@onnx_op("Softsign")
def softsign(node: OnnxNode) -> Expr:
    return node[0] / (emit("abs", node[0]) + 1)


@onnx_op("Mish", since=18)
def mish(node: OnnxNode) -> Expr:
    return node[0] * emit("tanh", softplus(node[0]))


@onnx_op("HardSigmoid", since=6)
def hard_sigmoid_op(node: OnnxNode) -> Expr:
    return hard_sigmoid(node[0], node.attr("alpha"), node.attr("beta"))


@onnx_op("HardSwish", since=14)
def hard_swish(node: OnnxNode) -> Expr:
    """The sixth is a float32, as in ONNX's definition."""
    return node[0] * hard_sigmoid(node[0], float(np.float32(1 / 6)), 0.5)


@onnx_op("Swish", since=24)
def swish(node: OnnxNode) -> Expr:
    return gated(node[0], node.attr("alpha"))


def gated(x: Expr, alpha: float) -> Expr:
    """x * sigmoid(alpha * x)."""
    return x * emit("sigmoid", x * alpha)


@onnx_op("Gelu", since=20)
def gelu(node: OnnxNode) -> Expr:
    """x times the normal distribution's cumulative function, or its approximation by tanh."""
    return gelu_of(node[0], tanh=node.attr("approximate") == "tanh")


def gelu_of(x: Expr, bias: Expr | None = None, tanh: bool = False) -> Expr:
    """Of ``x`` plus a bias.  float16 in float32: 1 plus what is almost -1 has no digits left."""
    dtype, x = x.dtype, compared(x)
    if bias is not None:
        x = x + compared(bias)
    if tanh:
        bell = emit("tanh", (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi))
    else:
        bell = emit("erf", x * math.sqrt(0.5))
    return cast(x * 0.5 * (bell + 1), dtype)


@onnx_op("Shrink", since=9)
def shrink(node: OnnxNode) -> Expr:
    """In float64 for integers, whose limits and bias need not be whole."""
    x, bias, limit = compared(node[0]), node.attr("bias"), node.attr("lambd")
    above = emit("where", emit("greater", x, limit), x - bias, 0)
    return cast(emit("where", emit("less", x, -limit), x + bias, above), node[0].dtype)


def compared(x: Expr) -> Expr:
    """``x`` in a dtype that attributes keep their value in."""
    return cast(x, {"float16": "float32", "float32": "float32"}.get(x.dtype, "float64"))


@onnx_op("PRelu", since=7)
def prelu(node: OnnxNode) -> Expr:
    """``nn.prelu`` for a slope per channel (axis 1) of floats, any other by broadcasting."""
    x, slope = node[0], node[1]
    channels = dims(x)[1] if rank(x) > 1 else None
    per_channel = (channels, *(1,) * (rank(x) - 2))
    if x.dtype.startswith("float") and channels is not None and dims(slope) in (per_channel, (1, *per_channel)):
        return emit("nn.prelu", x, reshaped(slope, [channels]), axis=1)
    return emit("where", emit("greater", x, 0), x, x * slope)


def flattened(node: OnnxNode, x: Expr, of: OverAxis) -> Expr:
    """Before opset 13: over all dimensions from ``axis`` (by default 1) on, together; there may be none."""
    axis = node.attr("axis", 1)
    axis = axis if axis == rank(x) else normalize_axis(node, axis, rank(x))
    if axis < rank(x) and all(d == 1 for d in dims(x)[axis + 1 :]):
        return of(x, axis)
    shape = x.shape
    flat = emit("reshape", x, newshape=(math.prod(shape[:axis]), math.prod(shape[axis:])), allowzero=True)
    return emit("reshape", of(flat, 1), newshape=shape, allowzero=True)


def softmax(x: Expr, axis: int) -> Expr:
    return emit("nn.softmax", x, axis=axis)


def _log_softmax(x: Expr, axis: int) -> Expr:
    return emit("nn.log_softmax", x, axis=axis)


def _hardmax(x: Expr, axis: int) -> Expr:
    """1 at the first of the largest, 0 elsewhere."""
    if x.shape[axis] == 0:  # no place is the largest
        return x
    place = emit("argmax", x, axis=(axis,), keepdims=False)
    return emit("one_hot", place, scalar(1, x), scalar(0, x), depth=x.shape[axis], axis=axis, dtype=x.dtype)


_OVER_AXIS: dict[str, OverAxis] = {"Softmax": softmax, "LogSoftmax": _log_softmax, "Hardmax": _hardmax}


@onnx_op(*_OVER_AXIS, since=1)
def over_flattened(node: OnnxNode) -> Expr:
    return flattened(node, node[0], _OVER_AXIS[node.op_type])


@onnx_op(*_OVER_AXIS, since=13)
def over_axis(node: OnnxNode) -> Expr:
    return _OVER_AXIS[node.op_type](node[0], normalize_axis(node, node.attr("axis", -1), rank(node[0])))
