"""Convolution of any channels, stride, window and layout: neighbouring pixels in lanes, weights broadcast.

The register tile of ``tile.py`` with its sides exchanged.  Results of a *line* lie at neighbouring positions of the
image: a whole plane, some of its rows, or one.  Where lines hold several rows of a wide window, positions between
rows are computed too, and left out when a line's sums are copied to the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minitvm.codegen.problem import TEMPLATES, Config, Problem
from minitvm.codegen.spread import unflatten
from minitvm.codegen.templates.conv_product import conv_product
from minitvm.codegen.templates.conv_shapes import ConvShapes, convolution_shapes, transposed_shapes
from minitvm.codegen.templates.pad import after_padding
from minitvm.codegen.templates.phases import PhasedAxis, PhasedImage, vectors
from minitvm.codegen.templates.tile import Run, Step, accumulate, choose_tile, runs
from minitvm.ir.decision import Declined
from minitvm.ir.loop import Alloc, Buffer, Const, If, Kernel, LoopExpr, LoopKind, Stmt, Store, loop, minimum, seq
from minitvm.ir.ops.nn_conv import Convolution
from minitvm.ir.ops.nn_conv_transpose import ConvTranspose
from minitvm.target import MachineModel

_COPY_OUT = 4  # vector steps that a sum which goes through memory costs
_ITEMS_PER_THREAD = 4


@TEMPLATES.register("llvm", "nn.conv1d", "nn.conv2d", "nn.conv3d")
def conv_pixels(problem: Problem, machine: MachineModel, config: Config) -> Kernel | Declined:
    """Any layout, strides, padding, dilation and groups; floats, summed in the accumulator."""
    assert isinstance(problem.op, Convolution)
    if (refusal := problem.not_floats) is not None:
        return refusal
    trimmed, whole = (convolution_shapes(problem.op, problem, trim) for trim in (True, False))
    if (product := conv_product(trimmed, whole, problem.accumulator, machine)) is not None:
        return Kernel(problem.op.name, (*problem.inputs, problem.output), product)
    return _kernel(problem, [trimmed], machine)


@TEMPLATES.register("llvm", "nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose")
def conv_transpose_pixels(problem: Problem, machine: MachineModel, config: Config) -> Kernel | Declined:
    """As :func:`conv_pixels`, one convolution for each set of phases."""
    assert isinstance(problem.op, ConvTranspose)
    return problem.not_floats or _kernel(problem, transposed_shapes(problem.op, problem), machine)


def _kernel(problem: Problem, parts: Sequence[ConvShapes], machine: MachineModel) -> Kernel:
    """All parts over one copy of the image, where any of them needs one."""
    loops = [_PixelLoops(part, problem.accumulator, machine) for part in parts]
    first = parts[0]
    size = max(part.flat_size for part in loops)
    image = PhasedImage.of(first.batch, first.inputs * first.groups, first.windows, size, problem.accumulator)
    fill = None if all(part.direct for part in loops) else image.fill(first.pixel, machine)
    nests = [stmt for part in loops for stmt in part.nests(image)]
    return Kernel(problem.op.name, (*problem.inputs, problem.output), after_padding(image.buffer, fill, seq(*nests)))


@dataclass(frozen=True)
class _Lines:
    """How results lie along the lanes: ``count`` lines of ``rows`` rows, which begin ``pitch`` positions apart."""

    count: int
    rows: int
    pitch: int
    positions: int  # from the first to the last result of a line

    @staticmethod
    def of(axes: Sequence[PhasedAxis], steps: int, lanes: int, most: int, wanted: int) -> _Lines:
        """Those with the least work: full vectors against results that go through memory.

        ``steps``: of the reduction; ``most``: vectors of a line whose sums stay in the cache; ``wanted``: lines
        that give every thread something to do.
        """
        vertical, across = axes[-2:]
        if across.length == across.outputs:
            return _Lines(1, vertical.outputs, across.length, vertical.outputs * across.outputs)

        def cost(lines: _Lines) -> float:
            vector = steps + (_COPY_OUT if lines.rows > 1 else 0)
            return lines.count * -(-lines.positions // lanes) * vector

        found = []
        for count in {-(-vertical.outputs // rows) for rows in range(1, vertical.outputs + 1)}:
            rows = -(-vertical.outputs // count)
            found.append(_Lines(count, rows, across.length, (rows - 1) * across.length + across.outputs))
        fitting = [f for f in found if f.rows == 1 or (f.positions <= most * lanes and f.count >= wanted)]
        return min(fitting, key=lambda f: (cost(f), f.rows))


@dataclass(frozen=True)
class _Part:
    """Neighbouring tiles of a line: ``tiles`` of ``vectors`` vectors from ``begin`` on, the last one ``width`` wide."""

    begin: LoopExpr
    tiles: int
    vectors: int
    width: int


class _PixelLoops:
    def __init__(self, shapes: ConvShapes, accumulator: str, machine: MachineModel) -> None:
        self.shapes, self.machine, self.dtype = shapes, machine, accumulator
        self.axes = shapes.windows
        self.lanes = machine.lanes(accumulator)
        taps = math.prod(a.taps for a in self.axes)
        most = machine.l1_bytes // 2 // machine.vector_bytes // min(8, shapes.channels)
        others = shapes.batch * shapes.groups * -(-shapes.channels // machine.vector_registers)
        wanted = -(-machine.threads // others)
        self.lines = _Lines.of(self.axes, shapes.inputs * taps, self.lanes, most, wanted)
        apart = self.lines.pitch > self.axes[-1].outputs or shapes.axes[-1].result_step > 1
        self.gaps = self.lines.rows > 1 and apart
        self.direct = all(a.is_plain for a in self.axes) and not self.gaps and self.lines.positions >= self.lanes
        self.vectors = -(-self.lines.positions // self.lanes)
        self.tile = choose_tile(shapes.channels, self.vectors, machine)

    @property
    def flat_size(self) -> int:
        """Of a flat row of the image, up to the last position that a tile reads."""
        vertical, across = self.axes[-2:]
        last_line = (self.lines.count - 1) * self.lines.rows * self.lines.pitch
        read = last_line + self.vectors * self.lanes + vertical.reach * self.lines.pitch + across.reach
        return max(read, vertical.length * self.lines.pitch)

    def nests(self, image: PhasedImage) -> list[Stmt]:
        source = self._direct_source if self.direct else self._image_source(image)
        found = runs(self.shapes.channels, self.tile.columns)
        if self.gaps:
            return [self._through_sums(c, source) for c in found]
        return [stmt for c in found for stmt in self._stored(c, source)]

    # --- what a work item is --------------------------------------------------------------------------------------

    def _stored(self, channels: Run, source: Source) -> list[Stmt]:
        """Tiles that store to the result."""
        rest = self.lines.positions % self.lanes
        whole = (self.vectors - bool(rest)) // self.tile.blocks
        stmts = []
        for run in runs(whole, self._section(whole)) if whole else []:

            def work(place: _Place, section: LoopExpr, run: Run = run) -> Stmt:
                first = run.start(section) * self.tile.blocks * self.lanes
                part = _Part(first, run.size, self.tile.blocks, self.lanes)
                return self._tiles(place, part, channels.size, source, self._finish(place))

            stmts.append(self._items(channels, run.count, work))
        left = self.vectors - whole * self.tile.blocks
        if left:

            def tail(place: _Place, _: LoopExpr) -> Stmt:
                first = Const(whole * self.tile.blocks * self.lanes)
                part = _Part(first, 1, left, rest or self.lanes)
                return self._tiles(place, part, channels.size, source, self._finish(place))

            stmts.append(self._items(channels, 1, tail))
        return stmts

    def _section(self, tiles: int) -> int:
        """Neighbouring tiles of a work item: so many that what they read stays in the cache for all channels."""
        read = self.tile.blocks * self.machine.vector_bytes * self.shapes.inputs
        most = max(1, self.machine.l2_bytes // 4 // read) if self._weights_fit else tiles
        others = (
            self.shapes.batch * self.shapes.groups * self.lines.count * -(-self.shapes.channels // self.tile.columns)
        )
        wanted = -(-_ITEMS_PER_THREAD * self.machine.threads // others)
        return max(1, min(most, tiles // wanted))

    @property
    def _weights_fit(self) -> bool:
        nbytes = math.prod(self.shapes.weight.shape) * self.machine.vector_bytes // self.lanes
        return nbytes // self.shapes.groups <= self.machine.l2_bytes // 2

    def _through_sums(self, channels: Run, source: Source) -> Stmt:
        """Whole lines, whose sums are copied to the result without what lies between the rows."""
        sums = Buffer("sums", (channels.size, self.vectors * self.lanes), self.dtype, "local")

        def work(place: _Place, _: LoopExpr) -> Stmt:
            def finish(k: LoopExpr, position: LoopExpr, value: LoopExpr) -> Stmt:
                return Store(sums, (k, position), value)

            tiles, left = divmod(self.vectors, self.tile.blocks)
            parts = [_Part(Const(0), tiles, self.tile.blocks, self.lanes)] if tiles else []
            if left:
                parts.append(_Part(Const(tiles * self.tile.blocks * self.lanes), 1, left, self.lanes))
            computed = [self._tiles(place, part, channels.size, source, finish) for part in parts]
            return Alloc(sums, seq(*computed, self._copy_out(place, sums)))

        return self._items(channels, 1, work)

    def _copy_out(self, place: _Place, sums: Buffer) -> Stmt:
        vertical, across = self.axes[-2:]
        lines = self.lines

        def row(k: LoopExpr, r: LoopExpr) -> Stmt:
            y = place.line * lines.rows + r

            def column(x: LoopExpr) -> Stmt:
                value = sums[k, r * lines.pitch + x]
                return self._store(place, k, (*place.outer, y, x), value)

            found = vectors(across.outputs, column, self.lanes)
            return found if lines.count * lines.rows == vertical.outputs else If(y < vertical.outputs, found)

        return loop(sums.shape[0], lambda k: loop(lines.rows, lambda r: row(k, r), name="row"), name="k")

    def _items(self, channels: Run, sections: int, body: Callable[[_Place, LoopExpr], Stmt]) -> Stmt:
        """Work items in the order that keeps the smaller operand in the cache: weights, or a section of the image."""
        outer = [a.outputs for a in self.axes[:-2]]
        phases = [a.phases for a in self.shapes.axes]
        image = [*phases, *outer, self.lines.count, sections]
        extents = [*image, channels.count] if self._weights_fit else [channels.count, *image]

        def work(n: LoopExpr, group: LoopExpr, *rest: LoopExpr) -> Stmt:
            strip, where = (rest[-1], rest[:-1]) if self._weights_fit else (rest[0], rest[1:])
            place = _Place(n, group, channels.start(strip), where[: len(phases)], where[len(phases) : -2], where[-2])
            return body(place, where[-1])

        return _shared(
            (self.shapes.batch, self.shapes.groups, *extents), _ITEMS_PER_THREAD * self.machine.threads, work
        )

    # --- tiles ----------------------------------------------------------------------------------------------------

    def _store(self, place: _Place, k: LoopExpr, where: Sequence[LoopExpr], value: LoopExpr) -> Stmt:
        channel = place.group * self.shapes.channels + place.channel + k
        return self.shapes.store(place.n, channel, where, place.phases, value)

    def _finish(self, place: _Place) -> Finish:
        def finish(k: LoopExpr, position: LoopExpr, value: LoopExpr) -> Stmt:
            y, x = self._coordinates(place, position)
            return self._store(place, k, (*place.outer, y, x), value)

        return finish

    def _coordinates(self, place: _Place, position: LoopExpr) -> tuple[LoopExpr, LoopExpr]:
        """Row and column of a result of a line without gaps."""
        if self.lines.rows == 1:
            return place.line, position
        return position // self.lines.pitch, position % self.lines.pitch

    def _tiles(self, place: _Place, part: _Part, size: int, source: Source, finish: Finish) -> Stmt:
        step = part.vectors * self.lanes

        def tile(t: LoopExpr) -> Stmt:
            return self._tile(place, part, part.begin + t * step, size, source, finish)

        return loop(part.tiles, tile, name="tile")

    def _tile(self, place: _Place, part: _Part, begin: LoopExpr, size: int, source: Source, finish: Finish) -> Stmt:
        def position(b: LoopExpr, lane: LoopExpr) -> LoopExpr:
            first = begin + b * self.lanes
            return (minimum(first, self.lines.positions - self.lanes) if self._shifted(part) else first) + lane

        def reduction(step: Step) -> Stmt:
            def tap(c: LoopExpr, taps: Sequence[LoopExpr]) -> Stmt:
                return step(
                    lambda k, _: self.shapes.filter(place.group, place.channel + k, c, taps, place.phases),
                    lambda b, lane: source(place, c, position(b, lane), taps),
                )

            return loop(
                self.shapes.inputs, lambda c: _serial([a.taps for a in self.axes], lambda *t: tap(c, t)), name="c"
            )

        return accumulate(
            size,
            part.vectors,
            self.lanes,
            self.dtype,
            reduction,
            lambda k, b, lane, value: finish(k, begin + b * self.lanes + lane, value),
            last_width=part.width,
            last_lane=self.lanes - part.width if self._shifted(part) else 0,
        )

    def _shifted(self, part: _Part) -> bool:
        """True where the last vector begins earlier, so that it ends with the image."""
        return self.direct and part.width < self.lanes

    def _direct_source(self, place: _Place, c: LoopExpr, position: LoopExpr, taps: Sequence[LoopExpr]) -> LoopExpr:
        y, x = self._coordinates(place, position)
        where = [o + t * a.dilation for o, t, a in zip((*place.outer, y, x), taps, self.axes, strict=True)]
        return self.shapes.pixel(place.n, place.group * self.shapes.inputs + c, where)

    def _image_source(self, image: PhasedImage) -> Source:
        *above, vertical, across = self.axes

        def source(place: _Place, c: LoopExpr, position: LoopExpr, taps: Sequence[LoopExpr]) -> LoopExpr:
            planes = [a.plane(t) for a, t in zip(self.axes, taps, strict=True)]
            outer = [o + a.offset(t) for o, a, t in zip(place.outer, above, taps[:-2], strict=True)]
            line = (place.line * self.lines.rows + vertical.offset(taps[-2])) * self.lines.pitch
            spot = line + across.offset(taps[-1]) + position
            index = (place.n, place.group * self.shapes.inputs + c, *planes, *outer, spot)
            return image.buffer[index]

        return source


Finish = Callable[[LoopExpr, LoopExpr, LoopExpr], Stmt]
"""Store the sum of (channel of the tile, position of the line)."""

Source = Callable[["_Place", LoopExpr, LoopExpr, Sequence[LoopExpr]], LoopExpr]
"""What is multiplied: (place, input channel of the group, position of the line, taps)."""


@dataclass(frozen=True)
class _Place:
    """Where a work item is: image, group, first channel in it, phase of the results, outer axes, line."""

    n: LoopExpr
    group: LoopExpr
    channel: LoopExpr
    phases: tuple[LoopExpr, ...]
    outer: tuple[LoopExpr, ...]
    line: LoopExpr


def _shared(extents: Sequence[int], wanted: int, body: Callable[..., Stmt]) -> Stmt:
    """Loops over ``extents``, as many of the outer ones divided among threads as give ``wanted`` pieces of work."""
    count = next((k for k in range(1, len(extents)) if math.prod(extents[:k]) >= wanted), len(extents))
    shared, mine = extents[:count], extents[count:]

    def work(flat: LoopExpr) -> Stmt:
        return _serial(mine, lambda *rest: body(*unflatten(flat, shared), *rest))

    return loop(math.prod(shared), work, LoopKind.PARALLEL, name="work")


def _serial(extents: Sequence[int], body: Callable[..., Stmt], index: tuple[LoopExpr, ...] = ()) -> Stmt:
    if not extents:
        return body(*index)
    return loop(extents[0], lambda i: _serial(extents[1:], body, (*index, i)))
