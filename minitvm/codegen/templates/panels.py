"""The right-hand side of a product in panels ``[column block][k][lanes]``, the last block filled up with zeros."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from minitvm.codegen.spread import unflatten
from minitvm.codegen.squares import transposed
from minitvm.codegen.templates.gemm import Gemm
from minitvm.codegen.templates.product import Matrix, Product
from minitvm.ir.loop import Buffer, Const, LoopExpr, LoopKind, Stmt, Store, const, loop, select, seq


def gemm_of(product: Product, lanes: int, panel: Callable[[LoopExpr, LoopExpr, LoopExpr, LoopExpr], LoopExpr]) -> Gemm:
    sizes = (product.batch, product.rows, product.columns, product.depth)
    return Gemm(*sizes, lanes, product.dtype, product.left.at, panel, product.store)


@dataclass(frozen=True)
class Panels:
    """A copy of some right-hand sides in ``buffer``: (sides, blocks, depth, lanes)."""

    right: Matrix
    buffer: Buffer

    @staticmethod
    def of(
        right: Matrix, lanes: int, dtype: str, sides: int, scope: str = "global", blocks: int | None = None
    ) -> Panels:
        """Memory for ``blocks`` (by default all) of ``sides`` right-hand sides."""
        count = -(-right.columns // lanes) if blocks is None else blocks
        return Panels(right, Buffer("packed", (sides, count, right.rows, lanes), dtype, scope))

    @property
    def lanes(self) -> int:
        return self.buffer.shape[3]

    def gemm(self, product: Product, begin: LoopExpr | int = 0) -> Gemm:
        """``product`` with its right-hand side read from here, where block ``begin`` is the first one."""
        several = self.buffer.shape[0] > 1

        def panel(p: LoopExpr, block: LoopExpr, r: LoopExpr, lane: LoopExpr) -> LoopExpr:
            return self.buffer[p if several else 0, block - begin, r, lane]

        return gemm_of(product, self.lanes, panel)

    def fill(self) -> Stmt:
        """All sides, by all threads; a barrier has to follow."""
        sides = self.buffer.shape[0]
        whole, rest = divmod(self.right.columns, self.lanes)

        def panel(flat: LoopExpr) -> Stmt:
            p, block = unflatten(flat, (sides, whole))
            return self._panel(p, block, (p, block), self.lanes)

        def last(p: LoopExpr) -> Stmt:
            return self._panel(p, Const(whole), (p, Const(whole)), rest)

        panels = loop(sides * whole, panel, LoopKind.PARALLEL, name="panel") if whole else None
        return seq(panels, loop(sides, last, LoopKind.PARALLEL, name="panel") if rest else None)

    def fill_group(self, p: LoopExpr, begin: LoopExpr, last: int) -> Stmt:
        """The blocks of side ``p`` from ``begin`` on that there is room for, by one thread; ``last``: the width of the
        last one."""
        count = self.buffer.shape[1]
        whole = count if last == self.lanes else count - 1

        def panel(block: LoopExpr, valid: int) -> Stmt:
            return self._panel(p, begin + block, (Const(0), block), valid)

        panels = loop(whole, lambda block: panel(block, self.lanes), name="panel") if whole else None
        return seq(panels, panel(Const(whole), last) if whole < count else None)

    def _panel(self, p: LoopExpr, block: LoopExpr, to: tuple[LoopExpr, LoopExpr], valid: int) -> Stmt:
        """One panel of right-hand side ``p``; lanes from ``valid`` on are zero."""
        if not self.right.along_rows:
            return self._turned_panel(p, block, to, valid)
        packed, beyond = self.buffer, self.lanes - valid

        def copy(r: LoopExpr, lane: LoopExpr) -> Stmt:
            return Store(packed, (*to, r, lane), self._element(p, r, block * self.lanes + lane))

        def zero(r: LoopExpr, lane: LoopExpr) -> Stmt:
            return Store(packed, (*to, r, lane + valid), const(0, packed.dtype))

        def row(r: LoopExpr) -> Stmt:
            copied = loop(valid, lambda lane: copy(r, lane), LoopKind.VECTORIZED, name="lane")
            return seq(copied, loop(beyond, lambda x: zero(r, x), LoopKind.VECTORIZED, name="x") if beyond else None)

        return loop(self.right.rows, row, name="k")

    def _turned_panel(self, p: LoopExpr, block: LoopExpr, to: tuple[LoopExpr, LoopExpr], valid: int) -> Stmt:
        """The same where columns lie along memory: square by square."""
        whole, rest = divmod(self.right.rows, self.lanes)

        def square(start: LoopExpr, depth: int) -> Stmt:
            def load(column: LoopExpr, r: LoopExpr) -> LoopExpr:
                value = self._element(p, start + r, block * self.lanes + column)
                return value if depth == self.lanes else select(r < depth, value, const(0, value.dtype))

            def store(r: LoopExpr, lane: LoopExpr, value: LoopExpr) -> Stmt:
                return Store(self.buffer, (*to, start + r, lane), value)

            return transposed(self.lanes, self.buffer.dtype, valid, depth, load, store)

        squares = loop(whole, lambda q: square(q * self.lanes, self.lanes), name="k") if whole else None
        return seq(squares, square(Const(whole * self.lanes), rest) if rest else None)

    def _element(self, p: LoopExpr, r: LoopExpr, column: LoopExpr) -> LoopExpr:
        return self.right.at(p, r, column).astype(self.buffer.dtype)
