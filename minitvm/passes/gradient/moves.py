"""Gradients of what moves elements: each goes back to where it came from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from minitvm.ir import builder as ir
from minitvm.ir.expr import Call, Expr, Tuple
from minitvm.ir.layout import Layout
from minitvm.passes.gradient.rules import in_shape, of_each, register_gradient, reshaped, summed_to

of_each("reshape squeeze expand_dims nn.batch_flatten", lambda y, d: reshaped(d, y.args[0]))
of_each("broadcast_to", lambda y, d: summed_to(d, y.args[0].tensor_type))
of_each("reverse", lambda y, d: ir.reverse(d, axis=y.op.axis))
of_each("layout_transform", lambda y, d: ir.layout_transform(d, src_layout=y.op.dst_layout, dst_layout=y.op.src_layout))
register_gradient("reshape_like", lambda y, d: [reshaped(d, y.args[0]), None])
register_gradient("broadcast_to_like", lambda y, d: [summed_to(d, y.args[0].tensor_type), None])


@register_gradient("transpose")
def _transpose(y: Call, d: Expr) -> Sequence[Expr | None]:
    op: Any = y.op
    order = op.order(y.tensor_type.rank)
    return [ir.transpose(d, axes=tuple(order.index(axis) for axis in range(len(order))))]


@register_gradient("concatenate")
def _concatenate(y: Call, d: Expr) -> Sequence[Expr | None]:
    op: Any = y.op
    parts = list(y.args[0])
    ends = accumulate(part.shape[op.axis] for part in parts)
    cut = ir.split(d, indices_or_sections=tuple(ends)[:-1], axis=op.axis)
    return [Tuple(list(cut))]


@register_gradient("stack")
def _stack(y: Call, d: Expr) -> Sequence[Expr | None]:
    op: Any = y.op
    parts = list(y.args[0])
    return [Tuple([reshaped(one, part) for one, part in zip(ir.split(d, len(parts), op.axis), parts, strict=True)])]


@register_gradient("split")
def _split(y: Call, d: tuple[Expr, ...]) -> Sequence[Expr | None]:
    op: Any = y.op
    return [ir.concatenate(d, axis=op.axis)]


@register_gradient("tile")
def _tile(y: Call, d: Expr) -> Sequence[Expr | None]:
    """The sum over the copies: each dimension is cut into (copies, extent)."""
    shape = y.args[0].shape
    rank = len(d.shape)
    extents = (1,) * (rank - len(shape)) + tuple(shape)
    cut = [n for full, extent in zip(d.shape, extents, strict=True) for n in (full // max(extent, 1), extent)]
    return [reshaped(ir.sum(in_shape(d, tuple(cut)), axis=tuple(range(0, 2 * rank, 2))), y.args[0])]


@register_gradient("repeat")
def _repeat(y: Call, d: Expr) -> Sequence[Expr | None]:
    op: Any = y.op
    shape, axis = y.args[0].shape, op.axis % len(d.shape)
    cut = (*shape[: axis + 1], op.repeats, *shape[axis + 1 :])
    return [ir.sum(in_shape(d, cut), axis=(axis + 1,))]


@register_gradient("strided_slice")
def _strided_slice(y: Call, d: Expr) -> Sequence[Expr | None]:
    """Zeros between and around what was taken, axis by axis."""
    op: Any = y.op
    shape = y.args[0].shape
    for axis, cut in op._slices(len(shape)).items():
        taken = range(*cut.indices(shape[axis]))
        if taken.step < 0:
            d, taken = ir.reverse(d, axis=axis), taken[::-1]
        d = _spaced(d, axis, taken, shape[axis])
    return [d]


def _spaced(d: Expr, axis: int, places: range, extent: int) -> Expr:
    """``d`` at these places of an axis, elsewhere 0: each element followed by ``step - 1`` zeros, then the ends."""
    if not len(places):
        return ir.zeros(shape=(*d.shape[:axis], extent, *d.shape[axis + 1 :]), dtype=d.dtype)
    if places.step > 1:
        d = _padded(ir.expand_dims(d, axis=axis + 1), axis + 1, 0, places.step - 1)
        shape = (*d.shape[:axis], len(places) * places.step, *d.shape[axis + 2 :])
        d = in_shape(d, shape)
        d = ir.strided_slice(d, begin=(0,), end=(places[-1] - places[0] + 1,), axes=(axis,))
    return _padded(d, axis, places[0], extent - 1 - places[-1])


def _padded(d: Expr, axis: int, before: int, after: int) -> Expr:
    if not before and not after:
        return d
    return ir.nn.pad(d, pad_width=tuple((before, after) if a == axis else (0, 0) for a in range(len(d.shape))))


@register_gradient("nn.pad")
def _pad(y: Call, d: Expr) -> Sequence[Expr | None]:
    """What lies inside; of a repeated or mirrored border each element goes back to the one that it repeats."""
    op: Any = y.op
    shape = y.args[0].shape
    more: list[Expr | None] = [None] * (len(y.args) - 1)
    if op.pad_mode == "constant":
        begin = tuple(before for before, _ in op.pad_width)
        inside = ir.strided_slice(d, begin=begin, end=tuple(b + n for b, n in zip(begin, shape, strict=True)))
        if more:
            more = [reshaped(ir.sum(d) - ir.sum(inside), y.args[1])]
        return [inside, *more]
    for axis, (before, after) in enumerate(op.pad_width):
        d = _folded(d, axis, before, after, op.pad_mode)
    return [d, *more]


def _folded(d: Expr, axis: int, before: int, after: int, mode: str) -> Expr:
    """An axis without its borders, which are added to what they repeat."""
    extent = d.shape[axis] - before - after

    def part(begin: int, end: int) -> Expr:
        return ir.strided_slice(d, begin=(begin,), end=(end,), axes=(axis,))

    found = part(before, before + extent)
    for begin, width, first in ((0, before, True), (before + extent, after, False)):
        if not width:
            continue
        border = part(begin, begin + width)
        if mode == "edge":
            border, place = ir.sum(border, axis=(axis,), keepdims=True), 0 if first else extent - 1
        else:
            border, place = ir.reverse(border, axis=axis), 1 if first else extent - 1 - width
        found = found + _padded(border, axis, place, extent - place - border.shape[axis])
    return found


@register_gradient("nn.depth_to_space")
def _depth_to_space(y: Call, d: Expr) -> Sequence[Expr | None]:
    """The other way round; of ``CRD``, whose channels come before the block, they are brought behind it first."""
    op: Any = y.op
    size = op.block_size
    found: Expr = ir.nn.space_to_depth(d, block_size=size, layout=op.layout)
    if op.mode == "CRD":
        axis, shape = op.layout.index("C"), found.shape
        cut = (*shape[:axis], size * size, shape[axis] // size**2, *shape[axis + 1 :])
        order = [*range(len(cut))]
        order[axis], order[axis + 1] = axis + 1, axis
        found = in_shape(ir.transpose(in_shape(found, cut), axes=tuple(order)), shape)
    return [found]


of_each(
    "nn.space_to_depth",
    lambda y, d: ir.nn.depth_to_space(d, block_size=y.op.block_size, layout=y.op.layout, mode="DCR"),
)
register_gradient("trilu", lambda y, d: [ir.trilu(d, y.args[1], upper=y.op.upper), None])
for _name in ("full", "full_like"):
    register_gradient(_name, lambda y, d: [*[None] * (len(y.args) - 1), reshaped(ir.sum(d), y.args[-1])])
for _name in ("shape_of", "ndarray_size", "isnan", "isinf", "isfinite"):
    register_gradient(_name, lambda y, d: [None])


@register_gradient("nn.upsampling")
def _upsampling(y: Call, d: Expr) -> Sequence[Expr | None]:
    """Of whole factors and the nearest pixel: the sum over each pixel's copies."""
    op: Any = y.op
    factors = {"H": op.scale_h, "W": op.scale_w}
    if op.method != "nearest_neighbor" or op.align_corners or any(f != int(f) for f in factors.values()):
        return [_resized(y, d)]
    cut, copies = [], []
    for axis, extent in zip(Layout(op.layout).axes, y.args[0].shape, strict=True):
        cut.append(extent)
        if axis.name in factors:
            copies.append(len(cut))
            cut.append(int(factors[axis.name]))
    return [ir.sum(in_shape(d, tuple(cut)), axis=tuple(copies))]


