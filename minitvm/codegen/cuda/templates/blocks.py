"""Blocks of threads that multiply, each a tile of a product; and that add the parts of its depth."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial

from minitvm.codegen.cuda.machine import WARP
from minitvm.codegen.cuda.templates.product import GpuProduct, Operand, Staging, in_block, unrolled
from minitvm.codegen.cuda.templates.tile import VECTOR, BlockTile, power_of_two
from minitvm.codegen.loops import in_lanes, unflatten, with_memory
from minitvm.codegen.templates.tile import store_at
from minitvm.ir.loop import (
    Alloc,
    Barrier,
    Buffer,
    CopyCommit,
    CopyWait,
    If,
    Load,
    LoopExpr,
    LoopKind,
    Stmt,
    Store,
    as_index,
    const,
    guarded,
    intrin,
    loop,
    minimum,
    nest,
    seq,
)
from minitvm.ir.loop.builder import LoopBuilder

At = Callable[[LoopExpr, LoopExpr], LoopExpr]
"""Of a part: (number, lane)."""
_TOGETHER = 8
"""Parts that a thread has on their way at once."""


@dataclass(frozen=True)
class Adder:
    """A thread that adds parts of neighbouring results, in the order of their numbers."""

    count: int
    width: int
    dtype: str

    def results(self, part: At, store: Callable[[LoopExpr, LoopExpr], Stmt]) -> Stmt:
        """``store(lane, sum over n of part(n, lane))``."""
        sums = Buffer("sums", (self.width,), self.dtype, "local")
        many, rest = divmod(self.count - 1, _TOGETHER)

        def some(first: LoopExpr, count: int) -> Stmt:
            return unrolled(count, lambda n: in_lanes(self.width, partial(added, first + n)), "part")

        def added(n: LoopExpr, lane: LoopExpr) -> Stmt:
            return Store(sums, (lane,), sums[lane] + part(n, lane))

        first = in_lanes(self.width, lambda lane: Store(sums, (lane,), part(as_index(0), lane)))
        more = loop(many, lambda n: some(n * _TOGETHER + 1, _TOGETHER), name="parts")
        last = some(as_index(many * _TOGETHER + 1), rest)
        return Alloc(sums, seq(first, more, last, in_lanes(self.width, lambda lane: store(lane, sums[lane]))))


@dataclass(frozen=True)
class Lines:
    """The lines of one operand that a thread has: ``count`` of them, in vectors, beside the other threads'."""

    count: int
    threads: int
    scattered: bool = field(default=False, kw_only=True)
    """Whether neighbours are other threads': lines are rows in shared memory, and those are in other banks."""

    @property
    def vector(self) -> int:
        """The lines of a vector, as many as divide the count: 3 lines are 3 vectors of one, none left out and none too
        many."""
        return 1 if self.scattered else power_of_two(self.count)

    def at(self, number: LoopExpr, thread: LoopExpr) -> LoopExpr:
        """The tile's line that is a thread's ``number``-th."""
        width = self.vector
        return number // width * (self.threads * width) + thread * width + number % width

    @contextmanager
    def each(self, code: LoopBuilder) -> Iterator[LoopExpr]:
        """The number of every line, vector by vector."""
        with code.unrolled(range(self.count // self.vector), "chunk") as chunk, code.lanes(self.vector) as lane:
            yield chunk * self.vector + lane


@dataclass(frozen=True)
class Blocks:
    """The launch that multiplies; its results are the product's, or go to ``parts``."""

    product: GpuProduct
    tile: BlockTile
    parts: Buffer | None = None

    @cached_property
    def left(self) -> Staging:
        return self._staged(self.product.left, self.tile.rows)

    @cached_property
    def right(self) -> Staging:
        return self._staged(self.product.right, self.tile.columns)

    @property
    def shared(self) -> tuple[Buffer, ...]:
        """What both factors' pieces are in."""
        return self.left.shared, self.right.shared

    def _staged(self, operand: Operand, lines: int) -> Staging:
        """Vectors along the depth come to the left-hand factor's lines by copies; a thread of a warp reads one line or
        four, so those are in different banks."""
        tile, product = self.tile, self.product
        inside = bool(tile.copied) and operand is product.left and operand.along_depth and operand.vector > 1
        room = VECTOR * operand.along_depth
        carried = (operand, lines, tile.depth, tile.threads, product.depth, product.dtype, room)
        return Staging(*carried, tile.stages, bool(tile.copied), inside)

    @cached_property
    def rows(self) -> Lines:
        return Lines(self.tile.thread_rows, self.tile.down, scattered=self.left.depth_inside)

    @cached_property
    def columns(self) -> Lines:
        return Lines(self.tile.thread_columns, self.tile.across)

    @cached_property
    def sums(self) -> Buffer:
        return Buffer("sums", (self.tile.thread_rows, self.tile.thread_columns), self.product.dtype, "local")

    @property
    def _grid(self) -> tuple[int, int, int]:
        """Batch, tiles down, tiles across."""
        product, tile = self.product, self.tile
        return product.batch, -(-product.left.lines // tile.rows), -(-product.right.lines // tile.columns)

    @property
    def tiles(self) -> int:
        """A block of threads is there for each, and for each part of the depth."""
        return math.prod(self._grid)

    def multiplied(self, number: LoopExpr, part: LoopExpr) -> Stmt:
        p, i, j = unflatten(number, self._grid)
        return in_block(self.tile.threads, lambda t: self._thread(part, p, i, j, t))

    def added(self, number: LoopExpr, share: LoopExpr) -> Stmt:
        """The parts of a tile's sums, in their order, by a thread for each vector of them in turn; ``share``: of as
        many as there are parts."""
        assert self.parts is not None
        product, tile, parts = self.product, self.tile, self.parts
        width, (p, row, column) = min(product.vector, VECTOR), unflatten(number, self._grid)
        adder = Adder(tile.split, width, product.dtype)
        rows, across = min(tile.rows, product.left.lines), tile.columns // width
        step = tile.threads * tile.split

        def vector(t: LoopExpr, turn: LoopExpr) -> Stmt:
            at = turn * step + share * tile.threads + t
            i, j = unflatten(at, (rows, across))
            y, x = row * tile.rows + i, column * tile.columns + j * width
            within = [at < rows * across] * bool(rows * across % step)
            sums = adder.results(
                lambda n, lane: Load(parts, (n, p, y, x + lane)),
                lambda lane, value: product.store(p, y, x + lane, value),
            )
            return guarded([*within, *self._within(y, x)], sums)

        turns = -(-rows * across // step)
        return in_block(tile.threads, lambda t: loop(turns, partial(vector, t), name="turn"))

    def _thread(self, part: LoopExpr, p: LoopExpr, row: LoopExpr, column: LoopExpr, t: LoopExpr) -> Stmt:
        """``row``, ``column``: of the tile among the tiles."""
        product = self.product
        pieces, whole = product.extent.pieces(self.tile), product.extent.whole_pieces(self.tile)
        first = part * pieces
        count = minimum(pieces, whole - first) if whole % pieces else const(pieces, "int64")
        down, across = self._place(t)

        def load(piece: LoopExpr) -> Stmt:
            start = (first + piece) * self.tile.depth
            return seq(self.left.load(p, row, start, t), self.right.load(p, column, start, t))

        def put(half: LoopExpr | int) -> Stmt:
            return seq(self.left.put(half, t), self.right.put(half, t))

        def step(piece: LoopExpr) -> Stmt:
            more = piece + 1 < count
            multiply = self._multiply(piece % 2, down, across)
            return seq(If(more, load(piece + 1)), multiply, If(more, put((piece + 1) % 2)), Barrier())

        def copy(piece: LoopExpr) -> Stmt:
            stage, start = piece % self.tile.stages, (first + piece) * self.tile.depth
            sides = ((self.left, row), (self.right, column))
            copies = seq(*(side.copy(p, lines, start, t, stage) for side, lines in sides))
            return seq(If(piece < count, copies), CopyCommit())

        zero = nest(self.sums.shape, lambda *at: Store(self.sums, at, const(0, product.dtype)), LoopKind.UNROLLED)
        stores = self._finished(part, p, row, column, t)
        if self.tile.copied:
            return Alloc(self.sums, seq(zero, self._pipeline(count, copy, down, across), stores))
        begin = seq(zero, load(const(0, "int64")), put(0), Barrier())
        own = [self.sums, self.left.held, self.right.held]
        return with_memory(own, seq(begin, loop(count, step, name="piece"), stores))

    def _pipeline(self, count: LoopExpr, copy: Callable[[LoopExpr], Stmt], down: LoopExpr, across: LoopExpr) -> Stmt:
        """While a piece is multiplied, the copies of the next ones are on their way; one barrier a piece."""
        ahead = self.tile.stages - 1

        def step(piece: LoopExpr) -> Stmt:
            multiply = self._multiply(piece % self.tile.stages, down, across)
            return seq(CopyWait(ahead - 1), Barrier(), copy(piece + ahead), multiply)

        begin = (copy(const(piece, "int64")) for piece in range(ahead))
        return seq(*begin, loop(count, step, name="piece"))

    def _place(self, t: LoopExpr) -> tuple[LoopExpr, LoopExpr]:
        """Of a thread among those of the tile (down, across).

        A warp's are a rectangle, which reads few lines.  Lanes that differ in their number's first bit have the same
        row, those that differ in the second one the same column: shared memory gives such pairs their vectors at once.
        """
        (down, across), of_tile = self.tile.warp, self.tile.across
        if down == 1:
            return t // of_tile, t % of_tile
        warp, lane = t // WARP, t % WARP
        warps, rest = of_tile // across, lane // 4
        row = rest // (across // 2) * 2 + lane // 2 % 2
        column = rest % (across // 2) * 2 + lane % 2
        return warp // warps * down + row, warp % warps * across + column

    def _multiply(self, stage: LoopExpr, down: LoopExpr, across: LoopExpr) -> Stmt:
        """All products of a piece that is in shared memory."""
        return self._products(stage, down, across, const(0, "int64"))

    def _products(self, stage: LoopExpr, down: LoopExpr, across: LoopExpr, start: LoopExpr) -> Stmt:
        """Those of a slice of a piece, which begins at ``start``."""
        tile, sums, inside = self.tile, self.sums, self.left.depth_inside
        width = self.left.vector if inside else 1
        a = Buffer("a", (width, tile.thread_rows), self.product.dtype, "local")
        b = Buffer("b", (tile.thread_columns,), self.product.dtype, "local")

        code, zero = LoopBuilder(), const(0, "int64")
        with code.unrolled(range(tile.depth // tile.slices // width), "r") as r, code.memory(a, b):
            here = start + r * width
            if inside:
                with code.unrolled(range(tile.thread_rows), "i") as i, code.lanes(width) as lane:
                    code.store(a, (lane, i), self.left.at(stage, here + lane, self.rows.at(i, down)))
            else:
                with self.rows.each(code) as i:
                    code.emit(store_at(Load(a, (zero, i)), self.left.at(stage, here, self.rows.at(i, down))))
            with code.unrolled(range(width), "s") as s:
                with self.columns.each(code) as j:
                    at = self.right.at(stage, here + s, self.columns.at(j, across))
                    code.emit(store_at(Load(b, (j,)), at))
                columns = range(tile.thread_columns)
                with code.unrolled(range(tile.thread_rows), "i") as i, code.unrolled(columns, "j") as j:
                    code.store(sums, (i, j), intrin("fma", a[s, i], b[j], sums[i, j]))
        return code.stmt

    # --- results ------------------------------------------------------------------------------------------------------

    def _finished(self, part: LoopExpr, p: LoopExpr, row: LoopExpr, column: LoopExpr, t: LoopExpr) -> Stmt:
        """A thread's sums go to where they belong."""
        return self._stores(part, p, row, column, *self._place(t))

    def _stores(
        self, part: LoopExpr, p: LoopExpr, row: LoopExpr, column: LoopExpr, down: LoopExpr, across: LoopExpr
    ) -> Stmt:
        code, tile = LoopBuilder(), self.tile
        width = min(self.product.vector, self.columns.vector)
        chunks = range(tile.thread_columns // width)
        with code.unrolled(range(tile.thread_rows), "i") as i, code.unrolled(chunks, "chunk") as chunk:
            y = row * tile.rows + self.rows.at(i, down)
            first = chunk * width
            x = column * tile.columns + self.columns.at(first, across)
            code.emit(self._stored(part, p, y, x, width, lambda lane: Load(self.sums, (i, first + lane))))
        return code.stmt

    def _stored(
        self, part: LoopExpr, p: LoopExpr, y: LoopExpr, x: LoopExpr, width: int, value: Callable[[LoopExpr], LoopExpr]
    ) -> Stmt:
        """``width`` neighbours of row ``y`` from column ``x`` on, where they are results."""

        def one(lane: LoopExpr) -> Stmt:
            return self._result(part, p, y, x, lane, value(lane))

        return guarded(self._within(y, x), in_lanes(width, one))

    def _result(self, part: LoopExpr, p: LoopExpr, y: LoopExpr, x: LoopExpr, lane: LoopExpr, value: LoopExpr) -> Stmt:
        """A result, or its part."""
        if self.parts is None:
            return self.product.store(p, y, x + lane, value)
        return Store(self.parts, (part, p, y, x + lane), value)

    def _within(self, y: LoopExpr, x: LoopExpr) -> list[LoopExpr]:
        """What makes a row and a column of tiles one of results."""
        tile, rows, columns = self.tile, self.product.left.lines, self.product.right.lines
        return [y < rows] * bool(rows % tile.rows) + [x < columns] * bool(columns % tile.columns)
