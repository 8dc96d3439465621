"""Gradients of what slides a window: convolutions, transposed ones, and pools.

A convolution's gradient by its data is the transposed convolution of the adjoint with the same weight.  That by its
weight is a convolution of the data with the adjoint as the filter, strides and dilation exchanged: batch and channels
change places, so that the sum goes over the images.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from minitvm.ir import builder as ir
from minitvm.ir.expr import Call, Expr
from minitvm.ir.layout import Layout
from minitvm.ir.types import TensorType
from minitvm.passes.gradient.rules import in_shape, number, register_gradient, reshaped


def _in_layout(value: Expr, source: Layout | str, target: Layout | str) -> Expr:
    if str(source) == str(target):
        return value
    return ir.layout_transform(value, src_layout=str(source), dst_layout=str(target))


def _in_dtype(value: Expr, dtype: str) -> Expr:
    return value if value.dtype == dtype else ir.cast(value, dtype=dtype)


def _spread(d: Expr, weight: Expr, extents: Sequence[int], op: Any, groups: int) -> Expr:
    """The transposed convolution of ``d`` (N, O, ...) with ``weight`` (O, I / groups, ...) -> (N, I, *extents)."""
    rank = len(extents)
    before = op.padding[:rank]
    full = [
        (n - 1) * stride + (taps - 1) * dilation + 1
        for n, taps, stride, dilation in zip(d.shape[2:], weight.shape[2:], op.strides, op.dilation, strict=True)
    ]
    after = [size - b - extent for size, b, extent in zip(full, before, extents, strict=True)]
    return ir.call_op(
        f"nn.conv{rank}d_transpose",
        d,
        weight,
        strides=op.strides,
        dilation=op.dilation,
        groups=groups,
        padding=(*before, *(max(a, 0) for a in after)),
        output_padding=tuple(max(-a, 0) for a in after),
    )


def _of_weight(data: Expr, d: Expr, taps: Sequence[int], op: Any) -> Expr:
    """The gradient of a convolution of ``data`` (N, C, ...) by its weight; ``d``: (N, O, ...) -> (O, C / groups, ...).

    The images of each group become its channels: data (C / groups, groups * N, ...), filters (O, N, ...).
    """
    (batch, channels, *pixels), groups = data.shape, op.groups
    rank = len(taps)
    spatial = range(3, 3 + rank)
    cut = in_shape(data, (batch, groups, channels // groups, *pixels))
    images: Expr = ir.transpose(cut, axes=(2, 1, 0, *spatial))
    images = in_shape(images, (channels // groups, groups * batch, *pixels))
    found = ir.call_op(
        f"nn.conv{rank}d",
        images,
        ir.transpose(d, axes=(1, 0, *range(2, 2 + rank))),
        strides=op.dilation,
        dilation=op.strides,
        padding=op.padding,
        groups=groups,
    )
    begin = (0,) * rank
    found = ir.strided_slice(found, begin=begin, end=tuple(taps), axes=tuple(range(2, 2 + rank)))
    return ir.transpose(found, axes=(1, 0, *range(2, 2 + rank)))


def _convolution(y: Call, d: Expr) -> Sequence[Expr | None]:
    op: Any = y.op
    image, kernel, out = op.layouts
    plain, filters = f"NC{op.spatial}", f"OI{op.spatial}"
    data, weight = _in_layout(y.args[0], image, plain), _in_layout(y.args[1], kernel, filters)
    d = _in_dtype(_in_layout(d, out, plain), data.dtype)
    of_data = _spread(d, weight, data.shape[2:], op, op.groups)
    of_weight = _of_weight(data, d, weight.shape[2:], op)
    return [_in_layout(of_data, plain, image), _in_layout(of_weight, filters, kernel)]


def _transposed_convolution(y: Call, d: Expr) -> Sequence[Expr | None]:
    """The same two, in each other's place: the adjoint is the image that windows slide over."""
    op: Any = y.op
    image, kernel, out = op.layouts
    plain, filters = f"NC{op.spatial}", f"IO{op.spatial}"
    data, weight = _in_layout(y.args[0], image, plain), _in_layout(y.args[1], kernel, filters)
    d = _in_dtype(_in_layout(d, out, plain), data.dtype)
    rank = len(op.spatial)
    of_data = ir.call_op(
        f"nn.conv{rank}d", d, weight, strides=op.strides, dilation=op.dilation, padding=op.padding, groups=op.groups
    )
    begin, axes = (0,) * rank, tuple(range(2, 2 + rank))
    of_data = ir.strided_slice(of_data, begin=begin, end=tuple(data.shape[2:]), axes=axes)
    of_weight = _of_weight(d, data, weight.shape[2:], op)
    return [_in_layout(of_data, plain, image), _in_layout(of_weight, filters, kernel)]


