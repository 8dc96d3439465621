"""Walks and rewrites of the graph: iterative, each node once, the same object back where nothing changed."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any
from weakref import WeakKeyDictionary

from minitvm.ir.attributes import attributes_of
from minitvm.ir.loop import dependency_order
from minitvm.ir.node import Call, Constant, Expr, Function, Tuple, TupleGetItem, Var, merge_spans, span_scope
from minitvm.ir.op import Op
from minitvm.ir.types import symbols

_CHILDREN: dict[type, Callable[[Any], tuple[Expr, ...]]] = {
    Call: attrgetter("args"),
    Tuple: attrgetter("fields"),
    TupleGetItem: lambda expr: (expr.tuple,),
    Function: lambda expr: (*expr.params, expr.body),
}


def children(expr: Expr) -> tuple[Expr, ...]:
    """Direct operands (a table: every walk passes here).  A function's are its parameters and body; a called
    function's body is not entered."""
    found = _CHILDREN.get(type(expr))
    return () if found is None else found(expr)


def post_order(*roots: Expr, operands: Callable[[Expr], tuple[Expr, ...]] = children) -> list[Expr]:
    """Every node below ``roots`` once, operands before users, left to right (Relay's post-DFS order).

    ``operands`` says what lies below a node.  Raises :class:`IRError` where a node lies below itself.
    """
    if len(roots) == 1 and operands is children:
        return [*_below(roots[0]), roots[0]]
    return dependency_order(roots, operands)


_orders: WeakKeyDictionary[Expr, list[Expr]] = WeakKeyDictionary()
"""What lies below large roots, without themselves: most passes walk over what another one has walked over."""
LARGE = 64
"""Nodes."""


def _below(root: Expr) -> list[Expr]:
    order = _orders.get(root)
    if order is None:
        order = dependency_order((root,), children)[:-1]
        if len(order) > LARGE:
            _orders[root] = order
    return order


def is_made_of(*roots: Expr, of: Callable[[Expr], bool]) -> bool:
    """True if ``of`` holds for all nodes at and below ``roots``; nothing is walked below one for which it does not."""
    waiting, seen = list(roots), set(roots)
    while waiting:
        node = waiting.pop()
        if not of(node):
            return False
        fresh = [child for child in children(node) if child not in seen]
        seen.update(fresh)
        waiting.extend(fresh)
    return True


def calls(*roots: Expr) -> list[Call]:
    """The calls below ``roots`` in post-order."""
    return [node for node in post_order(*roots) if isinstance(node, Call)]


_kinds: WeakKeyDictionary[Function, Counter[type]] = WeakKeyDictionary()
"""What :func:`kinds_of` found: most passes leave most functions as they are."""


def kinds_of(function: Function) -> Counter[type]:
    """The number of nodes of each kind: an operator's class for its calls, the node's own for all others."""
    if function not in _kinds:
        nodes = post_order(function)[:-1]
        _kinds[function] = Counter(type(node.op) if isinstance(node, Call) else type(node) for node in nodes)
    return _kinds[function]


def held_functions(call: Call) -> dict[str, Function]:
    """The functions that a call holds: the one it calls under ``""``, those in attributes by the attributes' names."""
    if isinstance(call.op, Function):
        return {"": call.op}
    return {name: getattr(call.op, name) for name in _function_attributes(type(call.op))}


def holds_functions(function: Function) -> bool:
    """True if a call in the body calls or holds a function."""
    return any(kind is Function or _function_attributes(kind) for kind in kinds_of(function))


def _function_attributes(kind: type) -> list[str]:
    """The attributes of an operator class that are functions, by their declared types."""
    return [a.name for a in attributes_of(kind).values() if a.annotation is Function] if issubclass(kind, Op) else []


def free_vars(expr: Expr) -> list[Var]:
    """Variables that no enclosing function binds, in post-order."""
    order = post_order(expr)
    bound = {param for node in order if isinstance(node, Function) for param in node.params}
    return [node for node in order if isinstance(node, Var) and node not in bound]


def use_counts(root: Expr) -> Counter[Expr]:
    """The number of operand positions (and function results) that each node fills."""
    return Counter(child for node in post_order(root) for child in children(node))


def users(root: Expr) -> dict[Expr, list[Expr]]:
    """The nodes that use each node, once per operand position, in post-order."""
    found: dict[Expr, list[Expr]] = {}
    for node in post_order(root):
        for child in children(node):
            found.setdefault(child, []).append(node)
    return found


def rebuild(expr: Expr, operands: Iterable[Expr]) -> Expr:
    """``expr`` over other operands (as :func:`children` lists them); ``expr`` itself where they are the same."""
    new = tuple(operands)
    if new == children(expr):  # a node equals only itself
        return expr
    if isinstance(expr, Tuple):
        return Tuple(new, span=expr.span)
    if isinstance(expr, TupleGetItem):
        return TupleGetItem(new[0], expr.index, span=expr.span)
    if not isinstance(expr, Function):  # a call, or a node of another room
        node: Any = expr
        made: Expr = node.over(new)
        return made
    params = [p for p in new[:-1] if isinstance(p, Var)]
    assert len(params) == len(new) - 1, "a parameter was replaced by something other than a variable"
    return Function(params, new[-1], expr.attrs, span=expr.span)


Visit = Callable[[Expr, Expr], Expr]


def rewrite(root: Expr, visit: Visit) -> Expr:
    """Rebuild bottom-up: ``visit(old, new)`` gets each node and itself over rewritten operands, and returns
    what replaces it (``new`` to keep it).  Nodes it builds inherit the span of ``old``."""
    done: dict[Expr, Expr] = {}
    with span_scope(()) as scope:
        for node in post_order(root):
            scope.move(node.span)
            done[node] = visit(node, rebuild_over(node, done))
    return done[root]


def rebuild_over(node: Expr, done: Mapping[Expr, Expr]) -> Expr:
    """``node`` over what its operands became, as ``done`` says; ``node`` itself where they stayed."""
    below = children(node)
    for child in below:
        if done[child] is not child:
            return rebuild(node, [done[c] for c in below])
    return node


def substitute(root: Expr, replacement: dict[Expr, Expr]) -> Expr:
    """``root`` with every node in ``replacement`` replaced (replacements are not searched again)."""
    return rewrite(root, lambda old, new: replacement.get(old, new))


def simplify_projection(expr: Expr) -> Expr:
    """``(a, b).1`` is ``b``; anything else is itself."""
    if isinstance(expr, TupleGetItem) and isinstance(expr.tuple, Tuple):
        return expr.tuple.fields[expr.index]
    return expr


def as_function(expr: Expr) -> Function:
    """A function that a rewrite has left one."""
    assert isinstance(expr, Function), expr
    return expr


def span_of(*nodes: Expr) -> tuple[str, ...]:
    """All places that ``nodes`` came from, for a node that replaces them."""
    return merge_spans(*(node.span for node in nodes))


def is_scalar_constant(expr: Expr) -> bool:
    return isinstance(expr, Constant) and expr.value.ndim == 0


def sizes_of(function: Function) -> tuple[str, ...]:
    """The symbols that the types in a function, and attributes of its operators, are made with, sorted; those of the
    bodies of control flow too, but for those that these alone know."""
    found = {*symbols(*(p.type for p in function.params))}
    for call in calls(function.body):
        op = call.op if isinstance(call.op, Op) else None
        found |= symbols(call.type, *(arg.type for arg in call.args)) | (op.symbols if op else frozenset())
        for body in held_functions(call).values():
            found |= {*sizes_of(body)}.difference(*(op.assumed_sizes[2:] if op else ()))
    return tuple(sorted(found))
