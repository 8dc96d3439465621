"""Relay's passes over scopes.  Calls of the module's functions are by name inside of a pass, and of the functions
themselves behind it, but for those that call themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from minitvm.errors import PassError, did_you_mean
from minitvm.ir.expr import Expr, Function, Module
from minitvm.ir.types import Type
from minitvm.ir.visitor import as_function, rebuild
from minitvm.passes.canonicalize import InferType as PlainTypes
from minitvm.passes.manager import ModulePass, PassContext
from minitvm.passes.redundancy import DeadCodeElimination as PlainCode
from minitvm.scopes import normal, prune
from minitvm.scopes.groups import as_groups
from minitvm.scopes.infer import infer, infer_module
from minitvm.scopes.names import call_graph, linked, named, reached
from minitvm.scopes.nodes import is_plain_module


class OverScopes(ModulePass):
    """A pass over a module whose functions are called by name: override ``change``."""

    def change(self, module: Module) -> Module:
        raise NotImplementedError(self.info.name)

    def transform_module(self, module: Module, context: PassContext) -> Module:
        given = named(module)
        made = self.change(given)
        return module if made is given else linked(made)


def each(module: Module, change: Callable[[Function], Expr]) -> Module:
    """The module with every function but fused groups and those of other compilers changed."""
    made = {n: f if f.is_primitive else as_function(change(f)) for n, f in module.functions.items()}
    return module if all(made[name] is function for name, function in module.functions.items()) else Module(made)


class ToGraphNormalForm(OverScopes):
    """Values in place of the variables that ``let`` binds to them: a graph of shared nodes."""

    def change(self, module: Module) -> Module:
        return each(module, normal.graph_form)


class ToANormalForm(OverScopes):
    """``let`` for every call, tuple, choice, inner function and constant."""

    def change(self, module: Module) -> Module:
        return each(module, normal.a_normal_form)


class ToBasicBlockNormalForm(OverScopes):
    """``let`` for what several scopes use, in the innermost scope around them."""

    def change(self, module: Module) -> Module:
        return each(module, normal.basic_blocks)


class Inline(OverScopes):
    """The bodies of functions with the attribute ``Inline`` in place of their calls."""

    def change(self, module: Module) -> Module:
        return prune.inlined(module)


class LambdaLift(OverScopes):
    """Inner functions become functions of the module."""

    def change(self, module: Module) -> Module:
        return prune.lifted(module)


class EtaExpand(OverScopes):
    """``fn (%x) { @f(%x) }`` for names of functions that are values."""

    def __init__(self, expand_constructor: bool = False, expand_global_var: bool = True) -> None:
        self.expands = expand_global_var

    def change(self, module: Module) -> Module:
        return each(module, lambda f: prune.expanded(f)) if self.expands else module


class TypesOfScopes(OverScopes):
    """InferType of what has scopes; of what has none minitvm's own."""

    def __init__(self) -> None:
        self.info = replace(PlainTypes.info)

    def change(self, module: Module) -> Module:
        return as_groups(infer_module(module))

    def transform_module(self, module: Module, context: PassContext) -> Module:
        if is_plain_module(module):
            return as_groups(PlainTypes().transform(module, context))
        return super().transform_module(module, context)


class CodeOfScopes(OverScopes):
    """DeadCodeElimination: a ``let`` that nothing uses is gone; with ``inline_once`` what is used once stands where it
    is used.  What has no scopes is minitvm's own pass's."""

    def __init__(self, inline_once: bool = False, ignore_impurity: bool = False) -> None:
        self.inline_once = inline_once
        self.info = replace(PlainCode.info)

    def change(self, module: Module) -> Module:
        return each(module, lambda f: rebuild(f, (*f.params, prune.live(f.body, self.inline_once))))

    def transform_module(self, module: Module, context: PassContext) -> Module:
        if is_plain_module(module):
            return PlainCode().transform(module, context)
        return super().transform_module(module, context)


class RemoveUnused(ModulePass):
    """RemoveUnusedFunctions: leaves what ``entry_functions`` call or name, directly or not."""

    def __init__(self, entry_functions: Sequence[str] = ("main",)) -> None:
        self.entries = list(map(str, entry_functions))
        self.info = replace(self.info, name="RemoveUnusedFunctions")

    def transform_module(self, module: Module, context: PassContext) -> Module:
        for name in self.entries:
            if name not in module:
                raise PassError(f"the module has no function {name!r}", hint=did_you_mean(name, module.functions, str))
        used = reached(call_graph(module), self.entries)
        kept = {name: function for name, function in module.functions.items() if name in used}
        return module if len(kept) == len(module.functions) else Module(kept)


def ToANormalFormExpr(expr: Expr) -> Expr:
    """An expression with names for all that it computes."""
    return infer(normal.a_normal_form(expr))


def InferTypeLocal(expr: Expr) -> Type | None:
    """The type of an expression by itself; ``None`` while variables in it have none."""
    return infer(expr).checked_type


InferType, DeadCodeElimination, RemoveUnusedFunctions = TypesOfScopes, CodeOfScopes, RemoveUnused
"""By Relay's names."""
