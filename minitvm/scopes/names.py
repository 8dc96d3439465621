"""Calls of a module's functions by name and by the functions themselves, and the graph of who calls whom.

Passes over graphs know a called function as the function; what may call itself can only be named.  A pass over scopes
works on names, so that each function is rewritten once, and puts the functions back at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from minitvm.ir.expr import Call, Expr, Function, Module
from minitvm.ir.visitor import as_function, children, rebuild
from minitvm.scopes.nodes import Global, applied, declared, everything, signature_of

Replace = Callable[[Expr], "Expr | None"]
Over = Callable[[Expr, "list[Expr]"], Expr]


def replaced(root: Expr, replace: Replace) -> Expr:
    """An expression with what ``replace`` gives for nodes, called functions among them; ``None`` keeps one."""
    done: dict[Expr, Expr] = {}
    for node in everything(root):
        found = replace(node)
        done[node] = over_done(node, done) if found is None else found
    return done[root]


def over_done(node: Expr, done: Mapping[Expr, Expr], over: Over = rebuild) -> Expr:
    """A node over what its parts became."""
    if isinstance(node, Call) and isinstance(node.op, Function) and not node.op.is_primitive:
        return rebuilt_call(node, done)
    new = over(node, [done.get(child, child) for child in children(node)])
    keep_declared(node, new)
    return new


def keep_declared(old: Expr, new: Expr) -> None:
    """What an old function was declared with is so of the new one."""
    if isinstance(old, Function) and isinstance(new, Function) and new is not old and old in declared:
        declared[new] = declared[old]


def rebuilt_call(call: Call, done: Mapping[Expr, Expr]) -> Expr:
    """The call of a function over what it and the arguments became."""
    assert isinstance(call.op, Function)
    op, args = done.get(call.op, call.op), [done.get(arg, arg) for arg in call.args]
    return rebuild(call, args) if op is call.op else applied(op, args, call.span)


def named(module: Module) -> Module:
    """The module with names in place of its functions where these are called or are values."""
    names = {function: str(name) for name, function in module.functions.items()}

    def named_in(function: Function, node: Expr) -> Expr | None:
        if node is function or not isinstance(node, Function) or node not in names:
            return None
        return Global(names[node], signature_of(node))

    return _each(module, lambda function: as_function(replaced(function, partial(named_in, function))))


def linked(module: Module) -> Module:
    """The module with functions in place of their names, but for those that call themselves."""
    graph = call_graph(module)
    done: dict[str, Function] = {}

    def link(name: str) -> Function:
        if name not in done:
            function = module[name]
            done[name] = as_function(replaced(function, found)) if graph[name] else function
        return done[name]

    def found(node: Expr) -> Expr | None:
        known = isinstance(node, Global) and node.name_hint in graph and not calls_itself(graph, node.name_hint)
        return link(node.name_hint) if known and isinstance(node, Global) else None

    made = {name: link(str(name)) for name in module.functions}
    return module if all(made[n] is f for n, f in module.functions.items()) else Module(made)


def _each(module: Module, change: Callable[[Function], Function]) -> Module:
    made = {name: change(function) for name, function in module.functions.items()}
    return module if all(made[n] is f for n, f in module.functions.items()) else Module(made)


def call_graph(module: Module) -> dict[str, list[str]]:
    """The functions of the module that each refers to, by name, in order of their first mention."""
    names = {function: str(name) for name, function in module.functions.items()}
    graph: dict[str, list[str]] = {}
    for name, function in module.functions.items():
        found: dict[str, None] = {}
        for node in everything(function):
            if isinstance(node, Global):
                found[node.name_hint] = None
            elif node is not function and isinstance(node, Function) and node in names:
                found[names[node]] = None
        graph[str(name)] = list(found)
    return graph


def calls_itself(graph: Mapping[str, list[str]], name: str) -> bool:
    """True if a function is reached from itself."""
    return name in reached(graph, graph.get(name, []))


def reached(graph: Mapping[str, list[str]], names: list[str]) -> set[str]:
    """The functions that these call, directly or not, and themselves."""
    found, waiting = set(names), list(names)
    while waiting:
        fresh = set(graph.get(waiting.pop(), [])) - found
        found |= fresh
        waiting.extend(fresh)
    return found
