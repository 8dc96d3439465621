"""Winograd convolution F(m x m, 3 x 3) in blocked layouts: (m + 2)^2 matrix products (Lavin and Gray 2016).

A thread takes some tiles at a time.  It transforms their inputs for all channels; then, for a few blocks of output
channels, one product for each of the tiles' (m + 2)^2 places in the register tiles of all other products, and their
transforms back to results.  What it makes meanwhile stays in its second-level cache.  Where tiles are few, each thread
takes a band of them; or all threads transform, and each takes some channels, where bands would read too many weights
from far.  Channels are the lanes of both transforms.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import reduce

import numpy as np

from minitvm.codegen.loops import inside, or_zero, parallel, unflatten
from minitvm.codegen.problem import TEMPLATES, Choice, Problem, Template, Tile
from minitvm.codegen.templates.tile import (
    Ahead,
    Run,
    TileKernel,
    block_runs,
    over,
    over_all,
    rows_of_line,
    runs,
    spare_loads,
    step_cycles,
    steps,
    store_at,
    tiles,
    written_out,
)
from minitvm.codegen.templates.winograd_guard import Guard
from minitvm.codegen.templates.winograd_sums import transformed_input, transformed_output
from minitvm.cpu_costs import CPU
from minitvm.ir.decision import Exactness
from minitvm.ir.loop import Barrier, Buffer, Const, Load, LoopExpr, LoopKind, Stmt, Store, const, intrin, minimum
from minitvm.ir.loop.builder import LoopBuilder
from minitvm.ir.ops.nn_winograd import Conv2dWinograd, Transforms
from minitvm.target import MachineModel

TILES_INSIDE = "some tiles for all channels"
BANDS_INSIDE = "a band of tiles for each thread, all channels"
CHANNELS_INSIDE = "all tiles transformed, then some channels for all tiles"

_LEAST = 12  # tiles that a thread takes at a time, so that it reads the weights not too often
_NARROWEST = 6  # tiles of a band; more threads than that leaves are often more than there are cores
_FEW = 4
_MOST_BLOCKS = 4  # of weights that are read side by side: they lie multiples of 4 KB apart


def _whole(most: int, size: int) -> int:
    """The largest multiple of ``size`` up to ``most``, but at least ``size``."""
    return max(1, most // size) * size


@TEMPLATES.register("llvm", Conv2dWinograd)
class Winograd(Template):
    """Products of transformed tiles."""

    exactness = Exactness.APPROXIMATE

    def __init__(self, problem: Problem, machine: MachineModel) -> None:
        super().__init__(problem, machine)
        self.data, self.weight = problem.inputs
        self.out = problem.output
        op = problem.op
        assert isinstance(op, Conv2dWinograd)
        self.transforms = Transforms.of(op.tile_size)
        self.size, self.extent = self.transforms.size, self.transforms.extent
        self.pads = op.padding[:2]
        self.batch, self.out_blocks, *_, self.block = self.out.shape
        self.grid = tuple(-(-n // self.size) for n in self.out.shape[2:4])
        self.tiles = self.batch * math.prod(self.grid)
        self.in_blocks, self.inner = self.weight.shape[3:5]
        results = self.out.shape[2:4]
        self.guard = Guard(self.data, self.weight, self.transforms, self.pads, results, self.position, self.accumulator)

    @property
    def lanes(self) -> int:
        return self.weight.shape[5]

    # --- the search space ---------------------------------------------------------------------------------------------

    def choices(self) -> Sequence[Choice]:
        blocks = self.weight.shape[0]
        few = self._of_threads(_LEAST) < _LEAST
        narrow = self.tiles < self.machine.threads * _NARROWEST
        against = {
            TILES_INSIDE: few and "too few tiles for the threads",
            BANDS_INSIDE: "tiles for all threads" if not few else narrow and "too few tiles in a band",
            CHANNELS_INSIDE: not few and "tiles for all threads",
        }
        return [
            Choice(scheme, tile, self._cycles(scheme, tile), why_not or "")
            for scheme, why_not in against.items()
            for tile in tiles(self.tiles, min(blocks, _MOST_BLOCKS), self.machine)
        ]

    def _cycles(self, scheme: str, tile: Tile) -> float:
        """Products, both transforms, the weights that come from beyond the second-level cache, and what other threads
        have transformed."""
        places, blocks, count = self.extent**2, self.weight.shape[0], self._together(scheme, tile)
        depth = self.in_blocks * self.inner
        some = [Run(0, self.machine.threads, count)] if scheme == BANDS_INSIDE else runs(self.tiles, count)
        products = places * depth * sum(r.count * step_cycles(r.size, blocks, tile) for r in some)
        vectors = self.tiles * (-(-depth // self.lanes) + blocks)
        crossed = places * self.tiles * depth * np.dtype(self.accumulator).itemsize / CPU.line_bytes * CPU.written_line
        far = scheme == CHANNELS_INSIDE and self.machine.threads > 1  # for whoever reads a line first
        computed = self._with_weights(products, sum(r.count for r in some))
        return computed + CPU.winograd_place * places * vectors + far * crossed

    def _with_weights(self, products: float, times: int) -> float:
        """Cycles of products whose weights are read so many times.  Of what comes from memory the shorter of both hides
        only in part, and one thread brings what others read meanwhile."""
        nbytes, rates, machine = self.weight.nbytes, self.machine.rates(1), self.machine
        if not self._from_afar:
            return products
        each = nbytes / (rates.level(nbytes).rate / rates.clock)
        if nbytes <= machine.l3_bytes:
            return max(products, times * each)
        fetched = -(-times // machine.threads) * each
        return max(products, fetched) + CPU.wait_exposed * min(products, fetched)

    @property
    def _from_afar(self) -> bool:
        """True if weights come from beyond the second-level cache."""
        return self.weight.nbytes > self.machine.l2_bytes

    def _together(self, scheme: str, tile: Tile) -> int:
        """Tiles that weights are read for once."""
        if scheme == BANDS_INSIDE:
            return -(-self.tiles // self.machine.threads)
        return self._at_once(tile) if scheme == TILES_INSIDE else self._of_channels(tile)

    def _of_channels(self, tile: Tile) -> int:
        """Tiles that some channels take at a time: where channels are few, no more than leave work for all threads."""
        wanted = -(-CPU.items_per_thread * self.machine.threads // -(-self.weight.shape[0] // tile.blocks))
        return _whole(max(1, self.tiles // wanted), tile.rows)

    def _at_once(self, tile: Tile) -> int:
        """How many tiles a thread takes at a time: what it makes of them stays in half of the second-level cache; all
        where these are few, and weights come from far."""
        each = self.extent**2 * (self.in_blocks * self.inner + tile.blocks * self.lanes)
        most = max(_LEAST, self.machine.l2_bytes // 2 // (each * np.dtype(self.accumulator).itemsize))
        if self.tiles <= _FEW * most and self.weight.nbytes > _FEW * self.machine.l2_bytes:
            most = self.tiles
        return _whole(min(most, self._of_threads(most)), tile.rows)

    def _of_threads(self, most: int) -> int:
        """No more tiles than leave work for all threads."""
        threads = self.machine.threads
        return most if threads == 1 else min(most, self.tiles // (CPU.items_per_thread * threads))

    # --- loops --------------------------------------------------------------------------------------------------------

    def loops(self, choice: Choice) -> Stmt:
        groups = block_runs(self.out_blocks * self.block, self.lanes, choice.tile.blocks)
        code = LoopBuilder()
        if choice.scheme == CHANNELS_INSIDE:
            self._by_channels(code, groups, choice.tile)
        else:
            some = runs(self.tiles, self._together(choice.scheme, choice.tile))
            for first, size in over_all(code, some, "some", LoopKind.PARALLEL):
                self._by_tiles(code, groups, choice.tile, first, size)
        return code.stmt

    def _inputs(self, count: int, scope: str) -> Buffer:
        """Of so many tiles, transformed: (place, block of channels, tile, channel)."""
        return Buffer("inputs", (self.extent**2, self.in_blocks, count, self.inner), self.accumulator, scope)

    def _by_tiles(self, code: LoopBuilder, groups: Sequence[Run], tile: Tile, first: LoopExpr, size: int) -> None:
        """A work item: some tiles, for all channels."""
        inputs, energy = self._inputs(size, "shared"), self.guard.energy(size, "shared")
        marks, piece = self.guard.marks(size), Run(0, 1, size)
        with code.memory(inputs, energy, marks):
            with code.nest(inputs.shape[1:3]) as (i, t):
                self._input(code, inputs, energy, i, t, first + t)
            self.guard.mark(code, marks, energy, Const(0), first)
            for group in groups:
                with code.loop(group.count, "tile") as g:
                    block = group.start(g)
                    self._channels(code, inputs, marks, first, Const(0), piece, block, group, tile)

    def _by_channels(self, code: LoopBuilder, groups: Sequence[Run], tile: Tile) -> None:
        """All tiles are transformed; then a work item is some channels, for all tiles or, where channels are few, for
        some."""
        inputs, energy = self._inputs(self.tiles, "global"), self.guard.energy(self.tiles, "global")
        with code.memory(inputs, energy):
            with parallel(code, inputs.shape[1:3]) as (i, t):
                self._input(code, inputs, energy, i, t, t)
            code.emit(Barrier())
            for group, some in itertools.product(groups, runs(self.tiles, self._of_channels(tile))):
                with parallel(code, (group.count, some.count)) as (g, at):
                    first, marks = some.start(at), self.guard.marks(some.size)
                    with code.memory(marks):
                        self.guard.mark(code, marks, energy, first, first)
                        self._channels(code, inputs, marks, first, first, some, group.start(g), group, tile)

    def _channels(
        self,
        code: LoopBuilder,
        inputs: Buffer,
        marks: Buffer,
        tile: LoopExpr,
        first: LoopExpr,
        some: Run,
        block: LoopExpr,
        group: Run,
        size: Tile,
    ) -> None:
        """A group of channels of ``some.size`` tiles from ``tile`` on, whose inputs begin at ``first``."""
        sums = Buffer("sums", (self.extent**2, some.size, group.size, self.lanes), self.accumulator, "shared")
        with code.memory(sums):
            with code.nest((self.extent, self.extent)) as (p, q):
                self._product(code, inputs, first, sums, p, q, block, size)
            with code.loop(some.size, "t") as t:
                with code.when(intrin("unlikely", marks[t])):
                    self._exact_results(code, tile + t, block, group)
                with code.otherwise():
                    self._transformed_results(code, sums, t, tile + t, block, group)

    def position(self, tile: LoopExpr) -> tuple[LoopExpr, LoopExpr, LoopExpr]:
        """The image, and the first row and column of results."""
        n, row, column = unflatten(tile, (self.batch, *self.grid))
        return n, row * self.size, column * self.size

    def _input(
        self, code: LoopBuilder, inputs: Buffer, energy: Buffer, block: LoopExpr, t: LoopExpr, tile: LoopExpr
    ) -> None:
        """One tile's inputs of a block of channels, transformed, and the sum of their squares."""
        n, *corner = self.position(tile)
        y, x = (at - before for at, before in zip(corner, self.pads, strict=True))
        pixels = self.data.shape[2:4]

        def pixel(r: int, s: LoopExpr, lane: LoopExpr) -> LoopExpr:
            return Load(self.data, (n, block, y + r, x + s, lane)).astype(self.accumulator)

        def or_padding(r: int, s: LoopExpr, lane: LoopExpr) -> LoopExpr:
            return or_zero(inside((y + r, x + s), pixels), pixel(r, s, lane))

        with code.when(inside((y, x, y + (self.extent - 1), x + (self.extent - 1)), pixels * 2)):
            self._transformed(code, inputs, energy, block, t, pixel)
        with code.otherwise():
            self._transformed(code, inputs, energy, block, t, or_padding, LoopKind.SERIAL)

    def _transformed(
        self,
        code: LoopBuilder,
        inputs: Buffer,
        energy: Buffer,
        block: LoopExpr,
        t: LoopExpr,
        pixel: Callable[..., LoopExpr],
        kind: LoopKind = LoopKind.UNROLLED,
    ) -> None:
        """Columns first, then rows."""
        extent, B = self.extent, self.transforms.B
        half = Buffer("half", (extent, extent, self.inner), self.accumulator, "local")
        squares = Buffer("squares", (self.inner,), self.accumulator, "local")
        with code.memory(half, squares):
            with code.lanes(self.inner) as lane:
                code.store(squares, (lane,), const(0, self.accumulator))
            with code.loop(extent, "s", kind) as s, code.lanes(self.inner) as lane:
                pixels = [pixel(r, s, lane) for r in range(extent)]
                for p, value in enumerate(transformed_input(B, pixels)):
                    code.store(half, (p, s, lane), value)
                more = reduce(lambda total, x: intrin("fma", x, x, total), pixels[1:], pixels[0] * pixels[0])
                code.store(squares, (lane,), squares[lane] + more)
            with code.lanes(self.inner) as lane:
                code.store(energy, (block, t, lane), squares[lane])
            with code.loop(extent, "p", kind) as row, code.lanes(self.inner) as lane:
                values = transformed_input(B, [half[row, s, lane] for s in range(extent)])
                for q, value in enumerate(values):
                    code.store(inputs, (row * extent + q, block, t, lane), value)

    def _product(
        self,
        code: LoopBuilder,
        inputs: Buffer,
        first: LoopExpr,
        sums: Buffer,
        p: LoopExpr,
        q: LoopExpr,
        block: LoopExpr,
        size: Tile,
    ) -> None:
        """Sums over all channels at one place of the tiles."""
        for row, height in over(code, runs(sums.shape[1], size.rows), "row"):
            self._tile(code, inputs, first, sums, p, q, block, row, height)

    def _tile(
        self,
        code: LoopBuilder,
        inputs: Buffer,
        first: LoopExpr,
        sums: Buffer,
        p: LoopExpr,
        q: LoopExpr,
        block: LoopExpr,
        row: LoopExpr,
        height: int,
    ) -> None:
        place, (_, count, blocks, _) = p * self.extent + q, sums.shape
        kernel = TileKernel(
            height,
            blocks,
            self.lanes,
            self.accumulator,
            lambda t, _, i, c: Load(inputs, (place, i, first + row + t, c)),
            lambda b, lane, i, c: Load(self.weight, (block + b, p, q, i, c, lane)),
            lambda t, b, lane, value: Store(sums, (place, row + t, b, lane), value),
        )
        written = written_out(height * blocks)
        turns, most = self.inner // written, spare_loads(height, blocks, written)
        fetch = self._ahead(place, block, blocks, count).by(row, height, most, self.in_blocks * turns)
        with kernel.sums(code) as step, code.loop(self.in_blocks, "ci") as i:
            behind = fetch and (lambda code, turn: fetch(code, i * turns + turn))
            for c in steps(code, self.inner, height * blocks, behind=behind):
                step(i, c)

    def _ahead(self, place: LoopExpr, block: LoopExpr, blocks: int, count: int) -> Ahead:
        """The weights of some blocks for the next place, or of the next blocks for the first one."""
        step = rows_of_line(self.weight.dtype, self.lanes)
        per_input, places = -(-self.inner // step), self.extent**2
        lines, next_place, last = self.in_blocks * per_input, place + 1, self.weight.shape[0] - 1

        def line(number: LoopExpr) -> Load:
            there = minimum(block + number // lines + next_place // places * blocks, last)
            p, q = next_place % places // self.extent, next_place % self.extent
            i, c = number % lines // per_input, number % per_input * step
            return Load(self.weight, (there, p, q, i, c, Const(0)))

        return Ahead(lines * blocks if self.weight.nbytes > self.machine.l1_bytes else 0, count, line)

    # --- results ------------------------------------------------------------------------------------------------------

    def _blocks(self, run: Run) -> int:
        """Blocks of the result that a group of channels is."""
        return (run.size - 1) * (self.lanes // self.block) + (run.width or self.lanes) // self.block

    def _transformed_results(
        self, code: LoopBuilder, sums: Buffer, t: LoopExpr, tile: LoopExpr, block: LoopExpr, run: Run
    ) -> None:
        """One tile's results of a group of channels."""
        A, per, every = self.transforms.A, self.lanes // self.block, range(self.extent)
        half = Buffer("half", (self.size, self.extent, self.block), self.accumulator, "local")
        with code.loop(self._blocks(run), "b") as b, code.memory(half):
            with code.unrolled(every, "q") as q, code.lanes(self.block) as lane:
                values = [sums[q + p * self.extent, t, b // per, b % per * self.block + lane] for p in every]
                for i, value in enumerate(transformed_output(A, values)):
                    code.store(half, (i, q, lane), value)
            with code.unrolled(range(self.size), "i") as row:
                for j, lane, place in self._places(code, tile, block * per + b, row):
                    code.emit(store_at(place, transformed_output(A, [half[row, q, lane] for q in every])[j]))

    def _exact_results(self, code: LoopBuilder, tile: LoopExpr, block: LoopExpr, run: Run) -> None:
        """The same from the tile's inputs."""
        per = self.lanes // self.block
        exact = Buffer("exact", (self.size, self.size, self.block), self.accumulator, "local")
        with code.loop(self._blocks(run), "b") as b, code.memory(exact):
            self.guard.results_of(code, exact, tile, block + b // per, b % per * self.block)
            with code.loop(self.size, "i") as i:
                for j, lane, place in self._places(code, tile, block * per + b, i):
                    code.emit(store_at(place, exact[i, j, lane]))

    def _places(
        self, code: LoopBuilder, tile: LoopExpr, block: LoopExpr, i: LoopExpr
    ) -> Iterator[tuple[int, LoopExpr, Load]]:
        """Column, lane and place of every result of row ``i`` of a tile that there is."""
        n, y, x = self.position(tile)
        height, width = self.out.shape[2:4]
        with code.when(y + i < height if height % self.size else None):
            for j in range(self.size):
                with code.when(x + j < width if width % self.size and j else None), code.lanes(self.block) as lane:
                    yield j, lane, Load(self.out, (n, block, y + i, x + j, lane))
