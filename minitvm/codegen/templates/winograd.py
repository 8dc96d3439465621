"""Winograd convolution F(m x m, 3 x 3) in blocked layouts: (m + 2)^2 matrix products (Lavin and Gray 2016).

A thread takes some tiles at a time.  It transforms their inputs for all channels; then, for a few blocks of output
channels, one product for each of the tiles' (m + 2)^2 places in the register tiles of all other products, and their
transforms back to results.  What it makes meanwhile stays in its second-level cache.  Where tiles are few, each thread
takes a band of them; or all threads transform, and each takes some channels, where bands would read too many weights
from far.  Channels are the lanes of both transforms.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce

import numpy as np

from minitvm.codegen.loops import in_lanes, in_parallel, inside, or_zero, unflatten, with_memory
from minitvm.codegen.problem import TEMPLATES, Choice, Problem, Template, Tile
from minitvm.codegen.templates.tile import (
    Ahead,
    Run,
    Step,
    TileKernel,
    block_runs,
    in_one_loop,
    in_steps,
    rows_of_line,
    runs,
    spare_loads,
    step_cycles,
    store_at,
    tiles,
    unrolled,
    written_out,
)
from minitvm.codegen.templates.winograd_guard import Guard
from minitvm.codegen.templates.winograd_sums import transformed_input, transformed_output
from minitvm.cpu_costs import CPU
from minitvm.ir.decision import Exactness
from minitvm.ir.loop import (
    Alloc,
    Barrier,
    Buffer,
    Const,
    If,
    Load,
    LoopExpr,
    LoopKind,
    Stmt,
    Store,
    const,
    intrin,
    loop,
    minimum,
    nest,
    seq,
)
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
        if choice.scheme != CHANNELS_INSIDE:
            some = runs(self.tiles, self._together(choice.scheme, choice.tile))
            work = partial(self._by_tiles, groups, choice.tile)
            return in_one_loop(some, work, LoopKind.PARALLEL, "some")
        inputs, energy = self._inputs(self.tiles, "global"), self.guard.energy(self.tiles, "global")
        transforms = in_parallel(inputs.shape[1:3], lambda i, t: self._input(inputs, energy, i, t, t))
        products = self._by_channels(inputs, energy, groups, choice.tile)
        return with_memory([inputs, energy], seq(transforms, Barrier(), products))

    def _inputs(self, count: int, scope: str) -> Buffer:
        """Of so many tiles, transformed: (place, block of channels, tile, channel)."""
        return Buffer("inputs", (self.extent**2, self.in_blocks, count, self.inner), self.accumulator, scope)

    def _by_tiles(self, groups: Sequence[Run], tile: Tile, first: LoopExpr, size: int) -> Stmt:
        """A work item: some tiles, for all channels."""
        inputs, energy = self._inputs(size, "shared"), self.guard.energy(size, "shared")
        marks = self.guard.marks(size)

        def channels(group: Run) -> Stmt:
            piece = Run(0, 1, size)
            return group.over(
                lambda block, _: self._channels(inputs, marks, first, Const(0), piece, block, group, tile)
            )

        transforms = nest(inputs.shape[1:3], lambda i, t: self._input(inputs, energy, i, t, first + t))
        mark = self.guard.mark(marks, energy, Const(0), first)
        return with_memory([inputs, energy, marks], seq(transforms, mark, *map(channels, groups)))

    def _by_channels(self, inputs: Buffer, energy: Buffer, groups: Sequence[Run], tile: Tile) -> Stmt:
        """A work item is some channels, for all tiles or, where channels are few, for some."""

        def work(group: Run, some: Run) -> Stmt:
            def channels(block: LoopExpr, at: LoopExpr) -> Stmt:
                first, marks = some.start(at), self.guard.marks(some.size)
                products = self._channels(inputs, marks, first, first, some, group.start(block), group, tile)
                return Alloc(marks, seq(self.guard.mark(marks, energy, first, first), products))

            return in_parallel((group.count, some.count), channels)

        return seq(*(work(group, some) for group in groups for some in runs(self.tiles, self._of_channels(tile))))

    def _channels(
        self,
        inputs: Buffer,
        marks: Buffer,
        tile: LoopExpr,
        first: LoopExpr,
        some: Run,
        block: LoopExpr,
        group: Run,
        size: Tile,
    ) -> Stmt:
        """A group of channels of ``some.size`` tiles from ``tile`` on, whose inputs begin at ``first``."""
        sums = Buffer("sums", (self.extent**2, some.size, group.size, self.lanes), self.accumulator, "shared")

        def product(p: LoopExpr, q: LoopExpr) -> Stmt:
            return self._product(inputs, first, sums, p, q, block, size)

        def results(t: LoopExpr) -> Stmt:
            transformed, exact = (self._results(found, t, tile + t, block, group) for found in (sums, None))
            return If(intrin("unlikely", marks[t]), exact, transformed)

        results_of = loop(some.size, results, name="t")
        return Alloc(sums, seq(nest((self.extent, self.extent), product), results_of))

    def position(self, tile: LoopExpr) -> tuple[LoopExpr, LoopExpr, LoopExpr]:
        """The image, and the first row and column of results."""
        n, row, column = unflatten(tile, (self.batch, *self.grid))
        return n, row * self.size, column * self.size

    def _input(self, inputs: Buffer, energy: Buffer, block: LoopExpr, t: LoopExpr, tile: LoopExpr) -> Stmt:
        """One tile's inputs of a block of channels, transformed, and the sum of their squares."""
        n, *corner = self.position(tile)
        y, x = (at - before for at, before in zip(corner, self.pads, strict=True))
        pixels = self.data.shape[2:4]

        def pixel(r: int, s: LoopExpr, lane: LoopExpr) -> LoopExpr:
            return Load(self.data, (n, block, y + r, x + s, lane)).astype(self.accumulator)

        def or_padding(r: int, s: LoopExpr, lane: LoopExpr) -> LoopExpr:
            return or_zero(inside((y + r, x + s), pixels), pixel(r, s, lane))

        ends = inside((y, x, y + (self.extent - 1), x + (self.extent - 1)), pixels * 2)
        whole = self._transformed(inputs, energy, block, t, pixel)
        padded = self._transformed(inputs, energy, block, t, or_padding, LoopKind.SERIAL)
        return If(ends, whole, padded)

    def _transformed(
        self,
        inputs: Buffer,
        energy: Buffer,
        block: LoopExpr,
        t: LoopExpr,
        pixel: Callable[..., LoopExpr],
        kind: LoopKind = LoopKind.UNROLLED,
    ) -> Stmt:
        extent, B = self.extent, self.transforms.B
        half = Buffer("half", (extent, extent, self.inner), self.accumulator, "local")
        squares = Buffer("squares", (self.inner,), self.accumulator, "local")

        def column(s: LoopExpr) -> Stmt:
            def some(lane: LoopExpr) -> Stmt:
                pixels = [pixel(r, s, lane) for r in range(extent)]
                more = reduce(lambda total, x: intrin("fma", x, x, total), pixels[1:], pixels[0] * pixels[0])
                stores = (Store(half, (Const(p), s, lane), v) for p, v in enumerate(transformed_input(B, pixels)))
                return seq(*stores, Store(squares, (lane,), squares[lane] + more))

            return in_lanes(self.inner, some)

        def row(p: LoopExpr) -> Stmt:
            def some(lane: LoopExpr) -> Stmt:
                values = transformed_input(B, [half[p, s, lane] for s in range(extent)])
                return seq(*(Store(inputs, (p * extent + q, block, t, lane), v) for q, v in enumerate(values)))

            return in_lanes(self.inner, some)

        zero = in_lanes(self.inner, lambda lane: Store(squares, (lane,), const(0, self.accumulator)))
        summed = in_lanes(self.inner, lambda lane: Store(energy, (block, t, lane), squares[lane]))
        columns, rows = loop(extent, column, kind, "s"), loop(extent, row, kind, "p")
        return with_memory([half, squares], seq(zero, columns, summed, rows))

    def _product(
        self, inputs: Buffer, first: LoopExpr, sums: Buffer, p: LoopExpr, q: LoopExpr, block: LoopExpr, size: Tile
    ) -> Stmt:
        """Sums over all channels at one place of the tiles."""
        place, (_, count, blocks, _) = p * self.extent + q, sums.shape

        def rows(row: LoopExpr, height: int) -> Stmt:
            kernel = TileKernel(
                height,
                blocks,
                self.lanes,
                self.accumulator,
                lambda t, _, i, c: Load(inputs, (place, i, first + row + t, c)),
                lambda b, lane, i, c: Load(self.weight, (block + b, p, q, i, c, lane)),
                lambda t, b, lane, value: Store(sums, (place, row + t, b, lane), value),
            )
            steps = written_out(height * blocks)
            turns, most = self.inner // steps, spare_loads(height, blocks, steps)
            fetch = self._ahead(place, block, blocks, count).by(row, height, most, self.in_blocks * turns)

            def channels(step: Step, i: LoopExpr) -> Stmt:
                return in_steps(
                    self.inner, height * blocks, lambda c: step(i, c), behind=lambda q: fetch(i * turns + q)
                )

            return kernel.nest(lambda step: loop(self.in_blocks, lambda i: channels(step, i), name="ci"))

        return seq(*(run.over(rows, name="row") for run in runs(count, size.rows)))

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

    def _results(self, sums: Buffer | None, t: LoopExpr, tile: LoopExpr, block: LoopExpr, run: Run) -> Stmt:
        """One tile's results of a group of channels; without ``sums`` from its inputs."""
        size, per = self.size, self.lanes // self.block
        valid = (run.size - 1) * per + (run.width or self.lanes) // self.block
        n, y, x = self.position(tile)
        height, width = self.out.shape[2:4]

        def stored(b: LoopExpr, result: Callable[[LoopExpr, int, LoopExpr], LoopExpr]) -> Callable[[LoopExpr], Stmt]:
            def row(i: LoopExpr) -> Stmt:
                def one(j: int) -> Stmt:
                    def lanes(lane: LoopExpr) -> Stmt:
                        at = Load(self.out, (n, block * per + b, y + i, x + j, lane))
                        return store_at(at, result(i, j, lane))

                    stored = in_lanes(self.block, lanes)
                    return If(x + j < width, stored) if width % size and j else stored

                stored = seq(*map(one, range(size)))
                return If(y + i < height, stored) if height % size else stored

            return row

        def transformed(sums: Buffer, b: LoopExpr) -> Stmt:
            half = Buffer("half", (size, self.extent, self.block), self.accumulator, "local")

            def column(q: LoopExpr) -> Stmt:
                def lanes(lane: LoopExpr) -> Stmt:
                    block, at = b // per, b % per * self.block + lane
                    values = [sums[q + p * self.extent, t, block, at] for p in every]
                    found = transformed_output(self.transforms.A, values)
                    return seq(*(Store(half, (Const(i), q, lane), value) for i, value in enumerate(found)))

                return in_lanes(self.block, lanes)

            def result(i: LoopExpr, j: int, lane: LoopExpr) -> LoopExpr:
                return transformed_output(self.transforms.A, [half[i, q, lane] for q in every])[j]

            every = range(self.extent)
            rows = unrolled(range(size), stored(b, result), "i")
            return Alloc(half, seq(unrolled(every, column, "q"), rows))

        def exactly(b: LoopExpr) -> Stmt:
            exact = Buffer("exact", (size, size, self.block), self.accumulator, "local")
            sums = self.guard.results_of(exact, tile, block + b // per, b % per * self.block)
            rows = loop(size, stored(b, lambda i, j, lane: exact[i, j, lane]), name="i")
            return Alloc(exact, seq(sums, rows))

        return loop(valid, exactly if sums is None else partial(transformed, sums), name="b")
