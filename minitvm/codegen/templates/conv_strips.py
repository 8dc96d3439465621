"""Convolution with pixels in lanes, some rows of results at a time, over a copy of what they read of the image.

The planes of many channels lie in as many pages of memory.  A strip of all channels is small and stays near; all
phases of a transposed convolution read the same one, and whole rows of results are stored from their sums.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from minitvm.codegen.loops import parallel
from minitvm.codegen.problem import Choice, Tile
from minitvm.codegen.templates.conv_shapes import ConvAxis, ConvShapes
from minitvm.codegen.templates.tile import TileKernel, least_cycles, over, runs, step_cycles, store_at, tiles, vectors
from minitvm.codegen.templates.window import PhasedAxis, PhasedImage
from minitvm.cpu_costs import CPU
from minitvm.ir.loop import Buffer, Const, Load, LoopExpr, Stmt, Store
from minitvm.ir.loop.builder import LoopBuilder
from minitvm.target import MachineModel

STRIPS = "pixels in lanes, strips of the image copied"


@dataclass(frozen=True)
class ConvStrips:
    """``parts``: the convolutions that make up the operator, over one image with two spatial axes."""

    parts: Sequence[ConvShapes]
    dtype: str
    machine: MachineModel

    @cached_property
    def lanes(self) -> int:
        return self.machine.lanes(self.dtype)

    @property
    def shapes(self) -> ConvShapes:
        return self.parts[0]

    @property
    def across(self) -> PhasedAxis:
        return self.shapes.windows[-1]

    @cached_property
    def outputs(self) -> int:
        """Rows of a phase's results."""
        return max(part.windows[-2].outputs for part in self.parts)

    @cached_property
    def down(self) -> list[tuple[ConvAxis, list[ConvShapes]]]:
        """The parts of every set of rows, which together make up whole rows."""
        return [(axis, [*some]) for axis, some in itertools.groupby(self.parts, lambda part: part.axes[-2])]

    # --- the search space ---------------------------------------------------------------------------------------------

    def choices(self) -> list[Choice]:
        """None where there is one row, or not even one row's strip stays in the cache."""
        if len(self.shapes.axes) > 2 or self.outputs == 1 or self.rows == 0:
            return []
        found = tiles(self.shapes.channels, self.vectors(self.rows), self.machine)
        against = "too few rows for the threads" if self._items(self.rows) < self.machine.threads else ""
        return [Choice(STRIPS, tile, self._cycles(self.rows, tile), against) for tile in found]

    @cached_property
    def rows(self) -> int:
        """The rows of a strip, those with the least work; 0 where there are none."""
        wanted = CPU.items_per_thread * self.machine.threads if self.machine.threads > 1 else 1
        sizes = {-(-self.outputs // count) for count in range(1, self.outputs + 1)}
        near = [rows for rows in sizes if self._stays(rows)]
        fitting = [rows for rows in near if self._items(rows) >= wanted] or [min(near, default=0)]
        return min(fitting, key=lambda rows: (round(self._cycles(rows), 6), -rows) if rows else (0.0, 0))

    def _stays(self, rows: int) -> bool:
        """True if a strip stays in the second-level cache, and the sums of a tile's channels in the first."""
        sums = self.vectors(rows) * self.machine.vector_bytes * min(8, self.shapes.channels) * self.phases
        return self._strip_bytes(rows) <= self.machine.l2_bytes // 2 and sums <= self.machine.l1_bytes // 2

    def _items(self, rows: int) -> int:
        return self.shapes.batch * self.shapes.groups * -(-self.outputs // rows)

    def _cycles(self, rows: int, tile: Tile | None = None) -> float:
        """In tiles of ``tile``, or of the best."""
        channels, count = self.shapes.channels, self.vectors(rows)
        if tile is None:
            step = least_cycles(channels, count, self.machine, CPU.unaligned_loads)
        else:
            step = step_cycles(channels, count, tile, CPU.unaligned_loads)
        results = sum(axis.phases for axis, _ in self.down) * self.phases
        sums = sum(self._depth(part) * math.prod(a.phases for a in part.axes) for part in self.parts)
        copied = self.image(rows).buffer.size / self.lanes * CPU.copy_vector
        return self._items(rows) * (sums * step + CPU.store_sums * channels * count * results + copied)

    def _depth(self, part: ConvShapes) -> int:
        return part.inputs * math.prod(w.taps for w in part.windows)

    @property
    def phases(self) -> int:
        """The phases of the results, across."""
        return sum(part.axes[-1].phases for part in self.down[0][1])

    def vectors(self, rows: int) -> int:
        """The vectors of a strip's positions."""
        return -(-((rows - 1) * self.across.pitch + max(p.windows[-1].outputs for p in self.parts)) // self.lanes)

    def _strip_bytes(self, rows: int) -> int:
        nbytes = self.image(rows).buffer.nbytes
        assert isinstance(nbytes, int)
        return nbytes

    def image(self, rows: int) -> PhasedImage:
        """A copy of a group's channels, as far as so many rows of results read them; an odd number of cache lines for
        each, so that all places of a cache are used."""
        reach = max(part.windows[-2].reach for part in self.parts)
        axes = replace(self.shapes.windows[-2], outputs=rows, least=rows + reach), self.across
        read = reach * self.across.pitch + self.vectors(rows) * self.lanes
        read += max(part.windows[-1].reach for part in self.parts)
        line = CPU.line_bytes // np.dtype(self.dtype).itemsize
        size = (-(-max(read, (rows + reach) * self.across.pitch) // line) | 1) * line
        image = PhasedImage.of(1, self.shapes.inputs, axes, size, self.dtype)
        return replace(image, buffer=replace(image.buffer, scope="shared"))

    # --- the loops ----------------------------------------------------------------------------------------------------

    def loops(self, choice: Choice) -> Stmt:
        code, image = LoopBuilder(), self.image(self.rows)
        extents = self.shapes.batch, self.shapes.groups, -(-self.outputs // self.rows)
        with parallel(code, extents) as (n, group, strip):
            _Strip(code, self, image, choice.tile, n, group, strip * self.rows).loops()
        return code.stmt


@dataclass(frozen=True)
class _Strip:
    """Rows of results from ``top`` on, all phases of them."""

    code: LoopBuilder
    of: ConvStrips
    image: PhasedImage
    tile: Tile
    n: LoopExpr
    group: LoopExpr
    top: LoopExpr

    def loops(self) -> None:
        of, code, shapes = self.of, self.code, self.of.shapes
        first = self.group * shapes.inputs
        with code.memory(self.image.buffer):
            code.emit(self.image.fill(lambda _, c, spots: shapes.pixel(self.n, first + c, spots), of.machine, self.top))
            for axis, parts in of.down:
                with code.loop(axis.phases, "p") as phase:
                    for k, count in over(code, runs(shapes.channels, self.tile.rows), "k"):
                        self._channels(k, count, parts, phase)

    def _channels(self, first: LoopExpr, count: int, parts: Sequence[ConvShapes], phase: LoopExpr) -> None:
        """Sums of all phases across, then whole rows of results."""
        of, code = self.of, self.code
        sums = Buffer("sums", (count, of.phases, of.vectors(of.rows) * of.lanes), of.dtype, "local")
        with code.memory(sums):
            for part in parts:
                with code.loop(part.axes[-1].phases, "q") as q:
                    for block, size in over(code, runs(of.vectors(of.rows), self.tile.blocks)):
                        self._tile(part, first, sums, (phase, q), block, size)
            self._results(parts[0], first, sums, phase)

    def _tile(
        self,
        part: ConvShapes,
        first: LoopExpr,
        sums: Buffer,
        phases: tuple[LoopExpr, LoopExpr],
        block: LoopExpr,
        size: int,
    ) -> None:
        of, lanes = self.of, self.of.lanes

        def finish(k: LoopExpr, b: LoopExpr, lane: LoopExpr, value: LoopExpr) -> Stmt:
            return Store(sums, (k, part.axes[-1].first_result + phases[1], (block + b) * lanes + lane), value)

        tile = TileKernel(
            sums.shape[0],
            size,
            lanes,
            of.dtype,
            lambda k, _, c, *taps: part.filter(self.group, first + k, c, taps, phases),
            lambda b, lane, c, *taps: self._pixel(part, c, taps, (block + b) * lanes + lane),
            finish,
        )
        taps = part.inputs, *(w.taps for w in part.windows)
        with tile.sums(self.code) as step, self.code.nest(taps, "i") as index:
            step(*index)

    def _pixel(self, part: ConvShapes, c: LoopExpr, taps: Sequence[LoopExpr], position: LoopExpr) -> LoopExpr:
        planes = [w.plane(t) for w, t in zip(part.windows, taps, strict=True)]
        (vertical, across), pitch = part.windows, self.of.across.pitch
        spot = vertical.offset(taps[0]) * pitch + across.offset(taps[1]) + position
        return Load(self.image.buffer, (Const(0), c, *planes, spot))

    def _results(self, part: ConvShapes, first: LoopExpr, sums: Buffer, phase: LoopExpr) -> None:
        """Rows of the sums; neighbours are those of the phases."""
        of, code, vertical = self.of, self.code, part.axes[-2]
        whole = replace(part, axes=(vertical, ConvAxis(part.windows[-1])))
        width = sum(p.windows[-1].outputs * p.axes[-1].phases for p in of.down[0][1])
        ends = -(-of.outputs // of.rows) * of.rows == vertical.window.outputs
        with code.nest((sums.shape[0], of.rows), "k") as (k, r):
            y, channel = self.top + r, self.group * part.channels + first + k
            with code.when(None if ends else y < vertical.window.outputs):
                for x in vectors(code, width, of.lanes):
                    value = sums[k, x % of.phases, r * of.across.pitch + x // of.phases]
                    code.emit(store_at(whole.result(self.n, channel, (y, x), (phase, Const(0))), value))
