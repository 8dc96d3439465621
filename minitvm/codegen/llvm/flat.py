"""Indices that only split a flat position (``x // 9, x % 9`` of rows of 9) as that position.

Lanes that run over it are neighbours in memory, though neither index is a linear function of the lane; and nothing
has to be divided.
"""

from __future__ import annotations

from dataclasses import replace

from minitvm.ir.loop import Buffer, Kernel, Load, LoopExpr, Stmt, Store, map_expr, map_stmt
from minitvm.ir.loop.affine import offset, storage_size

Views = dict[Buffer, Buffer]
"""The flat view of a parameter, where somebody uses it."""


def flat_views(kernel: Kernel) -> tuple[Kernel, Views]:
    """The kernel with flat indices wherever they save a division, and the views that these are of."""
    views: Views = {}

    def view(buffer: Buffer) -> Buffer:
        if buffer not in views:
            views[buffer] = Buffer(buffer.name, (storage_size(buffer),), buffer.dtype, buffer.scope)
        return views[buffer]

    def on_expr(expr: LoopExpr) -> LoopExpr:
        return map_expr(expr, on_load)

    def on_load(node: LoopExpr) -> LoopExpr:
        if isinstance(node, Load) and (flat := _joined(kernel, node.buffer, node.index)) is not None:
            return Load(view(node.buffer), (flat,))
        return node

    def on_stmt(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Store) and (flat := _joined(kernel, stmt.buffer, stmt.index)) is not None:
            return Store(view(stmt.buffer), (flat,), stmt.value)
        return stmt

    body = map_stmt(kernel.body, on_stmt=on_stmt, on_expr=on_expr)
    return (replace(kernel, body=body), views) if views else (kernel, views)


def _joined(kernel: Kernel, buffer: Buffer, index: tuple[LoopExpr, ...]) -> LoopExpr | None:
    """The element's number, where quotients and remainders in ``index`` make up divided positions again."""
    if buffer not in kernel.params:
        return None
    spelled = offset(buffer, index)
    found = spelled.joined()
    return None if found is spelled else found.to_expr()
