"""Operators that join tensors and cut them: concatenate, stack, split, strided_slice."""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import Any, Literal

import numpy as np

from minitvm.ir.decision import Declined
from minitvm.ir.dims import (
    Dim,
    SymbolicDim,
    always_less,
    ceil_divide,
    differ,
    larger,
    larger_here,
    smaller,
    smaller_here,
)
from minitvm.ir.loop import Buffer, LoopExpr, Stage, select
from minitvm.ir.op import Fusion, Op, compute
from minitvm.ir.ops._shape import (
    buffer_type,
    normalize_axes,
    normalize_axis,
    replaced,
    require_same_dtype,
    require_tuple,
)
from minitvm.ir.relayout import Move, Placement, Site, calling
from minitvm.ir.types import MOST_BYTES, TensorType, TupleType, tensor_fields


def _joined(op: Op, types: tuple[TensorType, ...], axis: int) -> list[Dim]:
    """The dimensions that all tensors agree on, apart from ``axis``."""
    require_same_dtype(op, *types)
    shape = list(types[0].shape)
    for other in types[1:]:
        if other.rank != len(shape):
            raise op.reject(f"ranks differ: {types[0]} and {other}")
        for d, (a, b) in enumerate(zip(shape, other.shape, strict=True)):
            if d != axis and differ(a, b):
                raise op.reject(f"dimension {d} differs: {types[0]} and {other}")
            shape[d] = b if d != axis and isinstance(b, int) else a
    return shape


class Concatenate(Op, name="concatenate", fusion=Fusion.INJECTIVE):
    """Tensors end to end along ``axis``.  A tuple of (..., n_i, ...) -> (..., sum of n_i, ...)."""

    axis: int = 0

    def infer(self, data: TupleType) -> TensorType:
        types = require_tuple(self, data)
        axis = normalize_axis(self, self.axis, types[0].rank)
        shape = _joined(self, types, axis)
        shape[axis] = sum(t.shape[axis] for t in types)
        return types[0].with_shape(tuple(shape))

    def reference(self, data: tuple[np.ndarray, ...]) -> np.ndarray:
        return np.concatenate(data, self.axis)

    def compute(self, data: tuple[Buffer, ...]) -> Stage:
        axis = self.axis % len(data[0].shape)
        shape = list(data[0].shape)
        shape[axis] = sum(b.shape[axis] for b in data)
        return compute(shape, lambda *i: _pick(data, i, axis), data[0].dtype)

    def starts(self, data: TupleType) -> tuple[int, ...] | None:
        return _one_after_another(require_tuple(self, data), self.axis)

    def relayout(self, site: Site) -> Placement | Declined:
        """All operands follow the first that has moved and whose blocks divide each of them."""
        carries, data = site.carries[0], site.call.args[0].type
        assert isinstance(data, TupleType) and isinstance(carries, tuple)
        leaders = [m for m in carries if isinstance(m, Move)]
        shapes = [field.extents for field in tensor_fields(data)]
        leader = next((m for m in leaders if all(m.divides(shape) for shape in shapes)), None)
        if leader is None:
            return Declined(f"blocks of {leaders[0].new} do not divide every operand")
        moved = self.with_attributes(axis=leader.index(self.axis))
        return Placement(((leader,) * len(shapes),), leader, calling(moved))


def _one_after_another(parts: Sequence[TensorType], axis: int) -> tuple[int, ...] | None:
    """The element of the whole that each part along an axis begins at, where it is one stretch of it."""
    whole = all(extent == 1 for extent in parts[0].shape[: axis % parts[0].rank])
    return tuple(accumulate((part.size for part in parts[:-1]), initial=0)) if whole else None


def _pick(parts: tuple[Buffer, ...], index: tuple[LoopExpr, ...], axis: int) -> LoopExpr | int:
    """The element of the part that ``index[axis]`` falls into."""
    ends = list(accumulate(part.shape[axis] for part in parts))
    filled = [(part, end) for part, end in zip(parts, ends, strict=True) if part.shape[axis] != 0]

    def within(n: int) -> LoopExpr:
        part, end = filled[n]
        return part[replaced(index, axis, index[axis] - (end - part.shape[axis]))]

    return _chosen(index[axis], [end for _, end in filled], within) if filled else 0


def _chosen(position: LoopExpr, ends: Sequence[int], part: Callable[[int], LoopExpr]) -> LoopExpr:
    """``part(n)`` of the first n whose end lies behind a position, found by halves."""

    def among(low: int, high: int) -> LoopExpr:
        if high - low == 1:
            return part(low)
        middle = (low + high + 1) // 2
        return select(position < ends[middle - 1], among(low, middle), among(middle, high))

    return among(0, len(ends))


