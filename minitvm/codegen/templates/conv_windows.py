"""Convolution by im2col: windows of some rows of results are copied side by side, then multiplied with all channels.

Where images are small or much is padded, pixels in lanes also compute what lies between rows, and read vectors that
begin anywhere.  Windows have no gaps.  The copy of one pixel's serves all channels, so many of them pay for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from minitvm.codegen.default_schedule import Element, filled
from minitvm.codegen.loops import inside, or_zero, parallel, unflatten
from minitvm.codegen.problem import Choice, Tile
from minitvm.codegen.templates.conv_shapes import ConvShapes
from minitvm.codegen.templates.product import Gemm, Matrix, Product
from minitvm.codegen.templates.tile import WRITTEN, Run, least_cycles, over, runs, step_cycles, tiles
from minitvm.codegen.templates.window import PhasedAxis
from minitvm.cpu_costs import CPU
from minitvm.ir.loop import Buffer, Const, Load, LoopExpr, Stmt, const, seq
from minitvm.ir.loop.builder import LoopBuilder
from minitvm.target import MachineModel

WINDOWS = "windows of some rows copied"


@dataclass(frozen=True)
class ConvWindows:
    """``out[k, position] = sum over r of weight[k, r] * windows[r, position]`` for the positions of some rows."""

    shapes: ConvShapes
    dtype: str
    machine: MachineModel

    @property
    def vertical(self) -> PhasedAxis:
        return self.shapes.windows[-2]

    @property
    def width(self) -> int:
        return self.shapes.windows[-1].outputs

    @property
    def outer(self) -> list[int]:
        return [w.outputs for w in self.shapes.windows[:-2]]

    @property
    def reduced(self) -> tuple[int, ...]:
        """What the depth counts through."""
        return (self.shapes.inputs, *(w.taps for w in self.shapes.windows))

    @property
    def depth(self) -> int:
        return math.prod(self.reduced)

    @property
    def lanes(self) -> int:
        return self.machine.lanes(self.dtype)

    def vectors(self, rows: int) -> int:
        return -(-rows * self.width // self.lanes)

    # --- the search space ---------------------------------------------------------------------------------------------

    def choices(self) -> list[Choice]:
        """None where not even one row's windows stay in the cache, or neighbouring results are channels."""
        if self.shapes.layout_of_result.axes[-1].name == "C" or self.rows == 0:
            return []
        items = self._images * -(-self.vertical.outputs // self.rows)
        against = "too few rows for the threads" if items < self.machine.threads else ""
        found = tiles(self.shapes.channels, self.vectors(self.rows), self.machine)
        return [Choice(WINDOWS, tile, self._cycles(tile), against) for tile in found]

    @property
    def _images(self) -> int:
        return self.shapes.batch * self.shapes.groups * math.prod(self.outer)

    @cached_property
    def rows(self) -> int:
        """The rows of a work item, those with the least work; 0 where there are none."""

        def work(rows: int) -> float:
            found = sum(run.count * (self._least(run.size) + self._beside(run.size)) for run in self._strips(rows))
            return round(found, 6)

        return min(self._fitting(), key=lambda rows: (work(rows), -rows), default=0)

    def _strips(self, rows: int) -> list[Run]:
        return runs(self.vertical.outputs, rows)

    def _least(self, rows: int) -> float:
        return least_cycles(self.shapes.channels, self.vectors(rows), self.machine)

    def _beside(self, rows: int) -> float:
        """Of the copy, and of weights that come from beyond the second-level cache for every work item."""
        shapes = self.shapes
        bytes_of_all = math.prod(shapes.weight.shape) // shapes.groups * np.dtype(shapes.weight.dtype).itemsize
        weights = 0 if bytes_of_all <= self.machine.l2_bytes else bytes_of_all / self.depth / CPU.l3_bytes_per_cycle
        return CPU.copy_vector * shapes.windows[-1].stride * rows * -(-self.width // self.lanes) + weights

    def _fitting(self) -> Iterator[int]:
        """Those whose windows stay in the second-level cache, and that leave every thread its share; or one."""
        threads, outputs = self.machine.threads, self.vertical.outputs
        wanted = -(-CPU.items_per_thread * threads // self._images) if threads > 1 else 1
        for rows in range(1, outputs + 1):
            nbytes = self.depth * self.vectors(rows) * self.machine.vector_bytes
            few = rows == 1 or (rows * self.width <= WRITTEN and -(-outputs // rows) >= wanted)
            if few and nbytes <= self.machine.l2_bytes // 2:
                yield rows

    def _cycles(self, tile: Tile) -> float:
        def strip(rows: int) -> float:
            vectors, channels = self.vectors(rows), self.shapes.channels
            leaves = self.depth * vectors * self.machine.vector_bytes > self.machine.l1_bytes
            least = -(-channels // tile.rows) * vectors * CPU.l2_vector if leaves else 0.0
            return max(step_cycles(channels, vectors, tile), least) + self._beside(rows)

        return self._images * self.depth * sum(run.count * strip(run.size) for run in self._strips(self.rows))

    # --- the loops ----------------------------------------------------------------------------------------------------

    def loops(self, choice: Choice) -> Stmt:
        """A nest for every number of rows of a work item."""
        code, shapes = LoopBuilder(), self.shapes
        for run in self._strips(self.rows):
            with parallel(code, (shapes.batch, shapes.groups, *self.outer, run.count)) as (n, group, *outer, at):
                _Strip(self, n, group, tuple(outer), run.start(at), run.size).loops(code, choice.tile)
        return code.stmt


@dataclass(frozen=True)
class _Strip:
    """``rows`` of results from ``top`` on, at a place on the axes before."""

    of: ConvWindows
    n: LoopExpr
    group: LoopExpr
    outer: tuple[LoopExpr, ...]
    top: LoopExpr
    rows: int

    def loops(self, code: LoopBuilder, tile: Tile) -> None:
        of, positions = self.of, self.rows * self.of.width
        windows = Buffer("windows", (of.depth, of.vectors(self.rows) * of.lanes), of.dtype, "shared")
        left = Matrix.stored(1, of.shapes.channels, of.depth, self._weight, False)
        out = Matrix.stored(1, of.shapes.channels, positions, self._result, False)
        right = Matrix.of(windows).part(0, positions)
        product = Product(left, right, out, of.dtype, panels=lambda _, r, j: windows[r, j])
        gemm = Gemm(product, tile, of.lanes)
        with code.memory(windows):
            code.emit(self._fill(windows))
            for row, size in over(code, gemm.rows):
                gemm.whole_rows(code, Const(0), row, size)

    def _weight(self, _: LoopExpr, k: LoopExpr, r: LoopExpr) -> Load:
        c, *taps = unflatten(r, self.of.reduced)
        return self.of.shapes.filter(self.group, k, c, taps, [Const(0)] * len(taps))

    def _result(self, _: LoopExpr, k: LoopExpr, position: LoopExpr) -> Load:
        shapes, where = self.of.shapes, self.top * self.of.width + position
        spot = (*self.outer, where // self.of.width, where % self.of.width)
        return shapes.result(self.n, self.group * shapes.channels + k, spot, [Const(0)] * len(spot))

    def _fill(self, windows: Buffer) -> Stmt:
        """Every element of every window, zero where it is padding; zeros behind the last."""
        of, axes = self.of, self.of.shapes.windows
        positions, depth = self.rows * of.width, of.reduced

        def element(c: LoopExpr, *index: LoopExpr) -> Element:
            taps, (y, x) = index[:-2], index[-2:]
            spots = [w.coordinate(p, t) for w, p, t in zip(axes, (*self.outer, self.top + y, x), taps, strict=True)]
            pixel = of.shapes.pixel(self.n, self.group * of.shapes.inputs + c, spots).astype(of.dtype)
            r = c
            for extent, tap in zip(depth[1:], taps, strict=True):
                r = r * extent + tap
            return (r, y * of.width + x), or_zero(inside(spots, [w.extent for w in axes]), pixel)

        def behind(r: LoopExpr, j: LoopExpr) -> Element:
            return (r, j + positions), const(0, windows.dtype)

        rest = windows.shape[1] - positions
        copied = filled(windows, (*depth, self.rows, of.width), element, of.machine, False)
        return seq(copied, filled(windows, (of.depth, rest), behind, of.machine, False) if rest else None)
