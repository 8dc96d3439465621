"""CanonicalizeCast: a widening cast is done again by each of its users, so that no wide tensor is stored.

int8 convolutions whose result feeds several int32 branches are the case that matters: once the cast is part of each
branch's kernel, the tensor between the kernels is int8.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from minitvm.ir.decision import decide
from minitvm.ir.expr import Call, Expr, Function, Module
from minitvm.ir.op import Op
from minitvm.ir.ops.elemwise import CastTo
from minitvm.ir.visitor import as_function, rebuild, rewrite
from minitvm.passes.manager import FunctionPass, PassContext


class CanonicalizeCast(FunctionPass, opt_level=3):
    """Give every user but the first of a widening cast a cast of its own, where the user is element-wise."""

    needs = (CastTo,)

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        seen: Counter[Expr] = Counter()

        def visit(_: Expr, new: Expr) -> Expr:
            if isinstance(new, Call) and isinstance(new.op, Op) and new.op.is_elementwise:
                return rebuild(new, [_own_cast(arg, seen) for arg in new.args])
            return new

        return as_function(rewrite(function, visit))


def _own_cast(operand: Expr, seen: Counter[Expr]) -> Expr:
    """The operand, or a copy of it where it is a widening cast that another user has already."""
    if not is_widening_cast(operand):
        return operand
    assert isinstance(operand, Call)
    seen[operand] += 1
    if seen[operand] == 1:
        return operand
    decide("CanonicalizeCast", operand, "done again by another user, so that no wide tensor is stored")
    return Call(operand.op, operand.args, span=operand.span)


def is_widening_cast(node: Expr) -> bool:
    """Whether a node is a cast to a dtype of more bytes."""
    if not isinstance(node, Call) or not isinstance(node.op, CastTo):
        return False
    return np.dtype(node.op.dtype).itemsize > np.dtype(node.args[0].dtype).itemsize
