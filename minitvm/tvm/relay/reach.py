"""Who uses whom in an expression, and which node all ways from another lead through: made when first asked for."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from minitvm.ir.expr import Call, Expr, Function
from minitvm.ir.visitor import children
from minitvm.scopes.nodes import Apply, below, everything


class Reach:
    """The users of the nodes below ``root``, and their post-dominators."""

    def __init__(self, root: Any) -> None:
        self.root = root

    @cached_property
    def order(self) -> list[Expr]:
        """All nodes, operands before users, those of called functions, too."""
        return everything(self.root) if isinstance(self.root, Expr) else []

    @cached_property
    def users(self) -> dict[Expr, list[Expr]]:
        """Says, by node, which nodes are made of it."""
        found: dict[Expr, list[Expr]] = {node: [] for node in self.order}
        for node in self.order:
            for part in dict.fromkeys(below(node)):
                found[part].append(node)
        return found

    @cached_property
    def _after(self) -> dict[Expr, Expr | None]:
        """By node, the nearest one that all ways from it to the root lead through."""
        after: dict[Expr, Expr | None] = {self.root: None}
        depth = {self.root: 1}
        for node in self.order[-2::-1]:
            first, *others = self.users[node]
            met: Expr | None = first
            for other in others:
                met = self._meet(met, other, after, depth)
            after[node], depth[node] = met, 1 + (0 if met is None else depth[met])
        return after

    @staticmethod
    def _meet(a: Expr | None, b: Expr | None, after: dict[Expr, Expr | None], depth: dict[Expr, int]) -> Expr | None:
        while a is not b and a is not None and b is not None:
            deeper, other = (a, b) if depth[a] >= depth[b] else (b, a)
            a, b = after[deeper], other
        return a if a is b else None

    def dominates(self, node: Any, other: Any) -> bool:
        """True if all ways from ``other`` to the root lead through ``node``, which is another."""
        way = self._after.get(other)
        while way is not None and way is not node:
            way = self._after[way]
        return way is node

    @staticmethod
    def operands(node: Any) -> tuple[Expr, ...]:
        """What a node is made of, without what it calls."""
        if isinstance(node, (Call, Apply, Function)):
            return tuple(node.args) if not isinstance(node, Function) else children(node)
        return children(node) if isinstance(node, Expr) else ()
