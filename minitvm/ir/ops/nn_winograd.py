"""Winograd's minimal filtering F(m x m, 3 x 3): convolutions of 3 x 3 taps as products of transformed tiles.

A tile of m x m results needs (m + 2)^2 inputs, which are transformed, multiplied with transformed weights channel by
channel, and transformed back: (m + 2)^2 multiplications in place of 9 m^2.  Toom and Cook's construction by polynomials
through points (Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2015).
"""

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from minitvm.ir.arrays import empty_pages
from minitvm.ir.dims import Dim, differ
from minitvm.ir.layout import Split
from minitvm.ir.loop import Buffer, Load, LoopExpr, Stage, all_of, as_index, binary, const, select
from minitvm.ir.op import Fusion, Op, compute, sum_over
from minitvm.ir.ops._shape import buffer_type, inside, known, require_kind
from minitvm.ir.ops.nn_conv import BlockedConvolution
from minitvm.ir.types import TensorType, accumulator

TAPS = 3
_POINTS = {2: (0, 1, -1), 4: (0, 1, -1, 2, -2)}
"""Zero, then pairs that differ in sign; infinity is the last one of all."""
SIZES = tuple(_POINTS)
"""Of tiles of results."""
NOTHING = 2.0**-22
"""Of the terms of a tap: what their roundings may have left of zero."""
APART = 64.0
"""How many times the largest input of a window that of its tile may be."""


@dataclass(frozen=True)
class Transforms:
    """``y = A (G g * B d)`` in one dimension, for ``size`` results: A (m, m + 2), B (m + 2, m + 2), G (m + 2, 3)."""

    size: int
    A: np.ndarray
    B: np.ndarray
    G: np.ndarray

    @staticmethod
    @cache
    def of(size: int) -> "Transforms":
        points = _POINTS[size]
        others = [[b for b in points if b != a] for a in points]
        B = [[*np.poly(rest)[::-1], 0.0] for rest in others] + [[*np.poly(points)[::-1]]]
        G = [
            [a**r / np.prod(np.subtract(a, rest)) for r in range(TAPS)] for a, rest in zip(points, others, strict=True)
        ]
        A = [[float(a**i) for a in points] + [float(i == size - 1)] for i in range(size)]
        return Transforms(size, np.array(A), np.array(B), np.array([*G, [0.0] * (TAPS - 1) + [1.0]]))

    @property
    def extent(self) -> int:
        """The extent of a tile of inputs."""
        return self.size + TAPS - 1

    @property
    def inverse(self) -> np.ndarray:
        """(3, m + 2) that takes a transformed filter back, ``inverse @ G`` is one: a number or the difference of two
        for each tap."""
        found = np.zeros(self.G.shape[::-1])
        found[0, 0], found[2, -1] = 1 / self.G[0, 0], 1 / self.G[-1, 2]
        found[1, 1:3] = np.array([1, -1]) / (self.G[1, 1] - self.G[2, 1])
        return found

    @property
    def amplification(self) -> float:
        """The factor by which terms on their way to one result exceed an image's largest element times the sum of a
        filter's, without their signs: roundings count so many times."""
        weights = np.abs(self.B).sum(1) * np.abs(self.G).max(1)
        return float((np.abs(self.A) @ weights).max() ** 2)

    def bound(self, channels: int, dtype: str) -> float:
        """What a result is off by at most, in units of an image's largest element times the sum of a filter's."""
        roundings = channels + 4 * self.extent + 1  # of a sum over channels, both transforms twice, and the weight
        return roundings * float(np.finfo(dtype).eps) / 2 * self.amplification


class WinogradWeights(Op, name="nn.contrib_conv2d_winograd_weight_transform", fusion=Fusion.OUT_ELEMWISE_FUSABLE):
    """The filters of a 3 x 3 convolution, transformed for tiles of ``tile_size``: G w G^T.

    weight: (O, I, 3, 3) -> (O, I, tile_size + 2, tile_size + 2)
    """

    tile_size: int

    def infer(self, weight: TensorType) -> TensorType:
        extent = _transforms(self, self.tile_size).extent
        if weight.rank != 4 or any(differ(n, TAPS) for n in weight.shape[2:]):
            raise self.reject(f"takes filters (O, I, {TAPS}, {TAPS}), not {weight}")
        require_kind(self, weight, "f", "the weight")
        return TensorType((*weight.shape[:2], extent, extent), weight.dtype)

    def reference(self, weight: np.ndarray) -> np.ndarray:
        """All taps of a filter in one product with G kron G.  The planes of one place each lie together, as they are
        packed from there."""
        t, (outputs, inputs) = Transforms.of(self.tile_size), weight.shape[:2]
        both = np.kron(t.G, t.G)
        planes = empty_pages((t.extent, t.extent, outputs, inputs), weight.dtype)
        for o, taps in enumerate(weight.reshape(outputs, inputs, TAPS * TAPS)):
            planes[:, :, o] = (both @ taps.T.astype("float64")).reshape(t.extent, t.extent, inputs)
        planes.setflags(write=False)
        return np.transpose(planes, (2, 3, 0, 1))

    def compute(self, weight: Buffer) -> Stage:
        t, wide = Transforms.of(self.tile_size), accumulator(weight.dtype)

        def element(o: LoopExpr, i: LoopExpr, *at: LoopExpr) -> LoopExpr:
            value = _both(t.G, at, lambda r, s: weight[o, i, r, s].astype(wide))
            return value.astype(weight.dtype)

        return compute((*weight.shape[:2], t.extent, t.extent), element)


