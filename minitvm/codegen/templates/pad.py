"""Zero padding as the first stage of a kernel, so that windows need no bounds checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from minitvm.codegen.spread import unflatten
from minitvm.ir.loop import (
    Alloc,
    Barrier,
    Buffer,
    LoopExpr,
    LoopKind,
    Stmt,
    Store,
    all_of,
    const,
    loop,
    nest,
    select,
    seq,
)

Pads = tuple[int, int, int, int]  # top, left, bottom, right


def padded(data: Buffer, pads: Sequence[int], rows_axis: int = 2) -> tuple[Buffer, Stmt | None]:
    """``data`` with zeros around its rows and columns (axes ``rows_axis`` and the next), and the loops that fill it.

    ``data`` itself, and ``None``, where nothing is padded.
    """
    top, left, bottom, right = pads
    if not any(pads):
        return data, None
    shape = list(data.shape)
    height, width = shape[rows_axis], shape[rows_axis + 1]
    shape[rows_axis] += top + bottom
    shape[rows_axis + 1] += left + right
    buffer = Buffer(f"{data.name}_padded", tuple(shape), data.dtype)

    def element(*index: LoopExpr) -> Stmt:
        row, column = index[rows_axis] - top, index[rows_axis + 1] - left
        inside = all_of([row >= 0, row < height, column >= 0, column < width])
        source = (*index[:rows_axis], row, column, *index[rows_axis + 2 :])
        return Store(buffer, index, select(inside, data[source], const(0, data.dtype)))

    return buffer, _rows(shape, element, rows_axis)


def _rows(shape: Sequence[int], element: Callable[..., Stmt], rows_axis: int) -> Stmt:
    """Planes and rows in parallel, a blocked channel in lanes."""
    planes = math.prod(shape[: rows_axis + 1])
    blocked = len(shape) > rows_axis + 2

    def row(flat: LoopExpr) -> Stmt:
        prefix = unflatten(flat, shape[: rows_axis + 1])
        if not blocked:
            return loop(shape[-1], lambda w: element(*prefix, w), name="w")
        lanes = shape[-1]
        return loop(
            shape[-2],
            lambda w: loop(lanes, lambda c: element(*prefix, w, c), LoopKind.VECTORIZED, name="lane"),
            name="w",
        )

    return loop(planes, row, LoopKind.PARALLEL, name="row")


def after_padding(buffer: Buffer, fill: Stmt | None, body: Stmt) -> Stmt:
    """``fill``, a barrier, ``body``; the padded buffer lives around them."""
    return body if fill is None else Alloc(buffer, seq(fill, Barrier(), body))


__all__ = ["after_padding", "nest", "padded"]
