"""Graphs as terms, and back: rows of names and numbers with their types, as e-graphs and other rewriters want them.

rows = terms(module.main)        # ... in between, rows of your own
module = module_of(rows)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minitvm.errors import MiniTVMError, PassError
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, Tuple, TupleGetItem, Var
from minitvm.ir.op import OPS, Op
from minitvm.ir.types import Type
from minitvm.ir.visitor import post_order

TUPLE, FIELD = "tuple", "field"
"""Heads of terms that are no operators': several values at once, and one of them (its attribute ``index``)."""


@dataclass(frozen=True)
class Term:
    """``head`` is an operator's name, or that of a leaf; ``args`` are places of other terms, all before this one.

    ``leaf`` is the variable or constant of a term that has no operands; ``type`` is what it makes.
    """

    head: str
    args: tuple[int, ...] = ()
    attributes: tuple[tuple[str, Any], ...] = ()
    type: Type | None = None
    leaf: Expr | None = None

    def __str__(self) -> str:
        inside = [f"%{n}" for n in self.args] + [f"{name}={value}" for name, value in self.attributes]
        return f"{self.head}({', '.join(inside)}): {self.type}" if self.leaf is None else f"{self.head}: {self.type}"


def terms(function: Function | Expr) -> list[Term]:
    """A term for each node, operands before users, the result last; shared nodes are one term.

    :class:`PassError` for calls of functions and for control flow, which no term has.
    """
    body = function.body if isinstance(function, Function) else function
    places: dict[Expr, int] = {}
    found: list[Term] = []
    for node in post_order(body):
        found.append(_term(node, places))
        places[node] = len(found) - 1
    return found


def _term(node: Expr, places: dict[Expr, int]) -> Term:
    match node:
        case Var():
            return Term(node.name, type=node.checked_type, leaf=node)
        case Constant():
            return Term(f"const{len(places)}", type=node.checked_type, leaf=node)
        case Tuple():
            return Term(TUPLE, tuple(places[field] for field in node.fields), type=node.checked_type)
        case TupleGetItem():
            return Term(FIELD, (places[node.tuple],), (("index", node.index),), node.checked_type)
        case Call(op=Op() as op):
            attributes = tuple(op.attributes().items())
            return Term(op.name, tuple(places[arg] for arg in node.args), attributes, node.checked_type)
    what = type(node.op if isinstance(node, Call) else node).__name__
    raise PassError(f"a {what} is no term", hint="terms are of operators: take a graph before FuseOps")


def expression_of(rows: Sequence[Term]) -> Expr:
    """The graph whose result is the last term; every operator infers its type anew.

    :class:`PassError` where a term comes before its operands, its head is no operator, or its type is another one.
    """
    made: list[Expr] = []
    for place, term in enumerate(rows):
        if any(not 0 <= n < place for n in term.args):
            raise PassError(f"term {place}, {term}, has operands behind it", hint="operands come before users")
        node = term.leaf if term.leaf is not None else _node(term, [made[n] for n in term.args], place)
        if term.type is not None and node.checked_type != term.type:
            raise PassError(f"term {place}, {term}, is a {node.checked_type}", hint="a rewrite has to keep types")
        made.append(node)
    if not made:
        raise PassError("no terms are no graph", hint="the last one is the result")
    return made[-1]


def module_of(rows: Sequence[Term]) -> Module:
    """The same as a module; parameters are the variables, in the order of their terms."""
    variables = [term.leaf for term in rows if isinstance(term.leaf, Var)]
    return Module(Function(list(dict.fromkeys(variables)), expression_of(rows)))


def _node(term: Term, args: list[Expr], place: int) -> Expr:
    attributes = dict(term.attributes)
    if term.head == TUPLE:
        return Tuple(args)
    if term.head == FIELD:
        return TupleGetItem(args[0], attributes["index"])
    if term.head not in OPS:
        raise PassError(f"term {place}: there is no operator {term.head!r}", hint="a leaf has its variable or constant")
    try:
        return Call(OPS[term.head](**attributes), args)
    except (MiniTVMError, TypeError) as error:
        raise PassError(f"term {place}, {term}: {error}", hint="the operator says what it takes") from error