class Conv2dWinograd(BlockedConvolution, name="nn.contrib_conv2d_winograd_NCHWc"):
    """A convolution of 3 x 3 taps in tiles of ``tile_size``, of the weights that
    ``nn.contrib_conv2d_winograd_weight_transform`` makes.

    data: NCHW[x]c, weight: OHWI[x]i[y]o with H = W = tile_size + 2 -> NCHW[z]c, where z divides y.

    A result is off by at most ``Transforms.bound`` times the sum of a filter times the largest input of its tile.  The
    kernel computes tiles directly that are not finite, or whose largest input is more than 64 times that of a window
    in it, unless all of a tile is of usual magnitude (``codegen/templates/winograd_guard.py``).
    """

    filter_order = "OHWI"  # no field: not annotated
    tile_size: int = 4
    kernel_layout: str = "OHWI8i8o"

    def infer(self, data: TensorType, weight: TensorType) -> TensorType:
        (image, kernel, _), extent = self.layouts, _transforms(self, self.tile_size).extent
        if {*self.strides, *self.dilation, self.groups} != {1}:
            raise self.reject("strides, dilation and groups must be 1", hint="use nn.contrib_conv2d_NCHWc")
        if image.factor("C") != kernel.factor("I") or not image.is_blocked:
            raise self.reject(f"the data's layout {image} has other blocks than the inputs of {kernel}")
        require_kind(self, data, "f", "the data")
        require_kind(self, weight, "f", "the weight")
        if known(self, weight, "the weight")[1:3] != (extent, extent):
            raise self.reject(f"the weight {weight} in {kernel} is not of tiles of {self.tile_size}: H = W = {extent}")
        return super().infer(data, weight)

    def _held(self, shape: Sequence[Dim]) -> dict[str, int]:
        """With the taps before they were transformed."""
        return super()._held(shape) | dict.fromkeys(self.spatial, TAPS)

    def flops(self, args: Sequence[TensorType], results: Sequence[TensorType]) -> float:
        """The operations of the convolution."""
        held = self._held(args[1].shape)
        return 2.0 * results[0].size * held["I"] * TAPS * TAPS

    def _slide(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        """``w``: (O, I, extent, extent).  What is not finite or out of scale reaches windows that hold it, and no
        others of a tile."""
        finite = np.isfinite(x)
        tiled = self._by_tiles(np.where(finite, x, 0), w)
        pads = [(0, 0), (0, 0), *(self.window(axis, TAPS).pads for axis in self.spatial)]
        slid = np.lib.stride_tricks.sliding_window_view(np.pad(x, pads), (TAPS, TAPS), (2, 3))
        largest = np.abs(slid).max((1, 4, 5))  # of each window, NaN where it holds one
        size, (rows, columns) = self.tile_size, largest.shape[1:]
        of_tile = np.fmax.reduceat(np.fmax.reduceat(largest, range(0, rows, size), 1), range(0, columns, size), 2)
        around = of_tile.repeat(size, 1).repeat(size, 2)[:, :rows, :columns]
        alone = ~(around <= largest * APART) | ~np.isfinite(largest)
        taps = self._taps(self._own(w)).reshape(tiled.shape[1], -1).T
        for n, y in zip(*np.nonzero(alone.any(2)), strict=True):
            windows = slid[n, :, y, alone[n, y]]
            tiled[n, :, y, alone[n, y]] = windows.reshape(len(windows), -1) @ taps
        return tiled

    def _taps(self, w: np.ndarray) -> np.ndarray:
        """Filters before they were transformed, but for two roundings; 0 where that is all there is of a tap."""
        inverse = Transforms.of(self.tile_size).inverse
        found, terms = inverse @ w @ inverse.T, np.abs(inverse) @ np.abs(w) @ np.abs(inverse.T)
        return np.where(np.abs(found) <= terms * NOTHING, 0, found)

    def _by_tiles(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        t, own = Transforms.of(self.tile_size), self._own(w)
        pads = [self.window(axis, TAPS).pads for axis in self.spatial]
        extents = [n + sum(p) - TAPS + 1 for n, p in zip(x.shape[2:], pads, strict=True)]
        tiles = [-(-n // t.size) for n in extents]
        behind = [c * t.size - n for c, n in zip(tiles, extents, strict=True)]
        padded = np.pad(x, [(0, 0), (0, 0), *((a, b + more) for (a, b), more in zip(pads, behind, strict=True))])
        windows = np.lib.stride_tricks.sliding_window_view(padded, (t.extent, t.extent), axis=(2, 3))
        inputs = t.B @ windows[:, :, :: t.size, :: t.size] @ t.B.T
        products = np.einsum("ncyxpq,kcpq->nkyxpq", inputs, own, optimize=True)
        results = (t.A @ products @ t.A.T).swapaxes(3, 4)
        n, k = results.shape[:2]
        whole = results.reshape(n, k, *(c * t.size for c in tiles))
        return np.asarray(whole[:, :, : extents[0], : extents[1]].astype(x.dtype))

    def compute(self, data: Buffer, weight: Buffer) -> Stage:
        t, out = Transforms.of(self.tile_size), self.layouts[2]
        result = self.infer(buffer_type(data), buffer_type(weight))
        shape: dict[str, Any] = out.primal_shape(result.static_shape)
        places = (*(-(-shape[axis] // t.size) for axis in self.spatial), t.extent, t.extent)
        products = self._products(self._inputs(data, weight, places), weight, shape["C"], places)

        def element(*index: LoopExpr) -> LoopExpr:
            at = out.coordinates(index)
            channel = at["C"].value if isinstance(at["C"], Split) else at["C"]
            tile = (at["N"], channel, *(at[axis] // t.size for axis in self.spatial))
            rows = [at[axis] % t.size for axis in self.spatial]
            value = _both(t.A, rows, lambda p, q: Load(products, (*tile, as_index(p), as_index(q))))
            return value.astype(result.dtype)

        return compute(result.static_shape, element)

    def _inputs(self, data: Buffer, weight: Buffer, places: Sequence[int]) -> Stage:
        """Transformed tiles: (image, block of channels, channel in it, row and column of the tile, place in it)."""
        t, image, inner = Transforms.of(self.tile_size), self.layouts[0], weight.shape[4]
        pixels = [data.shape[image.index(axis)] for axis in self.spatial]

        def element(n: LoopExpr, block: LoopExpr, c: LoopExpr, *at: LoopExpr) -> LoopExpr:
            def pixel(r: int, s: int) -> LoopExpr:
                y, x = (at[d] * t.size + k - self.padding[d] for d, k in enumerate((r, s)))
                found = data[image.place({"N": n, "C": Split(block, c, inner), "H": y, "W": x})]
                return select(all_of([*inside(y, pixels[0]), *inside(x, pixels[1])]), found, 0)

            return _both(t.B, at[2:], lambda r, s: pixel(r, s).astype(accumulator(data.dtype)))

        return compute((data.shape[0], weight.shape[3], inner, *places), element)

    def _products(self, inputs: Stage, weight: Buffer, channels: int, places: Sequence[int]) -> Stage:
        """Sums over the channels: (image, channel, row and column of the tile, place in it)."""
        outer = weight.shape[5]

        def element(n: LoopExpr, o: LoopExpr, *at: LoopExpr) -> LoopExpr:
            def term(block: LoopExpr, c: LoopExpr) -> LoopExpr:
                factor = Load(weight, (o // outer, *at[2:], block, c, o % outer))
                return Load(inputs, (n, block, c, *at)) * factor.astype(inputs.dtype)

            return sum_over(weight.shape[3:5], term)

        return compute((inputs.shape[0], channels, *places), element)


def _both(matrix: np.ndarray, rows: Sequence[LoopExpr], value: Callable[[int, int], LoopExpr]) -> LoopExpr:
    """An element of ``matrix @ value @ matrix.T``."""
    columns = range(matrix.shape[1])
    first = value(0, 0)
    y, x = ([_entry(matrix, row, c, first.dtype) for c in columns] for row in rows)
    return functools.reduce(operator.add, (y[i] * x[j] * value(i, j) for i in columns for j in columns))


def _transforms(op: Op, size: int) -> Transforms:
    if size not in _POINTS:
        raise op.reject(f"tile_size={size} is none of {', '.join(map(str, _POINTS))}")
    return Transforms.of(size)


def _entry(matrix: np.ndarray, row: LoopExpr, column: int, dtype: str) -> LoopExpr:
    """An element of a matrix whose row only the loops know."""
    found: LoopExpr = const(float(matrix[-1, column]), dtype)
    for at in reversed(range(len(matrix) - 1)):
        found = select(binary("eq", row, at), const(float(matrix[at, column]), dtype), found)
    return found
