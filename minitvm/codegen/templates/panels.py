"""The right-hand side of a product in panels ``[column block][k][lanes]``, the last block filled up with zeros."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from minitvm.codegen.loops import in_vectors, unflatten
from minitvm.codegen.problem import Tile
from minitvm.codegen.squares import transposed
from minitvm.codegen.templates.gemm import Gemm
from minitvm.codegen.templates.product import Matrix, Product
from minitvm.codegen.templates.tile import ITEMS_PER_THREAD, Run, block_runs
from minitvm.ir.loop import Alloc, Barrier, Buffer, Const, LoopExpr, LoopKind, Stmt, Store, const, loop, select, seq
from minitvm.target import MachineModel


def packed(product: Product, tile: Tile, machine: MachineModel) -> Stmt:
    """Right-hand sides packed first: a group of columns by the thread that needs it, where there are enough."""
    lanes, sides = machine.lanes(product.dtype), product.right.batch
    gemm = Gemm(product, tile, lanes)
    if machine.threads == 1 or sides * sum(g.count for g in gemm.groups) >= ITEMS_PER_THREAD * machine.threads:
        return seq(*(_group_by_group(gemm, group) for group in gemm.groups))
    panels = Panels.of(product.right, lanes, product.dtype)
    nest = replace(gemm, product=panels.times(product)).nest(machine)
    return Alloc(panels.buffer, seq(panels.fill(), Barrier(), nest))


def _group_by_group(gemm: Gemm, group: Run) -> Stmt:
    """Panels of one group at a time, which the tiles of all rows find in the cache."""
    product, sides = gemm.product, gemm.product.right.batch
    readers = product.batch // sides
    panels = Panels(
        product.right, Buffer("packed", (1, group.size, product.depth, gemm.lanes), product.dtype, "shared")
    )

    def work(flat: LoopExpr) -> Stmt:
        side, at = unflatten(flat, (sides, group.count))
        begin = group.start(at)
        part = replace(gemm, product=panels.times(product, begin))
        rows = loop(readers, lambda p: part.all_rows(side if readers == 1 else p, begin, group), name="p")
        return Alloc(panels.buffer, seq(panels.fill_group(side, begin, group.width), rows))

    return loop(sides * group.count, work, LoopKind.PARALLEL, name="work")


@dataclass(frozen=True)
class Panels:
    """A copy of some right-hand sides in ``buffer``: (sides, blocks, depth, lanes)."""

    right: Matrix
    buffer: Buffer

    @staticmethod
    def of(right: Matrix, lanes: int, dtype: str) -> Panels:
        """Memory for all of them, which all threads see."""
        blocks = -(-right.columns // lanes)
        return Panels(right, Buffer("packed", (right.batch, blocks, right.rows, lanes), dtype))

    @property
    def lanes(self) -> int:
        return self.buffer.shape[3]

    def times(self, product: Product, begin: LoopExpr | int = 0) -> Product:
        """``product`` with its right-hand side read from here, where block ``begin`` is the first one."""
        sides = self.buffer.shape[0]

        def at(p: LoopExpr, r: LoopExpr, j: LoopExpr) -> LoopExpr:
            return self.buffer[p if sides > 1 else 0, j // self.lanes - begin, r, j % self.lanes]

        return replace(product, panels=at)

    def fill(self) -> Stmt:
        """All sides, by all threads; a barrier has to follow."""
        sides = self.buffer.shape[0]

        def blocks(run: Run) -> Stmt:
            def panel(flat: LoopExpr) -> Stmt:
                p, at = unflatten(flat, (sides, run.count))
                return self._panel(p, run.start(at), (p, run.start(at)), run.width)

            return loop(sides * run.count, panel, LoopKind.PARALLEL, name="panel")

        return seq(*map(blocks, block_runs(self.right.columns, self.lanes, 1)))

    def fill_group(self, p: LoopExpr, begin: LoopExpr, width: int) -> Stmt:
        """The blocks of side ``p`` from ``begin`` on that there is room for, by one thread; ``width``: of the last."""

        def blocks(run: Run) -> Stmt:
            return run.over(lambda at, _: self._panel(p, begin + at, (Const(0), at), run.width), name="panel")

        columns = self.buffer.shape[1] * self.lanes
        return seq(*map(blocks, block_runs(columns - (self.lanes - width if width else 0), self.lanes, 1)))

    def _panel(self, p: LoopExpr, block: LoopExpr, to: Sequence[LoopExpr], width: int) -> Stmt:
        """One panel of right-hand side ``p``; lanes from ``width`` on are zero, none where it is 0."""
        fill = self._copied if self.right.along_rows else self._turned
        return fill(p, block, to, width or self.lanes)

    def _copied(self, p: LoopExpr, block: LoopExpr, to: Sequence[LoopExpr], valid: int) -> Stmt:
        beyond, zero = self.lanes - valid, const(0, self.buffer.dtype)

        def copy(r: LoopExpr, lane: LoopExpr) -> Stmt:
            return Store(self.buffer, (*to, r, lane), self._element(p, r, block * self.lanes + lane))

        def vector(width: int, body: Callable[[LoopExpr], Stmt]) -> Stmt | None:
            return loop(width, body, LoopKind.VECTORIZED, name="lane") if width else None

        def row(r: LoopExpr) -> Stmt:
            rest = vector(beyond, lambda x: Store(self.buffer, (*to, r, x + valid), zero))
            return seq(vector(valid, lambda lane: copy(r, lane)), rest)

        return loop(self.right.rows, row, name="k")

    def _turned(self, p: LoopExpr, block: LoopExpr, to: Sequence[LoopExpr], valid: int) -> Stmt:
        """The same where columns lie along memory: square by square."""

        def square(start: LoopExpr, depth: int) -> Stmt:
            def load(column: LoopExpr, r: LoopExpr) -> LoopExpr:
                value = self._element(p, start + r, block * self.lanes + column)
                return value if depth == self.lanes else select(r < depth, value, const(0, value.dtype))

            def store(r: LoopExpr, lane: LoopExpr, value: LoopExpr) -> Stmt:
                return Store(self.buffer, (*to, start + r, lane), value)

            return transposed(self.lanes, self.buffer.dtype, valid, depth, load, store)

        return in_vectors(self.right.rows, self.lanes, square)

    def _element(self, p: LoopExpr, r: LoopExpr, column: LoopExpr) -> LoopExpr:
        return self.right.at(p, r, column).astype(self.buffer.dtype)