def _average_pool(y: Call, d: Expr) -> Sequence[Expr | None]:
    """Each element of a window gets its share: a transposed convolution, channel by channel, with ones."""
    op: Any = y.op
    plain, data = f"NC{op.spatial}", y.args[0]
    extents = TensorType(Layout(plain).shape_from(Layout(op.layout), data.shape)).static_shape[2:]
    d = _in_layout(d, op.layout, plain)
    counts = np.ones((1, 1, *d.shape[2:]))
    for axis, extent in enumerate(extents):
        counts *= _held(op, axis, extent, d.shape[2 + axis])
    shares = d / ir.const(counts.astype(d.dtype))
    ones = ir.ones(shape=(d.shape[1], 1, *op.pool_size), dtype=d.dtype)
    return [_in_layout(_spread(shares, ones, extents, op, d.shape[1]), plain, op.layout)]


def _held(op: Any, axis: int, extent: int, places: int) -> np.ndarray:
    """How many elements along an axis each window averages, in the shape (1, 1, places or 1, ...)."""
    rank = len(op.spatial)
    before, after = op.padding[axis], op.padding[axis + rank]
    taps = np.arange(places)[:, None] * op.strides[axis] - before + np.arange(op.pool_size[axis]) * op.dilation[axis]
    low, high = (-before, extent + after) if op.count_include_pad else (0, extent)
    held = np.sum((taps >= low) & (taps < high), axis=1)
    return np.asarray(np.maximum(held, 1).reshape([1, 1, *(places if a == axis else 1 for a in range(rank))]))


def _max_pool(y: Call, d: Expr) -> Sequence[Expr | None]:
    """The first maximum under each window gets all of it."""
    op: Any = y.op
    plain = f"NC{op.spatial}"
    data, d = (_in_layout(value, op.layout, plain) for value in (y.args[0], d))
    attributes = {name: value for name, value in op.attributes().items() if name not in ("layout", "out_layout")}
    places = ir.call_op(f"{op.name}_positions", data, **attributes)
    rows = (*data.shape[:2], math.prod(d.shape[2:]))
    start = ir.zeros(shape=(*data.shape[:2], math.prod(data.shape[2:])), dtype=d.dtype)
    flat = (in_shape(places, rows), in_shape(d, rows))
    added = ir.scatter_elements(start, *flat, axis=2, reduction="add")
    return [_in_layout(reshaped(added, data), plain, op.layout)]


for _rank in (1, 2, 3):
    register_gradient(f"nn.conv{_rank}d", _convolution)
    register_gradient(f"nn.conv{_rank}d_transpose", _transposed_convolution)
    register_gradient(f"nn.avg_pool{_rank}d", _average_pool)
    register_gradient(f"nn.max_pool{_rank}d", _max_pool)
    register_gradient(f"nn.max_pool{_rank}d_positions", lambda y, d: [None])


def _pixels(y: Call) -> tuple[int, ...]:
    op: Any = y.op
    layout = Layout(op.layout)
    return tuple(sorted((layout.index("H"), layout.index("W"))))


@register_gradient("nn.global_avg_pool2d")
def _global_average(y: Call, d: Expr) -> Sequence[Expr | None]:
    count = math.prod(y.args[0].shape[axis] for axis in _pixels(y))
    return [ir.broadcast_to_like(d / count, y.args[0])]


@register_gradient("nn.global_max_pool2d")
def _global_maximum(y: Call, d: Expr) -> Sequence[Expr | None]:
    """Of several that are largest each gets an equal part."""
    largest = ir.where(ir.equal(y.args[0], y), number(1, d), number(0, d))
    return [largest * d / ir.sum(largest, axis=_pixels(y), keepdims=True)]
