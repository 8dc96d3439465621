"""Loops of functions that call themselves at their end.

What such a function comes to is a tree: a result, another round with new arguments, or a choice between two trees.  A
``control.loop`` carries the arguments from round to round for as long as the tree says so; then the result is computed
of the last ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from minitvm.errors import IRError, TypeInferenceError
from minitvm.ir import builder
from minitvm.ir.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, Var
from minitvm.ir.ops.control import Loop
from minitvm.ir.parser import choice
from minitvm.ir.types import TensorType, accepts
from minitvm.ir.visitor import children, post_order, substitute


@dataclass(frozen=True)
class Leaf:
    """The result of the function."""

    value: Expr


@dataclass(frozen=True)
class Again:
    """Another round, with these arguments."""

    args: list[Expr]


@dataclass(frozen=True)
class Fork:
    """One of two, by a condition."""

    condition: Expr
    then: Tree
    orelse: Tree


Tree: TypeAlias = "Leaf | Again | Fork"


def loop_of(name: str, tree: Tree, carried: Sequence[Var], args: Sequence[Expr]) -> Expr:
    """What the function gives for ``args``; ``carried`` stand for its arguments in the tree."""
    result = _merged(tree, lambda leaf: leaf.value if isinstance(leaf, Leaf) else None)
    if result is None:
        raise IRError(
            f"{name} calls itself without end: nothing chooses between another call and a result",
            hint="an If whose other branch is a result ends it",
        )
    going = _going(tree)
    nexts = [_next(tree, i) or var for i, var in enumerate(carried)]
    for var, again in zip(carried, nexts, strict=True):
        if not accepts(var.type, again.type):
            raise TypeInferenceError(
                f"{name} calls itself with %{var.name} of {again.type}, which is {var.type}",
                hint="a parameter whose shape changes from call to call has relay.Any() in it",
            )
    looped = _loop(going, carried, nexts, args)
    last: dict[Expr, Expr] = {var: TupleGetItem(looped, i) for i, var in enumerate(carried)}
    return substitute(result, last)


def _loop(going: Expr, carried: Sequence[Var], nexts: Sequence[Expr], args: Sequence[Expr]) -> Call:
    again = substitute(going, dict(zip(carried, nexts, strict=True)))
    begins = substitute(going, dict(zip(carried, args, strict=True)))
    outside = _outside([again, *nexts], carried)
    inside: dict[Expr, Expr] = {node: Var(f"captured{i}", node.type) for i, node in enumerate(outside)}
    counts = [Var("trip", TensorType((), "int64")), Var("going", TensorType((), "bool"))]
    params = [*counts, *carried, *(v for v in inside.values() if isinstance(v, Var))]
    body = Function(params, Tuple([substitute(one, inside) for one in (again, *nexts)]))
    most = Constant(np.array(np.iinfo(np.int64).max))
    return Call(Loop(body, len(carried)), [most, begins, *args, *outside])


def _outside(roots: Sequence[Expr], carried: Sequence[Var]) -> list[Expr]:
    """What is computed once, outside of the loop: the outermost nodes that no carried value is in."""
    inside: set[Expr] = set(carried)
    order = post_order(*roots)
    inside.update(node for node in order if isinstance(node, Var) and node in inside)
    for node in order:
        if any(child in inside for child in children(node)):
            inside.add(node)
    used = [*roots, *(child for node in order if node in inside for child in children(node))]
    return list(dict.fromkeys(node for node in used if node not in inside and not isinstance(node, Constant)))


def _merged(tree: Tree, of: Callable[[Leaf | Again], Expr | None]) -> Expr | None:
    """A choice between what the leaves give; where one gives nothing, what the other does."""
    if not isinstance(tree, Fork):
        return of(tree)
    then, orelse = _merged(tree.then, of), _merged(tree.orelse, of)
    if then is None or orelse is None or then is orelse:
        return then if orelse is None else orelse
    return choice(tree.condition, then, orelse)


def _next(tree: Tree, index: int) -> Expr | None:
    return _merged(tree, lambda leaf: leaf.args[index] if isinstance(leaf, Again) else None)


def _going(tree: Tree) -> Expr:
    """True for another round."""
    if not isinstance(tree, Fork):
        return Constant(np.array(isinstance(tree, Again)))
    then, orelse = _going(tree.then), _going(tree.orelse)
    known = [one.value.item() if isinstance(one, Constant) else None for one in (then, orelse)]
    if known == [True, False]:
        return tree.condition
    if known == [False, True]:
        return builder.logical_not(tree.condition)
    return then if None not in known else choice(tree.condition, then, orelse)
