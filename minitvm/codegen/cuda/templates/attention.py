"""Attention by blocks of threads, in one launch (Dao et al. 2022, arXiv:2205.14135): some queries of a head each.

The queries stay in shared memory, the places go through it in pieces: keys for the scores, values for what these mix.
A thread has a few rows and columns of the scores and of the results in registers; threads that share rows are
neighbours in a warp and agree on the maximum and the total by shuffles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from minitvm.codegen.cuda.machine import WARP
from minitvm.codegen.cuda.templates.blocks import Lines
from minitvm.codegen.cuda.templates.dense import GpuMatmul, GpuTemplate
from minitvm.codegen.cuda.templates.product import Factor, Share, in_block, in_blocks, unrolled
from minitvm.codegen.cuda.templates.tile import VECTOR, power_of_two
from minitvm.codegen.loops import in_lanes, unflatten, with_memory
from minitvm.codegen.problem import TEMPLATES, Choice, Problem, Tile
from minitvm.ir.decision import Declined
from minitvm.ir.loop import (
    Barrier,
    Buffer,
    If,
    LoopExpr,
    Shuffle,
    Stmt,
    Store,
    all_of,
    const,
    intrin,
    loop,
    maximum,
    minimum,
    select,
    seq,
)
from minitvm.ir.ops.nn_attention import Attention
from minitvm.ir.ops.nn_dense import BatchMatmul

_LATENCY, _LAUNCH = 700, 3000  # cycles until a piece is in shared memory; that a launch costs after another one
_OVERHEAD = 1.15  # instructions beside multiply-adds
_STEPS = 8  # of a reduction that are written out
_ROUND = 400  # cycles of a piece beside arithmetic: barriers, shuffles, powers that wait for each other
_POWERS = 16  # that an SM makes in a cycle
_SIDE, _PIECE = (64, 32, 16), (64, 32, 16)
_OF_A_THREAD = (8, 4, 2)


@dataclass(frozen=True)
class AttentionTile(Tile):
    """``rows`` queries by ``blocks`` places; of each a thread has ``thread_rows x thread_columns`` scores."""

    thread_rows: int = 4
    thread_columns: int = 4

    def __str__(self) -> str:
        return f"{self.rows} queries x {self.blocks} places, {self.thread_rows} x {self.thread_columns} a thread"

    @property
    def down(self) -> int:
        return self.rows // self.thread_rows

    @property
    def across(self) -> int:
        """Threads that share rows."""
        return self.blocks // self.thread_columns

    @property
    def threads(self) -> int:
        return self.down * self.across

    def columns(self, width: int) -> int:
        """Of the results, that a thread has: whole vectors, or less than one."""
        each = -(-width // self.across)
        return each if each < VECTOR else -(-each // VECTOR) * VECTOR


TILES = [
    AttentionTile(rows, places, down, across)
    for rows in _SIDE
    for places in _PIECE
    for down in _OF_A_THREAD
    for across in _OF_A_THREAD
    if WARP <= rows // down * (places // across) <= 256 and places // across <= WARP
]


@TEMPLATES.register("cuda", Attention)
class GpuAttention(GpuTemplate):
    """query: (batch, length, heads, d), key, value: (batch, places, heads, d or e), a mask or none."""

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Batch, length, heads, places, d, e."""
        (batch, length, heads, size), _, value = (b.shape for b in self.problem.inputs[:3])
        return batch, length, heads, value[1], size, value[3]

    def refusal(self) -> Declined | None:
        if not self.problem.is_static:
            return Declined("its loops are made for numbers")
        return None if self.choices() else Declined(f"heads of {self.shape[4:]} do not fit into shared memory")

    def choices(self) -> Sequence[Choice]:
        able = [t for t in TILES if self._shared(t) <= self.gpu.block_shared]
        found = [Choice("pieces of places", tile, 0.0, self._wasteful(tile)) for tile in able]
        return [replace(choice, cycles=self.cycles(choice)) for choice in found]

    def _wasteful(self, tile: AttentionTile) -> str:
        half = tile.rows >= 2 * max(self.shape[1], 16) or tile.blocks >= 2 * max(self.shape[3], 16)
        return "a smaller tile covers it as well" if half else ""

    def _shared(self, tile: AttentionTile) -> int:
        return sum(buffer.nbytes for buffer in _Block(self, tile).shared)

    def cycles(self, choice: Choice, registers: int = 0) -> float:
        """Waves of blocks, bound by arithmetic or by latency.  ``registers``: of a thread, where they are known."""
        tile = choice.tile
        assert isinstance(tile, AttentionTile)
        batch, length, heads, places, size, width = self.shape
        columns = tile.columns(width)
        own = tile.thread_rows * (tile.thread_columns + columns + 4) + 2 * (tile.thread_columns + columns) + 48
        held = self.gpu.occupancy(tile.threads, registers or own, self._shared(tile))
        if not held:
            return math.inf
        reads = size * (tile.thread_rows + tile.thread_columns) + tile.blocks * (tile.thread_rows + columns)
        shared = tile.threads / WARP * reads / VECTOR
        products = tile.rows * tile.blocks * (size + columns * tile.across) / self.gpu.lanes_of_sm * _OVERHEAD
        powers = tile.rows * tile.blocks / _POWERS
        each = -(-batch * heads * -(-length // tile.rows) // self.gpu.sms)
        waves = [held] * (each // held) + ([each % held] if each % held else [])
        pieces = -(-places // tile.blocks)
        alone = [max(1.0, 8 / (n * tile.threads / WARP)) for n in waves]
        busy = (n * (max(products * a, shared) + powers) for n, a in zip(waves, alone, strict=True))
        return sum(pieces * (max(_LATENCY, work) + _ROUND) + 2 * _LATENCY for work in busy)

    def slower(self) -> Declined | None:
        """Against two products, a softmax and a copy of each operand and the result, launched by themselves."""
        batch, length, heads, places, size, width = self.shape
        many, dtype = batch * heads, self.problem.output.dtype
        moved = many * ((length + places) * (size + width) * 2 + length * places * 4)
        parts = moved * np.dtype(dtype).itemsize / self.gpu.bytes_per_cycle + 6 * _LAUNCH
        for columns, depth, turned in ((places, size, True), (width, places, False)):
            shapes = (many, length, depth), (many, columns, depth) if turned else (many, depth, columns)
            left, right = (Buffer("part", shape, dtype) for shape in shapes)
            out = Buffer("out", (many, length, columns), dtype)
            product = Problem(BatchMatmul(transpose_b=turned), (left, right), (out,), narrow=(dtype, dtype))
            parts += min(c.cycles for c in GpuMatmul(product, self.machine).choices() if not c.why_not)
        mine = self.choice.cycles
        return Declined(f"{mine:,.0f} cycles predicted, {parts:,.0f} of its parts") if mine > parts else None

    def loops(self, choice: Choice) -> Stmt:
        assert isinstance(choice.tile, AttentionTile)
        return _Block(self, choice.tile).nest()


@dataclass(frozen=True)
class _Block:
    """What a block does: ``tile.rows`` queries of a head with all places."""

    template: GpuAttention
    tile: AttentionTile

    @property
    def dtype(self) -> str:
        return self.template.accumulator

    @property
    def op(self) -> Attention:
        assert isinstance(self.template.problem.op, Attention)
        return self.template.problem.op

    # --- memory -----------------------------------------------------------------------------------------------

    def _share(self, operand: int, lines: int, depth: int, along_depth: bool) -> Share:
        """An operand's way to shared memory as (depth, lines), the lines being queries, places or columns."""
        buffer, heads = self.template.problem.inputs[operand], self.template.shape[2]

        def at(head: LoopExpr, line: LoopExpr, r: LoopExpr) -> LoopExpr:
            place, element = (line, r) if along_depth else (r, line)
            return buffer[head // heads, place, head % heads, element]

        count = buffer.shape[1 if along_depth else 3]
        factor = Factor(count, at, along_depth, power_of_two(buffer.shape[3]), buffer.nbytes)
        total = buffer.shape[3 if along_depth else 1]
        return Share(factor, lines, depth, self.tile.threads, total, self.dtype, VECTOR, stages=1)

    @cached_property
    def queries(self) -> Share:
        return self._share(0, self.tile.rows, self.template.shape[4], along_depth=True)

    @cached_property
    def keys(self) -> Share:
        return self._share(1, self.tile.blocks, self.template.shape[4], along_depth=True)

    @cached_property
    def values(self) -> Share:
        columns = self.tile.columns(self.template.shape[5]) * self.tile.across
        return self._share(2, columns, self.tile.blocks, along_depth=False)

    @cached_property
    def powers(self) -> Buffer:
        return Buffer("powers", (self.tile.blocks, self.tile.rows + VECTOR), self.dtype, "shared")

    @property
    def shared(self) -> list[Buffer]:
        return [self.queries.shared, self.keys.shared, self.values.shared, self.powers]

    def _own(self, name: str, *shape: int) -> Buffer:
        return Buffer(name, shape, self.dtype, "local")

    @cached_property
    def rows(self) -> Lines:
        return Lines(self.tile.thread_rows, self.tile.down)

    @cached_property
    def places(self) -> Lines:
        return Lines(self.tile.thread_columns, self.tile.across)

    @cached_property
    def columns(self) -> Lines:
        return Lines(self.tile.columns(self.template.shape[5]), self.tile.across)

    @cached_property
    def scores(self) -> Buffer:
        return self._own("scores", self.rows.count, self.places.count)

    @cached_property
    def mixed(self) -> Buffer:
        return self._own("mixed", self.rows.count, self.columns.count)

    @cached_property
    def of_rows(self) -> tuple[Buffer, Buffer, Buffer, Buffer]:
        """The maximum and the total so far, those of a piece, and what earlier places count."""
        top, total, part, earlier = (self._own(name, self.rows.count) for name in ("top", "total", "part", "earlier"))
        return top, total, part, earlier

    # --- loops ------------------------------------------------------------------------------------------------

    def nest(self) -> Stmt:
        batch, length, heads, *_ = self.template.shape
        pieces = -(-length // self.tile.rows)

        def block(number: LoopExpr) -> Stmt:
            head, piece = unflatten(number, (batch * heads, pieces))
            return with_memory(self.shared, in_block(self.tile.threads, lambda t: self._thread(head, piece, t)))

        return in_blocks(batch * heads * pieces, block)

    def _thread(self, head: LoopExpr, piece: LoopExpr, t: LoopExpr) -> Stmt:
        down, across = t // self.tile.across, t % self.tile.across
        top, total, *_ = self.of_rows
        places = self.template.shape[3]

        def carried(share: Share, tile: LoopExpr, start: LoopExpr) -> Stmt:
            return with_memory([share.held], seq(share.load(head, tile, start, t), share.put(0, t)))

        def step(number: LoopExpr) -> Stmt:
            start, zero = number * self.tile.blocks, const(0, "int64")
            brought = seq(Barrier(), carried(self.keys, number, zero), carried(self.values, zero, start), Barrier())
            scores = self._multiply(self.scores, self.template.shape[4], *self._of_scores(down, across))
            softmax = self._softmax(head, piece, start, down, across)
            mixed = self._multiply(self.mixed, self.tile.blocks, *self._of_mixed(down, across))
            return seq(brought, self._each(self.scores, lambda *at: const(0, self.dtype)), scores, softmax, mixed)

        begin = [
            self._each(top, lambda i: const(-math.inf, self.dtype)),
            self._each(total, lambda i: const(0, self.dtype)),
            self._each(self.mixed, lambda *at: const(0, self.dtype)),
            carried(self.queries, piece, const(0, "int64")),
        ]
        rounds = loop(-(-places // self.tile.blocks), step, name="piece")
        own = [self.scores, self.mixed, *self.of_rows]
        return with_memory(own, seq(*begin, rounds, self._stores(head, piece, down, across)))

    def _each(self, buffer: Buffer, value: Callable[..., LoopExpr]) -> Stmt:
        """Every element of a thread's own."""

        def at(*index: LoopExpr) -> Stmt:
            if len(index) == len(buffer.shape):
                return Store(buffer, index, value(*index))
            return unrolled(buffer.shape[len(index)], lambda i: at(*index, i), "ij"[len(index)])

        return at()

    # --- products ---------------------------------------------------------------------------------------------

    def _of_scores(self, down: LoopExpr, across: LoopExpr) -> tuple[Read, Read]:
        def query(r: LoopExpr, i: LoopExpr) -> LoopExpr:
            return self.queries.at(const(0, "int64"), r, self.rows.at(i, down))

        return query, lambda r, j: self.keys.at(const(0, "int64"), r, self.places.at(j, across))

    def _of_mixed(self, down: LoopExpr, across: LoopExpr) -> tuple[Read, Read]:
        def power(r: LoopExpr, i: LoopExpr) -> LoopExpr:
            return self.powers[r, self.rows.at(i, down)]

        return power, lambda r, j: self.values.at(const(0, "int64"), r, self.columns.at(j, across))

    def _multiply(self, sums: Buffer, depth: int, left: Read, right: Read) -> Stmt:
        """``sums[i, j] += left(r, i) * right(r, j)`` for all r."""
        a, b = self._own("a", sums.shape[0]), self._own("b", sums.shape[1])
        lines = self.rows, self.places if sums is self.scores else self.columns

        def read(to: Buffer, side: Lines, element: Read, r: LoopExpr) -> Stmt:
            def vector(first: LoopExpr) -> Stmt:
                return in_lanes(side.vector, lambda lane: Store(to, (first + lane,), element(r, first + lane)))

            return side.chunks(vector)

        def step(r: LoopExpr) -> Stmt:
            reads = seq(read(a, lines[0], left, r), read(b, lines[1], right, r))
            return with_memory([a, b], seq(reads, self._each(sums, lambda i, j: intrin("fma", a[i], b[j], sums[i, j]))))

        whole, rest = divmod(depth, _STEPS)
        main = loop(whole, lambda q: unrolled(_STEPS, lambda u: step(q * _STEPS + u), "u"), name="r") if whole else None
        return seq(main, unrolled(rest, lambda u: step(u + whole * _STEPS), "u") if rest else None)

    # --- softmax ----------------------------------------------------------------------------------------------

    def _softmax(self, head: LoopExpr, piece: LoopExpr, start: LoopExpr, down: LoopExpr, across: LoopExpr) -> Stmt:
        """Scores become powers, in shared memory; what was mixed and added up before counts less.  A maximum of -inf
        takes nothing off, so that places which are masked count nothing whatever piece they are in."""
        scores, (top, total, part, earlier) = self.scores, self.of_rows
        zeros = self.op.empty_rows == "zero"

        def power(i: LoopExpr, j: LoopExpr) -> LoopExpr:
            return intrin("exp", scores[i, j] - self._less(i))

        def share(i: LoopExpr) -> LoopExpr:
            found = intrin("exp", earlier[i] - self._less(i))
            return select(intrin("isnan", found), 0, found) if zeros else found

        def put(i: LoopExpr, j: LoopExpr) -> Stmt:
            found = scores[i, j]
            kept = select(intrin("isnan", found), 0, found) if zeros else found
            return Store(self.powers, (self.places.at(j, across), self.rows.at(i, down)), kept)

        return seq(
            self._each(scores, lambda i, j: self._masked(head, piece, start, i, j, down, across)),
            self._each(earlier, lambda i: top[i]),
            *self._across(part, maximum),
            self._each(top, lambda i: maximum(top[i], part[i])),
            self._each(scores, power),
            self._each(earlier, share),
            *self._across(part, lambda a, b: a + b),
            self._each(total, lambda i: intrin("fma", total[i], earlier[i], part[i])),
            self._each(self.mixed, lambda i, j: self.mixed[i, j] * earlier[i]),
            unrolled(self.rows.count, lambda i: unrolled(self.places.count, lambda j: put(i, j), "j"), "i"),
            Barrier(),
        )

    def _less(self, i: LoopExpr) -> LoopExpr:
        top = self.of_rows[0]
        return select(top[i].equal(-math.inf), 0, top[i])

    def _masked(
        self,
        head: LoopExpr,
        piece: LoopExpr,
        start: LoopExpr,
        i: LoopExpr,
        j: LoopExpr,
        down: LoopExpr,
        across: LoopExpr,
    ) -> LoopExpr:
        """A score; of a place that there is not, -inf."""
        _, length, heads, places, *_ = self.template.shape
        mask = self.template.problem.inputs[3] if len(self.template.problem.inputs) > 3 else None
        row = piece * self.tile.rows + self.rows.at(i, down)
        place = start + self.places.at(j, across)
        inside = minimum(row, length - 1), minimum(place, places - 1)
        found = self.op.masked(self.scores[i, j] * self.op.scale, mask, (head // heads, head % heads, *inside))
        return select(place < places, found, -math.inf) if places % self.tile.blocks else found

    def _across(self, to: Buffer, combine: Callable[[LoopExpr, LoopExpr], LoopExpr]) -> list[Stmt]:
        """Of every row the scores combined, in all threads that share it."""
        own = [self._each(to, lambda i: self.scores[i, 0])]
        for j in range(1, self.places.count):
            own.append(self._each(to, lambda i, j=j: combine(to[i], self.scores[i, j])))
        masks = [self.tile.across >> s for s in range(1, self.tile.across.bit_length())]
        return [*own, *(self._each(to, lambda i, m=m: combine(to[i], Shuffle(to[i], m))) for m in masks)]

    # --- results ----------------------------------------------------------------------------------------------

    def _stores(self, head: LoopExpr, piece: LoopExpr, down: LoopExpr, across: LoopExpr) -> Stmt:
        _, length, heads, places, _, width = self.template.shape
        out, total = self.template.problem.output, self.of_rows[1]
        vector = min(self.columns.vector, power_of_two(width))

        def store(i: LoopExpr, first: LoopExpr) -> Stmt:
            row = piece * self.tile.rows + self.rows.at(i, down)
            column = self.columns.at(first, across)

            def element(lane: LoopExpr) -> Stmt:
                found = self.op.averaged(self.mixed[i, first + lane], total[i], places)
                index = (head // heads, row, head % heads, column + lane)
                return Store(out, index, found.astype(out.dtype))

            guards = [row < length] * bool(length % self.tile.rows)
            guards += [column < width] * (self.columns.count * self.tile.across != width)
            stores = in_lanes(vector, element)
            return If(all_of(guards), stores) if guards else stores

        def of_row(i: LoopExpr) -> Stmt:
            return unrolled(self.columns.count // vector, lambda c: store(i, c * vector), "chunk")

        return unrolled(self.rows.count, of_row, "i")


Read = Callable[[LoopExpr, LoopExpr], LoopExpr]
"""An element of a factor: (position in the depth, number of the thread's line)."""
