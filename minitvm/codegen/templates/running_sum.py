"""Running sums and products: one accumulator a row, or one for each of the columns behind the axis."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from minitvm.codegen.long_sums import LONGEST
from minitvm.codegen.loops import in_strips, in_vectors, unflatten
from minitvm.codegen.problem import TEMPLATES, Choice, Template, Tile
from minitvm.codegen.templates.tile import vectors
from minitvm.cpu_costs import CPU
from minitvm.ir.decision import Declined
from minitvm.ir.dims import Dim, product
from minitvm.ir.dtypes import is_float
from minitvm.ir.loop import Buffer, LoopExpr, LoopKind, Stmt, as_index
from minitvm.ir.loop.builder import LoopBuilder
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
        code = LoopBuilder()
        for row, first, count in in_strips(code, rows, columns, width, LoopKind.PARALLEL):
            _Sums(code, self, min(count, lanes), row, first, count).loops()
        return code.stmt

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


@dataclass(frozen=True)
class _Sums:
    """``count`` sums side by side along the axis, those of columns from ``first`` on of a row, ``lanes`` at a time."""

    code: LoopBuilder
    template: RunningSum
    lanes: int
    row: LoopExpr
    first: LoopExpr
    count: int

    @cached_property
    def acc(self) -> Buffer:
        acc = Buffer("acc", (self.count,), self.template.accumulator)
        return replace(acc, scope="local" if acc.fits(CPU.stack_bytes) else "shared")

    @cached_property
    def before(self) -> Buffer | None:
        """What is before a block, of long sums of floats; others are one block."""
        kind, extent = self.template.op.kind, self.template.problem.output.shape[self.template.axis]
        is_short = isinstance(extent, int) and extent <= LONGEST
        return replace(self.acc, name="before") if kind == "sum" and is_float(self.acc.dtype) and not is_short else None

    def loops(self) -> None:
        code, extent = self.code, self.template.problem.output.shape[self.template.axis]
        if self.before is None:
            with code.memory(self.acc):
                self._clear(self.acc)
                with code.loop(extent, "r") as r:
                    self._step(r)
            return
        whole = extent // LONGEST
        with code.memory(self.acc, self.before):
            self._clear(self.before)
            with code.loop(whole, "block") as b:
                self._block(self.before, b * LONGEST, LONGEST)
            self._block(self.before, as_index(whole) * LONGEST, extent - whole * LONGEST)

    def _block(self, before: Buffer, start: LoopExpr, length: Dim) -> None:
        self._clear(self.acc)
        with self.code.loop(length, "r") as r:
            self._step(start + r)
        for k in self._each():
            self.code.store(before, (k,), before[k] + self.acc[k])

    def _each(self) -> Iterator[LoopExpr]:
        return vectors(self.code, self.count, self.lanes)

    def _clear(self, buffer: Buffer) -> None:
        for k in self._each():
            self.code.store(buffer, (k,), identity_of(self.template.op.kind, buffer.dtype))

    def _step(self, position: LoopExpr) -> None:
        steps = (self._put, self._add) if self.template.op.exclusive else (self._add, self._put)
        for start, width in in_vectors(self.code, self.count, self.lanes):
            for step in steps:
                with self.code.lanes(width) as lane:
                    step(position, start + lane)

    def _at(self, position: LoopExpr, k: LoopExpr) -> tuple[LoopExpr, ...]:
        shape, axis = self.template.problem.output.shape, self.template.axis
        return (*unflatten(self.row, shape[:axis]), position, *unflatten(self.first + k, shape[axis + 1 :]))

    def _add(self, position: LoopExpr, k: LoopExpr) -> None:
        element = self.template.problem.inputs[0][self._at(position, k)].astype(self.acc.dtype)
        total = self.acc[k] + element if self.template.op.kind == "sum" else self.acc[k] * element
        self.code.store(self.acc, (k,), total)

    def _put(self, position: LoopExpr, k: LoopExpr) -> None:
        out = self.template.problem.output
        total = self.acc[k] if self.before is None else self.before[k] + self.acc[k]
        self.code.store(out, self._at(position, k), total.astype(out.dtype))
