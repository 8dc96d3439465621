"""Rules of SimplifyExpr about matrix products: operands are read as they lie in memory, not transposed first."""

from __future__ import annotations

from minitvm.ir.decision import Declined
from minitvm.ir.expr import Call, Constant, Expr
from minitvm.ir.ops.nn_dense import BatchMatmul, Dense, Matmul
from minitvm.ir.ops.transform import Transpose
from minitvm.ir.pattern import call, value
from minitvm.passes.rule import Replacement, rule

_PRODUCTS = (Dense, Matmul, BatchMatmul)
_NOT_MATRICES = Declined("it does not exchange rows and columns only")


@rule(call(_PRODUCTS, value("lhs"), call(Transpose, value("rhs"), name="turned"), name="product"))
def transpose_inside_product(product: Call, lhs: Expr, turned: Call, rhs: Expr) -> Replacement:
    """The right operand."""
    return _product(product, lhs, rhs, flip_b=True) if _exchanges_the_last_two(turned) else _NOT_MATRICES


@rule(call(_PRODUCTS, call(Transpose, value("lhs"), name="turned"), value("rhs"), name="product"))
def transpose_left_inside_product(product: Call, turned: Call, lhs: Expr, rhs: Expr) -> Replacement:
    """The left operand, unless that would keep constant weights from being packed."""
    if isinstance(rhs, Constant):
        return Declined("constant weights are packed where the left operand comes row by row")
    return _product(product, lhs, rhs, flip_a=True) if _exchanges_the_last_two(turned) else _NOT_MATRICES


def _exchanges_the_last_two(turned: Call) -> bool:
    assert isinstance(turned.op, Transpose)
    rank = turned.tensor_type.rank
    return turned.op.order(rank) == (*range(rank - 2), rank - 1, rank - 2)


def _product(product: Call, lhs: Expr, rhs: Expr, flip_a: bool = False, flip_b: bool = False) -> Expr:
    """``product`` of other operands, of which one lies the other way round."""
    op = product.op
    if isinstance(op, Dense):
        return Call(Matmul(transpose_a=flip_a, transpose_b=not flip_b, out_dtype=op.out_dtype), (lhs, rhs))
    assert isinstance(op, (Matmul, BatchMatmul))
    flipped = op.with_attributes(transpose_a=op.transpose_a != flip_a, transpose_b=op.transpose_b != flip_b)
    return Call(flipped, (lhs, rhs))


RULES = (transpose_inside_product, transpose_left_inside_product)
