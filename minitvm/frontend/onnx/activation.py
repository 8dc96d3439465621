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


def _positive(x: Expr) -> Expr:
    return emit("greater", x, scalar(0, x))


def _scaled_exp(x: Expr, alpha: float, divisor: float = 1.0) -> Expr:
    """alpha * (exp(x / divisor) - 1) where x is negative; 0 elsewhere, so that nothing overflows."""
    below = emit("minimum", x, scalar(0, x))
    inner = below if divisor == 1.0 else emit("divide", below, scalar(divisor, x))
    return emit("multiply", emit("expm1", inner), scalar(alpha, x))


def affine(x: Expr, scale: float, offset: float) -> Expr:
    return emit("add", emit("multiply", x, scalar(scale, x)), scalar(offset, x))


def hard_sigmoid(x: Expr, alpha: float, beta: float) -> Expr:
    return emit("clip", affine(x, alpha, beta), a_min=0.0, a_max=1.0)


def softplus(x: Expr) -> Expr:
    """log(1 + exp(x)) without overflow."""
    tail = emit("log1p", emit("exp", emit("negative", emit("abs", x))))
    return emit("add", emit("nn.relu", x), tail)


@onnx_op("LeakyRelu", since=6)
def leaky_relu(node: OnnxNode) -> Expr:
    return emit("nn.leaky_relu", node[0], alpha=node.attr("alpha"))


@onnx_op("Elu", since=6)
def elu(node: OnnxNode) -> Expr:
    return emit("add", emit("nn.relu", node[0]), _scaled_exp(node[0], node.attr("alpha")))


@onnx_op("Selu", since=6)
def selu(node: OnnxNode) -> Expr:
    x = node[0]
    inner = emit("add", emit("nn.relu", x), _scaled_exp(x, node.attr("alpha")))
    return emit("multiply", inner, scalar(node.attr("gamma"), x))


@onnx_op("Celu", since=12)
def celu(node: OnnxNode) -> Expr:
    x, alpha = node[0], node.attr("alpha")
    return emit("add", emit("nn.relu", x), _scaled_exp(x, alpha, alpha))


@onnx_op("ThresholdedRelu", since=10)
def thresholded_relu(node: OnnxNode) -> Expr:
    x = compared(node[0])
    return emit("where", emit("greater", x, scalar(node.attr("alpha"), x)), node[0], scalar(0, node[0]))


@onnx_op("Softplus")
def softplus_op(node: OnnxNode) -> Expr:
    return softplus(node[0])


@onnx_op("Softsign")
def softsign(node: OnnxNode) -> Expr:
    x = node[0]
    return emit("divide", x, emit("add", emit("abs", x), scalar(1, x)))


@onnx_op("Mish", since=18)
def mish(node: OnnxNode) -> Expr:
    return emit("multiply", node[0], emit("tanh", softplus(node[0])))


@onnx_op("HardSigmoid", since=6)
def hard_sigmoid_op(node: OnnxNode) -> Expr:
    return hard_sigmoid(node[0], node.attr("alpha"), node.attr("beta"))


@onnx_op("HardSwish", since=14)
def hard_swish(node: OnnxNode) -> Expr:
    """The sixth is a float32, as in ONNX's definition."""
    return emit("multiply", node[0], hard_sigmoid(node[0], float(np.float32(1 / 6)), 0.5))


@onnx_op("Swish", since=24)
def swish(node: OnnxNode) -> Expr:
    x = node[0]
    return emit("multiply", x, emit("sigmoid", emit("multiply", x, scalar(node.attr("alpha"), x))))


@onnx_op("Gelu", since=20)
def gelu(node: OnnxNode) -> Expr:
    """x times the normal distribution's cumulative function, or its approximation by tanh."""
    return gelu_of(node[0], tanh=node.attr("approximate") == "tanh")


def gelu_of(x: Expr, bias: Expr | None = None, tanh: bool = False) -> Expr:
    """Of ``x`` plus a bias.  float16 in float32: 1 plus what is almost -1 has no digits left."""
    dtype, x = x.dtype, compared(x)
    if bias is not None:
        x = emit("add", x, compared(bias))
    if tanh:
        cubed = emit("multiply", emit("multiply", x, x), x)
        inner = emit("add", x, emit("multiply", cubed, scalar(0.044715, x)))
        bell = emit("tanh", emit("multiply", inner, scalar(math.sqrt(2 / math.pi), x)))
    else:
        bell = emit("erf", emit("multiply", x, scalar(math.sqrt(0.5), x)))
    return cast(emit("multiply", emit("multiply", x, scalar(0.5, x)), emit("add", bell, scalar(1, x))), dtype)


@onnx_op("Shrink", since=9)
def shrink(node: OnnxNode) -> Expr:
    """In float64 for integers, whose limits and bias need not be whole."""
    x, bias, limit = compared(node[0]), node.attr("bias"), node.attr("lambd")
    above = emit("where", emit("greater", x, scalar(limit, x)), emit("subtract", x, scalar(bias, x)), scalar(0, x))
    found = emit("where", emit("less", x, scalar(-limit, x)), emit("add", x, scalar(bias, x)), above)
    return cast(found, node[0].dtype)


def compared(x: Expr) -> Expr:
    """``x`` in a dtype that attributes keep their value in."""
    return cast(x, {"float16": "float32", "float64": "float64", "float32": "float32"}.get(x.dtype, "float64"))


@onnx_op("PRelu", since=7)
def prelu(node: OnnxNode) -> Expr:
    """``nn.prelu`` for a slope per channel (axis 1) of floats, any other by broadcasting."""
    x, slope = node[0], node[1]
    channels = dims(x)[1] if rank(x) > 1 else None
    per_channel = (channels, *(1,) * (rank(x) - 2))
    if x.dtype.startswith("float") and channels is not None and dims(slope) in (per_channel, (1, *per_channel)):
        return emit("nn.prelu", x, reshaped(slope, [channels]), axis=1)
    return emit("where", _positive(x), x, emit("multiply", x, slope))


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