def _resized(y: Call, d: Expr) -> Expr:
    """Each axis of the image is a matrix of weights by itself; the adjoint is multiplied by its transpose."""
    op: Any = y.op
    layout = Layout(op.layout)
    for axis in "HW":
        at, rank = layout.index(axis), layout.rank
        weights = np.stack([_weights(y, layout, at, k) for k in range(y.args[0].shape[at])])
        last = (*(a for a in range(rank) if a != at), at)
        rows = ir.transpose(d, axes=last)
        flat = in_shape(rows, (math.prod(rows.shape[:-1]), rows.shape[-1]))
        found = ir.nn.dense(flat, ir.const(weights.astype(d.dtype)))
        back = in_shape(found, (*rows.shape[:-1], len(weights)))
        d = ir.transpose(back, axes=tuple(last.index(a) for a in range(rank)))
    return d


def _weights(y: Call, layout: Layout, at: int, k: int) -> np.ndarray:
    """What one element along an image axis gives to each of the result's: the operator on an image of zeros and a 1."""
    op: Any = y.op
    inside = {layout.index("H"), layout.index("W")}
    shape = [n if a in inside else layout.axes[a].block or 1 for a, n in enumerate(y.args[0].shape)]
    image = np.zeros(shape, "float64")
    image[tuple(k if a == at else slice(None) for a in range(len(shape)))] = 1
    found = op.reference(image)
    return np.asarray(found[tuple(slice(None) if a == at else 0 for a in range(len(shape)))])


of_each("image.resize2d", _resized)
