"""Indices into buffers of sizes that only a run knows, without divisions that their addresses do not need."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from minitvm.codegen.loops import redirect
from minitvm.ir.loop import Binary, Buffer, Const, Kernel, LoopExpr, allocated, as_index


def without_quotients(kernel: Kernel) -> Kernel:
    """The kernel with positions behind the last element of an axis, which the axes before have none of."""
    body = kernel.body
    for buffer in (*kernel.params, *allocated(body)):
        if not all(isinstance(extent, int) for extent in buffer.shape):
            body = redirect(body, {buffer: buffer}, partial(_on_later_axes, buffer))
    return kernel if body is kernel.body else replace(kernel, body=body)


def _on_later_axes(buffer: Buffer, index: Sequence[LoopExpr]) -> tuple[LoopExpr, ...]:
    """``(0, x)`` for ``(x // n, x % n)`` where the second axis has ``n`` elements: one that is known is divided by
    where the address is put together."""
    found: list[LoopExpr] = []
    for position, extent in zip(index, buffer.shape, strict=True):
        match found[-1:], position:
            case [Binary("floordiv", x, n)], Binary("floormod", y, m) if n == m == as_index(extent) and x == y:
                found[-1:] = [Const(0), x]
            case _:
                found.append(position)
    return tuple(found)
