"""ONNX activations, written with elementwise operators where Relay has no operator of its own."""

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from minitvm.frontend.onnx.node import OnnxNode, cast, dims, emit, normalize_axis, rank, scalar
from minitvm.frontend.onnx.registry import formulas, onnx_op
from minitvm.frontend.onnx.tensor import reshaped
from minitvm.ir.expr import Expr

OverAxis: TypeAlias = Callable[[Expr, int], Expr]
"""A function of one axis of a tensor."""


def elu(x: Expr, alpha: float, divisor: float = 1.0) -> Expr:
    """alpha * (exp(x / divisor) - 1) where x is negative, without overflow elsewhere."""
    below = emit("minimum", x, 0)
    return emit("nn.relu", x) + emit("expm1", below if divisor == 1.0 else below / divisor) * alpha


def hard_sigmoid(x: Expr, alpha: float, beta: float) -> Expr:
    return emit("clip", x * alpha + beta, a_min=0.0, a_max=1.0)


def softplus(x: Expr) -> Expr:
    """log(1 + exp(x)) without overflow."""
    return emit("nn.relu", x) + emit("log1p", emit("exp", -emit("abs", x)))


def gated(x: Expr, alpha: float) -> Expr:
    """x * sigmoid(alpha * x)."""
    return x * emit("sigmoid", x * alpha)


def gelu(x: Expr, bias: Expr | None = None, tanh: bool = False) -> Expr:
    """x (plus a bias) times the normal distribution's cumulative function, or its approximation by tanh.

    float16 in float32: 1 plus what is almost -1 has no digits left.
    """
    dtype, x = x.dtype, compared(x)
    if bias is not None:
        x = x + compared(bias)
    if tanh:
        bell = emit("tanh", (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi))
    else:
        bell = emit("erf", x * math.sqrt(0.5))
    return cast(x * 0.5 * (bell + 1), dtype)


_SIXTH = float(np.float32(1 / 6))
"""As in ONNX's definition."""

formulas(
    {
        "Celu-12": lambda n: elu(n[0], n.attr("alpha"), n.attr("alpha")) + 0.0,  # of -0.0 it is 0.0
        "Elu": lambda n: elu(n[0], n.attr("alpha")),
        "Gelu-20": lambda n: gelu(n[0], tanh=n.attr("approximate") == "tanh"),
        "HardSigmoid": lambda n: hard_sigmoid(n[0], n.attr("alpha"), n.attr("beta")),
        "HardSwish-14": lambda n: n[0] * hard_sigmoid(n[0], _SIXTH, 0.5),
        "LeakyRelu": lambda n: emit("nn.leaky_relu", n[0], alpha=n.attr("alpha")),
        "Mish-18": lambda n: n[0] * emit("tanh", softplus(n[0])),
        "Selu": lambda n: elu(n[0], n.attr("alpha")) * n.attr("gamma") + 0.0,
        "Softplus": lambda n: softplus(n[0]),
        "Softsign": lambda n: n[0] / (emit("abs", n[0]) + 1),
        "Swish-24": lambda n: gated(n[0], n.attr("alpha")),
        "ThresholdedRelu-10": lambda n: emit("where", emit("greater", compared(n[0]), n.attr("alpha")), n[0], 0),
    }
)


@onnx_op("Shrink", since=9)
def shrink(node: OnnxNode) -> Expr:
    """Shrinks in float64 for integers, whose limits and bias need not be whole."""
    x, bias, limit = compared(node[0]), node.attr("bias"), node.attr("lambd")
    above = emit("where", emit("greater", x, limit), x - bias, 0)
    return cast(emit("where", emit("less", x, -limit), x + bias, above), node[0].dtype)


def compared(x: Expr) -> Expr:
    """``x`` in a dtype that attributes keep their value in."""
    return cast(x, {"float16": "float32", "float32": "float32"}.get(x.dtype, "float64"))


@onnx_op("PRelu")
def prelu(node: OnnxNode) -> Expr:
    """``nn.prelu`` for a slope per channel (axis 1) of floats, any other by broadcasting."""
    x, slope = node[0], node[1]
    channels = dims(x)[1] if rank(x) > 1 else None
    per_channel = (channels, *(1,) * (rank(x) - 2))
    if x.dtype.startswith("float") and channels is not None and dims(slope) in (per_channel, (1, *per_channel)):
        return emit("nn.prelu", x, reshaped(slope, [channels]), axis=1)
    return emit("where", emit("less", x, 0), x * slope, x)


def flattened(node: OnnxNode, x: Expr, of: OverAxis) -> Expr:
    """All dimensions from ``axis`` (by default 1) on as one, as before opset 13; there may be none."""
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
