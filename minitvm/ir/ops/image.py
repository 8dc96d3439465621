"""Resizing images.

Where a pixel of the result lies in the input is a fraction, and is computed as one: no rounding error moves a
nearest neighbour.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Annotated

import numpy as np

from minitvm.ir.decision import Declined
from minitvm.ir.dims import Dim, Undecided, lacks, product
from minitvm.ir.layout import Layout
from minitvm.ir.loop import Buffer, Const, LoopExpr, Stage, maximum, minimum, select
from minitvm.ir.op import Fusion, Op, compute, sum_over
from minitvm.ir.ops._shape import replaced
from minitvm.ir.relayout import Placement, Site, whole_planes
from minitvm.ir.types import TensorType, accumulator, type_of

METHODS = ("nearest_neighbor", "linear", "cubic")
_UPSAMPLING = {"nearest_neighbor": "nearest_neighbor", "bilinear": "linear", "bicubic": "cubic"}
COORDINATES = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "half_pixel_symmetric")
ROUNDINGS = ("", "round", "round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
_LARGEST_DENOMINATOR = 1 << 14  # scales come as rounded floats: 0.6 is meant as 3 / 5


def meant(scale: float) -> Fraction:
    """The fraction that a positive scale, or its inverse, is the rounding of: 1.0909091 is 12 / 11."""
    if 0 < scale < 1:
        return 1 / meant(1 / scale)
    return Fraction(scale).limit_denominator(_LARGEST_DENOMINATOR)


@dataclass(frozen=True)
class Line:
    """A coordinate of the input for each place ``i`` of the result: ``(slope * i + start) / denominator``."""

    slope: int
    start: int
    denominator: int

    @staticmethod
    def through(slope: Fraction, start: Fraction) -> Line:
        denominator = math.lcm(slope.denominator, start.denominator)
        return Line(int(slope * denominator), int(start * denominator), denominator)

    def plus(self, offset: Fraction) -> Line:
        return Line.through(Fraction(self.slope, self.denominator), Fraction(self.start, self.denominator) + offset)

    def floor(self, i: LoopExpr) -> LoopExpr:
        common = math.gcd(self.slope, self.denominator)
        return (i * (self.slope // common) + self.start // common) // (self.denominator // common)

    def fraction(self, i: LoopExpr, dtype: str) -> LoopExpr:
        """What :meth:`floor` leaves, in [0, 1)."""
        rest = (i * self.slope + self.start) % self.denominator
        return rest.astype(dtype) / float(self.denominator)

    def rounded(self, i: LoopExpr, rounding: str) -> LoopExpr:
        if rounding == "ceil":  # ceil(n / d) is floor((n + d - 1) / d)
            return self.plus(Fraction(self.denominator - 1, self.denominator)).floor(i)
        if rounding == "round_prefer_floor":
            return self.plus(Fraction(-1, 2)).rounded(i, "ceil")
        return self.floor(i) if rounding == "floor" else self.plus(Fraction(1, 2)).floor(i)


def line_of(mode: str, size: int, extent: int, scale: Fraction) -> Line:
    """The place where the pixels of an axis that grows by ``scale`` lie."""
    if size == 1 and mode in ("align_corners", "pytorch_half_pixel"):
        return Line(0, 0, 1)
    if mode == "align_corners":
        return Line.through(Fraction(extent - 1, size - 1), Fraction(0))
    start = {"asymmetric": Fraction(0), "tf_half_pixel_for_nn": 1 / (2 * scale)}
    shift = Fraction(extent, 2) - Fraction(size, 2) / scale if mode == "half_pixel_symmetric" else 0
    return Line.through(1 / scale, start.get(mode, 1 / (2 * scale) - Fraction(1, 2) + shift))


def cubic(distance: np.ndarray, a: float) -> np.ndarray:
    """Keys' kernel at distances from a pixel."""
    d = np.abs(distance)
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    return np.asarray(np.where(d <= 1, near, np.where(d < 2, a * (d**3 - 5 * d**2 + 8 * d - 4), 0)))


def _nearest(place: Fraction, rounding: str) -> int:
    """The pixel that a place is rounded to."""
    if rounding == "floor":
        return math.floor(place)
    if rounding == "ceil":
        return math.ceil(place)
    half = Fraction(1, 2)
    return math.ceil(place - half) if rounding == "round_prefer_floor" else math.floor(place + half)


