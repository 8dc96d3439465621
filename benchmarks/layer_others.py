"""Random layers that are neither convolutions nor products: what moves, reduces, normalizes and maps elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from benchmarks.layer_draw import Draw, dims

CASTS = (("float32", TensorProto.INT32), ("uint8", TensorProto.FLOAT), ("int64", TensorProto.FLOAT))


def pool(g: Draw) -> str:
    """Max and average windows over images, with all that ONNX lets one say."""
    which, size, channels = g.choose(("MaxPool", "AveragePool")), g.image(), g.dim(1, 512)
    k = g.choose((2, 2, 3, 3, 5, 7))
    stride, pad, ceil = g.choose((1, 2, 2, k)), g.choose((0, k // 2)), int(g.chance(0.3))
    shape = (g.choose((1, 1, 2)), channels, size, size)
    g.say(which, dims(shape), f"{k}x{k} stride {stride} pad {pad}", "ceil" if ceil else "")
    g.elements += math.prod(shape) * k * k / stride**2 / 4
    extra = {"count_include_pad": int(g.chance(0.5))} if which == "AveragePool" else {}
    window = {"kernel_shape": [k, k], "strides": [stride] * 2, "pads": [pad] * 4, "ceil_mode": ceil}
    return g.node(which, [g.feed(shape)], **window, **extra)


def global_pool(g: Draw) -> str:
    which, size = g.choose(("GlobalAveragePool", "GlobalMaxPool")), g.image()
    shape = (g.choose((1, 1, 4)), g.dim(3, 2048), size, size)
    g.say(which, dims(shape))
    return g.node(which, [g.feed(shape)])


def softmax(g: Draw) -> str:
    which, shape = g.choose(("Softmax", "Softmax", "LogSoftmax")), g.any_shape()
    axis = g.choose((-1, -1, -1, *range(len(shape))))
    g.say(which, dims(shape), f"axis {axis}")
    return g.node(which, [g.feed(shape)], axis=axis)


def layer_norm(g: Draw) -> str:
    shape = g.shape(g.choose((2, 3)))
    g.say("LayerNormalization", dims(shape))
    inputs = [g.feed(shape), g.normal(shape[-1:], 1.0), g.normal(shape[-1:], 0.1)]
    return g.node("LayerNormalization", inputs, axis=-1, epsilon=1e-5)


def instance_norm(g: Draw) -> str:
    """Instance, batch and group normalization of images; the last as exporters write it."""
    size, which = g.image(), g.choose(("InstanceNormalization", "group", "BatchNormalization"))
    groups = g.choose((2, 4, 8)) if which == "group" else 1
    channels = groups * g.dim(1, 64)
    shape = (1, channels, size, size)
    g.say(which, dims(shape), f"groups {groups}" if groups > 1 else "")
    x, scale, bias = g.feed(shape), g.normal((channels,), 1.0), g.normal((channels,), 0.1)
    if which == "BatchNormalization":
        variance = g.weight(g.rng.uniform(0.5, 1.5, channels).astype(np.float32))
        return g.node(which, [x, scale, bias, g.normal((channels,), 0.1), variance])
    if which == "group":
        return _group_norm(g, x, shape, groups)
    return g.node(which, [x, scale, bias], epsilon=1e-5)


def _group_norm(g: Draw, x: str, shape: Sequence[int], groups: int) -> str:
    rows = g.node("Reshape", [x, g.integers(shape[0], groups, -1)])
    plain = [g.weight(np.full(groups, value, np.float32)) for value in (1, 0)]
    y = g.node("Reshape", [g.node("InstanceNormalization", [rows, *plain], epsilon=1e-5), g.integers(*shape)])
    each = (shape[1], 1, 1)
    return g.node("Add", [g.node("Mul", [y, g.normal(each, 1.0)]), g.normal(each, 0.1)])


def reduction(g: Draw) -> str:
    which = g.choose(("ReduceMean", "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2"))
    shape = g.any_shape()
    last = len(shape) - 1
    some = sorted({g.choose(range(len(shape))) for _ in range(g.choose((1, 1, 2, 3)))})
    axes = g.choose(([last], [last - 1, last], [last - 1], some, some))
    keep = int(g.chance(0.5))
    g.say(which, dims(shape), f"over {axes}")
    return g.node(which, [g.feed(shape), g.integers(*axes)], keepdims=keep)


def elementwise(g: Draw) -> str:
    """A chain of two or three operators, operands broadcast every way."""
    shape = g.any_shape()
    y = g.feed(shape)
    g.say(dims(shape))
    for _ in range(g.choose((1, 2, 3))):
        which = g.choose(("Add", "Mul", "Sub", "Div", "Max", "Min"))
        channels = (shape[1], *(1,) * (len(shape) - 2)) if len(shape) > 2 else (shape[0], 1)
        other = g.choose((shape, shape[-1:], channels, tuple(n if g.chance(0.5) else 1 for n in shape)))
        g.say(which, dims(other))
        arguments = [y, g.weight(g.rng.uniform(0.5, 2.0, other).astype(np.float32)) if g.chance(0.5) else g.feed(other)]
        g.tolerance = 1e-3 if which == "Div" else g.tolerance
        y = g.node(which, arguments)
    return y


def activation(g: Draw) -> str:
    plain = ("Gelu", "Sigmoid", "Tanh", "Erf", "HardSwish", "LeakyRelu", "Elu", "Softplus", "Exp", "Sqrt", "Mish")
    which, shape = g.choose((*plain, "SiLU", "PRelu", "Log")), g.any_shape()
    g.say(which, dims(shape))
    x = g.feed(shape)
    if which in ("Sqrt", "Log"):
        x = g.node("Abs", [x])
    if which == "SiLU":
        return g.node("Mul", [x, g.node("Sigmoid", [x])])
    if which == "PRelu":
        slope = (shape[1], *(1,) * (len(shape) - 2)) if len(shape) > 2 else shape[-1:]
        return g.node("PRelu", [x, g.normal(slope, 0.25)])
    return g.node(which, [x])


def transpose(g: Draw) -> str:
    shape = g.any_shape()
    order = [int(i) for i in g.rng.permutation(len(shape))]
    if order == sorted(order):
        order.reverse()
    g.say("Transpose", dims(shape), order)
    return g.node("Transpose", [g.feed(shape)], perm=order)


def concat(g: Draw) -> str:
    shape, count = g.any_shape(), g.choose((2, 3, 4))
    axis = g.choose(range(len(shape)))
    parts = [tuple(g.dim(1, 2 * n + 1) if d == axis else n for d, n in enumerate(shape)) for _ in range(count)]
    g.say("Concat", ", ".join(map(dims, parts)), f"axis {axis}")
    return g.node("Concat", [g.feed(part) for part in parts], axis=axis)


def split(g: Draw) -> Sequence[str]:
    """Unequal parts; all are results."""
    shape = g.any_shape()
    axis = g.choose([d for d, n in enumerate(shape) if n > 2])
    first = int(g.rng.integers(1, shape[axis]))
    g.say("Split", dims(shape), f"axis {axis} at {first}")
    y = g.node("Split", [g.feed(shape), g.integers(first, shape[axis] - first)], axis=axis)
    node = g.nodes[-1]
    node.output.append(f"{y}_rest")
    return list(node.output)


def slices(g: Draw) -> str:
    shape = g.any_shape()
    axis, step = g.choose([d for d, n in enumerate(shape) if n > 2]), g.choose((1, 1, 2, -1))
    start, end = sorted(int(i) for i in g.rng.choice(shape[axis] + 1, 2, replace=False))
    if step < 0:
        start, end = end - 1, start - 1 if start else -shape[axis] - 1
    g.say("Slice", dims(shape), f"axis {axis} {start}:{end}:{step}")
    return g.node("Slice", [g.feed(shape), *(g.integers(v) for v in (start, end, axis, step))])


def pad(g: Draw) -> str:
    mode, shape = g.choose(("constant", "constant", "reflect", "edge")), g.any_shape()
    widths = [int(g.rng.integers(0, min(n, 5))) if d >= len(shape) - 2 else 0 for d, n in enumerate(shape * 2)]
    widths = [w if d % len(shape) >= len(shape) - 2 else 0 for d, w in enumerate(widths)]
    widths = [min(w, shape[d % len(shape)] - 1) for d, w in enumerate(widths)]
    g.say("Pad", mode, dims(shape), f"by {widths}")
    return g.node("Pad", [g.feed(shape), g.integers(*widths)], mode=mode)


def resize(g: Draw) -> str:
    mode, size, channels = g.choose(("nearest", "linear")), g.image(7, 112), g.dim(1, 256)
    to = g.choose((2 * size, 2 * size, size // 2, g.image()))
    shape, result = (1, channels, size, size), (1, channels, to, to)
    how = g.choose(("asymmetric", "half_pixel", "align_corners"))
    g.say("Resize", mode, how, dims(shape), "->", dims(result))
    g.elements += math.prod(result)
    extra = {"nearest_mode": "floor"} if mode == "nearest" else {}
    inputs = [g.feed(shape), "", "", g.integers(*result)]
    return g.node("Resize", inputs, mode=mode, coordinate_transformation_mode=how, **extra)


def gather(g: Draw) -> str:
    """Rows of an embedding, and positions along any axis."""
    shape = g.any_shape()
    axis, count = g.choose((0, 0, len(shape) - 1, g.choose(range(len(shape))))), g.dim(1, 256)
    g.elements += count * math.prod(shape) / shape[axis]
    g.say("Gather", dims(shape), f"axis {axis}, {count} indices")
    known = g.chance(0.5)
    positions = g.integers(*g.rng.integers(0, shape[axis], count)) if known else g.feed((count,), "int64", shape[axis])
    return g.node("Gather", [g.feed(shape), positions], axis=axis)


def argmax(g: Draw) -> str:
    shape = g.any_shape()
    axis, which = g.choose(range(len(shape))), g.choose(("ArgMax", "ArgMin"))
    g.say(which, dims(shape), f"axis {axis}")
    return g.node(which, [g.feed(shape)], axis=axis, keepdims=int(g.chance(0.5)))


def cumsum(g: Draw) -> str:
    shape = g.any_shape()
    axis = g.choose(range(len(shape)))
    g.say("CumSum", dims(shape), f"axis {axis}")
    return g.node("CumSum", [g.feed(shape), g.weight(np.array(axis, np.int64))])


def quantize(g: Draw) -> str:
    """To and from 8 bits, one scale or one a channel; and plain casts."""
    shape, which = g.any_shape(), g.choose(("QuantizeLinear", "DequantizeLinear", "Cast", "both"))
    g.say(which, dims(shape))
    if which == "Cast":
        before, after = g.choose(CASTS)
        return g.node("Cast", [g.feed(shape, before)], to=after)
    axis = g.choose((None, 1))
    each = () if axis is None else (shape[1],)
    extra = {} if axis is None else {"axis": axis}
    scale, zero = g.weight(g.rng.uniform(0.02, 0.05, each).astype(np.float32)), g.weight(np.full(each, 3, np.uint8))
    g.say("" if axis is None else "a scale a channel")
    g.tolerance = 0.02  # one step of 8 bits
    if which == "DequantizeLinear":
        return g.node(which, [g.feed(shape, "uint8", 256), scale, zero], **extra)
    y = g.node("QuantizeLinear", [g.feed(shape), scale, zero], **extra)
    return y if which == "QuantizeLinear" else g.node("DequantizeLinear", [y, scale, zero], **extra)
