"""Scatters without atomics: one thread for each place that is written, which takes its updates in their order.

So the last one wins, and sums are numpy's to the bit.  Few updates look at each other, many are sorted by place.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from minitvm.codegen.cuda.machine import GpuModel
from minitvm.codegen.cuda.schedules.elements import elements, in_threads
from minitvm.codegen.cuda.schedules.sorting import OfPositions, Rows
from minitvm.codegen.loops import unflatten, with_memory
from minitvm.codegen.problem import TEMPLATES, Choice
from minitvm.codegen.stages import Output
from minitvm.ir.loop import (
    Barrier,
    Binary,
    Buffer,
    Const,
    If,
    Load,
    LoopExpr,
    LoopVar,
    Stmt,
    Store,
    as_index,
    const,
    intrin,
    loop,
    maximum,
    minimum,
    seq,
)
from minitvm.ir.ops.indexing import wrapped
from minitvm.ir.ops.more.scatter import ScatterElements, ScatterNd, merged

_FEW = 64
"""Updates of a row that look at all others of it."""
_0 = Const(0)


@dataclass(frozen=True)
class Updates:
    """``rows`` of ``count`` updates, which meet within a row only; each is of ``inner`` elements."""

    rows: int
    count: int
    inner: int


class GpuScatter(OfPositions):
    """Any dtype, shape and reduction."""

    @property
    @abstractmethod
    def reduction(self) -> str:
        """``update``, ``add`` and so on."""

    @property
    @abstractmethod
    def updates(self) -> Updates:
        """The updates, and how many there are."""

    @abstractmethod
    def target(self, row: LoopExpr, k: LoopExpr) -> LoopExpr:
        """The position, of 32 bits, that an update of a row goes to; each place in the row's results has its own."""

    @abstractmethod
    def update(self, row: LoopExpr, k: LoopExpr, e: LoopExpr) -> LoopExpr:
        """An element of the k-th update of a row."""

    @abstractmethod
    def place(self, row: LoopExpr, target: LoopExpr, e: LoopExpr) -> tuple[LoopExpr, ...]:
        """The index of a result."""

    def loops(self, choice: Choice) -> Stmt:
        assert isinstance(self.machine, GpuModel)
        data, out, found = self.problem.inputs[0], self.problem.output, self.updates
        axes = tuple(LoopVar("i") for _ in out.shape)
        copy = elements([Output(out, axes, data[axes])], self.machine)
        if not found.rows * found.count * found.inner:
            return copy
        if found.count <= _FEW:
            return seq(copy, Barrier(), self._each(self._looking))
        targets, order = (Buffer(name, (found.rows, found.count), "int32") for name in ("targets", "order"))

        def put(row: LoopExpr, k: LoopExpr, target: LoopExpr, position: LoopExpr) -> Stmt:
            return seq(Store(targets, (row, k), target), Store(order, (row, k), position))

        sorting = Rows(found.rows, found.count, "int32", True, self.target).sorted(put)
        sorted_ = self._each(lambda row, s, e: self._sorted(row, s, e, targets, order))
        return with_memory([targets, order], seq(copy, sorting, Barrier(), sorted_))

    def _each(self, body: Callable[[LoopExpr, LoopExpr, LoopExpr], Stmt]) -> Stmt:
        """``body(row, update, element)`` by a thread each."""
        shape = (self.updates.rows, self.updates.count, self.updates.inner)
        return in_threads(math.prod(shape), lambda number: body(*unflatten(number, shape)))

    def _store(self, row: LoopExpr, target: LoopExpr, e: LoopExpr, value: LoopExpr) -> Stmt:
        return Store(self.problem.output, self.place(row, target.astype("int64"), e), value)

    def _looking(self, row: LoopExpr, k: LoopExpr, e: LoopExpr) -> Stmt:
        """The last update that goes to a place stores it; of a reduction the first one, which takes the others, too."""
        mine, hidden = Buffer("mine", (1,), "int32", "local"), Buffer("hidden", (1,), "bool", "local")
        last = self.reduction == "update"

        def meets(j: LoopExpr, stmt: Stmt) -> Stmt:
            return If(self.target(row, j).equal(mine[0]), stmt)

        hide = Store(hidden, (_0,), const(True, "bool"))
        others = self.updates.count - 1 - k if last else k
        look = loop(others, lambda j: meets(k + 1 + j if last else j, hide), name="j")
        start = seq(Store(mine, (_0,), self.target(row, k)), Store(hidden, (_0,), const(False, "bool")))
        if last:
            stored = self._store(row, mine[0], e, self.update(row, k, e))
        else:
            later = self.updates.count - 1 - k
            stored = self._reduced(row, mine[0], e, k, later, lambda j: k + 1 + j, meets)
        return with_memory([mine, hidden], seq(start, look, If(intrin("not", hidden[0]), stored)))

    def _sorted(self, row: LoopExpr, s: LoopExpr, e: LoopExpr, targets: Buffer, order: Buffer) -> Stmt:
        """The same of neighbours among the sorted ones."""
        count, mine, end = self.updates.count, targets[row, s], Buffer("end", (1,), "int64", "local")

        def update(at: LoopExpr) -> LoopExpr:
            return order[row, at].astype("int64")

        if self.reduction == "update":
            is_last = s.equal(count - 1) | targets[row, minimum(s + 1, count - 1)].not_equal(mine)
            return If(is_last, self._store(row, mine, e, self.update(row, update(s), e)))

        def step(i: LoopExpr) -> Stmt:
            """Of as many as there are behind it, the highest bit first."""
            further = end[0] + Binary("shr", Const(1 << count.bit_length() - 1), i)
            same = targets[row, further].equal(mine)
            return If(further < count, If(same, Store(end, (_0,), further)))

        search = seq(Store(end, (_0,), s), loop(count.bit_length(), step, name="step"))
        taken = self._reduced(row, mine, e, update(s), end[0] - s, lambda j: update(s + 1 + j))
        is_first = s.equal(0) | targets[row, maximum(s - 1, 0)].not_equal(mine)
        return If(is_first, with_memory([end], seq(search, taken)))

    def _reduced(
        self,
        row: LoopExpr,
        target: LoopExpr,
        e: LoopExpr,
        first: LoopExpr,
        count: LoopExpr,
        other: Callable[[LoopExpr], LoopExpr],
        where: Callable[[LoopExpr, Stmt], Stmt] = lambda _, stmt: stmt,
    ) -> Stmt:
        """An element of the data with its ``first`` update, and ``count`` others, in order."""
        data = self.problem.inputs[0]
        acc = Buffer("acc", (1,), data.dtype, "local")

        def take(k: LoopExpr) -> Stmt:
            return Store(acc, (_0,), merged(self.reduction, acc[0], self.update(row, k, e)))

        old = Load(data, self.place(row, target.astype("int64"), e))
        more = loop(count, lambda j: where(other(j), take(other(j))), name="j")
        steps = seq(Store(acc, (_0,), old), take(first), more, self._store(row, target, e, acc[0]))
        return with_memory([acc], steps)


