"""Structural equality where there are scopes: what a ``Let`` binds is bound, a function's name is its text.

:func:`install` teaches it to ``minitvm.ir.structural``, once there is a node with scopes.
"""

from __future__ import annotations

from collections.abc import Iterator

from minitvm.ir import structural
from minitvm.ir.expr import Expr
from minitvm.ir.structural import _Fact, _Path, _Text, _Walk
from minitvm.scopes.nodes import Global, Let


class ScopedWalk(_Walk):
    """The facts of a graph with scopes."""

    def node(self, node: Expr, path: _Path) -> Iterator[_Fact]:
        if isinstance(node, Let):
            number = self.others.setdefault(node.var, len(self.others))
            self.numbers[node.var] = -1 - number
        if isinstance(node, Global):
            yield _Fact(path, f"@{node.name_hint}", _Text(f"@{node.name_hint}"))
            return
        yield from super().node(node, path)


def install() -> None:
    """Makes it the walk of all comparisons."""
    setattr(structural, "_Walk", ScopedWalk)  # noqa: B010  (a class, to type checkers)
