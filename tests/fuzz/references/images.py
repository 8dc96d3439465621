"""Images: pools, convolutions, Resize and Upsample.

ONNX's pools lose NaN, its Conv multiplies infinity with 0 between the taps, its ConvTranspose has one channel a group,
its QLinearConv gives images of one dimension another; its Resize weighs infinity with 0, takes the pixel before the
nearest one where a coordinate is a whole number but for a rounding, and knows no opset before 11; its Upsample takes
nearest pixels by whole scales only.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tests.fuzz.references.registry import Array, reference, single


class _Window:
    """A window over an image of some size, from the attributes of its node."""

    def __init__(
        self,
        sizes: Sequence[int],
        kernel: Sequence[int],
        strides: Sequence[int] | None = None,
        dilations: Sequence[int] | None = None,
        pads: Sequence[int] | None = None,
        auto_pad: bytes = b"NOTSET",
        ceil_mode: int = 0,
    ) -> None:
        rank, self.kernel = len(sizes), kernel
        self.strides, self.dilations = (list(given or [1] * rank) for given in (strides, dilations))
        spans = [d * (k - 1) + 1 for k, d in zip(kernel, self.dilations, strict=True)]
        flat = list(pads or [0] * 2 * rank)
        self.pads = list(zip(flat[:rank], flat[rank:], strict=True))
        if auto_pad.startswith(b"SAME"):
            totals = [max(-(-s // t) * t - t + w - s, 0) for s, t, w in zip(sizes, self.strides, spans, strict=True)]
            halves = [t // 2 if auto_pad == b"SAME_UPPER" else -(-t // 2) for t in totals]
            self.pads = [(h, t - h) for h, t in zip(halves, totals, strict=True)]
        self.counts = []
        for s, (low, high), span, t in zip(sizes, self.pads, spans, self.strides, strict=True):
            room = s + low + high - span
            count = -(-room // t) + 1 if ceil_mode or room < 0 else room // t + 1
            self.counts.append(count - 1 if ceil_mode and (count - 1) * t >= s + low else count)

    def parts(self, image: Array, padding: Any) -> Iterator[Array]:
        """For each place in the window, what lies there, for all windows; ``padding`` outside of the image."""
        axes = list(
            zip(self.counts, self.strides, self.dilations, self.kernel, self.pads, image.shape[2:], strict=True)
        )
        around = [(low, max((m - 1) * t + d * (k - 1) + 1 - low - s, 0)) for m, t, d, k, (low, _), s in axes]
        wide = np.pad(image, [(0, 0), (0, 0), *around], constant_values=padding)
        for at in np.ndindex(*self.kernel):
            starts = [i * d for i, (_, _, d, *_) in zip(at, axes, strict=True)]
            cut = [slice(a, a + (m - 1) * t + 1 if m > 0 else a, t) for a, (m, t, *_) in zip(starts, axes, strict=True)]
            yield wide[tuple(itertools.chain((slice(None),) * 2, cut))]


@reference("MaxPool")
def max_pool(x: Array, *, kernel_shape: Sequence[int], storage_order: int = 0, **given: Any) -> tuple[Array, Array]:
    """NaN is larger than any number, in windows as in all of minitvm, numpy and ONNX's Max."""
    window = _Window(x.shape[2:], kernel_shape, **given)
    order = x.shape[:1:-1] if storage_order else x.shape[2:]
    places = np.arange(math.prod(order)).reshape(order)
    places = places.T if storage_order else places
    starts = np.arange(math.prod(x.shape[:2])).reshape(*x.shape[:2], *[1] * places.ndim) * places.size
    least = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    parts = zip(window.parts(x, least), window.parts(starts + places, 0), strict=True)
    best, where = next(parts)
    for value, place in parts:
        larger = (value > best) | (np.isnan(value) & ~np.isnan(best))
        best, where = np.where(larger, value, best), np.where(larger, place, where)
    return best, where


