"""Operators whose results are as long as the values say: kernels write as much as there may be, and how much there is.

    %found = nonzero(%x)
    prefix(%found.0, %found.1, axis=1)

``prefix`` is a view of the first elements: the executor takes it, nothing is computed.
"""

import math

import numpy as np

from minitvm.ir.dims import Dim, anonymous, product
from minitvm.ir.loop import Buffer, Const, LoopExpr, Stmt, const, maximum, store
from minitvm.ir.loop.builder import LoopBuilder
from minitvm.ir.op import Fusion, Op
from minitvm.ir.ops._shape import normalize_axis, require_kind, require_scalars, unflatten_index
from minitvm.ir.ops.more.sorting import Compare, by_value, counter, less, sort_positions
from minitvm.ir.types import TensorType, TupleType


class Prefix(Op, name="prefix", fusion=Fusion.OPAQUE, cuts=True):
    """The first ``count`` places along ``axis``.  value: (..., n, ...), count: () int64 -> (..., count, ...).

    ``extent`` is the dimension that it makes, where it has a name.
    """

    axis: int = 0
    extent: Dim | None = None

    def infer(self, value: TensorType, count: TensorType) -> TensorType:
        axis = normalize_axis(self, self.axis, value.rank)
        require_kind(self, count, "i", "count")
        require_scalars(self, count=count)
        extent = anonymous() if self.extent is None else self.extent
        return value.with_shape((*value.shape[:axis], extent, *value.shape[axis + 1 :]))

    def reference(self, value: np.ndarray, count: np.ndarray) -> np.ndarray:
        return value[(slice(None),) * (self.axis % value.ndim) + (slice(int(count)),)]


class NonZero(Op, name="nonzero", fusion=Fusion.OPAQUE):
    """Positions of the elements that are not zero, in order, and how many there are.

    x: (d...) -> (rank, number of elements) int64, zeros behind the last; () int64.
    """

    def infer(self, x: TensorType) -> TupleType:
        return TupleType((TensorType((x.rank, product(x.shape)), "int64"), TensorType((), "int64")))

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = np.argwhere(x).T
        places = np.zeros((x.ndim, x.size), "int64")
        places[:, : found.shape[1]] = found
        return places, np.asarray(found.shape[1], "int64")

    def statements(self, x: Buffer, places: Buffer, count: Buffer) -> Stmt:
        found, code = counter("found"), LoopBuilder()
        with code.memory(found):
            code.store(found, [0], Const(0))
            with code.nest(x.shape) as i, code.when(x[i].astype("bool")):
                for d, position in enumerate(i):
                    code.store(places, [d, found[0]], position)
                code.store(found, [0], found[0] + 1)
            zeros_behind(code, places, 1, found[0])
            code.store(count, [], found[0])
        return code.stmt


def zeros_behind(code: LoopBuilder, buffer: Buffer, axis: int, count: LoopExpr) -> None:
    """Zeros at the places from ``count`` on along an axis."""
    others = [n for d, n in enumerate(buffer.shape) if d != axis]
    with code.loop(buffer.shape[axis] - count, "k") as k, code.nest(others) as i:
        code.store(buffer, (*i[:axis], count + k, *i[axis:]), const(0, buffer.dtype))


