"""Places that a block of queries looks at, as a mask of bool says: under a causal one the first queries look at few.

The others are left out where that changes nothing: their exponentials are zero, and so is zero times their values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

from minitvm.codegen.loops import halved, in_lanes, or_zero, with_memory
from minitvm.codegen.problem import Problem
from minitvm.ir.loop import Buffer, If, LoopExpr, Stmt, Store, as_index, const, intrin, loop, minimum, select, seq
from minitvm.ir.op import broadcast_index
from minitvm.ir.ops.nn_attention import Attention

_LOW = -1e30
"""A score that is no higher is a mask's: its power beside others is zero."""


@dataclass(frozen=True)
class Seen:
    """The keys that ``queries`` queries of head ``h`` of image ``p`` see; ``query(number)`` says which one that
    is."""

    problem: Problem
    lanes: int
    p: LoopExpr
    h: LoopExpr
    queries: int
    query: Callable[[LoopExpr], LoopExpr]

    @staticmethod
    def applies(problem: Problem) -> bool:
        """True if a mask says for each query and key where scores are as low as can be, and only a run knows how many
        keys there are."""
        mask, op = (*problem.inputs, None)[3], problem.op
        assert isinstance(op, Attention)
        by_query = mask is not None and mask.dtype == "bool" and len(mask.shape) > 1 and mask.shape[-2] != 1
        return by_query and not isinstance(problem.inputs[2].shape[1], int) and op.fill <= _LOW

    @property
    def fill(self) -> float:
        assert isinstance(self.problem.op, Attention)
        return self.problem.op.fill

    @property
    def key_length(self) -> LoopExpr:
        return as_index(self.problem.inputs[2].shape[1])

    # --- memory -----------------------------------------------------------------------------------------------

    @cached_property
    def edges(self) -> Buffer:
        """The first key that is looked at, and the one behind the last, lane by lane."""
        return Buffer("edges", (2, self.lanes), "int64", "local")

    @cached_property
    def some(self) -> Buffer:
        """Tells whether some query looks at a key."""
        return Buffer("some", (self.lanes,), "bool", "local")

    @cached_property
    def odd(self) -> Buffer:
        """Not 0 where keys may not be left out."""
        return Buffer("odd", (self.lanes,), self.problem.accumulator, "local")

    @property
    def begin(self) -> LoopExpr:
        return self.edges[0, 0]

    @property
    def end(self) -> LoopExpr:
        return self.edges[1, 0]

    # --- loops ------------------------------------------------------------------------------------------------

    def over(self, body: Stmt, running_max: Buffer) -> Stmt:
        """``body`` for the keys that are looked at; then for all of them where a query has no score above a mask's,
        as the highest ones, ``running_max``, say."""

        def turn(number: LoopExpr) -> Stmt:
            left_out = (self.begin > 0) | (self.end < self.key_length)
            again = self.odd[0].not_equal(0) & left_out
            whole = If(number > 0, self._all_keys())
            return If(number.equal(0) | again, seq(whole, body, self._low(running_max)))

        turns = body if self.fill == -float("inf") else loop(2, turn, name="turn")
        return with_memory([self.edges, self.some, self.odd], seq(self._scan(), self._finite(), turns))

    def _lanes(self, body: Callable[[LoopExpr], Stmt]) -> Stmt:
        return in_lanes(self.lanes, body)

    def _all_keys(self) -> Stmt:
        return seq(Store(self.edges, (const(0, "int64"),) * 2, const(0, "int64")), self._set_end(self.key_length))

    def _set_end(self, value: LoopExpr) -> Stmt:
        return Store(self.edges, (const(1, "int64"), const(0, "int64")), value)

    def _scan(self) -> Stmt:
        """The edges; that of no keys ends where it begins."""
        mask = self.problem.inputs[3]

        def begin(lane: LoopExpr) -> Stmt:
            first = Store(self.edges, (const(0, "int64"), lane), self.key_length)
            return seq(first, Store(self.edges, (const(1, "int64"), lane), const(0, "int64")))

        def vector(first: LoopExpr, whole: bool) -> Stmt:
            def asked(i: LoopExpr, lane: LoopExpr) -> Stmt:
                looks = mask[broadcast_index(mask, (self.p, self.h, self.query(i), first + lane))]
                known = looks if whole else or_zero(first + lane < self.key_length, looks)
                return Store(self.some, (lane,), self.some[lane] | known)

            def edge(lane: LoopExpr) -> Stmt:
                position, some = first + lane, self.some[lane]
                low, high = (self.edges[side, lane] for side in (0, 1))
                earliest = Store(self.edges, (const(0, "int64"), lane), select(some, minimum(low, position), low))
                return seq(earliest, Store(self.edges, (const(1, "int64"), lane), select(some, position + 1, high)))

            clear = self._lanes(lambda lane: Store(self.some, (lane,), const(False, "bool")))
            asking = loop(self.queries, lambda i: self._lanes(lambda lane: asked(i, lane)), name="i")
            return seq(clear, asking, self._lanes(edge))

        whole = self.key_length // self.lanes
        rest = If(whole * self.lanes < self.key_length, vector(whole * self.lanes, False))
        vectors = seq(loop(whole, lambda r: vector(r * self.lanes, True), name="r"), rest)
        ends = (halved(self.edges, (const(side, "int64"),), self.lanes, op) for side, op in ((0, "min"), (1, "max")))
        none = Store(self.edges, (const(0, "int64"),) * 2, minimum(self.begin, self.end))
        return seq(self._lanes(begin), vectors, *ends, none)

    def _finite(self) -> Stmt:
        """All keys, where a value that would be left out is no number: zero times it is none."""
        value = self.problem.inputs[2]
        width = value.shape[3]

        def position(j: LoopExpr) -> Stmt:
            def added(lane: LoopExpr, at: int) -> Stmt:
                found = value[self.p, j, self.h, lane + at].astype(self.odd.dtype)
                found = found if at + self.lanes <= width else or_zero(lane + at < width, found)
                return Store(self.odd, (lane,), intrin("fma", found, const(0, found.dtype), self.odd[lane]))

            whole = range(0, width, self.lanes)
            return seq(*(self._lanes(partial(added, at=at)) for at in whole))

        before = loop(self.begin, position, name="j")
        behind = loop(self.key_length - self.end, lambda j: position(self.end + j), name="j")
        odd = If(self.odd[0].equal(0), seq(), self._all_keys())
        return seq(self._cleared(), before, behind, halved(self.odd, (), self.lanes, "add"), odd)

    def _cleared(self) -> Stmt:
        return self._lanes(lambda lane: Store(self.odd, (lane,), const(0, self.odd.dtype)))

    def _low(self, running_max: Buffer) -> Stmt:
        """Which of the highest scores are not above a mask's, or no numbers."""

        def added(lane: LoopExpr, at: int) -> Stmt:
            low = select(
                running_max[lane + at] > self.fill / 2, const(0, running_max.dtype), const(1, running_max.dtype)
            )
            return Store(self.odd, (lane,), self.odd[lane] + low)

        vectors = range(0, self.queries, self.lanes)
        asked = (self._lanes(partial(added, at=at)) for at in vectors)
        return seq(self._cleared(), *asked, halved(self.odd, (), self.lanes, "add"))
