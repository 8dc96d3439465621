"""Random convolutions, products and recurrent layers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from benchmarks.layer_draw import Draw, dims


def conv(g: Draw) -> str:
    """Two-dimensional, dense: kernels, strides and dilations as classification and detection networks have them."""
    kernel = g.choose(((1, 1), (1, 1), (1, 1), (3, 3), (3, 3), (3, 3), (5, 5), (7, 7), (1, 7), (3, 1)))
    dilation = g.choose((1, 1, 1, 2)) if max(kernel) == 3 else 1
    before, after, size = g.dim(1, 1024), g.dim(1, 1024), (g.image(), g.image()) if g.chance(0.2) else (g.image(),) * 2
    batch = g.choose((1, 1, 1, 1, 2, 4))
    return _convolution(g, (batch, before, *size), after, kernel, g.choose((1, 1, 1, 2)), dilation, 1)


def depthwise(g: Draw) -> str:
    size, k = g.image(), g.choose((3, 3, 3, 5, 7))
    channels = g.dim(3, 1024)
    return _convolution(g, (1, channels, size, size), channels, (k, k), g.choose((1, 1, 2)), 1, channels)


def grouped(g: Draw) -> str:
    groups, size = g.choose((2, 4, 8, 32)), g.image(7, 112)
    before, after = groups * g.dim(1, 64), groups * g.dim(1, 64)
    return _convolution(g, (1, before, size, size), after, (3, 3), g.choose((1, 1, 2)), 1, groups)


def conv1d(g: Draw) -> str:
    """Speech and audio: long rows, any kernel."""
    k, length, before = g.choose((1, 3, 3, 5, 7, 31)), g.dim(40, 2048), g.dim(1, 512)
    groups = before if g.chance(0.25) else 1
    after = before if groups > 1 else g.dim(1, 512)
    return _convolution(g, (1, before, length), after, (k,), g.choose((1, 1, 2)), 1, groups)


def transposed(g: Draw) -> str:
    size, k = g.image(7, 80), g.choose((2, 3, 4))
    stride = g.choose((1, 2, 2, 2))
    before, after = g.dim(1, 256), g.dim(1, 256)
    shape = (1, before, size, size)
    pad = (k - 1) // 2
    g.say("transposed", dims(shape), "->", after, f"{k}x{k} stride {stride}")
    g.flops += 2.0 * math.prod(shape) * after * k * k
    weight = g.normal((before, after, k, k), 1 / math.sqrt(before * k * k))
    inputs = [g.feed(shape), weight, g.normal((after,), 0.1)]
    y = g.node("ConvTranspose", inputs, kernel_shape=[k, k], strides=[stride] * 2, pads=[pad] * 4)
    return _activation(g, y)


def _convolution(
    g: Draw, shape: Sequence[int], after: int, kernel: Sequence[int], stride: int, dilation: int, groups: int
) -> str:
    before, rank = shape[1], len(kernel)
    padded = g.chance(0.8)
    pads = [dilation * (k - 1) // 2 if padded else 0 for k in kernel]
    result = [
        max(0, (n + 2 * p - dilation * (k - 1) - 1) // stride + 1)
        for n, p, k in zip(shape[2:], pads, kernel, strict=True)
    ]
    g.say(dims(shape), "->", after, dims(kernel), f"stride {stride}" if stride > 1 else "")
    g.say(f"dilation {dilation}" if dilation > 1 else "", f"groups {groups}" if groups > 1 else "")
    g.say("" if padded else "no padding")
    fan_in = before // groups * math.prod(kernel)
    g.flops += 2.0 * shape[0] * after * math.prod(result) * fan_in
    inputs = [g.feed(shape), g.normal((after, before // groups, *kernel), 1 / math.sqrt(fan_in))]
    if g.chance(0.8):
        inputs.append(g.normal((after,), 0.1))
    y = g.node(
        "Conv",
        inputs,
        kernel_shape=list(kernel),
        strides=[stride] * rank,
        dilations=[dilation] * rank,
        pads=pads * 2,
        group=groups,
    )
    return _activation(g, y, (shape[0], after, *result))


def _activation(g: Draw, y: str, shape: Sequence[int] = ()) -> str:
    """What follows a product in networks: a rectifier, a clip, x * sigmoid(x), a residual, nothing."""
    which = g.choose(("Relu", "Relu", "Clip", "SiLU", "none", "residual" if shape else "Relu"))
    if which == "none":
        return y
    g.say("+", which)
    if which == "Clip":
        return g.node("Clip", [y, g.weight(np.float32(0)), g.weight(np.float32(6))])
    if which == "SiLU":
        return g.node("Mul", [y, g.node("Sigmoid", [y])])
    return g.node("Relu", [y]) if which == "Relu" else g.node("Add", [y, g.feed(shape)])


def dense(g: Draw) -> str:
    """Rows of vectors times constant weights, as Gemm or MatMul."""
    rows, features, units = g.choose((1, 1, 4, g.dim(1, 512))), g.dim(1, 2048), g.dim(1, 2048)
    g.flops += 2.0 * rows * features * units
    g.elements += features * units / 8  # read once a run
    g.say(f"{rows}x{features} -> {units}")
    if g.chance(0.5):
        x = g.feed((rows, features))
        weight = g.normal((units, features), 1 / math.sqrt(features))
        return _activation(g, g.node("Gemm", [x, weight, g.normal((units,), 0.1)], transB=1))
    g.say("3-D")
    return _activation(g, g.linear(g.feed((1, rows, features)), features, units))


def matmul(g: Draw) -> str:
    """Products of two inputs: attention's scores and values, broadcast batches, plain ones."""
    m, k, n = g.dim(1, 512), g.dim(1, 512), g.dim(1, 512)
    batch = g.choose(((), (), (1, 12), (8,), (g.dim(1, 64),), (2, 3)))
    lead = g.choose((batch, batch, (1,) * len(batch), ()))
    g.flops += 2.0 * math.prod(batch) * m * k * n
    left, right = (*batch, m, k), (*lead, k, n)
    g.say(dims(left), "times", dims(right))
    if g.chance(0.3):
        g.say("(transposed)")
        order = [*range(len(lead)), len(lead) + 1, len(lead)]
        return g.node("MatMul", [g.feed(left), g.node("Transpose", [g.feed((*lead, n, k))], perm=order)])
    return g.node("MatMul", [g.feed(left), g.feed(right)])


def lstm(g: Draw) -> Sequence[str]:
    return _recurrent(g, "LSTM", 4)


def gru(g: Draw) -> Sequence[str]:
    return _recurrent(g, "GRU", 3)


def _recurrent(g: Draw, kind: str, gates: int) -> Sequence[str]:
    steps, batch, features, units = g.dim(1, 128), g.choose((1, 1, 2, 5)), g.dim(8, 512), g.dim(8, 512)
    both = g.chance(0.3)
    directions = 2 if both else 1
    g.say(f"{steps} steps of {batch}x{features} -> {units}", "both ways" if both else "")
    g.flops += 4.0 * steps * batch * (features + units) * units * gates * directions
    g.flops += steps * units * units * gates * directions / 2
    scale = 1 / math.sqrt(units)
    inputs = [
        g.feed((steps, batch, features)),
        g.normal((directions, gates * units, features), scale),
        g.normal((directions, gates * units, units), scale),
        g.normal((directions, 2 * gates * units), 0.1),
    ]
    extra = {"linear_before_reset": 1} if kind == "GRU" else {}
    y = g.node(kind, inputs, hidden_size=units, direction="bidirectional" if both else "forward", **extra)
    return [y]
