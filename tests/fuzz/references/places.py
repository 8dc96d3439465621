"""Elements taken from places. ONNX's AffineGrid steps over a single pixel, its GatherElements wants indices as large
as the data, its OneHot multiplies, so that infinity makes NaN, its Pad does not cut, its Shape takes an end before
the first axis for one of the others, its Slice backwards from before the first element selects nothing, its Gather
looks at no index where there is nothing at each; it has no Scatter."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.fuzz.references.registry import Array, reference, single


def _along(indices: Array, axis: int) -> tuple[Array, ...]:
    places = list(np.ogrid[tuple(slice(n) for n in indices.shape)])
    places[axis] = indices
    return tuple(places)


@reference("Gather")
def gather(data: Array, indices: Array, *, axis: int = 0) -> Array:
    extent = data.shape[axis]
    if ((indices < -extent) | (indices >= extent)).any():
        raise IndexError(f"an index is outside of axis {axis} of {data.shape}")
    return np.take(data, indices, axis)


@reference("GatherElements")
def gather_elements(data: Array, indices: Array, *, axis: int = 0) -> Array:
    return np.asarray(data[_along(indices, axis)])


@reference("Scatter")
def scatter(data: Array, indices: Array, updates: Array, *, axis: int = 0) -> Array:
    found = np.array(data)
    found[_along(indices, axis)] = updates
    return found


@reference("OneHot")
def one_hot(indices: Array, depth: Array, values: Array, *, axis: int = -1) -> Array:
    count = int(depth.reshape(-1)[0])
    places = np.expand_dims(indices.astype(np.int64), axis)
    steps = [1] * places.ndim
    steps[axis] = count
    hot = np.where(places < 0, places + count, places) == np.arange(count).reshape(steps)
    return np.asarray(np.where(hot, values[1], values[0]))


@reference("Pad")
def pad(x: Array, *operands: Array | None, mode: bytes = b"constant", **old: Any) -> Array:
    """Widths, a value and axes; attributes before opset 11.  Less than nothing cuts, first."""
    widths, filled, axes = [*operands, None, None, None][:3]
    flat = list(old["pads"]) if widths is None else widths.tolist()
    pairs = np.zeros((x.ndim, 2), int)
    pairs[slice(None) if axes is None else axes.tolist()] = np.array(flat, int).reshape(2, -1).T
    cut: Array = x[tuple(slice(max(-low, 0), n - max(-high, 0)) for n, (low, high) in zip(x.shape, pairs, strict=True))]
    around = np.maximum(pairs, 0)
    if mode != b"constant":
        kind: Any = mode.decode()
        return np.asarray(np.pad(cut, around, kind))
    return np.pad(cut, around, constant_values=old.get("value", 0.0) if filled is None else filled.reshape(()))


@reference("Shape")
def shape(x: Array, *, start: int = 0, end: int | None = None) -> Array:
    return np.array(x.shape[start:end], np.int64)


@reference("Unsqueeze")
def unsqueeze(x: Array, given: Array | None = None, *, axes: Sequence[int] = ()) -> Array:
    return np.asarray(np.expand_dims(x, tuple(axes if given is None else given.tolist())))


@reference("Slice")
def slice_(x: Array, *operands: Array | None, **old: Sequence[int]) -> Array:
    """Starts, ends, axes and steps; attributes before opset 10."""
    given: list[Any] = [None if a is None else a.tolist() for a in operands] or [
        old["starts"],
        old["ends"],
        old.get("axes"),
    ]
    first, last, axes, steps = [*given, None, None][:4]
    chosen, steps = axes or range(len(first)), steps or [1] * len(first)
    cut = [slice(None)] * x.ndim
    for axis, start, end, step in zip(chosen, first, last, steps, strict=True):
        cut[axis] = _cut(x.shape[axis], start, end, step)
    return np.asarray(x[tuple(cut)])


def _cut(size: int, start: int, end: int, step: int) -> slice:
    """Both ends counted from the end where they are negative, then moved into the axis."""
    start, end = (v + size if v < 0 else v for v in (start, end))
    if step > 0:
        return slice(min(max(start, 0), size), min(max(end, 0), size), step)
    start, end = min(max(start, 0), size - 1), min(max(end, -1), size - 1)
    return slice(start, None if end < 0 else end, step) if size else slice(0)


@reference("AffineGrid")
def affine_grid(theta: Array, size: Array, *, align_corners: int = 0) -> Array:
    """theta: (n, d, d + 1) -> (n, image..., d), of every pixel's coordinates from -1 to 1, the last axis first; with
    ``align_corners`` the outermost pixels are the corners."""
    counts = size[2:].tolist()
    wide = [np.linspace(-1, 1, n) if n > 1 else np.ones(n) for n in counts]
    axes = wide if align_corners else [(2 * np.arange(n) + 1) / n - 1 for n in counts]
    points = np.stack([*reversed(np.meshgrid(*axes, indexing="ij")), np.ones(counts)])
    return np.asarray(np.einsum("nij,j...->n...i", single(theta), points), theta.dtype)
