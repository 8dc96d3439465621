"""ONNX convolutions and pools."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import numpy as np

from minitvm.frontend.onnx.node import OnnxNode, cast, dims, emit, rank, single
from minitvm.frontend.onnx.registry import Outputs, onnx_op
from minitvm.frontend.onnx.tensor import integers, reshaped
from minitvm.ir.dims import Undecided, differ, is_less
from minitvm.ir.expr import Constant, Expr


@dataclass(frozen=True)
class Window:
    """The way of a convolution or a pool over its spatial axes; ``padding`` is (before..., after...)."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[int, ...]

    @property
    def steps(self) -> dict[str, tuple[int, ...]]:
        """The window as attributes of an operator."""
        return {"strides": self.strides, "dilation": self.dilation, "padding": self.padding}

    def spans(self) -> list[int]:
        """The elements from a window's first to its last, of each axis."""
        return [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True)]

    def flat(self) -> Window:
        """The window over two axes, of which the first has extent 1."""
        before, after = self.padding
        return Window((1, *self.kernel), (1, *self.strides), (1, *self.dilation), (0, before, 0, after))

    def over(self, first: int, end: int | None = None) -> Window:
        """The window over some of the axes."""
        own, half = slice(first, end), len(self.kernel)
        padding = (*self.padding[:half][own], *self.padding[half:][own])
        return Window(self.kernel[own], self.strides[own], self.dilation[own], padding)


def window_of(node: OnnxNode, kernel: Sequence[int], *tensors: Expr) -> Window:
    """The window by the node's attributes, for an image and the weights that go over it."""
    count = rank(tensors[0]) - 2
    if count < 1 or any(rank(t) != count + 2 for t in tensors):
        found = " and weight ".join(str(t.tensor_type) for t in tensors)
        raise node.misfit(f"takes as many spatial axes of each, 1 at least, found {found}")
    strides, dilation = _spread(node, "strides", count), _spread(node, "dilations", count)
    if any(map(differ, _spread(node, "kernel_shape", count, kernel), kernel)):
        raise node.fail(f"attribute kernel_shape={list(node.attr('kernel_shape'))}, but the weight's is {list(kernel)}")
    spatial, window = dims(tensors[0])[2:], Window(tuple(kernel), strides, dilation, (0,) * (2 * count))
    if _auto_pad(node).startswith("SAME"):
        window = replace(window, strides=tuple(map(_step, spatial, window.spans(), strides)))
    return replace(window, padding=_pads(node, spatial, window))


def _step(extent: int | None, span: int, stride: int) -> int:
    """The stride, over nothing no more than the window spans: there are as many windows as strides, none."""
    try:
        return stride if extent is None or is_less(0, extent) else min(stride, span)
    except Undecided:
        return stride


def _spread(node: OnnxNode, name: str, count: int, default: Sequence[int] = ()) -> tuple[int, ...]:
    """A list of one integer per spatial axis, 1 by default."""
    found = tuple(node.attr(name) or default or (1,) * count)
    if len(found) != count:
        raise node.fail(f"attribute {name}={list(found)} has {len(found)} numbers for {count} spatial axes")
    return found


