"""The transformation: a walk from the results back to the parameters, adding up what each node is worth to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, TypeAlias

from minitvm.errors import PassError, did_you_mean, user_code
from minitvm.ir import builder as ir
from minitvm.ir.dtypes import STORED
from minitvm.ir.expr import Call, Expr, Function, Module, Tuple, TupleGetItem, describe_call
from minitvm.ir.node import span_scope
from minitvm.ir.types import TensorType, TupleType, Type
from minitvm.ir.visitor import children, post_order, rewrite, simplify_projection, substitute
from minitvm.passes.gradient.rules import GRADIENTS, Rule, rule_of
from minitvm.passes.manager import FunctionPass, PassContext

Adjoint: TypeAlias = "Expr | list[Adjoint] | None"
"""What the loss gains by each element of a node's value; of a tuple a list; ``None``: nothing."""
Mode = Literal["higher_order", "first_order"]


def gradient(expr: Function | Module | str, mod: Module | None = None, mode: Mode = "higher_order") -> Function:
    """The function that gives ``expr``'s value and the gradients of all its parameters: ``(value, (d0, d1, ...))``.

    ``expr`` is a function, a module, whose ``main`` is meant, or the name of a function of ``mod``.  The gradients are
    those of the sum of all elements of the result, or of all results of a tuple, and have the parameters' types;
    zeros where nothing depends on a parameter, or it is of integers.  Both of Relay's modes give the same here: the
    result consists of operators, and has a gradient itself.

    Raises :class:`PassError` where an operator on the way has no gradient, naming the call.
    """
    if mode not in ("higher_order", "first_order"):
        raise PassError(f"mode={mode!r} is not known", hint="higher_order or first_order: both give the same here")
    function = inlined(_function(expr, mod))
    with span_scope(function.span):
        found = adjoints(function.body, function.params, _ones(function.body))
        body = Tuple([function.body, Tuple(found)])
    return Function(function.params, body, function.attrs, span=function.span)


def _function(expr: Function | Module | str, mod: Module | None) -> Function:
    if isinstance(expr, Module):
        return expr.main
    if isinstance(expr, str) and mod is not None:
        return mod[expr]
    if isinstance(expr, Function):
        return expr
    what = f"the name {expr!r} without a module" if isinstance(expr, str) else f"a {type(expr).__name__}"
    raise PassError(f"gradient takes a function, not {what}", hint="gradient(mod['main']), or gradient(name, mod)")


class FirstOrderGradient(FunctionPass):
    """Every function becomes one that gives its value and the gradients of its parameters (:func:`gradient`)."""

    def transform(self, module: Module, context: PassContext) -> Module:
        return Module({name: gradient(function) for name, function in module.functions.items()})


def inlined(function: Function) -> Function:
    """The function with what called functions compute in place of their calls."""

    def visit(_: Expr, new: Expr) -> Expr:
        if isinstance(new, Call) and isinstance(new.op, Function):
            called = inlined(new.op)
            return substitute(called.body, dict(zip(called.params, new.args, strict=True)))
        return simplify_projection(new)

    return Function(function.params, rewrite(function.body, visit), function.attrs, span=function.span)


def adjoints(body: Expr, wanted: Sequence[Expr], seed: Adjoint) -> list[Expr]:
    """What each of ``wanted``, nodes in or below ``body``, is worth where ``body``'s value is worth ``seed``."""
    found: dict[Expr, Adjoint] = {body: seed}
    live = set(wanted)
    order = post_order(body, operands=lambda node: () if node in live else children(node))  # no further than wanted
    for node in order:
        if _is_of_floats(node.type) and any(child in live for child in children(node)):
            live.add(node)
    for node in reversed(order):
        if node in live and node not in wanted and found.get(node) is not None:
            with span_scope(node.span):
                _hand_down(node, found, live)
    return [_whole(found.get(one), one) for one in wanted]


def _is_of_floats(type_: Type) -> bool:
    """True if a value of the type can change by little."""
    if isinstance(type_, TupleType):
        return any(map(_is_of_floats, type_.fields))
    return isinstance(type_, TensorType) and type_.dtype in ("float16", "float32", "float64")