class Unique(Op, name="unique", fusion=Fusion.OPAQUE):
    """The different slices along ``axis`` (elements, where it is not given), ``sorted`` or as they come.

    data: (..., n, ...) -> the slices, zeros behind the last, (..., n, ...); (n,) int64 each where a
    slice is first, which one each slice of data is, how often it is there; () int64 how many there are.
    NaN is equal to itself, and the largest.
    """

    axis: int | None = None
    sorted: bool = True

    def infer(self, data: TensorType) -> TupleType:
        shape = data.shape
        extent = product(shape) if self.axis is None else shape[normalize_axis(self, self.axis, data.rank)]
        values = data.with_shape((extent,)) if self.axis is None else data
        places = TensorType((extent,), "int64")
        return TupleType((values, places, places, places, TensorType((), "int64")))

    def reference(self, data: np.ndarray) -> tuple[np.ndarray, ...]:
        axis = 0 if self.axis is None else self.axis % data.ndim
        moved = data.reshape(-1) if self.axis is None else np.moveaxis(data, axis, 0)
        extent, width = len(moved), math.prod(moved.shape[1:])
        columns = moved.reshape(extent, width).T
        keys = np.array([np.unique(c, return_inverse=True)[1].reshape(-1) for c in columns]).reshape(width, extent)
        order = np.lexsort(keys[::-1]) if width else np.arange(extent)
        starts = np.ones(extent, bool)
        starts[1:] = (keys[:, order[1:]] != keys[:, order[:-1]]).any(0)
        group = np.empty(extent, "int64")
        group[order] = np.cumsum(starts) - 1
        number = int(starts.sum())
        first, counts = order[starts], np.bincount(group, minlength=number)
        if not self.sorted:
            by_place = np.argsort(first)
            first, counts = first[by_place], counts[by_place]
            group = np.argsort(by_place)[group]
        values = np.zeros_like(moved)
        values[:number] = moved[first]
        padded = [np.concatenate([a, np.zeros(extent - number, "int64")]).astype("int64") for a in (first, counts)]
        values = np.ascontiguousarray(np.moveaxis(values, 0, axis)) if self.axis is not None else values
        return values, padded[0], group, padded[1], np.asarray(number, "int64")

    def statements(
        self, data: Buffer, values: Buffer, first: Buffer, group: Buffer, counts: Buffer, number: Buffer
    ) -> Stmt:
        extent = first.shape[0]
        if extent == 0:
            return store(number, [], Const(0))
        order = Buffer("order", (extent,), "int64", "shared")
        seen, flag = counter("seen"), Buffer("flag", (1,), "bool", "local")
        compare, code = self._compare(data), LoopBuilder()
        with code.memory(order, seen, flag):
            sort_positions(code, order, compare)
            code.store(seen, [0], Const(0))
            with code.loop(extent, "k") as k:  # the k-th in order opens a group or joins the last one
                p, last = order[k], seen[0] - 1
                with code.when(Const(0) < k):
                    compare(code, order[maximum(k - 1, 0)], p, flag)
                with code.otherwise():
                    code.store(flag, [0], const(True, "bool"))
                with code.when(flag[0]):
                    code.store(first, [seen[0]], p)
                    code.store(counts, [seen[0]], Const(1))
                    code.store(seen, [0], seen[0] + 1)
                with code.otherwise():
                    code.store(counts, [last], counts[last] + 1)
                code.store(group, [p], seen[0] - 1)
            if not self.sorted:
                self._as_they_come(code, first, group, counts, order, seen)
            self._put(code, data, values, first, seen)
            for buffer in (first, counts):
                zeros_behind(code, buffer, 0, seen[0])
            code.store(number, [], seen[0])
        return code.stmt

    def _index(self, data: Buffer, p: LoopExpr, inner: tuple[LoopExpr, ...]) -> tuple[LoopExpr, ...]:
        """Of an element of slice ``p``."""
        if self.axis is None:
            return tuple(unflatten_index(p, data.shape))
        axis = self.axis % len(data.shape)
        return (*inner[:axis], p, *inner[axis:])

    def _inner(self, data: Buffer) -> list[int]:
        if self.axis is None:
            return []
        return [n for d, n in enumerate(data.shape) if d != self.axis % len(data.shape)]

    def _compare(self, data: Buffer) -> Compare:
        inner = self._inner(data)
        if self.axis is None:
            return by_value(lambda p: data[self._index(data, p, ())], True)
        open_ = Buffer("open", (1,), "bool", "local")

        def compare(code: LoopBuilder, p: LoopExpr, q: LoopExpr, flag: Buffer) -> None:
            with code.memory(open_):
                code.store(flag, [0], const(False, "bool"))
                code.store(open_, [0], const(True, "bool"))
                with code.nest(inner) as i:
                    a, b = (data[self._index(data, position, i)] for position in (p, q))
                    with code.when(open_[0] & (less(a, b) | less(b, a))):
                        code.store(flag, [0], less(a, b))
                        code.store(open_, [0], const(False, "bool"))

        return compare

    def _as_they_come(
        self, code: LoopBuilder, first: Buffer, group: Buffer, counts: Buffer, names: Buffer, seen: Buffer
    ) -> None:
        """Groups get their numbers anew, by where they are first."""
        kept, fresh, extent = Buffer("kept", counts.shape, "int64", "shared"), counter("fresh"), first.shape[0]
        with code.memory(kept, fresh):
            code.store(fresh, [0], Const(0))
            with code.loop(extent, "p") as p:
                old = group[p]
                with code.when(first[old].equal(p)):
                    code.store(names, [old], fresh[0])
                    code.store(kept, [fresh[0]], counts[old])
                    code.store(fresh, [0], fresh[0] + 1)
                code.store(group, [p], names[old])
            code.store(fresh, [0], Const(0))
            with code.loop(extent, "p") as p, code.when(group[p].equal(fresh[0])):
                code.store(first, [fresh[0]], p)
                code.store(fresh, [0], fresh[0] + 1)
            with code.loop(seen[0], "k") as k:
                code.store(counts, [k], kept[k])

    def _put(self, code: LoopBuilder, data: Buffer, values: Buffer, first: Buffer, seen: Buffer) -> None:
        axis, inner = 0 if self.axis is None else self.axis % len(data.shape), self._inner(data)
        with code.loop(seen[0], "k") as k, code.nest(inner) as i:
            code.store(values, (*i[:axis], k, *i[axis:]), data[self._index(data, first[k], i)])
        zeros_behind(code, values, axis, seen[0])
