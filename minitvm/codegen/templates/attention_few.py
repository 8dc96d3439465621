"""Attention of few queries over many keys: the keys are the lanes of scores, a value's elements those of results.

What a decoder does for a token: keys and values are read once, whole rows at a time, and every lane counts.  Scores of
as many keys as a vector has lanes are sums along their keys' vectors, which a square of vectors transposes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from minitvm.codegen.loops import halved, in_lanes, or_zero, transposed, with_memory
from minitvm.codegen.problem import Problem
from minitvm.codegen.templates.tile import TileKernel, in_steps, runs
from minitvm.ir.dims import ceil_divide
from minitvm.ir.loop import (
    Buffer,
    If,
    LoopExpr,
    Stmt,
    Store,
    as_index,
    binary,
    const,
    intrin,
    loop,
    maximum,
    minimum,
    select,
    seq,
)
from minitvm.ir.ops.nn_attention import Attention

_LOWEST = -float("inf")
_KEYS = 2048
"""Scores that are kept at a time."""
_ABREAST = 8
"""Vectors of a result that are summed at a time."""


@dataclass(frozen=True)
class Query:
    """One query of one head: number ``i`` of image ``p``; ``shape``: batch, length, heads, key_length, d, e."""

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

    def nest(self) -> Stmt:
        key_length, (running_max, running_sum, *_) = self.shape[3], self.numbers.values()
        begin = [
            Store(running_max, (), const(_LOWEST, self.dtype)),
            Store(running_sum, (), const(0, self.dtype)),
            self._in_vectors(self.weighted.shape[0], lambda e: Store(self.weighted, (e,), const(0, self.dtype))),
        ]
        if isinstance(key_length, int):
            blocks = [run.over(self._keys, name="block") for run in runs(key_length, _KEYS)]
        else:
            blocks = [loop(ceil_divide(key_length, _KEYS), self._open_block, name="block")]
        memory = [self.query, self.scores, self.weighted, self.lane, *self.numbers.values()]
        return with_memory(memory, seq(self._take_query(), *begin, *blocks, self._results()))

    def _open_block(self, number: LoopExpr) -> Stmt:
        start = number * _KEYS
        return self._keys(start, minimum(as_index(self.shape[3]) - start, _KEYS))

    def _keys(self, start: LoopExpr, count: Any) -> Stmt:
        return seq(self._scores(start, count), self._exponentials(count), self._weigh(start, count))

    def _whole(self, count: Any) -> Any:
        """As many vectors as ``count`` elements need."""
        return (count + (self.lanes - 1)) // self.lanes

    def _in_vectors(self, count: Any, body: Callable[[LoopExpr], Stmt]) -> Stmt:
        """For all lanes of these."""
        return loop(
            self._whole(count), lambda r: in_lanes(self.lanes, lambda lane: body(r * self.lanes + lane)), name="r"
        )

    def _take_query(self) -> Stmt:
        """Times the scale; zeros behind it."""
        query, size = self.problem.inputs[0], self.shape[4]

        def element(r: LoopExpr) -> Stmt:
            found = query[self.p, self.i, self.h, r].astype(self.dtype) * self.op.scale
            return Store(self.query, (r,), found if size % self.lanes == 0 else or_zero(r < size, found))

        return self._in_vectors(size, element)

    def _scores(self, start: LoopExpr, count: Any) -> Stmt:
        """Scores of ``count`` keys; those that the last vector has beyond them are as low as can be."""
        inputs, size, key_length = self.problem.inputs, self.shape[4], self.shape[3]
        key, mask = inputs[1], inputs[3] if len(inputs) > 3 else None

        def square(first: LoopExpr) -> Stmt:
            def products(v: LoopExpr, lane: LoopExpr) -> LoopExpr:
                position = minimum(start + first + v, as_index(key_length) - 1)
                found: LoopExpr = const(0, self.dtype)
                for at in range(0, size, self.lanes):
                    element = key[self.p, position, self.h, lane + at].astype(self.dtype)
                    whole = at + self.lanes <= size
                    element = element if whole else or_zero(lane + at < size, element)
                    found = intrin("fma", self.query[lane + at], element, found)
                return found

            def add(_: LoopExpr, lane: LoopExpr, value: LoopExpr) -> Stmt:
                return Store(self.lane, (lane,), self.lane[lane] + value)

            def put(lane: LoopExpr) -> Stmt:
                position = start + first + lane
                found = self.op.masked(self.lane[lane], mask, (self.p, self.h, self.i, position))
                whole = isinstance(count, int) and count % self.lanes == 0
                value = found if whole else select(first + lane < count, found, _LOWEST)
                return Store(self.scores, (first + lane,), value)

            zero = in_lanes(self.lanes, lambda lane: Store(self.lane, (lane,), const(0, self.dtype)))
            squares = transposed(self.lanes, self.dtype, self.lanes, self.lanes, products, add)
            return seq(zero, squares, in_lanes(self.lanes, put))

        return loop(self._whole(count), lambda r: square(r * self.lanes), name="r")

    def _of_lanes(self, count: Any, first: float, op: str, value: Callable[[LoopExpr], LoopExpr]) -> Stmt:
        """``lane[0]``: the values of ``count`` keys, combined."""
        begin = in_lanes(self.lanes, lambda lane: Store(self.lane, (lane,), const(first, self.dtype)))

        def step(r: LoopExpr) -> Stmt:
            def one(lane: LoopExpr) -> Stmt:
                return Store(self.lane, (lane,), binary(op, self.lane[lane], value(r * self.lanes + lane)))

            return in_lanes(self.lanes, one)

        return seq(begin, loop(self._whole(count), step, name="r"), halved(self.lane, (), self.lanes, op))

    def _exponentials(self, count: Any) -> Stmt:
        """As the template of many queries has them."""
        zeros = self.op.empty_rows == "zero"
        running_max, running_sum, subtracted, rescale = self.numbers.values()
        scores, zero = self.scores, const(0, self.dtype)

        def power(j: LoopExpr) -> Stmt:
            return Store(scores, (j,), intrin("exp", scores[j] - subtracted[()]))

        def kept(j: LoopExpr) -> Stmt:
            return Store(scores, (j,), select(intrin("isnan", scores[j]), zero, scores[j]))

        correction = intrin("exp", rescale[()] - subtracted[()])
        return seq(
            Store(rescale, (), running_max[()]),
            self._of_lanes(count, _LOWEST, "max", lambda j: scores[j]),
            Store(running_max, (), maximum(running_max[()], self.lane[0])),
            Store(subtracted, (), select(running_max[()].equal(_LOWEST), zero, running_max[()])),
            Store(rescale, (), select(intrin("isnan", correction), zero, correction) if zeros else correction),
            self._in_vectors(count, power),
            self._of_lanes(count, 0.0, "add", lambda j: scores[j]),
            Store(running_sum, (), intrin("fma", running_sum[()], rescale[()], self.lane[0])),
            self._in_vectors(count, kept) if zeros else None,
        )

    def _weigh(self, start: LoopExpr, count: Any) -> Stmt:
        """What was added up before is rescaled, and these keys are added."""
        value, width, (*_, rescale) = self.problem.inputs[2], self.shape[5], self.numbers.values()

        def vectors(first: LoopExpr, blocks: int) -> Stmt:
            def element(b: LoopExpr, lane: LoopExpr, r: LoopExpr) -> LoopExpr:
                e = (first + b) * self.lanes + lane
                found = value[self.p, start + r, self.h, e].astype(self.dtype)
                return found if width % self.lanes == 0 else or_zero(e < width, found)

            def store(_: LoopExpr, b: LoopExpr, lane: LoopExpr, found: LoopExpr) -> Stmt:
                e = (first + b) * self.lanes + lane
                return Store(self.weighted, (e,), intrin("fma", self.weighted[e], rescale[()], found))

            kernel = TileKernel(1, blocks, self.lanes, self.dtype, lambda _, __, r: self.scores[r], element, store)
            return kernel.nest(lambda step: in_steps(count, blocks, step))

        return seq(*(run.over(vectors) for run in runs(self.weighted.shape[0] // self.lanes, _ABREAST)))

    def _results(self) -> Stmt:
        (_, _, _, key_length, _, width), out, (_, running_sum, *_) = (
            self.shape,
            self.problem.output,
            self.numbers.values(),
        )

        def element(e: LoopExpr) -> Stmt:
            found = self.op.averaged(self.weighted[e], running_sum[()], key_length)
            stored = Store(out, (self.p, self.i, self.h, e), found.astype(out.dtype))
            return stored if width % self.lanes == 0 else If(e < width, stored)

        return self._in_vectors(width, element)
