"""Constants that control flow captures move into its branches, where passes can fold and pack them."""

from __future__ import annotations

from collections.abc import Mapping

from minitvm.ir.decision import decide
from minitvm.ir.expr import Call, Constant, Expr, Function
from minitvm.ir.ops.control import If, Loop
from minitvm.ir.visitor import rewrite, substitute


def bind_captured(function: Function) -> Function:
    """``function`` with every constant argument of an ``If``, and every constant that a ``Loop`` captures (its
    carried values change, so they stay), put into the branches; nested control flow too."""
    body = rewrite(function.body, lambda _, new: _bind(new) if isinstance(new, Call) else new)
    if body is function.body:
        return function
    return Function(function.params, body, function.attrs, span=function.span)


def _bind(call: Call) -> Expr:
    if isinstance(call.op, If):
        moved = _constants(call, 1)
        inside = {i - 1: constant for i, constant in moved.items()}
        then, orelse = _into(call.op.then_branch, inside), _into(call.op.else_branch, inside)
        if then is call.op.then_branch and orelse is call.op.else_branch:
            return call
        return _call(call, If(then, orelse), moved)
    if isinstance(call.op, Loop):
        moved = _constants(call, 2 + call.op.num_carried)
        body = _into(call.op.body, moved)
        return call if body is call.op.body else _call(call, Loop(body, call.op.num_carried), moved)
    return call


def _constants(call: Call, first: int) -> dict[int, Constant]:
    return {i: arg for i, arg in enumerate(call.args) if i >= first and isinstance(arg, Constant)}


def _into(branch: Function, constants: Mapping[int, Constant]) -> Function:
    """The branch with those parameters bound, and bound further inside."""
    replaced: dict[Expr, Expr] = {branch.params[i]: constant for i, constant in constants.items()}
    if replaced:
        kept = [p for p in branch.params if p not in replaced]
        branch = Function(kept, substitute(branch.body, replaced), branch.attrs, span=branch.span)
    return bind_captured(branch)


def _call(call: Call, op: If | Loop, moved: Mapping[int, Constant]) -> Call:
    decide("bind_captured", call, f"{len(moved)} constants move into the branches")
    return Call(op, [arg for i, arg in enumerate(call.args) if i not in moved], span=call.span)
