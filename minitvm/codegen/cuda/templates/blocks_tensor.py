"""Blocks of threads that multiply on tensor cores: a warp has whole fragments of factors and sums."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial

from minitvm.codegen.cuda.machine import WARP
from minitvm.codegen.cuda.templates.blocks import Blocks
from minitvm.codegen.cuda.templates.product import Operand, Staging, unrolled
from minitvm.codegen.cuda.templates.tile import MMA, ROOM, VECTOR, BlockTile, MmaTile
from minitvm.codegen.loops import with_memory
from minitvm.ir.loop import Buffer, Ldmatrix, LoopExpr, LoopKind, Mma, Stmt, Store, const, intrin, nest, seq

_UPPER = 0xFFFFE000 - (1 << 32)
"""The bits of a float32 that TF32 has."""


class TensorBlocks(Blocks):
    """Warps side by side, each with ``thread_rows x thread_columns`` sums in pieces of 16 x 8."""

    high = MMA[0]
    """Rows from a thread's piece to its next one."""

    def _staged(self, operand: Operand, lines: int) -> Staging:
        tile, product = self.tile, self.product
        inside = bool(tile.copied) and operand.along_depth
        room = VECTOR if inside else 8
        carried = (operand, lines, tile.depth, tile.threads, product.depth, product.dtype, room)
        return Staging(*carried, tile.stages, bool(tile.copied), inside)

    @cached_property
    def sums(self) -> Buffer:
        """(rows of pieces, columns of pieces, 4)."""
        tile = self.tile
        return Buffer("sums", (tile.thread_rows // MMA[0], tile.thread_columns // MMA[1], 4), "float32", "local")

    def _place(self, t: LoopExpr) -> tuple[LoopExpr, LoopExpr]:
        """The thread's first row of its warp's, and its place in the depth behind its warp's first column."""
        warp, lane = t // WARP, t % WARP
        row = warp // self.tile.across * self.tile.thread_rows + lane // 4
        return row, warp % self.tile.across * self.tile.thread_columns + lane % 4

    def _multiply(self, stage: LoopExpr, down: LoopExpr, across: LoopExpr) -> Stmt:
        """Fragments as :class:`minitvm.ir.loop.Mma` says."""
        tile, deep, (high, wide) = self.tile, 8, MMA
        t = across % 4
        column = across - t + down % 8
        a = Buffer("a", (self.sums.shape[0], 4), "float32", "local")
        b = Buffer("b", (self.sums.shape[1], 2), "float32", "local")

        def left(r: LoopExpr, i: LoopExpr, n: LoopExpr) -> Stmt:
            return Store(a, (i, n), self.left.at(stage, r * deep + t + n // 2 * 4, down + i * high + n % 2 * 8))

        def right(r: LoopExpr, j: LoopExpr, n: LoopExpr) -> Stmt:
            return Store(b, (j, n), self.right.at(stage, r * deep + t + n * 4, column + j * wide))

        def products(i: LoopExpr, j: LoopExpr) -> Stmt:
            factors = [a[i, n] for n in range(4)], [b[j, n] for n in range(2)]
            return seq(*(Mma(self.sums, (i, j), x, y) for x, y in _halves(*factors, tile)))

        def step(r: LoopExpr) -> Stmt:
            reads = [nest(s.shape, partial(f, r), LoopKind.UNROLLED) for s, f in ((a, left), (b, right))]
            return with_memory([a, b], seq(*reads, nest(self.sums.shape[:2], products, LoopKind.UNROLLED)))

        return unrolled(tile.depth // deep, step, "r")

    def _stores(
        self, part: LoopExpr, p: LoopExpr, row: LoopExpr, column: LoopExpr, down: LoopExpr, across: LoopExpr
    ) -> Stmt:
        """Pairs of neighbours, or one by one."""
        tile, high, wide, width = self.tile, self.high, MMA[1], min(2, self.product.vector)
        t = across % 4

        def pair(i: LoopExpr, j: LoopExpr, n: LoopExpr, first: LoopExpr) -> Stmt:
            y = row * tile.rows + down + i * high + n * 8
            x = column * tile.columns + (across - t) + j * wide + t * 2 + first * width
            return self._stored(part, p, y, x, width, lambda lane: self.sums[i, j, n * 2 + first * width + lane])

        return nest((*self.sums.shape[:2], 2, 2 // width), pair, LoopKind.UNROLLED)


class HalfBlocks(TensorBlocks):
    """Blocks for operands of two bytes, which lie in shared memory as in global memory: ``ldmatrix`` transposes the
    rest."""

    def _staged(self, operand: Operand, lines: int) -> Staging:
        tile, product = self.tile, self.product
        assert isinstance(tile, MmaTile)
        carried = (operand, lines, tile.depth, tile.threads, product.depth, tile.kind, ROOM // tile.element)
        return Staging(*carried, tile.stages, bool(tile.copied), operand.along_depth)

    def _multiply(self, stage: LoopExpr, down: LoopExpr, across: LoopExpr) -> Stmt:
        """Four matrices of 8 x 8 at a time: of rows those of one product, of columns those of two."""
        tile, deep = self.tile, 16
        assert isinstance(tile, MmaTile)
        lane, row, column = down % 8 * 4 + across % 4, down - down % 8, across - across % 4
        a = Buffer("a", (tile.thread_rows // 16, 4), "uint32", "local")
        b = Buffer("b", (tile.thread_columns // 16, 4), "uint32", "local")
        first, second = lane // 8 % 2 * 8, lane // 16 * 8

        def left(r: LoopExpr, i: LoopExpr) -> Stmt:
            return Ldmatrix(a, (i,), *self.left.row(stage, r * deep + second, row + i * 16 + first, lane % 8))

        def right(r: LoopExpr, j: LoopExpr) -> Stmt:
            return Ldmatrix(b, (j,), *self.right.row(stage, r * deep + first, column + j * 16 + second, lane % 8))

        def products(i: LoopExpr, j: LoopExpr) -> Stmt:
            words = tuple(a[i, n] for n in range(4)), tuple(b[j // 2, j % 2 * 2 + n] for n in range(2))
            return Mma(self.sums, (i, j), *words, tile.kind)

        def step(r: LoopExpr) -> Stmt:
            reads = [nest(s.shape[:1], partial(f, r), LoopKind.UNROLLED) for s, f in ((a, left), (b, right))]
            return with_memory([a, b], seq(*reads, nest(self.sums.shape[:2], products, LoopKind.UNROLLED)))

        return unrolled(tile.depth // deep, step, "r")


Halves = list[tuple[tuple[LoopExpr, ...], tuple[LoopExpr, ...]]]


def _halves(a: Sequence[LoopExpr], b: Sequence[LoopExpr], tile: BlockTile) -> Halves:
    """What is multiplied: the factors, or, smallest products first, halves of them."""
    assert isinstance(tile, MmaTile)
    if tile.products == 1:
        return [(tuple(a), tuple(b))]
    (a_high, a_low), (b_high, b_low) = (zip(*map(_split, operand), strict=True) for operand in (a, b))
    return [(a_low, b_high), (a_high, b_low), (a_high, b_high)]


def _split(value: LoopExpr) -> tuple[LoopExpr, LoopExpr]:
    """The bits that TF32 has, and what is left."""
    high = intrin("bitcast_float", intrin("bitcast_int", value) & const(_UPPER, "int32"))
    return high, value - high
