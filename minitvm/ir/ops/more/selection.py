"""Operators whose results are as long as the values say: kernels write as much as there may be, and how much there is.

    %found = nonzero(%x)
    prefix(%found.0, %found.1, axis=1)

``prefix`` is a view of the first elements: the executor takes it, nothing is computed.
"""

import math

import numpy as np

from minitvm.ir.dims import Dim, anonymous, product
from minitvm.ir.loop import Alloc, Buffer, Const, If, LoopExpr, Stmt, const, loop, maximum, nest, seq, store
from minitvm.ir.op import Fusion, Op
from minitvm.ir.ops._shape import normalize_axis, require_kind, require_scalars, unflatten_index
from minitvm.ir.ops.sorting import Compare, by_value, counter, less, sort_positions, with_counters
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
        found = counter("found")

        def look(*i: LoopExpr) -> Stmt:
            put = [store(places, [Const(d), found[0]], position) for d, position in enumerate(i)]
            return If(x[i].astype("bool"), seq(*put, store(found, [0], found[0] + 1)))

        start = store(found, [0], Const(0))
        rest = zeros_behind(places, 1, found[0])
        return Alloc(found, seq(start, nest(x.shape, look), rest, store(count, [], found[0])))


def zeros_behind(buffer: Buffer, axis: int, count: LoopExpr) -> Stmt:
    """Zeros at the places from ``count`` on along an axis."""
    others = [n for d, n in enumerate(buffer.shape) if d != axis]

    def behind(k: LoopExpr) -> Stmt:
        def clear(*i: LoopExpr) -> Stmt:
            return store(buffer, (*i[:axis], count + k, *i[axis:]), const(0, buffer.dtype))

        return nest(others, clear)

    return loop(buffer.shape[axis] - count, behind, name="k")


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
        compare = self._compare(data)

        def gather(k: LoopExpr) -> Stmt:
            """The k-th in order opens a group or joins the last one."""
            p, last = order[k], seen[0] - 1
            differs = If(
                Const(0) < k, compare(order[maximum(k - 1, 0)], p, flag), store(flag, [0], const(True, "bool"))
            )
            opens = seq(store(first, [seen[0]], p), store(counts, [seen[0]], Const(1)), store(seen, [0], seen[0] + 1))
            joins = store(counts, [last], counts[last] + 1)
            return seq(differs, If(flag[0], opens, joins), store(group, [p], seen[0] - 1))

        groups = seq(store(seen, [0], Const(0)), loop(extent, gather, name="k"))
        parts = [sort_positions(order, compare), groups]
        if not self.sorted:
            parts.append(self._as_they_come(first, group, counts, order, seen))
        ends = [zeros_behind(buffer, 0, seen[0]) for buffer in (first, counts)]
        put = [self._put(data, values, first, seen), *ends, store(number, [], seen[0])]
        return with_counters([order, seen, flag], seq(*parts, *put))

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

        def compare(p: LoopExpr, q: LoopExpr, flag: Buffer) -> Stmt:
            def element(*i: LoopExpr) -> Stmt:
                a, b = (data[self._index(data, position, i)] for position in (p, q))
                decided = seq(store(flag, [0], less(a, b)), store(open_, [0], const(False, "bool")))
                return If(open_[0] & (less(a, b) | less(b, a)), decided)

            start = seq(store(flag, [0], const(False, "bool")), store(open_, [0], const(True, "bool")))
            return Alloc(open_, seq(start, nest(inner, element)))

        return compare

    def _as_they_come(self, first: Buffer, group: Buffer, counts: Buffer, names: Buffer, seen: Buffer) -> Stmt:
        """Groups get their numbers anew, by where they are first."""
        kept = Buffer("kept", counts.shape, "int64", "shared")
        fresh = counter("fresh")

        def rename(p: LoopExpr) -> Stmt:
            old = group[p]
            opens = seq(
                store(names, [old], fresh[0]), store(kept, [fresh[0]], counts[old]), store(fresh, [0], fresh[0] + 1)
            )
            return seq(If(first[old].equal(p), opens), store(group, [p], names[old]))

        def settle(p: LoopExpr) -> Stmt:
            opens = seq(store(first, [fresh[0]], p), store(fresh, [0], fresh[0] + 1))
            return If(group[p].equal(fresh[0]), opens)

        extent, start = first.shape[0], store(fresh, [0], Const(0))
        back = loop(seen[0], lambda k: store(counts, [k], kept[k]), name="k")
        steps = (start, loop(extent, rename, name="p"), start, loop(extent, settle, name="p"), back)
        return with_counters([kept, fresh], seq(*steps))

    def _put(self, data: Buffer, values: Buffer, first: Buffer, seen: Buffer) -> Stmt:
        axis, inner = 0 if self.axis is None else self.axis % len(data.shape), self._inner(data)

        def slice_(k: LoopExpr) -> Stmt:
            def element(*i: LoopExpr) -> Stmt:
                return store(values, (*i[:axis], k, *i[axis:]), data[self._index(data, first[k], i)])

            return nest(inner, element)

        return seq(loop(seen[0], slice_, name="k"), zeros_behind(values, axis, seen[0]))
