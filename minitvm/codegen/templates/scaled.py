"""Tiles of weights that have a scale for each block along the depth: a block's numbers are multiplied and added up as
they are, and the scale once with what they sum up to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from minitvm.codegen.problem import Scaled
from minitvm.codegen.stages import Value, flatten
from minitvm.codegen.templates.tile import TileKernel, each, steps
from minitvm.ir.expr import Call, Expr
from minitvm.ir.loop import Buffer, LoopExpr, const, intrin
from minitvm.ir.loop.builder import LoopBuilder
from minitvm.ir.ops.quantize_blocks import DequantizeBlocks


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

    def nest(
        self, code: LoopBuilder, tile: TileKernel, depth: int, column: Callable[[LoopExpr, LoopExpr], LoopExpr]
    ) -> None:
        """The tile's loops; ``column``: of a block of lanes and a lane."""
        shape = (tile.rows, tile.blocks, tile.lanes)
        acc, part = (Buffer(name, shape, tile.dtype, "local") for name in ("acc", "part"))
        with code.memory(acc, part):
            tile.zero(code, acc)
            for first, count in self._blocks(code, depth):
                tile.zero(code, part)
                self._steps(code, tile, part, first, count)
                with each(code, range(tile.rows), range(tile.blocks), tile.lanes) as (r, b, lane):
                    factor = self.at(first, column(b, lane)).astype(tile.dtype)
                    code.store(acc, (r, b, lane), intrin("fma", part[r, b, lane], factor, acc[r, b, lane]))
            tile.results(code, acc)

    def _blocks(self, code: LoopBuilder, depth: int) -> Iterator[tuple[LoopExpr, int]]:
        """The first row of every block, and how many it has."""
        whole, rest = divmod(depth, self.block)
        if whole:
            with code.loop(whole, "scale") as q:
                yield q * self.block, self.block
        if rest:
            yield const(whole * self.block, "int64"), rest

    def _steps(self, code: LoopBuilder, tile: TileKernel, part: Buffer, first: LoopExpr, count: int) -> None:
        turns, left = divmod(count, self.together)
        for turn in steps(code, turns, tile.rows * tile.blocks * self.together):
            with code.unrolled(range(self.together)) as u:
                tile.step(code, part, first + (turn * self.together + u))
        if left:
            with code.unrolled(range(left)) as u:
                tile.step(code, part, first + (const(turns, "int64") * self.together + u))


def scaled_of(anchor: Call, values: Mapping[Expr, Value]) -> tuple[Scaled | None, dict[Buffer, Buffer]]:
    """The parts of weights in blocks along the depth, in float32, and what computes each of them."""
    weights = anchor.args[1]
    if not isinstance(weights, Call) or not isinstance(op := weights.op, DequantizeBlocks):
        return None, {}
    if op.axis % weights.tensor_type.rank != 1 or weights.dtype != "float32":
        return None, {}
    factors = op.factors(*(buffer for arg in weights.args for buffer in flatten(values[arg])))
    numbers, scales = (Buffer(name, f.shape, f.dtype) for name, f in zip(("numbers", "scales"), factors, strict=True))
    parts: dict[Buffer, Buffer] = dict(zip((numbers, scales), factors, strict=True))
    return Scaled(op.block, op.per_byte, numbers, scales), parts
