"""Windows over a zero-padded image without padding it: taps that fall outside are left out of the sum.

Rows: the loop over the window's rows runs over those inside the image.  Columns: tiles whose windows lie inside
share one loop; a tile at an edge is written out on its own, with only the taps that exist.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minitvm.codegen.loops import unflatten
from minitvm.codegen.templates.tile import Run, runs
from minitvm.ir.loop import (
    Alloc,
    Barrier,
    Buffer,
    Const,
    Load,
    LoopExpr,
    LoopKind,
    Stmt,
    Store,
    all_of,
    const,
    loop,
    maximum,
    minimum,
    nest,
    select,
    seq,
)

Start = LoopExpr | int
"""Where a tile begins: a number at an edge."""


@dataclass(frozen=True)
class Axis:
    """One spatial axis of a window: ``position * stride + tap * dilation - before`` is the input's coordinate."""

    extent: int  # of the input
    outputs: int
    taps: int
    stride: int
    dilation: int
    before: int

    def coordinate(self, position: LoopExpr, tap: LoopExpr | int) -> LoopExpr:
        """The element of the input that a tap reads; it may be outside, in the padding."""
        return position * self.stride + tap * Const(self.dilation) - self.before

    def inside(self, position: int, tap: int) -> bool:
        return 0 <= position * self.stride + tap * self.dilation - self.before < self.extent

    def columns_inside(self, start: Start, size: int, tap: int) -> range:
        """Those of ``size`` outputs from ``start`` on whose ``tap`` is inside the image: always neighbours."""
        if not isinstance(start, int):
            return range(size)
        found = [t for t in range(size) if self.inside(start + t, tap)]
        return range(found[0], found[-1] + 1) if found else range(0)

    @property
    def padded(self) -> bool:
        return not (self.inside(0, 0) and self.inside(self.outputs - 1, self.taps - 1))

    def valid_taps(self, position: LoopExpr, body: Callable[[LoopExpr], Stmt]) -> Stmt:
        """``body(tap)`` for the taps whose coordinate is inside."""
        if not self.padded:
            return loop(self.taps, body, name="tap")
        first = maximum((self.before - position * self.stride + (self.dilation - 1)) // self.dilation, 0)
        end = (self.extent + self.before - position * self.stride + (self.dilation - 1)) // self.dilation
        end = minimum(end, self.taps)
        return loop(end - first, lambda i: body(first + i), name="tap")

    def tiles(self, most: int) -> list[Run | Edge]:
        """All outputs in order, as runs of equal tiles inside the image and single tiles at its edges."""
        found: list[Run | Edge] = []
        for run in runs(self.outputs, most):
            for begin in range(run.begin, run.end, run.size):
                last = found[-1] if found else None
                if not all(self.inside(begin + t, x) for t in (0, run.size - 1) for x in (0, self.taps - 1)):
                    found.append(Edge(begin, run.size))
                elif isinstance(last, Run) and last.size == run.size:
                    found[-1] = Run(last.begin, last.count + 1, run.size)
                else:
                    found.append(Run(begin, 1, run.size))
        return found

    def over_tiles(self, most: int, body: Callable[[Start, int], Stmt]) -> Stmt:
        """``body(start, size)`` for all tiles, one after the other."""
        return seq(*(tile.over(body) for tile in self.tiles(most)))


@dataclass(frozen=True)
class Edge:
    """One tile of ``size`` outputs from ``begin`` on, some taps of which are outside."""

    begin: int
    size: int
    count: int = 1

    def start(self, _: LoopExpr) -> int:
        return self.begin

    def over(self, body: Callable[[Start, int], Stmt]) -> Stmt:
        return body(self.begin, self.size)


def padded(data: Buffer, pads: Sequence[int]) -> tuple[Buffer, Stmt]:
    """An image (axes 2 and 3) with zeros around it (top, left, bottom, right), and the loops that fill it."""
    top, left, bottom, right = pads
    *outer, height, width = data.shape[:4]
    inner = data.shape[4:]
    buffer = Buffer(f"{data.name}_padded", (*outer, height + top + bottom, width + left + right, *inner), data.dtype)

    def element(*index: LoopExpr) -> Stmt:
        n, c, y, x, *lane = index
        row, column = y - top, x - left
        inside = all_of([row >= 0, row < height, column >= 0, column < width])
        return Store(buffer, index, select(inside, Load(data, (n, c, row, column, *lane)), const(0, data.dtype)))

    def row(flat: LoopExpr) -> Stmt:
        at = unflatten(flat, buffer.shape[:3])

        def pixel(x: LoopExpr) -> Stmt:
            return nest(inner, lambda *lane: element(*at, x, *lane), LoopKind.VECTORIZED)

        return loop(buffer.shape[3], pixel, name="w")

    return buffer, loop(math.prod(buffer.shape[:3]), row, LoopKind.PARALLEL, name="row")


def after(buffer: Buffer, fill: Stmt, body: Stmt) -> Stmt:
    """``fill``, a barrier, ``body``; the buffer that is filled lives around them."""
    return Alloc(buffer, seq(fill, Barrier(), body))
