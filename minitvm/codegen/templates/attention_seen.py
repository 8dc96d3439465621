"""Places that a block of queries looks at, as a mask of bool says: under a causal one the first queries look at few.

The others are left out where that changes nothing: their exponentials are zero, and so is zero times their values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from minitvm.codegen.loops import halved, or_zero
from minitvm.codegen.problem import Problem
from minitvm.ir.loop import Buffer, LoopExpr, as_index, const, intrin, minimum, select
from minitvm.ir.loop.builder import LoopBuilder
from minitvm.ir.op import broadcast_index
from minitvm.ir.ops.nn_attention import Attention

_LOW = -1e30
"""A score that is no higher is a mask's: its power beside others is zero."""


@dataclass(frozen=True)
class Seen:
    """The keys that ``queries`` queries of head ``h`` of image ``p`` see; ``query(number)`` says which one that
    is."""

    code: LoopBuilder
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

    @contextmanager
    def turns(self, running_max: Buffer) -> Iterator[None]:
        """What is in here is done for the keys that are looked at; then for all of them where a query has no score
        above a mask's, as the highest ones, ``running_max``, say."""
        code = self.code
        with code.memory(self.edges, self.some, self.odd):
            self._scan()
            self._finite()
            if self.fill == -float("inf"):
                yield
                return
            with code.loop(2, "turn") as number:
                left_out = (self.begin > 0) | (self.end < self.key_length)
                again = self.odd[0].not_equal(0) & left_out
                with code.when(number.equal(0) | again):
                    with code.when(number > 0):
                        self._all_keys()
                    yield
                    self._low(running_max)

    def _all_keys(self) -> None:
        self.code.store(self.edges, (0, 0), const(0, "int64"))
        self.code.store(self.edges, (1, 0), self.key_length)

    def _scan(self) -> None:
        """The edges; that of no keys ends where it begins."""
        code, whole = self.code, self.key_length // self.lanes
        with code.lanes(self.lanes) as lane:
            code.store(self.edges, (0, lane), self.key_length)
            code.store(self.edges, (1, lane), const(0, "int64"))
        with code.loop(whole, "r") as r:
            self._look(r * self.lanes, True)
        with code.when(whole * self.lanes < self.key_length):
            self._look(whole * self.lanes, False)
        for side, op in ((0, "min"), (1, "max")):
            code.emit(halved(self.edges, (const(side, "int64"),), self.lanes, op))
        code.store(self.edges, (0, 0), minimum(self.begin, self.end))

    def _look(self, first: LoopExpr, whole: bool) -> None:
        """A vector of keys."""
        code, mask = self.code, self.problem.inputs[3]
        with code.lanes(self.lanes) as lane:
            code.store(self.some, (lane,), const(False, "bool"))
        with code.loop(self.queries) as i, code.lanes(self.lanes) as lane:
            looks = mask[broadcast_index(mask, (self.p, self.h, self.query(i), first + lane))]
            known = looks if whole else or_zero(first + lane < self.key_length, looks)
            code.store(self.some, (lane,), self.some[lane] | known)
        with code.lanes(self.lanes) as lane:
            position, some = first + lane, self.some[lane]
            low, high = (self.edges[side, lane] for side in (0, 1))
            code.store(self.edges, (0, lane), select(some, minimum(low, position), low))
            code.store(self.edges, (1, lane), select(some, position + 1, high))

    def _finite(self) -> None:
        """All keys, where a value that would be left out is no number: zero times it is none."""
        code = self.code
        self._clear()
        with code.loop(self.begin, "j") as j:
            self._add_odd(j)
        with code.loop(self.key_length - self.end, "j") as j:
            self._add_odd(self.end + j)
        code.emit(halved(self.odd, (), self.lanes, "add"))
        with code.when(self.odd[0].equal(0)):
            pass
        with code.otherwise():
            self._all_keys()

    def _add_odd(self, j: LoopExpr) -> None:
        value = self.problem.inputs[2]
        width = value.shape[3]
        for at in range(0, width, self.lanes):
            with self.code.lanes(self.lanes) as lane:
                found = value[self.p, j, self.h, lane + at].astype(self.odd.dtype)
                found = found if at + self.lanes <= width else or_zero(lane + at < width, found)
                self.code.store(self.odd, (lane,), intrin("fma", found, const(0, found.dtype), self.odd[lane]))

    def _clear(self) -> None:
        with self.code.lanes(self.lanes) as lane:
            self.code.store(self.odd, (lane,), const(0, self.odd.dtype))

    def _low(self, running_max: Buffer) -> None:
        """Which of the highest scores are not above a mask's, or no numbers."""
        self._clear()
        zero, one = (const(n, running_max.dtype) for n in (0, 1))
        for at in range(0, self.queries, self.lanes):
            with self.code.lanes(self.lanes) as lane:
                low = select(running_max[lane + at] > self.fill / 2, zero, one)
                self.code.store(self.odd, (lane,), self.odd[lane] + low)
        self.code.emit(halved(self.odd, (), self.lanes, "add"))
