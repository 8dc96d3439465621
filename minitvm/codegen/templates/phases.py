"""Images as planes that every window reads at a fixed distance: what strides and padding become in memory.

With stride ``s`` neighbouring windows read elements ``s`` apart.  A copy of the padded image that keeps each residue
of the coordinate in a plane of its own (``plane[p][q] = padded[q * s + p]``) turns a tap into a plane and an offset
in it, the same for all windows: ``q = position + offset``.  Lanes along the positions then load neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from minitvm.codegen.templates.tile import ITEMS_PER_THREAD, shared, vectors
from minitvm.codegen.templates.window import Axis
from minitvm.ir.loop import Buffer, Const, If, LoopExpr, Stmt, Store, all_of, const, loop, select, seq
from minitvm.target import MachineModel


@dataclass(frozen=True)
class PhasedAxis(Axis):
    """One spatial axis of a window, and the planes that its taps fall into."""

    shift: int = 0
    """Windows begin ``before - shift`` elements before the input."""
    least: int = 0
    """Elements of a plane, where several axes share it."""

    def trimmed(self) -> tuple[PhasedAxis, int]:
        """Without the taps in front and behind that read padding in every window (at least one is kept), and the
        first that is left."""
        read = [t for t in range(self.taps) if self._reads(t)] or [0]
        first, taps = read[0], read[-1] - read[0] + 1
        return replace(self, taps=taps, before=self.before - first * self.dilation), first

    def _reads(self, tap: int) -> bool:
        """True where the tap is inside the input in some window."""
        at = tap * self.dilation - self.before
        window = max(0, -(at // self.stride))  # the first in which it is not in front
        return window < self.outputs and window * self.stride + at < self.extent

    @property
    def _step(self) -> int:
        """What lies between the first elements of two planes."""
        return self.dilation if self._apart else math.gcd(self.dilation, self.stride)

    @property
    def _apart(self) -> bool:
        """True where every tap has a plane of its own."""
        return self.taps <= self.stride // math.gcd(self.dilation, self.stride)

    @property
    def planes(self) -> int:
        return max(1, min(self.taps, self.stride // math.gcd(self.dilation, self.stride)))

    def plane(self, tap: LoopExpr) -> LoopExpr:
        return tap if self._apart else tap * self.dilation % self.stride // self._step

    def offset(self, tap: LoopExpr) -> LoopExpr:
        return Const(self.shift) if self._apart else tap * self.dilation // self.stride + self.shift

    @property
    def reach(self) -> int:
        """The largest offset."""
        return self.shift + (0 if self._apart else (self.taps - 1) * self.dilation // self.stride)

    @property
    def length(self) -> int:
        """Elements of a plane."""
        return max(self.outputs + self.reach, self.least)

    @property
    def is_plain(self) -> bool:
        """True where windows may read the image itself: it is one plane, and nothing is outside."""
        return self.stride == 1 and self.before == self.shift == 0 and self.length <= self.extent

    @property
    def is_pixels(self) -> bool:
        """True where windows are the elements of the input, one each."""
        return self.is_plain and self.taps == 1 and self.outputs == self.extent

    def element(self, plane: LoopExpr, position: LoopExpr) -> LoopExpr:
        """The element of the input at a position of a plane; it may be outside, in the padding."""
        return position * self.stride + plane * self._step - self.before

    def holds(self, plane: LoopExpr, position: LoopExpr) -> LoopExpr:
        """Whether it is inside."""
        at = self.element(plane, position)
        return all_of([at >= 0, at < self.extent])

    @property
    def interior(self) -> range:
        """Positions that are inside the input in every plane."""
        first = max(0, -(-self.before // self.stride))
        end = (self.extent - 1 + self.before - (self.planes - 1) * self._step) // self.stride + 1
        return range(min(first, self.length), max(min(first, self.length), min(end, self.length)))


Pixel = Callable[[LoopExpr, LoopExpr, Sequence[LoopExpr]], LoopExpr]
"""An element of the input: (image, channel, spatial coordinates)."""


@dataclass(frozen=True)
class PhasedImage:
    """A copy of the input: (image, channel, plane of every axis, position on the outer axes, flat position).

    The last two axes are one flat row, a line after the other, with zeros behind up to ``size``.
    """

    axes: tuple[PhasedAxis, ...]
    buffer: Buffer

    @staticmethod
    def of(batch: int, channels: int, axes: tuple[PhasedAxis, ...], size: int, dtype: str) -> PhasedImage:
        outer = (a.length for a in axes[:-2])
        shape = (batch, channels, *(a.planes for a in axes), *outer, size)
        return PhasedImage(axes, Buffer("phases", shape, dtype))

    def fill(self, pixel: Pixel, machine: MachineModel) -> Stmt:
        """Row by row, then the zeros behind them."""
        *prefix, size = self.buffer.shape
        rows, columns = self.axes[-2].length, self.axes[-1].length
        wanted, rest = ITEMS_PER_THREAD * machine.threads, size - rows * columns

        def row(*index: LoopExpr) -> Stmt:
            return self._row(index[:-1], index[-1], pixel, machine)

        def behind(*index: LoopExpr) -> Stmt:
            return self._zeros(index, Const(rows * columns), rest, machine)

        return seq(shared((*prefix, rows), wanted, row), shared(prefix, wanted, behind) if rest else None)

    def _row(self, prefix: Sequence[LoopExpr], row: LoopExpr, pixel: Pixel, machine: MachineModel) -> Stmt:
        """One line of a plane: copied inside, checked at both ends, zeros where it is padding."""
        *above, across = self.axes
        n, c, *rest = prefix
        planes, outer = rest[: len(self.axes)], (*rest[len(self.axes) :], row)
        lines = list(zip(above, planes, outer, strict=False))
        begin, inner = row * across.length, across.interior

        def value(q: LoopExpr) -> LoopExpr:
            where = [axis.element(plane, position) for axis, plane, position in (*lines, (across, planes[-1], q))]
            return pixel(n, c, where).astype(self.buffer.dtype)

        def copied(q: LoopExpr) -> Stmt:
            return Store(self.buffer, (*prefix, begin + q), value(q))

        def checked(q: LoopExpr) -> Stmt:
            found = select(across.holds(planes[-1], q), value(q), const(0, self.buffer.dtype))
            return Store(self.buffer, (*prefix, begin + q), found)

        filled = seq(
            loop(inner.start, checked, name="q"),
            vectors(len(inner), machine.lanes(self.buffer.dtype), lambda i: copied(i + inner.start)),
            loop(across.length - inner.stop, lambda i: checked(i + inner.stop), name="q"),
        )
        condition = all_of([axis.holds(plane, position) for axis, plane, position in lines])
        return If(condition, filled, self._zeros(prefix, begin, across.length, machine))

    def _zeros(self, prefix: Sequence[LoopExpr], begin: LoopExpr, count: int, machine: MachineModel) -> Stmt:
        zero = const(0, self.buffer.dtype)
        return vectors(count, machine.lanes(zero.dtype), lambda i: Store(self.buffer, (*prefix, begin + i), zero))
