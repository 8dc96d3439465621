"""Structural equality and hash of nodes with scopes: ``Let`` binds a variable, a function's name is its text."""

from __future__ import annotations

from collections.abc import Iterator

from minitvm.ir.expr import Expr
from minitvm.ir.structural import FACTS, _Fact, _Path, _Text, _Walk
from minitvm.scopes.nodes import Global, Let


def _let(walk: _Walk, node: Expr, path: _Path) -> Iterator[_Fact]:
    assert isinstance(node, Let)
    number = walk.others.setdefault(node.var, len(walk.others))
    walk.numbers[node.var] = -1 - number
    return walk.node(node, path)


def _name(walk: _Walk, node: Expr, path: _Path) -> Iterator[_Fact]:
    assert isinstance(node, Global)
    yield _Fact(path, f"@{node.name_hint}", _Text(f"@{node.name_hint}"))


def install() -> None:
    """Has comparisons ask here."""
    FACTS.update({Let: _let, Global: _name})
