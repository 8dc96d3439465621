"""Normal forms: graphs of shared nodes, all names (A normal form), and names for what several scopes share (basic
blocks).

A scope is a function's body or a branch.  What several scopes use stands in the innermost scope around all of them, as
Relay's passes have it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from minitvm.ir.expr import Call, Expr, Function, Var
from minitvm.ir.ops.control import If as Choice
from minitvm.ir.visitor import children, rebuild, substitute
from minitvm.scopes.names import keep_declared, over_done, rebuilt_call
from minitvm.scopes.nodes import Binding, Global, If, Let, conditional, everything, free_vars, in_order, is_atom


def is_choice(node: Expr) -> bool:
    """True for the call of ``control.if``."""
    return isinstance(node, Call) and isinstance(node.op, Choice)


def opened(root: Expr) -> Expr:
    """The expression with an :class:`If` for every choice, whose branches are functions of what they use no more."""
    done: dict[Expr, Expr] = {}
    for node in everything(root):
        if isinstance(node, Call) and isinstance(node.op, Choice):
            condition, *captured = (done.get(arg, arg) for arg in node.args)
            then, orelse = (
                opened(substitute(branch.body, dict(zip(branch.params, captured, strict=True))))
                for branch in (node.op.then_branch, node.op.else_branch)
            )
            done[node] = If(condition, then, orelse, span=node.span)
        else:
            done[node] = over_done(node, done, opened_parts)
    return done[root]


def opened_parts(node: Expr, parts: list[Expr]) -> Expr:
    """A node over other parts; a choice stays one that passes do not know."""
    if not isinstance(node, If):
        return rebuild(node, parts)
    condition, then, orelse = parts
    return If(condition, then, orelse, span=node.span)


# --- graphs ---------------------------------------------------------------------------------------------------


def graph_form(root: Expr) -> Expr:
    """Values in place of the variables that a ``Let`` binds to them; what calls itself keeps its name."""
    done: dict[Expr, Expr] = {}
    for node in in_order(root):
        if isinstance(node, Binding):
            if not names_itself(node.let):
                done[node.let.var] = done[node.let.value]
        elif isinstance(node, Let):
            if names_itself(node):
                done[node] = rebuild(node, (done.get(node.var, node.var), done[node.value], done[node.body]))
            else:
                done[node] = done[node.body]
        elif isinstance(node, Var):
            done.setdefault(node, node)
        else:
            done[node] = over_done(node, done)
    return done[root]


def names_itself(let: Let) -> bool:
    """True where the value is a function that calls itself."""
    return isinstance(let.value, Function) and let.var in free_vars(let.value)


# --- names ----------------------------------------------------------------------------------------------------


class Scope:
    """A function's body or a branch, with what is bound in it, in order."""

    def __init__(self, around: Scope | None = None) -> None:
        self.around = around
        self.depth: int = around.depth + 1 if around else 0
        self.lines: list[tuple[Var, Expr]] = []

    def common(self, other: Scope) -> Scope:
        """The innermost scope around both."""
        a, b = self, other
        while a is not b:
            if a.depth >= b.depth:
                assert a.around is not None
                a = a.around
            else:
                assert b.around is not None
                b = b.around
        return a

    def around_of(self, result: Expr) -> Expr:
        """The result behind what is bound."""
        for var, value in reversed(self.lines):
            result = Let(var, value, result)
        return result


