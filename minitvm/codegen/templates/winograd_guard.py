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
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np

from minitvm.codegen.loops import halved, inside, or_zero
from minitvm.ir.loop import (
    Buffer,
    Const,
    Intrin,
    Load,
    LoopExpr,
    all_of,
    binary,
    const,
    intrin,
    maximum,
    minimum,
    select,
)
from minitvm.ir.loop.builder import LoopBuilder
from minitvm.ir.ops.nn_winograd import APART, NOTHING, TAPS, Transforms

USUAL = 8.0
"""The root of the mean of squares, up to which tiles need not be looked at."""
LARGEST = 2.0**100
"""Inputs of which transforms do not overflow."""


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

    def mark(self, code: LoopBuilder, marks: Buffer, energy: Buffer, first: LoopExpr, tile: LoopExpr) -> None:
        """All of them; those from ``tile`` on, whose squares begin at ``first``."""
        (count,) = marks.shape
        sums, worst = (Buffer(name, (self.inner,), self.dtype, "local") for name in ("squares", "worst"))
        usual = USUAL**2 * self.transforms.extent**2 * self.blocks
        with code.memory(sums, worst):
            self._clear(code, worst)
            with code.loop(count, "t") as t:
                self._clear(code, sums)
                with code.loop(self.blocks, "ci") as i, code.lanes(self.inner) as v:
                    code.store(sums, (v,), sums[v] + energy[i, first + t, v])
                with code.lanes(self.inner) as v:
                    code.store(worst, (v,), maximum(worst[v], sums[v]))
            code.emit(halved(worst, (), self.inner, "max"))
            out_of_scale = intrin("unlikely", intrin("not", worst[0] <= const(usual, self.dtype)))
            with code.when(out_of_scale), code.loop(count, "t") as t:
                self._look(code, marks, t, tile + t, worst[0])
            with code.otherwise(), code.loop(count, "t") as t:
                code.store(marks, (t,), Const(False, "bool"))

    def _clear(self, code: LoopBuilder, buffer: Buffer, *at: LoopExpr | int) -> None:
        """Zeros in all lanes."""
        with code.lanes(buffer.shape[-1]) as v:
            code.store(buffer, (*at, v), const(0, self.dtype))

    def _pixel(self, tile: LoopExpr, block: LoopExpr, c: LoopExpr, r: LoopExpr, s: LoopExpr) -> LoopExpr:
        """An input of a tile, 0 outside of the image."""
        n, *corner = self.position(tile)
        y, x = (a - before + k for a, before, k in zip(corner, self.pads, (r, s), strict=True))
        found = Load(self.data, (n, block, y, x, c)).astype(self.dtype)
        return or_zero(inside((y, x), self.data.shape[2:4]), found)

    def _look(self, code: LoopBuilder, marks: Buffer, t: LoopExpr, tile: LoopExpr, squares: LoopExpr) -> None:
        """Marks a tile; no square of an input is above ``squares``."""
        high, low = (Buffer(name, (), self.dtype, "local") for name in ("high", "low"))
        in_scale = (high[()] <= low[()] * APART) & (high[()] <= const(LARGEST, self.dtype))
        with code.memory(high, low):
            look = None
            if self.blocks > 1:  # NaN is in ``squares``
                least = low[()] * APART
                self._scale(code, high, low, tile, 1, "larger")
                with code.when(squares <= least * least):
                    code.store(marks, (t,), Const(False, "bool"))
                look = code.otherwise()
            with look or nullcontext():
                self._scale(code, high, low, tile, self.blocks, "max")
                code.store(marks, (t,), Intrin("not", (in_scale,)))

    def _scale(self, code: LoopBuilder, high: Buffer, low: Buffer, tile: LoopExpr, blocks: int, op: str) -> None:
        """The largest input of a tile, in its first blocks of channels, and the least that the largest of a window may
        be: every window holds one of the squares of 2 x 2 inputs that a tile consists of."""
        peaks = Buffer("peaks", (self.inner,), self.dtype, "local")
        corner, squares = self.position(tile)[1:], self.transforms.extent // 2
        with code.memory(peaks):
            code.store(high, (), const(0, self.dtype))
            code.store(low, (), const(np.inf, self.dtype))
            with code.nest((squares, squares), "pq") as (p, q):
                self._clear(code, peaks)
                with code.nest((blocks, 2, 2), "irs") as (i, r, s), code.lanes(self.inner) as v:
                    found = intrin("abs", self._pixel(tile, i, v, p * 2 + r, q * 2 + s))
                    code.store(peaks, (v,), binary(op, peaks[v], found))
                code.emit(halved(peaks, (), self.inner, op))
                code.store(high, (), binary(op, high[()], peaks[0]))
                firsts = (a + maximum(k * 2 - 1, 0) for a, k in zip(corner, (p, q), strict=True))
                with code.when(all_of([a < n for a, n in zip(firsts, self.results, strict=True)])):
                    code.store(low, (), minimum(low[()], peaks[0]))

    # --- results without transforms -------------------------------------------------------------------------------

    def results_of(self, code: LoopBuilder, exact: Buffer, tile: LoopExpr, block: LoopExpr, first: LoopExpr) -> None:
        """A tile's results into ``exact`` (row, column, channel): of the channels from ``first`` on of a block of the
        weights."""
        size, _, width = exact.shape
        taps = Buffer("taps", (TAPS, TAPS, width), self.dtype, "local")
        with code.memory(taps):
            with code.nest((size, size)) as at:
                self._clear(code, exact, *at)
            with code.nest((self.blocks, self.inner), "ic") as (i, c):
                for tap in itertools.product(range(TAPS), repeat=2):
                    with code.lanes(width) as v:
                        code.store(taps, (*tap, v), self._tap(tap, block, i, c, first + v))
                with code.nest((size, size, TAPS, TAPS), "rsyx") as (r, s, y, x), code.lanes(width) as v:
                    done = intrin("fma", self._pixel(tile, i, c, r + y, s + x), taps[y, x, v], exact[r, s, v])
                    code.store(exact, (r, s, v), done)

    def _tap(self, at: tuple[int, ...], block: LoopExpr, i: LoopExpr, c: LoopExpr, lane: LoopExpr) -> LoopExpr:
        """A weight before it was transformed, to two roundings of its terms; 0 where that is all there is."""
        rows, columns = (self.transforms.inverse[k] for k in at)
        value, size = list[LoopExpr](), list[LoopExpr]()
        for p, q in itertools.product(np.flatnonzero(rows), np.flatnonzero(columns)):
            weight = Load(self.weight, (block, Const(int(p)), Const(int(q)), i, c, lane)).astype(self.dtype)
            value.append(weight * float(rows[p] * columns[q]))
            size.append(intrin("abs", value[-1]))
        found, terms = sum(value[1:], value[0]), sum(size[1:], size[0])
        return select(intrin("abs", found) <= terms * NOTHING, const(0, self.dtype), found)