class Resize2d(Op, name="image.resize2d", fusion=Fusion.INJECTIVE, takes_stored=False, fixed_from=2):
    """Resizes H and W.  data: NCHW (or NHWC, NCHW[x]c) -> the same with ``size`` = (height, width).

    ``scales`` (height, width) are what coordinates are computed with where they differ from size over extent, as
    ONNX has it.  ``rounding_method`` "" rounds nearest neighbours down, with ``align_corners`` to the nearest.
    ``coordinate_transformation_mode`` is ONNX's, ``method`` what is between pixels, ``layout`` the data's.
    ``cubic_alpha`` is the parameter of the cubic kernel.  Pixels beyond the border repeat it.
    """

    size: tuple[int, ...] = ()
    layout: str = "NCHW"
    method: Annotated[str, METHODS] = "linear"
    coordinate_transformation_mode: Annotated[str, COORDINATES] = "half_pixel"
    rounding_method: Annotated[str, ROUNDINGS] = ""
    cubic_alpha: float = -0.5
    scales: tuple[float, ...] = ()

    def infer(self, data: TensorType) -> TensorType:
        self._check()
        layout = Layout(self.layout)
        if sorted(layout.primal) != sorted("NCHW") or "h" in layout or "w" in layout or data.rank != layout.rank:
            raise self.reject(f"layout={self.layout!r} must have the axes N, C, H, W and fit the input, {data}")
        if self.method != "nearest_neighbor" and not data.is_float:
            raise self.reject(f"method={self.method!r} takes floats, not {data}", hint="cast the input")
        shape: list[Dim] = list(data.shape)
        for axis, size in zip("HW", self.size, strict=True):
            shape[layout.index(axis)] = size
        if lacks(product(data.shape[layout.index(axis)] for axis in "HW"), product(shape)):
            raise self.reject(f"the input has no pixels: {data}")
        return data.with_shape(tuple(shape))

    def _check(self) -> None:
        if len(self.size) != 2 or min(self.size) < 1:
            raise self.reject(f"size={list(self.size)} must be a height and a width, both positive")
        if len(self.scales) not in (0, 2) or any(s <= 0 for s in self.scales):
            raise self.reject(f"scales={list(self.scales)} must be those of height and width, both positive")

    @property
    def _rounding(self) -> str:
        default = "round" if self.coordinate_transformation_mode == "align_corners" else "floor"
        return self.rounding_method or default

    def _scale(self, d: int, extent: int) -> Fraction:
        """How much axis ``d`` (0 height, 1 width) grows."""
        if self.scales:
            return meant(self.scales[d])
        return Fraction(self.size[d], max(extent, 1))

    def reference(self, data: np.ndarray) -> np.ndarray:
        layout = Layout(self.layout)
        if not data.size:
            return np.zeros(self.infer(type_of(data)).static_shape, data.dtype)
        result = data
        for d, axis in enumerate("HW"):
            at = layout.index(axis)
            taps, weights = self._taps(self._places(d, data.shape[at]), data.shape[at])
            result = _gather(result, at, taps, None if self.method == "nearest_neighbor" else weights)
        return result.astype(data.dtype)

    def _places(self, d: int, extent: int) -> list[Fraction]:
        """The place where each pixel of the result lies along an axis of the input."""
        size, scale, half = self.size[d], self._scale(d, extent), Fraction(1, 2)
        mode = self.coordinate_transformation_mode
        if (mode == "pytorch_half_pixel" or mode == "align_corners") and size == 1:
            return [Fraction(0)]
        if mode == "align_corners":
            return [Fraction(i * (extent - 1), size - 1) for i in range(size)]
        if mode == "asymmetric":
            return [i / scale for i in range(size)]
        shift = Fraction(extent, 2) * (1 - size / (scale * extent)) if mode == "half_pixel_symmetric" else Fraction(0)
        return [shift + (i + half) / scale - half for i in range(size)]

    def _taps(self, places: Sequence[Fraction], extent: int) -> tuple[np.ndarray, np.ndarray]:
        """Pixels of the input that make up each of the result, and their weights: (size, taps) both."""
        floors = np.array([math.floor(p) for p in places])
        rest = np.array([float(p - math.floor(p)) for p in places])
        if self.method == "nearest_neighbor":
            taps = np.array([[_nearest(p, self._rounding)] for p in places])
            return np.clip(taps, 0, extent - 1), np.ones(taps.shape)
        offsets = np.array([0, 1] if self.method == "linear" else [-1, 0, 1, 2])
        distance = rest[:, None] - offsets
        weights = 1 - np.abs(distance) if self.method == "linear" else cubic(distance, self.cubic_alpha)
        return np.clip(floors[:, None] + offsets, 0, extent - 1), weights

    def compute(self, data: Buffer) -> Stage:
        layout = Layout(self.layout)
        axes = [layout.index("H"), layout.index("W")]
        mode, extents = self.coordinate_transformation_mode, [data.shape[at] for at in axes]
        lines = [line_of(mode, self.size[d], n, self._scale(d, n)) for d, n in enumerate(extents)]
        shape = self.infer(TensorType(data.shape, data.dtype)).extents

        def pixel(index: Sequence[LoopExpr], where: Sequence[LoopExpr]) -> LoopExpr:
            kept = [minimum(maximum(i, 0), data.shape[at] - 1) for i, at in zip(where, axes, strict=True)]
            position = dict(zip(axes, kept, strict=True))
            return data[tuple(position.get(d, i) for d, i in enumerate(index))]

        def nearest(*index: LoopExpr) -> LoopExpr:
            at = zip(lines, axes, strict=True)
            return pixel(index, [line.rounded(index[d], self._rounding) for line, d in at])

        if self.method == "nearest_neighbor":
            return compute(shape, nearest)
        rows = replace(self._between(data, lines[0], axes[0], self.size[0]), kept=True)
        result = self._between(rows, lines[1], axes[1], self.size[1])
        return compute(shape, lambda *index: result[index].astype(data.dtype))

    def _between(self, data: Buffer, line: Line, at: int, size: int) -> Stage:
        """``size`` positions on a line along one axis, each the weighted sum of the 2 or 4 elements around it."""
        wide, last = accumulator(data.dtype), data.shape[at] - 1

        def element(*index: LoopExpr) -> LoopExpr:
            low, rest = line.floor(index[at]), line.fraction(index[at], wide)

            def near(shift: LoopExpr | int) -> LoopExpr:
                return data[replaced(index, at, minimum(maximum(low + shift, 0), last))].astype(wide)

            if self.method == "linear":
                return near(0) * (1.0 - rest) + near(1) * rest
            return sum_over(4, lambda tap: near(tap - Const(1)) * self._keys(rest, tap))

        return compute((*data.shape[:at], size, *data.shape[at + 1 :]), element)

    def _keys(self, rest: LoopExpr, tap: LoopExpr) -> LoopExpr:
        """The cubic kernel's weight of tap 0 to 3, the pixel ``tap - 1`` after the floor."""
        a, signed = self.cubic_alpha, rest - (tap - Const(1)).astype(rest.dtype)
        d = maximum(signed, -signed)
        near = ((a + 2) * d - (a + 3)) * d * d + 1.0
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return select(d <= 1.0, near, far)

    def relayout(self, site: Site) -> Placement | Declined:
        return whole_planes(site, self.layout, "HW")


