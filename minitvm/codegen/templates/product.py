"""A matrix product as templates see it, whatever operator it came from and however its operands lie in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from minitvm.codegen.problem import Problem
from minitvm.ir.loop import Buffer, Const, Load, LoopExpr, Stmt, Store, const, select

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
        place = at if batch > 1 else lambda _, i, j: at(Const(0), i, j)
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

    def rows_from(self, first: LoopExpr | int, count: int) -> Matrix:
        """``count`` rows from ``first`` on."""
        return self.turned.part(first, count).turned

    def store(self, p: LoopExpr, i: LoopExpr, j: LoopExpr, value: LoopExpr) -> Stmt:
        return store_at(self.at(p, i, j), value)


def store_at(place: Load, value: LoopExpr) -> Stmt:
    """A sum to where a load would find it, rounded."""
    return Store(place.buffer, place.index, value.astype(place.dtype))


@dataclass(frozen=True)
class Product:
    """``out[p, i, j] = sum over r of left[p, i, r] * right[p, r, j]``, kept in ``dtype`` and rounded when stored.

    ``start``: what sums begin with instead of zero.
    ``panels``: elements of the right-hand side, and anything beyond its last column.
    """

    left: Matrix
    right: Matrix
    out: Matrix
    dtype: str
    start: Matrix | None = None
    panels: Callable[[LoopExpr, LoopExpr, LoopExpr], LoopExpr] | None = None

    @staticmethod
    def of(problem: Problem) -> Product:
        """``nn.dense``, ``nn.matmul`` or ``nn.batch_matmul``."""
        (a, b), attributes = problem.inputs, problem.op.attributes()
        transpose_b = bool(attributes.get("transpose_b", problem.op.name == "nn.dense"))
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
    def turned(self) -> Product:
        """The same numbers as the product of the operands exchanged."""
        return Product(self.right.turned, self.left.turned, self.out.turned, self.dtype)

    def b(self, p: LoopExpr, r: LoopExpr, j: LoopExpr) -> LoopExpr:
        """An element of the right-hand side; zero beyond the last column."""
        if self.panels is not None:
            return self.panels(p, r, j)
        value = self.right.at(p, r, j).astype(self.dtype)
        return select(j < self.columns, value, const(0, self.dtype))

    def between(self, first: LoopExpr, depth: int, out: Matrix, start: Matrix) -> Product:
        """A part of the sums: ``depth`` products from ``first`` on, added to ``start``, into ``out``."""
        b = self.b
        return replace(
            self, left=self.left.part(first, depth), out=out, start=start, panels=lambda p, r, j: b(p, r + first, j)
        )
