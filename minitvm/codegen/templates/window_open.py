"""Windows over an image of open size: a run says how many there are, and which of them lie inside."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from minitvm.codegen.templates.tile import over, quarters
from minitvm.codegen.templates.window import Axis, Start
from minitvm.ir.dims import Dim, usual
from minitvm.ir.loop import Const, LoopExpr, LoopVar, as_index, select
from minitvm.ir.loop.builder import LoopBuilder

_ENDS = LoopVar("ends")
"""Where a tile of the outputs at both ends begins."""


@dataclass(frozen=True)
class OpenAxis(Axis):
    """One whose outputs only a run counts.

    Where a window lies inside the image, those that stick out do so on one side: those in front are a tile, together
    with those behind where their number follows, as it does of a stride of 1.  Between them are tiles of those inside,
    as many as there are of each size.  What is left over is one by one, and so is all of a smaller image.
    """

    @property
    def is_open(self) -> bool:
        return True

    @cached_property
    def _front(self) -> int:
        """Outputs of which a tap is in front of the image."""
        return -(-self.before // self.stride)

    @cached_property
    def _end(self) -> Dim:
        """The first output of which a tap is behind the image; it says little where no window lies inside."""
        return (self.extent - 1 + self.before - (self.taps - 1) * self.dilation) // self.stride + 1

    @cached_property
    def _behind(self) -> int:
        """Outputs from :attr:`_end` on, where all are known to be there."""
        count = self.outputs - self._end
        return count if isinstance(count, int) and self.stride == 1 else 0

    @property
    def padded(self) -> bool:
        return self._front != 0 or self._end != self.outputs

    @property
    def counts(self) -> tuple[int, tuple[int, ...]]:
        inside = max(1, usual(self._end) - self._front)
        ends = self._front + self._behind
        others = max(0, usual(self.outputs) - inside - ends)
        return inside, (*filter(None, [ends]), *[1] * others)

    def columns_inside(self, start: Start, size: int, tap: int) -> range:
        at, last = tap * self.dilation, (self.taps - 1) * self.dilation
        begin, front, behind = start if isinstance(start, int) else 0, size, 0
        if self._is_behind(start):
            front, behind = (self._front if start is _ENDS else 0), min(self._behind, last - at)
        elif not isinstance(start, int):
            return range(size)
        first = next((t for t in range(front) if (begin + t) * self.stride + at >= self.before), front)
        return range(first, front + behind)

    def at(self, start: Start, t: LoopExpr) -> LoopExpr:
        if start is not _ENDS:
            return start + t
        return select(t < self._front, t, t + as_index(self._end - self._front))

    def _is_behind(self, start: Start) -> bool:
        return start is _ENDS or (self._behind > 0 and start == as_index(self._end))

    def sticks_out(self, start: Start, size: int) -> bool:
        return size == 1 and self.padded and not isinstance(start, int) and not self._is_behind(start)

    def over_tiles(self, code: LoopBuilder, most: int) -> Iterator[tuple[Start, int]]:
        if not self.padded:
            tiles = quarters(self.outputs, most)
            yield from over(code, tiles)
            return
        inside = as_index(self._end) - self._front
        fits, tiles = Const(0) < inside, quarters(self._end - self._front, most)
        tiles = [replace(run, begin=run.begin + self._front) for run in tiles]
        ones = tiles.pop()
        with code.when(fits):
            yield from over(code, tiles)
            if self._behind and self._front + self._behind <= most:
                yield _ENDS, self._front + self._behind
            else:
                for begin in range(0, self._front, most):
                    yield begin, min(most, self._front - begin)
                if self._behind:
                    yield as_index(self._end), self._behind
        left = as_index(self.outputs - self._behind - ones.begin)
        with code.loop(select(fits, left, as_index(self.outputs)), "alone") as i:
            yield i + select(fits, as_index(ones.begin), Const(0)), 1
