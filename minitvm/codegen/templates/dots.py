"""Matrix products as dot products: where both operands lie in memory along the depth, its elements are the lanes.

Nothing is packed.  A register tile of ``rows x columns`` sums, each spread over the lanes, is added up across them at
the end, which pays where the depth is large beside the number of rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from minitvm.codegen.problem import Tile
from minitvm.codegen.templates.gemm import Gemm
from minitvm.codegen.templates.product import Product
from minitvm.codegen.templates.tile import Run, Step, TileKernel, best_tile, each, unrolled
from minitvm.ir.loop import Alloc, Buffer, LoopExpr, LoopKind, Stmt, Store, const, loop, select, seq
from minitvm.target import MachineModel

PACKING = 0.4
"""Cycles that put an element into a panel across which it was stored."""

_FROM_L2 = 1.5  # what it costs that a tile's operands do not stay in the first-level cache from one tile to the next
_IN_FLIGHT = 8  # vectors of sums that hide the latency of an addition
_WIDEST = 4  # vectors that one sum is spread over at most


def dot_operations(product: Product, machine: MachineModel) -> float:
    """Vector operations of a product as dot products."""
    lanes, depth = machine.lanes(product.dtype), product.depth
    tile = best_tile(product.rows, product.columns, machine)
    leaves_cache = (tile.rows + tile.blocks) * depth * 4 > machine.l1_bytes and product.rows > tile.rows
    each_sum = -(-depth // lanes) * (_FROM_L2 if leaves_cache else 1) + 1 + math.log2(lanes)
    return product.batch * product.rows * product.columns * each_sum


def panel_operations(product: Product, machine: MachineModel, times: int = 1) -> float:
    """Vector operations where the right-hand side is packed and whole blocks are multiplied ``times`` times."""
    blocks = product.batch * product.rows * -(-product.columns // machine.lanes(product.dtype)) * product.depth
    return times * blocks + PACKING * product.right.batch * product.depth * product.columns


def fits_dots(product: Product, machine: MachineModel, times: int = 1) -> bool:
    """Whether dot products cost less than packing; ``times``: how often the same right-hand side is used."""
    if not (product.left.along_rows and product.right.along_columns):
        return False
    return times * dot_operations(product, machine) <= panel_operations(product, machine, times)


@dataclass(frozen=True)
class Dots(Gemm):
    """A product whose tiles are ``tile.rows x tile.blocks`` sums, each of ``depth`` in ``vector`` lanes."""

    vector: int = 1

    @staticmethod
    def of(product: Product, tile: Tile, machine: MachineModel) -> Dots:
        return Dots(product, tile, 1, machine.lanes(product.dtype))

    def _tile(self, p: LoopExpr, block: LoopExpr, row: LoopExpr, group: Run, rows: int) -> Stmt:
        product, width = self.product, self._width(rows * group.size)
        whole, rest = divmod(product.depth, width)

        def factor(element: LoopExpr, lane: LoopExpr, valid: int) -> LoopExpr:
            value = element.astype(product.dtype)
            return value if valid == width else select(lane < valid, value, const(0, product.dtype))

        def reduction(step: Step) -> Stmt:
            main = loop(whole, lambda v: step(v * width, width), name="v") if whole else None
            return seq(main, step(const(whole * width, "int64"), rest) if rest else None)

        return _DotTile(
            rows,
            group.size,
            width,
            product.dtype,
            lambda t, lane, start, valid: factor(product.left.at(p, row + t, start + lane), lane, valid),
            lambda b, lane, start, valid: factor(product.right.at(p, start + lane, block + b), lane, valid),
            lambda t, b, lane, value: product.out.store(p, row + t, block + b, value),
        ).nest(reduction)

    def _width(self, sums: int) -> int:
        """Lanes of a sum: several vectors where a tile has too few sums to keep the multipliers busy."""
        spread = 1
        while 2 * spread * sums <= _IN_FLIGHT and spread < _WIDEST and 4 * spread * self.vector <= self.product.depth:
            spread *= 2
        return spread * self.vector


class _DotTile(TileKernel):
    """Sums of which each is spread over the lanes."""

    def results(self, acc: Buffer) -> list[Stmt]:
        """Added up across the lanes; neighbouring columns at once, so that what is fused runs in lanes too."""
        rows, columns = range(self.rows), range(self.blocks)
        totals = Buffer("totals", (self.rows, self.blocks), self.dtype, "local")

        def halved(width: int) -> Stmt:
            return each(
                rows,
                columns,
                width,
                lambda i, j, lane: Store(acc, (i, j, lane), acc[i, j, lane] + acc[i, j, lane + width]),
            )

        def row(i: LoopExpr) -> Stmt:
            return loop(
                self.blocks,
                lambda j: self.store(i, j, const(0, "int64"), totals[i, j]),
                LoopKind.VECTORIZED,
                name="column",
            )

        steps = [halved(self.lanes >> s) for s in range(1, self.lanes.bit_length())]
        gather = unrolled(rows, lambda i: unrolled(columns, lambda j: Store(totals, (i, j), acc[i, j, 0])))
        return [*steps, Alloc(totals, seq(gather, unrolled(rows, row, "row")))]
