"""The matches of a pattern in an expression that do not overlap: what rewriting and partitioning go by, as in Relay.

Matches are looked for from the result upwards.  One is left where a part of it belongs to another already, and where
something that does not flow through its result reads what is inside of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeAlias

from minitvm.ir.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, Var
from minitvm.ir.node import merge_spans
from minitvm.ir.op import Op
from minitvm.ir.visitor import children, post_order
from minitvm.scopes.names import over_done
from minitvm.scopes.nodes import Apply, Let, everything
from minitvm.tvm.relay.patterns import (
    CallPattern,
    ConstantPattern,
    DFPattern,
    DominatorPattern,
    ExprPattern,
    Found,
    FunctionPattern,
    TuplePattern,
)
from minitvm.tvm.relay.reach import Reach

Callback: TypeAlias = Callable[[Expr, Expr, Mapping[DFPattern, list[Expr]]], Expr]
FROM = "PartitionedFromPattern"


@dataclass
class Group:
    """A match: its outermost node, what matched, the arguments of what is inside, and that as a function of them."""

    root: Expr
    found: Found
    args: list[Expr]
    function: Function
    name: str


class Groups:
    """The matches of ``pattern`` in ``expr``, by their outermost nodes."""

    def __init__(self, pattern: DFPattern, expr: Expr) -> None:
        self.pattern, self.expr = pattern, expr
        self.parts = pattern.every_part()
        self.reach = Reach(expr)
        self.taken: set[Expr] = set()
        self.by_root: dict[Expr, Group] = {}
        self._number = count()
        done_before: set[Expr] = set()
        for node in reversed(self.reach.order):
            if node in self.taken:
                continue
            if isinstance(node, Function) and FROM in node.attrs:
                done_before |= {node, *everything(node.body)}
            found = None if node in done_before else pattern.find(node, self.reach)
            if found is not None:
                self._add(node, found)

    def _add(self, root: Expr, found: Found) -> None:
        args = self._arguments(found)
        number = next(self._number)
        typed = all(arg.checked_type is not None for arg in args)  # else none are: InferType finds them all
        params = {
            arg: Var(f"FunctionVar_{number}_{i}", arg.checked_type if typed else None) for i, arg in enumerate(args)
        }
        inside: dict[Expr, Expr] = dict(params)
        names = "".join(self._copied(root, inside))
        own = [n for n in inside if n not in params and not isinstance(n, (Function, Constant))]
        if self.taken.intersection(own) or any(self._is_read_outside(n, root, inside) for n in own if n is not root):
            return
        body = Function(list(params.values()), inside[root], {}, span=merge_spans(root.span))
        self.by_root[root] = Group(root, found, args, body, names)
        self.taken.update(n for n in inside if n not in params)

    def _copied(self, root: Expr, inside: dict[Expr, Expr]) -> Iterator[str]:
        """Copies what is below a match's root, up to its arguments, into ``inside``; gives the names of the nodes."""

        for node in post_order(root, operands=lambda one: () if one in inside else _below(one)):
            if node not in inside:
                inside[node] = over_done(node, inside)
                yield _name(node)

    def _is_read_outside(self, node: Expr, root: Expr, inside: Mapping[Expr, Expr]) -> bool:
        users = [user for user in self.reach.users[node] if user not in inside]
        return any(not self.reach.dominates(root, user) for user in users)

    def _arguments(self, found: Found) -> list[Expr]:
        """What the pattern's leaves matched, in its order; but constants that it asks for, and functions' insides."""
        inner = self._inner(found)
        args: dict[Expr, None] = {}
        for part in self.parts:
            for node in _leaves(part, found.get(part, ())):
                kept = isinstance(node, Constant) and _asks_for_constant(part)
                if isinstance(node, Expr) and not isinstance(node, Function) and node not in inner and not kept:
                    args[node] = None
        return list(args)

    def _inner(self, found: Found) -> set[Any]:
        """What dominators' parents and paths matched, and what lies in functions that matched."""
        inner: set[Any] = set()
        for part in self.parts:
            if isinstance(part, DominatorPattern):
                inner.update(node for one in (part.parent, part.path) for node in found.get(one, ()))
            elif isinstance(part, FunctionPattern):
                inner.update(n for f in found.get(part, ()) for n in (*f.params, *everything(f.body)))
        return inner

    def rewritten(self, callback: Callback) -> Expr:
        """The expression with what ``callback`` gives for each match, over what its parts became."""

        def visit(old: Expr, new: Expr, done: Mapping[Expr, Expr]) -> Expr:
            group = self.by_root.get(old)
            if group is None:
                return new
            found = {part: [done.get(n, n) for n in nodes] for part, nodes in group.found.items()}
            return callback(old, new, {**found, self.pattern: [new]})

        return self._changed(visit)

    def _changed(self, visit: Callable[[Expr, Expr, Mapping[Expr, Expr]], Expr]) -> Expr:
        done: dict[Expr, Expr] = {}
        if not self.by_root:
            return self.expr
        for node in self.reach.order:
            done[node] = visit(node, over_done(node, done), done)
        return done[self.expr]

    def as_functions(self, attrs: Mapping[str, Any], check: Callable[[Expr], bool]) -> Expr:
        """The expression with calls of functions for the matches that ``check`` accepts."""

        def visit(old: Expr, new: Expr, done: Mapping[Expr, Expr]) -> Expr:
            group = self.by_root.get(old)
            if group is None or not check(old):
                return new
            body = group.function
            made = Function(body.params, body.body, {FROM: group.name, **attrs}, span=body.span)
            return Call(made, [done[arg] for arg in group.args], span=old.span)

        return self._changed(visit)


def partitioned(pattern: DFPattern, expr: Expr, attrs: Mapping[str, Any], check: Callable[[Expr], bool]) -> Expr:
    """What matches, outermost first, as calls of functions marked ``PartitionedFromPattern``."""
    return Groups(pattern, expr).as_functions(attrs, check)


def _leaves(part: DFPattern, matched: tuple[Any, ...]) -> Iterator[Any]:
    """What a pattern without parts matched; of a tuple or call of anything, its fields or arguments."""
    if isinstance(part, TuplePattern) and part.fields is None:
        return (field for node in matched for field in node.fields)
    if isinstance(part, CallPattern) and part.args is None:
        return (arg for node in matched for arg in node.args)
    return iter(() if part.parts() else matched)


def _asks_for_constant(part: DFPattern) -> bool:
    return isinstance(part, ConstantPattern) or (isinstance(part, ExprPattern) and isinstance(part.expr, Constant))


def _below(node: Expr) -> tuple[Expr, ...]:
    called = (node.op,) if isinstance(node, Call) and isinstance(node.op, Function) else ()
    return *called, *children(node)


def _name(node: Expr) -> str:
    """What a node adds to a group's name."""
    if isinstance(node, (Call, Apply)):
        return f"{node.op.name}_" if isinstance(node.op, Op) else "Call_"
    if isinstance(node, TupleGetItem):
        return f"TupleGetItem{node.index}_"
    named: dict[type, str] = {Tuple: "Tuple_", Function: "Function", Let: "Let_"}
    return named.get(type(node), "")
