"""CallLibraries: what a vendor's library computes is cut out before anything is fused with it."""

from __future__ import annotations

from collections.abc import Hashable

from minitvm.ir.decision import Declined, decide
from minitvm.ir.expr import Call, Expr, Function, Module, Var
from minitvm.ir.op import Op
from minitvm.ir.structural import node_key
from minitvm.ir.visitor import as_function, rewrite
from minitvm.passes.bound import SAME_PRODUCTS
from minitvm.passes.manager import FunctionPass, PassContext
from minitvm.passes.places import LibraryOf, in_pipeline


@in_pipeline(before="AlterOpLayout", given="library_of", needs="library_of")
class CallLibraries(FunctionPass, opt_level=0, bound=SAME_PRODUCTS):
    """Each operator that the target has a library for becomes a primitive function of its own.

    FuseOps leaves those as they are, so what could be fused with the operator becomes another kernel.  Before layouts
    are chosen, as these are our templates'.
    """

    def __init__(self, library_of: LibraryOf) -> None:
        self.library_of = library_of

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        shared: dict[Hashable, Function] = {}
        return as_function(rewrite(function, lambda _, new: self._called(new, shared)))

    def _called(self, node: Expr, shared: dict[Hashable, Function]) -> Expr:
        """Equal calls share one function."""
        found = self.library_of(node) if isinstance(node, Call) and isinstance(node.op, Op) else None
        if found is None or not isinstance(node, Call):
            return node
        decide("CallLibraries", node, found if isinstance(found, Declined) else f"{found} computes it, by itself")
        if isinstance(found, Declined):
            return node
        key = (node_key(node), *(arg.checked_type for arg in node.args))
        if key not in shared:
            shared[key] = _alone(node, found)
        return Call(shared[key], node.args, span=node.span)


def _alone(call: Call, library: str) -> Function:
    assert isinstance(call.op, Op)
    params = [Var(f"p{i}", arg.type) for i, arg in enumerate(call.args)]
    name = f"{library}_{call.op.name}".replace(".", "_")
    attrs = {"primitive": True, "name": name, "reshape_only": False, "library": library}
    return Function(params, Call(call.op, params, span=call.span), attrs, span=call.span)
