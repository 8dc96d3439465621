"""Windows over a zero-padded image without padding it: taps that fall outside are left out of the sum.

Rows: the loop over the window's rows runs over those inside the image.  Columns: tiles whose windows lie inside
share one loop; a tile at an edge is written out on its own, with only the taps that exist.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from minitvm.codegen.templates.tile import split_evenly
from minitvm.ir.loop import Const, LoopExpr, Stmt, loop, maximum, minimum, seq


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
        return position * self.stride + tap * Const(self.dilation) - self.before

    def inside(self, position: int, tap: int) -> bool:
        return 0 <= position * self.stride + tap * self.dilation - self.before < self.extent

    def columns_inside(self, start: int, size: int, tap: int) -> range:
        """Those of ``size`` outputs from ``start`` on whose ``tap`` is inside the image: always neighbours."""
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
        end = minimum(
            (self.extent + self.before - position * self.stride + (self.dilation - 1)) // self.dilation, self.taps
        )
        return loop(end - first, lambda i: body(first + i), name="tap")

    def tiles(self, most: int) -> list[Tiles]:
        """All outputs in order, as runs of equal tiles inside the image and single tiles at its edges."""
        runs: list[Tiles] = []
        start = 0
        for count, size in split_evenly(self.outputs, most):
            for _ in range(count):
                interior = all(self.inside(start + t, x) for t in (0, size - 1) for x in (0, self.taps - 1))
                last = runs[-1] if runs else None
                if interior and last is not None and last.interior and last.size == size:
                    runs[-1] = Tiles(last.start, last.count + 1, size, True)
                else:
                    runs.append(Tiles(start, 1, size, interior))
                start += size
        return runs

    def over_tiles(
        self,
        most: int,
        interior: Callable[[LoopExpr, int], Stmt],
        edge: Callable[[int, int], Stmt],
    ) -> Stmt:
        """``interior(start, size)`` in loops, ``edge(start, size)`` at constant starts."""
        stmts = []
        for run in self.tiles(most):
            if run.interior:
                stmts.append(
                    loop(run.count, lambda i, r=run: interior(i * r.size + r.start, r.size), name="tile")  # type: ignore[misc]
                )
            else:
                stmts.append(edge(run.start, run.size))
        return seq(*stmts)


@dataclass(frozen=True)
class Tiles:
    """``count`` tiles of ``size`` outputs from ``start`` on."""

    start: int
    count: int
    size: int
    interior: bool
