"""Resize and Upsample.  ONNX's Resize weighs infinity with 0, takes the pixel before the nearest one where a
coordinate is a whole number but for a rounding, and knows no opset before 11; its Upsample takes nearest pixels by
whole scales only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minitvm.testing.fuzz.references.registry import Array, reference
from minitvm.testing.fuzz.references.sampling import coordinates, nearest

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
