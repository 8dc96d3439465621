"""What a build makes of functions for other compilers, and TVM's way to register code generators."""

from __future__ import annotations

from typing import Any

from minitvm.errors import PassError
from minitvm.ir.decision import decide
from minitvm.ir.expr import Call, Constant, Expr, Function, Module
from minitvm.ir.ops.external import External, Mark, register_generator
from minitvm.ir.visitor import as_function, rewrite
from minitvm.passes.manager import FunctionPass, PassContext
from minitvm.passes.partition.supported import DEFAULT
from minitvm.passes.places import in_pipeline

_PREFIX = "relay.ext."


@in_pipeline(after="InferType")
class CallExternals(FunctionPass):
    """Calls of functions with the attribute ``Compiler`` become calls of what its code generator makes of them.

    The generator is asked at once, so that what it refuses is an error of the build.  Marks that are left disappear.
    """

    needs = (Function, Mark)

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        return as_function(rewrite(function, lambda _, new: _called(new)))


def _called(node: Expr) -> Expr:
    if isinstance(node, Call) and isinstance(node.op, Mark):
        return node.args[0]
    if not isinstance(node, Call) or not isinstance(node.op, Function):
        return node
    compiler = str(node.op.attrs.get("Compiler", DEFAULT))
    if compiler == DEFAULT:
        return node
    symbol = str(node.op.attrs.get("global_symbol", f"{compiler}_function"))
    op, constants = External.of_function(node.op, compiler, symbol)
    op.compiled(constants)
    decide("CallExternals", f"@{symbol}", f"code generator {compiler} computes it", node.span)
    return Call(op, [*node.args, *map(Constant, constants)], span=node.span)


def register_func(func_name: str, f: Any = None, override: bool = False) -> Any:
    """``register_func("relay.ext.mylib", f)`` registers the code generator of a compiler (TVM's way to do it).

    Raises :class:`PassError` for other names: functions of Python are called as they are.
    """
    if not isinstance(func_name, str) or not func_name.startswith(_PREFIX):
        raise PassError(f"register_func of {func_name!r}", hint='"relay.ext.mylib" is mylib\'s code generator')
    return register_generator(func_name.removeprefix(_PREFIX), f, override)
