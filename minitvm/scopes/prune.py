"""Dead ``let``, bodies in place of calls, inner functions as functions of the module, parameters for values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from minitvm.ir.expr import Call, Expr, Function, Module, Var
from minitvm.ir.text import fresh_name
from minitvm.ir.types import FuncType
from minitvm.ir.visitor import as_function, children, rebuild, substitute
from minitvm.scopes.names import call_graph, calls_itself, over_done, replaced
from minitvm.scopes.nodes import Apply, Binding, Global, Let, applied, everything, free_vars, in_order


def live(root: Expr, inline_once: bool = False) -> Expr:
    """The expression without each ``let`` whose variable nothing uses; with ``inline_once`` without those that are used
    once, unless by a function, which may be called often."""
    uses, inside = _uses(root)
    done: dict[Expr, Expr] = {}
    for node in in_order(root):
        if isinstance(node, Binding):
            var = node.let.var
            if inline_once and uses[var] == 1 and var not in inside:
                done[var] = done[node.let.value]
        elif isinstance(node, Let):
            used = uses[node.var] > 0 and done.get(node.var, node.var) is node.var
            done[node] = rebuild(node, (node.var, done[node.value], done[node.body])) if used else done[node.body]
        elif isinstance(node, Var):
            done.setdefault(node, node)
        else:
            done[node] = over_done(node, done)
    return done[root]


def _uses(root: Expr) -> tuple[Counter[Var], set[Var]]:
    """Uses of variables by what is alive; and the variables that functions use which are bound outside of them."""
    values = {node.let.var: node.let.value for node in in_order(root) if isinstance(node, Binding)}
    uses, inside = Counter[Var](), set[Var]()
    waiting: list[Expr] = [root]
    seen: set[Expr] = set()
    while waiting:
        node = waiting.pop()
        while isinstance(node, Let):
            node = node.body
        if isinstance(node, Var):
            uses[node] += 1
            fresh = [values[node]] if node in values and uses[node] == 1 else []
        elif node in seen:
            continue
        elif isinstance(node, Function):
            inside.update(free_vars(node))
            fresh = [node.body]
        else:
            called = [node.op] if isinstance(node, Call) and isinstance(node.op, Function) else []
            fresh = [*called, *children(node)]
        seen.add(node)
        waiting.extend(fresh)
    return uses, inside


# --- inlining -------------------------------------------------------------------------------------------------


def inlined(module: Module) -> Module:
    """The bodies of functions with the attribute ``Inline`` in place of their calls; not of those that call themselves,
    and of what another compiler computes the function itself.  Functions that this leaves without a call are gone."""
    graph = call_graph(module)
    marked = {
        name: function
        for name, function in module.functions.items()
        if function.attrs.get("Inline") and not calls_itself(graph, str(name)) and name != "main"
    }
    done: dict[str, Function] = {}

    def change(name: str) -> Function:
        if name not in done:
            function = module[name]
            used = [other for other in graph[name] if other in marked]
            bodies = {other: change(other) for other in used}
            done[name] = as_function(_inlined(function, bodies)) if used else function
        return done[name]

    kept = {name: change(str(name)) for name in module.functions if name not in marked}
    return module if not marked else Module(kept)


def _inlined(root: Function, bodies: Mapping[str, Function]) -> Expr:
    done: dict[Expr, Expr] = {}
    for node in everything(root):
        if isinstance(node, Apply) and isinstance(node.op, Global) and node.op.name_hint in bodies:
            done[node] = body_for(bodies[node.op.name_hint], [done[arg] for arg in node.args])
        elif isinstance(node, Global) and node.name_hint in bodies:
            done[node] = bodies[node.name_hint]
        else:
            done[node] = over_done(node, done)
    return done[root]


def body_for(function: Function, args: list[Expr]) -> Expr:
    """What a function gives for these arguments; of one for another compiler the call."""
    if function.attrs.get("Compiler"):
        return Call(function, args)
    renamed = as_function(refreshed(function))
    return substitute(renamed.body, dict(zip(renamed.params, args, strict=True)))


def refreshed(root: Expr) -> Expr:
    """The expression with new variables in place of those that it binds, so that it may stand twice in another."""
    done: dict[Expr, Expr] = {}
    for node in everything(root):
        if isinstance(node, Let):
            done.setdefault(node.var, Var(node.var.name, node.var.checked_type, span=node.var.span))
        elif isinstance(node, Function) and not node.is_primitive:
            done.update((p, Var(p.name, p.checked_type, span=p.span)) for p in node.params)
    if not done:
        return root
    for node in everything(root):
        if node not in done:
            done[node] = over_done(node, done)
    return done[root]


# --- lifting --------------------------------------------------------------------------------------------------


def lifted(module: Module) -> Module:
    """Inner functions as functions of the module.  What they read from outside become parameters that come first: the
    function of these gives the inner one, as a closure."""
    used = set(map(str, module.functions))
    made: dict[str, Function] = {}
    fresh: dict[str, Function] = {}
    for name, function in module.functions.items():
        body = _lifted(function.body, fresh, used, f"{name}_lifted")
        made[str(name)] = as_function(rebuild(function, (*function.params, body)))
    return module if not fresh else Module({**made, **fresh})


def _lifted(root: Expr, fresh: dict[str, Function], used: set[str], wanted: str) -> Expr:
    done: dict[Expr, Expr] = {}
    own: dict[Expr, tuple[Var, str]] = {}
    for node in in_order(root):
        if isinstance(node, Let) and isinstance(node.value, Function) and node.var in free_vars(node.value):
            own[node.value] = (node.var, fresh_name(wanted, used))
    for node in in_order(root):
        if isinstance(node, Binding) or node in done:
            continue
        made = over_done(node, done)
        if isinstance(node, Function) and isinstance(made, Function) and not node.is_primitive:
            made = _as_global(made, own.get(node), fresh, used, wanted)
        done[node] = made
    return done[root]


def _as_global(
    function: Function, own: tuple[Var, str] | None, fresh: dict[str, Function], used: set[str], wanted: str
) -> Expr:
    """The name of a function of the module that does what an inner one does; called with what that reads, where it
    reads anything."""
    name = own[1] if own else fresh_name(wanted, used)
    captured = [var for var in free_vars(function) if own is None or var is not own[0]]
    type_ = function.checked_type
    outer = type_
    if captured and type_ is not None and all(var.checked_type for var in captured):
        outer = FuncType(tuple(var.type for var in captured), type_)
    reference: Expr = Global(name, outer if not captured or outer is not type_ else None)
    if captured:
        reference = applied(reference, captured)
    body = substitute(function, {own[0]: reference}) if own else function
    fresh[name] = as_function(refreshed(Function(captured, body))) if captured else as_function(body)
    return reference


# --- eta expansion --------------------------------------------------------------------------------------------


def expanded(root: Function) -> Function:
    """Functions of parameters in place of names of functions that are values: ``@f`` becomes ``fn (%x) { @f(%x) }``."""
    called = {node.op for node in everything(root) if isinstance(node, Apply)}

    def visit(node: Expr) -> Expr | None:
        if not isinstance(node, Global) or node in called or not isinstance(node.checked_type, FuncType):
            return None
        params = [Var(f"eta_{i}", type_) for i, type_ in enumerate(node.checked_type.params)]
        return Function(params, applied(node, params))

    return as_function(replaced(root, visit))
