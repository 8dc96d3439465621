"""Scopes as they must be: a variable is bound once, and used where its binding reaches."""

from __future__ import annotations

from minitvm.errors import IRError
from minitvm.ir.expr import Expr, Function, Module, Var
from minitvm.scopes.nodes import Binding, Let, below, bound_vars, in_order


def check_scopes(function: Function, name: str = "main") -> None:
    """:class:`IRError` for a variable that is bound twice, that is used outside of its scope, or that nothing binds."""
    bound: set[Var] = set()
    for var in bound_vars(function):
        if var in bound:
            raise IRError(f"@{name}: %{var.name} is bound twice", hint="each binding needs a variable of its own")
        bound.add(var)
    for var in open_vars(function):
        if var in bound:
            raise IRError(f"@{name}: %{var.name} is used outside of its scope", hint="what binds it ends before")
        raise IRError(
            f"@{name}: %{var.name} is not bound: neither a Let nor a parameter says what it is",
            hint="Module.from_expr collects free variables as parameters",
        )


def check_module(module: Module) -> None:
    """The same of all functions."""
    for name, function in module.functions.items():
        check_scopes(function, str(name))


def open_vars(root: Expr) -> list[Var]:
    """The variables whose bindings do not reach all of their uses, and those without any."""
    held: dict[Expr, frozenset[Var]] = {}
    none: frozenset[Var] = frozenset()
    for node in in_order(root):
        if isinstance(node, Binding):
            continue
        if isinstance(node, Var):
            held[node] = frozenset((node,))
        elif isinstance(node, Let):
            value = held[node.value]
            if isinstance(node.value, Function):
                value -= {node.var}
            held[node] = value | (held[node.body] - {node.var})
        elif isinstance(node, Function):
            held[node] = held[node.body].difference(node.params)
        else:
            parts = [held.get(child, none) for child in below(node)]
            held[node] = none.union(*parts) if any(parts) else none
    return sorted(held[root], key=lambda var: var.name)