def _gather(data: np.ndarray, axis: int, taps: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Along ``axis`` the weighted sum of some elements; without weights the one element itself."""
    if weights is None:
        return data.take(taps[:, 0], axis=axis)
    shape = [-1 if d == axis else 1 for d in range(data.ndim)]
    wide = np.promote_types(data.dtype, "float32")
    terms = [data.take(taps[:, t], axis=axis) * weights[:, t].reshape(shape).astype(wide) for t in range(taps.shape[1])]
    return np.asarray(sum(terms[1:], terms[0]))


class Upsampling(Op, name="nn.upsampling", fusion=Fusion.INJECTIVE, takes_stored=False, fixed_from=2):
    """Enlarges H by ``scale_h`` and W by ``scale_w``.  data: ``layout`` NCHW, NHWC, NCHW[x]c -> the same; extents
    are rounded.

    ``method`` is what is between pixels; with ``align_corners`` corners stay where they are."""

    scale_h: float = 1.0
    scale_w: float = 1.0
    layout: str = "NCHW"
    method: Annotated[str, tuple(_UPSAMPLING)] = "nearest_neighbor"
    align_corners: bool = False

    def _resize(self, shape: Sequence[Dim]) -> Resize2d:
        """The same as a resize of an input of this shape."""
        layout = Layout(self.layout)
        if len(shape) != layout.rank or "H" not in layout or "W" not in layout:
            raise self.reject(f"layout={self.layout!r} does not fit an input of {len(shape)} dimensions")
        size = [n if isinstance(n, int) else 1 for n in self._size([shape[layout.index(axis)] for axis in "HW"])]
        mode = "align_corners" if self.align_corners else "asymmetric"
        return Resize2d(tuple(size), self.layout, _UPSAMPLING[self.method], mode)

    def _size(self, extents: Sequence[Dim]) -> list[Dim]:
        """Height and width of the result; of symbols only whole multiples have a name."""
        pairs = list(zip(extents, (self.scale_h, self.scale_w), strict=True))
        if any(not isinstance(n, int) and scale != int(scale) for n, scale in pairs):
            needed = "the input's H and W must be known where a scale is no whole number"
            raise self.reject(needed) from Undecided(extents)
        return [round(n * scale) if isinstance(n, int) else n * int(scale) for n, scale in pairs]

    def infer(self, data: TensorType) -> TensorType:
        found, layout = self._resize(data.shape).infer(data), Layout(self.layout)
        places = [layout.index(axis) for axis in "HW"]
        size = dict(zip(places, self._size([data.shape[d] for d in places]), strict=True))
        return found.with_shape(tuple(size.get(d, n) for d, n in enumerate(found.shape)))

    def reference(self, data: np.ndarray) -> np.ndarray:
        return self._resize(data.shape).reference(data)

    def compute(self, data: Buffer) -> Stage:
        return self._resize(data.shape).compute(data)

    def relayout(self, site: Site) -> Placement | Declined:
        return whole_planes(site, self.layout, "HW")