def _hand_down(node: Expr, found: dict[Expr, Adjoint], live: set[Expr]) -> None:
    """Adds a node's adjoint to those of its operands."""
    adjoint = found[node]
    if isinstance(node, Tuple):
        parts: Sequence[Adjoint] = adjoint if isinstance(adjoint, list) else [None] * len(node.fields)
    elif isinstance(node, TupleGetItem):
        fields = node.tuple.type.fields if isinstance(node.tuple.type, TupleType) else ()
        parts = [[adjoint if i == node.index else None for i in range(len(fields))]]
    else:
        assert isinstance(node, Call), node
        parts = _of_arguments(node, adjoint)
    for operand, part in zip(children(node), parts, strict=True):
        if operand in live:
            found[operand] = _sum(found.get(operand), part)


def _of_arguments(call: Call, adjoint: Adjoint) -> list[Adjoint]:
    """What the operator's rule says, held against the arguments' types."""
    assert not isinstance(call.op, Function), call
    name = call.op.name
    rule = rule_of(name)
    if rule is None:
        similar = did_you_mean(name, GRADIENTS, str)
        hint = f'register one: @register_gradient("{name}")' + (f"; {similar}" if similar else "")
        raise PassError(f"{name} has no gradient", where=describe_call(call), hint=hint)
    whole = _whole(adjoint, call) if isinstance(call.type, TensorType) else _fields(adjoint, call)
    with user_code(rule, f"gradient of {name}", partial(describe_call, call)):
        given = [_parts(one) for one in rule(call, whole)]
    _check(call, rule, given)
    return given


def _check(call: Call, rule: Rule, given: Sequence[Adjoint]) -> None:
    """Raises :class:`PassError` where a rule's results are not one of each argument's type."""
    wrong = f"the gradient of {getattr(call.op, 'name', '')}"
    if len(given) != len(call.args):
        raise PassError(f"{wrong} gives {len(given)} adjoints of {len(call.args)} arguments", where=describe_call(call))
    for n, (part, arg) in enumerate(zip(given, call.args, strict=True)):
        if isinstance(part, Expr) and part.type != arg.type:
            raise PassError(f"{wrong} gives {part.type} for argument {n}, {arg.type}", where=describe_call(call))


def _parts(given: Expr | None) -> Adjoint:
    """An adjoint as a rule gives it: a tuple becomes a list."""
    return [_parts(field) for field in given.fields] if isinstance(given, Tuple) else given


def _fields(adjoint: Adjoint, node: Expr) -> tuple[Expr, ...]:
    parts = adjoint if isinstance(adjoint, list) else [None] * len(tuple(node))
    return tuple(_whole(part, field) for part, field in zip(parts, node, strict=True))


def _whole(adjoint: Adjoint, like: Expr) -> Expr:
    """An adjoint as an expression of a node's type; zeros where it is nothing."""
    if isinstance(adjoint, Expr):
        return adjoint
    if isinstance(like.type, TupleType):
        return Tuple(_fields(adjoint, like))
    type_ = like.tensor_type
    if type_.dtype in STORED:  # which nothing is computed in
        return ir.zeros(shape=type_.shape, dtype=type_.dtype)
    return ir.zeros_like(like)


def _ones(node: Expr) -> Adjoint:
    if isinstance(node, Tuple):
        return [_ones(field) for field in node.fields]
    if isinstance(node.type, TupleType):
        return [_ones(field) for field in node]
    return ir.ones_like(node) if _is_of_floats(node.type) else None


def _sum(one: Adjoint, other: Adjoint) -> Adjoint:
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, list) and isinstance(other, list):
        return [_sum(a, b) for a, b in zip(one, other, strict=True)]
    assert isinstance(one, Expr) and isinstance(other, Expr)
    return ir.add(one, other)


def through(definition: Callable[..., Expr], call: Call, adjoint: Expr) -> list[Expr | None]:
    """The adjoints of a call's arguments where ``definition(*arguments)`` says the same by other operators."""
    floats = list(dict.fromkeys(arg for arg in call.args if _is_of_floats(arg.type)))
    found = dict(zip(floats, adjoints(definition(*call.args), floats, adjoint), strict=True))
    return [found.pop(arg, None) for arg in call.args]  # what stands there twice gets all of it once
