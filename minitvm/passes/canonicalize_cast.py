"""CanonicalizeCast: a widening cast is done again by each of its users, so that no wide tensor is stored.

int8 convolutions whose result feeds several int32 branches are the case that matters: once the cast is part of each
branch's kernel, the tensor between the kernels is int8.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from minitvm.ir.expr import Call, Expr, Function, Module
from minitvm.ir.op import Op
from minitvm.ir.ops.elemwise import CastTo
from minitvm.ir.visitor import as_function, children, post_order, rebuild
from minitvm.passes.manager import FunctionPass, PassContext


class CanonicalizeCast(FunctionPass, opt_level=3):
    """Give every user but the first of a widening cast a cast of its own, where the user is element-wise."""

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        seen: Counter[Expr] = Counter()
        done: dict[Expr, Expr] = {}
        for node in post_order(function):
            own = [_own_cast(node, child, done[child], seen) for child in children(node)]
            done[node] = rebuild(node, own)
        return as_function(done[function])


def _own_cast(user: Expr, old: Expr, new: Expr, seen: Counter[Expr]) -> Expr:
    """``new``, or a copy of it where it is a widening cast that another user has already."""
    is_elementwise = isinstance(user, Call) and isinstance(user.op, Op) and user.op.is_elementwise
    if not (is_elementwise and is_widening_cast(new)):
        return new
    assert isinstance(new, Call)
    seen[old] += 1
    return new if seen[old] == 1 else Call(new.op, new.args, span=new.span)


def is_widening_cast(node: Expr) -> bool:
    """Whether a node is a cast to a dtype of more bytes."""
    if not isinstance(node, Call) or not isinstance(node.op, CastTo):
        return False
    return np.dtype(node.op.dtype).itemsize > np.dtype(node.args[0].dtype).itemsize
