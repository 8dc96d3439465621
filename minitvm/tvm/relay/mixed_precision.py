"""ToMixedPrecision as Relay has it: what ends in float16 stays so, unless the context says that results keep theirs."""

from __future__ import annotations

from dataclasses import replace

from minitvm.errors import PassError
from minitvm.ir.expr import Call, Expr, Function, Module, Tuple
from minitvm.ir.op import Op, Precision
from minitvm.ir.ops.elemwise import CastTo
from minitvm.ir.visitor import rewrite
from minitvm.passes import mixed_precision
from minitvm.passes.manager import FunctionPass, Pass, PassContext


class EndsShort(FunctionPass):
    """minitvm's pass, without the casts that it puts behind results; products say their dtype."""

    def __init__(self, dtype: str) -> None:
        self.inner, self.option = mixed_precision.ToMixedPrecision(dtype), ""
        self.info = replace(self.info, name="ToMixedPrecision")

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        made = self.inner.transform_function(function, module, context)
        if made is function:
            return made
        kept = context.option(mixed_precision.KEEPS.name)
        body = rewrite(made.body if kept else _ended(made.body, function.body), lambda _, new: _said(new))
        return Function(made.params, body, made.attrs, span=made.span)


def _said(node: Expr) -> Expr:
    """A product that says its result's dtype, as Relay's do."""
    if not isinstance(node, Call) or not isinstance(node.op, Op) or getattr(node.op, "out_dtype", None) != "":
        return node
    if node.op.precision is not Precision.SHORT or node.dtype != mixed_precision.SHORT:
        return node
    return Call(node.op.with_attributes(out_dtype=mixed_precision.SHORT), node.args, span=node.span)


def _ended(new: Expr, old: Expr) -> Expr:
    """A result as it was before it was cast back, where that is new."""
    if isinstance(new, Tuple):
        olds = old.fields if isinstance(old, Tuple) else list(old)
        return Tuple([_ended(n, o) for n, o in zip(new.fields, olds, strict=True)], span=new.span)
    cast_back = isinstance(new, Call) and isinstance(new.op, CastTo) and new.args[0].dtype == mixed_precision.SHORT
    was_cast = isinstance(old, Call) and isinstance(old.op, CastTo)
    return new.args[0] if cast_back and not was_cast and isinstance(new, Call) else new


def ToMixedPrecision(mixed_precision_type: str = "float16", missing_op_mode: int = 1) -> Pass:
    """Relay's; every operator says what fewer bits mean for it, so ``missing_op_mode`` has nothing to say."""
    if missing_op_mode not in (0, 1, 2):
        raise PassError(f"missing_op_mode is {missing_op_mode!r}", hint="0, 1 or 2, which mean the same here")
    return EndsShort(mixed_precision_type)
