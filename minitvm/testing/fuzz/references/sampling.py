"""What ONNX leaves open about Resize: which pixel a coordinate rounds to, and what infinity adds where it weighs 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from minitvm.testing.fuzz.references.registry import Array

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
