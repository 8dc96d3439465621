"""Gradients of reductions and running sums: what went into a result gets its adjoint back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from minitvm.ir import builder as ir
from minitvm.ir.expr import Call, Expr
from minitvm.passes.gradient.rules import in_shape, register_gradient


def _axes(y: Call) -> tuple[int, ...]:
    op: Any = y.op
    found: tuple[int, ...] = op.axes(y.args[0].tensor_type.rank)
    return found


def _beside(value: Expr, y: Call) -> Expr:
    """A result, or its adjoint, with the reduced dimensions as 1: it broadcasts to the argument."""
    op: Any = y.op
    if op.keepdims:
        return value
    for axis in _axes(y):
        value = ir.expand_dims(value, axis=axis)
    return value


def _spread(value: Expr, y: Call) -> Expr:
    """The same, in the shape of the argument."""
    return ir.broadcast_to_like(_beside(value, y), y.args[0])


def _count(y: Call) -> int:
    return math.prod(y.args[0].shape[axis] for axis in _axes(y))


register_gradient("sum", lambda y, d: [_spread(d, y)])
register_gradient("mean", lambda y, d: [_spread(d / _count(y), y)])
register_gradient("logsumexp", lambda y, d: [_beside(d, y) * ir.exp(y.args[0] - _beside(y, y))])


def _of_extreme(y: Call, d: Expr) -> Sequence[Expr | None]:
    """Of several that are largest each gets an equal part."""
    taken = ir.cast(ir.equal(y.args[0], _beside(y, y)), dtype=d.dtype)
    return [taken * _beside(d, y) / ir.sum(taken, axis=_axes(y), keepdims=True)]


for _name in ("max", "min"):
    register_gradient(_name, _of_extreme)
for _name in ("argmax", "argmin", "all", "any"):
    register_gradient(_name, lambda y, d: [None])


@register_gradient("prod")
def _prod(y: Call, d: Expr) -> Sequence[Expr | None]:
    """The product of the others: of those before and those behind, so that zeros do no harm."""
    data, axes = y.args[0], _axes(y)
    kept = [axis for axis in range(len(data.shape)) if axis not in axes]
    order = (*kept, *axes)
    moved = ir.transpose(data, axes=order)
    rows = in_shape(moved, (*(data.shape[axis] for axis in kept), _count(y)))
    before = ir.cumprod(rows, axis=len(kept), exclusive=True)
    behind = ir.reverse(ir.cumprod(ir.reverse(rows, axis=len(kept)), axis=len(kept), exclusive=True), axis=len(kept))
    others = ir.transpose(
        in_shape(before * behind, moved.shape), axes=tuple(order.index(axis) for axis in range(len(order)))
    )
    return [others * _beside(d, y)]


@register_gradient("variance")
def _variance(y: Call, d: Expr) -> Sequence[Expr | None]:
    """The mean is an argument of its own, with a gradient of its own."""
    data, mean = y.args
    op: Any = y.op
    count = _count(y) - bool(op.unbiased)
    inside = mean if len(mean.shape) == len(data.shape) else _beside(mean, y)
    slope = (data - inside) * (2 / count) * _beside(d, y)
    return [slope, in_shape(-ir.sum(slope, axis=_axes(y), keepdims=op.keepdims), mean.shape)]


@register_gradient("cumsum")
def _cumsum(y: Call, d: Expr) -> Sequence[Expr | None]:
    op: Any = y.op
    return [ir.reverse(ir.cumsum(ir.reverse(d, axis=op.axis), axis=op.axis, exclusive=op.exclusive), axis=op.axis)]
