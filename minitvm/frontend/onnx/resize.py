"""ONNX AffineGrid, Resize and Upsample; of the latter two: ``image.resize2d`` for images, else one axis at a time.

Along an axis, nearest neighbours are a gather, interpolations a weighted sum of two or four gathers, and stretched ones
the sum of one; indices and weights are constants computed here.
"""

import copy
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np

from minitvm.frontend.onnx.matmul import matmul
from minitvm.frontend.onnx.node import OnnxNode, cast, emit, normalize_axis, rank, scalar
from minitvm.frontend.onnx.registry import onnx_op
from minitvm.frontend.onnx.resize_open import OpenAxis, interpolated_along, nearest_along, once, smoothed_along
from minitvm.frontend.onnx.tensor import integers, reshaped
from minitvm.ir.budget import current
from minitvm.ir.dims import Dim, Undecided, falls_short
from minitvm.ir.expr import Constant, Expr
from minitvm.ir.ops._shape import shapes_differ
from minitvm.ir.ops.image import COORDINATES, cubic, line_of, meant

LARGEST_AXIS, LARGEST_MATRIX = 1 << 24, 1 << 26
"""Where indices and weights would fill the memory, the sizes are a mistake."""


@dataclass(frozen=True)
class Axis:
    """The resizing of one axis: extents, the scale that ONNX computes coordinates with, the region of interest."""

    axis: int
    extent: int
    size: int
    scale: float
    start: float = 0.0
    end: float = 1.0

    @property
    def ratio(self) -> Fraction:
        """The scale that is meant."""
        return Fraction(self.size, self.extent) if self.is_whole else meant(self.scale)

    @property
    def is_whole(self) -> bool:
        """True if the scale is that of the extents."""
        return self.extent > 0 and self.scale == self.size / self.extent

    @property
    def is_unchanged(self) -> bool:
        return self.extent == self.size and self.scale == 1 and (self.start, self.end) == (0.0, 1.0)


@dataclass(frozen=True)
class Sampling:
    """The attributes of Resize."""

    mode: str
    coordinates: str
    nearest: str = "round_prefer_floor"
    cubic: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    extrapolation: float = 0.0


@onnx_op("Upsample", since=7)
@onnx_op("Resize", since=10)
def upsample(node: OnnxNode) -> Expr:
    """Resizes by scales (attribute or input), from the upper left corner, rounding down."""
    scales = node.attr("scales") if node.has("scales") else node.constant(1, "scales").tolist()
    mode = {"nearest": "nearest", "linear": "linear", "bilinear": "linear"}[node.attr("mode")]
    return resized(node, _by_scales(node[0].shape, range(rank(node[0])), scales), Sampling(mode, "asymmetric", "floor"))


@onnx_op("Resize", since=11)
def resize_op(node: OnnxNode) -> Expr:
    return _resize(node)


def _resize(node: OnnxNode) -> Expr:
    names = ("mode", "coordinate_transformation_mode", "nearest_mode", "cubic_coeff_a")
    flags = bool(node.attr("exclude_outside")), bool(node.attr("antialias", 0))
    mode, coordinates, nearest, alpha = map(node.attr, names)
    sampling = Sampling(mode, coordinates, nearest, alpha, *flags, node.attr("extrapolation_value"))
    type_ = node[0].tensor_type
    if mode != "nearest" and not type_.is_float and not type_.is_static:
        wide = copy.copy(node)
        wide.inputs = [cast(node[0], "float64"), *node.inputs[1:]]
        return _whole(_resize(wide), type_.dtype)
    node = _with_open_axes(node, sampling)
    return resized(node, _resize_axes(node, sampling), sampling)


def _with_open_axes(node: OnnxNode, sampling: Sampling) -> OnnxNode:
    """The same Resize of what is resized already along the axes whose extents only a run knows: the last one first, as
    single elements are looked up along rows, and whole rows along the others."""
    shape = node[0].tensor_type.shape
    if sampling.coordinates == "tf_crop_and_resize":
        return node
    places, scales, sizes = _asked(node)
    asked = sorted(zip(places, scales or sizes, strict=True), reverse=True)
    asked = [(a, n) for a, n in asked if n != (1.0 if scales else shape[a])]
    open_ = [(a, n) for a, n in asked if not isinstance(shape[a], int) or not isinstance(n, (int, float))]
    is_wide = sampling.mode == "nearest" or not open_ or node[0].dtype != "float16"
    x = node[0] if is_wide else cast(node[0], "float32")
    for number, (axis, given) in enumerate(open_):
        by = _open_axis(axis, shape[axis], given, bool(scales), sampling)
        x = once(x) if number else x
        if sampling.mode == "nearest":
            x = nearest_along(x, by, sampling.nearest)
            continue
        alpha = sampling.cubic if sampling.mode == "cubic" else None
        if sampling.antialias or sampling.exclude_outside:
            x = smoothed_along(x, by, alpha, sampling.antialias, sampling.exclude_outside)
        else:
            x = interpolated_along(x, by, alpha)
    changed = copy.copy(node)
    changed.inputs = [cast(x, node[0].dtype), *node.inputs[1:]]
    return changed


