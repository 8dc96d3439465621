"""Buffers of rank one: every index becomes one element offset, with division and remainder joined again.

The last step before a back end: bounds are no longer visible, addresses are as short as they get.
"""

from __future__ import annotations

import math

from minitvm.codegen.affine import address
from minitvm.ir.loop import Alloc, Buffer, Kernel, Load, LoopExpr, Stmt, Store, map_expr, map_stmt


def linearize(kernel: Kernel) -> Kernel:
    """The same kernel over rank-1 buffers without strides."""
    flat: dict[Buffer, Buffer] = {}

    def flatten(buffer: Buffer) -> Buffer:
        if buffer not in flat:
            flat[buffer] = Buffer(buffer.name, (storage_size(buffer),), buffer.dtype, buffer.scope)
        return flat[buffer]

    def visit(node: LoopExpr) -> LoopExpr:
        if isinstance(node, Load):
            return Load(flatten(node.buffer), (address(node.buffer, node.index).to_expr(),))
        return node

    def on_stmt(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Store):
            return Store(flatten(stmt.buffer), (address(stmt.buffer, stmt.index).to_expr(),), stmt.value)
        if isinstance(stmt, Alloc):
            return Alloc(flatten(stmt.buffer), stmt.body)
        return stmt

    body = map_stmt(kernel.body, on_expr=lambda e: map_expr(e, visit), on_stmt=on_stmt)
    return Kernel(kernel.name, tuple(flatten(p) for p in kernel.params), body, kernel.results, kernel.spans)


def storage_size(buffer: Buffer) -> int:
    """Elements of memory that a buffer spans."""
    if buffer.strides is None:
        return math.prod(buffer.shape)
    if 0 in buffer.shape:
        return 0
    return buffer.offset + 1 + sum((e - 1) * s for e, s in zip(buffer.shape, buffer.strides, strict=True))
