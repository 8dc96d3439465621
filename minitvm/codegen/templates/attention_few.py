"""Attention of few queries over many keys: the keys are the lanes of scores, a value's elements those of results.

What a decoder does for a token: keys and values are read once, whole rows at a time, and every lane counts.  Scores of
as many keys as a vector has lanes are sums along their keys' vectors, which a square of vectors transposes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from minitvm.codegen.loops import halved, or_zero, transposed
from minitvm.codegen.problem import Problem
from minitvm.codegen.templates.tile import TileKernel, over, runs, steps
from minitvm.ir.dims import ceil_divide
from minitvm.ir.loop import Buffer, LoopExpr, Stmt, Store, as_index, binary, const, intrin, maximum, minimum, select
from minitvm.ir.loop.builder import LoopBuilder
from minitvm.ir.ops.nn_attention import Attention

_LOWEST = -float("inf")
_KEYS = 2048
"""Scores that are kept at a time."""
_ABREAST = 8
"""Vectors of a result that are summed at a time."""


@dataclass(frozen=True)
class Query:
    """One query of one head: number ``i`` of image ``p``; ``shape``: batch, length, heads, key_length, d, e."""

    code: LoopBuilder
    problem: Problem
    shape: tuple[Any, ...]
    lanes: int
    p: LoopExpr
    h: LoopExpr
    i: LoopExpr

    @property
    def op(self) -> Attention:
        assert isinstance(self.problem.op, Attention)
        return self.problem.op

    @property
    def dtype(self) -> str:
        return self.problem.accumulator

    # --- memory -----------------------------------------------------------------------------------------------

    def _vectors(self, name: str, elements: int) -> Buffer:
        """As many whole vectors as elements need."""
        return Buffer(name, (self._whole(elements) * self.lanes,), self.dtype, "shared")

    @cached_property
    def query(self) -> Buffer:
        return self._vectors("query", self.shape[4])

    @cached_property
    def at_once(self) -> int:
        key_length = self.shape[3]
        return min(key_length, _KEYS) if isinstance(key_length, int) else _KEYS

    @cached_property
    def scores(self) -> Buffer:
        return self._vectors("scores", max(1, self.at_once))

    @cached_property
    def weighted(self) -> Buffer:
        return self._vectors("weighted", self.shape[5])

    @cached_property
    def lane(self) -> Buffer:
        """A vector whose lanes become one number."""
        return Buffer("lane", (self.lanes,), self.dtype, "local")

    @cached_property
    def numbers(self) -> dict[str, Buffer]:
        """The maximum and the sum so far, what is taken off scores, and what earlier keys count."""
        return {
            name: Buffer(name, (), self.dtype, "local")
            for name in ("running_max", "running_sum", "subtracted", "rescale")
        }

    # --- loops ------------------------------------------------------------------------------------------------

    def nest(self) -> None:
        code, key_length = self.code, self.shape[3]
        running_max, running_sum, *_ = self.numbers.values()
        with code.memory(self.query, self.scores, self.weighted, self.lane, *self.numbers.values()):
            self._take_query()
            code.store(running_max, (), const(_LOWEST, self.dtype))
            code.store(running_sum, (), const(0, self.dtype))
            with self._in_vectors(self.weighted.shape[0]) as e:
                code.store(self.weighted, (e,), const(0, self.dtype))
            if isinstance(key_length, int):
                for start, count in over(code, runs(key_length, _KEYS), "block"):
                    self._keys(start, count)
            else:
                with code.loop(ceil_divide(key_length, _KEYS), "block") as number:
                    self._keys(number * _KEYS, minimum(as_index(key_length) - number * _KEYS, _KEYS))
            self._results()

    def _keys(self, start: LoopExpr, count: Any) -> None:
        self._scores(start, count)
        self._exponentials(count)
        self._weigh(start, count)

    def _whole(self, count: Any) -> Any:
        """As many vectors as ``count`` elements need."""
        return (count + (self.lanes - 1)) // self.lanes

    @contextmanager
    def _in_vectors(self, count: Any) -> Iterator[LoopExpr]:
        """All lanes of these."""
        with self.code.loop(self._whole(count), "r") as r, self.code.lanes(self.lanes) as lane:
            yield r * self.lanes + lane

    def _take_query(self) -> None:
        """Times the scale; zeros behind it."""
        query, size = self.problem.inputs[0], self.shape[4]
        with self._in_vectors(size) as r:
            found = query[self.p, self.i, self.h, r].astype(self.dtype) * self.op.scale
            self.code.store(self.query, (r,), found if size % self.lanes == 0 else or_zero(r < size, found))

    def _scores(self, start: LoopExpr, count: Any) -> None:
        """Scores of ``count`` keys; those that the last vector has beyond them are as low as can be."""
        code, mask = self.code, (*self.problem.inputs, None)[3]
        with code.loop(self._whole(count), "r") as r:
            first = r * self.lanes
            self._clear()
            products = partial(self._products, start + first)
            with transposed(code, self.lanes, self.dtype, self.lanes, self.lanes, products) as (_, lane, value):
                code.store(self.lane, (lane,), self.lane[lane] + value)
            with code.lanes(self.lanes) as lane:
                found = self.op.masked(self.lane[lane], mask, (self.p, self.h, self.i, start + first + lane))
                whole = isinstance(count, int) and count % self.lanes == 0
                code.store(
                    self.scores, (first + lane,), found if whole else select(first + lane < count, found, _LOWEST)
                )

    def _clear(self, value: float = 0) -> None:
        with self.code.lanes(self.lanes) as lane:
            self.code.store(self.lane, (lane,), const(value, self.dtype))

    def _products(self, first: LoopExpr, v: LoopExpr, lane: LoopExpr) -> LoopExpr:
        """Of the query and the ``v``-th key from ``first`` on, the sum of those that fall in a lane."""
        key, size, key_length = self.problem.inputs[1], self.shape[4], self.shape[3]
        position = minimum(first + v, as_index(key_length) - 1)
        found: LoopExpr = const(0, self.dtype)
        for at in range(0, size, self.lanes):
            element = key[self.p, position, self.h, lane + at].astype(self.dtype)
            element = element if at + self.lanes <= size else or_zero(lane + at < size, element)
            found = intrin("fma", self.query[lane + at], element, found)
        return found

    def _of_lanes(self, count: Any, first: float, op: str) -> None:
        """``lane[0]``: the scores of ``count`` keys, combined."""
        self._clear(first)
        with self.code.loop(self._whole(count), "r") as r, self.code.lanes(self.lanes) as lane:
            found = binary(op, self.lane[lane], self.scores[r * self.lanes + lane])
            self.code.store(self.lane, (lane,), found)
        self.code.emit(halved(self.lane, (), self.lanes, op))

    def _exponentials(self, count: Any) -> None:
        """As the template of many queries has them."""
        zeros = self.op.empty_rows == "zero"
        running_max, running_sum, subtracted, rescale = self.numbers.values()
        code, scores, zero = self.code, self.scores, const(0, self.dtype)
        code.store(rescale, (), running_max[()])
        self._of_lanes(count, _LOWEST, "max")
        code.store(running_max, (), maximum(running_max[()], self.lane[0]))
        code.store(subtracted, (), select(running_max[()].equal(_LOWEST), zero, running_max[()]))
        correction = intrin("exp", rescale[()] - subtracted[()])
        code.store(rescale, (), select(intrin("isnan", correction), zero, correction) if zeros else correction)
        with self._in_vectors(count) as j:
            code.store(scores, (j,), intrin("exp", scores[j] - subtracted[()]))
        self._of_lanes(count, 0.0, "add")
        code.store(running_sum, (), intrin("fma", running_sum[()], rescale[()], self.lane[0]))
        if zeros:
            with self._in_vectors(count) as j:
                code.store(scores, (j,), select(intrin("isnan", scores[j]), zero, scores[j]))

    def _weigh(self, start: LoopExpr, count: Any) -> None:
        """What was added up before is rescaled, and these keys are added."""
        for first, blocks in over(self.code, runs(self.weighted.shape[0] // self.lanes, _ABREAST)):
            self._weighted_of(start, count, first, blocks)

    def _weighted_of(self, start: LoopExpr, count: Any, first: LoopExpr, blocks: int) -> None:
        value, width, (*_, rescale) = self.problem.inputs[2], self.shape[5], self.numbers.values()

        def element(b: LoopExpr, lane: LoopExpr, r: LoopExpr) -> LoopExpr:
            e = (first + b) * self.lanes + lane
            found = value[self.p, start + r, self.h, e].astype(self.dtype)
            return found if width % self.lanes == 0 else or_zero(e < width, found)

        def store(_: LoopExpr, b: LoopExpr, lane: LoopExpr, found: LoopExpr) -> Stmt:
            e = (first + b) * self.lanes + lane
            return Store(self.weighted, (e,), intrin("fma", self.weighted[e], rescale[()], found))

        kernel = TileKernel(1, blocks, self.lanes, self.dtype, lambda _, __, r: self.scores[r], element, store)
        with kernel.sums(self.code) as step:
            for r in steps(self.code, count, blocks):
                step(r)

    def _results(self) -> None:
        key_length, width, out = self.shape[3], self.shape[5], self.problem.output
        with self._in_vectors(width) as e, self.code.when(None if width % self.lanes == 0 else e < width):
            found = self.op.averaged(self.weighted[e], self.numbers["running_sum"][()], key_length)
            self.code.store(out, (self.p, self.i, self.h, e), found.astype(out.dtype))