@reference("AveragePool")
def average_pool(x: Array, *, kernel_shape: Sequence[int], count_include_pad: int = 0, **given: Any) -> Array:
    window = _Window(x.shape[2:], kernel_shape, **given)
    total = np.asarray(sum(window.parts(single(x), 0)))
    counted = np.pad(np.ones(x.shape[2:]), window.pads, constant_values=count_include_pad)
    given |= {"pads": None, "auto_pad": b"VALID"}
    count = sum(_Window(counted.shape, kernel_shape, **given).parts(counted[None, None], 0))
    same: tuple[Any, ...] = (..., *map(slice, total.shape[2:]))
    return np.asarray(total / np.asarray(count)[same], x.dtype)


@reference("LpPool")
def lp_pool(x: Array, *, kernel_shape: Sequence[int], p: int = 2, **given: Any) -> Array:
    total = sum(np.abs(part) ** p for part in _Window(x.shape[2:], kernel_shape, **given).parts(single(x), 0))
    return np.asarray(total ** (1 / p), x.dtype)


@reference("GlobalLpPool")
def global_lp_pool(x: Array, *, p: int = 2) -> Array:
    total = (np.abs(single(x)) ** p).sum(tuple(range(2, x.ndim)), keepdims=True)
    return np.asarray(total ** (1 / p), x.dtype)


@reference("GlobalMaxPool")
def global_max_pool(x: Array) -> Array:
    return np.asarray(x.max(tuple(range(2, x.ndim)), keepdims=True))


def _products(x: Array, w: Array, group: int, given: dict[str, Any]) -> Array:
    """x: (N, C, image...), w: (M, C / groups, kernel...) -> (N, M, image...)."""
    taps = np.stack(list(_Window(x.shape[2:], w.shape[2:], **given).parts(x, 0)), 2)
    by_group = zip(np.split(taps, group, 1), np.split(w.reshape(*w.shape[:2], taps.shape[2]), group), strict=True)
    return np.concatenate([np.einsum("nck...,mck->nm...", part, weight) for part, weight in by_group], 1)


@reference("Conv")
def conv(
    x: Array, w: Array, b: Array | None = None, *, group: int = 1, kernel_shape: Sequence[int] = (), **given: Any
) -> Array:
    found = _products(single(x), single(w), group, given)
    return np.asarray(found if b is None else found + b.reshape(-1, *[1] * (x.ndim - 2)), x.dtype)


