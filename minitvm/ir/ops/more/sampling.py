"""Operators that read an image between its pixels, or at places that data names; and what windows leave behind."""

import functools
import itertools
import math
from dataclasses import replace
from typing import Annotated, Any

import numpy as np

from minitvm.ir.dims import Dim, differ, lacks, product
from minitvm.ir.loop import Buffer, Const, LoopExpr, Stage, all_of, as_index, const, intrin, maximum, minimum, select
from minitvm.ir.loop.scalar import convert
from minitvm.ir.op import Fusion, Op, compute, sum_over
from minitvm.ir.ops._shape import Window, dilated, flatten_index, inside, pads_of, require_kind, tap_views
from minitvm.ir.ops.image import cubic
from minitvm.ir.types import TensorType, accumulator

PADDINGS = ("zeros", "border", "reflection")
_TAPS = {"nearest": (0,), "linear": (0, 1), "cubic": (-1, 0, 1, 2)}
_ALPHA = -0.75
"""The parameter of the cubic kernel."""


class GridSample(Op, name="image.grid_sample", fusion=Fusion.OUT_ELEMWISE_FUSABLE):
    """Data at the places of a grid.  data: (N, C, d...) floats, grid: (N, out..., rank of d...) floats ->
    (N, C, out...).

    A place names the last dimension first.  -1 and 1 are the ends of data: the outer edges of its first and last
    elements, with ``align_corners`` their centres; with ``pixels`` a place counts elements instead.  Beyond the ends
    are zeros, the nearest elements, or data again, reflected, as ``padding_mode`` says; between elements ``method``.
    What a cubic kernel reads beyond the border is the border, as PyTorch and ONNX Runtime have it; ONNX's reference
    moves the place itself there first.
    """

    method: Annotated[str, tuple(_TAPS)] = "linear"
    padding_mode: Annotated[str, PADDINGS] = "zeros"
    align_corners: bool = False
    pixels: bool = False

    def infer(self, data: TensorType, grid: TensorType) -> TensorType:
        require_kind(self, data, "f", "data")
        require_kind(self, grid, "f", "grid")
        rank = data.rank - 2
        if rank < 1 or grid.rank < 3 or differ(grid.shape[-1], rank) or differ(grid.shape[0], data.shape[0]):
            raise self.reject(
                f"grid {grid} does not name places in {data}", hint="data (N, C, d...), grid (N, ..., rank)"
            )
        found = data.with_shape((*data.shape[:2], *grid.shape[1:-1]))
        if 0 in data.shape[2:] or lacks(product(data.shape[2:]), product(found.shape)):
            raise self.reject(f"there is no element to take from {data}")
        return found

    def _ends(self, extent: Any) -> tuple[Any, Any]:
        """Of the extent as a number of either kind."""
        return (0.0, extent - 1.0) if self.align_corners else (-0.5, extent - 0.5)

    # --- in numpy ---

    def reference(self, data: np.ndarray, grid: np.ndarray) -> np.ndarray:
        wide = np.promote_types(np.promote_types(data.dtype, grid.dtype), "float32")
        lines = [self._line(grid[..., -1 - d].astype(wide), n) for d, n in enumerate(data.shape[2:])]
        batch = np.arange(data.shape[0]).reshape(-1, *[1] * (grid.ndim - 2))
        total = np.zeros((*grid.shape[:-1], data.shape[1]), wide)
        for taps in itertools.product(*lines):
            at, weights, there = zip(*taps, strict=True)
            weight = np.asarray(functools.reduce(np.multiply, weights))[..., None]
            found = data[(batch, slice(None)) + at].astype(wide) * weight
            total += np.where(np.logical_and.reduce(there)[..., None], found, wide.type(0))
        return np.ascontiguousarray(np.moveaxis(total, -1, 1)).astype(data.dtype)

    def _line(self, places: np.ndarray, extent: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Along one axis: for every tap its position, its weight, and whether it counts."""
        x, one = places, places.dtype.type(1)
        if not self.pixels:
            x = (places + one) / 2 * (extent - 1) if self.align_corners else ((places + one) * extent - one) / 2
        x = np.rint(x) if self.method == "nearest" else x
        low, high = self._ends(extent)
        if self.padding_mode == "border" and self.method == "cubic":
            x = np.clip(x, -2, extent + 1)
        elif self.padding_mode == "border":
            x = np.where((x < low) | (x > high), np.clip(x, 0, extent - 1), x)
        elif self.padding_mode == "reflection":
            x = _reflected(x, low, high)
        floor = np.floor(x)
        rest, found = x - floor, []
        for tap in _TAPS[self.method]:
            weight = np.ones_like(x)
            if self.method != "nearest":
                weight = 1 - np.abs(rest - tap) if self.method == "linear" else cubic(np.float64(rest) - tap, _ALPHA)
            at = floor + tap
            there = (at >= 0) & (at < extent) | (self.padding_mode != "zeros")
            at = _reflected(at, low, high) if self.padding_mode == "reflection" else at
            found.append((np.clip(convert(at, "int64"), 0, extent - 1), weight.astype(x.dtype), there))
        return found

    # --- in loops ---

    def compute(self, data: Buffer, grid: Buffer) -> Stage:
        wide = max(accumulator(data.dtype), accumulator(grid.dtype))
        extents = data.shape[2:]

        def place(*i: LoopExpr) -> LoopExpr:
            """The place along the axis that the last index counts from behind."""
            found = self._place(grid[i].astype(wide), extents[-1])
            for d, extent in enumerate(extents[:-1]):
                found = select(i[-1].equal(len(extents) - 1 - d), self._place(grid[i].astype(wide), extent), found)
            return found

        places = replace(compute(grid.shape, place), kept=True)

        def element(n: LoopExpr, c: LoopExpr, *i: LoopExpr) -> LoopExpr:
            x = [places[(n,) + i + (Const(len(extents) - 1 - d),)] for d in range(len(extents))]
            lines = [[self._tap(x[d], tap, extent) for tap in _TAPS[self.method]] for d, extent in enumerate(extents)]
            total: LoopExpr | None = None
            for taps in itertools.product(*lines):
                at, weights, there = zip(*taps, strict=True)
                found = data[(n, c) + at].astype(wide)
                for weight in weights:
                    found = found if weight is None else found * weight
                conditions = [condition for conditions in there for condition in conditions]
                found = select(all_of(conditions), found, const(0, wide)) if conditions else found
                total = found if total is None else total + found
            return total.astype(data.dtype) if total is not None else const(0, data.dtype)

        return compute((*data.shape[:2], *grid.shape[1:-1]), element)

    def _place(self, x: LoopExpr, extent: Dim) -> LoopExpr:
        """The place where a number of the grid lies, in elements."""
        size = _as_float(extent, x.dtype)
        if not self.pixels:
            x = (x + 1.0) * 0.5 * (size - 1.0) if self.align_corners else ((x + 1.0) * size - 1.0) * 0.5
        x = intrin("round", x) if self.method == "nearest" else x
        low, high = self._ends(size)
        if self.padding_mode == "border" and self.method == "cubic":
            return minimum(maximum(x, -2.0), size + 1.0)
        if self.padding_mode == "border":
            return select((x < low) | (high < x), minimum(maximum(x, 0.0), size - 1.0), x)
        return _mirrored(x, low, high) if self.padding_mode == "reflection" else x

    def _tap(self, x: LoopExpr, tap: int, extent: Dim) -> tuple[LoopExpr, LoopExpr | None, list[LoopExpr]]:
        """The position of a tap, its weight, and on which conditions it counts."""
        floor, size = intrin("floor", x), _as_float(extent, x.dtype)
        at = floor + float(tap)
        conditions = [const(0, x.dtype) <= at, at < size] if self.padding_mode == "zeros" else []
        at = _mirrored(at, *self._ends(size)) if self.padding_mode == "reflection" else at
        position = minimum(maximum(at.astype("int64"), 0), as_index(extent - 1))
        distance = intrin("abs", x - floor - float(tap))
        if self.method == "nearest":
            return position, None, conditions
        if self.method == "linear":
            return position, 1.0 - distance, conditions
        a, d = _ALPHA, distance
        near, far = ((a + 2) * d - (a + 3)) * d * d + 1.0, (d - 1.0) * (d - 2.0) * (d - 2.0) * a
        return position, near if tap in (0, 1) else far, conditions


def _as_float(extent: Dim, dtype: str) -> LoopExpr:
    return const(extent, dtype) if isinstance(extent, int) else as_index(extent).astype(dtype)


def _reflected(x: np.ndarray, low: float, high: float) -> np.ndarray:
    """Back and forth between the ends."""
    if high == low:
        return np.full_like(x, low)
    span = x.dtype.type(high - low)
    beyond = np.where(x < low, low - x, np.where(x > high, x - high, 0)).astype(x.dtype)
    with np.errstate(all="ignore"):
        turns = np.floor(beyond / span)
        rest, odd = beyond - turns * span, turns % 2 == 1
    back = np.where((x < low) == odd, high - rest, low + rest)
    return np.where((x < low) | (x > high), back, x).astype(x.dtype)


def _mirrored(x: LoopExpr, low: float, high: LoopExpr) -> LoopExpr:
    below, above, span = x < low, high < x, high - low
    beyond = select(below, low - x, x - high)
    turns = intrin("floor", beyond / span)
    rest, half = beyond - turns * span, turns * 0.5
    even = intrin("floor", half).equal(half)
    back = select((below & even) | (above & intrin("not", even)), rest + low, high - rest)
    return select(span.equal(0.0), const(low, x.dtype), select(below | above, back, x))


class ColumnsToImage(Op, name="nn.col2im", fusion=Fusion.OUT_ELEMWISE_FUSABLE):
    """What im2col of an image of ``size`` has in its columns, added up where windows of ``kernel_size`` overlap.

    data: (N, C * taps of the window, windows) -> (N, C, size...).  Windows are ``strides`` apart, their taps
    ``dilation``; ``padding`` is (before..., after...).
    """

    size: tuple[Dim, ...]
    kernel_size: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[int, ...]

    def _windows(self) -> list[Window]:
        taken = zip(self.kernel_size, self.strides, self.dilation, pads_of(self.padding), strict=True)
        return [Window(k, s, d, p) for k, s, d, p in taken]

    def _counts(self) -> tuple[Any, ...]:
        windows = zip(self._windows(), self.size, strict=True)
        return tuple((n + sum(w.pads) - dilated(w.taps, w.dilation)) // w.stride + 1 for w, n in windows)

    def infer(self, data: TensorType) -> TensorType:
        require_kind(self, data, "iuf", "data")
        given = (self.size, self.kernel_size, self.strides, self.dilation, self.padding[1::2])
        if len(set(map(len, given))) > 1:
            raise self.reject("size, kernel_size, strides, dilation and padding differ in length")
        taps, counts = math.prod(self.kernel_size), self._counts()
        if data.rank != 3 or differ(data.shape[2], product(counts)) or differ(data.shape[1] % taps, 0):
            raise self.reject(
                f"an image of {list(self.size)} has {product(counts)} windows of {taps} elements, not {data}"
            )
        return data.with_shape((data.shape[0], data.shape[1] // taps, *self.size))

    def reference(self, data: np.ndarray) -> np.ndarray:
        windows, counts = self._windows(), self._counts()
        wide = np.promote_types(data.dtype, "float32") if data.dtype.kind == "f" else data.dtype
        channels = data.shape[1] // math.prod(self.kernel_size)
        columns = data.reshape(data.shape[0], channels, *self.kernel_size, *counts).astype(wide)
        before, whole = [w.pads[0] for w in windows], (slice(None), slice(None))
        padded = [n + sum(w.pads) for w, n in zip(windows, self.size, strict=True)]
        image = np.zeros((*columns.shape[:2], *padded), wide)
        for tap, view in zip(np.ndindex(*self.kernel_size), tap_views(image, windows, counts), strict=True):
            view += columns[whole + tap]
        kept = tuple(slice(b, b + n) for b, n in zip(before, self.size, strict=True))
        return np.ascontiguousarray(image[whole + kept]).astype(data.dtype)

    def compute(self, data: Buffer) -> Stage:
        windows, counts, taps = self._windows(), self._counts(), self.kernel_size
        wide = accumulator(data.dtype)

        def element(n: LoopExpr, c: LoopExpr, *i: LoopExpr) -> LoopExpr:
            def term(*tap: LoopExpr) -> LoopExpr:
                starts = [x + w.pads[0] - t * w.dilation for x, t, w in zip(i, tap, windows, strict=True)]
                at = [start // w.stride for start, w in zip(starts, windows, strict=True)]
                hit = [(start % w.stride).equal(0) for start, w in zip(starts, windows, strict=True)]
                hit += [c for position, count in zip(at, counts, strict=True) for c in inside(position, count)]
                row = c * math.prod(taps) + flatten_index(tap, taps)
                value = data[n, row, flatten_index(at, counts)].astype(wide)
                return select(all_of(hit), value, const(0, wide))

            return sum_over(taps, term).astype(data.dtype)

        return compute((data.shape[0], data.shape[1] // math.prod(taps), *self.size), element)
