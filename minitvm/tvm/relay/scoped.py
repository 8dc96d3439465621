"""What our nodes and modules have of Relay's where there are scopes: text, the parts of a choice, and
how many fields tuples have."""

from __future__ import annotations

import importlib
from typing import Any

from minitvm.ir import expr as nodes
from minitvm.ir import node
from minitvm.ir.expr import Expr
from minitvm.scopes.nodes import is_graph, is_plain_module
from minitvm.scopes.normal import is_choice, opened


def text_of(module: nodes.Module, show_meta_data: bool = True) -> str:
    """A module's text; Relay's where it has scopes."""
    return _module_text(module, show_meta_data) if is_plain_module(module) else _relay_text(module, show_meta_data)


_module_text = nodes.Module.astext
_expr_text = node.printer


def _relay_text(of: Any, show_meta_data: bool) -> str:
    found: str = importlib.import_module("minitvm.tvm.relay.text").astext(of, show_meta_data)
    return found


def _text_of_expr(expr: nodes.Expr, show_meta_data: bool) -> str:
    if not isinstance(expr, nodes.Expr):
        return str(expr)
    return _expr_text(expr, show_meta_data) if is_graph(expr) else _relay_text(expr, show_meta_data)


node.printer = _text_of_expr


def _part_of_choice(index: int) -> property:
    """The condition or a branch of what chooses; ``AttributeError`` of any other call."""

    def part(call: nodes.Call) -> nodes.Expr:
        if not is_choice(call):
            raise AttributeError("only a choice has a condition and branches")
        choice: Any = opened(call)
        found: nodes.Expr = choice.parts[index]
        return found

    return property(part)


_FORMS: dict[type, dict[str, Any]] = {
    nodes.Module: {"astext": text_of},
    nodes.Tuple: {"__len__": lambda node: len(node.fields), "__bool__": lambda _: True},
    nodes.Call: {name: _part_of_choice(i) for i, name in enumerate(("cond", "true_branch", "false_branch"))},
}
"""By class, what is put on it."""

for _class, _names in _FORMS.items():
    for _attribute, _form in _names.items():
        setattr(_class, _attribute, _form)
