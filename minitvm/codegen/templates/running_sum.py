"""Running sums and products: one accumulator a row, or one for each of the columns behind the axis.

minitvm show model.onnx --schedule KERNEL    # the steps that make its loops
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from minitvm.codegen.long_sums import LONGEST
from minitvm.codegen.loops import trips, unflatten
from minitvm.codegen.problem import TEMPLATES, Choice, Tile
from minitvm.codegen.schedule_loops import find_loop, loops, parallel, split, vectorize
from minitvm.codegen.schedule_parts import distribute, fission
from minitvm.codegen.schedule_steps import Steps
from minitvm.codegen.scheduled import Scheduled
from minitvm.cpu_costs import CPU
from minitvm.ir.decision import Declined
from minitvm.ir.dims import Dim, product
from minitvm.ir.dtypes import is_float
from minitvm.ir.loop import Alloc, Buffer, Kernel, LoopExpr, LoopVar, Stmt, Store, as_index, loop, nest, seq
from minitvm.ir.op import identity_of
from minitvm.ir.ops.tensor import Running

_VECTORS = 4
"""Sums of neighbouring columns that are written out."""


@TEMPLATES.register("llvm", "cumsum", "cumprod")
class RunningSum(Scheduled):
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

    # --- what is computed -----------------------------------------------------------------------------------------

    def plain(self) -> Stmt:
        shape = self.problem.output.shape
        return nest((product(shape[: self.axis]), product(shape[self.axis + 1 :])), self._column)

    def _column(self, i: LoopExpr, j: LoopExpr) -> Stmt:
        """The sums of a row and a column; long ones of floats are made of blocks, and of what is ``before`` each."""
        extent = self.problem.output.shape[self.axis]
        acc, before = (Buffer(name, (), self.accumulator, "local") for name in ("acc", "before"))
        if self.op.kind != "sum" or not is_float(acc.dtype) or (isinstance(extent, int) and extent <= LONGEST):
            return Alloc(acc, self._block(i, j, acc, None, 0, extent))
        whole, add = extent // LONGEST, Store(before, (), before[()] + acc[()])
        each = loop(whole, lambda b: seq(self._block(i, j, acc, before, b * LONGEST, LONGEST), add), name="block")
        last = self._block(i, j, acc, before, as_index(whole) * LONGEST, extent - whole * LONGEST)
        return Alloc(acc, Alloc(before, seq(Store(before, (), self._nothing), each, last)))

    @property
    def _nothing(self) -> LoopExpr:
        return identity_of(self.op.kind, self.accumulator)

    def _block(
        self, i: LoopExpr, j: LoopExpr, acc: Buffer, before: Buffer | None, start: LoopExpr | int, length: Dim
    ) -> Stmt:
        steps = loop(length, lambda r: self._step(i, j, acc, before, start + r), name="r")
        return seq(Store(acc, (), self._nothing), steps)

    def _step(self, i: LoopExpr, j: LoopExpr, acc: Buffer, before: Buffer | None, position: LoopExpr) -> Stmt:
        shape, out = self.problem.output.shape, self.problem.output
        at = (*unflatten(i, shape[: self.axis]), position, *unflatten(j, shape[self.axis + 1 :]))
        element = self.problem.inputs[0][at].astype(acc.dtype)
        total = acc[()] + element if self.op.kind == "sum" else acc[()] * element
        so_far = acc[()] if before is None else before[()] + acc[()]
        both = Store(acc, (), total), Store(out, at, so_far.astype(out.dtype))
        return seq(*both[:: -1 if self.op.exclusive else 1])

    # --- in which order -------------------------------------------------------------------------------------------

    def schedule(self, kernel: Kernel, choice: Choice) -> Steps:
        """Strips of neighbouring columns, whose sums are in memory; those that are left over of a row, at once, or one
        by one where only a run knows how many they are."""
        steps, shape = Steps(kernel), self.problem.output.shape
        row, column = (found.var for found in loops(steps.kernel)[:2])
        lanes, columns = choice.tile.blocks * self.lanes, product(shape[self.axis + 1 :])
        (strip, some, *rest), _ = steps.do(
            split, column, self._width(product(shape[: self.axis]), columns, lanes), "peel"
        )
        nests: list[tuple[list[LoopVar], LoopVar | None]] = [([row, strip], some)]
        if rest:
            (last, left, *_), _ = steps.do(fission, row)
            nests.append(([last], left) if isinstance(columns, int) else ([last, left], None))
        for around, several in nests:
            steps.do(parallel, *around)
            if several is not None:
                self._in_memory(steps, several, lanes)
        return steps

    def _in_memory(self, steps: Steps, columns: LoopVar, lanes: int) -> None:
        """The sums of some columns side by side, ``lanes`` at a time."""
        count = trips(find_loop(steps.kernel, columns))
        is_near = Buffer("acc", (count,), self.accumulator).fits(CPU.stack_bytes)
        each, _ = steps.do(distribute, columns, "local" if is_near else "shared")
        for var in each:
            steps.do(vectorize, var, min(count, lanes))

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
