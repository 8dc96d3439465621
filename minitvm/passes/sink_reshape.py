"""SinkReshape: element-wise work behind a matrix product is done before the reshape that follows the product.

A transformer's layers are products of matrices, so an importer writes ``reshape(dense(reshape(x)))`` and the bias and
the activation come after.  A reshape is free between kernels, but no kernel fuses through it; once it has sunk below
the bias and the activation they are one kernel with the product, and two reshapes meet and vanish.
"""

from __future__ import annotations

import itertools

from minitvm.ir.decision import Declined
from minitvm.ir.expr import Call, Expr
from minitvm.ir.op import Op
from minitvm.ir.ops.broadcast import BinaryOp
from minitvm.ir.ops.nn_dense import BatchMatmul, Dense, Matmul
from minitvm.ir.ops.transform import Reshape
from minitvm.ir.pattern import call, value
from minitvm.passes.rule import Replacement, RulePass, rule
from minitvm.passes.simplify.shapes import drop_reshape_to_same, merge_reshapes, reshaped

PRODUCTS = (Dense, Matmul, BatchMatmul)
SEARCH = 32
"""Element-wise calls between a reshape and its product that are looked through, at most."""

NO_PRODUCT = Declined("no matrix product to fuse with")


def _is_elementwise(expr: Expr) -> bool:
    return isinstance(expr, Call) and isinstance(expr.op, Op) and expr.op.keeps_positions(len(expr.args))


def follows_product(expr: Expr) -> bool:
    """Whether an expression is a matrix product, or element-wise work on one of its own shape."""
    pending, seen = [expr], 0
    while pending and seen < SEARCH:
        node = pending.pop()
        seen += 1
        if isinstance(node, Call) and isinstance(node.op, PRODUCTS):
            return True
        if isinstance(node, Call) and _is_elementwise(node):
            pending.extend(arg for arg in node.args if arg.type == expr.type)
    return False


_RESHAPED = call(Reshape, value("x"), name="shape")


@rule(call(Op, _RESHAPED, name="work", where=_is_elementwise))
def sink_below_unary(work: Call, shape: Call, x: Expr) -> Replacement:
    """``f(reshape(x))`` is ``reshape(f(x))``."""
    if not work.type.is_static or not x.type.is_static or not follows_product(x):
        return NO_PRODUCT
    return reshaped(Call(work.op, (x,)), work.tensor_type)


@rule(call(BinaryOp, _RESHAPED, value("other"), name="work", commutative=True))
def sink_below_binary(work: Call, shape: Call, x: Expr, other: Expr) -> Replacement:
    """``f(reshape(x), y)`` is ``reshape(f(x, y'))``, whichever operand the reshape is."""
    operand = _operand(work, shape, x, other)
    if isinstance(operand, Declined):
        return operand
    return reshaped(Call(work.op, [x if arg is shape else operand for arg in work.args]), work.tensor_type)


def _operand(work: Call, shape: Call, x: Expr, other: Expr) -> Expr | Declined:
    """The other operand as it stands beside ``x`` instead of beside ``reshape(x)``."""
    if not all(e.type.is_static for e in (work, x, other)) or not follows_product(x):
        return NO_PRODUCT
    if work.shape != shape.shape:
        return Declined("the other operand gives the result its shape")
    if other.shape == shape.shape:
        return reshaped(other, other.tensor_type.with_shape(x.shape))
    behind = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(x.shape[::-1], shape.shape[::-1], strict=False))
    extra = len(other.shape) - len(list(behind))  # dimensions before those that the reshape keeps
    if extra <= 0:
        return other
    if any(extent != 1 for extent in other.shape[:extra]):
        return Declined(f"{other.type} varies along axes that the reshape changes")
    return reshaped(other, other.tensor_type.with_shape(other.shape[extra:]))


class SinkReshape(RulePass, opt_level=2):
    """Reshapes of matrix products move behind the element-wise work that follows."""

    rules = (sink_below_unary, sink_below_binary, drop_reshape_to_same, merge_reshapes)