_FEW_DIGITS = 1 << 8


def _open_axis(axis: int, extent: Dim, given: Any, is_scale: bool, sampling: Sampling) -> OpenAxis:
    """By a size, or a scale of so few digits that ``extent * scale`` is not rounded; others need a number."""
    if not is_scale:
        return OpenAxis(axis, extent, given, sampling.coordinates, given, extent)
    above, below = Fraction(given).as_integer_ratio()
    if above >= _FEW_DIGITS or below >= _FEW_DIGITS:
        raise Undecided(f"Resize by {given} of a size that only a run knows")
    return OpenAxis(axis, extent, extent * above // below, sampling.coordinates, above, below)


def _asked(node: OnnxNode) -> tuple[list[int], list[float], list[Dim]]:
    """The axes, and scales or sizes for them."""
    count = rank(node[0])
    places = [normalize_axis(node, a, count) for a in node.attr("axes", None) or range(count)]
    scales = node.constant(2, "scales").tolist() if node.get(2) is not None else []
    sizes = node.sizes(3, "sizes") if node.get(3) is not None else []
    if bool(scales) == bool(sizes):
        raise node.fail("takes either scales or sizes")
    if len(scales or sizes) != len(places):
        raise node.fail(f"{len(scales or sizes)} {'scales' if scales else 'sizes'} for {len(places)} axes")
    if any(falls_short(size, 0) for size in sizes):
        raise node.misfit(f"{node[0].tensor_type} cannot have sizes {sizes}, of which one is less than 0")
    return places, scales, sizes


def _resize_axes(node: OnnxNode, sampling: Sampling) -> list[Axis]:
    shape, (places, scales, sizes) = node[0].shape, _asked(node)
    if sampling.coordinates != "tf_crop_and_resize":
        changed = [i for i, a in enumerate(places) if isinstance(shape[a], int)]
        places = [places[i] for i in changed]
        scales, sizes = [scales[i] for i in changed if scales], [sizes[i] for i in changed if sizes]
    numbers = [*map(operator.index, sizes)]
    found = _by_scales(shape, places, scales) if scales else _by_sizes(node, shape, places, numbers)
    if sampling.coordinates != "tf_crop_and_resize":
        return found
    roi, count = node.constant(1, "roi").tolist(), len(places)
    return [replace(axis, start=roi[i], end=roi[i + count]) for i, axis in enumerate(found)]


def _by_scales(shape: tuple[int, ...], axes: Iterable[int], scales: list[float]) -> list[Axis]:
    pairs = zip(axes, scales, strict=True)
    return [Axis(a, shape[a], _scaled_extent(shape[a], scale), scale) for a, scale in pairs]


def _scaled_extent(extent: int, scale: float) -> int:
    """In float32, as ONNX says: 7 * (19 / 7) is 19 there, and less in double."""
    return int(np.floor(np.float32(extent) * np.float32(scale)))


def _by_sizes(node: OnnxNode, shape: tuple[int, ...], axes: list[int], sizes: list[int]) -> list[Axis]:
    """``keep_aspect_ratio_policy`` picks one scale for all axes."""
    policy = node.attr("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        if any(shape[a] == 0 != n for a, n in zip(axes, sizes, strict=True)):
            raise node.misfit(f"{node[0].tensor_type} has nothing to fill {sizes} with")
        return [Axis(a, shape[a], n, n / shape[a] if n else 1.0) for a, n in zip(axes, sizes, strict=True)]
    choose = {"not_larger": min, "not_smaller": max}[policy]
    scale = choose(n / shape[a] for a, n in zip(axes, sizes, strict=True))
    return [Axis(a, shape[a], math.floor(scale * shape[a] + 0.5), scale) for a in axes]


def resized(node: OnnxNode, axes: list[Axis], sampling: Sampling) -> Expr:
    changed = [axis for axis in axes if not axis.is_unchanged]
    for axis in changed:
        if axis.size > LARGEST_AXIS or axis.size * axis.extent > LARGEST_MATRIX:
            raise node.misfit(f"axis {axis.axis} of {node[0].tensor_type} cannot be resized to {axis.size}")
    x = node[0]
    if sampling.mode == "nearest" or x.tensor_type.is_float or not changed:
        return _sampled(node, x, changed, sampling)
    return _whole(_sampled(node, cast(x, "float64"), changed, sampling), x.dtype)


def _sampled(node: OnnxNode, x: Expr, changed: list[Axis], sampling: Sampling) -> Expr:
    if changed and _is_image(x, changed, sampling):
        return _image(x, changed, sampling)
    for axis in changed:
        x = _along(node, x, axis, sampling)
    return x


_STEPS = 1 << 16
"""Sums of weighted integers are right to far more than 1 / 65536; what is closer to a whole number is one."""


def _whole(x: Expr, dtype: str) -> Expr:
    """Interpolated integers: without their fraction, as in ONNX Runtime; the cubic kernel may leave the dtype's range.

    x: float64.  Rounding errors do not turn 100 into 99.
    """
    steps = scalar(_STEPS, x)
    near = emit("divide", emit("round", emit("multiply", x, steps)), steps)
    info = np.iinfo(dtype)
    return cast(emit("clip", near, a_min=float(info.min), a_max=float(np.nextafter(info.max + 1.0, 0))), dtype)


_METHODS = {"nearest": "nearest_neighbor", "linear": "linear", "cubic": "cubic"}


def _is_image(x: Expr, axes: list[Axis], sampling: Sampling) -> bool:
    """What ``image.resize2d`` can do: height and width of NCHW, with kernels that are neither stretched nor cut."""
    plain = not sampling.antialias and not sampling.exclude_outside and sampling.coordinates in COORDINATES
    sizes = all(a.axis >= 2 and a.size > 0 and a.scale > 0 for a in axes)
    known = all(isinstance(extent, int) and extent for extent in x.tensor_type.shape[2:])
    return rank(x) == 4 and plain and sizes and known


def _image(x: Expr, axes: list[Axis], sampling: Sampling) -> Expr:
    by_axis = {axis.axis: axis for axis in axes}
    height, width = (by_axis.get(d, Axis(d, x.shape[d], x.shape[d], 1.0)) for d in (2, 3))
    exact = height.is_whole and width.is_whole
    return emit(
        "image.resize2d",
        x,
        size=(height.size, width.size),
        method=_METHODS[sampling.mode],
        coordinate_transformation_mode=sampling.coordinates,
        rounding_method=sampling.nearest if sampling.mode == "nearest" else "",
        cubic_alpha=sampling.cubic,
        scales=() if exact else (height.scale, width.scale),
    )


def _along(node: OnnxNode, x: Expr, axis: Axis, sampling: Sampling) -> Expr:
    places = source_coordinates(node, axis, sampling.coordinates)
    if sampling.mode == "nearest":
        indices = np.clip(_ROUNDING[sampling.nearest](places), 0, axis.extent - 1).astype(np.int64)
        result = emit("take", x, integers(indices), axis=axis.axis, mode="clip")
    else:
        result = _interpolated(x, axis, *_taps(axis, sampling, places))
    return result if sampling.coordinates != "tf_crop_and_resize" else _extrapolated(result, axis, places, sampling)


_ROUNDING: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda v: np.ceil(v - 0.5),
    "round_prefer_ceil": lambda v: np.floor(v + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def source_coordinates(node: OnnxNode, axis: Axis, mode: str) -> np.ndarray:
    """The place where each element of the result lies on the input's axis: (size,) float64, quotients of whole
    numbers."""
    x, n, size = np.arange(axis.size, dtype=np.float64), axis.extent, axis.size
    if mode == "tf_crop_and_resize":
        step = (axis.end - axis.start) * (n - 1) / (size - 1) if size > 1 else 0.0
        return x * step + (axis.start if size > 1 else (axis.start + axis.end) / 2) * (n - 1)
    if mode not in (*COORDINATES, "tf_half_pixel_for_nn"):
        raise node.refuse("coordinate_transformation_mode")
    if not size:
        return x
    line = line_of(mode, size, n, axis.ratio)
    return (x * line.slope + line.start) / line.denominator


def _interpolated(x: Expr, axis: Axis, taps: np.ndarray, weights: np.ndarray) -> Expr:
    """Weighted neighbours; float16 in float32.  taps, weights: (size, taps)."""
    if x.dtype == "float16":
        return cast(_interpolated(cast(x, "float32"), axis, taps, weights), "float16")
    if taps.shape[1] > 4:
        return _stretched(x, axis, *_merged(taps, weights))
    parts = []
    for indices, weight in zip(taps.T, weights.T.astype(x.dtype), strict=True):
        neighbour = emit("take", x, integers(indices), axis=axis.axis, mode="clip")
        parts.append(emit("multiply", neighbour, Constant(_beside(weight, axis, rank(x)))))
    return reduce(lambda total, part: emit("add", total, part), parts)


def _merged(taps: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Taps at the edges that are one pixel weigh together; all but the first of them weigh 0."""
    rows = np.arange(len(taps))[:, None]
    total = np.zeros((len(taps), taps.max(initial=0) + 1))
    np.add.at(total, (rows, taps), weights)
    return taps, np.where(np.diff(taps, prepend=-1, axis=1) > 0, total[rows, taps], 0)


def _stretched(x: Expr, axis: Axis, taps: np.ndarray, weights: np.ndarray) -> Expr:
    """A sum over many taps, which are gathered side by side.  What weighs 0 has no part in it, infinite or not."""
    inner = (1,) * (rank(x) - 1 - axis.axis)
    counted, factors = (v.reshape(*taps.shape, *inner) for v in (weights != 0, weights.astype(x.dtype)))
    near = emit("take", x, integers(taps), axis=axis.axis, mode="clip")
    parts = emit("multiply", emit("where", Constant(counted), near, scalar(0, x)), Constant(factors))
    return emit("sum", parts, axis=(axis.axis + 1,))


def _beside(values: np.ndarray, axis: Axis, of_rank: int) -> np.ndarray:
    return values.reshape([-1 if d == axis.axis else 1 for d in range(of_rank)])


def _taps(axis: Axis, sampling: Sampling, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which elements each of the result is made of, and their weights, which add up to 1: (size, taps) both.

    ``antialias`` stretches the kernel where the axis shrinks.
    """
    stretch = 1 / axis.scale if sampling.antialias and axis.scale < 1 else 1.0
    reach = math.ceil((1 if sampling.mode == "linear" else 2) * stretch)
    current().require("bytes", 8.0 * len(places) * 2 * reach, f"{2 * reach:,} neighbours of {len(places):,} places")
    taps = np.floor(places)[:, None] + np.arange(1 - reach, 1 + reach)
    values = _kernel(np.abs(taps - places[:, None]) / stretch, sampling)
    if sampling.exclude_outside:
        values = np.where((taps >= 0) & (taps < axis.extent), values, 0)
    total = values.sum(axis=1, keepdims=True)
    return np.clip(taps, 0, axis.extent - 1).astype(np.int64), values / np.where(total == 0, 1, total)


def _kernel(distance: np.ndarray, sampling: Sampling) -> np.ndarray:
    """The weight of a tap at a distance: a tent, or Keys' cubic."""
    return np.clip(1 - distance, 0, None) if sampling.mode == "linear" else cubic(distance, sampling.cubic)


def _extrapolated(x: Expr, axis: Axis, places: np.ndarray, sampling: Sampling) -> Expr:
    """Elements whose place is outside of the input get a fixed value."""
    outside = (places < 0) | (places > axis.extent - 1)
    if not outside.any():
        return x
    fill = Constant(np.asarray(sampling.extrapolation, x.dtype))
    return emit("where", Constant(_beside(outside, axis, rank(x))), fill, x)


# --- AffineGrid -----------------------------------------------------------------------------------------------

LARGEST_GRID = 1 << 26
"""More pixels are a mistake: their coordinates are constants."""


@onnx_op("AffineGrid", since=20)
def affine_grid(node: OnnxNode) -> Expr:
    """theta: (n, d, d + 1), of every pixel's coordinates: (n, ..., d), the last axis (x first) from -1 to 1.

    ONNX's own definition drops a batch of one.
    """
    theta, size = node[0], [int(s) for s in node.constant(1, "size").reshape(-1)]
    batch, spatial = size[0], size[2:]
    expected = (batch, len(spatial), len(spatial) + 1)
    if len(spatial) not in (2, 3) or shapes_differ(theta.shape, expected):
        raise node.misfit(f"theta is {theta.tensor_type}; size {size} takes {expected}")
    if np.prod(spatial, dtype=float) > LARGEST_GRID:
        raise node.fail(f"size {size} has more than {LARGEST_GRID} pixels")
    points = _points(spatial, bool(node.attr("align_corners", 0))).astype(theta.dtype)
    moved = emit("transpose", matmul(node, theta, Constant(points)), axes=(0, 2, 1))
    return reshaped(moved, [batch, *spatial, len(spatial)], allowzero=True)


def _points(spatial: Sequence[int], align_corners: bool) -> np.ndarray:
    """Homogeneous coordinates, x first: (d + 1, pixels)."""
    axes = [_coordinates(extent, align_corners) for extent in spatial]
    grid = np.meshgrid(*axes, indexing="ij")
    return np.stack([*(axis.reshape(-1) for axis in reversed(grid)), np.ones(grid[0].size)])


def _coordinates(extent: int, align_corners: bool) -> np.ndarray:
    """Centres of ``extent`` pixels that fill -1 to 1, or, with ``align_corners``, points from -1 to 1."""
    if align_corners:
        return np.linspace(-1, 1, extent) if extent != 1 else np.ones(1)
    return (2 * np.arange(extent) + 1) / max(extent, 1) - 1
