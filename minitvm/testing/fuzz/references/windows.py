"""Pools and convolutions.  ONNX's pools lose NaN, its Conv multiplies infinity with 0 between the taps, its
ConvTranspose has one channel a group, its QLinearConv gives images of one dimension another."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from minitvm.testing.fuzz.references.registry import Array, reference, single


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
    by_group = zip(np.split(taps, group, 1), np.split(w.reshape(*w.shape[:2], -1), group), strict=True)
    return np.concatenate([np.einsum("nck...,mck->nm...", part, weight) for part, weight in by_group], 1)


@reference("Conv")
def conv(
    x: Array, w: Array, b: Array | None = None, *, group: int = 1, kernel_shape: Sequence[int] = (), **given: Any
) -> Array:
    found = _products(single(x), single(w), group, given)
    return np.asarray(found if b is None else found + b.reshape(-1, *[1] * (x.ndim - 2)), x.dtype)


@reference("QLinearConv")
def qlinear_conv(
    x: Array,
    x_scale: Array,
    x_zero: Array,
    w: Array,
    w_scale: Array,
    w_zero: Array,
    y_scale: Array,
    y_zero: Array,
    bias: Array | None = None,
    *,
    group: int = 1,
    kernel_shape: Sequence[int] = (),
    **given: Any,
) -> Array:
    """Sums are those of integers; one rounding."""
    by_output = (-1, *[1] * (x.ndim - 2))
    weights = w.astype(float) - w_zero.reshape(-1, *[1] * (x.ndim - 1)).astype(float)
    total = _products(x.astype(float) - x_zero.astype(float).reshape(()), weights, group, given)
    total = total + (0 if bias is None else bias.reshape(by_output))
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
