"""Indices into buffers of sizes that only a run knows, without divisions that their addresses do not need."""

from collections.abc import Sequence
from dataclasses import replace

from minitvm.ir.loop import Binary, Buffer, Const, Kernel, Load, LoopExpr, Stmt, Store, as_index, map_nodes


def without_quotients(kernel: Kernel) -> Kernel:
    """The kernel with positions behind the last element of an axis, which the axes before have none of."""
    body = map_nodes(kernel.body, _load, _store)
    return kernel if body is kernel.body else replace(kernel, body=body)


def _load(node: LoopExpr) -> LoopExpr:
    return Load(node.buffer, _on_later_axes(node.buffer, node.index)) if isinstance(node, Load) else node


def _store(node: Stmt) -> Stmt:
    if not isinstance(node, Store):
        return node
    index = _on_later_axes(node.buffer, node.index)
    return node if index == node.index else type(node)(node.buffer, index, node.value)


def _on_later_axes(buffer: Buffer, index: Sequence[LoopExpr]) -> tuple[LoopExpr, ...]:
    """``(0, x)`` for ``(x // n, x % n)`` where the second axis has ``n`` elements: one that is known is divided by
    where the address is put together."""
    if all(isinstance(extent, int) for extent in buffer.shape):
        return tuple(index)
    found: list[LoopExpr] = []
    for position, extent in zip(index, buffer.shape, strict=True):
        match found[-1:], position:
            case [Binary("floordiv", x, n)], Binary("floormod", y, m) if n == m == as_index(extent) and x == y:
                found[-1:] = [Const(0), x]
            case _:
                found.append(position)
    return tuple(found)
