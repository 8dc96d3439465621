"""Cases of operators that move elements about, cut tensors and join them; every result has the operand's bits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from minitvm.ir.layout import Layout
from minitvm.ir.types import DTYPES
from operator_cases.accuracy import BITS
from operator_cases.case import Case, case, generator
from operator_cases.draw import Draw


def moved(name: str, draw: Draw, shape: Sequence[int], dtype: str, *others: Any, **attributes: Any) -> Case:
    return case(name, draw.array(shape, dtype, -99, 99, "all"), *others, accuracy=BITS, **attributes)


def _factors(draw: Draw) -> list[int]:
    return [draw.choice((1, 2, 3, 5, 7, 4, 16)) for _ in range(draw.integer(0, 4))]


def _grouped(draw: Draw, factors: Sequence[int]) -> tuple[int, ...]:
    """A shape whose dimensions are products of neighbouring factors, some of them empty products."""
    cuts = sorted(draw.integer(0, len(factors)) for _ in range(draw.integer(0, 4)))
    return tuple(math.prod(factors[a:b]) for a, b in zip([0, *cuts], [*cuts, len(factors)], strict=True))


def _two_shapes(draw: Draw) -> tuple[tuple[int, ...], tuple[int, ...]]:
    factors = _factors(draw)
    if draw.flag(16):
        factors.append(0)
    return _grouped(draw, factors), _grouped(draw, factors)


@generator("reshape")
def reshape(name: str, draw: Draw, dtype: str) -> Case:
    source, target = _two_shapes(draw)
    allowzero = 0 in target
    newshape = list(target)
    if newshape and not allowzero and draw.flag():
        newshape[draw.integer(0, len(newshape) - 1)] = -1
    same = [d for d, (a, b) in enumerate(zip(source, target, strict=False)) if a == b]
    if same and draw.flag() and not allowzero and newshape[same[0]] != -1:
        newshape[same[0]] = 0
    return moved(name, draw, source, dtype, newshape=newshape, allowzero=allowzero)


@generator("reshape_like")
def reshape_like(name: str, draw: Draw, dtype: str) -> Case:
    source, target = _two_shapes(draw)
    return moved(name, draw, source, dtype, draw.array(target, draw.choice(DTYPES)))


@generator("nn.batch_flatten")
def batch_flatten(name: str, draw: Draw, dtype: str) -> Case:
    return moved(name, draw, draw.shape(1, 4), dtype)


@generator("qnn.words")
def words(name: str, draw: Draw, dtype: str) -> Case:
    return moved(name, draw, (*draw.shape(0, 3), 4 * draw.integer(0, 5)), dtype)


@generator("transpose")
def transpose(name: str, draw: Draw, dtype: str) -> Case:
    shape = draw.shape(0, 5)
    axes = None if draw.flag(4) else [a - (len(shape) if draw.flag() else 0) for a in draw.order(len(shape))]
    return moved(name, draw, shape, dtype, axes=axes)


@generator("expand_dims")
def expand_dims(name: str, draw: Draw, dtype: str) -> Case:
    shape = draw.shape()
    return moved(name, draw, shape, dtype, axis=draw.axis(len(shape) + 1), num_newaxis=draw.integer(1, 3))


@generator("squeeze")
def squeeze(name: str, draw: Draw, dtype: str) -> Case:
    shape = [1 if draw.flag() else extent for extent in draw.shape()]
    ones = [d for d, extent in enumerate(shape) if extent == 1]
    axis = None if draw.flag(3) else [d - (len(shape) if draw.flag() else 0) for d in ones if draw.flag()]
    return moved(name, draw, shape, dtype, axis=axis)


@generator("tile")
def tile(name: str, draw: Draw, dtype: str) -> Case:
    reps = [draw.integer(0 if draw.flag(8) else 1, 3) for _ in range(draw.integer(0, 3))]
    return moved(name, draw, draw.shape(0, 3, 512), dtype, reps=reps)


@generator("repeat")
def repeat(name: str, draw: Draw, dtype: str) -> Case:
    shape = draw.shape(1, 4, 512)
    return moved(name, draw, shape, dtype, repeats=draw.integer(1, 5), axis=draw.axis(len(shape)))


@generator("reverse")
def reverse(name: str, draw: Draw, dtype: str) -> Case:
    shape = draw.shape(1, 4)
    return moved(name, draw, shape, dtype, axis=draw.axis(len(shape)))


@generator("concatenate")
def concatenate(name: str, draw: Draw, dtype: str) -> Case:
    shape = list(draw.shape(1, 4, 256))
    axis = draw.axis(len(shape))
    parts = []
    for _ in range(draw.integer(1, 5)):
        shape[axis] = draw.size(33, least=0)
        parts.append(draw.array(shape, dtype, special="all"))
    return case(name, tuple(parts), axis=axis, accuracy=BITS)


@generator("stack")
def stack(name: str, draw: Draw, dtype: str) -> Case:
    shape = draw.shape(0, 3, 256)
    parts = tuple(draw.array(shape, dtype, special="all") for _ in range(draw.integer(1, 5)))
    return case(name, parts, axis=draw.axis(len(shape) + 1), accuracy=BITS)


@generator("split")
def split(name: str, draw: Draw, dtype: str) -> Case:
    shape = draw.shape(1, 4)
    axis = draw.axis(len(shape))
    extent = shape[axis]
    equal = [n for n in (1, 2, 3, 5, extent) if n and extent % n == 0]
    places = sorted(draw.integer(0, extent + 1) for _ in range(draw.integer(0, 3)))
    return moved(name, draw, shape, dtype, indices_or_sections=draw.choice(equal) if draw.flag() else places, axis=axis)


_ENDS = (0, 1, -1, 3, -3, 7, 100, -100, 2**63 - 1, -(2**63), 2**31, -8, 16)


@generator("strided_slice")
def strided_slice(name: str, draw: Draw, dtype: str) -> Case:
    shape = draw.shape(0, 4)
    axes = draw.axes(len(shape))
    begin = [draw.choice(_ENDS) for _ in axes]
    if draw.flag(4):
        return moved(name, draw, shape, dtype, **_sized(draw, shape, axes))
    end, strides = ([draw.choice(options) for _ in axes] for options in (_ENDS, (1, 2, 3, -1, -2, -5, 100)))
    return moved(name, draw, shape, dtype, begin=begin, end=end, axes=axes, strides=strides if draw.flag() else None)


def _sized(draw: Draw, shape: Sequence[int], axes: Sequence[int]) -> dict[str, Any]:
    """Starts within the tensor, and sizes instead of ends."""
    begin = [draw.integer(0, shape[a]) for a in axes]
    sizes = [draw.integer(-1, shape[a] - b) for a, b in zip(axes, begin, strict=True)]
    return {"begin": begin, "end": sizes, "axes": axes, "slice_mode": "size"}


@generator("shape_of", "ndarray_size")
def about(name: str, draw: Draw, dtype: str) -> Case:
    return case(name, draw.array(draw.shape(0, 5), dtype), dtype=draw.signed_dtype())


@generator("trilu")
def trilu(name: str, draw: Draw, dtype: str) -> Case:
    k = np.asarray(draw.choice((0, 1, -1, 2, -3, 9, -9, 100, -100)), draw.signed_dtype())
    return moved(name, draw, draw.shape(2, 4), dtype, k, upper=draw.flag())


@generator("reverse_sequence")
def reverse_sequence(name: str, draw: Draw, dtype: str) -> Case:
    shape = draw.shape(2, 4)
    seq, batch = draw.order(len(shape))[:2]
    lengths = np.array([draw.integer(0, shape[seq]) for _ in range(shape[batch])], draw.signed_dtype())
    negative = len(shape) if draw.flag() else 0
    return moved(name, draw, shape, dtype, lengths, seq_axis=seq - negative, batch_axis=batch)


_LAYOUTS = {
    "NCHW": ("NHWC", "NCHW4c", "NCHW3c", "NCHW8c", "NCHW16c", "NHWC4c", "CNHW", "NCHW"),
    "NHWC": ("NCHW", "NCHW8c", "NCHW2c"),
    "NC": ("CN", "NC3n", "NC8n", "NC16n"),
    "OIHW": ("OIHW3i2o", "HWIO", "OHWI", "OIHW4i8o"),
}


@generator("layout_transform")
def layout_transform(name: str, draw: Draw, dtype: str) -> Case:
    """Between a plain layout and another one, either way; every axis is a multiple of its blocks."""
    plain = draw.choice(tuple(_LAYOUTS))
    other = draw.choice(_LAYOUTS[plain])
    blocks = {axis: Layout(other).factor(axis) for axis in plain}
    extents = {axis: draw.choice((1, 2, 3, 5)) * block for axis, block in blocks.items()}
    source, target = (other, plain) if draw.flag() else (plain, other)
    shape = [int(n or 0) for n in Layout(source).shape_of(extents)]
    return moved(name, draw, shape, dtype, src_layout=source, dst_layout=target)
