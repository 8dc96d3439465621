"""Generators of operators that combine the elements of an axis: reductions, orders, normalizations."""

from __future__ import annotations

import math

import numpy as np

from minitvm.testing.fuzz.case import Value
from minitvm.testing.fuzz.draw import FLOATS, Draw, Reject, accepted, generates

_AXES_AS_INPUT = {"ReduceSum": 13}


@generates(
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd"),
    *("ReduceSum", "ReduceSumSquare"),
)
def reduce(d: Draw) -> list[Value]:
    x = d.operand()
    axes = d.maybe(d.axes(x.rank, 0 if d.chance(0.1) else 1), 0.8)
    keepdims = d.choice((None, 0, 1))
    if d.opset < _AXES_AS_INPUT.get(d.op, 18):
        return d.node([x], axes=axes or None, keepdims=keepdims)
    noop = d.choice((None, 0, 1))
    return d.node([x, None if axes is None else d.ints(axes)], keepdims=keepdims, noop_with_empty_axes=noop)


@generates("ArgMax", "ArgMin")
def arg_reduce(d: Draw) -> list[Value]:
    x = d.operand(least=1)
    last = d.choice((None, 0, 1)) if d.opset >= 12 else None
    axis = d.axis(x.rank) if d.opset >= 11 else d.between(0, x.rank - 1)
    return d.node([x], axis=d.maybe(axis, 0.8), keepdims=d.choice((None, 0, 1)), select_last_index=last)


@generates("TopK")
def top_k(d: Draw) -> list[Value]:
    x = d.operand(least=1)
    axis = d.axis(x.rank) if d.opset >= 11 else d.between(0, x.rank - 1)
    k = d.between(0 if d.chance(0.1) else 1, d.known(x)[axis])
    if d.opset < 10:
        return d.node([x], 2, axis=axis, k=max(k, 1))
    largest = d.choice((None, 1, 0)) if d.opset >= 11 else None  # without ``sorted`` the order is open
    return d.node([x, d.ints([k])], 2, axis=axis, largest=largest)


@generates("CumSum")
def cum_sum(d: Draw) -> list[Value]:
    x = d.operand(least=1)
    axis = d.constant(np.array(d.axis(x.rank), d.choice(("int64", "int32"))))
    return d.node([x, axis], exclusive=d.choice((None, 1)), reverse=d.choice((None, 1)))


@generates("Softmax", "LogSoftmax", "Hardmax")
def softmax(d: Draw) -> list[Value]:
    x = d.operand(least=1)
    axis = d.axis(x.rank) if d.opset >= 11 else d.between(0, x.rank - 1)
    return d.node([x], axis=d.maybe(axis, 0.7))


@generates("LpNormalization")
def lp_normalization(d: Draw) -> list[Value]:
    x = d.operand(least=1)
    return d.node([x], axis=d.maybe(d.axis(x.rank), 0.8), p=d.choice((None, 1, 2)))


@generates("MeanVarianceNormalization")
def mean_variance(d: Draw) -> list[Value]:
    x = d.operand(least=1)
    axes = d.maybe(sorted(a % x.rank for a in d.axes(x.rank, 1)), 0.7) if x.rank != 4 else d.maybe([0, 2, 3])
    if axes is None and x.rank != 4:
        raise Reject("the default axes are those of images")
    return d.node([x], axes=axes)


def image(d: Draw, least: int = 3, most: int = 5, dtypes: tuple[str, ...] | None = None) -> Value:
    """An operand of rank (batch, channels, ...)."""
    allowed = accepted(d.op, d.opset, 0) if dtypes is None else dtypes
    return d.operand(allowed, least, most)


@generates("BatchNormalization")
def batch_norm(d: Draw) -> list[Value]:
    x = image(d, 2)
    channels = (d.known(x)[1],)
    scale, bias, mean = (d.weight(channels, x.dtype) for _ in range(3))
    variance = d.within(channels, x.dtype, 0.1, 3.0, 0.9)
    return d.node([x, scale, bias, mean, variance], epsilon=d.maybe(d.choice((1e-5, 1e-3, 0.1))))


@generates("InstanceNormalization")
def instance_norm(d: Draw) -> list[Value]:
    x = image(d, 3)
    channels = (d.known(x)[1],)
    return d.node([x, d.weight(channels, x.dtype), d.weight(channels, x.dtype)], epsilon=d.maybe(1e-3))


@generates("GroupNormalization")
def group_norm(d: Draw) -> list[Value]:
    x = image(d, 3)
    channels = d.known(x)[1]
    groups = d.choice([g for g in range(1, channels + 1) if channels % g == 0] or [1])
    size = (groups,) if d.opset < 21 else (channels,)
    return d.node([x, d.weight(size, x.dtype), d.weight(size, x.dtype)], num_groups=groups, epsilon=d.maybe(1e-3))


@generates("LayerNormalization", "RMSNormalization")
def layer_norm(d: Draw) -> list[Value]:
    x = d.operand(least=1)
    axis = d.axis(x.rank)
    shape = d.known(x)[axis:] if d.chance(0.8) else d.known(x)[-1:]
    scale = d.weight(shape, x.dtype)
    if d.op == "RMSNormalization":
        return d.node([x, scale], axis=axis, epsilon=d.maybe(1e-3))
    outputs = d.choice((1, 1, 1, 2, 3))
    return d.node([x, scale, d.maybe(d.weight(shape, x.dtype))], outputs, axis=axis, epsilon=d.maybe(1e-3))


@generates("com.microsoft.SkipLayerNormalization")
def skip_layer_norm(d: Draw) -> list[Value]:
    x = d.operand(("float32", "float32", "float16"), 3, 3)
    shape = d.known(x)
    size = shape[-1:]
    parts = [d.weight(size, x.dtype), d.maybe(d.weight(size, x.dtype)), d.maybe(d.weight(size, x.dtype))]
    return d.node([x, d.like(shape, x.dtype), *parts], types=[(x.dtype, shape)], epsilon=d.maybe(1e-3))


@generates("LRN")
def lrn(d: Draw) -> list[Value]:
    x = image(d, 4, 4)
    size, alpha = d.choice((1, 2, 3, 3, 4, 5, 5, 7)), d.maybe(d.choice((0.01, 0.5, 2.0)), 0.8)
    return d.node([x], size=size, alpha=alpha, beta=d.maybe(0.6), bias=d.maybe(1.5))


@generates("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
def loss(d: Draw) -> list[Value]:
    x = d.operand(FLOATS, 2, 4)
    shape = d.known(x)
    if math.prod(shape) == 0:
        raise Reject("no classes")
    labels = d.within((shape[0], *shape[2:]), d.choice(("int64", "int32")), 0, shape[1] - 1, 0.2)
    weights = d.maybe(d.within((shape[1],), x.dtype, 0.1, 2.0))
    outputs = d.between(1, 2) if d.op == "SoftmaxCrossEntropyLoss" else 1
    ignore = d.maybe(d.between(0, shape[1]), 0.3)
    reduction = d.choice((None, "none", "sum", "mean"))
    return d.node([x, labels, weights], outputs, reduction=reduction, ignore_index=ignore)
