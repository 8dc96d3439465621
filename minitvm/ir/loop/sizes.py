"""Symbolic kernels: one whose dimensions have symbols means, for any numbers that these stand for, the kernel with the
numbers in their place.  That kernel is what is checked and interpreted."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from minitvm.ir.dims import number
from minitvm.ir.loop.expr import Buffer, Const, Load, LoopExpr, Size
from minitvm.ir.loop.stmt import Alloc, Kernel, Stmt, Store, map_nodes


def bound(kernel: Kernel, values: Mapping[str, int]) -> Kernel:
    """The kernel for numbers."""
    if not kernel.sizes:
        return kernel

    @cache
    def buffer(symbolic: Buffer) -> Buffer:
        return replace(symbolic, shape=tuple(number(d, values) for d in symbolic.shape))

    def node(old: LoopExpr) -> LoopExpr:
        if isinstance(old, Size):
            return Const(values[old.name])
        return Load(buffer(old.buffer), old.index) if isinstance(old, Load) else old

    def stmt(old: Stmt) -> Stmt:
        return replace(old, buffer=buffer(old.buffer)) if isinstance(old, (Store, Alloc)) else old

    body = map_nodes(kernel.body, node, stmt)
    return Kernel(kernel.name, tuple(map(buffer, kernel.params)), body, kernel.results, kernel.spans)