@TEMPLATES.register("cuda", ScatterElements)
class GpuScatterElements(GpuScatter):
    """Updates meet along the axis only."""

    op: ScatterElements

    @property
    def reduction(self) -> str:
        return self.op.reduction

    @property
    def axis(self) -> int:
        return self.op.axis % len(self.problem.output.shape)

    @property
    def updates(self) -> Updates:
        indices = self.problem.inputs[1]
        count = indices.shape[self.axis]
        return Updates(indices.size // max(1, count), count, 1)

    def _at(self, row: LoopExpr, k: LoopExpr) -> tuple[LoopExpr, ...]:
        shape, axis = self.problem.inputs[1].shape, self.axis
        index = unflatten(row, [n for d, n in enumerate(shape) if d != axis])
        return (*index[:axis], k, *index[axis:])

    def target(self, row: LoopExpr, k: LoopExpr) -> LoopExpr:
        data, indices, _ = self.problem.inputs
        return wrapped(indices[self._at(row, k)], data.shape[self.axis]).astype("int32")

    def update(self, row: LoopExpr, k: LoopExpr, e: LoopExpr) -> LoopExpr:
        return Load(self.problem.inputs[2], self._at(row, k))

    def place(self, row: LoopExpr, target: LoopExpr, e: LoopExpr) -> tuple[LoopExpr, ...]:
        return self._at(row, target)


@TEMPLATES.register("cuda", ScatterNd)
class GpuScatterNd(GpuScatter):
    """Slices, any of which may meet."""

    op: ScatterNd

    @property
    def reduction(self) -> str:
        return self.op.mode

    @property
    def depth(self) -> int:
        """Dimensions that a position names."""
        return self.problem.inputs[1].shape[0]

    @property
    def updates(self) -> Updates:
        data, indices, _ = self.problem.inputs
        return Updates(1, math.prod(indices.shape[1:]), math.prod(data.shape[self.depth :]))

    def target(self, row: LoopExpr, k: LoopExpr) -> LoopExpr:
        data, indices, _ = self.problem.inputs
        where, flat = unflatten(k, indices.shape[1:]), as_index(0)
        for m, extent in enumerate(data.shape[: self.depth]):
            flat = flat * extent + wrapped(Load(indices, (Const(m), *where)), extent)
        return flat.astype("int32")

    def update(self, row: LoopExpr, k: LoopExpr, e: LoopExpr) -> LoopExpr:
        data, indices, updates = self.problem.inputs
        return Load(updates, (*unflatten(k, indices.shape[1:]), *unflatten(e, data.shape[self.depth :])))

    def place(self, row: LoopExpr, target: LoopExpr, e: LoopExpr) -> tuple[LoopExpr, ...]:
        shape = self.problem.output.shape
        return (*unflatten(target, shape[: self.depth]), *unflatten(e, shape[self.depth :]))
