"""Matrix products, whatever operator they came from and however their operands lie in memory, in register tiles.

Elements of the left-hand side are broadcast, the right-hand side is read as vectors; or, where both operands lie in
memory along the depth, its elements are the lanes, and nothing has to be packed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from minitvm.codegen.loops import Valid, enough, in_vectors, or_zero, parallel
from minitvm.codegen.problem import Problem, Tile
from minitvm.codegen.templates.tile import (
    TYPICAL,
    Ahead,
    Fetch,
    Run,
    TileKernel,
    block_runs,
    each,
    over,
    rows_of_line,
    runs,
    spare_loads,
    steps,
    store_at,
    written_out,
)
from minitvm.cpu_costs import CPU
from minitvm.ir.loop import Buffer, Const, If, Load, LoopExpr, LoopKind, Prefetch, Stmt, const, minimum
from minitvm.ir.loop.builder import LoopBuilder
from minitvm.ir.ops.nn_dense import Dense
from minitvm.target import MachineModel

if TYPE_CHECKING:
    from minitvm.codegen.templates.scaled import InBlocks

_ROWS = 16  # of a right-hand side in pieces that are read at a time
_COLUMNS = 256  # that they are read over: so many neighbours the processor fetches ahead
_IN_FLIGHT = 8  # vectors of sums that hide the latency of an addition
_WIDEST = 4  # vectors that one sum of a dot product is spread over at most

At = Callable[[LoopExpr, LoopExpr, LoopExpr], Load]
"""Where element (batch, row, column) lies."""


@dataclass(frozen=True)
class Matrix:
    """A batch of matrices somewhere in memory; a batch of one is repeated.

    ``along_rows``, ``along_columns``: neighbours in a row, in a column, are neighbours in memory.
    """

    batch: int
    rows: int
    columns: int
    at: At
    along_rows: bool
    along_columns: bool

    @staticmethod
    def of(buffer: Buffer, transposed: bool = False) -> Matrix:
        """A buffer of rank 2 or 3; ``transposed``: stored column by column."""
        batch = buffer.shape[0] if len(buffer.shape) == 3 else 1

        def at(p: LoopExpr, i: LoopExpr, j: LoopExpr) -> Load:
            where = (j, i) if transposed else (i, j)
            return Load(buffer, where if len(buffer.shape) == 2 else (p, *where))

        rows, columns = buffer.shape[-2:][:: -1 if transposed else 1]
        return Matrix.stored(batch, rows, columns, at, transposed)

    @staticmethod
    def stored(batch: int, rows: int, columns: int, at: At, transposed: bool) -> Matrix:
        """Elements somewhere, row by row or column by column."""
        line = 1 in (rows, columns)
        place = at if batch != 1 else lambda _, i, j: at(Const(0), i, j)
        return Matrix(batch, rows, columns, place, not transposed or line, transposed or line)

    @property
    def dtype(self) -> str:
        return self.at(Const(0), Const(0), Const(0)).dtype

    @property
    def turned(self) -> Matrix:
        """The same memory, rows and columns exchanged."""
        at = self.at
        return Matrix(
            self.batch, self.columns, self.rows, lambda p, i, j: at(p, j, i), self.along_columns, self.along_rows
        )

    def part(self, first: LoopExpr | int, count: int) -> Matrix:
        """``count`` columns from ``first`` on."""
        at = self.at
        return replace(self, columns=count, at=lambda p, i, j: at(p, i, j + first))

    def store(self, p: LoopExpr, i: LoopExpr, j: LoopExpr, value: LoopExpr) -> Stmt:
        return store_at(self.at(p, i, j), value)


@dataclass(frozen=True)
class Product:
    """``out[p, i, j] = sum over r of left[p, i, r] * right[p, r, j]``, kept in ``dtype`` and rounded when stored.

    ``start``: what sums begin with instead of zero.
    ``panels``: elements of the right-hand side, and anything beyond its last column.
    ``scales``: what these elements are multiplied by besides.
    """

    left: Matrix
    right: Matrix
    out: Matrix
    dtype: str
    start: Matrix | None = None
    panels: Callable[[LoopExpr, LoopExpr, LoopExpr], LoopExpr] | None = None
    multiply: str = "fma"
    scales: InBlocks | None = None

    @staticmethod
    def of(problem: Problem) -> Product:
        """``nn.dense``, ``nn.matmul`` or ``nn.batch_matmul``."""
        (a, b), attributes = problem.inputs, problem.op.attributes()
        transpose_b = bool(attributes.get("transpose_b", isinstance(problem.op, Dense)))
        left, right = Matrix.of(a, bool(attributes.get("transpose_a", False))), Matrix.of(b, transpose_b)
        return Product(left, right, Matrix.of(problem.output), problem.accumulator)

    @property
    def batch(self) -> int:
        return self.out.batch

    @property
    def rows(self) -> int:
        return self.out.rows

    @property
    def columns(self) -> int:
        return self.out.columns

    @property
    def depth(self) -> int:
        return self.left.columns

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Batch, rows, columns, depth."""
        return self.batch, self.rows, self.columns, self.depth

    @property
    def typical(self) -> Product:
        """The product with numbers for sizes that only a run knows."""

        def sized(matrix: Matrix) -> Matrix:
            batch, rows, columns = (
                d if isinstance(d, int) else TYPICAL for d in (matrix.batch, matrix.rows, matrix.columns)
            )
            return replace(matrix, batch=batch, rows=rows, columns=columns)

        return replace(self, left=sized(self.left), right=sized(self.right), out=sized(self.out))

    @property
    def turned(self) -> Product:
        """The same numbers as the product of the operands exchanged."""
        return Product(self.right.turned, self.left.turned, self.out.turned, self.dtype)

    def b(self, p: LoopExpr, r: LoopExpr, j: LoopExpr) -> LoopExpr:
        """An element of the right-hand side; zero beyond the last column."""
        found = self.inside(p, r, j)
        return found if self.panels is not None else or_zero(j < self.columns, found)

    def inside(self, p: LoopExpr, r: LoopExpr, j: LoopExpr) -> LoopExpr:
        """An element of a column that there is."""
        if self.panels is not None:
            return self.panels(p, r, j)
        return self.right.at(p, r, j).astype(self.dtype)

    def between(self, first: LoopExpr, depth: int, out: Matrix, start: Matrix) -> Product:
        """A part of the sums: ``depth`` products from ``first`` on, added to ``start``, into ``out``."""
        b = self.b
        return replace(
            self, left=self.left.part(first, depth), out=out, start=start, panels=lambda p, r, j: b(p, r + first, j)
        )