@reference("QLinearConv")
def qlinear_conv(*operands: Array, group: int = 1, kernel_shape: Sequence[int] = (), **given: Any) -> Array:
    """Data, weights and result, each with scale and zero point (the result without itself), and a bias.  Sums are those
    of integers; one rounding."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, *bias = operands
    by_output = (-1, *[1] * (x.ndim - 2))
    weights = w.astype(float) - w_zero.reshape(-1, *[1] * (x.ndim - 1)).astype(float)
    total = _products(x.astype(float) - x_zero.astype(float).reshape(()), weights, group, given)
    total = total + (bias[0].reshape(by_output) if bias else 0)
    factor = x_scale.reshape(()) * w_scale / y_scale.reshape(())
    info = np.iinfo(y_zero.dtype)
    found = np.rint(total.astype(np.float32) * factor.reshape(by_output)) + y_zero.astype(np.float32).reshape(())
    return np.asarray(np.clip(found, info.min, info.max), y_zero.dtype)


@reference("ConvTranspose")
def conv_transpose(
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    group: int = 1,
    kernel_shape: Sequence[int] = (),
    strides: Sequence[int] = (),
    dilations: Sequence[int] = (),
    **given: Any,
) -> Array:
    """x: (N, C, image...), w: (C, M / groups, kernel...).  Every tap adds a grid of products to the result."""
    image, kernel = np.array(x.shape[2:]), np.array(w.shape[2:])
    one = np.ones_like(image)
    step, spread = np.array(strides or one), np.array(dilations or one)
    full = (image - 1) * step + (kernel - 1) * spread + 1
    before, extent = _transposed_extent(full, image * step, **given)
    flat = w.reshape(*w.shape[:2], int(kernel.prod()))
    grids = np.zeros((len(x), w.shape[1] * group, *np.maximum(full, before + extent)), single(x).dtype)
    by_group = zip(*(np.split(*a) for a in ((single(x), group, 1), (flat, group), (grids, group, 1))), strict=True)
    for part, weight, total in by_group:
        for i, tap in enumerate(np.ndindex(*kernel)):
            start = spread * tap
            total[_box(start, start + step * image, step)] += np.einsum("nc...,cm->nm...", part, weight[:, :, i])
    found = grids[_box(before, before + extent, one)]
    return np.asarray((found if b is None else found + b.reshape(-1, *one)).astype(x.dtype))


def _box(start: Array, stop: Array, step: Array) -> tuple[Any, ...]:
    """The index of some pixels in all images."""
    return (slice(None), slice(None), *map(slice, start, stop, step))


def _transposed_extent(
    full: Array, same: Array, auto_pad: bytes = b"NOTSET", pads: Sequence[int] = (), output_padding: Sequence[int] = ()
) -> tuple[Array, Array]:
    """What is cut off in front of the ``full`` image, and the extent of what is kept."""
    count, extra = len(full), np.array(output_padding or 0 * full)
    if not auto_pad.startswith(b"SAME"):
        around = np.array(pads if pads and auto_pad == b"NOTSET" else [0] * (2 * count))
        return around[:count], full + extra - around[:count] - around[count:]
    cut = full + extra - same
    return (cut // 2 if auto_pad == b"SAME_UPPER" else cut - cut // 2), same


# --- resizing; which pixel a coordinate rounds to, and what infinity adds where it weighs 0, ONNX leaves open ---------

_NEAREST: dict[bytes, Callable[[Array], Array]] = {
    b"round_prefer_floor": lambda c: np.ceil(c - 0.5),
    b"round_prefer_ceil": lambda c: np.floor(c + 0.5),
    b"floor": np.floor,
    b"ceil": np.ceil,
}


def given_scales(operands: Sequence[Array | None], rank: int) -> Array | None:
    found = (a for a in operands[1:3] if a is not None and a.dtype == np.float32 and a.size == rank)
    return next(found, None)


def nearest(x: Array, sizes: Array, scales: Array | None, given: Mapping[str, Any], opset: int) -> Array:
    """Resize by taking the nearest pixel, coordinates in double."""
    for axis, m in enumerate(sizes):
        if x.shape[axis] and (m != x.shape[axis] or scales is not None):
            places = _pixels(x.shape[axis], int(m), None if scales is None else scales[axis], given, opset)
            x = np.take(x, next(places), axis)
    return x


def undecided(x: Array, shape: Sequence[int], scales: Array | None, given: Mapping[str, Any], opset: int) -> Array:
    """Elements of a result of ``shape`` whose pixel depends on whether coordinates are computed in float32 or double,
    by a division or by a product with the reciprocal; of an interpolation, those with an infinite neighbour."""
    found, large = np.zeros(tuple(shape), bool), _large(x)
    for axis, (n, m) in enumerate(zip(x.shape, shape, strict=True)):
        scale = None if scales is None else scales[axis]
        if given.get("mode", b"nearest") == b"nearest":
            first, *others = _pixels(n, m, scale, given, opset)
            differ = np.any([c != first for c in others], axis=0)
            found |= np.expand_dims(differ, tuple(a for a in range(len(shape)) if a != axis))
            continue
        floors = np.floor(next(coordinates(n, m, scale, given, opset)))
        near = [np.clip(floors + o, 0, n - 1).astype(np.int64) for o in (-1, 0, 1, 2)]
        large = np.any([np.take(large, places, axis) for places in near], axis=0)
    return found if large.shape != found.shape else found | large


def _pixels(n: int, m: int, scale: Any, given: Mapping[str, Any], opset: int) -> Iterator[Array]:
    """The pixels of an axis, computed in one way after the other; in double by division first."""
    way = _NEAREST[given.get("nearest_mode", b"round_prefer_floor" if opset >= 11 else b"floor")]
    for c in coordinates(n, m, scale, given, opset):
        yield np.clip(way(c), 0, n - 1).astype(np.int64)


def _large(x: Array) -> Array:
    if x.dtype.kind != "f":
        return np.zeros(x.shape, bool)
    return ~(np.abs(x.astype(np.float64)) < float(np.finfo(x.dtype).max) / 16)


def coordinates(n: int, m: int, scale: Any, given: Mapping[str, Any], opset: int) -> Iterator[Array]:
    """Where the pixels of a result lie in the image, computed in one way after the other; in double first."""
    how = given.get("coordinate_transformation_mode", b"half_pixel" if opset >= 11 else b"asymmetric")
    for scale_of in [m / n] if scale is None else [float(scale), m / n]:
        for dtype in (np.float64, np.float32):
            o, s = np.arange(m, dtype=dtype), dtype(scale_of)
            if how == b"align_corners":
                yield o * dtype((n - 1) / (m - 1) if m > 1 else 0)
                yield (o * dtype(n - 1)) / dtype(max(m - 1, 1))
                continue
            half = dtype(0 if how == b"asymmetric" or (how == b"pytorch_half_pixel" and m == 1) else 0.5)
            centre = (
                dtype(n / 2) * (1 - dtype(m) / (s * dtype(n))) if how == b"half_pixel_symmetric" and n else dtype(0)
            )
            if how == b"pytorch_half_pixel" and m == 1:
                o = o * 0
            yield centre + (o + half) / s - half
            yield centre + (o + half) * (1 / s) - half


_OLD = {"coordinate_transformation_mode": b"asymmetric", "nearest_mode": b"floor"}
"""What Resize before opset 11 and Upsample do."""


@reference("Resize")
def resize(x: Array, *operands: Array | None, opset: int, mode: bytes = b"nearest", **given: Any) -> Array:
    """Sizes are found in float32."""
    if opset < 11:
        return _resized(x, operands[0], None, {"mode": mode, **_OLD}, opset)
    scales, sizes = (None if a is None or a.size == 0 else a for a in (*operands, None, None)[1:3])
    return _resized(x, scales, sizes, {"mode": mode, **given}, opset)


@reference("Upsample")
def upsample(
    x: Array, given: Array | None = None, *, opset: int, mode: bytes = b"nearest", scales: Sequence[float] = ()
) -> Array:
    return _resized(x, np.array(scales, "float32") if given is None else given, None, {"mode": mode, **_OLD}, opset)


def _resized(x: Array, scales: Array | None, sizes: Array | None, given: Mapping[str, Any], opset: int) -> Array:
    if set(given) & {"axes", "keep_aspect_ratio_policy", "extrapolation_value"}:
        raise NotImplementedError("some axes only, or regions")
    if sizes is None:
        sizes = np.floor(np.array(x.shape, np.float32) * np.asarray(scales, np.float32)).astype(np.int64)
    if given["mode"] == b"nearest":
        return nearest(x, sizes, scales, given, opset)
    found = x.astype(np.float64)
    for axis, m in enumerate(sizes.tolist()):
        scale = None if scales is None else float(scales[axis])
        if (m, scale or 1.0) != (x.shape[axis], 1.0):
            found = _along(found, axis, m, scale, given, opset)
    if x.dtype.kind == "f":
        return found.astype(x.dtype)
    info = np.iinfo(x.dtype)
    return np.clip(np.rint(found), info.min, info.max).astype(x.dtype)


def _along(x: Array, axis: int, m: int, scale: float | None, given: Mapping[str, Any], opset: int) -> Array:
    """One axis: a sum over the pixels around each coordinate, by their distance."""
    n, cubic = x.shape[axis], given["mode"] == b"cubic"
    at = next(coordinates(n, m, scale, given, opset))
    slope = min(m / n if scale is None else scale, 1.0) if given.get("antialias") else 1.0
    first = int(np.floor(-(2 if cubic else 1) / slope) + 1)
    places = np.floor(at).astype(np.int64)[:, None] + np.arange(first, 2 - first)
    distance = np.abs(at[:, None] - places) * slope
    weights = _cubic(distance, given.get("cubic_coeff_a", -0.75)) if cubic else np.maximum(1 - distance, 0)
    if given.get("exclude_outside"):
        weights = np.where((places < 0) | (places >= n), 0, weights)
    if given.get("exclude_outside") or given.get("antialias"):
        weights = weights / weights.sum(1, keepdims=True)
    taken = np.moveaxis(np.take(x, np.clip(places, 0, n - 1), axis), (axis, axis + 1), (0, 1))  # (m, taps, ...)
    weighed = weights.reshape(*weights.shape, *[1] * (x.ndim - 1))
    return np.moveaxis(np.where(weighed == 0, 0, taken * weighed).sum(1), 0, axis)


def _cubic(x: Array, a: float) -> Array:
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0))
