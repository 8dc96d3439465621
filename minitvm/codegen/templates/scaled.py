"""Tiles of weights that have a scale for each block along the depth: a block's numbers are multiplied and added up as
they are, and the scale once with what they sum up to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from minitvm.codegen.loops import with_memory
from minitvm.codegen.templates.tile import TileKernel, each, in_steps, unrolled
from minitvm.ir.loop import Buffer, LoopExpr, Stmt, Store, const, intrin, loop, seq


@dataclass(frozen=True)
class InBlocks:
    """``at(row, column)``: what an element of the right-hand side is multiplied by besides, the same for ``block``
    rows; of the last block there may be fewer.  ``together``: so many rows are written out at least.

    ``registers`` are for a tile's sums, those of a block, and a vector of each block of lanes.
    """

    registers: int
    block: int
    together: int
    at: Callable[[LoopExpr, LoopExpr], LoopExpr]

    def widest(self, rows: int) -> int:
        """Blocks of lanes that a tile of so many rows has registers for."""
        return max(1, (self.registers - 1) // (2 * rows + 1))

    def nest(self, tile: TileKernel, depth: int, column: Callable[[LoopExpr, LoopExpr], LoopExpr]) -> Stmt:
        """The tile's loops; ``column``: of a block of lanes and a lane."""
        shape = (tile.rows, tile.blocks, tile.lanes)
        acc, part = (Buffer(name, shape, tile.dtype, "local") for name in ("acc", "part"))

        def block(first: LoopExpr, count: int) -> Stmt:
            def scaled(r: LoopExpr, b: LoopExpr, lane: LoopExpr) -> Stmt:
                factor = self.at(first, column(b, lane)).astype(tile.dtype)
                return Store(acc, (r, b, lane), intrin("fma", part[r, b, lane], factor, acc[r, b, lane]))

            done = each(range(tile.rows), range(tile.blocks), tile.lanes, scaled)
            return seq(tile.zero(part), self._steps(tile, part, first, count), done)

        whole, rest = divmod(depth, self.block)
        blocks = loop(whole, lambda q: block(q * self.block, self.block), name="scale") if whole else None
        last = block(const(whole * self.block, "int64"), rest) if rest else None
        return with_memory([acc, part], seq(tile.zero(acc), blocks, last, *tile.results(acc)))

    def _steps(self, tile: TileKernel, part: Buffer, first: LoopExpr, count: int) -> Stmt:
        def some(turn: LoopExpr, size: int) -> Stmt:
            return unrolled(range(size), lambda u: tile.step(part, first + (turn * self.together + u)))

        turns, left = divmod(count, self.together)
        steps = in_steps(turns, tile.rows * tile.blocks * self.together, lambda turn: some(turn, self.together))
        return seq(steps, some(const(turns, "int64"), left) if left else None)
