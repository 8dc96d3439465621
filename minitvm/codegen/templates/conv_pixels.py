"""Convolution of any channels, stride, window and layout: neighbouring pixels in lanes, weights broadcast.

Channels are the rows of the register tile, positions its lanes.  Results of a *line* lie at neighbouring positions of
the image: a whole plane, some of its rows, or one.  Where lines hold several rows of a wide window, positions between
rows are computed too, and left out when a line's sums are copied to the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from minitvm.codegen.loops import parallel
from minitvm.codegen.problem import TEMPLATES, Choice, Template, Tile
from minitvm.codegen.templates.conv_rows import ROWS, ConvRows
from minitvm.codegen.templates.conv_shapes import ConvProduct, ConvShapes, conv_product, conv_shapes
from minitvm.codegen.templates.conv_strips import STRIPS, ConvStrips
from minitvm.codegen.templates.conv_windows import WINDOWS, ConvWindows
from minitvm.codegen.templates.tile import (
    Run,
    TileKernel,
    block_runs,
    least_cycles,
    runs,
    step_cycles,
    store_at,
    tiles,
    vectors,
)
from minitvm.codegen.templates.window import PhasedAxis, PhasedImage
from minitvm.cpu_costs import CPU
from minitvm.ir.loop import Barrier, Buffer, Load, LoopExpr, Stmt, Store, minimum
from minitvm.ir.loop.builder import LoopBuilder
from minitvm.ir.ops.nn_conv import Conv1d, Conv2d, Conv3d
from minitvm.ir.ops.nn_conv_transpose import Conv1dTranspose, Conv2dTranspose, Conv3dTranspose
from minitvm.target import MachineModel


@TEMPLATES.register("llvm", Conv1dTranspose, Conv2dTranspose, Conv3dTranspose)
class TransposedConv(Template):
    """One convolution of pixels for each set of phases of the results, all over one copy of the image."""

    @cached_property
    def parts(self) -> list[_Pixels]:
        return [_Pixels(part, self.accumulator, self.machine) for part in conv_shapes(self.problem)]

    def choices(self) -> Sequence[Choice]:
        channels, width = self.parts[0].shapes.channels, max(part.vectors for part in self.parts)
        found = [
            Choice("pixels in lanes", tile, sum(part.cycles(tile) for part in self.parts))
            for tile in tiles(channels, width, self.machine)
        ]
        far = self.problem.as_given and any(part.leaves_cache for part in self.parts)
        return found + self.strips.choices() if far else found

    @cached_property
    def strips(self) -> ConvStrips:
        return ConvStrips([part.shapes for part in self.parts], self.accumulator, self.machine)

    def loops(self, choice: Choice) -> Stmt:
        if choice.scheme == STRIPS:
            return self.strips.loops(choice)
        first, size = self.parts[0].shapes, max(part.flat_size for part in self.parts)
        image = PhasedImage.of(first.batch, first.inputs * first.groups, first.windows, size, self.accumulator)
        code, direct = LoopBuilder(), all(part.direct for part in self.parts)
        with code.memory(*[image.buffer] * (not direct)):
            if not direct:
                code.emit(image.fill(first.pixel, self.machine), Barrier())
            for p in self.parts:
                _PixelLoops(p.shapes, p.dtype, p.machine, choice.tile, image, code).nests()
        return code.stmt


@TEMPLATES.register("llvm", Conv1d, Conv2d, Conv3d)
class PixelConv(TransposedConv):
    """Any layout, strides, padding, dilation and groups; as a matrix product where it is one."""

    @cached_property
    def product(self) -> ConvProduct | None:
        return conv_product(self.problem, self.accumulator, self.machine)

    @cached_property
    def rows(self) -> ConvRows:
        return ConvRows(self.parts[0].shapes, self.accumulator, self.machine)

    @cached_property
    def windows(self) -> ConvWindows:
        return ConvWindows(self.parts[0].shapes, self.accumulator, self.machine)

    def choices(self) -> Sequence[Choice]:
        if self.product is not None:
            return self.product.choices()
        found = [*super().choices()]
        if self.parts[0].shapes.channels == 1:
            found += self.rows.choices()
        if self.problem.as_given and min(choice.cycles for choice in found) > self._cycles_of_windows():
            found += self.windows.choices()
        return found

    def _cycles_of_windows(self) -> float:
        """Those that copied windows take where all rows are copied at once: vectors without gaps, and the copy."""
        pixels, shapes = self.parts[0], self.parts[0].shapes
        *outer, rows, width = (axis.outputs for axis in pixels.axes)
        vectors = -(-rows * width // pixels.lanes)
        step = least_cycles(shapes.channels, vectors, self.machine) + CPU.copy_vector * vectors
        return shapes.batch * shapes.groups * math.prod(outer) * pixels.steps * step

    def loops(self, choice: Choice) -> Stmt:
        if choice.scheme in (ROWS, WINDOWS):
            return (self.rows if choice.scheme == ROWS else self.windows).loops(choice)
        return super().loops(choice) if self.product is None else self.product.loops(choice)


@dataclass(frozen=True)
class _Lines:
    """How results lie along the lanes: ``count`` lines of ``rows`` rows, which begin ``pitch`` positions apart."""

    count: int
    rows: int
    pitch: int
    positions: int  # from the first to the last result of a line

    @staticmethod
    def all(vertical: PhasedAxis, across: PhasedAxis) -> list[_Lines]:
        """One for each number of rows; lines without gaps hold all of them."""
        if across.pitch == across.outputs:
            return [_Lines(1, vertical.outputs, across.pitch, vertical.outputs * across.outputs)]
        found = []
        for count in {-(-vertical.outputs // rows) for rows in range(1, vertical.outputs + 1)}:
            rows = -(-vertical.outputs // count)
            found.append(_Lines(count, rows, across.pitch, (rows - 1) * across.pitch + across.outputs))
        return found


@dataclass(frozen=True)
class _Pixels:
    """A convolution whose pixels lie in the lanes: what that makes of its shapes."""

    shapes: ConvShapes
    dtype: str
    machine: MachineModel

    @property
    def axes(self) -> tuple[PhasedAxis, ...]:
        return self.shapes.windows

    @cached_property
    def lanes(self) -> int:
        return self.machine.lanes(self.dtype)

    @cached_property
    def steps(self) -> int:
        """Of the reduction."""
        return self.shapes.inputs * math.prod(a.taps for a in self.axes)

    @cached_property
    def lines(self) -> _Lines:
        """Those with the least work, whose sums stay in the cache, and which give every thread something to do."""
        shapes, machine = self.shapes, self.machine
        found = _Lines.all(*self.axes[-2:])
        most = machine.l1_bytes // 2 // machine.vector_bytes // min(8, shapes.channels) * self.lanes
        others = shapes.batch * shapes.groups * -(-shapes.channels // machine.vector_registers)
        fitting = [f for f in found if f.rows == 1 or (f.positions <= most and f.count * others >= machine.threads)]
        return min(fitting or found, key=lambda lines: (self._work(lines), lines.rows))

    def _work(self, lines: _Lines) -> float:
        """Cycles: full vectors, and enough of them side by side, against results that go through memory."""
        channels, vectors = self.shapes.channels, -(-lines.positions // self.lanes)
        through = CPU.store_sums * channels * vectors if lines.rows > 1 else 0
        return lines.count * (self.steps * least_cycles(channels, vectors, self.machine, CPU.unaligned_loads) + through)

    @property
    def vectors(self) -> int:
        """Of a line."""
        return -(-self.lines.positions // self.lanes)

    @property
    def gaps(self) -> bool:
        """True if there are positions between the rows of a line, whose sums are no results."""
        apart = self.lines.pitch > self.axes[-1].outputs or self.shapes.axes[-1].result_step > 1
        return self.lines.rows > 1 and apart

    @property
    def direct(self) -> bool:
        """True if the image is read as it is."""
        return all(a.is_plain for a in self.axes) and not self.gaps and self.lines.positions >= self.lanes

    @property
    def weights_fit(self) -> bool:
        nbytes = math.prod(self.shapes.weight.shape) * self.machine.vector_bytes // self.lanes
        return nbytes // self.shapes.groups <= self.machine.l2_bytes // 2

    @property
    def flat_size(self) -> int:
        """Of a flat row of the image, up to the last position that a tile reads."""
        vertical, across = self.axes[-2:]
        last_line = (self.lines.count - 1) * self.lines.rows * self.lines.pitch
        read = last_line + self.vectors * self.lanes + vertical.reach * self.lines.pitch + across.reach
        return max(read, vertical.length * self.lines.pitch)

    @property
    def image_extents(self) -> list[int]:
        """Phases of the results, outer axes, lines."""
        return [*(a.phases for a in self.shapes.axes), *(a.outputs for a in self.axes[:-2]), self.lines.count]

    def cycles(self, tile: Tile) -> float:
        lines = self.shapes.batch * self.shapes.groups * math.prod(self.image_extents)
        through = CPU.store_sums * self.shapes.channels * self.vectors if self.gaps else 0
        step = step_cycles(self.shapes.channels, self.vectors, tile, CPU.unaligned_loads)
        if self.leaves_cache:
            step += -(-self.shapes.channels // tile.rows) * self.vectors * CPU.l2_vector
        return lines * (self.steps * step + through)

    @property
    def leaves_cache(self) -> bool:
        """True if the next tile finds nothing of what this one read: of the planes of all channels, which lie far
        apart, some rows each, of these two cache lines."""
        vertical, across = self.axes[-2:]
        read = self.shapes.inputs * vertical.taps * across.planes * 2 * CPU.line_bytes
        return not self.direct and read > self.machine.l1_bytes // 2


@dataclass(frozen=True)
class _Place:
    """The place where a work item is: image, group, its channels from ``channel`` on, phase of the results, outer axes,
    line."""

    n: LoopExpr
    group: LoopExpr
    channel: LoopExpr
    channels: int
    phases: tuple[LoopExpr, ...]
    outer: tuple[LoopExpr, ...]
    line: LoopExpr


Finish = Callable[[LoopExpr, LoopExpr, LoopExpr], Stmt]
"""Store the sum of (channel of the tile, position of the line)."""


@dataclass(frozen=True)
class _PixelLoops(_Pixels):
    """The loops over one copy of the image, or the image itself."""

    tile: Tile
    image: PhasedImage
    code: LoopBuilder

    def nests(self) -> None:
        blocks = block_runs(self.lines.positions, self.lanes, self.tile.blocks)
        for c in runs(self.shapes.channels, self.tile.rows):
            if self.gaps:
                self._through_sums(c)
            else:
                for b in blocks:
                    for s in runs(b.count, self._section(b.count)):
                        self._stored(c, b, s)

    # --- what a work item is ------------------------------------------------------------------------------------------

    def _stored(self, channels: Run, blocks: Run, sections: Run) -> None:
        """Tiles that store to the result."""
        with self._items(channels, sections.count) as (place, section):
            self._tiles(place, blocks, sections.start(section), sections.size, self._finish(place))

    def _section(self, count: int) -> int:
        """Neighbouring tiles of a work item: so many that what they read stays in the cache for all channels."""
        shapes, machine = self.shapes, self.machine
        read = self.tile.blocks * machine.vector_bytes * shapes.inputs
        most = max(1, machine.l2_bytes // 4 // read) if self.weights_fit else count
        others = shapes.batch * shapes.groups * self.lines.count * -(-shapes.channels // self.tile.rows)
        wanted = -(-CPU.items_per_thread * machine.threads // others)
        return max(1, min(most, count // wanted))

    def _through_sums(self, channels: Run) -> None:
        """Whole lines, whose sums are copied to the result without what lies between the rows."""
        sums = Buffer("sums", (channels.size, self.vectors * self.lanes), self.dtype, "local")

        def finish(k: LoopExpr, position: LoopExpr, value: LoopExpr) -> Stmt:
            return Store(sums, (k, position), value)

        with self._items(channels, 1) as (place, _), self.code.memory(sums):
            for b in runs(self.vectors, self.tile.blocks):
                self._tiles(place, b, 0, b.count, finish)
            self._copy_out(place, sums)

    def _copy_out(self, place: _Place, sums: Buffer) -> None:
        (vertical, across), lines, code = self.axes[-2:], self.lines, self.code
        whole = lines.count * lines.rows == vertical.outputs
        with code.loop(place.channels, "k") as k, code.loop(lines.rows, "row") as r:
            y = place.line * lines.rows + r
            with code.when(None if whole else y < vertical.outputs):
                for x in vectors(code, across.outputs, self.lanes):
                    code.emit(self._store(place, k, (y, x), sums[k, r * lines.pitch + x]))

    @contextmanager
    def _items(self, channels: Run, sections: int) -> Iterator[tuple[_Place, LoopExpr]]:
        """Work items in the order that keeps the smaller operand in the cache: weights, or a section of the image."""
        fit, phases = self.weights_fit, len(self.shapes.axes)
        image = [*self.image_extents, sections]
        extents = [*image, channels.count] if fit else [channels.count, *image]
        wanted = CPU.items_per_thread * self.machine.threads
        with parallel(self.code, (self.shapes.batch, self.shapes.groups, *extents), wanted) as (n, group, *rest):
            strip, where = (rest[-1], tuple(rest[:-1])) if fit else (rest[0], tuple(rest[1:]))
            channel = channels.start(strip)
            place = _Place(n, group, channel, channels.size, where[:phases], where[phases:-2], where[-2])
            yield place, where[-1]

    # --- a tile -------------------------------------------------------------------------------------------------------

    def _tiles(self, place: _Place, blocks: Run, first: LoopExpr | int, count: int, finish: Finish) -> None:
        """``count`` tiles of ``blocks`` from the ``first`` on."""
        with self.code.loop(count, "tile") as t:
            self._tile(place, blocks, blocks.start(t + first), finish)

    def _tile(self, place: _Place, blocks: Run, block: LoopExpr, finish: Finish) -> None:
        shapes, lanes = self.shapes, self.lanes
        shifted = self.direct and bool(blocks.width)
        """The last vector begins earlier, so that it ends with the image."""

        def at(b: LoopExpr) -> LoopExpr:
            first = (block + b) * lanes
            return minimum(first, self.lines.positions - lanes) if shifted else first

        tile = TileKernel(
            place.channels,
            blocks.size,
            lanes,
            self.dtype,
            lambda k, _, c, *taps: shapes.filter(place.group, place.channel + k, c, taps, place.phases),
            lambda b, lane, c, *taps: self._pixel(place, c, at(b) + lane, taps),
            lambda k, b, lane, value: finish(k, (block + b) * lanes + lane, value),
            width=blocks.width,
            first=lanes - blocks.width if shifted else 0,
        )
        with tile.sums(self.code) as step, self.code.nest((shapes.inputs, *(a.taps for a in self.axes)), "i") as index:
            step(*index)

    def _pixel(self, place: _Place, c: LoopExpr, position: LoopExpr, taps: Sequence[LoopExpr]) -> LoopExpr:
        """What is multiplied: input channel ``c`` of the group, at a position of the line."""
        axes, lines, channel = self.axes, self.lines, place.group * self.shapes.inputs + c
        if self.direct:
            where = (*place.outer, *self._coordinates(place, position))
            spots = [o + t * a.dilation for o, t, a in zip(where, taps, axes, strict=True)]
            return self.shapes.pixel(place.n, channel, spots)
        *above, vertical, across = axes
        planes = [a.plane(t) for a, t in zip(axes, taps, strict=True)]
        outer = [o + a.offset(t) for o, a, t in zip(place.outer, above, taps[:-2], strict=True)]
        line = (place.line * lines.rows + vertical.offset(taps[-2])) * lines.pitch
        spot = line + across.offset(taps[-1]) + position
        return Load(self.image.buffer, (place.n, channel, *planes, *outer, spot))

    def _store(self, place: _Place, k: LoopExpr, where: Sequence[LoopExpr], value: LoopExpr) -> Stmt:
        shapes = self.shapes
        channel = place.group * shapes.channels + place.channel + k
        return store_at(shapes.result(place.n, channel, (*place.outer, *where), place.phases), value)

    def _finish(self, place: _Place) -> Finish:
        return lambda k, position, value: self._store(place, k, self._coordinates(place, position), value)

    def _coordinates(self, place: _Place, position: LoopExpr) -> tuple[LoopExpr, LoopExpr]:
        """Row and column of a result of a line without gaps."""
        if self.lines.rows == 1:
            return place.line, position
        return position // self.lines.pitch, position % self.lines.pitch