# --- its loops ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gemm:
    """A product in tiles of ``tile``, its columns in blocks of ``lanes``.

    ``ahead``: panels lie in memory one after the other, and the next group's are fetched while one is read.
    """

    product: Product
    tile: Tile
    lanes: int
    ahead: bool = False

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

    def nest(self, code: LoopBuilder, machine: MachineModel) -> None:
        """The loops.  A work item is a tile's rows, whole; or a group of columns with all of its rows, or where these
        are few a single tile."""
        items = self.product.batch * sum(g.count for g in self.groups)
        if self.is_near(machine):
            self.by_rows(code)
        elif enough(items, CPU.items_per_thread * machine.threads):
            self.by_groups(code)
        else:
            self.by_tiles(code)

    def is_near(self, machine: MachineModel) -> bool:
        """True if the first-level cache keeps one right-hand side from one tile of many rows to the next."""
        product, items = self.product, self.product.batch * sum(rows.count for rows in self.rows)
        side = product.depth * self.blocks * machine.vector_bytes
        near = product.right.batch == 1 and isinstance(side, int) and 2 * side <= machine.l1_bytes
        return near and enough(items, CPU.items_per_thread * machine.threads)

    def by_groups(self, code: LoopBuilder) -> None:
        """All rows of a group of columns by one thread, which so keeps its part of the panels in its cache."""
        for group in self.groups:
            with parallel(code, (self.product.batch, group.count)) as (p, at):
                self.all_rows(code, p, group.start(at), group)

    def by_rows(self, code: LoopBuilder) -> None:
        """All columns of a tile's rows by one thread, which so writes them from one end to the other."""
        for rows in self.rows:
            with parallel(code, (self.product.batch, rows.count)) as (p, t):
                self.whole_rows(code, p, rows.start(t), rows.size)

    def whole_rows(self, code: LoopBuilder, p: LoopExpr, row: LoopExpr, size: int) -> None:
        for group in self.groups:
            with code.loop(group.count, "group") as g:
                self._tile(code, p, group.start(g), row, group, size)

    def by_tiles(self, code: LoopBuilder) -> None:
        """A tile by one thread."""
        for group, rows in itertools.product(self.groups, self.rows):
            with parallel(code, (self.product.batch, group.count, rows.count)) as (p, g, t):
                self._tile(code, p, group.start(g), rows.start(t), group, rows.size)

    def in_pieces(self, code: LoopBuilder, machine: MachineModel) -> None:
        """A few rows of the right-hand side at a time, where these lie so far apart that caches lose them.  A work item
        is some groups of columns with all of their rows."""
        wanted = CPU.items_per_thread * machine.threads
        most = max(1, min(_COLUMNS // self.lanes, self.blocks // wanted) // self.tile.blocks)
        for group in self.groups:
            for some in runs(group.count, most):
                with parallel(code, (self.product.batch, some.count)) as (p, item):
                    self._summed(code, p, group.start(some.start(item)), replace(group, count=some.size))

    def one(self, code: LoopBuilder, p: LoopExpr, turn: LoopExpr) -> None:
        """The loops of one matrix of the batch, for one thread; from the last group on where ``turn`` is odd, so that a
        cache which is a little too small still has what the turn before ended with."""
        for group in self.groups:
            with code.loop(group.count, "group") as g:
                at = g + turn % 2 * (group.count - 1 - g * 2)
                self.all_rows(code, p, group.start(at), group)

    def all_rows(self, code: LoopBuilder, p: LoopExpr, block: LoopExpr, group: Run) -> None:
        """The tiles of a group of columns, which begins with ``block``."""
        for row, size in over(code, self.rows):
            self._tile(code, p, block, row, group, size)

    def strip(self, code: LoopBuilder, p: LoopExpr, first: LoopExpr, groups: Run) -> None:
        """All rows of neighbouring groups, which begin with block ``first``, one tile's rows after the other's."""
        for row, size in over(code, self.rows):
            with code.loop(groups.count, "group") as g:
                self._tile(code, p, first + groups.start(g), row, groups, size)

    def _summed(self, code: LoopBuilder, p: LoopExpr, first: LoopExpr, groups: Run) -> None:
        """Groups from block ``first`` on; sums stay in memory until the last piece of the depth."""
        product, lanes, width = self.product, self.lanes, groups.count * groups.size
        sums = Buffer("sums", (product.rows, width * lanes), product.dtype, "shared")
        kept = Matrix.of(sums).part(-first * lanes, product.columns)
        *more, final = runs(product.depth, _ROWS)
        *before, last = [*more, *final.split_last(0)]
        with code.memory(sums):
            with code.nest((product.rows, width)) as (i, v), code.lanes(lanes) as lane:
                code.store(sums, (i, v * lanes + lane), const(0, sums.dtype))
            for start, depth in over(code, before, "piece"):
                self._piece(code, p, first, groups, product.between(start, depth, kept, kept))
            start = const(last.begin, "int64")
            self._piece(code, p, first, groups, product.between(start, last.size, product.out, kept))

    def _piece(self, code: LoopBuilder, p: LoopExpr, first: LoopExpr, groups: Run, product: Product) -> None:
        part = replace(self, product=product)
        with code.loop(groups.count, "group") as g:
            part.all_rows(code, p, first + g * groups.size, groups)

    def _tile(self, code: LoopBuilder, p: LoopExpr, block: LoopExpr, row: LoopExpr, group: Run, rows: int) -> None:
        product, lanes = self.product, self.lanes
        if product.scales is not None and group.size > (most := product.scales.widest(rows)):
            self._narrower(code, p, block, row, group, rows, most)
            return
        start, is_whole = product.start, not isinstance(product.columns, int) and not group.is_cut
        factor = product.inside if is_whole else product.b

        def column(b: LoopExpr, lane: LoopExpr) -> LoopExpr:
            return (block + b) * lanes + lane

        def store(t: LoopExpr, b: LoopExpr, lane: LoopExpr, value: LoopExpr) -> Stmt:
            at = p, row + t, column(b, lane)
            done = product.out.store(*at, value if start is None else start.at(*at) + value)
            return If(at[2] < product.columns, done) if group.is_cut else done

        tile = TileKernel(
            rows,
            group.size,
            lanes,
            product.dtype,
            lambda t, _, r: product.left.at(p, row + t, r),
            lambda b, lane, r: factor(p, r, column(b, lane)),
            store,
            group.width,
            product=product.multiply,
        )
        if product.scales is not None:
            product.scales.nest(code, tile, product.depth, column)
            return
        behind = self._ahead(block, row, group, rows)
        with tile.sums(code) as step:
            for r in steps(code, product.depth, rows * group.size, product.multiply, behind):
                step(r)

    def _narrower(
        self, code: LoopBuilder, p: LoopExpr, block: LoopExpr, row: LoopExpr, group: Run, rows: int, most: int
    ) -> None:
        """A tile's rows by ``most`` blocks at a time."""
        for begin in range(0, group.size, most):
            end = min(begin + most, group.size)
            some = replace(group, size=end - begin, width=group.width if end == group.size else 0)
            self._tile(code, p, block + begin, row, some, rows)

    def _ahead(self, block: LoopExpr, row: LoopExpr, group: Run, rows: int) -> Fetch | None:
        """By turn of a tile's reduction: its part of the next group's panels."""
        product = self.product
        if not self.ahead:
            return None
        if not isinstance(product.rows, int):
            return self._panel_ahead(block, row, group, rows)
        step = rows_of_line(product.dtype, self.lanes)
        lines = -(-product.depth // step)

        def line(number: LoopExpr) -> Load:
            there = minimum(block + group.size + number // lines, self.blocks - 1)
            return product.right.at(Const(0), number % lines * step, there * self.lanes)

        each = written_out(rows * group.size, product.multiply)
        most = spare_loads(rows, group.size, each, product.multiply)
        return Ahead(lines * group.size, product.rows, line).by(row, rows, most, product.depth // each)

    def _panel_ahead(self, block: LoopExpr, row: LoopExpr, group: Run, rows: int) -> Fetch | None:
        """Of rows that only a run counts: each of the first whole tiles fetches one panel of the next group, a step's
        line in that step.  Lines that are spread over all tiles would have to be divided by numbers of the run, which
        takes longer than they do to come."""
        each, dtype = written_out(rows * group.size, self.product.multiply), self.product.dtype
        lines = range(0, each, rows_of_line(dtype, self.lanes))
        if rows < self.tile.rows or len(lines) > spare_loads(rows, group.size, each, self.product.multiply):
            return None
        tile = row // rows
        panel = minimum(block + group.size + tile, self.blocks - 1) * self.lanes

        def fetch(code: LoopBuilder, turn: LoopExpr) -> None:
            with code.when(tile < group.size):
                code.emit(*(Prefetch(self.product.right.at(Const(0), turn * each + u, panel)) for u in lines))

        return fetch


@dataclass(frozen=True)
class Dots(Gemm):
    """A product whose tiles are ``tile.rows x tile.blocks`` sums, each of ``depth`` in ``vector`` lanes.

    Each sum is added up across the lanes at the end, which pays where the depth is large beside the number of rows.
    """

    vector: int = 1

    @staticmethod
    def of(product: Product, tile: Tile, machine: MachineModel) -> Dots:
        return Dots(product, tile, 1, vector=machine.lanes(product.dtype))

    def _tile(self, code: LoopBuilder, p: LoopExpr, block: LoopExpr, row: LoopExpr, group: Run, rows: int) -> None:
        product, width = self.product, self._width(rows * group.size)

        def factor(element: LoopExpr, lane: LoopExpr, valid: Valid) -> LoopExpr:
            value = element.astype(product.dtype)
            return value if isinstance(valid, int) and valid == width else or_zero(lane < valid, value)

        tile = _DotTile(
            rows,
            group.size,
            width,
            product.dtype,
            lambda t, lane, start, valid: factor(product.left.at(p, row + t, start + lane), lane, valid),
            lambda b, lane, start, valid: factor(product.right.at(p, start + lane, block + b), lane, valid),
            lambda t, b, lane, value: product.out.store(p, row + t, block + b, value),
        )
        with tile.sums(code) as step:
            for start, valid in in_vectors(code, product.depth, width):
                step(start, valid)

    def _width(self, sums: int) -> int:
        """Lanes of a sum: several vectors where a tile has too few sums to keep the multipliers busy."""
        spread, depth = 1, self.product.depth
        most = depth // (4 * self.vector) if isinstance(depth, int) else _WIDEST
        while 2 * spread * sums <= _IN_FLIGHT and spread < _WIDEST and spread <= most:
            spread *= 2
        return spread * self.vector


class _DotTile(TileKernel):
    """Sums of which each is spread over the lanes."""

    def results(self, code: LoopBuilder, acc: Buffer) -> None:
        """Added up across the lanes; neighbouring columns at once, so that what is fused runs in lanes too."""
        rows, columns = range(self.rows), range(self.blocks)
        totals = Buffer("totals", (self.rows, self.blocks), self.dtype, "local")
        for width in (self.lanes >> s for s in range(1, self.lanes.bit_length())):
            with each(code, rows, columns, width) as (i, j, lane):
                code.store(acc, (i, j, lane), acc[i, j, lane] + acc[i, j, lane + width])
        with code.memory(totals):
            with code.unrolled(rows) as i, code.unrolled(columns) as j:
                code.store(totals, (i, j), acc[i, j, 0])
            with code.unrolled(rows, "row") as i, code.loop(self.blocks, "column", LoopKind.VECTORIZED) as j:
                code.emit(self.store(i, j, Const(0), totals[i, j]))
