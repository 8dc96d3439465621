"""EliminateCommonSubexpr: equal calls of equal operands are computed once."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from minitvm.ir.decision import Declined, decide
from minitvm.ir.expr import Call, Expr, Function, Module, Tuple, TupleGetItem
from minitvm.ir.op import Op
from minitvm.ir.structural import node_key
from minitvm.ir.visitor import as_function, children, is_scalar_constant, rewrite
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
        first: dict[Hashable, Expr] = {}

        def visit(old: Expr, new: Expr) -> Expr:
            if not self._may_merge(new):
                return new
            found = first.setdefault((node_key(new), *map(_operand_key, children(new))), new)
            if found is not new and isinstance(new, Call):
                decide(self.info.name, old, f"computed once, with {', '.join(found.span) or 'an equal call'}")
            return found

        return as_function(rewrite(function, visit))

    def _may_merge(self, node: Expr) -> bool:
        if not isinstance(node, Call):
            return isinstance(node, TupleGetItem)
        if not isinstance(node.op, Op) or not node.args or (self.skip is not None and self.skip(node)):
            return False
        if node.op.stateful:
            decide(self.info.name, node, Declined("it gives other results every time"))
        return not node.op.stateful


def _operand_key(operand: Expr) -> Hashable:
    """Equal for what is equal at sight: the same node, equal scalars, tuples of such."""
    if is_scalar_constant(operand):
        return node_key(operand)
    if isinstance(operand, Tuple):
        return ("tuple", *map(_operand_key, operand.fields))
    return operand
