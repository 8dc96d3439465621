"""Matrix products as dot products: where both operands lie in memory along the depth, its elements are the lanes.

Nothing is packed.  A register tile of ``rows x columns`` sums, each spread over the lanes, is added up across them at
the end, which pays where the depth is large beside the number of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from minitvm.codegen.spread import unflatten
from minitvm.codegen.templates.product import Product
from minitvm.codegen.templates.tile import Run, choose_tile, runs
from minitvm.ir.loop import Alloc, Buffer, LoopExpr, LoopKind, Stmt, Store, const, intrin, loop, nest, select, seq
from minitvm.target import MachineModel

_PACKING = 0.4  # cycles that put an element into a panel across which it was stored
_FROM_L2 = 1.5  # what it costs that a tile's operands do not stay in the first-level cache from one tile to the next
_IN_FLIGHT = 8  # vectors of sums that hide the latency of an addition
_WIDEST = 4  # vectors that one sum is spread over at most


def fits_dots(product: Product, machine: MachineModel, times: int = 1) -> bool:
    """Whether this costs less vector operations than packing the right-hand side and multiplying whole blocks.

    ``times``: how often the same right-hand side is used.
    """
    if not (product.left.along_rows and product.right.along_columns):
        return False
    blocks = product.batch * product.rows * -(-product.columns // machine.lanes(product.dtype)) * product.depth
    packing = _PACKING * product.right.batch * product.depth * product.columns
    return times * dot_operations(product, machine) <= times * blocks + packing


def dot_operations(product: Product, machine: MachineModel) -> float:
    """Vector operations of a product as dot products."""
    lanes, depth = machine.lanes(product.dtype), product.depth
    tile = choose_tile(product.rows, product.columns, machine)
    leaves_cache = (tile.columns + tile.blocks) * depth * 4 > machine.l1_bytes and product.rows > tile.columns
    each = -(-depth // lanes) * (_FROM_L2 if leaves_cache else 1) + 1 + math.log2(lanes)
    return product.batch * product.rows * product.columns * each


def dots(product: Product, machine: MachineModel) -> Stmt:
    """The loops: one tile a work item."""
    tile = choose_tile(product.rows, product.columns, machine)
    columns, rows = runs(product.columns, tile.blocks), runs(product.rows, tile.columns)
    return seq(*(_tiles(product, r, c, machine) for c in columns for r in rows))


def dots_of_one(product: Product, p: LoopExpr, machine: MachineModel) -> Stmt:
    """The loops of one matrix of the batch, for one thread."""
    tile = choose_tile(product.rows, product.columns, machine)

    def tiles(rows: Run, columns: Run) -> Stmt:
        width = _width(rows.size * columns.size, product.depth, machine.lanes(product.dtype))

        def one(c: LoopExpr, r: LoopExpr) -> Stmt:
            return _Tile(product, p, rows.start(r), columns.start(c), rows.size, columns.size, width).nest()

        return nest((columns.count, rows.count), one)

    columns, rows = runs(product.columns, tile.blocks), runs(product.rows, tile.columns)
    return seq(*(tiles(r, c) for c in columns for r in rows))


def _tiles(product: Product, rows: Run, columns: Run, machine: MachineModel) -> Stmt:
    order = (product.batch, columns.count, rows.count)
    width = _width(rows.size * columns.size, product.depth, machine.lanes(product.dtype))

    def work(flat: LoopExpr) -> Stmt:
        p, c, r = unflatten(flat, order)
        return _Tile(product, p, rows.start(r), columns.start(c), rows.size, columns.size, width).nest()

    return loop(math.prod(order), work, LoopKind.PARALLEL, name="work")


def _width(sums: int, depth: int, lanes: int) -> int:
    """Lanes of a sum: several vectors where a tile has too few sums to keep the multipliers busy."""
    spread = 1
    while 2 * spread * sums <= _IN_FLIGHT and spread < _WIDEST and 4 * spread * lanes <= depth:
        spread *= 2
    return spread * lanes


@dataclass(frozen=True)
class _Tile:
    product: Product
    p: LoopExpr
    row: LoopExpr
    column: LoopExpr
    rows: int
    columns: int
    width: int

    def nest(self) -> Stmt:
        acc = Buffer("acc", (self.rows, self.columns, self.width), self.product.dtype, "local")
        whole, rest = divmod(self.product.depth, self.width)
        zero = self._each(self.width, lambda i, j, lane: Store(acc, (i, j, lane), const(0, acc.dtype)))
        main = loop(whole, lambda v: self._products(acc, v * self.width, self.width), name="v") if whole else None
        tail = self._products(acc, const(whole * self.width, "int64"), rest) if rest else None
        return Alloc(acc, seq(zero, main, tail, *self._across(acc), self._results(acc)))

    def _each(self, width: int, body: Callable[[LoopExpr, LoopExpr, LoopExpr], Stmt]) -> Stmt:
        """``body(row, column, lane)`` for all sums, written out."""

        def lanes(i: LoopExpr, j: LoopExpr) -> Stmt:
            return loop(width, lambda lane: body(i, j, lane), LoopKind.VECTORIZED, name="lane")

        return nest((self.rows, self.columns), lanes, LoopKind.UNROLLED)

    def _products(self, acc: Buffer, start: LoopExpr, valid: int) -> Stmt:
        """Add the products at ``start`` and after it; those beyond ``valid`` lanes are of zeros."""
        product = self.product

        def factor(element: LoopExpr, lane: LoopExpr) -> LoopExpr:
            value = element.astype(acc.dtype)
            return value if valid == self.width else select(lane < valid, value, const(0, acc.dtype))

        def add(i: LoopExpr, j: LoopExpr, lane: LoopExpr) -> Stmt:
            left = factor(product.left.at(self.p, self.row + i, start + lane), lane)
            right = factor(product.right.at(self.p, start + lane, self.column + j), lane)
            return Store(acc, (i, j, lane), intrin("fma", left, right, acc[i, j, lane]))

        return self._each(self.width, add)

    def _across(self, acc: Buffer) -> list[Stmt]:
        """Every sum into its lane 0, halving the number of lanes with every step."""

        def halved(width: int) -> Stmt:
            return self._each(
                width, lambda i, j, lane: Store(acc, (i, j, lane), acc[i, j, lane] + acc[i, j, lane + width])
            )

        steps, width = [], self.width
        while width > 1:
            width //= 2
            steps.append(halved(width))
        return steps

    def _results(self, acc: Buffer) -> Stmt:
        """Neighbouring columns at once, so that what is fused after the product runs in lanes too."""

        def row(i: LoopExpr) -> Stmt:
            def element(j: LoopExpr) -> Stmt:
                return self.product.store(self.p, self.row + i, self.column + j, totals[i, j])

            return loop(self.columns, element, LoopKind.VECTORIZED, name="column")

        totals = Buffer("totals", (self.rows, self.columns), acc.dtype, "local")
        gather = nest((self.rows, self.columns), lambda i, j: Store(totals, (i, j), acc[i, j, 0]), LoopKind.UNROLLED)
        return Alloc(totals, seq(gather, loop(self.rows, row, LoopKind.UNROLLED, name="row")))
