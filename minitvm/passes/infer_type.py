"""What stands for a function's parameters: their types (InferType), and constants in place of them.

Nodes find their own types when they are built, so only what lies above a variable without a type needs the pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from minitvm.errors import InputError, TypeInferenceError, user_code
from minitvm.ir.decision import decide
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, Var, describe_call
from minitvm.ir.op import Op
from minitvm.ir.ops.control import If, Loop
from minitvm.ir.types import TensorType, Type, accepts, type_of
from minitvm.ir.visitor import as_function, post_order, rebuild_over, rewrite, substitute
from minitvm.passes.manager import FunctionPass, PassContext


class InferType(FunctionPass, opt_level=0):
    """Give every untyped variable the type that its uses determine; nothing else changes.

    Raises :class:`TypeInferenceError` for a variable that no use determines, naming it, and for one whose uses
    disagree.
    """

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        if all(p.checked_type is not None for p in function.params):
            return function
        solved: dict[Var, Var] = {}
        while unsolved := [p for p in function.params if p.checked_type is None and p not in solved]:
            before = len(solved)
            _sweep(function, solved)
            if len(solved) == before:
                raise _unresolved(unsolved, function)
        body = _sweep(function, solved)
        return Function([solved.get(p, p) for p in function.params], body, function.attrs, span=function.span)


def _sweep(function: Function, solved: dict[Var, Var]) -> Expr:
    """Rebuild the body over ``solved``, adding to it what calls determine on the way."""
    done: dict[Expr, Expr] = {}
    for node in post_order(function.body):
        if isinstance(node, Call) and isinstance(node.op, Op):
            _solve_call(node, node.op, [solved.get(a, a) if isinstance(a, Var) else done[a] for a in node.args], solved)
            done.update((a, solved[a]) for a in node.args if isinstance(a, Var) and a in solved)
        done[node] = solved.get(node, node) if isinstance(node, Var) else rebuild_over(node, done)
    return done[function.body]


def _solve_call(call: Call, op: Op, args: list[Expr], solved: dict[Var, Var]) -> None:
    """Type the untyped variables among a call's arguments where the operator determines them."""
    known: list[Type | None] = [a.checked_type for a in args]
    if None not in known:
        return
    with user_code(type(op), f"solve of {op.name}", partial(describe_call, call)):
        found = op.solve(list(known))
    for arg, original, type_ in zip(args, call.args, found, strict=True):
        if isinstance(arg, Var) and isinstance(original, Var) and arg.checked_type is None and type_ is not None:
            solved[original] = Var(original.name, type_, span=original.span)
            decide("InferType", f"%{original.name}", f"is {type_}, as {op.name} says", call.span)


def _unresolved(unsolved: list[Var], function: Function) -> TypeInferenceError:
    names = ", ".join(f"%{v.name}" for v in unsolved)
    uses = [c for c in post_order(function.body) if isinstance(c, Call) and set(c.args) & set(unsolved)]
    where = [f"%{unsolved[0].name} is used by {c.op.name}" for c in uses if isinstance(c.op, Op)]
    return TypeInferenceError(
        f"the type of {names} cannot be inferred from its uses",
        where=where[:3],
        hint=f'give the variable a type: var("{unsolved[0].name}", TensorType(shape, dtype))',
    )


def bind_params(function: Function, params: Mapping[str, Any]) -> Function:
    """``function`` with the parameters named in ``params`` replaced by constants of that name.

    Raises :class:`InputError` for a name that is no parameter, and for an array whose shape or dtype is not its
    parameter's.  An untyped parameter takes the array's type.
    """
    by_name = {p.name: p for p in function.params}
    replaced: dict[Expr, Expr] = {}
    for name, value in params.items():
        if name not in by_name:
            known = ", ".join(by_name) or "none"
            raise InputError(f"there is no parameter {name!r} to bind", hint=f"parameters: {known}")
        array = value.numpy() if hasattr(value, "numpy") else np.asarray(value)
        expected, given = by_name[name].checked_type, type_of(array)
        if isinstance(expected, TensorType) and not accepts(expected, given):
            raise InputError(f"parameter {name!r} is {expected}, the array is {given}")
        replaced[by_name[name]] = Constant(array, name=name)
    return _bound(function, replaced)


def _bound(function: Function, replaced: dict[Expr, Expr]) -> Function:
    """``function`` with other nodes for some of its parameters."""
    if not replaced:
        return function
    kept = [p for p in function.params if p not in replaced]
    return Function(kept, substitute(function.body, replaced), function.attrs, span=function.span)


def bind_module(module: Module, params: Mapping[str, Any]) -> Module:
    """``module`` with ``params`` bound in ``main``."""
    return module.with_function("main", bind_params(module.main, params))


def bind_captured(function: Function) -> Function:
    """``function`` with every constant argument of an ``If``, and every constant that a ``Loop`` captures (its
    carried values change, so they stay), put into the branches; nested control flow too."""
    return as_function(rewrite(function, lambda _, new: _bind(new) if isinstance(new, Call) else new))


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
    return bind_captured(_bound(branch, {branch.params[i]: constant for i, constant in constants.items()}))


def _call(call: Call, op: If | Loop, moved: Mapping[int, Constant]) -> Call:
    decide("bind_captured", call, f"{len(moved)} constants move into the branches")
    return Call(op, [arg for i, arg in enumerate(call.args) if i not in moved], span=call.span)
