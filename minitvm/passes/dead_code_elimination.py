"""DeadCodeElimination: what can be dead in a dataflow graph.

Without ``let`` a node that nobody uses is not in the graph at all.  Dead are: functions that nothing reachable calls,
fields of a tuple that a function or a branch returns and nobody reads, parameters that this leaves unused, and
tuples that are built only to be taken apart.
"""

from __future__ import annotations

from collections.abc import Sequence

from minitvm.ir.decision import decide
from minitvm.ir.expr import Call, Expr, Function, Module, Tuple, TupleGetItem
from minitvm.ir.ops.control import If
from minitvm.ir.visitor import as_function, calls, held_functions, post_order, rewrite, simplify_projection, users
from minitvm.passes.manager import ModulePass, PassContext, map_functions


class DeadCodeElimination(ModulePass, opt_level=1):
    """Drop unread results of called functions and of If, their unused parameters, and functions never called.

    ``entries`` are the functions to keep whatever calls them.  Loops are left alone: a carried value that nobody
    reads may steer the loop.
    """

    needs: tuple[type, ...] = (Function, If, TupleGetItem)
    entries: tuple[str, ...] = ("main",)

    def __init__(self, entries: Sequence[str] = entries) -> None:
        if tuple(entries) != self.entries:
            self.entries, self.needs = tuple(entries), ()  # one that is not there is an error, whatever the module is

    def transform_module(self, module: Module, context: PassContext) -> Module:
        module = map_functions(module, drop_dead_fields)
        reached = _reached([module[entry] for entry in self.entries])
        kept = {name: function for name, function in module.functions.items() if function in reached}
        for name in module.functions.keys() - kept.keys():
            decide(self.info.name, name, "nobody calls it", module[name].span)
        return module if len(kept) == len(module.functions) else Module(kept)


def _reached(functions: Sequence[Function]) -> set[Function]:
    """Functions and all that they call or hold, at any depth."""
    found, pending = set(functions), list(functions)
    while pending:
        for call in calls(pending.pop().body):
            pending.extend(f for f in held_functions(call).values() if f not in found)
            found.update(held_functions(call).values())
    return found


def drop_dead_fields(function: Function) -> Function:
    """``function`` with the calls in it returning only what is read."""
    read_by = users(function)

    def visit(old: Expr, new: Expr) -> Expr:
        fields = _read_fields(read_by[old]) if isinstance(new, Call) else None
        if not isinstance(new, Call) or fields is None:
            return simplify_projection(new)
        narrow = _narrowed(new, fields)
        if narrow is None:
            return new
        decide("DeadCodeElimination", old, f"of its results only {', '.join(map(str, fields))} are read")
        return _spread_out(narrow, fields)

    return as_function(rewrite(function, visit))


def _spread_out(call: Call, fields: list[int]) -> Tuple:
    """The results where they were; the others, which nobody reads, are any."""
    places = [fields.index(i) if i in fields else 0 for i in range(max(fields) + 1)]
    return Tuple([TupleGetItem(call, place, span=call.span) for place in places], span=call.span)


def _read_fields(readers: list[Expr]) -> list[int] | None:
    """The fields of a result that its readers read; ``None`` where all may be."""
    fields = {r.index if isinstance(r, TupleGetItem) else None for r in readers}
    return None if None in fields else sorted(f for f in fields if f is not None)


def _narrowed(call: Call, fields: list[int]) -> Call | None:
    """The call with only some fields of its result; ``None`` where it returns no others, or cannot do less."""
    if isinstance(call.op, Function):
        function = _keep_fields(call.op, fields)
        return None if function is None else _without_unused_params(function, call)
    if isinstance(call.op, If):
        then, orelse = (_keep_fields(branch, fields) for branch in (call.op.then_branch, call.op.else_branch))
        if then is not None and orelse is not None:
            return Call(call.op.with_attributes(then_branch=then, else_branch=orelse), call.args, span=call.span)
    return None


def _keep_fields(function: Function, fields: list[int]) -> Function | None:
    body = function.body
    if not isinstance(body, Tuple) or len(fields) == len(body.fields):
        return None
    kept = Tuple([body.fields[i] for i in fields], span=body.span)
    return Function(function.params, kept, function.attrs, span=function.span)


def _without_unused_params(function: Function, call: Call) -> Call:
    used = set(post_order(function.body))
    kept = [(p, a) for p, a in zip(function.params, call.args, strict=True) if p in used]
    small = Function([p for p, _ in kept], function.body, function.attrs, span=function.span)
    return Call(small, [a for _, a in kept], span=call.span)
