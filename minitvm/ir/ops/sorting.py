"""Operators that sort: sort, argsort, topk, and what is found in order (unique).

Their loops are a merge sort of positions, or a heap of the best so far where few are wanted.  Equal elements
keep their order; NaN counts as the largest.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from minitvm.ir.dims import Dim, falls_short
from minitvm.ir.loop import (
    Alloc,
    Binary,
    Buffer,
    Const,
    If,
    LoopExpr,
    LoopKind,
    Stmt,
    as_index,
    intrin,
    loop,
    minimum,
    select,
    seq,
    store,
)
from minitvm.ir.op import Fusion, Op
from minitvm.ir.ops._shape import Axiswise, normalize_axis, unflatten_index
from minitvm.ir.types import DType, TensorType, TupleType, Type

Compare = Callable[[LoopExpr, LoopExpr, Buffer], Stmt]
"""``compare(p, q, flag)`` stores whether what is at position ``p`` comes strictly before what is at ``q``."""


def less(a: LoopExpr, b: LoopExpr) -> LoopExpr:
    """``a < b`` in an order in which NaN is the largest."""
    if not a.dtype.startswith("float"):
        return a < b
    return (a < b) | (intrin("isnan", b) & intrin("not", intrin("isnan", a)))


def by_value(value: Callable[[LoopExpr], LoopExpr], ascending: bool, ties: bool = False) -> Compare:
    """Positions by the elements there; with ``ties`` by themselves where elements are equal."""

    def compare(p: LoopExpr, q: LoopExpr, flag: Buffer) -> Stmt:
        a, b = (value(p), value(q)) if ascending else (value(q), value(p))
        equal = intrin("not", less(b, a)) & (p < q)
        return store(flag, [0], less(a, b) | equal if ties else less(a, b))

    return compare


def counter(name: str) -> Buffer:
    """A number in a register."""
    return Buffer(name, (1,), "int64", "local")


def with_counters(buffers: Sequence[Buffer], body: Stmt) -> Stmt:
    for buffer in reversed(buffers):
        body = Alloc(buffer, body)
    return body


_MOST_LEVELS = 40
"""Of merges, where only a run knows how many elements there are: more than memory holds."""


def sort_positions(order: Buffer, compare: Compare, count: LoopExpr | None = None) -> Stmt:
    """Fills ``order`` (n,) with 0 to n-1 so that what is there is in order: runs of 1, 2, 4, ... are merged.

    With ``count`` only so many places of it; the others are written, too.
    """
    most = order.shape[0]
    extent: LoopExpr = as_index(most) if count is None else count
    spare, flag = Buffer("spare", order.shape, "int64", "shared"), Buffer("flag", (1,), "bool", "local")
    left, right = counter("left"), counter("right")

    def merge(low: LoopExpr, width: LoopExpr) -> Stmt:
        middle, high = minimum(low + width, extent), minimum(low + width + width, extent)

        def step(k: LoopExpr) -> Stmt:
            i, j = left[0], right[0]
            p, q = order[minimum(i, extent - 1)], order[minimum(j, extent - 1)]
            takes_right = (j < high) & (flag[0] | (middle <= i))
            moved = [store(right, [0], j + 1), store(spare, [low + k], q)]
            kept = [store(left, [0], i + 1), store(spare, [low + k], p)]
            return seq(compare(q, p, flag), If(takes_right, seq(*moved[::-1]), seq(*kept[::-1])))

        back = loop(high - low, lambda k: store(order, [low + k], spare[low + k]), name="k")
        return seq(store(left, [0], low), store(right, [0], middle), loop(high - low, step, name="k"), back)

    def double(level: LoopExpr) -> Stmt:
        width = Binary("shl", Const(1), level)
        pairs = Binary("shr", extent - 1, level + 1) + 1
        merges = loop(pairs, lambda b: merge(b * (width + width), width), name="b")
        return merges if count is None and isinstance(most, int) else If(width < extent, merges)

    filled = [order] if count is None else [order, spare]
    start = loop(most, lambda k: seq(*(store(buffer, [k], k) for buffer in filled)), name="k")
    levels = max(most - 1, 0).bit_length() if isinstance(most, int) else _MOST_LEVELS
    merges = loop(levels, double, name="level")
    return with_counters([spare, flag, left, right], seq(start, merges))


def best_positions(best: Buffer, extent: int, compare: Compare) -> Stmt:
    """Fills ``best`` (k,) with the positions of the first k of ``extent`` elements: a heap, the last of them on top."""
    known = best.shape[0]
    most: Any = known if isinstance(known, int) else as_index(known)
    flag, parent = Buffer("flag", (1,), "bool", "local"), counter("parent")

    def sift() -> Stmt:
        """What is at ``parent`` goes down until nothing below it comes after it."""

        def down(level: LoopExpr) -> Stmt:
            up, first = parent[0], parent[0] * 2 + 1
            second = minimum(first + 1, most - 1)
            a, b = best[minimum(first, most - 1)], best[second]
            below = select(flag[0], second, minimum(first, most - 1))
            swap = seq(
                store(hold, [0], best[up]),
                store(best, [up], best[child[0]]),
                store(best, [child[0]], hold[0]),
                store(parent, [0], child[0]),
            )
            lower = seq(compare(best[up], best[child[0]], flag), If(flag[0], swap, store(parent, [0], as_index(most))))
            return If(first < most, seq(compare(a, b, flag), store(child, [0], below), lower))

        return loop(known.bit_length() if isinstance(known, int) else _MOST_LEVELS, down, name="level")

    child, hold = counter("child"), counter("hold")
    fill = loop(most, lambda k: store(best, [k], k), name="k")
    heap = loop(most // 2, lambda k: seq(store(parent, [0], most // 2 - 1 - k), sift()), name="k")

    def candidate(k: LoopExpr) -> Stmt:
        enter = seq(store(best, [0], k + most), store(parent, [0], Const(0)), sift())
        return seq(compare(k + most, best[0], flag), If(flag[0], enter))

    others = extent - known if isinstance(known, int) else select(Const(0) < most, as_index(extent) - most, Const(0))
    rest = loop(others, candidate, name="p")
    return with_counters([flag, parent, child, hold], seq(fill, heap, rest))


def first_positions(order: Buffer, extent: int, value: Callable[[LoopExpr], LoopExpr], ascending: bool) -> Stmt:
    """Fills ``order`` (k,) with the positions of the first k of ``extent`` elements, in order."""
    most = order.shape[0]
    if most == extent:
        return sort_positions(order, by_value(value, ascending))
    best, compare = Buffer("best", (most,), "int64", "shared"), by_value(value, ascending, ties=True)

    def among_best(p: LoopExpr, q: LoopExpr, flag: Buffer) -> Stmt:
        return compare(best[p], best[q], flag)

    named = loop(most, lambda k: store(order, [k], best[order[k]]), name="k")
    return Alloc(best, seq(best_positions(best, extent, compare), sort_positions(order, among_best), named))


def rows_along(
    shape: Sequence[int], axis: int, body: Callable[[Callable[[LoopExpr], tuple[LoopExpr, ...]]], Stmt]
) -> Stmt:
    """``body(at)`` for every row along ``axis``, in parallel; ``at(k)`` is the index of the row's element ``k``."""
    others = [n for d, n in enumerate(shape) if d != axis]

    def row(number: LoopExpr) -> Stmt:
        index = unflatten_index(number, others)
        return body(lambda k: (*index[:axis], k, *index[axis:]))

    return loop(math.prod(others), row, LoopKind.PARALLEL, name="row")


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
        axis = self.axis % len(data.shape)

        def row(at: Callable[[LoopExpr], tuple[LoopExpr, ...]]) -> Stmt:
            order = Buffer("order", (data.shape[axis],), "int64", "shared")
            sorting = sort_positions(order, by_value(lambda p: data[at(p)], self.is_ascend))

            def put(k: LoopExpr) -> Stmt:
                return store(result, at(k), self.result(data, order[k], at(order[k])))

            return Alloc(order, seq(sorting, loop(order.shape[0], put, name="k")))

        return rows_along(data.shape, axis, row)