class StackTensors(Op, name="stack", fusion=Fusion.INJECTIVE):
    """Tensors of one shape side by side along a new dimension, ``axis``.  A tuple of n (...) -> (..., n, ...)."""

    axis: int = 0

    def infer(self, data: TupleType) -> TensorType:
        types = require_tuple(self, data)
        axis = normalize_axis(self, self.axis, types[0].rank + 1)
        shape = _joined(self, types, -1)
        return types[0].with_shape((*shape[:axis], len(types), *shape[axis:]))

    def reference(self, data: tuple[np.ndarray, ...]) -> np.ndarray:
        return np.stack(data, self.axis)

    def compute(self, data: tuple[Buffer, ...]) -> Stage:
        inner = data[0].shape
        axis = self.axis % (len(inner) + 1)

        def element(*i: LoopExpr) -> LoopExpr:
            rest = (*i[:axis], *i[axis + 1 :])
            return _chosen(i[axis], range(1, len(data) + 1), lambda n: data[n][rest])

        return compute((*inner[:axis], len(data), *inner[axis:]), element)


class Split(Op, name="split", fusion=Fusion.INJECTIVE):
    """data cut along ``axis`` -> a tuple of tensors.  ``indices_or_sections``: an integer, so many
    equal ones; a tuple, the positions to cut at."""

    indices_or_sections: int | tuple[int, ...]
    axis: int = 0

    def _bounds(self, extent: Dim) -> list[Dim]:
        """The place where each part starts, and the end of the last."""
        given = self.indices_or_sections
        if not isinstance(given, int):
            return [0, *(smaller(max(p, 0), extent) for p in given), extent]
        if given < 1 or differ(extent % given, 0):
            raise self.reject(f"an extent of {extent} cannot be cut into {given} equal sections")
        return [n * (extent // given) for n in range(given + 1)]

    def infer(self, data: TensorType) -> TupleType:
        axis = normalize_axis(self, self.axis, data.rank)
        bounds = self._bounds(data.shape[axis])
        if any(always_less(b, a) for a, b in pairwise(bounds)):
            raise self.reject(f"positions must not decrease: {list(bounds[1:-1])}")
        sizes = [b - a for a, b in pairwise(bounds)]
        return TupleType(tuple(data.with_shape((*data.shape[:axis], n, *data.shape[axis + 1 :])) for n in sizes))

    def reference(self, data: np.ndarray) -> tuple[np.ndarray, ...]:
        given = self.indices_or_sections
        return tuple(np.split(data, given if isinstance(given, int) else [max(p, 0) for p in given], self.axis))

    def compute(self, data: Buffer) -> tuple[Stage, ...]:
        axis = self.axis % len(data.shape)
        parts = tensor_fields(self.infer(TensorType(data.shape, data.dtype)))
        ends = accumulate(part.extents[axis] for part in parts)
        return tuple(self._part(data, axis, end - p.extents[axis], end) for p, end in zip(parts, ends, strict=True))

    @staticmethod
    def _part(data: Buffer, axis: int, start: int, end: int) -> Stage:
        shape = (*data.shape[:axis], end - start, *data.shape[axis + 1 :])
        return compute(shape, lambda *i: data[replaced(i, axis, i[axis] + start)])

    def starts(self, data: TensorType) -> tuple[int, ...] | None:
        return _one_after_another(tensor_fields(self.infer(data)), self.axis)

    def relayout(self, site: Site) -> Placement | Declined:
        """Cuts along a split axis must fall between blocks."""
        move, results, given = site.data, tensor_fields(site.call.type), self.indices_or_sections
        size = move.blocks.get(move.axis(self.axis), 1)
        if size > 1 and any(field.extents[self.axis] % size != 0 for field in results):
            return Declined(f"a cut along {move.axis(self.axis)} falls inside a block of {size}")
        cuts = given if isinstance(given, int) else tuple(c // size for c in given)
        op = self.with_attributes(axis=move.index(self.axis), indices_or_sections=cuts)
        return Placement((move,), (move,) * len(results), calling(op))


def _length(cut: slice, extent: Dim) -> Dim:
    """How many elements of ``extent`` a slice keeps."""
    first, last, step = cut.start, MOST_BYTES if cut.stop is None else cut.stop, cut.step or 1
    if _is_known(cut, extent):
        return len(range(*cut.indices(int(extent))))
    if isinstance(first, int) and first < 0 < step and _stop(last, extent) == extent:  # the last ones
        return ceil_divide(smaller_here(extent, -first), step)
    if step > 0:  # what starts behind the end, or ends before the start, has a length below 0
        return larger_here(ceil_divide(_stop(last, extent) - _start(first, extent), step), 0)
    start = extent + first if first < 0 else extent - 1 if first >= MOST_BYTES else smaller(first, extent - 1)
    stop = last if last >= 0 else -1 if last <= -MOST_BYTES else larger(-1, extent + last)
    return larger_here(ceil_divide(start - stop, -step), 0)


def _is_known(cut: slice, extent: Dim) -> bool:
    return not any(isinstance(bound, SymbolicDim) for bound in (extent, cut.start, cut.stop))


def _start(bound: Dim, extent: Dim) -> Dim:
    return larger_here(extent + bound, 0) if isinstance(bound, int) and bound < 0 else bound


def _stop(bound: Dim, extent: Dim) -> Dim:
    if isinstance(bound, int) and bound < 0:
        return extent + bound
    return extent if isinstance(bound, int) and bound >= MOST_BYTES else smaller_here(extent, bound)


def _move(cut: slice, extent: Dim) -> tuple[Any, int]:
    """The first element that a slice keeps, and how far the next one is."""
    if _is_known(cut, extent):
        kept = range(*cut.indices(int(extent)))
        return kept.start, kept.step
    start, step = cut.start, cut.step or 1
    if step > 0:
        return _start(start, extent), step
    return extent + start if start < 0 else extent - 1 if start >= MOST_BYTES else smaller(start, extent - 1), step


def _end(kept: range, extent: int) -> int:
    return min(kept.start + len(kept) * kept.step, extent) if len(kept) else kept.start


class StridedSlice(Op, name="strided_slice", fusion=Fusion.INJECTIVE, affine=True):
    """``data[begin:end:strides]`` along ``axes`` (the first ones by default), with Python's rules for bounds.

    With ``slice_mode`` ``"size"``, ``end`` holds sizes (-1: to the end) and strides are 1, as in Relay.
    """

    begin: tuple[Dim, ...]
    end: tuple[Dim, ...]
    strides: tuple[int, ...] | None = None
    axes: tuple[int, ...] | None = None
    slice_mode: Literal["end", "size"] = "end"

    def _slices(self, rank: int) -> dict[int, slice]:
        """A Python slice per sliced axis."""
        axes = normalize_axes(self, range(len(self.begin)) if self.axes is None else self.axes, rank)
        strides = self.strides or (1,) * len(self.begin)
        if self.slice_mode == "size":
            ends = [None if n < 0 or b < 0 <= b + n else b + n for b, n in zip(self.begin, self.end, strict=True)]
            return {a: slice(b, e) for a, b, e in zip(axes, self.begin, ends, strict=True)}
        if not len(axes) == len(self.begin) == len(self.end) == len(strides):
            raise self.reject("begin, end, strides and axes differ in length")
        if 0 in strides:
            raise self.reject(f"a stride is 0: {list(strides)}")
        return {a: slice(b, e, s) for a, b, e, s in zip(axes, self.begin, self.end, strides, strict=True)}

    def infer(self, data: TensorType) -> TensorType:
        shape = list(data.shape)
        for axis, cut in self._slices(data.rank).items():
            shape[axis] = _length(cut, data.shape[axis])
        return data.with_shape(tuple(shape))

    def reference(self, data: np.ndarray) -> np.ndarray:
        slices = self._slices(data.ndim)
        return np.array(data[tuple(slices.get(d, slice(None)) for d in range(data.ndim))])

    def compute(self, data: Buffer) -> Stage:
        moves = {axis: _move(cut, data.shape[axis]) for axis, cut in self._slices(len(data.shape)).items()}

        def element(*i: LoopExpr) -> LoopExpr:
            steps = (moves.get(axis, (0, 1)) for axis in range(len(i)))
            return data[tuple(d * step + start for d, (start, step) in zip(i, steps, strict=True))]

        return compute(self.infer(buffer_type(data)).extents, element)

    def starts(self, data: TensorType) -> tuple[int, ...] | None:
        shape, kept = data.static_shape, self._kept(data.static_shape)
        cut = next((d for d, r in enumerate(kept) if len(r) != 1), len(kept) - 1)
        whole = kept[cut].step == 1 and all(
            r == range(n) for r, n in zip(kept[cut + 1 :], shape[cut + 1 :], strict=True)
        )
        return (sum(r.start * prod(shape[d + 1 :]) for d, r in enumerate(kept)),) if whole else None

    def relayout(self, site: Site) -> Placement | Declined:
        """Along a split axis, whole blocks, one after another."""
        move, shape = site.data, site.type(0).static_shape
        places, kept = range(len(shape)), self._kept(shape)
        sizes = [move.blocks.get(move.axis(d), 1) for d in places]
        for d, (r, size) in enumerate(zip(kept, sizes, strict=True)):
            if size > 1 and (r.step != 1 or r.start % size or len(r) % size):
                return Declined(f"a slice along {move.axis(d)} does not consist of whole blocks of {size}")
        if min(r.step for r in kept) < 0:
            return Declined("a slice runs backwards")
        op = self.with_attributes(
            begin=tuple(r.start // size for r, size in zip(kept, sizes, strict=True)),
            end=tuple(_end(r, n) // size for r, n, size in zip(kept, shape, sizes, strict=True)),
            strides=tuple(r.step for r in kept),
            axes=tuple(move.index(d) for d in places),
            slice_mode="end",
        )
        return Placement((move,), move, calling(op))

    def _kept(self, shape: tuple[int, ...]) -> list[range]:
        """The indices that are kept along each axis."""
        slices = self._slices(len(shape))
        return [range(*slices.get(d, slice(None)).indices(extent)) for d, extent in enumerate(shape)]
