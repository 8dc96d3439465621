"""Running sums and products: one accumulator a row, or one for each of the columns behind the axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from minitvm.codegen.long_sums import LONGEST
from minitvm.codegen.loops import in_lanes, in_strips, in_vectors, unflatten, with_memory
from minitvm.codegen.problem import TEMPLATES, Choice, Template, Tile
from minitvm.cpu_costs import CPU
from minitvm.ir.decision import Declined
from minitvm.ir.dims import Dim, product
from minitvm.ir.dtypes import is_float
from minitvm.ir.loop import Alloc, Buffer, LoopExpr, LoopKind, Stmt, Store, as_index, loop, seq
from minitvm.ir.op import identity_of
from minitvm.ir.ops.tensor import Running

_VECTORS = 4
"""Sums of neighbouring columns that are written out."""


@TEMPLATES.register("llvm", "cumsum", "cumprod")
class RunningSum(Template):
    """A running sum or product.  Any dtype, shape and axis: what lies behind the axis in lanes, what lies before it in
    parallel."""

    op: Running
    symbolic = True

    def refusal(self) -> Declined | None:
        return None

    def choices(self) -> Sequence[Choice]:
        """The numbers of sums that may be written out side by side."""
        steps = math.prod(d for d in self.problem.output.shape if isinstance(d, int)) / self.lanes
        return [Choice("columns in lanes", Tile(1, v), steps * (1 + 1 / v)) for v in range(1, _VECTORS + 1)]

    @property
    def axis(self) -> int:
        return self.op.axis % len(self.problem.output.shape)

    def loops(self, choice: Choice) -> Stmt:
        shape, lanes = self.problem.output.shape, choice.tile.blocks * self.lanes
        rows, columns = product(shape[: self.axis]), product(shape[self.axis + 1 :])
        width = self._width(rows, columns, lanes)
        return in_strips(rows, columns, width, partial(self._sums, lanes), LoopKind.PARALLEL)

    def _width(self, rows: Dim, columns: Dim, lanes: int) -> int:
        """Most columns at a time: a run of memory as long as the second-level cache has room for its sums, as few
        as give every thread its pieces; vectors where only a run knows how many there are."""
        if not isinstance(rows, int) or not isinstance(columns, int):
            return min(columns, lanes) if isinstance(columns, int) else lanes
        threads, size = self.machine.threads, np.dtype(self.accumulator).itemsize
        pieces = CPU.items_per_thread * threads if threads > 1 else 1
        most = min(self.machine.l2_bytes // 4 // size, rows * columns // pieces)
        even = -(-columns // -(-columns // max(1, most)))
        return min(columns, -(-even // lanes) * lanes)

    def _sums(self, lanes: int, row: LoopExpr, first: LoopExpr, count: int) -> Stmt:
        """``count`` sums side by side along the axis; long ones of floats in blocks, on top of what is before each."""
        (data,), out, axis = self.problem.inputs, self.problem.output, self.axis
        acc = Buffer("acc", (count,), self.accumulator)
        acc = replace(acc, scope="local" if acc.fits(CPU.stack_bytes) else "shared")
        before, extent, kind = replace(acc, name="before"), out.shape[axis], self.op.kind
        in_blocks = kind == "sum" and is_float(acc.dtype) and not (isinstance(extent, int) and extent <= LONGEST)

        def at(position: LoopExpr, k: LoopExpr) -> tuple[LoopExpr, ...]:
            return (*unflatten(row, out.shape[:axis]), position, *unflatten(first + k, out.shape[axis + 1 :]))

        def each(*bodies: Callable[[LoopExpr], Stmt]) -> Stmt:
            def vector(start: LoopExpr, width: int) -> Stmt:
                def lanes(body: Callable[[LoopExpr], Stmt]) -> Stmt:
                    return in_lanes(width, lambda lane: body(start + lane))

                return seq(*map(lanes, bodies))

            return in_vectors(count, min(count, lanes), vector)

        def clear(buffer: Buffer) -> Stmt:
            return each(lambda k: Store(buffer, (k,), identity_of(kind, acc.dtype)))

        def step(position: LoopExpr) -> Stmt:
            def add(k: LoopExpr) -> Stmt:
                element = data[at(position, k)].astype(acc.dtype)
                return Store(acc, (k,), acc[k] + element if kind == "sum" else acc[k] * element)

            def put(k: LoopExpr) -> Stmt:
                total = before[k] + acc[k] if in_blocks else acc[k]
                return Store(out, at(position, k), total.astype(out.dtype))

            return each(put, add) if self.op.exclusive else each(add, put)

        def block(start: LoopExpr | int, length: Dim) -> Stmt:
            steps = loop(length, lambda r: step(start + r), name="r")
            return seq(clear(acc), steps, each(lambda k: Store(before, (k,), before[k] + acc[k])))

        if not in_blocks:
            return Alloc(acc, seq(clear(acc), loop(extent, step, name="r")))
        whole = extent // LONGEST
        blocks = loop(whole, lambda b: block(b * LONGEST, LONGEST), name="block")
        last = block(as_index(whole) * LONGEST, extent - whole * LONGEST)
        return with_memory([acc, before], seq(clear(before), blocks, last))
