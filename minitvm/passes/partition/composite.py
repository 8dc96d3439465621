"""Pattern tables: what a compiler computes as one, found and put into functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from minitvm.errors import PassError, did_you_mean, user_code, warn
from minitvm.ir.decision import Declined, decide
from minitvm.ir.expr import Expr, Function, Module
from minitvm.ir.visitor import as_function
from minitvm.passes.manager import ModulePass, PassContext, map_functions


class Pattern(Protocol):
    """A pattern of ``relay.dataflow_pattern``, as far as tables need it."""

    def partition(self, expr: Expr, attrs: Mapping[str, Any], check: Callable[[Expr], bool]) -> Expr: ...


Entry: TypeAlias = "tuple[str, Pattern] | tuple[str, Pattern, Callable[[Expr], bool]]"
"""A name, ``mylib.conv2d_relu``; a pattern; whether something that matches will do, by its outermost call."""
Table: TypeAlias = Sequence[Entry]

_tables: dict[str, Callable[[], Table]] = {}


def register_pattern_table(compiler: str, table: Callable[[], Table] | None = None) -> Any:
    """Registers a function that gives a compiler's patterns; a decorator without one."""
    if table is None:
        return lambda given: register_pattern_table(compiler, given)
    _tables[compiler] = table
    return table


def get_pattern_table(compiler: str) -> Table:
    """A compiler's patterns; :class:`PassError` where none are registered."""
    if compiler not in _tables:
        hint = did_you_mean(compiler, _tables) or f'@register_pattern_table("{compiler}")'
        raise PassError(f"no pattern table is registered for {compiler!r}", hint=hint)
    return _tables[compiler]()


class MergeComposite(ModulePass):
    """What a table's patterns match becomes calls of functions with the attribute ``Composite``, the entry's name.

    Entries are tried in order, over the whole graph each, and do not look into what earlier ones took.  A table that
    matches nothing is a warning.
    """

    def __init__(self, pattern_table: Table) -> None:
        self.entries = [_entry(entry) for entry in pattern_table]

    def transform_module(self, module: Module, context: PassContext) -> Module:
        found = map_functions(module, self._merged)
        names = ", ".join(name for name, _, _ in self.entries) or "none"
        if found is module:
            warn(f"MergeComposite: no pattern of the table matches anything; its patterns: {names}")
        return found

    def _merged(self, function: Function) -> Function:
        if function.attrs.get("Composite") or function.attrs.get("Compiler"):
            return function
        for name, pattern, check in self.entries:
            with user_code(check, f"check of pattern {name}"):
                new = as_function(pattern.partition(function, {"Composite": name}, check))
            took = "is merged" if new is not function else Declined("it matches nothing")
            decide("MergeComposite", f"pattern {name}", took, function.span)
            function = new
        return function


def _entry(given: Any) -> tuple[str, Pattern, Callable[[Expr], bool]]:
    if not isinstance(given, (tuple, list)) or len(given) not in (2, 3) or not isinstance(given[0], str):
        raise PassError(f"an entry of a pattern table is {given!r}", hint="(name, pattern) or (name, pattern, check)")
    if not hasattr(given[1], "partition"):
        raise PassError(f"pattern {given[0]} is a {type(given[1]).__name__}", hint="is_op(...)(...) makes one")
    return given[0], given[1], given[2] if len(given) == 3 else lambda _: True
