"""A matrix product as templates see it, whatever operator it came from and however its operands lie in memory."""

from __future__ import annotations

from dataclasses import dataclass

from minitvm.codegen.problem import Problem
from minitvm.ir.loop import Buffer, Const, LoopExpr, Stmt, Store


@dataclass(frozen=True)
class Matrix:
    """A matrix, or a batch of them, in memory of rank 2 or 3; ``transposed``: stored column by column."""

    buffer: Buffer
    transposed: bool = False
    first: int = 0
    """The buffer's column that is column 0 here."""
    some: int | None = None
    """How many columns; all of the buffer's by default."""

    def part(self, first: int, count: int) -> Matrix:
        """``count`` columns from ``first`` on."""
        return Matrix(self.buffer, self.transposed, first, count)

    @property
    def batch(self) -> int:
        return self.buffer.shape[0] if len(self.buffer.shape) == 3 else 1

    @property
    def rows(self) -> int:
        return self.buffer.shape[-1 if self.transposed else -2]

    @property
    def columns(self) -> int:
        return self.buffer.shape[-2 if self.transposed else -1] if self.some is None else self.some

    @property
    def turned(self) -> Matrix:
        """The same memory, rows and columns exchanged."""
        assert self.some is None, "a part is one of columns"
        return Matrix(self.buffer, not self.transposed)

    @property
    def along_rows(self) -> bool:
        """True where neighbours in a row are neighbours in memory."""
        return not self.transposed or 1 in (self.rows, self.columns)

    @property
    def along_columns(self) -> bool:
        """True where neighbours in a column are neighbours in memory."""
        return self.transposed or 1 in (self.rows, self.columns)

    def index(self, p: LoopExpr, i: LoopExpr, j: LoopExpr) -> tuple[LoopExpr, ...]:
        column = j + self.first
        at = (column, i) if self.transposed else (i, column)
        if len(self.buffer.shape) == 2:
            return at
        return (p if self.batch > 1 else Const(0), *at)

    def at(self, p: LoopExpr, i: LoopExpr, j: LoopExpr) -> LoopExpr:
        """Element ``(i, j)`` of matrix ``p``; a batch of one is repeated."""
        return self.buffer[self.index(p, i, j)]


@dataclass(frozen=True)
class Product:
    """``out[p, i, j] = sum over r of left[p, i, r] * right[p, r, j]``, kept in ``dtype`` and rounded when stored."""

    left: Matrix
    right: Matrix
    out: Matrix
    dtype: str

    @staticmethod
    def of(problem: Problem) -> Product:
        """``nn.dense``, ``nn.matmul`` or ``nn.batch_matmul``."""
        (a, b), attributes = problem.inputs, problem.op.attributes()
        transpose_b = bool(attributes.get("transpose_b", problem.op.name == "nn.dense"))
        left, right = Matrix(a, bool(attributes.get("transpose_a", False))), Matrix(b, transpose_b)
        return Product(left, right, Matrix(problem.output), problem.accumulator)

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

    def store(self, p: LoopExpr, i: LoopExpr, j: LoopExpr, value: LoopExpr) -> Stmt:
        return Store(self.out.buffer, self.out.index(p, i, j), value.astype(self.out.buffer.dtype))