class Sort(Sorting, name="sort", fusion=Fusion.OPAQUE):
    """data sorted along ``axis``."""

    def reference(self, data: np.ndarray) -> np.ndarray:
        return np.take_along_axis(data, _order(data, self.axis, self.is_ascend), self.axis)

    def result(self, data: Buffer, position: LoopExpr, at: tuple[LoopExpr, ...]) -> LoopExpr:
        return data[at]


class ArgSort(Sorting, name="argsort", fusion=Fusion.OPAQUE):
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
        axis = self.axis % len(data.shape)

        def row(at: Callable[[LoopExpr], tuple[LoopExpr, ...]]) -> Stmt:
            order = Buffer("order", (results[0].shape[axis],), "int64", "shared")
            sorting = first_positions(order, data.shape[axis], lambda p: data[at(p)], self.is_ascend)

            def put(k: LoopExpr) -> Stmt:
                found = {"values": data[at(order[k])], "indices": order[k].astype(self.dtype)}
                chosen = found.values() if self.ret_type == "both" else [found[self.ret_type]]
                return seq(*(store(result, at(k), value) for result, value in zip(results, chosen, strict=True)))

            return Alloc(order, seq(sorting, loop(order.shape[0], put, name="k")))

        return rows_along(data.shape, axis, row)
