"""Running sums: one accumulator a row, or one for each of the columns behind the axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property, partial

from minitvm.codegen.loops import in_lanes, in_vectors, unflatten
from minitvm.codegen.problem import TEMPLATES, Choice, Problem, Template, Tile
from minitvm.ir.compute import identity_of
from minitvm.ir.decision import Declined
from minitvm.ir.loop import Alloc, Buffer, Const, LoopExpr, LoopKind, Stmt, Store, loop, seq
from minitvm.ir.ops.tensor import CumSum

_VECTORS = 4
"""Sums of neighbouring columns that are written out."""
_COLUMNS = 2048
"""Most columns at a time: long runs of memory, and sums that stay in the first level of the cache."""

_PIECES = 4
"""Parallel iterations for every thread."""


@TEMPLATES.register("llvm", "cumsum")
class RunningSum(Template):
    """Any dtype, shape and axis: what lies behind the axis in lanes, what lies before it in parallel."""

    def refusal(self) -> Declined | None:
        return None

    def choices(self) -> Sequence[Choice]:
        """How many sums are written out side by side."""
        steps = math.prod(self.problem.output.shape) / self.lanes
        return [Choice("columns in lanes", Tile(1, v), steps * (1 + 1 / v)) for v in range(1, _VECTORS + 1)]

    @cached_property
    def axis(self) -> int:
        assert isinstance(self.problem.op, CumSum)
        return self.problem.op.axis % len(self.problem.output.shape)

    def loops(self, choice: Choice) -> Stmt:
        problem, shape, axis = self.problem, self.problem.output.shape, self.axis
        outer, inner = shape[:axis], shape[axis + 1 :]
        rows, columns = math.prod(outer), math.prod(inner)
        lanes = choice.tile.blocks * self.lanes
        wanted = rows * columns // (_PIECES * self.machine.threads) // lanes * lanes
        width = min(columns, max(lanes, min(_COLUMNS, wanted)))

        def sums(row: LoopExpr, start: LoopExpr, count: int) -> Stmt:
            def at(position: LoopExpr, column: LoopExpr) -> tuple[LoopExpr, ...]:
                return (*unflatten(row, outer), position, *unflatten(start + column, inner))

            return _sums(problem, at, count, lanes)

        whole, rest = divmod(columns, width)
        blocks = loop(
            rows * whole, lambda p: sums(p // whole, p % whole * width, width), LoopKind.PARALLEL, name="block"
        )
        tails = (
            loop(rows, lambda r: sums(r, Const(whole * width), rest), LoopKind.PARALLEL, name="row") if rest else None
        )
        return seq(blocks, tails)


def _sums(problem: Problem, at: Callable[[LoopExpr, LoopExpr], tuple[LoopExpr, ...]], count: int, lanes: int) -> Stmt:
    """``count`` sums side by side along the axis; ``at(position, column)`` is an index."""
    op = problem.op
    assert isinstance(op, CumSum)
    (data,), out, wide = problem.inputs, problem.output, problem.accumulator
    acc = Buffer("acc", (count,), wide, "local")

    def each(*bodies: Callable[[LoopExpr], Stmt]) -> Stmt:
        def vector(start: LoopExpr, width: int) -> Stmt:
            return seq(*(in_lanes(width, partial(of_lane, body, start)) for body in bodies))

        def of_lane(body: Callable[[LoopExpr], Stmt], start: LoopExpr, lane: LoopExpr) -> Stmt:
            return body(start + lane)

        return in_vectors(count, min(count, lanes), vector)

    def step(position: LoopExpr) -> Stmt:
        def add(k: LoopExpr) -> Stmt:
            return Store(acc, (k,), acc[k] + data[at(position, k)].astype(wide))

        def put(k: LoopExpr) -> Stmt:
            return Store(out, at(position, k), acc[k].astype(out.dtype))

        return each(put, add) if op.exclusive else each(add, put)

    clear = each(lambda k: Store(acc, (k,), identity_of("sum", wide)))
    return Alloc(acc, seq(clear, loop(out.shape[op.axis % len(out.shape)], step, name="r")))
