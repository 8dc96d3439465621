"""Expressions and the modules made of them: what passes, importers and tests work with.

The nodes are defined in ``minitvm.ir.node``; here they learn to print themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from minitvm.doors import door, left_out
from minitvm.errors import IRError
from minitvm.ir import node
from minitvm.ir.node import (
    Call,
    Constant,
    Expr,
    Function,
    Tuple,
    TupleGetItem,
    Var,
    current_span,
    describe_call,
    infer_call,
    merge_spans,
    span_scope,
)
from minitvm.ir.text import print_expr, print_module
from minitvm.ir.visitor import calls, free_vars
from minitvm.shown import Shown

__all__ = ["Call", "Constant", "Expr", "Function", "GlobalVar", "Module", "Tuple", "TupleGetItem", "Var"]
__all__ += ["calls", "current_span", "describe_call", "free_vars", "infer_call", "merge_spans", "span_scope"]

node.printer = print_expr


@door
def packed(roots: Iterable[Expr]) -> Any:
    """Nodes as flat lists, for ``pickle``."""
    raise left_out("pickling a graph")


@door
def unpacked(rows: Any) -> list[Expr]:
    """The nodes of such lists."""
    raise left_out("pickling a graph")


node.pickled = lambda expr: (_one, (packed([expr]),))


def _one(rows: Any) -> Expr:
    return unpacked(rows)[0]


class GlobalVar(str):
    """A function's name in a module, which is how it is known there."""

    __slots__ = ()


@door
def overwrite(module: Module, name: str, function: Any) -> None:
    """``module[name] = function``."""
    raise IRError("a module does not change", hint=f"module = module.with_function({name!r}, function) is another one")


class Module(Shown):
    """Functions by name; ``main`` is the entry.  ``with_function`` returns a new module; this one stays as it is, but
    for ``module[name] = function``, which is for scripts of TVM's."""

    __slots__ = ("functions",)
    functions: Mapping[str, Function]

    def __init__(self, functions: Mapping[str, Function] | Function = MappingProxyType({})) -> None:
        named = {"main": functions} if isinstance(functions, Function) else functions
        if not isinstance(named, Mapping) or not all(isinstance(f, Function) for f in named.values()):
            raise IRError(
                f"a module is made of functions, not of a {type(functions).__name__}",
                hint="Module(Function(params, body)), or Module.from_expr(body)",
            )
        named = {GlobalVar(name): function for name, function in named.items()}
        object.__setattr__(self, "functions", MappingProxyType(named))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("Module is immutable; use with_function")

    @classmethod
    def from_expr(cls, body: Expr) -> Module:
        """A module whose ``main`` is ``body`` over its free variables."""
        return cls(body if isinstance(body, Function) else Function(free_vars(body), body))

    def __getitem__(self, name: str) -> Function:
        if name not in self.functions:
            raise IRError(f"the module has no function {name!r}", hint=f"it has: {', '.join(self.functions)}")
        return self.functions[name]

    @property
    def main(self) -> Function:
        return self["main"]

    def __contains__(self, name: object) -> bool:
        return name in self.functions

    def __setitem__(self, name: str, function: Function) -> None:
        overwrite(self, name, function)

    def with_function(self, name: str, function: Function) -> Module:
        """This module with one function replaced; itself where nothing changes."""
        if self.functions.get(name) is function:
            return self
        return Module({**self.functions, name: function})

    def astext(self, show_meta_data: bool = True) -> str:
        """The module as text.  ``show_meta_data=False`` elides large constants."""
        return print_module(self, show_meta_data=show_meta_data)

    def show(self) -> None:
        """Prints it, large constants left out."""
        print(self.astext(show_meta_data=False))

    def __repr__(self) -> str:
        functions = ", ".join(f"@{name}" for name in self.functions)
        return f"<Module of {functions}: {sum(len(calls(f.body)) for f in self.functions.values())} calls>"

    def __str__(self) -> str:
        return self.astext(show_meta_data=False)

    def __copy__(self) -> Module:
        return Module(self.functions)

    def __deepcopy__(self, _: object) -> Module:
        return Module(self.functions)

    def __reduce__(self) -> tuple[Any, ...]:
        return _module, (list(map(str, self.functions)), packed(self.functions.values()))


def _module(names: list[str], rows: Any) -> Module:
    functions: Any = unpacked(rows)
    return Module(dict(zip(names, functions, strict=True)))


unscoped: list[Callable[[Module], Module]] = []
"""What makes graphs of nodes with scopes; the room that has such nodes sets it."""


def as_graph(target: Function | Module) -> Module:
    """The module as passes know it; a function as its ``main``."""
    module = target if isinstance(target, Module) else Module(target)
    return unscoped[0](module) if unscoped else module
