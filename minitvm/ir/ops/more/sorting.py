"""Operators that sort: sort, argsort, topk, and what is found in order (unique).

Their loops are a merge sort of positions, or a heap of the best so far where few are wanted.  Equal elements
keep their order; NaN counts as the largest.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from minitvm.ir.dims import Dim, falls_short
from minitvm.ir.loop import Binary, Buffer, Const, LoopExpr, LoopKind, Stmt, as_index, intrin, minimum, select
from minitvm.ir.loop.builder import LoopBuilder
from minitvm.ir.op import Fusion, Op
from minitvm.ir.ops._shape import Axiswise, Ranking, normalize_axis, unflatten_index
from minitvm.ir.types import DType, TensorType, TupleType, Type

Compare = Callable[[LoopBuilder, LoopExpr, LoopExpr, Buffer], None]
"""``compare(code, p, q, flag)`` stores whether what is at position ``p`` comes strictly before what is at ``q``."""


def less(a: LoopExpr, b: LoopExpr) -> LoopExpr:
    """``a < b`` in an order in which NaN is the largest."""
    if not a.dtype.startswith("float"):
        return a < b
    return (a < b) | (intrin("isnan", b) & intrin("not", intrin("isnan", a)))


def by_value(value: Callable[[LoopExpr], LoopExpr], ascending: bool, ties: bool = False) -> Compare:
    """Positions by the elements there; with ``ties`` by themselves where elements are equal."""

    def compare(code: LoopBuilder, p: LoopExpr, q: LoopExpr, flag: Buffer) -> None:
        a, b = (value(p), value(q)) if ascending else (value(q), value(p))
        equal = intrin("not", less(b, a)) & (p < q)
        code.store(flag, [0], less(a, b) | equal if ties else less(a, b))

    return compare


def counter(name: str) -> Buffer:
    """A number in a register."""
    return Buffer(name, (1,), "int64", "local")


_MOST_LEVELS = 40
"""Of merges, where only a run knows how many elements there are: more than memory holds."""


def sort_positions(code: LoopBuilder, order: Buffer, compare: Compare, count: LoopExpr | None = None) -> None:
    """Fills ``order`` (n,) with 0 to n-1 so that what is there is in order: runs of 1, 2, 4, ... are merged.

    With ``count`` only so many places of it; the others are written, too.
    """
    most = order.shape[0]
    extent: LoopExpr = as_index(most) if count is None else count
    spare, flag = Buffer("spare", order.shape, "int64", "shared"), Buffer("flag", (1,), "bool", "local")
    left, right = counter("left"), counter("right")
    levels = max(most - 1, 0).bit_length() if isinstance(most, int) else _MOST_LEVELS
    with code.memory(spare, flag, left, right):
        with code.loop(most, "k") as k:
            for buffer in [order] if count is None else [order, spare]:
                code.store(buffer, [k], k)
        with code.loop(levels, "level") as level:
            width = Binary("shl", Const(1), level)
            with code.when(None if count is None and isinstance(most, int) else width < extent):
                pairs = Binary("shr", extent - 1, level + 1) + 1
                with code.loop(pairs, "b") as b:
                    low = b * (width + width)
                    middle, high = minimum(low + width, extent), minimum(low + width + width, extent)
                    _merge(code, order, spare, (low, middle, high), (left, right, flag), compare, extent)


def _merge(
    code: LoopBuilder,
    order: Buffer,
    spare: Buffer,
    ends: tuple[LoopExpr, LoopExpr, LoopExpr],
    heads: tuple[Buffer, Buffer, Buffer],
    compare: Compare,
    extent: LoopExpr,
) -> None:
    """Two neighbouring runs become one, in ``spare``, and go back from there."""
    (low, middle, high), (left, right, flag) = ends, heads
    code.store(left, [0], low)
    code.store(right, [0], middle)
    with code.loop(high - low, "k") as k:
        i, j = left[0], right[0]
        p, q = order[minimum(i, extent - 1)], order[minimum(j, extent - 1)]
        compare(code, q, p, flag)
        with code.when((j < high) & (flag[0] | (middle <= i))):
            code.store(spare, [low + k], q)
            code.store(right, [0], j + 1)
        with code.otherwise():
            code.store(spare, [low + k], p)
            code.store(left, [0], i + 1)
    with code.loop(high - low, "k") as k:
        code.store(order, [low + k], spare[low + k])


@dataclass(frozen=True)
class _Heap:
    """The positions of the best so far in ``best`` (k,), the last of them on top."""

    code: LoopBuilder
    best: Buffer
    compare: Compare

    @cached_property
    def most(self) -> Any:
        known = self.best.shape[0]
        return known if isinstance(known, int) else as_index(known)

    @cached_property
    def registers(self) -> tuple[Buffer, Buffer, Buffer, Buffer]:
        """A comparison's result, the place that goes down, that below it, and what moves."""
        return Buffer("flag", (1,), "bool", "local"), counter("parent"), counter("child"), counter("hold")

    def fill(self, extent: int) -> None:
        """The first k of ``extent`` elements."""
        code, best, most, (flag, parent, *_) = self.code, self.best, self.most, self.registers
        short = extent - most if isinstance(most, int) else None
        others = select(Const(0) < most, as_index(extent) - most, Const(0)) if short is None else short
        with code.memory(*self.registers):
            with code.loop(most, "k") as k:
                code.store(best, [k], k)
            with code.loop(most // 2, "k") as k:
                code.store(parent, [0], most // 2 - 1 - k)
                self.sift()
            with code.loop(others, "p") as k:
                self.compare(code, k + most, best[0], flag)
                with code.when(flag[0]):
                    code.store(best, [0], k + most)
                    code.store(parent, [0], Const(0))
                    self.sift()

    def sift(self) -> None:
        """What is at ``parent`` goes down until nothing below it comes after it."""
        code, best, most, (flag, parent, child, hold) = self.code, self.best, self.most, self.registers
        with code.loop(most.bit_length() if isinstance(most, int) else _MOST_LEVELS, "level"):
            up, first = parent[0], parent[0] * 2 + 1
            with code.when(first < most):
                second = minimum(first + 1, most - 1)
                self.compare(code, best[minimum(first, most - 1)], best[second], flag)
                code.store(child, [0], select(flag[0], second, minimum(first, most - 1)))
                self.compare(code, best[up], best[child[0]], flag)
                with code.when(flag[0]):
                    code.store(hold, [0], best[up])
                    code.store(best, [up], best[child[0]])
                    code.store(best, [child[0]], hold[0])
                    code.store(parent, [0], child[0])
                with code.otherwise():
                    code.store(parent, [0], as_index(most))


def first_positions(
    code: LoopBuilder, order: Buffer, extent: int, value: Callable[[LoopExpr], LoopExpr], ascending: bool
) -> None:
    """Fills ``order`` (k,) with the positions of the first k of ``extent`` elements, in order."""
    most = order.shape[0]
    if most == extent:
        sort_positions(code, order, by_value(value, ascending))
        return
    best, compare = Buffer("best", (most,), "int64", "shared"), by_value(value, ascending, ties=True)

    def among_best(code: LoopBuilder, p: LoopExpr, q: LoopExpr, flag: Buffer) -> None:
        compare(code, best[p], best[q], flag)

    with code.memory(best):
        _Heap(code, best, compare).fill(extent)
        sort_positions(code, order, among_best)
        with code.loop(most, "k") as k:
            code.store(order, [k], best[order[k]])


@dataclass(frozen=True)
class Row:
    """A row along ``axis``, at ``index`` on the others; ``row[k]`` is the index of its element ``k``."""

    index: tuple[LoopExpr, ...]
    axis: int

    def __getitem__(self, k: LoopExpr) -> tuple[LoopExpr, ...]:
        return (*self.index[: self.axis], k, *self.index[self.axis :])


@contextmanager
def rows_along(code: LoopBuilder, shape: Sequence[int], axis: int) -> Iterator[Row]:
    """Every row along ``axis``, in parallel."""
    others = [n for d, n in enumerate(shape) if d != axis]
    with code.loop(math.prod(others), "row", LoopKind.PARALLEL) as number:
        yield Row(tuple(unflatten_index(number, others)), axis)


def _order(data: np.ndarray, axis: int, is_ascend: bool) -> np.ndarray:
    """Positions that sort data along ``axis``; equal elements stay in order, NaN counts as the largest."""
    if is_ascend:
        return np.argsort(data, axis, kind="stable")
    backwards = np.argsort(np.flip(data, axis), axis, kind="stable")
    return np.asarray(data.shape[axis] - 1 - np.flip(backwards, axis))


class Sorting(Axiswise, exact=True):
    """All elements along an axis in order, from the smallest, or, without ``is_ascend``, from the largest."""

    is_ascend: bool = True

    def result(self, data: Buffer, position: LoopExpr, at: tuple[LoopExpr, ...]) -> LoopExpr:
        """What stands for the element at a position, whose index is ``at``."""
        raise NotImplementedError

    def statements(self, data: Buffer, result: Buffer) -> Stmt:
        code, axis = LoopBuilder(), self.axis % len(data.shape)
        order = Buffer("order", (data.shape[axis],), "int64", "shared")
        with rows_along(code, data.shape, axis) as row, code.memory(order):
            sort_positions(code, order, by_value(lambda p: data[row[p]], self.is_ascend))
            with code.loop(order.shape[0], "k") as k:
                code.store(result, row[k], self.result(data, order[k], row[order[k]]))
        return code.stmt


class Sort(Sorting, name="sort", fusion=Fusion.OPAQUE):
    """data sorted along ``axis``."""

    def reference(self, data: np.ndarray) -> np.ndarray:
        return np.take_along_axis(data, _order(data, self.axis, self.is_ascend), self.axis)

    def result(self, data: Buffer, position: LoopExpr, at: tuple[LoopExpr, ...]) -> LoopExpr:
        return data[at]


class ArgSort(Sorting, Ranking, name="argsort", fusion=Fusion.OPAQUE):
    """The positions, of ``dtype``, that sort data along ``axis``; equal elements keep their order."""

    dtype: DType = "int32"

    def infer(self, data: TensorType) -> TensorType:
        return super().infer(data).with_dtype(self.dtype)

    def reference(self, data: np.ndarray) -> np.ndarray:
        return _order(data, self.axis, self.is_ascend).astype(self.dtype)

    def result(self, data: Buffer, position: LoopExpr, at: tuple[LoopExpr, ...]) -> LoopExpr:
        return position.astype(self.dtype)


class TopK(Op, name="topk", fusion=Fusion.OPAQUE, exact=True):
    """The ``k`` largest (``is_ascend``: smallest) along ``axis``, sorted, and their positions of ``dtype``.

    data: (..., n, ...) -> ((..., k, ...), (..., k, ...)), or one of them where ``ret_type`` is "values" or "indices".
    Of equal elements the first comes first.  k of 0 means all.
    """

    k: Dim = 1
    axis: int = -1
    ret_type: Literal["both", "values", "indices"] = "both"
    is_ascend: bool = False
    dtype: DType = "int32"

    def infer(self, data: TensorType) -> Type:
        axis = normalize_axis(self, self.axis, data.rank)
        extent = data.shape[axis]
        if self.k < 0 or falls_short(extent, self.k):
            raise self.reject(f"k is {self.k}, but dimension {axis} of {data} is {extent}")
        values = data.with_shape((*data.shape[:axis], extent if self.k == 0 else self.k, *data.shape[axis + 1 :]))
        found: Type = self._chosen(values, values.with_dtype(self.dtype), TupleType)
        return found

    def _chosen(self, values: Any, positions: Any, both: Any) -> Any:
        return {"both": both((values, positions)), "values": values, "indices": positions}[self.ret_type]

    def reference(self, data: np.ndarray) -> Any:
        axis = self.axis % data.ndim
        first = np.moveaxis(_order(data, axis, self.is_ascend), axis, -1)[..., : self.k or data.shape[axis]]
        positions = np.moveaxis(first, -1, axis)
        return self._chosen(np.take_along_axis(data, positions, axis), positions.astype(self.dtype), tuple)

    def statements(self, data: Buffer, *results: Buffer) -> Stmt:
        code, axis = LoopBuilder(), self.axis % len(data.shape)
        order = Buffer("order", (results[0].shape[axis],), "int64", "shared")
        with rows_along(code, data.shape, axis) as row, code.memory(order):
            first_positions(code, order, data.shape[axis], lambda p: data[row[p]], self.is_ascend)
            with code.loop(order.shape[0], "k") as k:
                found = {"values": data[row[order[k]]], "indices": order[k].astype(self.dtype)}
                chosen = found.values() if self.ret_type == "both" else [found[self.ret_type]]
                for result, value in zip(results, chosen, strict=True):
                    code.store(result, row[k], value)
        return code.stmt