class Scopes:
    """The scope of each node of an expression; ``lifted`` are those of which another scope than that of one of their
    uses."""

    def __init__(self, root: Expr) -> None:
        self.order = in_order(root)
        self.of: dict[Any, Scope] = {root: Scope()}
        self.inside: dict[tuple[Expr, int], Scope] = {}
        self.lifted: set[Expr] = set()
        for node in reversed(self.order):
            for child, scope in self._uses(node):
                found = self.of.get(child)
                self.of[child] = scope if found is None else found.common(scope)
                if found is not None and not isinstance(child, Binding) and found is not scope and not is_atom(child):
                    self.lifted.add(child)

    def _uses(self, node: Any) -> list[tuple[Any, Scope]]:
        if isinstance(node, Var):
            return []
        scope = self.of[node]
        if isinstance(node, Binding):
            return [(node.let.value, scope)]
        if isinstance(node, Let):
            return [(one, scope) for one in self._below_let(node)]
        if isinstance(node, If):
            return [(node.cond, scope)] + [(node.parts[i], self.inner(node, i, scope)) for i in (1, 2)]
        if isinstance(node, Function):
            return [] if node.is_primitive else [(node.body, self.inner(node, 0, scope))]
        called = (node.op,) if isinstance(node, Call) and _is_called(node.op) else ()
        return [(child, scope) for child in (*called, *children(node))]

    def _below_let(self, let: Let) -> list[Any]:
        bindings = getattr(self, "bindings", None)
        if bindings is None:
            self.bindings = bindings = {one.let: one for one in self.order if isinstance(one, Binding)}
        return [bindings[let], let.body]

    def inner(self, node: Expr, part: int, scope: Scope) -> Scope:
        return self.inside.setdefault((node, part), Scope(scope))


def _is_called(op: Any) -> bool:
    return isinstance(op, Function) and not op.is_primitive


def with_names(root: Expr, is_named: Callable[[Expr, Scopes], bool]) -> Expr:
    """The expression with ``let`` for every node that ``is_named``, in its scope."""
    root = opened(root)
    scopes = Scopes(root)
    values: dict[Expr, Binding] = {}
    for one in scopes.order:
        if isinstance(one, Binding):
            values.setdefault(_result_of(one.let.value), one)
    done: dict[Any, Expr] = {}
    count = 0
    for node in scopes.order:
        if isinstance(node, Binding):
            if done[node.let.value] is not node.let.var:
                scopes.of[node].lines.append((node.let.var, done[node.let.value]))
            continue
        if isinstance(node, Let):
            done[node] = done[node.body]
            continue
        made = _over(node, done, scopes)
        if not is_named(node, scopes) or (node is root and isinstance(node, Function)):
            done[node] = made
            continue
        binding = values.get(node)
        own = binding is not None and scopes.of[binding] is scopes.of[node]
        var = binding.let.var if binding is not None and own else Var(f"x{count}", made.checked_type)
        count += not own
        scopes.of[node].lines.append((var, made))
        done[node] = var
    result = done[root]
    return result if isinstance(root, Function) else scopes.of[root].around_of(result)


def _result_of(expr: Expr) -> Expr:
    """What comes out of nested ``let``."""
    while isinstance(expr, Let):
        expr = expr.body
    return expr


def _over(node: Expr, done: Mapping[Any, Expr], scopes: Scopes) -> Expr:
    """A node over what its parts became, each scope in it with what is bound there."""
    if is_atom(node):
        return node
    if isinstance(node, If):
        then, orelse = (scopes.inside[node, i].around_of(done[node.parts[i]]) for i in (1, 2))
        return conditional(done[node.cond], then, orelse, node.span)
    if isinstance(node, Function):
        if node.is_primitive:
            return node
        made = rebuild(node, (*node.params, scopes.inside[node, 0].around_of(done[node.body])))
        keep_declared(node, made)
        return made
    if isinstance(node, Call) and _is_called(node.op):
        return rebuilt_call(node, done)
    return rebuild(node, [done[child] for child in children(node)])


def a_normal_form(root: Expr) -> Expr:
    """Every call, tuple, projection, choice, inner function and constant has a name; operands are names."""
    return with_names(root, lambda node, _: not isinstance(node, (Var, Global)))


def basic_blocks(root: Expr) -> Expr:
    """What several scopes use has a name in the innermost one around them."""
    return with_names(root, lambda node, scopes: node in scopes.lifted)


def is_basic_blocks(root: Expr) -> bool:
    """True if nothing but variables is used by several scopes."""
    return not Scopes(opened(root)).lifted
