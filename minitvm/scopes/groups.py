"""Fused groups as Relay writes them, functions with ``Primitive=1``, and as FuseOps makes them here."""

from __future__ import annotations

from typing import Any

from minitvm.ir.expr import Call, Expr, Function, Module
from minitvm.ir.op import Op
from minitvm.ir.visitor import as_function, calls, rewrite
from minitvm.passes.fuse_ops import _kernel_name

_OURS, _THEIRS = ("primitive", "name", "reshape_only"), ("Primitive", "relay.reshape_only", "hash")


def relays_attributes(function: Function) -> dict[str, Any]:
    """A function's attributes by Relay's names: a group has no name of its own there."""
    if not function.attrs.get("primitive"):
        return dict(function.attrs)
    rest = {name: value for name, value in function.attrs.items() if name not in _OURS}
    moves = {"relay.reshape_only": 1} if function.attrs.get("reshape_only") else {}
    return {"Primitive": 1, **moves, **rest}


def as_groups(module: Module) -> Module:
    """The module with groups as they are here, where functions that it calls are marked as Relay's."""
    done: dict[Function, Function] = {}

    def group(function: Function) -> Function:
        if function not in done:
            ops = [call.op for call in calls(function.body) if isinstance(call.op, Op)]
            rest = {name: value for name, value in function.attrs.items() if name not in _THEIRS}
            own = {"primitive": True, "name": _kernel_name([op.name for op in ops])}
            attrs = {**own, "reshape_only": all(op.view for op in ops), **rest}
            done[function] = Function(function.params, function.body, attrs, function.span)
        return done[function]

    def visit(_: Expr, new: Expr) -> Expr:
        if not isinstance(new, Call) or not isinstance(new.op, Function) or not new.op.attrs.get("Primitive"):
            return new
        return Call(group(new.op), new.args, span=new.span)

    for name, function in module.functions.items():
        module = module.with_function(name, as_function(rewrite(function, visit)))
    return module
