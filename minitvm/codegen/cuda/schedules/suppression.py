"""Boxes of the highest scores that overlap none of those before: sorted, then struck out by the threads of a block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from minitvm.codegen.cuda.machine import WARP
from minitvm.codegen.cuda.schedules.elements import THREADS, in_threads
from minitvm.codegen.cuda.schedules.selection import Selecting, number, numbers, place
from minitvm.codegen.cuda.schedules.sorting import Rows
from minitvm.codegen.loops import unflatten, with_memory
from minitvm.codegen.problem import TEMPLATES, Choice
from minitvm.ir.decision import Declined
from minitvm.ir.loop import (
    Barrier,
    Binary,
    Buffer,
    Const,
    If,
    Load,
    LoopExpr,
    LoopKind,
    Select,
    Stmt,
    Store,
    const,
    intrin,
    loop,
    maximum,
    minimum,
    seq,
)
from minitvm.ir.ops.more.suppression import NonMaxSuppression

_FLAGS = 32 * 1024
"""Boxes whose flags fit a block's shared memory."""
_0 = Const(0)


@TEMPLATES.register("cuda", NonMaxSuppression)
class GpuSuppression(Selecting):
    """A block for each batch and class: its threads strike out what overlaps the box that was taken last."""

    op: NonMaxSuppression

    def refusal(self) -> Declined | None:
        return super().refusal() or (None if self.problem.outputs[0].size else Declined("there are no boxes"))

    @property
    def shape(self) -> tuple[int, ...]:
        """The numbers of batches and of classes."""
        return self.problem.inputs[1].shape[:2]

    @property
    def rows(self) -> int:
        return self.shape[0] * self.shape[1]

    @property
    def boxes(self) -> int:
        """The number of boxes in a batch."""
        return self.problem.inputs[1].shape[2]

    @cached_property
    def order(self) -> Buffer:
        """The boxes of each row, from the highest score on; those whose score does not count are the last."""
        return Buffer("order", (self.rows, self.boxes), "int32")

    @cached_property
    def taken(self) -> Buffer:
        """Boxes of each row, and how many there are in ``counts``."""
        return Buffer("taken", (self.rows, self.problem.outputs[0].shape[0] // self.rows), "int32")

    @cached_property
    def counts(self) -> Buffer:
        return numbers("counts", self.rows)

    @cached_property
    def struck(self) -> Buffer:
        """Tells of each box, in order, whether it overlaps one that was taken."""
        if self.boxes <= _FLAGS:
            return Buffer("struck", (1, self.boxes), "bool", "shared")
        return Buffer("struck", (self.rows, self.boxes), "bool")

    def score(self, row: LoopExpr, box: LoopExpr) -> LoopExpr:
        return Load(self.problem.inputs[1], (*unflatten(row, self.shape), box))

    def loops(self, choice: Choice) -> Stmt:
        starts, total = numbers("starts", self.rows), numbers("total", 1)

        def start(_: LoopExpr, row: LoopExpr, before: LoopExpr, upto: LoopExpr) -> Stmt:
            return Store(starts, (row,), before)

        steps = [
            loop(self.rows, lambda row: _Row(self, row).loops(), LoopKind.BLOCK_X, "block"),
            self.numbered(self.rows, lambda row: self.counts[row], total, start),
            in_threads(self.taken.size, lambda k: self._put(k, starts, total)),
        ]
        memory = [self.order, self.taken, self.counts, starts, total, *[self.struck] * (self.struck.scope == "global")]
        return with_memory(memory, seq(self._sorted(), *(part for step in steps for part in (Barrier(), step))))

    def _sorted(self) -> Stmt:
        least, dtype = self.problem.inputs[4], self.problem.inputs[1].dtype

        def key(row: LoopExpr, k: LoopExpr) -> LoopExpr:
            score = self.score(row, k)
            return Select(least[()] < score, score, const(float("-inf"), dtype))

        rows = Rows(self.rows, self.boxes, dtype, False, key)
        return rows.sorted(lambda row, k, _, position: Store(self.order, (row, k), position))

    def _put(self, k: LoopExpr, starts: Buffer, total: Buffer) -> Stmt:
        """A box that was taken, if there are so many; and the place of that number in the results."""
        rows, found = self.problem.outputs
        row, s = unflatten(k, self.taken.shape)
        index = (*unflatten(row, self.shape), place(self.taken[row, s]))
        at = place(starts[row]) + s
        box = seq(*(Store(rows, (at, Const(d)), i) for d, i in enumerate(index)))
        behind = If(place(total[0]) <= k, seq(*(Store(rows, (k, Const(d)), _0) for d in range(3))))
        return seq(If(s < place(self.counts[row]), box), behind, If(k.equal(0), Store(found, (), place(total[0]))))


@dataclass(frozen=True)
class _Row:
    """Boxes of one batch and class, by the threads of a block, which all know how many are ``chosen``."""

    of: GpuSuppression
    row: LoopExpr

    @property
    def threads(self) -> int:
        return min(THREADS, -(-self.of.boxes // WARP) * WARP)

    def loops(self) -> Stmt:
        struck, taken = self.of.struck, self.of.taken
        chosen, known = (Buffer(name, (1,), "int32", "local") for name in ("chosen", "known"))

        def thread(lane: LoopExpr) -> Stmt:
            def clear(k: LoopExpr) -> Stmt:
                return Store(struck, self._flag(k), const(False, "bool"))

            def rest(k: LoopExpr) -> Stmt:
                return If(place(chosen[0]) <= k, Store(taken, (self.row, k), number(0)))

            cleared, behind = self._in_turn(self.of.boxes, lane, clear), self._in_turn(taken.shape[1], lane, rest)
            walk = loop(place(known[0]), lambda k: self._candidate(k, lane, chosen, known), name="k")
            end = If(lane.equal(0), Store(self.of.counts, (self.row,), chosen[0]))
            begin = [Store(chosen, (_0,), number(0)), *self._known(known), cleared, Barrier()]
            return with_memory([chosen, known], seq(*begin, walk, behind, end))

        threads = loop(self.threads, thread, LoopKind.THREAD_X, "lane")
        return with_memory([struck] * (struck.scope == "shared"), threads)

    def _in_turn(self, count: int, lane: LoopExpr, body: Callable[[LoopExpr], Stmt]) -> Stmt:
        def one(i: LoopExpr) -> Stmt:
            at = i * self.threads + lane
            return If(at < count, body(at))

        return loop(-(-count // self.threads), one, name="i")

    def _flag(self, k: LoopExpr) -> tuple[LoopExpr, LoopExpr]:
        return (_0 if self.of.struck.scope == "shared" else self.row), k

    def _box(self, k: LoopExpr) -> LoopExpr:
        return place(self.of.order[self.row, k])

    def _known(self, known: Buffer) -> tuple[Stmt, Stmt]:
        """How many have a score that counts, which come first: bit by bit, the highest first."""
        least, extent = self.of.problem.inputs[4], self.of.boxes

        def count(step: LoopExpr) -> Stmt:
            more = place(known[0]) + Binary("shr", Const(1 << extent.bit_length() - 1), step)
            counts = least[()] < self.of.score(self.row, self._box(more - 1))
            return If(more <= extent, If(counts, Store(known, (_0,), number(more))))

        return Store(known, (_0,), number(0)), loop(extent.bit_length(), count, name="step")

    def _candidate(self, k: LoopExpr, lane: LoopExpr, chosen: Buffer, known: Buffer) -> Stmt:
        """The ``k``-th in order, which strikes out those behind it where it is taken."""
        boxes, _, most, overlap, _ = self.of.problem.inputs
        struck, threads = self.of.struck, self.threads
        batch, _ = unflatten(self.row, self.of.shape)
        room = minimum(maximum(most[()].astype("int64"), 0), self.of.taken.shape[1])

        def strike(i: LoopExpr) -> Stmt:
            j = k + 1 + i * threads + lane
            hit = overlap[()] < self.of.op._share(boxes, batch, self._box(j), self._box(k))
            marked = If(hit, Store(struck, self._flag(j), const(True, "bool")))
            return If(j < place(known[0]), If(intrin("not", struck[self._flag(j)]), marked))

        rounds = (place(known[0]) - k - 2 + threads) // threads
        put = If(lane.equal(0), Store(self.of.taken, (self.row, place(chosen[0])), self.of.order[self.row, k]))
        steps = seq(put, loop(rounds, strike, name="i"), Store(chosen, (_0,), chosen[0] + 1), Barrier())
        return If((place(chosen[0]) < room) & intrin("not", struck[self._flag(k)]), steps)
