"""Generators of quantized operators and of image resizing."""

import math
from typing import Any

import numpy as np

from tests.fuzz.case import Value
from tests.fuzz.draw import Draw, Reject, generates
from tests.fuzz.layers import window
from tests.fuzz.rows import BYTES

_WIDE = ("uint8", "int8", "uint16", "int16")


def _scale(d: Draw, shape: tuple[int, ...], dtype: str = "float32") -> Value:
    """A power of two now and then: quotients that lie exactly between two integers."""
    if d.chance(0.3):
        return d.constant(np.full(shape, d.choice((0.5, 1.0, 1.0)), dtype), 0.1)
    return d.within(shape, dtype, 0.01, 0.2, 0.9)


def _zero(d: Draw, shape: tuple[int, ...], dtype: str) -> Value:
    low, high = (0, 20) if dtype.startswith("u") else (-10, 10)
    if dtype == "int32":
        low, high = 0, 0
    return d.within(shape, dtype, low, high, 0.9)


def _scale_shape(d: Draw, shape: tuple[int, ...]) -> tuple[tuple[int, ...], dict[str, Any]]:
    """A scale for the whole tensor, for an axis, or for blocks of one; and the attributes that say so."""
    how = d.rng.random()
    if how < 0.5 or not shape or d.opset < 13:
        return (() if d.chance(0.7) else (1,)), {}
    axis = d.axis(len(shape))
    if how < 0.85 or d.opset < 21:
        return (shape[axis],), {"axis": axis}
    block = d.choice((1, 2, 3, 8))
    blocks = list(shape)
    blocks[axis] = math.ceil(shape[axis] / block)
    return tuple(blocks), {"axis": axis, "block_size": block}


@generates("QuantizeLinear")
def quantize(d: Draw) -> list[Value]:
    x = d.operand(("float32", "float32", "float16") if d.opset >= 19 else ("float32", "float32", "int32"))
    x = d.new(d.known(x), x.dtype, mood="halves") if d.chance(0.25) else x
    shape, given = _scale_shape(d, d.known(x))
    scale = _scale(d, shape, "float32" if x.dtype == "int32" else x.dtype)
    dtype = d.choice(_WIDE if d.opset >= 21 else BYTES)
    return d.node([x, scale, d.maybe(_zero(d, shape, dtype), 0.8)], **given)


@generates("DequantizeLinear")
def dequantize(d: Draw) -> list[Value]:
    x = d.operand(("uint8", "int8", "int32", *(("uint16", "int16") if d.opset >= 21 else ())))
    shape, given = _scale_shape(d, d.known(x))
    dtype = d.choice(("float32", "float32", "float16")) if d.opset >= 19 else "float32"
    scale = d.within(shape, dtype, -0.2, -0.01, 0.9) if d.chance(0.1) else _scale(d, shape, dtype)
    return d.node([x, scale, d.maybe(_zero(d, shape, x.dtype), 0.7)], **given)


@generates("QLinearMatMul")
def qlinear_matmul(d: Draw) -> list[Value]:
    a = d.operand(BYTES, 2, 3)
    shape, columns = d.known(a), d.size(64)
    per_column = d.choice([(), (columns,)])
    other, out = d.choice((a.dtype, d.choice(BYTES))), d.choice((a.dtype, d.choice(BYTES)))
    b = [d.new((shape[-1], columns), other, 0.6), _scale(d, per_column), _zero(d, per_column, other)]
    return d.node([a, _scale(d, ()), _zero(d, (), a.dtype), *b, _scale(d, ()), _zero(d, (), out)])


@generates("ConvInteger", "QLinearConv")
def conv_integer(d: Draw) -> list[Value]:
    x = d.operand(BYTES, 3, 4)
    shape, given = d.known(x), window(d, d.known(x)[2:])
    groups = d.choice((1, 1, shape[1])) or 1
    weight = (groups * d.choice((1, 2, 5)), shape[1] // groups, *given["kernel_shape"])
    if math.prod(weight) * math.prod(shape[2:]) * shape[0] > 500_000:
        raise Reject("too much work")
    dtype = d.choice((x.dtype, d.choice(BYTES)))
    w, given["group"] = d.new(weight, dtype, 0.8), groups
    if d.op == "ConvInteger":
        return d.node([x, w, d.maybe(_zero(d, (), x.dtype)), d.maybe(_zero(d, (), dtype))], **given)
    per_channel = d.choice([(), (weight[0],)])
    wide = [_scale(d, per_channel), d.constant(np.zeros(per_channel, dtype))]
    bias = d.maybe(d.within(weight[:1], "int32", -500, 500, 0.9))
    first = [x, _scale(d, ()), _zero(d, (), x.dtype), w, *wide]
    return d.node([*first, _scale(d, ()), _zero(d, (), x.dtype), bias], **given)


_COORDINATES = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric")


@generates("Resize")
def resize(d: Draw) -> list[Value]:
    x = d.operand(None, 1, 4, 3000)
    shape = d.known(x)
    wide = [s if i < x.rank - 2 else _resized(d, s) for i, s in enumerate(shape)]
    scales = d.constant(np.array([w / s if s else 1.0 for w, s in zip(wide, shape, strict=True)], "float32"))
    if d.opset < 11:
        return d.node([x, scales], mode=d.choice(("nearest", "linear")))
    mode = d.choice(("nearest", "nearest", "linear", "linear", "cubic")) if x.dtype != "bool" else "nearest"
    given: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": d.maybe(d.choice(_coordinates(d)))}
    if mode == "nearest":
        ways = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
        given["nearest_mode"] = d.maybe(d.choice(ways))
    if mode == "cubic":
        given |= {"cubic_coeff_a": d.maybe(-0.5), "exclude_outside": d.maybe(1)}
    if d.opset >= 18 and mode != "nearest":
        given["antialias"] = d.maybe(1, 0.2)
    empty = None if d.opset >= 13 else d.constant(np.zeros(0, "float32"))
    return d.node([x, empty, None, d.ints(wide)] if d.chance(0.5) else [x, empty, scales], **given)


def _resized(d: Draw, size: int) -> int:
    """Often a part, whose coordinates lie exactly between two pixels, or a multiple."""
    parts = [size // k for k in (2, 4, 8) if size % k == 0]
    return max(1, d.choice([*parts, 2 * size, 3 * size]) if d.chance(0.6) else d.between(1, 3 * size + 1))


def _coordinates(d: Draw) -> tuple[str, ...]:
    return _COORDINATES if d.opset >= 19 else _COORDINATES[:4]


@generates("Upsample")
def upsample(d: Draw) -> list[Value]:
    if d.opset > 9:
        raise Reject("gone")
    x = d.operand(None, 2, 4, 1000)
    scales = [1.0 if i < x.rank - 2 else d.choice((1.0, 2.0, 3.0)) for i in range(x.rank)]
    mode = d.choice(("nearest", "linear"))
    if d.opset < 9:
        return d.node([x], mode=mode, scales=scales)
    return d.node([x, d.constant(np.array(scales, "float32"))], mode=mode)
