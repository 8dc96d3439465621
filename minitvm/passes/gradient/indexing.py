"""Gradients of what reads and writes at positions: each reading adds to the place that it read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from minitvm.errors import PassError
from minitvm.ir import builder as ir
from minitvm.ir.expr import Call, Expr
from minitvm.passes.gradient.rules import in_shape, number, register_gradient, reshaped


@register_gradient("take")
def _take(y: Call, d: Expr) -> Sequence[Expr | None]:
    """With the axis in front: rows are added up at their indices."""
    op: Any = y.op
    data, indices = y.args
    axis = 0 if op.axis is None else op.axis % len(data.shape)
    extents = (data.tensor_type.size,) if op.axis is None else data.shape
    count = len(indices.shape)
    inside = _bounded(indices, extents[axis], op.mode)
    order = (*range(axis, axis + count), *range(axis), *range(axis + count, len(d.shape)))
    rows = ir.transpose(d, axes=order)
    start = ir.zeros(shape=(extents[axis], *extents[:axis], *extents[axis + 1 :]), dtype=d.dtype)
    added = ir.scatter_nd(start, ir.expand_dims(inside, axis=0), rows, mode="add")
    back = (*range(1, axis + 1), 0, *range(axis + 1, len(extents)))
    return [reshaped(ir.transpose(added, axes=back), data), None]


def _bounded(indices: Expr, extent: int, mode: str) -> Expr:
    wide = ir.cast(indices, dtype="int64")
    if mode == "wrap":
        return ir.floor_mod(wide, number(extent, wide))
    return ir.clip(wide, a_min=0, a_max=extent - 1)


@register_gradient("gather")
def _gather(y: Call, d: Expr) -> Sequence[Expr | None]:
    op: Any = y.op
    data, indices = y.args
    return [ir.scatter_elements(ir.zeros_like(data), indices, d, axis=op.axis, reduction="add"), None]


@register_gradient("gather_nd")
def _gather_nd(y: Call, d: Expr) -> Sequence[Expr | None]:
    """Batch dimensions become positions of their own."""
    op: Any = y.op
    data, indices = y.args
    if op.batch_dims:
        grid = np.indices(indices.shape[1:])[: op.batch_dims]
        indices = ir.concatenate((ir.const(grid.astype(indices.dtype)), indices), axis=0)
    return [ir.scatter_nd(ir.zeros_like(data), indices, d, mode="add"), None]


def _of_scatter(kind: str, reading: Expr, cleared: Expr, d: Expr) -> Sequence[Expr | None]:
    if kind not in ("update", "add"):
        raise PassError(f"a scatter that combines by {kind!r} has no gradient", hint="update and add have one")
    return [cleared if kind == "update" else d, None, reading]


def _numbered(shape: Sequence[int]) -> Expr:
    """Every update's number."""
    return ir.const(np.arange(math.prod(shape), dtype="int64").reshape(shape))


@register_gradient("scatter_elements")
def _scatter_elements(y: Call, d: Expr) -> Sequence[Expr | None]:
    """What was overwritten is worth nothing, be it data or another update."""
    op: Any = y.op
    indices, updates = y.args[1:]
    reading = ir.gather(d, indices, axis=op.axis)
    if op.reduction == "update":
        own = _numbered(updates.shape)
        last = ir.scatter_elements(ir.zeros(shape=d.shape, dtype="int64"), indices, own, axis=op.axis)
        reading = ir.where(ir.equal(ir.gather(last, indices, axis=op.axis), own), reading, number(0, d))
    cleared = ir.scatter_elements(d, indices, ir.zeros_like(updates), axis=op.axis)
    return _of_scatter(op.reduction, reading, cleared, d)


@register_gradient("scatter_nd")
def _scatter_nd(y: Call, d: Expr) -> Sequence[Expr | None]:
    """The same, slice by slice."""
    op: Any = y.op
    indices, updates = y.args[1:]
    reading, depth, places = ir.gather_nd(d, indices), indices.shape[0], indices.shape[1:]
    if op.mode == "update":
        own = _numbered(places)
        last = ir.scatter_nd(ir.zeros(shape=d.shape[:depth], dtype="int64"), indices, own)
        won = in_shape(ir.equal(ir.gather_nd(last, indices), own), (*places, *[1] * (len(d.shape) - depth)))
        reading = ir.where(won, reading, number(0, d))
    cleared = ir.scatter_nd(d, indices, ir.zeros_like(updates))
    return _of_scatter(op.mode, reading, cleared, d)


@register_gradient("sort")
def _sort(y: Call, d: Expr) -> Sequence[Expr | None]:
    op: Any = y.op
    data = y.args[0]
    order = ir.argsort(data, axis=op.axis, is_ascend=op.is_ascend, dtype="int64")
    return [ir.scatter_elements(ir.zeros_like(data), order, d, axis=op.axis, reduction="add")]


@register_gradient("topk")
def _topk(y: Call, d: Any) -> Sequence[Expr | None]:
    """Where the values came from; positions have no gradient."""
    op: Any = y.op
    data, values = y.args[0], d[0] if isinstance(d, tuple) else d
    if op.ret_type == "indices":
        return [None]
    places = ir.call_op("topk", data, **{**op.attributes(), "ret_type": "indices", "dtype": "int64"})
    return [ir.scatter_elements(ir.zeros_like(data), places, values, axis=op.axis, reduction="add")]


@register_gradient("one_hot")
def _one_hot(y: Call, d: Expr) -> Sequence[Expr | None]:
    """The values get the sums of the places that they are at."""
    indices, on, off = y.args
    op: Any = y.op
    at = ir.call_op("one_hot", indices, number(1, d), number(0, d), **{**op.attributes(), "dtype": d.dtype})
    return [None, reshaped(ir.sum(d * at), on), reshaped(ir.sum(d * (1 - at)), off)]


@register_gradient("reverse_sequence")
def _reverse_sequence(y: Call, d: Expr) -> Sequence[Expr | None]:
    op: Any = y.op
    return [ir.call_op("reverse_sequence", d, y.args[1], **op.attributes()), None]


for _name in ("argsort", "nonzero", "argwhere"):
    register_gradient(_name, lambda y, d: [None])
