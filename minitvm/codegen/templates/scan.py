"""Running sums: one accumulator a row, or a vector of them where the axis is not the last."""

from __future__ import annotations

import math
from collections.abc import Callable

from minitvm.codegen.problem import TEMPLATES, Config, Declined, Problem
from minitvm.codegen.spread import in_lanes, unflatten
from minitvm.ir.compute import identity_of
from minitvm.ir.loop import Alloc, Buffer, Const, Kernel, LoopExpr, LoopKind, Stmt, Store, loop, seq
from minitvm.ir.ops.tensor import CumSum
from minitvm.target import MachineModel

_VECTORS = 4
"""Sums of neighbouring columns in flight."""


@TEMPLATES.register("llvm", "cumsum")
def cumsum(problem: Problem, machine: MachineModel, config: Config) -> Kernel | Declined:
    """Any shape and axis: elements of the last axis in lanes where sums run along another, all others in parallel."""
    assert isinstance(problem.op, CumSum)
    shape = problem.output.shape
    axis = problem.op.axis % len(shape)
    apart = axis < len(shape) - 1
    outer = [extent for d, extent in enumerate(shape) if d != axis and not (apart and d == len(shape) - 1)]
    columns = shape[-1] if apart else 1
    width = min(columns, _VECTORS * machine.lanes(problem.accumulator))
    whole, rest = divmod(columns, width)

    def sums(row: LoopExpr, start: LoopExpr, count: int) -> Stmt:
        def at(position: LoopExpr, lane: LoopExpr) -> tuple[LoopExpr, ...]:
            index = [*unflatten(row, outer), *([start + lane] if apart else [])]
            return (*index[:axis], position, *index[axis:])

        return _sums(problem, at, count)

    rows = math.prod(outer)
    blocks = loop(rows * whole, lambda p: sums(p // whole, p % whole * width, width), LoopKind.PARALLEL, name="block")
    tails = loop(rows, lambda r: sums(r, Const(whole * width), rest), LoopKind.PARALLEL, name="row") if rest else None
    return Kernel("cumsum", (*problem.inputs, problem.output), seq(blocks, tails))


def _sums(problem: Problem, at: Callable[[LoopExpr, LoopExpr], tuple[LoopExpr, ...]], count: int) -> Stmt:
    """``count`` sums side by side along the axis; ``at(position, lane)`` is an index."""
    op = problem.op
    assert isinstance(op, CumSum)
    (data,), out, wide = problem.inputs, problem.output, problem.accumulator
    extent = out.shape[op.axis % len(out.shape)]
    acc = Buffer("acc", (count,), wide, "local")
    clear = in_lanes(count, lambda k: Store(acc, (k,), identity_of("sum", wide)))

    def step(position: LoopExpr) -> Stmt:
        add = in_lanes(count, lambda k: Store(acc, (k,), acc[k] + data[at(position, k)].astype(wide)))
        put = in_lanes(count, lambda k: Store(out, at(position, k), acc[k].astype(out.dtype)))
        return seq(put, add) if op.exclusive else seq(add, put)

    return Alloc(acc, seq(clear, loop(extent, step, name="r")))
