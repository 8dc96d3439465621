"""Matrix products in register tiles: elements of the left-hand side broadcast, the right-hand side as vectors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from minitvm.codegen.loops import unflatten
from minitvm.codegen.problem import Tile
from minitvm.codegen.templates.product import Matrix, Product
from minitvm.codegen.templates.tile import ITEMS_PER_THREAD, UNROLL, Run, TileKernel, block_runs, runs, unrolled
from minitvm.ir.loop import Alloc, Buffer, LoopExpr, LoopKind, Stmt, Store, const, loop, nest, seq
from minitvm.target import MachineModel

_ROWS = 16  # of a right-hand side in pieces that are read at a time
_COLUMNS = 256  # that they are read over: so many neighbours the processor fetches ahead


@dataclass(frozen=True)
class Gemm:
    """A product in tiles of ``tile``, its columns in blocks of ``lanes``."""

    product: Product
    tile: Tile
    lanes: int

    @property
    def blocks(self) -> int:
        return -(-self.product.columns // self.lanes)

    @property
    def groups(self) -> list[Run]:
        """The blocks in groups, one tile wide each."""
        return block_runs(self.product.columns, self.lanes, self.tile.blocks)

    @property
    def rows(self) -> list[Run]:
        return runs(self.product.rows, self.tile.rows)

    def nest(self, machine: MachineModel) -> Stmt:
        """The loops.  A work item is a group of columns with all of its rows, or where these are few a single tile."""
        items = self.product.batch * sum(g.count for g in self.groups)
        return self.by_groups() if items >= ITEMS_PER_THREAD * machine.threads else self.by_tiles()

    def by_groups(self) -> Stmt:
        """All rows of a group of columns by one thread, which so keeps its part of the panels in its cache."""

        def work(group: Run) -> Stmt:
            return self._work((group.count,), lambda p, at: self.all_rows(p, group.start(at), group))

        return seq(*map(work, self.groups))

    def by_tiles(self) -> Stmt:
        """A tile by one thread."""

        def tiles(group: Run, rows: Run) -> Stmt:
            return self._work(
                (group.count, rows.count),
                lambda p, g, t: self._tile(p, group.start(g), rows.start(t), group, rows.size),
            )

        return seq(*(tiles(group, rows) for group in self.groups for rows in self.rows))

    def in_pieces(self, machine: MachineModel) -> Stmt:
        """A few rows of the right-hand side at a time, where these lie so far apart that caches lose them.  A work item
        is some groups of columns with all of their rows."""
        wanted = ITEMS_PER_THREAD * machine.threads
        most = max(1, min(_COLUMNS // self.lanes, self.blocks // wanted) // self.tile.blocks)

        def work(group: Run, some: Run) -> Stmt:
            return self._work(
                (some.count,),
                lambda p, item: self._summed(p, group.start(some.start(item)), replace(group, count=some.size)),
            )

        return seq(*(work(group, some) for group in self.groups for some in runs(group.count, most)))

    def one(self, p: LoopExpr) -> Stmt:
        """The loops of one matrix of the batch, for one thread."""

        def work(group: Run) -> Stmt:
            return group.over(lambda block, _: self.all_rows(p, block, group), name="group")

        return seq(*map(work, self.groups))

    def all_rows(self, p: LoopExpr, block: LoopExpr, group: Run) -> Stmt:
        """The tiles of a group of columns, which begins with ``block``."""

        return seq(*(run.over(lambda row, size: self._tile(p, block, row, group, size)) for run in self.rows))

    def _work(self, extents: tuple[int, ...], body: Callable[..., Stmt]) -> Stmt:
        """``body(matrix of the batch, *index)`` in parallel."""
        order = (self.product.batch, *extents)
        return loop(math.prod(order), lambda flat: body(*unflatten(flat, order)), LoopKind.PARALLEL, name="work")

    def _summed(self, p: LoopExpr, first: LoopExpr, groups: Run) -> Stmt:
        """Groups from block ``first`` on; sums stay in memory until the last piece of the depth."""
        product, lanes, width = self.product, self.lanes, groups.count * groups.size
        sums = Buffer("sums", (product.rows, width * lanes), product.dtype, "shared")
        kept = Matrix.of(sums).part(-first * lanes, product.columns)

        def piece(start: LoopExpr, depth: int, out: Matrix = kept) -> Stmt:
            part = replace(self, product=product.between(start, depth, out, kept))
            return loop(groups.count, lambda g: part.all_rows(p, first + g * groups.size, groups), name="group")

        def zero(i: LoopExpr, v: LoopExpr) -> Stmt:
            at = v * lanes
            return loop(lanes, lambda x: Store(sums, (i, at + x), const(0, sums.dtype)), LoopKind.VECTORIZED)

        *more, final = runs(product.depth, _ROWS)
        *before, last = [*more, *final.split_last(0)]
        pieces = [run.over(piece, name="piece") for run in before]
        end = piece(const(last.begin, "int64"), last.size, product.out)
        return Alloc(sums, seq(nest((product.rows, width), zero), *pieces, end))

    def _tile(self, p: LoopExpr, block: LoopExpr, row: LoopExpr, group: Run, rows: int) -> Stmt:
        product, lanes = self.product, self.lanes
        start = product.start

        def column(b: LoopExpr, lane: LoopExpr) -> LoopExpr:
            return (block + b) * lanes + lane

        tile = TileKernel(
            rows,
            group.size,
            lanes,
            product.dtype,
            lambda t, _, r: product.left.at(p, row + t, r),
            lambda b, lane, r: product.b(p, r, column(b, lane)),
            lambda t, b, lane, value: product.out.store(p, row + t, column(b, lane), value),
            None if start is None else lambda t, b, lane: start.at(p, row + t, column(b, lane)),
            group.width,
        )
        return tile.nest(lambda step: in_fours(product.depth, step))


def in_fours(extent: int, body: Callable[[LoopExpr], Stmt]) -> Stmt:
    """A loop whose body is written out :data:`UNROLL` times, and what is left over after it."""
    whole, rest = divmod(extent, UNROLL)
    main = loop(whole, lambda q: unrolled(range(UNROLL), lambda u: body(u + q * UNROLL)), name="k") if whole else None
    return seq(main, unrolled(range(whole * UNROLL, extent), body) if rest else None)
