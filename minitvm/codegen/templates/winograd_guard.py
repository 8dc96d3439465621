"""Tiles of Winograd's convolutions that a number out of scale would spoil, and their results without transforms.

Transforms mix all inputs of a tile, so that a NaN, an infinity or a large number changes results whose windows do not
hold it.  Such a tile's largest input is more than :data:`APART` times the largest of a 3 x 3 window in it.  Two cheap
answers come before that question.  The first costs one multiply-add for an element that is read anyway: squares that
add up to no more than those of numbers of :data:`USUAL` do.  The second reads one block of channels: their largest in
each window, as others only raise it, beside the root of the sum of squares, which no input exceeds.  Results of tiles
that are out of scale are summed up tap by tap, as the convolution says.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from minitvm.codegen.loops import halved, in_lanes, inside, or_zero
from minitvm.ir.loop import (
    Alloc,
    Buffer,
    Const,
    If,
    Intrin,
    Load,
    LoopExpr,
    Stmt,
    Store,
    all_of,
    binary,
    const,
    intrin,
    loop,
    maximum,
    minimum,
    nest,
    select,
    seq,
)
from minitvm.ir.ops.nn_winograd import TAPS, Transforms

USUAL = 8.0
"""The root of the mean of squares, up to which tiles need not be looked at."""
APART = 64.0
"""How many times the largest input of a window that of its tile may be."""
LARGEST = 2.0**100
"""Inputs of which transforms do not overflow."""
_NOTHING = 2.0**-22
"""Of the terms of a tap: what their roundings may have left of zero."""


@dataclass(frozen=True)
class Guard:
    """Questions about tiles of inputs, each by its number, and the results of some.

    ``data`` and ``weight`` as the operator has them; ``results``: rows and columns of the result; ``position``: the
    image of a tile and the first row and column of its results, whose windows begin ``pads`` before.
    """

    data: Buffer
    weight: Buffer
    transforms: Transforms
    pads: tuple[int, ...]
    results: tuple[int, ...]
    position: Callable[[LoopExpr], tuple[LoopExpr, ...]]
    dtype: str

    @property
    def blocks(self) -> int:
        """The blocks of input channels."""
        return self.weight.shape[3]

    @property
    def inner(self) -> int:
        """Channels of a block."""
        return self.weight.shape[4]

    def energy(self, count: int, scope: str) -> Buffer:
        """Sums of squares of so many tiles: (block of channels, tile, channel)."""
        return Buffer("energy", (self.blocks, count, self.inner), self.dtype, scope)

    def marks(self, count: int) -> Buffer:
        """The marks of so many tiles: which of them are out of scale."""
        return Buffer("apart", (count,), "bool", "shared")

    def mark(self, marks: Buffer, energy: Buffer, first: LoopExpr, tile: LoopExpr) -> Stmt:
        """All of them; those from ``tile`` on, whose squares begin at ``first``."""
        (count,) = marks.shape
        sums, worst = (Buffer(name, (self.inner,), self.dtype, "local") for name in ("squares", "worst"))

        def lanes(buffer: Buffer, value: LoopExpr, lane: LoopExpr) -> Stmt:
            return Store(buffer, (lane,), value)

        zero = const(0, self.dtype)

        def of_tile(t: LoopExpr) -> Stmt:
            def more(i: LoopExpr) -> Stmt:
                return in_lanes(self.inner, lambda v: lanes(sums, sums[v] + energy[i, first + t, v], v))

            return seq(
                in_lanes(self.inner, lambda v: lanes(sums, zero, v)),
                loop(self.blocks, more, name="ci"),
                in_lanes(self.inner, lambda v: lanes(worst, maximum(worst[v], sums[v]), v)),
            )

        usual = USUAL**2 * self.transforms.extent**2 * self.blocks
        clear = loop(count, lambda t: Store(marks, (t,), Const(False, "bool")), name="t")
        look = loop(count, lambda t: self._look(marks, t, tile + t, worst[0]), name="t")
        steps = seq(
            in_lanes(self.inner, lambda v: lanes(worst, zero, v)),
            loop(count, of_tile, name="t"),
            halved(worst, (), self.inner, "max"),
            If(intrin("unlikely", intrin("not", worst[0] <= const(usual, self.dtype))), look, clear),
        )
        return Alloc(sums, Alloc(worst, steps))

    def _pixel(self, tile: LoopExpr, block: LoopExpr, c: LoopExpr, r: LoopExpr, s: LoopExpr) -> LoopExpr:
        """An input of a tile, 0 outside of the image."""
        n, *corner = self.position(tile)
        y, x = (a - before + k for a, before, k in zip(corner, self.pads, (r, s), strict=True))
        found = Load(self.data, (n, block, y, x, c)).astype(self.dtype)
        return or_zero(inside((y, x), self.data.shape[2:4]), found)

    def _look(self, marks: Buffer, t: LoopExpr, tile: LoopExpr, squares: LoopExpr) -> Stmt:
        """Marks a tile; no square of an input is above ``squares``."""
        high, low = (Buffer(name, (), self.dtype, "local") for name in ("high", "low"))
        in_scale = (high[()] <= low[()] * APART) & (high[()] <= const(LARGEST, self.dtype))
        steps = seq(self._scale(high, low, tile, self.blocks, "max"), Store(marks, (t,), Intrin("not", (in_scale,))))
        if self.blocks > 1:  # NaN is in ``squares``
            least = low[()] * APART
            clear = Store(marks, (t,), Const(False, "bool"))
            steps = seq(self._scale(high, low, tile, 1, "larger"), If(squares <= least * least, clear, steps))
        return Alloc(high, Alloc(low, steps))

    def _scale(self, high: Buffer, low: Buffer, tile: LoopExpr, blocks: int, op: str) -> Stmt:
        """The largest input of a tile, in its first blocks of channels, and the least that the largest of a window may
        be: every window holds one of the squares of 2 x 2 inputs that a tile consists of."""
        peaks = Buffer("peaks", (self.inner,), self.dtype, "local")
        corner = self.position(tile)[1:]
        squares = self.transforms.extent // 2

        def square(p: LoopExpr, q: LoopExpr) -> Stmt:
            def higher(i: LoopExpr, r: LoopExpr, s: LoopExpr) -> Stmt:
                def lane(v: LoopExpr) -> Stmt:
                    found = intrin("abs", self._pixel(tile, i, v, p * 2 + r, q * 2 + s))
                    return Store(peaks, (v,), binary(op, peaks[v], found))

                return in_lanes(self.inner, lane)

            firsts = (a + maximum(k * 2 - 1, 0) for a, k in zip(corner, (p, q), strict=True))
            needed = all_of([a < n for a, n in zip(firsts, self.results, strict=True)])
            return seq(
                in_lanes(self.inner, lambda v: Store(peaks, (v,), const(0, self.dtype))),
                nest((blocks, 2, 2), higher, names="irs"),
                halved(peaks, (), self.inner, op),
                Store(high, (), binary(op, high[()], peaks[0])),
                If(needed, Store(low, (), minimum(low[()], peaks[0]))),
            )

        steps = seq(
            Store(high, (), const(0, self.dtype)),
            Store(low, (), const(np.inf, self.dtype)),
            nest((squares, squares), square, names="pq"),
        )
        return Alloc(peaks, steps)

    # --- results without transforms -------------------------------------------------------------------------------

    def results_of(self, exact: Buffer, tile: LoopExpr, block: LoopExpr, first: LoopExpr) -> Stmt:
        """A tile's results into ``exact`` (row, column, channel): of the channels from ``first`` on of a block of the
        weights."""
        size, _, width = exact.shape
        taps = Buffer("taps", (TAPS, TAPS, width), self.dtype, "local")

        def channel(i: LoopExpr, c: LoopExpr) -> Stmt:
            def add(r: LoopExpr, s: LoopExpr, y: LoopExpr, x: LoopExpr) -> Stmt:
                def lane(v: LoopExpr) -> Stmt:
                    done = intrin("fma", self._pixel(tile, i, c, r + y, s + x), taps[y, x, v], exact[r, s, v])
                    return Store(exact, (r, s, v), done)

                return in_lanes(width, lane)

            def fill(at: tuple[int, ...]) -> Stmt:
                def lane(v: LoopExpr) -> Stmt:
                    return Store(taps, (*map(Const, at), v), self._tap(at, block, i, c, first + v))

                return in_lanes(width, lane)

            filled = map(fill, itertools.product(range(TAPS), repeat=2))
            return seq(*filled, nest((size, size, TAPS, TAPS), add, names="rsyx"))

        def zero(r: LoopExpr, s: LoopExpr) -> Stmt:
            return in_lanes(width, lambda v: Store(exact, (r, s, v), const(0, self.dtype)))

        sums = nest((self.blocks, self.inner), channel, names="ic")
        return Alloc(taps, seq(nest((size, size), zero), sums))

    def _tap(self, at: tuple[int, ...], block: LoopExpr, i: LoopExpr, c: LoopExpr, lane: LoopExpr) -> LoopExpr:
        """A weight before it was transformed, to two roundings of its terms; 0 where that is all there is."""
        rows, columns = (self.transforms.inverse[k] for k in at)
        value, size = list[LoopExpr](), list[LoopExpr]()
        for p, q in itertools.product(np.flatnonzero(rows), np.flatnonzero(columns)):
            weight = Load(self.weight, (block, Const(int(p)), Const(int(q)), i, c, lane)).astype(self.dtype)
            value.append(weight * float(rows[p] * columns[q]))
            size.append(intrin("abs", value[-1]))
        found, terms = sum(value[1:], value[0]), sum(size[1:], size[0])
        return select(intrin("abs", found) <= terms * _NOTHING, const(0, self.dtype), found)
