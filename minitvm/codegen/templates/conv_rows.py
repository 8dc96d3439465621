"""Convolution of one channel a group: rows of the result are the rows of the register tile, pixels its lanes.

Vectors of pixels begin anywhere, so most loads of them touch two cache lines.  With one channel, pixels in lanes load
one for every multiply-add.  Here a vector of an image's row serves all results of the tile that read it, one for every
tap of a column of the window.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from functools import cached_property

from minitvm.codegen.loops import parallel
from minitvm.codegen.problem import Choice, Tile
from minitvm.codegen.templates.conv_shapes import ConvShapes
from minitvm.codegen.templates.tile import Run, TileKernel, block_runs, bound, runs, store_at
from minitvm.codegen.templates.window import PhasedAxis, PhasedImage
from minitvm.cpu_costs import CPU
from minitvm.ir.loop import Const, Load, LoopExpr, Stmt, minimum
from minitvm.ir.loop.builder import LoopBuilder
from minitvm.target import MachineModel

ROWS = "rows of the image in the tile"
_FEWEST_LANES = 4
_WRITTEN_OUT = 64  # multiply-adds of a tile's step, at most


@dataclass(frozen=True)
class ConvRows:
    """The loops; a work item is some rows of a channel's results, the image that they read copied beside zeros where it
    is padded."""

    shapes: ConvShapes
    dtype: str
    machine: MachineModel

    @property
    def vertical(self) -> PhasedAxis:
        return self.shapes.windows[-2]

    @property
    def across(self) -> PhasedAxis:
        return self.shapes.windows[-1]

    @property
    def outer(self) -> tuple[PhasedAxis, ...]:
        return self.shapes.windows[:-2]

    @cached_property
    def lanes(self) -> int:
        """No more than a row needs."""
        return min(self.machine.lanes(self.dtype), 1 << (self.across.outputs - 1).bit_length())

    @property
    def direct(self) -> bool:
        """True if the image is read as it is."""
        return all(w.is_plain for w in self.shapes.windows) and self.across.outputs >= self.lanes

    # --- the search space ---------------------------------------------------------------------------------------------

    def choices(self) -> list[Choice]:
        """None where rows of the tile would share nothing."""
        taps = self.vertical.taps
        if not self.vertical.overlap or self.lanes < _FEWEST_LANES:
            return []
        free = self.machine.vector_registers - 1
        most = min(self.vertical.outputs, _WRITTEN_OUT // taps, free - min(taps, free // 2))
        return [Choice(ROWS, Tile(r, 1), self._cycles(r), self._against(r)) for r in range(2, most + 1)]

    def _against(self, tile: int) -> str:
        items = self.shapes.batch * self.shapes.groups * -(-self.vertical.outputs // self._rows_of_item(tile))
        return "too few rows for the threads" if items < self.machine.threads else ""

    def _cycles(self, most: int) -> float:
        shapes = self.shapes
        vectors = shapes.batch * shapes.groups * math.prod(w.outputs for w in self.outer)
        vectors *= -(-self.across.outputs // self.lanes)
        down = sum(run.count * self._column(run.size) for run in runs(self.vertical.outputs, most))
        return vectors * shapes.inputs * math.prod(w.taps for w in (*self.outer, self.across)) * down

    def _column(self, rows: int) -> float:
        """Of a tile, for one column of the window."""
        taps = self.vertical.taps
        return bound(rows * taps, taps + CPU.unaligned_loads * min(rows * taps, self.read(rows)), taps)

    def read(self, rows: int) -> int:
        """Rows of the image, from the first to the last that so many rows of results read."""
        return (rows - 1) * self.vertical.stride + (self.vertical.taps - 1) * self.vertical.dilation + 1

    # --- the loops ----------------------------------------------------------------------------------------------------

    def loops(self, choice: Choice) -> Stmt:
        """A nest for every number of rows of a work item."""
        code, most = LoopBuilder(), choice.tile.rows
        for run in runs(self.vertical.outputs, self._rows_of_item(most)):
            with parallel(code, (self.shapes.batch, self.shapes.groups, run.count)) as (n, group, at):
                _Item(code, self, n, group, run.start(at), run.size, most).loops()
        return code.stmt

    def _rows_of_item(self, tile: int) -> int:
        """All, or so few that their image stays in the cache and every thread has its share; at least a tile's."""
        shapes, rows = self.shapes, self.vertical.outputs
        nbytes = 0 if self.direct else self.image(rows).buffer.nbytes
        assert isinstance(nbytes, int)
        wanted = -(-CPU.items_per_thread * self.machine.threads // (shapes.batch * shapes.groups))
        return max(min(tile, rows), -(-rows // max(wanted, -(-nbytes // (self.machine.l2_bytes // 2)))))

    def image(self, rows: int) -> PhasedImage:
        """A copy of a group's channels, as far as so many rows of results read them."""
        axes = (*self.outer, replace(self.vertical, outputs=rows), self.across)
        read = max(-(-self.across.outputs // self.lanes) * self.lanes + self.across.reach, self.across.length)
        size = (axes[-2].length - 1) * self.across.pitch + read
        image = PhasedImage.of(1, self.shapes.inputs, axes, size, self.dtype)
        scope = "local" if image.buffer.fits(CPU.stack_bytes) else "shared"
        return replace(image, buffer=replace(image.buffer, scope=scope))


@dataclass(frozen=True)
class _Item:
    """``rows`` of results from ``top`` on, in tiles of at most ``most``."""

    code: LoopBuilder
    of: ConvRows
    n: LoopExpr
    group: LoopExpr
    top: LoopExpr
    rows: int
    most: int

    def loops(self) -> None:
        if self.of.direct:
            self._tiles(None)
            return
        image, shapes = self.of.image(self.rows), self.of.shapes
        first = self.group * shapes.inputs
        with self.code.memory(image.buffer):
            fill = image.fill(lambda _, c, spots: shapes.pixel(self.n, first + c, spots), self.of.machine, self.top)
            self.code.emit(fill)
            self._tiles(image)

    def _tiles(self, image: PhasedImage | None) -> None:
        of, code = self.of, self.code
        with code.nest([w.outputs for w in of.outer], "o") as outer:
            for run, blocks in itertools.product(
                runs(self.rows, self.most), block_runs(of.across.outputs, of.lanes, 1)
            ):
                with code.nest((run.count, blocks.count), "t") as (t, block):
                    _Tile(self, image, outer, run.start(t), run.size, blocks).at(blocks.start(block))


@dataclass(frozen=True)
class _Tile:
    """Rows of an item from ``first`` on, one vector of each."""

    item: _Item
    image: PhasedImage | None
    outer: tuple[LoopExpr, ...]
    first: LoopExpr
    rows: int
    blocks: Run

    def at(self, block: LoopExpr) -> None:
        of, item, width = self.item.of, self.item, self.blocks.width
        shapes, vertical, column = of.shapes, of.vertical, block * of.lanes
        lanes = of.lanes if not width else 1 << (width - 1).bit_length()
        shifted = self.image is None and bool(width)
        """The last vector begins earlier, so that it ends with the image."""
        start = minimum(column, of.across.outputs - lanes) if shifted else column

        def weight(row: LoopExpr, _: LoopExpr, c: LoopExpr, *taps: LoopExpr) -> LoopExpr:
            *outer, x, y = taps
            tap = (y - row * vertical.stride) // vertical.dilation
            return shapes.filter(item.group, Const(0), c, (*outer, tap, x), [Const(0)] * len(shapes.axes))

        def reads(row: LoopExpr, *index: LoopExpr) -> LoopExpr:
            rest = index[-1] - row * vertical.stride
            return (rest >= 0) & (rest < vertical.taps * vertical.dilation) & (rest % vertical.dilation).equal(0)

        def finish(row: LoopExpr, _: LoopExpr, lane: LoopExpr, value: LoopExpr) -> Stmt:
            where = (*self.outer, item.top + self.first + row, column + lane)
            return store_at(shapes.result(item.n, item.group, where, [Const(0)] * len(where)), value)

        tile = TileKernel(
            self.rows,
            1,
            lanes,
            of.dtype,
            weight,
            lambda _, lane, c, *taps: self._pixel(c, taps, start + lane),
            finish,
            width=width,
            first=lanes - width if shifted else 0,
            reads=reads,
        )
        taps, code = (shapes.inputs, *(w.taps for w in of.outer), of.across.taps), item.code
        rows = range(of.read(self.rows))
        with tile.sums(code) as step, code.nest(taps, "r") as index, code.unrolled(rows, "y") as y:
            step(*index, y)

    def _pixel(self, c: LoopExpr, taps: tuple[LoopExpr, ...], column: LoopExpr) -> LoopExpr:
        """Of the item's row ``taps[-1]`` from the tile's first one on."""
        of, item = self.item.of, self.item
        *over, x, y = taps
        if self.image is None:
            outer = [o + t * w.dilation for o, t, w in zip(self.outer, over, of.outer, strict=True)]
            where = (*outer, item.top + self.first + y, column + x * of.across.dilation)
            return of.shapes.pixel(item.n, item.group * of.shapes.inputs + c, where)
        plane, row = of.vertical.place(y)
        planes = [*(w.plane(t) for w, t in zip(of.outer, over, strict=True)), plane, of.across.plane(x)]
        outer = [o + w.offset(t) for o, w, t in zip(self.outer, of.outer, over, strict=True)]
        spot = (self.first + row) * of.across.pitch + of.across.offset(x) + column
        return Load(self.image.buffer, (Const(0), c, *planes, *outer, spot))
