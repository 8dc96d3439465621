"""Direct convolution in blocked layouts: NCHW[x]c data, OIHW[x]i[y]o weights, an NCHW[z]c result.

Pixels of a row are the rows of the register tile, output channels its lanes.  The weights come in blocks of a whole
vector, the last one of a group filled up with zeros; the result's blocks divide its channels, so they may be smaller: a
vector of sums is stored in pieces, and those behind the last channel are not.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from minitvm.codegen.loops import parallel
from minitvm.codegen.problem import TEMPLATES, Choice, Problem, Template, Tile
from minitvm.codegen.templates.tile import (
    ENOUGH,
    Ahead,
    Run,
    TileKernel,
    best_tile,
    block_runs,
    cycles,
    divisor_at_most,
    open_cycles,
    over,
    quarters,
    rows_of_line,
    runs,
    spare_loads,
    step_cycles,
    steps,
    store_at,
    tile_choices,
    tiles,
)
from minitvm.codegen.templates.window import Start, axis_of, padded
from minitvm.cpu_costs import CPU
from minitvm.ir.decision import Declined
from minitvm.ir.dims import usual
from minitvm.ir.loop import Barrier, Buffer, Const, Load, LoopExpr, Stmt, Store, as_index, const, minimum
from minitvm.ir.loop.builder import LoopBuilder
from minitvm.target import MachineModel

BY_INPUTS = "a few input channels at a time, sums in memory"
CHANNELS_INSIDE = "a row for all channels"
ROWS_INSIDE = "some channels for all rows"

_MOST_OF_A_STRIP = 15  # columns of a depthwise convolution; more are slower, measured
_FEWEST_ROWS = 2  # of a channel before the next one: each such band reads some of the last one's rows again
_TILES_OF_A_PIECE = 8  # of pixels of which only a run knows how many there are, for a thread
_MOST_UNROLLED_TAPS = 16  # a wider padded window is copied into a padded image instead of written out at the edges


class _Windows(Template):
    """Windows over an image in blocks of channels, as large as a run says; ``x`` runs along the tiles.

    ``sideways``: an image of one column is one of one row, so ``x`` is the vertical axis.
    """

    symbolic = True

    def __init__(self, problem: Problem, machine: MachineModel) -> None:
        super().__init__(problem, machine)
        self.data, self.weight = problem.inputs
        self.out = problem.output
        attributes, (kh, kw) = problem.op.attributes(), self.weight.shape[2:4]
        self.groups: int = attributes["groups"]
        self.sideways = self.out.shape[3] == kw == 1 and self.out.shape[2] not in (0, 1)
        pads = tuple(attributes["padding"])
        wide = (kh if self.sideways else kw) > _MOST_UNROLLED_TAPS and any(pads)
        self.source: Buffer = self.data
        self.fill: Stmt | None = None
        if wide:
            self.source, self.fill = padded(self.data, pads, machine)
        shapes = zip(self.source.shape[2:4], self.out.shape[2:4], (kh, kw), strict=True)
        steps = zip(attributes["strides"], attributes["dilation"], (0, 0) if wide else pads[:2], strict=True)
        axes = [axis_of(*shape, *step) for shape, step in zip(shapes, steps, strict=True)]
        self.y, self.x = axes[::-1] if self.sideways else axes

    def placed(self, row: LoopExpr, column: LoopExpr) -> tuple[LoopExpr, LoopExpr]:
        """Vertical and horizontal."""
        return (column, row) if self.sideways else (row, column)

    def loops(self, choice: Choice) -> Stmt:
        code = LoopBuilder()
        with code.memory(*[self.source] * (self.fill is not None)):
            if self.fill is not None:
                code.emit(self.fill, Barrier())
            self.nest(code, choice)
        return code.stmt

    @abstractmethod
    def nest(self, code: LoopBuilder, choice: Choice) -> None:
        """The loops behind those that pad the image."""

    def by_tiles(
        self, code: LoopBuilder, outer: Sequence[int], most: int
    ) -> Iterator[tuple[tuple[LoopExpr, ...], Start, int]]:
        """A few long rows: a work item is a tile of at most ``most`` columns, its index, column and size."""
        for run in self.x.tiles(most):
            with parallel(code, (*outer, run.count)) as (*index, at):
                yield tuple(index), run.start(at), run.size


@dataclass(frozen=True)
class _Place:
    """What a tile computes: of an image a row, of a group of channels the blocks ``run`` from ``block`` on.

    ``inputs``: from the first of so many blocks of input channels on, into ``sums``, whose first row is ``top``; by
    default all, into the result.  ``ahead``: the first block of weights that are fetched for what comes next.
    """

    n: LoopExpr
    group: LoopExpr
    block: LoopExpr
    run: Run
    row: LoopExpr
    inputs: tuple[LoopExpr, int]
    sums: Buffer | None = None
    top: LoopExpr | int = 0
    ahead: LoopExpr | None = None


@TEMPLATES.register("llvm", "nn.contrib_conv2d_NCHWc", "qnn.contrib_conv2d_NCHWc")
class BlockedConv(_Windows):
    """Inputs broadcast, weights as vectors."""

    def __init__(self, problem: Problem, machine: MachineModel) -> None:
        super().__init__(problem, machine)
        y, x = self.y, self.x
        self.batch, out_blocks, *_, self.block = self.out.shape
        self.blocks = self.weight.shape[0] // self.groups  # of a group, as the weights come
        self.out_blocks = out_blocks // self.groups
        self.flat = y.taps == x.taps == y.stride == x.stride == 1 and not (y.padded or x.padded)
        """A pointwise convolution sees its image as a single row."""
        self.rows = 1 if self.flat else y.outputs
        self.columns = y.outputs * x.outputs if self.flat else x.outputs
        self.line = axis_of(self.columns, self.columns, 1, 1, 1, 0) if self.flat else self.x
        """What tiles go along."""

    @property
    def is_open(self) -> bool:
        """True if only a run knows how many pixels there are."""
        return not (isinstance(self.rows, int) and isinstance(self.columns, int))

    @property
    def lanes(self) -> int:
        return self.weight.shape[5]

    # --- the search space ---------------------------------------------------------------------------------------------

    def choices(self) -> Sequence[Choice]:
        return [
            replace(c, cycles=c.cycles * self._waiting(c.scheme, c.tile), why_not=self._against(c.scheme, c.tile))
            for scheme in (BY_INPUTS, ROWS_INSIDE, CHANNELS_INSIDE)[self.is_open :]
            for c in self._tiles(scheme)
        ]

    def _tiles(self, scheme: str) -> Sequence[Choice]:
        steps = self.batch * self.groups * usual(self.rows) * math.prod(self.weight.shape[1:5])
        (tiled, alone), machine, product = self.line.counts, self.machine, self.problem.product
        if not self.line.is_open:
            return tile_choices(scheme, self.columns, self.blocks, steps, machine, product)

        def each(tile: Tile) -> int:
            return CPU.far_weights if self._block_bytes * tile.blocks > machine.l1_bytes else 1

        found = tiles(tiled, self.blocks, machine, product)
        costs = [steps * open_cycles(tiled, alone, self.blocks, tile, each(tile)) for tile in found]
        return [Choice(scheme, tile, cost) for tile, cost in zip(found, costs, strict=True)]

    def _waiting(self, scheme: str, tile: Tile) -> float:
        """By how much a pointwise step takes longer for what it loads: 4 x 3 vectors wait less than 3 x 4 or 2 x 6.

        Where weights come from far, more blocks are more streams that the processor fetches ahead.
        """
        if self._crowded:
            return CPU.pixels_from_l2
        if scheme == ROWS_INSIDE and self._fetches and self._block_bytes * tile.blocks > self.machine.l1_bytes:
            return max(1.0, tile.blocks * CPU.l2_vector / cycles(tile.rows, tile.blocks))
        loads = CPU.broadcast * tile.rows + CPU.weight_load * tile.blocks
        few = self.flat and scheme == CHANNELS_INSIDE and tile.rows * tile.blocks <= ENOUGH
        return 1 + max(0.0, loads - CPU.loads_hidden) / cycles(tile.rows, tile.blocks) if few else 1.0

    @property
    def _crowded(self) -> bool:
        """True if channels that come in no blocks lie so far apart that the first-level cache keeps too few of them."""
        plane = math.prod(map(usual, self.data.shape[2:4])) * np.dtype(self.data.dtype).itemsize
        return len(self.data.shape) == 4 and self.data.shape[1] > self.machine.lines_kept(plane)

    def _against(self, scheme: str, tile: Tile) -> str:
        if scheme == BY_INPUTS:
            return self._against_inputs
        if not self._against_inputs:
            return "weights leave the first-level cache between rows"
        if self._block_bytes * tile.blocks > max(self._block_bytes, self.machine.l2_bytes * 5 // 8):
            return "its weights leave the second-level cache between tiles"
        fit = self.weight.nbytes <= self.machine.l2_bytes // 2
        if fit != (scheme == CHANNELS_INSIDE):
            return f"weights {'stay in' if fit else 'leave'} the second-level cache"
        return ""

    @cached_property
    def _against_inputs(self) -> str:
        """Against sums in memory: they have to stay in the first-level cache, where weights do not."""
        if self.is_open:
            return "only a run knows how many sums there are"
        tile = best_tile(self.columns, self.blocks, self.machine, self.problem.product)
        rows = self._rows_at_once(tile.blocks)
        if rows == 0:
            return "sums leave the first-level cache"
        if rows < self.rows and tile.rows * tile.blocks > ENOUGH:
            return "sums of all rows leave the first-level cache, and so large a tile waits for no weights"
        items = self.batch * self.weight.shape[0] // tile.blocks * -(-self.rows // rows)
        if items < CPU.items_per_thread * self.machine.threads:
            return "too few channels for the threads"
        return (
            "weights stay in the first-level cache" if self._block_bytes * tile.blocks <= self.machine.l1_bytes else ""
        )

    def _rows_at_once(self, blocks: int) -> int:
        """Rows whose sums stay in the first-level cache: all in a quarter of it, or what half of it holds of more."""
        row = self.columns * blocks * self.lanes * np.dtype(self.accumulator).itemsize
        near = self.machine.l1_bytes // 4
        return self.rows if self.rows * row <= near else 2 * near // row if self.rows > 1 else 0

    @property
    def _block_bytes(self) -> int:
        return self.weight.nbytes // self.weight.shape[0]

    # --- what a work item is ------------------------------------------------------------------------------------------

    def nest(self, code: LoopBuilder, choice: Choice) -> None:
        """A nest for every kind of set of channel blocks, and of piece of a row."""
        tile, channels = choice.tile, self.out_blocks * self.block
        items = self.batch * self.groups * -(-self.blocks // tile.blocks) * self.rows
        few = not self.flat and not self.is_open and items < self.machine.threads
        for run in block_runs(channels, self.lanes, tile.blocks):
            if choice.scheme == BY_INPUTS:
                self._by_inputs(code, run, tile)
            elif few:
                extents = (self.batch, self.groups * run.count, self.rows)
                for (n, number, row), column, size in self.by_tiles(code, extents, tile.rows):
                    self._tile(code, self._place(n, number, run, row), column, size)
            else:
                for piece in self._pieces(tile, run):
                    self._by_rows(code, run, piece, tile.rows, choice.scheme == ROWS_INSIDE)

    def _place(self, n: LoopExpr, number: LoopExpr, run: Run, row: LoopExpr) -> _Place:
        """``number``: of the set of blocks, counted through all groups."""
        block = number % run.count * run.size + run.begin
        return _Place(n, number // run.count, block, run, row, (Const(0), self.weight.shape[1]))

    @property
    def _fetches(self) -> bool:
        """True if products take so little time that the processor fetches weights too late."""
        return self.flat and self.problem.product != "fma"

    def _before_next(self, place: _Place) -> _Place:
        """The same where tiles go on to the next set with weights that they have not used."""
        is_far = self.weight.nbytes > self.machine.l1_bytes if self.problem.product == "fma" else self._fetches
        if not is_far:
            return place
        here, last = place.group * self.blocks + place.block, self.weight.shape[0] - place.run.size
        return replace(place, ahead=minimum(here + place.run.size, last))

    def _by_rows(self, code: LoopBuilder, run: Run, piece: Run, most: int, rows_inside: bool) -> None:
        sets, rows = self.groups * run.count, self.rows * piece.count
        order = (self.batch, sets, rows) if rows_inside else (self.batch, rows, sets)
        with parallel(code, order) as (n, *rest):
            number, at = rest if rows_inside else rest[::-1]
            row, column = (Const(0), piece.start(at)) if self.flat else (at, Const(0))
            place, used_once = self._place(n, number, run, row), rows_inside or rows == 1
            self._row(code, self._before_next(place) if used_once else place, column, piece.size, most)

    def _pieces(self, tile: Tile, run: Run) -> list[Run]:
        """A single row in pieces of a few tiles, to be divided among threads: of one size where that is enough."""
        if not self.flat:
            return [Run(0, 1, self.columns)]
        if self.is_open:
            size = _TILES_OF_A_PIECE * tile.rows
            return [Run(0, -(-self.columns // size), size)]
        items = self.batch * self.groups * run.count
        most = max(1, self.columns // (2 * tile.rows))
        wanted = min(most, -(-CPU.items_per_thread * self.machine.threads // items))
        least = min(-(-self.columns // tile.rows), -(-self.machine.threads // items))
        size = -(-self.columns // max(divisor_at_most(self.columns, most), wanted))
        return runs(self.columns, min(size, self.columns // least))

    def _by_inputs(self, code: LoopBuilder, run: Run, tile: Tile) -> None:
        """Input channels whose weights stay in the first-level cache for the whole image, or for some of its rows."""
        inputs = self.weight.shape[1]
        step_bytes = math.prod(self.weight.shape[2:5]) * run.size * self.lanes * np.dtype(self.out.dtype).itemsize
        count = divisor_at_most(inputs, max(1, self.machine.l1_bytes // 2 // step_bytes))
        for rows in runs(self.rows, max(1, self._rows_at_once(run.size))):
            with parallel(code, (self.batch, self.groups * run.count, rows.count)) as (n, number, part):
                top = rows.start(part)
                place = replace(self._before_next(self._place(n, number, run, Const(0))), top=top)
                sums = Buffer("sums", (rows.size, self.columns, run.size, self.lanes), self.accumulator, "local")
                with code.memory(sums):
                    self._summed(code, place, sums, count, tile.rows)

    def _summed(self, code: LoopBuilder, place: _Place, sums: Buffer, count: int, most: int) -> None:
        """Some rows: zeros, then ``count`` blocks of input channels at a time, then the results."""
        with code.nest(sums.shape[:3]) as index, code.lanes(self.lanes) as lane:
            code.store(sums, (*index, lane), const(0, sums.dtype))
        with code.nest((self.weight.shape[1] // count, sums.shape[0])) as (part, at):
            some = replace(place, row=place.top + at, inputs=(part * count, count), sums=sums)
            self._row(code, some, Const(0), self.columns, most)
        self._results(code, place, sums)

    def _results(self, code: LoopBuilder, place: _Place, sums: Buffer) -> None:
        """The sums to the result, a block of it at a time."""
        per, run = self.lanes // self.block, place.run
        valid = (run.size - 1) * per + (run.width or self.lanes) // self.block
        with code.nest((*sums.shape[:2], valid)) as (row, t, p), code.lanes(self.block) as lane:
            b, at = p // per, p % per * self.block + lane
            code.emit(self._store(replace(place, row=place.top + row), t, b, at, sums[row, t, b, at]))

    def _row(self, code: LoopBuilder, place: _Place, column: LoopExpr, width: int, most: int) -> None:
        """``width`` columns from ``column`` on, or those that there are, in tiles of at most ``most``."""
        if not self.flat:
            for start, size in self.x.over_tiles(code, most):
                self._tile(code, place, start, size)
            return
        there = quarters(minimum(width, self.columns - column), most) if self.is_open else runs(width, most)
        for start, size in over(code, there):
            self._tile(code, place, column + start, size)

    # --- a tile -------------------------------------------------------------------------------------------------------

    def _tile(self, code: LoopBuilder, place: _Place, column: Start, size: int) -> None:
        """At an edge, where some taps are outside the image, ``column`` is a number."""
        first, count = place.inputs
        block = place.group * self.blocks + place.block

        def weight(b: LoopExpr, lane: LoopExpr, i: LoopExpr, y: LoopExpr, x: LoopExpr, c: LoopExpr) -> LoopExpr:
            return Load(self.weight, (block + b, i, *self.placed(y, x), c, lane))

        kernel = TileKernel(
            size,
            place.run.size,
            self.lanes,
            self.accumulator,
            lambda t, _, *index: self._input(place, self.x.at(column, t), *index),
            weight,
            lambda t, b, lane, value: self._store(place, self.x.at(column, t), b, lane, value),
            width=place.run.width,
            piece=self.block,
            product=self.problem.product,
        )
        adding = kernel if place.sums is None else self._adding(kernel, place, place.sums, column)
        with adding.sums(code) as step, code.loop(count, "ci") as i, self.y.valid_taps(code, place.row) as y:
            for taps, inside in self.x.alike(column, size):
                all_read = taps == range(self.x.taps) and not self.is_open
                sums = size * place.run.size if all_read else math.inf
                with self._along(code, column, size, len(taps)) as x:
                    index = first + i, y, taps.start + x
                    self._fetch(code, place, column, size, *index)
                    for c in steps(code, self.weight.shape[4], sums, self.problem.product):
                        step(*index, c, rows=inside)

    def _along(self, code: LoopBuilder, column: Start, size: int, taps: int) -> AbstractContextManager[LoopExpr]:
        """Neighbouring taps of a row of the window."""
        if self.x.sticks_out(column, size):
            return self.x.valid_taps(code, as_index(column))
        return code.loop(taps, "kw")

    def _adding(self, kernel: TileKernel, place: _Place, sums: Buffer, column: Start) -> TileKernel:
        """A tile that adds to ``sums`` in place of storing its results."""

        def at(t: LoopExpr, b: LoopExpr, lane: LoopExpr) -> tuple[LoopExpr, ...]:
            return place.row - place.top, column + t, b, lane

        def add(t: LoopExpr, b: LoopExpr, lane: LoopExpr, value: LoopExpr) -> Stmt:
            return Store(sums, at(t, b, lane), sums[at(t, b, lane)] + value)

        return replace(kernel, store=add, width=0, piece=None)

    def _fetch(self, code: LoopBuilder, place: _Place, column: Start, size: int, i: LoopExpr, *tap: LoopExpr) -> None:
        """Lines of the next set's weights for a tap of block ``i`` of input channels."""
        if place.ahead is None:
            return
        ahead, step = place.ahead, rows_of_line(self.weight.dtype, self.lanes)
        inner, blocks = self.weight.shape[4], place.run.size
        per_block = -(-inner // step)
        lines = per_block * blocks

        def line(number: LoopExpr) -> Load:
            block, row = number % lines // per_block, number % per_block * step
            return Load(self.weight, (ahead + block, i, *self.placed(*tap), row, Const(0)))

        rows, columns = usual(self.rows), usual(self.columns)
        fetched, pixel = Ahead(lines, max(1, rows * columns), line), place.row * columns + self.x.at(column, Const(0))
        fetch = fetched.by(pixel, size, spare_loads(size, blocks, inner, self.problem.product))
        if fetch is not None:
            fetch(code, Const(0))

    def _position(self, row: LoopExpr, column: LoopExpr) -> tuple[LoopExpr, LoopExpr]:
        return (column // self.x.outputs, column % self.x.outputs) if self.flat else (row, column)

    def _input(self, place: _Place, column: LoopExpr, i: LoopExpr, y: LoopExpr, x: LoopExpr, c: LoopExpr) -> LoopExpr:
        row, column = self._position(place.row, column)
        where = self.placed(self.y.coordinate(row, y), self.x.coordinate(column, x))
        if len(self.data.shape) == 4:
            return Load(self.source, (place.n, i * self.weight.shape[4] + c, *where))
        return Load(self.source, (place.n, place.group * self.weight.shape[1] + i, *where, c))

    def _store(self, place: _Place, column: LoopExpr, b: LoopExpr, lane: LoopExpr, value: LoopExpr) -> Stmt:
        """A sum to the result: a block of weights is one of the result, or several."""
        per, where = self.lanes // self.block, self.placed(*self._position(place.row, column))
        block = place.group * self.out_blocks + (place.block + b) * per + lane // self.block
        return store_at(Load(self.out, (place.n, block, *where, lane % self.block)), value)


@TEMPLATES.register("llvm", "nn.contrib_depthwise_conv2d_NCHWc")
class BlockedDepthwise(_Windows):
    """One channel block at a time: a strip of output columns in registers, the window's columns unrolled."""

    def refusal(self) -> Declined | None:
        if self.data.shape[1] != self.out.shape[1] and self.problem.not_floats is None:
            return Declined("more than one output channel per input channel")
        return self.problem.not_floats

    def choices(self) -> Sequence[Choice]:
        """Six registers and more for the window's and the image's vectors; few sums wait for each other, and for what
        is done with those before."""
        steps = math.prod(self.out.shape[:2]) * usual(self.y.outputs) * math.prod(self.weight.shape[2:4])
        most = min(_MOST_OF_A_STRIP, self.machine.vector_registers - 6)
        tiled, alone = self.x.counts
        sizes = [Tile(n, 1) for n in range(1, min(most, tiled) + 1)]
        each = [open_cycles(tiled, alone, 1, tile) if self.x.is_open else step_cycles(tiled, 1, tile) for tile in sizes]
        return [Choice("strips", tile, steps * some) for tile, some in zip(sizes, each, strict=True)]

    def nest(self, code: LoopBuilder, choice: Choice) -> None:
        batch, blocks, rows = order = (*self.out.shape[:2], self.y.outputs)
        is_open = self.x.is_open or self.y.is_open
        if not is_open and math.prod(order) < self.machine.threads:
            for (n, block, row), column, size in self.by_tiles(code, order, choice.tile.rows):
                self._strip(code, n, block, row, column, size)
            return
        part = 1 if is_open else divisor_at_most(rows, max(1, rows // self.machine.threads))
        band = part if self.problem.by_rows and part >= _FEWEST_ROWS else rows
        with parallel(code, (batch, rows // band, blocks, band)) as (n, top, block, at):
            for column, size in self.x.over_tiles(code, choice.tile.rows):
                self._strip(code, n, block, top * band + at, column, size)

    def _strip(self, code: LoopBuilder, n: LoopExpr, block: LoopExpr, row: LoopExpr, column: Start, size: int) -> None:
        x, y = self.x, self.y

        def data(t: LoopExpr, lane: LoopExpr, ky: LoopExpr, kx: LoopExpr) -> LoopExpr:
            where = self.placed(y.coordinate(row, ky), x.coordinate(x.at(column, t), kx))
            return Load(self.source, (n, block, *where, lane))

        tile = TileKernel(
            size,
            1,
            self.out.shape[4],
            self.accumulator,
            data,
            lambda _, lane, ky, kx: Load(self.weight, (block, Const(0), *self.placed(ky, kx), Const(0), lane)),
            lambda t, _, lane, value: store_at(
                Load(self.out, (n, block, *self.placed(row, x.at(column, t)), lane)), value
            ),
        )
        inside = ((kx, t) for kx in range(x.taps) for t in x.columns_inside(column, size, kx))
        each = sorted(inside, key=lambda at: (at[1] * x.stride + at[0] * x.dilation, at))
        with tile.sums(code) as step, y.valid_taps(code, row) as ky:
            if x.sticks_out(column, size):
                with x.valid_taps(code, as_index(column)) as tap:
                    step(ky, tap)
            else:
                for kx, t in each:
                    step(ky, Const(kx), rows=range(t, t + 1))
