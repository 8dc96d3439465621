"""Blocks of threads in groups, each of which multiplies a slice of every piece's depth."""

from __future__ import annotations

from functools import cached_property, partial

from minitvm.codegen.cuda.templates.blocks import Adder, Blocks
from minitvm.codegen.cuda.templates.tile import HALF_OF_BANKS, VECTOR
from minitvm.codegen.loops import unflatten
from minitvm.ir.loop import Barrier, Buffer, Load, LoopExpr, Stmt, guarded, loop, seq
from minitvm.ir.loop.builder import LoopBuilder


class SlicedBlocks(Blocks):
    """All groups have sums of the whole tile, which are added in the order of the slices: so a block has more warps to
    hide latency by where a product has few tiles, and none of it goes through global memory."""

    @cached_property
    def slices(self) -> Buffer:
        """The groups' sums in shared memory: (slice, row, column).  Eight lanes have two rows of four vectors,
        which are in different halves of the banks."""
        tile, apart = self.tile, HALF_OF_BANKS // self.rows.vector
        return Buffer("slices", (tile.slices, tile.rows, tile.columns + apart), self.product.dtype, "shared")

    @property
    def shared(self) -> tuple[Buffer, ...]:
        return (*super().shared, self.slices)

    def _place(self, t: LoopExpr) -> tuple[LoopExpr, LoopExpr]:
        """As many places down as all slices have, one slice's after the other's."""
        number, rest = unflatten(t, (self.tile.slices, self.tile.down * self.tile.across))
        down, across = super()._place(rest)
        return number * self.tile.down + down, across

    def _multiply(self, stage: LoopExpr, down: LoopExpr, across: LoopExpr) -> Stmt:
        tile = self.tile
        start = down // tile.down * (tile.depth // tile.slices)
        return self._products(stage, down % tile.down, across, start)

    def _finished(self, part: LoopExpr, p: LoopExpr, row: LoopExpr, column: LoopExpr, t: LoopExpr) -> Stmt:
        """Sums meet in shared memory; then every thread adds those of some vectors of results, in turn."""
        tile, width = self.tile, min(self.product.vector, VECTOR)
        adder, across = Adder(tile.slices, width, self.product.dtype), tile.columns // width

        def vector(turn: LoopExpr) -> Stmt:
            at = turn * tile.threads + t
            i, j = unflatten(at, (tile.rows, across))
            here = [at < tile.rows * across] * bool(tile.rows * across % tile.threads)
            y, x = row * tile.rows + i, column * tile.columns + j * width
            sums = adder.results(
                lambda n, lane: Load(self.slices, (n, i, j * width + lane)), partial(self._result, part, p, y, x)
            )
            return guarded([*here, *self._within(y, x)], sums)

        turns = -(-tile.rows * across // tile.threads)
        return seq(self._put(*self._place(t)), Barrier(), loop(turns, vector, name="turn"))

    def _put(self, down: LoopExpr, across: LoopExpr) -> Stmt:
        """A thread's sums to shared memory."""
        code, number = LoopBuilder(), down // self.tile.down
        with code.unrolled(range(self.tile.thread_rows), "i") as i, self.columns.each(code) as j:
            where = (number, self.rows.at(i, down % self.tile.down), self.columns.at(j, across))
            code.store(self.slices, where, self.sums[i, j])
        return code.stmt