def _pads(node: OnnxNode, spatial: Sequence[int | None], window: Window) -> tuple[int, ...]:
    """Explicit padding: ``auto_pad`` resolved against the input's extents."""
    mode = _auto_pad(node)
    if mode in ("NOTSET", "VALID"):
        given = tuple(node.attr("pads") or ()) if mode == "NOTSET" else ()
        if given and len(given) != len(window.padding):
            raise node.fail(f"{len(given)} pads for {len(window.kernel)} spatial axes")
        return given or window.padding
    totals = []
    for extent, span, stride in zip(spatial, window.spans(), window.strides, strict=True):
        if extent is None:
            raise node.unknown(f"auto_pad={mode!r} needs to know the image's size")
        totals.append(max((-(-extent // stride) - 1) * stride + span - extent, 0))
    return _divided(totals, mode)


def _auto_pad(node: OnnxNode) -> str:
    mode = str(node.attr("auto_pad") or "NOTSET")
    if mode not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise node.refuse("auto_pad")
    return mode


def _divided(totals: Sequence[int], mode: str) -> tuple[int, ...]:
    """Padding of so many elements an axis, half before and half after; an odd one comes after in ``SAME_UPPER``."""
    small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
    return (*small, *large) if mode == "SAME_UPPER" else (*large, *small)


@onnx_op("Conv", since=1)
def conv(node: OnnxNode) -> Expr:
    x, bias = node[0], node.get(2)
    return with_channel_bias(convolution(node, x, node[1], summed_in(x, bias)), bias, x.dtype)


def summed_in(x: Expr, bias: Expr | None) -> str:
    """``out_dtype`` of sums to which a bias is added before they are rounded: float16 may not hold them without it."""
    return "float32" if bias is not None and x.dtype == "float16" else ""


def with_channel_bias(x: Expr, bias: Expr | None, dtype: str) -> Expr:
    return cast(x if bias is None else emit("nn.bias_add", x, cast(bias, x.dtype), axis=1), dtype)


def convolution(node: OnnxNode, x: Expr, weight: Expr, out_dtype: str = "") -> Expr:
    window = window_of(node, weight.shape[2:], x, weight)
    options = {"groups": node.attr("group"), "channels": weight.shape[0], "out_dtype": out_dtype}
    return _layer("nn.conv{}d", x, weight, window, **options)


def _layer(name: str, x: Expr, weight: Expr, window: Window, **options: Any) -> Expr:
    """A convolution over 2 or 3 axes; over one, it is over two of which the first has extent 1, over more a sum of
    convolutions over all but the first."""
    if rank(x) == 3:
        x, weight = (emit("expand_dims", t, axis=2) for t in (x, weight))
        return emit("squeeze", _layer(name, x, weight, window.flat(), **options), axis=(2,))
    if rank(x) > 5:
        return _over_more(x, weight, window, **options)
    return emit(name.format(rank(x) - 2), x, weight, kernel_size=window.kernel, **window.steps, **options)


def _over_more(x: Expr, weight: Expr, window: Window, **options: Any) -> Expr:
    """The places of the first axis go with the batch, once for each of its taps."""
    first, rest, inner = window.over(0, 1), window.over(1), range(3, rank(x))
    x = emit("nn.pad", x, 0, pad_width=[(0, 0), (0, 0), first.padding, *((0, 0) for _ in inner)])
    count = (x.shape[2] - first.spans()[0]) // first.strides[0] + 1
    parts = []
    for tap in range(window.kernel[0]):
        start = tap * first.dilation[0]
        end, taken = start + (count - 1) * first.strides[0] + 1, emit("take", weight, integers(tap), axis=2)
        places = emit("strided_slice", x, begin=(start,), end=(end,), strides=first.strides, axes=(2,))
        rows = emit("transpose", places, axes=(0, 2, 1, *inner))
        rows = reshaped(rows, [x.shape[0] * count, *rows.shape[2:]], allowzero=True)
        parts.append(_layer("nn.conv{}d", rows, taken, rest, **options))
    total = reduce(partial(emit, "add"), parts)
    apart = reshaped(total, [x.shape[0], count, *total.shape[1:]], allowzero=True)
    return emit("transpose", apart, axes=(0, 2, 1, *inner))


@onnx_op("ConvTranspose", since=1)
def conv_transpose(node: OnnxNode) -> Expr:
    x, weight, bias, groups = node[0], node[1], node.get(2), node.attr("group")
    window = window_of(node, weight.shape[2:], x, weight)
    padding, extra = _transposed_pads(node, x.shape[2:], window)
    options = {"groups": groups, "channels": weight.shape[1] * groups, "out_dtype": summed_in(x, bias)}
    extra = (0, *extra) if len(extra) == 1 else extra
    window = replace(window, padding=padding)
    if rank(x) > 5:
        return with_channel_bias(_transposed_over_more(x, weight, window, extra, **options), bias, x.dtype)
    result = _layer("nn.conv{}d_transpose", x, weight, window, output_padding=extra, **options)
    return with_channel_bias(result, bias, x.dtype)


def _transposed_over_more(x: Expr, weight: Expr, window: Window, extra: tuple[int, ...], **options: Any) -> Expr:
    """A convolution of the image with its elements apart, by the weights back to front."""
    (inside, outside, *taps), groups, half = weight.shape, options["groups"], len(window.kernel)
    apart = reshaped(weight, [groups, inside // groups, outside, *taps], allowzero=True)
    transposed = emit("transpose", apart, axes=(0, 2, 1, *range(3, rank(apart))))
    weight = reshaped(transposed, [groups * outside, inside // groups, *taps], allowzero=True)
    for axis, stride in enumerate(window.strides, 2):
        weight, extent = emit("reverse", weight, axis=axis), x.shape[axis]
        spread = emit("expand_dims", x, axis=axis + 1)
        spread = emit("nn.pad", spread, 0, pad_width=[(0, (stride - 1) * (d == axis + 1)) for d in range(rank(spread))])
        x = reshaped(spread, [*x.shape[:axis], extent * stride, *x.shape[axis + 1 :]], allowzero=True)
        x = emit("strided_slice", x, begin=(0,), end=((extent - 1) * stride + 1,), axes=(axis,))
    before = [span - 1 - pad for span, pad in zip(window.spans(), window.padding[:half], strict=True)]
    after = [s - 1 - p + e for s, p, e in zip(window.spans(), window.padding[half:], extra, strict=True)]
    x = _reaching(x, before, after)
    plain = Window(window.kernel, (1,) * half, window.dilation, (0,) * (2 * half))
    return _layer("nn.conv{}d", x, weight, plain, **options)


def _reaching(x: Expr, before: Sequence[int], after: Sequence[int]) -> Expr:
    """Spatial axes grown by zeros, or cut where there is less than nothing to add."""
    grown = [(max(b, 0), max(a, 0)) for b, a in zip(before, after, strict=True)]
    x = emit("nn.pad", x, 0, pad_width=[(0, 0), (0, 0), *grown])
    cut = [(max(-b, 0), n - max(-a, 0)) for b, a, n in zip(before, after, x.shape[2:], strict=True)]
    begin, end = zip(*cut, strict=True)
    return emit("strided_slice", x, begin=begin, end=end, axes=tuple(range(2, rank(x))))


def _transposed_pads(node: OnnxNode, spatial: Sequence[int], window: Window) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Padding and output padding; from ``output_shape`` or ``auto_pad`` where those say how large the result is."""
    extra = tuple(node.attr("output_padding") or (0,) * len(spatial))
    mode, wanted = _auto_pad(node), node.attr("output_shape")
    if mode.startswith("SAME") and not wanted:
        wanted = [extent * s for extent, s in zip(spatial, window.strides, strict=True)]
    if not wanted:
        return window.padding, extra
    grid = zip(spatial, window.strides, window.spans(), extra, strict=True)
    full = [stride * (extent - 1) + span + more for extent, stride, span, more in grid]
    missing = [w - f for w, f in zip(wanted[-len(spatial) :], full, strict=True)]
    grown = tuple(more + max(m, 0) for more, m in zip(extra, missing, strict=True))
    return _divided([max(-m, 0) for m in missing], mode), grown


@dataclass(frozen=True)
class Pool:
    window: Window
    ceil_mode: bool

    def of(self, kind: str, x: Expr, **options: object) -> Expr:
        """``nn.max_pool2d`` and its like.  x: (batch, channels, ...); over more than 3 axes some after the others."""
        if rank(x) > 5:
            return self._over_more(kind, x, **options)
        window, name = self.window, f"nn.{kind}_pool{rank(x) - 2}d"
        return emit(name, x, pool_size=window.kernel, **window.steps, ceil_mode=self.ceil_mode, **options)

    def _over_more(self, kind: str, x: Expr, **options: object) -> Expr:
        """The last three axes, then the others: of elements that are there, and of maxima, each axis has its own."""
        inner, outer, lead = *self._halves(), rank(x) - 5
        found = inner.of(kind, _as_channels(x, 2 + lead), **options)
        transposed = _transposed(reshaped(found, [*x.shape[: 2 + lead], *found.shape[2:]]), lead)
        rows = outer.of(kind, _as_channels(transposed, 5), **options)
        return _transposed(reshaped(rows, [*transposed.shape[:5], *rows.shape[2:]]), 3)

    def _halves(self) -> tuple[Pool, Pool]:
        lead = len(self.window.kernel) - 3
        return Pool(self.window.over(lead), self.ceil_mode), Pool(self.window.over(0, lead), self.ceil_mode)

    def positions(self, x: Expr) -> Expr:
        """The position of each maximum in its plane, which is row-major; over more than 3 axes that of the last three
        where the others have it."""
        if rank(x) <= 5:
            options = {"pool_size": self.window.kernel, **self.window.steps, "ceil_mode": self.ceil_mode}
            return emit(f"nn.max_pool{rank(x) - 2}d_positions", x, **options)
        inner, outer, lead = *self._halves(), rank(x) - 5
        flat, shape = _as_channels(x, 2 + lead), list(x.shape[: 2 + lead])
        found, at = inner.of("max", flat), inner.positions(flat)
        found, at = (_transposed(reshaped(each, [*shape, *each.shape[2:]]), lead) for each in (found, at))
        rows = outer.positions(_as_channels(found, 5))
        at, places = (reshaped(each, [*rows.shape[:2], -1]) for each in (at, rows))
        total = places * math.prod(x.shape[2 + lead :]) + emit("gather", at, places, axis=2)
        return _transposed(reshaped(total, [*found.shape[:5], *rows.shape[2:]]), 3)


def _as_channels(x: Expr, axes: int) -> Expr:
    """The first axes as a batch and channels."""
    return reshaped(x, [x.shape[0], math.prod(x.shape[1:axes]), *x.shape[axes:]])


def _transposed(x: Expr, lead: int) -> Expr:
    """The first ``lead`` spatial axes behind the others."""
    return emit("transpose", x, axes=(0, 1, *range(2 + lead, rank(x)), *range(2, 2 + lead)))


def pool_of(node: OnnxNode) -> Pool:
    window, mode = window_of(node, node.require("kernel_shape"), node[0]), _auto_pad(node)
    if mode == "NOTSET" and any(p >= k for p, k in zip(window.padding, window.kernel * 2, strict=False)):
        raise node.fail(f"padding {list(window.padding)} must be smaller than the window, {list(window.kernel)}")
    return Pool(window, bool(node.attr("ceil_mode", 0)) and not mode.startswith("SAME"))


@onnx_op("MaxPool", since=1)
def max_pool(node: OnnxNode) -> Outputs:
    """And where in all of the data each maximum is, in planes that are row-major or column-major."""
    x, pool = node[0], pool_of(node)
    if not node.wants(1):
        return pool.of("max", x)
    (n, c, *plane), at = x.shape, pool.positions(x)
    if node.attr("storage_order", 0):
        strides = [math.prod(plane[d + 1 :]) for d in range(len(plane))]
        digits = [_digit(at, stride, extent) for stride, extent in zip(strides, plane, strict=True)]
        parts = [emit("multiply", digit, integers(math.prod(plane[:d]))) for d, digit in enumerate(digits)]
        at = reduce(partial(emit, "add"), parts)
    planes = np.arange(n * c).reshape(n, c, *[1] * len(plane)) * math.prod(plane)
    return [pool.of("max", x), emit("add", at, Constant(planes))]


def _digit(x: Expr, stride: int, extent: int) -> Expr:
    return emit("floor_mod", emit("floor_divide", x, integers(stride)), integers(extent))


@onnx_op("AveragePool", since=1)
def average_pool(node: OnnxNode) -> Expr:
    return pool_of(node).of("avg", node[0], count_include_pad=bool(node.attr("count_include_pad", 0)))


@onnx_op("LpPool", since=2)
def lp_pool(node: OnnxNode) -> Expr:
    """The p-norm under each window: a mean times the window's size, over zeros wherever the window sticks out."""
    pool, powers = pool_of(node), _powers(node)
    grown = emit("nn.pad", powers, 0, pad_width=((0, 0), (0, 0), *_reach(powers, pool)))
    inside = Pool(replace(pool.window, padding=(0,) * len(pool.window.padding)), False)
    return _root(node, inside.of("avg", grown) * math.prod(pool.window.kernel))


def _reach(x: Expr, pool: Pool) -> list[tuple[int, int]]:
    """The padding of each spatial axis, and what a last window needs beyond it."""
    window, counts, found = pool.window, pool.of("avg", x).shape[2:], []
    for d, (extent, count, span) in enumerate(zip(x.shape[2:], counts, window.spans(), strict=True)):
        before, after = window.padding[d], window.padding[d + len(counts)]
        end = (count - 1) * window.strides[d] + span if count else 0
        found.append((before, max(end - extent - before, after)))
    return found


def _powers(node: OnnxNode) -> Expr:
    """|x| ** p, in float32 at least."""
    x, p = node[0], node.attr("p")
    if p < 1:
        raise node.refuse("p", "a norm's p is 1 or more")
    size = emit("abs", single(x))
    return size if p == 1 else size * size if p == 2 else emit("power", size, p)


def _root(node: OnnxNode, total: Expr) -> Expr:
    p = node.attr("p")
    if p > 1:
        total = emit("sqrt", total) if p == 2 else emit("power", total, 1 / p)
    return cast(total, node[0].dtype)


@onnx_op("GlobalAveragePool", "GlobalMaxPool", since=1)
def global_pool(node: OnnxNode) -> Expr:
    x, average = node[0], node.op_type == "GlobalAveragePool"
    if rank(x) == 4:
        return emit("nn.global_avg_pool2d" if average else "nn.global_max_pool2d", x)
    return emit("mean" if average else "max", x, axis=tuple(range(2, rank(x))), keepdims=True)


@onnx_op("GlobalLpPool", since=2)
def global_lp_pool(node: OnnxNode) -> Expr:
    return _root(node, emit("sum", _powers(node), axis=tuple(range(2, rank(node[0]))), keepdims=True))
