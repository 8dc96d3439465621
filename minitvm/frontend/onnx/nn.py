"""ONNX convolutions and pools."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from minitvm.frontend.onnx.node import OnnxNode, cast, dims, emit, rank, scalar, single
from minitvm.frontend.onnx.registry import onnx_op
from minitvm.ir.expr import Expr
from minitvm.ir.types import Dim


def window_pads(
    node: OnnxNode, spatial: Sequence[Dim], kernel: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> tuple[int, ...]:
    """Explicit padding (before..., after...): ``auto_pad`` resolved against the input's extents."""
    mode = node.attr("auto_pad", "NOTSET") or "NOTSET"
    if mode in ("NOTSET", "VALID"):
        given = node.attr("pads") if mode == "NOTSET" else None
        return tuple(given) if given else (0,) * (2 * len(spatial))
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise node.refuse("auto_pad")
    before, after = [], []
    for extent, k, s, d in zip(spatial, kernel, strides, dilation, strict=True):
        if extent is None:
            raise node.fail(f"auto_pad={mode!r} needs to know the image's size", "give shape_dict")
        total = max((-(-extent // s) - 1) * s + (k - 1) * d + 1 - extent, 0)
        small, large = total // 2, total - total // 2
        before.append(small if mode == "SAME_UPPER" else large)
        after.append(large if mode == "SAME_UPPER" else small)
    return (*before, *after)


def spread(node: OnnxNode, name: str, count: int) -> tuple[int, ...]:
    """A list of one integer per spatial axis, 1 by default."""
    values = node.attr(name)
    found = (1,) * count if not values else tuple(values)
    if len(found) != count:
        raise node.fail(f"attribute {name}={list(found)} has {len(found)} numbers for {count} spatial axes")
    return found


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
    """A convolution over 1, 2 or 3 axes; one axis is two of which the first has extent 1."""
    count = rank(x) - 2
    if count not in (1, 2, 3) or rank(weight) != rank(x):
        raise node.misfit(f"takes 1 to 3 spatial axes, found {x.tensor_type} and weight {weight.tensor_type}")
    kernel = weight.shape[2:]
    strides, dilation = spread(node, "strides", count), spread(node, "dilations", count)
    pads = window_pads(node, dims(x)[2:], kernel, strides, dilation)
    options = {"groups": node.attr("group"), "channels": weight.shape[0], "out_dtype": out_dtype}
    if count > 1:
        return emit(
            f"nn.conv{count}d",
            x,
            weight,
            strides=strides,
            padding=pads,
            dilation=dilation,
            kernel_size=kernel,
            **options,
        )
    flat = emit(
        "nn.conv2d",
        emit("expand_dims", x, axis=2),
        emit("expand_dims", weight, axis=2),
        strides=(1, *strides),
        padding=(0, pads[0], 0, pads[1]),
        dilation=(1, *dilation),
        kernel_size=(1, *kernel),
        **options,
    )
    return emit("squeeze", flat, axis=(2,))


@onnx_op("ConvTranspose", since=1)
def conv_transpose(node: OnnxNode) -> Expr:
    x, weight, bias = node[0], node[1], node.get(2)
    count = rank(x) - 2
    if count not in (1, 2, 3) or rank(weight) != rank(x):
        raise node.misfit(f"takes 1 to 3 spatial axes, found {x.tensor_type} and weight {weight.tensor_type}")
    kernel, groups = weight.shape[2:], node.attr("group")
    strides, dilation = spread(node, "strides", count), spread(node, "dilations", count)
    pads, extra = _transposed_pads(node, x.shape[2:], kernel, strides, dilation)
    if count == 1:
        x, weight = emit("expand_dims", x, axis=2), emit("expand_dims", weight, axis=2)
        kernel, strides, dilation, extra = (1, *kernel), (1, *strides), (1, *dilation), (0, *extra)
        pads = (0, pads[0], 0, pads[1])
    result = emit(
        f"nn.conv{max(count, 2)}d_transpose",
        x,
        weight,
        channels=weight.shape[1] * groups,
        kernel_size=kernel,
        strides=strides,
        padding=pads,
        output_padding=extra,
        dilation=dilation,
        groups=groups,
        out_dtype=summed_in(x, bias),
    )
    return with_channel_bias(emit("squeeze", result, axis=(2,)) if count == 1 else result, bias, x.dtype)


def _transposed_pads(
    node: OnnxNode, spatial: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Padding and output padding; from ``output_shape`` or ``auto_pad`` where those say how large the result is."""
    count = len(spatial)
    extra = tuple(node.attr("output_padding") or (0,) * count)
    mode, wanted = node.attr("auto_pad", "NOTSET"), node.attr("output_shape")
    if mode.startswith("SAME") and not wanted:
        wanted = [extent * s for extent, s in zip(spatial, strides, strict=True)]
    if not wanted:
        return window_pads(node, spatial, kernel, strides, dilation), extra
    before, after, grown = [], [], []
    for i in range(count):
        full = strides[i] * (spatial[i] - 1) + extra[i] + (kernel[i] - 1) * dilation[i] + 1
        total = max(full - wanted[-count:][i], 0)
        small, large = total // 2, total - total // 2
        before.append(small if mode == "SAME_UPPER" else large)
        after.append(large if mode == "SAME_UPPER" else small)
        grown.append(extra[i] + max(wanted[-count:][i] - full, 0))
    return (*before, *after), tuple(grown)


@dataclass(frozen=True)
class Window:
    """A pool's window over the spatial axes; ``padding`` is (before..., after...)."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[int, ...]
    ceil_mode: bool


def window_of(node: OnnxNode) -> Window:
    x, count = node[0], rank(node[0]) - 2
    if count not in (1, 2, 3):
        raise node.misfit(f"takes 1 to 3 spatial axes, found {x.tensor_type}")
    kernel = tuple(node.require("kernel_shape"))
    strides, dilation = spread(node, "strides", count), spread(node, "dilations", count)
    mode = node.attr("auto_pad", "NOTSET") or "NOTSET"
    padding = window_pads(node, dims(x)[2:], kernel, strides, dilation)
    if mode == "NOTSET" and any(p >= k for p, k in zip(padding, kernel * 2, strict=False)):
        raise node.fail(f"padding {list(padding)} must be smaller than the window, {list(kernel)}")
    return Window(kernel, strides, dilation, padding, bool(node.attr("ceil_mode", 0)) and not mode.startswith("SAME"))


def pool(kind: str, x: Expr, window: Window, **options: object) -> Expr:
    return emit(
        f"nn.{kind}_pool{rank(x) - 2}d",
        x,
        pool_size=window.kernel,
        strides=window.strides,
        dilation=window.dilation,
        padding=window.padding,
        ceil_mode=window.ceil_mode,
        **options,
    )


@onnx_op("MaxPool", since=1)
def max_pool(node: OnnxNode) -> Expr:
    if node.wants(1):
        raise node.fail("its second output, the indices, is not supported")
    return pool("max", node[0], window_of(node))


@onnx_op("AveragePool", since=1)
def average_pool(node: OnnxNode) -> Expr:
    return pool("avg", node[0], window_of(node), count_include_pad=bool(node.attr("count_include_pad", 0)))


@onnx_op("LpPool", since=2)
def lp_pool(node: OnnxNode) -> Expr:
    """The p-norm under each window: a mean times the window's size, over zeros wherever the window sticks out."""
    window = window_of(node)
    powers = _powers(node)
    grown = emit("nn.pad", powers, scalar(0, powers), pad_width=((0, 0), (0, 0), *_reach(powers, window)))
    mean = pool("avg", grown, replace(window, padding=(0,) * len(window.padding), ceil_mode=False))
    return _root(node, emit("multiply", mean, scalar(math.prod(window.kernel), mean)))


def _reach(x: Expr, window: Window) -> list[tuple[int, int]]:
    """The padding of each spatial axis, and what a last window needs beyond it."""
    windows = pool("avg", x, window).shape[2:]
    found = []
    for d, (extent, count) in enumerate(zip(x.shape[2:], windows, strict=True)):
        before = window.padding[d]
        span = (window.kernel[d] - 1) * window.dilation[d] + 1
        end = (count - 1) * window.strides[d] + span if count else 0
        found.append((before, max(end - extent - before, window.padding[d + len(windows)])))
    return found


def _powers(node: OnnxNode) -> Expr:
    """|x| ** p, in float32 at least."""
    x, p = node[0], node.attr("p")
    if p < 1:
        raise node.refuse("p", "a norm's p is 1 or more")
    size = emit("abs", single(x))
    return size if p == 1 else emit("multiply", size, size) if p == 2 else emit("power", size, scalar(p, size))


def _root(node: OnnxNode, total: Expr) -> Expr:
    p = node.attr("p")
    if p > 1:
        total = emit("sqrt", total) if p == 2 else emit("power", total, scalar(1 / p, total))
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
