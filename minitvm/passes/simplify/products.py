"""Rules of SimplifyExpr about matrix products: operands are read as they lie in memory, not transposed first."""

from __future__ import annotations

from typing import Any

from minitvm.ir import builder as ir
from minitvm.ir.decision import Declined
from minitvm.ir.expr import Call, Constant, Expr
from minitvm.ir.op import Op
from minitvm.ir.ops.transform import Transpose
from minitvm.ir.pattern import call, value
from minitvm.passes.rule import Replacement, rule

_PRODUCTS = ("nn.dense", "nn.matmul", "nn.batch_matmul")
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
    assert isinstance(turned.op, Op)
    rank = turned.tensor_type.rank
    axes = turned.op.attributes()["axes"] or tuple(reversed(range(rank)))
    return [a % rank for a in axes] == [*range(rank - 2), rank - 1, rank - 2]


def _product(product: Call, lhs: Expr, rhs: Expr, flip_a: bool = False, flip_b: bool = False) -> Expr:
    """``product`` of other operands, of which one lies the other way round."""
    assert isinstance(product.op, Op)
    attributes: dict[str, Any] = product.op.attributes()
    name = "nn.matmul" if product.op.name == "nn.dense" else product.op.name
    flags = {
        "transpose_a": bool(attributes.get("transpose_a", False)) != flip_a,
        "transpose_b": bool(attributes.get("transpose_b", True)) != flip_b,
    }
    return ir.call_op(name, lhs, rhs, **{**attributes, **flags})


RULES = (transpose_inside_product, transpose_left_inside_product)
