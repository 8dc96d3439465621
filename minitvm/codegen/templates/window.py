"""Windows over a zero-padded image without padding it: taps that fall outside are left out of the sum.

Rows: the loop over the window's rows runs over those inside the image.  Columns: tiles whose windows lie inside
share one loop; a tile at an edge stands on its own, with a loop for the taps that reach the same of its windows.

Or over a copy of the padded image: with stride ``s`` neighbouring windows read elements ``s`` apart, so each residue
of the coordinate is kept in a plane of its own (``plane[p][q] = padded[q * s + p]``).  That turns a tap into a plane
and an offset in it, the same for all windows: ``q = position + offset``.  Lanes along positions then load neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from minitvm.codegen.default_schedule import Element, filled
from minitvm.codegen.loops import inside, or_zero
from minitvm.codegen.templates.tile import Run, over, runs
from minitvm.doors import door, left_out
from minitvm.ir.dims import Dim
from minitvm.ir.loop import Buffer, LoopExpr, Stmt, as_index, const, maximum, minimum, seq
from minitvm.ir.loop.builder import LoopBuilder
from minitvm.target import MachineModel

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

    def coordinate(self, position: LoopExpr, tap: LoopExpr) -> LoopExpr:
        """The element of the input that a tap reads; it may be outside, in the padding."""
        return position * self.stride + tap * self.dilation - self.before

    def reads(self, position: int, tap: int) -> bool:
        return 0 <= position * self.stride + tap * self.dilation - self.before < self.extent

    def columns_inside(self, start: Start, size: int, tap: int) -> range:
        """The outputs, of ``size`` from ``start`` on, whose ``tap`` is inside the image: always neighbours."""
        if not isinstance(start, int):
            return range(size)
        found = [t for t in range(size) if self.reads(start + t, tap)]
        return range(found[0], found[-1] + 1) if found else range(0)

    def alike(self, start: Start, size: int) -> list[tuple[range, range]]:
        """Neighbouring taps for which the same outputs are inside the image, and those outputs."""
        found: list[tuple[range, range]] = []
        for tap in range(self.taps):
            inside = self.columns_inside(start, size, tap)
            same = found and found[-1][1] == inside
            first = found.pop()[0].start if same else tap
            found.append((range(first, tap + 1), inside))
        return found

    @property
    def padded(self) -> bool:
        return not (self.reads(0, 0) and self.reads(self.outputs - 1, self.taps - 1))

    @contextmanager
    def valid_taps(self, code: LoopBuilder, position: LoopExpr) -> Iterator[LoopExpr]:
        """The taps whose coordinate is inside."""
        if not self.padded:
            with code.loop(self.taps, "tap") as tap:
                yield tap
            return
        first = maximum((self.before - position * self.stride + (self.dilation - 1)) // self.dilation, 0)
        end = (as_index(self.extent) + self.before - position * self.stride + (self.dilation - 1)) // self.dilation
        end = minimum(end, self.taps)
        with code.loop(end - first, "tap") as i:
            yield first + i

    def tiles(self, most: int) -> list[Run | Edge]:
        """All outputs in order, as runs of equal tiles inside the image and single tiles at its edges."""
        found: list[Run | Edge] = []
        for run in runs(self.outputs, most):
            for begin in range(run.begin, run.end, run.size):
                last = found[-1] if found else None
                if not all(self.reads(begin + t, x) for t in (0, run.size - 1) for x in (0, self.taps - 1)):
                    found.append(Edge(begin, run.size))
                elif isinstance(last, Run) and last.size == run.size:
                    found[-1] = Run(last.begin, last.count + 1, run.size)
                else:
                    found.append(Run(begin, 1, run.size))
        return found

    def over_tiles(self, code: LoopBuilder, most: int) -> Iterator[tuple[Start, int]]:
        """The start and the size of all tiles, one after the other."""
        for tile in self.tiles(most):
            if isinstance(tile, Edge):
                yield tile.begin, tile.size
            else:
                yield from over(code, [tile])

    @property
    def is_open(self) -> bool:
        """True if only a run counts its outputs."""
        return False

    def at(self, start: Start, t: LoopExpr) -> LoopExpr:
        """Output ``t`` of the tile that begins at ``start``."""
        return start + t

    def sticks_out(self, start: Start, size: int) -> bool:
        """True if only a run knows which taps of a tile are inside."""
        return False

    @property
    def counts(self) -> tuple[int, tuple[int, ...]]:
        """The number of outputs whose windows lie inside, in tiles, and how many are in each tile of the others; as is
        usual."""
        return self.outputs, ()


@door
def open_axis(extent: Dim, outputs: Dim, taps: int, stride: int, dilation: int, before: int) -> Axis:
    """An axis whose outputs only a run counts."""
    raise left_out("a window over open sizes")


def axis_of(extent: Dim, outputs: Dim, *window: int) -> Axis:
    """The axis of (taps, stride, dilation, elements of padding before)."""
    if isinstance(extent, int) and isinstance(outputs, int):
        return Axis(extent, outputs, *window)
    return open_axis(extent, outputs, *window)


@dataclass(frozen=True)
class Edge:
    """One tile of ``size`` outputs from ``begin`` on, some taps of which are outside."""

    begin: int
    size: int
    count: int = 1

    def start(self, _: LoopExpr) -> int:
        return self.begin


def padded(data: Buffer, pads: Sequence[int], machine: MachineModel) -> tuple[Buffer, Stmt]:
    """An image (axes 2 and 3) with zeros around it (top, left, bottom, right), and the loops that fill it."""
    top, left, bottom, right = pads
    *outer, height, width = data.shape[:4]
    shape = (*outer, height + top + bottom, width + left + right, *data.shape[4:])

    def element(*index: LoopExpr) -> Element:
        n, c, y, x, *lane = index
        where = (n, c, y - top, x - left, *lane)
        return index, or_zero(inside(where[2:4], (height, width)), data[where])

    buffer = Buffer(f"{data.name}_padded", shape, data.dtype)
    return buffer, filled(buffer, shape, element, machine)


# --- images as planes that every window reads at a fixed distance: what strides and padding become in memory ---------


@dataclass(frozen=True)
class PhasedAxis(Axis):
    """One spatial axis of a window, and the planes that its taps fall into."""

    shift: int = 0
    """Windows begin ``before - shift`` elements before the input."""
    least: int = 0
    """Elements of a plane, where several axes share it."""
    widest: int = 0
    """The most outputs of these axes."""

    def trimmed(self) -> tuple[PhasedAxis, int]:
        """The axis without taps in front and behind that read padding in every window (at least one is kept), and the
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

    @property
    def overlap(self) -> bool:
        """True if windows share elements, perhaps, so that several taps fall into a plane."""
        return not self._apart

    def plane(self, tap: LoopExpr) -> LoopExpr:
        return tap if self._apart else self.place(tap * self.dilation)[0]

    def offset(self, tap: LoopExpr) -> LoopExpr | int:
        return self.shift if self._apart else self.place(tap * self.dilation)[1]

    def place(self, element: LoopExpr) -> tuple[LoopExpr, LoopExpr]:
        """Plane and position of the element so many after the first window's first, where windows overlap."""
        return element % self.stride // self._step, element // self.stride + self.shift

    @property
    def reach(self) -> int:
        """The largest offset."""
        return self.shift + (0 if self._apart else (self.taps - 1) * self.dilation // self.stride)

    @property
    def length(self) -> int:
        """Elements of a plane."""
        return max(self.outputs + self.reach, self.least)

    @property
    def pitch(self) -> int:
        """The distance from a row's first element to the next row's: zeros at the end of every plane are those that the
        next row begins with."""
        leading = -(((self.planes - 1) * self._step - self.before) // self.stride)
        trailing = self.length + (-self.extent - self.before) // self.stride
        return max(self.outputs, self.widest, self.length - max(0, min(leading, trailing)))

    @property
    def is_plain(self) -> bool:
        """True where windows may read the image itself: it is one plane, and nothing is outside."""
        return self.stride == 1 and self.before == self.shift == 0 and self.length <= self.extent

    @property
    def is_sampled(self) -> bool:
        """True where windows are elements of the input, one each, perhaps some apart."""
        return self.taps == 1 and self.before == self.shift == 0 and (self.outputs - 1) * self.stride < self.extent

    @property
    def is_pixels(self) -> bool:
        """True where windows are the elements of the input, one each."""
        return self.is_plain and self.taps == 1 and self.outputs == self.extent

    def element(self, plane: LoopExpr, position: LoopExpr) -> LoopExpr:
        """The element of the input at a position of a plane; it may be outside, in the padding."""
        return position * self.stride + plane * self._step - self.before


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

    def fill(self, pixel: Pixel, machine: MachineModel, top: LoopExpr | None = None) -> Stmt:
        """Row by row, zeros where it is padding; then those behind the rows.

        ``top``: the window's row that is the first; one thread fills it then."""
        *prefix, size = self.buffer.shape
        rows, columns = self.axes[-2].length, self.axes[-1].pitch

        def row(n: LoopExpr, c: LoopExpr, *rest: LoopExpr) -> Element:
            planes, places = rest[: len(self.axes)], [*rest[len(self.axes) :]]
            if top is not None:
                places[-2] = places[-2] + top
            spots = [axis.element(plane, at) for axis, plane, at in zip(self.axes, planes, places, strict=True)]
            value = or_zero(inside(spots, [axis.extent for axis in self.axes]), pixel(n, c, spots))
            return (n, c, *rest[:-2], rest[-2] * columns + rest[-1]), value

        def behind(*index: LoopExpr) -> Element:
            return (*index[:-1], index[-1] + rows * columns), const(0, self.buffer.dtype)

        rest, parallel = size - rows * columns, top is None
        lines = filled(self.buffer, (*prefix, rows, columns), row, machine, parallel)
        return seq(lines, filled(self.buffer, (*prefix, rest), behind, machine, parallel) if rest else None)
