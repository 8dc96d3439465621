"""Loops over other memory: the accesses to some buffers go to others, at the same index or another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from minitvm.ir.loop import Buffer, Load, LoopExpr, Stmt, Store, map_expr, map_stmt

At: TypeAlias = Callable[[tuple[LoopExpr, ...]], tuple[LoopExpr, ...]]
"""Where in the new buffer the element lies that the old one has at an index."""


def _unmoved(index: tuple[LoopExpr, ...]) -> tuple[LoopExpr, ...]:
    return index


def redirect(stmt: Stmt, targets: Mapping[Buffer, Buffer], at: At = _unmoved) -> Stmt:
    """Loads from and stores to each buffer in ``targets`` go to the one that it stands for, at ``at(index)``."""

    def redirected(node: Stmt) -> Stmt:
        if isinstance(node, Store) and node.buffer in targets:
            return Store(targets[node.buffer], at(node.index), node.value)
        return node

    return map_stmt(stmt, on_expr=lambda e: redirect_loads(e, targets, at), on_stmt=redirected)


def redirect_loads(expr: LoopExpr, targets: Mapping[Buffer, Buffer], at: At = _unmoved) -> LoopExpr:
    """:func:`redirect` for one expression."""

    def redirected(node: LoopExpr) -> LoopExpr:
        if isinstance(node, Load) and node.buffer in targets:
            return Load(targets[node.buffer], at(node.index))
        return node

    return map_expr(expr, redirected)
