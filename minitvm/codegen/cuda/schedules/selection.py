"""What is found in order, as many as the values say: places of what is not zero, different slices.

What is found is counted up by a running sum (``scans.py``), which says where each goes; slices are sorted before
(``sorting.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from itertools import product

from minitvm.codegen.cuda.machine import GpuModel
from minitvm.codegen.cuda.schedules.elements import in_threads
from minitvm.codegen.cuda.schedules.scans import Put, Scan
from minitvm.codegen.cuda.schedules.sorting import OfPositions, Rows
from minitvm.codegen.loops import unflatten, with_memory
from minitvm.codegen.problem import TEMPLATES, Choice
from minitvm.ir.decision import Declined
from minitvm.ir.loop import Barrier, Buffer, Const, If, LoopExpr, Select, Stmt, Store, const, maximum, minimum, seq
from minitvm.ir.op import identity_of
from minitvm.ir.ops.more.selection import NonZero, Unique
from minitvm.ir.ops.more.sorting import less

_FEW = 8
"""Elements of a slice, each of which takes sorting all of them once."""
_0 = Const(0)


def numbers(name: str, count: int) -> Buffer:
    return Buffer(name, (count,), "int32")


def number(value: LoopExpr | int) -> LoopExpr:
    """Casts a value to a number of 32 bits."""
    return const(value, "int32") if isinstance(value, int) else value.astype("int32")


def place(value: LoopExpr) -> LoopExpr:
    """Casts a value to an index."""
    return value.astype("int64")


class Selecting(OfPositions):
    """Results as long as the values say."""

    def numbered(self, count: int, found: Callable[[LoopExpr], LoopExpr], total: Buffer, put: Put) -> Stmt:
        """``put`` for all, with how many are ``found`` before, and including, each; ``total`` will be how many are."""
        assert isinstance(self.machine, GpuModel)

        def with_total(row: LoopExpr, k: LoopExpr, before: LoopExpr, upto: LoopExpr) -> Stmt:
            return seq(put(row, k, before, upto), If(k.equal(count - 1), Store(total, (_0,), upto)))

        scan = Scan("sum", "int32", 1, count, lambda _, k: found(k), with_total)
        return scan.loops(self.machine)


@TEMPLATES.register("cuda", NonZero)
class GpuNonZero(Selecting):
    """Any dtype and shape."""

    def loops(self, choice: Choice) -> Stmt:
        (x,), (places, count), total = self.problem.inputs, self.problem.outputs, numbers("total", 1)

        def is_found(k: LoopExpr) -> LoopExpr:
            return Select(x[unflatten(k, x.shape)].astype("bool"), number(1), number(0))

        def put(_: LoopExpr, k: LoopExpr, before: LoopExpr, upto: LoopExpr) -> Stmt:
            index = unflatten(k, x.shape)
            return If(before < upto, seq(*(Store(places, (Const(d), place(before)), i) for d, i in enumerate(index))))

        def rest(k: LoopExpr) -> Stmt:
            zeros = seq(*(Store(places, (Const(d), k), _0) for d in range(len(x.shape))))
            return seq(If(place(total[0]) <= k, zeros), If(k.equal(0), Store(count, (), place(total[0]))))

        found = self.numbered(x.size, is_found, total, put)
        return with_memory([total], seq(found, Barrier(), in_threads(x.size, rest)))


@TEMPLATES.register("cuda", Unique)
class GpuUnique(Selecting):
    """Elements, or slices of a few.  Slices are numbered in order; without ``sorted`` by where they come first."""

    op: Unique

    @property
    def extent(self) -> int:
        """The number of slices."""
        return self.problem.outputs[1].shape[0]

    @property
    def data(self) -> Buffer:
        return self.problem.inputs[0]

    def refusal(self) -> Declined | None:
        each = self.data.size // max(1, self.extent)
        return super().refusal() or (Declined(f"slices of {each} elements") if each > _FEW else None)

    def elements(self, p: LoopExpr) -> list[LoopExpr]:
        """The elements of slice ``p``."""
        inner = product(*map(range, self.op._inner(self.data)))
        return [self.data[self.op._index(self.data, p, tuple(map(Const, index)))] for index in inner]

    @cached_property
    def order(self) -> Buffer:
        """Slices in order."""
        return numbers("order", self.extent)

    @cached_property
    def starts(self) -> Buffer:
        """The position in order at which each segment of equal slices begins."""
        return numbers("starts", self.extent)

    @cached_property
    def segment(self) -> Buffer:
        """The segment of each slice."""
        return numbers("segment", self.extent)

    @cached_property
    def total(self) -> Buffer:
        """The number of segments."""
        return numbers("total", 1)

    def loops(self, choice: Choice) -> Stmt:
        memory = [self.order, self.starts, self.segment, self.total]
        steps = [self._sorted(), Barrier(), self._segments(), Barrier()]
        if self.op.sorted:
            return with_memory(memory, seq(*steps, self._results(lambda k: k, lambda s: s)))
        names, which, same = (numbers(n, m) for n, m in (("names", self.extent), ("which", self.extent), ("same", 1)))
        renamed = [self._renamed(names, which, same), Barrier()]
        results = self._results(lambda k: place(which[k]), lambda s: names[place(s)])
        return with_memory([*memory, names, which, same], seq(*steps, *renamed, results))

    def _sorted(self) -> Stmt:
        """``order``: sorted by the slices' last elements first, as equal ones keep their order."""
        count = len(self.elements(_0))
        memory = [numbers(f"order{c}", self.extent) for c in range(1, count)]
        buffers = [self.order, *memory]

        def by_element(c: int) -> Stmt:
            def position(_: LoopExpr, k: LoopExpr) -> LoopExpr:
                return buffers[c + 1][k] if c + 1 < count else number(k)

            def key(row: LoopExpr, k: LoopExpr) -> LoopExpr:
                return self.elements(place(position(row, k)))[c]

            rows = Rows(1, self.extent, self.data.dtype, True, key, position)
            return rows.sorted(lambda row, k, _, position: Store(buffers[c], (k,), position))

        passes = [by_element(c) for c in reversed(range(count))]
        return with_memory(memory, seq(passes[0], *(part for step in passes[1:] for part in (Barrier(), step))))

    def _segments(self) -> Stmt:
        """``starts``, ``segment``, ``total``."""

        def opens(k: LoopExpr) -> LoopExpr:
            """Whether the slice at a place in order differs from the one before."""
            sides = (self.elements(place(self.order[p])) for p in (maximum(k - 1, 0), k))
            differs = k.equal(0)
            for a, b in zip(*sides, strict=True):
                differs = differs | less(a, b) | less(b, a)
            return Select(differs, number(1), number(0))

        def put(_: LoopExpr, k: LoopExpr, before: LoopExpr, upto: LoopExpr) -> Stmt:
            at = Select(before < upto, place(before), self._behind(k, upto))
            return seq(Store(self.starts, (at,), number(k)), Store(self.segment, (place(self.order[k]),), upto - 1))

        return self.numbered(self.extent, opens, self.total, put)

    def _renamed(self, names: Buffer, which: Buffer, same: Buffer) -> Stmt:
        """Numbers of segments in the order in which they come first, and the other way round."""

        def is_first(p: LoopExpr) -> LoopExpr:
            return Select(self.leader(place(self.segment[p])).equal(p), number(1), number(0))

        def rename(_: LoopExpr, p: LoopExpr, before: LoopExpr, upto: LoopExpr) -> Stmt:
            old, new, behind = self.segment[p], before, self._behind(p, upto)
            by_old, by_new = (Select(before < upto, place(n), behind) for n in (old, new))
            return seq(Store(names, (by_old,), new), Store(which, (by_new,), old))

        return self.numbered(self.extent, is_first, same, rename)

    def leader(self, s: LoopExpr) -> LoopExpr:
        """The first slice of a segment."""
        return place(self.order[place(self.starts[s])])

    def _behind(self, k: LoopExpr, upto: LoopExpr) -> LoopExpr:
        """A place for what is not found, from the last one downwards: all memory is written."""
        return self.extent - 1 - (k - place(upto))

    def _results(self, segment_of: Callable[[LoopExpr], LoopExpr], name_of: Callable[[LoopExpr], LoopExpr]) -> Stmt:
        """``segment_of(k)``: the one that is the k-th of the results; ``name_of``: the other way round."""
        values, first, group, counts, found = self.problem.outputs
        axis = 0 if self.op.axis is None else self.op.axis % len(self.data.shape)
        how_many = place(self.total[0])

        def slice_(k: LoopExpr) -> Stmt:
            s = segment_of(k)
            end = Select(s + 1 < how_many, place(self.starts[minimum(s + 1, self.extent - 1)]), Const(self.extent))
            length = end - place(self.starts[s])
            known = seq(Store(first, (k,), self.leader(s)), Store(counts, (k,), length))
            behind = seq(Store(first, (k,), _0), Store(counts, (k,), _0))
            named = Store(group, (k,), place(name_of(self.segment[k])))
            return seq(If(k < how_many, known, behind), named, If(k.equal(0), Store(found, (), how_many)))

        def value(position: LoopExpr) -> Stmt:
            index = unflatten(position, values.shape)
            k, inner = index[axis], (*index[:axis], *index[axis + 1 :])
            kept = self.data[self.op._index(self.data, self.leader(segment_of(k)), inner)]
            zero = Store(values, index, identity_of("sum", values.dtype))
            return If(k < how_many, Store(values, index, kept), zero)

        return seq(in_threads(self.extent, slice_), in_threads(values.size, value))
