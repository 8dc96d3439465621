"""Expressions and the modules made of them: what passes, importers and tests work with.

The nodes are defined in ``minitvm.ir.node``; here they learn to print themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

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
from minitvm.ir.visitor import free_vars

node.printer = print_expr


class Module:
    """Functions by name; ``main`` is the entry.  Immutable: ``with_function`` returns a new module."""

    __slots__ = ("functions",)
    functions: Mapping[str, Function]

    def __init__(self, functions: Mapping[str, Function] | Function) -> None:
        named = {"main": functions} if isinstance(functions, Function) else functions
        if not isinstance(named, Mapping) or not all(isinstance(f, Function) for f in named.values()):
            raise IRError(
                f"a module is made of functions, not of a {type(functions).__name__}",
                hint="Module(Function(params, body)), or Module.from_expr(body)",
            )
        named = dict(named)
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

    def with_function(self, name: str, function: Function) -> Module:
        """This module with one function replaced; itself where nothing changes."""
        if self.functions.get(name) is function:
            return self
        return Module({**self.functions, name: function})

    def astext(self, show_meta_data: bool = True) -> str:
        """The module as text.  ``show_meta_data=False`` elides large constants."""
        return print_module(self, show_meta_data=show_meta_data)

    def __str__(self) -> str:
        return self.astext(show_meta_data=False)
