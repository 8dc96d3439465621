"""The right-hand side of a product in panels ``[column block][k][lanes]``, the last block filled up with zeros."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from minitvm.codegen.spread import unflatten
from minitvm.codegen.squares import transposed
from minitvm.codegen.templates.gemm import Gemm
from minitvm.codegen.templates.product import Matrix, Product
from minitvm.ir.loop import Buffer, Const, Load, LoopExpr, LoopKind, Stmt, Store, const, loop, select, seq


def gemm_of(product: Product, lanes: int, panel: Callable[[LoopExpr, LoopExpr, LoopExpr, LoopExpr], LoopExpr]) -> Gemm:
    sizes = (product.batch, product.rows, product.columns, product.depth)
    return Gemm(*sizes, lanes, product.dtype, product.left.at, panel, product.store)


@dataclass(frozen=True)
class Panels:
    """A copy of some right-hand sides in ``buffer``: (sides, blocks, depth, lanes)."""

    right: Matrix
    buffer: Buffer

    @staticmethod
    def of(right: Matrix, lanes: int, dtype: str, sides: int, scope: str = "global") -> Panels:
        shape = (sides, -(-right.columns // lanes), right.rows, lanes)
        return Panels(right, Buffer("packed", shape, dtype, scope))

    @property
    def lanes(self) -> int:
        return self.buffer.shape[3]

    def gemm(self, product: Product) -> Gemm:
        """``product`` with its right-hand side read from here."""
        several = self.buffer.shape[0] > 1
        panel = lambda p, *at: Load(self.buffer, (p if several else Const(0), *at))  # noqa: E731
        return gemm_of(product, self.lanes, panel)

    def fill(self) -> Stmt:
        """All sides, by all threads; a barrier has to follow."""
        sides = self.buffer.shape[0]
        whole, rest = divmod(self.right.columns, self.lanes)

        def panel(flat: LoopExpr) -> Stmt:
            p, block = unflatten(flat, (sides, whole))
            return self._panel(p, p, block, self.lanes)

        panels = loop(sides * whole, panel, LoopKind.PARALLEL, name="panel") if whole else None
        last = lambda p: self._panel(p, p, Const(whole), rest)  # noqa: E731
        return seq(panels, loop(sides, last, LoopKind.PARALLEL, name="panel") if rest else None)

    def fill_one(self, p: LoopExpr) -> Stmt:
        """Side ``p`` into the only place there is, by one thread."""
        whole, rest = divmod(self.right.columns, self.lanes)
        panel = lambda block: self._panel(p, Const(0), block, self.lanes)  # noqa: E731
        last = self._panel(p, Const(0), Const(whole), rest) if rest else None
        return seq(loop(whole, panel, name="panel") if whole else None, last)

    def _panel(self, p: LoopExpr, side: LoopExpr, block: LoopExpr, valid: int) -> Stmt:
        """One panel of right-hand side ``p``; lanes from ``valid`` on are zero."""
        if not self.right.along_rows:
            return self._turned_panel(p, side, block, valid)
        packed, beyond = self.buffer, self.lanes - valid

        def copy(r: LoopExpr, lane: LoopExpr) -> Stmt:
            return Store(packed, (side, block, r, lane), self._element(p, r, block * self.lanes + lane))

        def zero(r: LoopExpr, lane: LoopExpr) -> Stmt:
            return Store(packed, (side, block, r, lane + valid), const(0, packed.dtype))

        def row(r: LoopExpr) -> Stmt:
            copied = loop(valid, lambda lane: copy(r, lane), LoopKind.VECTORIZED, name="lane")
            return seq(copied, loop(beyond, lambda x: zero(r, x), LoopKind.VECTORIZED, name="x") if beyond else None)

        return loop(self.right.rows, row, name="k")

    def _turned_panel(self, p: LoopExpr, side: LoopExpr, block: LoopExpr, valid: int) -> Stmt:
        """The same where columns lie along memory: square by square."""
        whole, rest = divmod(self.right.rows, self.lanes)

        def square(start: LoopExpr, depth: int) -> Stmt:
            def load(column: LoopExpr, r: LoopExpr) -> LoopExpr:
                value = self._element(p, start + r, block * self.lanes + column)
                return value if depth == self.lanes else select(r < depth, value, const(0, value.dtype))

            def store(r: LoopExpr, lane: LoopExpr, value: LoopExpr) -> Stmt:
                return Store(self.buffer, (side, block, start + r, lane), value)

            return transposed(self.lanes, self.buffer.dtype, valid, depth, load, store)

        squares = loop(whole, lambda q: square(q * self.lanes, self.lanes), name="k") if whole else None
        return seq(squares, square(Const(whole * self.lanes), rest) if rest else None)

    def _element(self, p: LoopExpr, r: LoopExpr, column: LoopExpr) -> LoopExpr:
        return self.right.at(p, r, column).astype(self.buffer.dtype)
