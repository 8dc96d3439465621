"""EliminateCommonSubexpr: equal calls of equal operands are computed once."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from minitvm.ir.expr import Call, Constant, Expr, Function, Module, Tuple, TupleGetItem
from minitvm.ir.op import Op
from minitvm.ir.visitor import as_function, post_order, rebuild_over
from minitvm.passes.manager import FunctionPass, PassContext

Skip = Callable[[Call], bool]


class EliminateCommonSubexpr(FunctionPass, opt_level=3):
    """Merge calls with equal attributes whose operands are the same nodes, equal scalars, or tuples of such.

    ``skip(call)`` says which calls to leave alone.  Stateful operators, calls without operands (fills: cheaper than
    a tensor kept alive) and large equal constants are not merged.
    """

    def __init__(self, skip: Skip | None = None) -> None:
        self.skip = skip

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        return eliminate(function, self.skip)


def eliminate(function: Function, skip: Skip | None = None) -> Function:
    """``function`` with equal calls merged; itself where no two are equal."""
    first: dict[Hashable, Expr] = {}
    done: dict[Expr, Expr] = {}
    for node in post_order(function):
        new = rebuild_over(node, done)
        key = _key(new, skip)
        done[node] = new if key is None else first.setdefault(key, new)
    return as_function(done[function])


def _key(node: Expr, skip: Skip | None) -> Hashable | None:
    """What two nodes have in common when they are equal; ``None`` for a node that is never merged."""
    if isinstance(node, TupleGetItem):
        return ("field", node.index, id(node.tuple))
    if not isinstance(node, Call) or not isinstance(node.op, Op) or not node.args or node.op.stateful:
        return None
    if skip is not None and skip(node):
        return None
    return (node.op, *map(_operand_key, node.args))


def _operand_key(operand: Expr) -> Hashable:
    if isinstance(operand, Constant) and operand.value.ndim == 0:
        return ("scalar", operand.dtype, operand.value.tobytes())
    if isinstance(operand, Tuple):
        return ("tuple", *map(_operand_key, operand.fields))
    return ("node", id(operand))
