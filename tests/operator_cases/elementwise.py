"""Cases of the operators that work element by element, broadcast or not, and of those that fill tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minitvm.ir.types import DTYPES
from operator_cases.accuracy import BITS, EXACT, FUNCTION, Accuracy
from operator_cases.case import Case, case, generator
from operator_cases.draw import Draw

_RANGES = {
    **dict.fromkeys(("log", "log2", "sqrt", "rsqrt"), (0.01, 9.0)),
    "log1p": (-0.9, 5.0), "asin": (-1.0, 1.0), "acos": (-1.0, 1.0), "acosh": (1.0, 9.0), "atanh": (-0.99, 0.99),
}  # fmt: skip
"""Where a function's ordinary arguments lie."""
_WHOLE = ("int8", "int16", "int32", "int64")
_ANYWHERE = ((-3.0, 3.0), (-100.0, 100.0), (-0.01, 0.01), (-2e4, 2e4))
"""Of the others: also beyond where an exponential overflows, and many periods."""


@generator(
    *("exp", "expm1", "log", "log2", "log1p", "sqrt", "rsqrt", "sigmoid", "erf", "tanh", "sin", "cos", "tan"),
    *("asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh"),
)
def function(name: str, draw: Draw, dtype: str) -> Case:
    low, high = _RANGES[name] if name in _RANGES else draw.choice(_ANYWHERE)
    return case(name, draw.array(draw.shape(), dtype, low, high, "all"), accuracy=FUNCTION)


@generator("floor", "ceil", "round", "trunc", "isnan", "isinf", "isfinite", "negative", "abs", "copy", "bitwise_not")
def exact(name: str, draw: Draw, dtype: str) -> Case:
    x = draw.array(draw.shape(), dtype, -9, 9, "all")
    halves = x.dtype.kind == "f" and draw.flag(3)
    return case(name, (np.round(np.clip(x, -99, 99) * 2) / 2).astype(dtype) if halves else x, accuracy=BITS)


@generator(
    "logical_not", "zeros_like", "ones_like", "sign", "nn.relu", "annotation.stop_fusion", "annotation.cast_hint"
)
def unary(name: str, draw: Draw, dtype: str) -> Case:
    return case(name, draw.array(draw.shape(), dtype, -9, 9, "all"))


@generator("nn.leaky_relu")
def leaky_relu(name: str, draw: Draw, dtype: str) -> Case:
    return case(name, draw.array(draw.shape(), dtype, special="all"), alpha=draw.choice((0.25, 0.1, 0.0, -0.5, 2.0)))


@generator("nn.prelu", "nn.bias_add")
def along_an_axis(name: str, draw: Draw, dtype: str) -> Case:
    shape = draw.shape(1, 4)
    axis = draw.axis(len(shape))
    vector = draw.array((shape[axis],), dtype, -9, 9, special="all")
    return case(name, draw.array(shape, dtype, -9, 9, special="all"), vector, axis=axis)


@generator("clip")
def clip(name: str, draw: Draw, dtype: str) -> Case:
    bounds = (-2.0, 3.0, 0.0, 100.0, -1000.0, float("-inf"), float("inf"), 2.0**40, 0.5)
    low, high = draw.choice(bounds), draw.choice(bounds)
    return case(name, draw.array(draw.shape(), dtype, -9, 9, "all"), a_min=low, a_max=high)


@generator("cast")
def cast(name: str, draw: Draw, dtype: str) -> Case:
    x, mode = draw.array(draw.shape(), dtype, -300, 300, "all"), draw.choice(("up", "down", "nearest"))
    return case(name, x, dtype=draw.choice(DTYPES), saturate=draw.flag(), round_mode=mode)


@generator("reinterpret")
def reinterpret(name: str, draw: Draw, dtype: str) -> Case:
    """Every pattern of bits is a number; floats that are not compare equal by not being one."""
    to = draw.choice([d for d in DTYPES if np.dtype(d).itemsize == np.dtype(dtype).itemsize])
    return case(name, draw.array(draw.shape(), dtype, -99, 99, "all"), dtype=to, accuracy=BITS)


@generator("full_like")
def full_like(name: str, draw: Draw, dtype: str) -> Case:
    return case(name, draw.array(draw.shape(), dtype), draw.array((), dtype, special="all"), accuracy=BITS)


@generator("full")
def full(name: str, draw: Draw, dtype: str) -> Case:
    to = draw.choice((None, *DTYPES))
    return case(name, draw.array((), dtype, -300, 300, "all"), shape=draw.shape(), dtype=to)


@generator("zeros", "ones")
def fill(name: str, draw: Draw, dtype: str) -> Case:
    return case(name, shape=draw.shape(), dtype=dtype)


@generator("extent", "iota")
def iota(name: str, draw: Draw, dtype: str) -> Case:
    return case(name, size=draw.integer(0, 40), dtype=dtype)


@generator("eye")
def eye(name: str, draw: Draw, dtype: str) -> Case:
    return case(name, shape=draw.shape(2, 2), k=draw.integer(-9, 9), dtype=dtype)


# --- of several tensors ---------------------------------------------------------------------------------------


def broadcast(draw: Draw, count: int) -> list[tuple[int, ...]]:
    """Shapes that broadcast against each other: some dimensions are 1, some missing in front."""
    common = draw.shape()
    shapes = []
    for _ in range(count):
        kept = common[draw.integer(0, len(common)) if draw.flag(3) else 0 :]
        shapes.append(tuple(1 if draw.flag(4) else extent for extent in kept))
    return shapes


def pair(draw: Draw, dtype: str, low: float = -9, high: float = 9) -> list[np.ndarray]:
    return [draw.array(shape, dtype, low, high, "all") for shape in broadcast(draw, 2)]


@generator(
    *("add", "subtract", "multiply", "maximum", "minimum", "mod", "floor_divide", "floor_mod"),
    *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "divide"),
    *("logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor"),
)
def binary(name: str, draw: Draw, dtype: str) -> Case:
    """Integers also over zero, and the smallest over -1."""
    return case(name, *pair(draw, dtype), accuracy=EXACT)


@generator("left_shift", "right_shift")
def shift(name: str, draw: Draw, dtype: str) -> Case:
    a, b = broadcast(draw, 2)
    return case(name, draw.array(a, dtype, -99, 99, "all"), draw.array(b, dtype, -2, 70, "all"))


@generator("power")
def power(name: str, draw: Draw, dtype: str) -> Case:
    a, b = broadcast(draw, 2)
    base = draw.array(a, dtype, 0 if draw.flag() else -3, 3, "all")
    return case(name, base, draw.array(b, dtype, -4, 9, "all"), accuracy=FUNCTION)


@generator("where")
def where(name: str, draw: Draw, dtype: str) -> Case:
    c, x, y = broadcast(draw, 3)
    values = [draw.array(shape, dtype, special="all") for shape in (x, y)]
    return case(name, draw.array(c, "bool"), *values, accuracy=BITS)


@generator("broadcast_to")
def broadcast_to(name: str, draw: Draw, dtype: str) -> Case:
    shape, given = _wide_and_narrow(draw)
    return case(name, draw.array(given, dtype, special="all"), shape=shape, accuracy=BITS)


@generator("broadcast_to_like")
def broadcast_to_like(name: str, draw: Draw, dtype: str) -> Case:
    shape, given = _wide_and_narrow(draw)
    like = draw.array(shape, draw.choice(DTYPES))
    return case(name, draw.array(given, dtype, special="all"), like, accuracy=BITS)


def _wide_and_narrow(draw: Draw) -> tuple[Sequence[int], Sequence[int]]:
    (given,) = broadcast(draw, 1)
    front = draw.shape(0, 1, 3)
    wide = tuple(draw.integer(0, 5) if extent == 1 and draw.flag() else extent for extent in given)
    return (*front, *wide), given


# --- between floats and integers on a scale -------------------------------------------------------------------


@generator("qnn.quantize")
def quantize(name: str, draw: Draw, dtype: str) -> Case:
    out = draw.choice(("int8", "uint8", "int16", "uint16"))
    data, scale, zero, axis = _quantized(draw, dtype, dtype, draw.choice((out, "int32")), out)
    return case(name, data, scale, zero, out_dtype=out, axis=axis)


@generator("annotation.simulated_quantize")
def simulated_quantize(name: str, draw: Draw, dtype: str) -> Case:
    """Quarters of a step, a power of two, so that nothing is rounded but where it should be."""
    scale, steps = draw.choice((0.125, 0.5, 2.0)), draw.integer(1, 40)
    data = np.round(draw.array(draw.shape(), dtype, -50, 50) * 4) / 4 * scale
    bounds = [np.asarray(value).astype(dtype) for value in (scale, -steps, steps)]
    return case(name, np.asarray(data).astype(dtype), *bounds, kind=draw.integer(0, 3), sign=True)


@generator("qnn.dequantize")
def dequantize(name: str, draw: Draw, dtype: str) -> Case:
    to = draw.choice(("float32", "float16", "float64"))
    narrow = draw.choice(("int8", "uint8")) if dtype not in ("int8", "uint8", "int16", "uint16", "int32") else dtype
    data, scale, zero, axis = _quantized(draw, dtype, to, dtype if narrow == dtype else narrow, narrow)
    return case(name, data, scale, zero, out_dtype=to, axis=axis, accuracy=Accuracy(ulps=1))


@generator("qnn.dequantize_blocks")
def dequantize_blocks(name: str, draw: Draw, dtype: str) -> Case:
    """Bytes of several numbers, or integers of any width with a scale for each block."""
    shape, to = draw.shape(1, 4), draw.choice(("float32", "float16", "float64"))
    axis, block = draw.axis(len(shape)) % len(shape), draw.integer(1, 6)
    bits = draw.choice((2, 4, 8)) if dtype == "uint8" else 0
    held = shape[axis] * (8 // bits if bits else 1)
    extent = max(held - draw.integer(0, 3), 0)
    blocks = (*shape[:axis], -(-(extent or held) // block), *shape[axis + 1 :])
    zeros, info = draw.choice((blocks, ())), np.iinfo(dtype if dtype.lstrip("u") in _WHOLE else "int8")
    data = draw.array(shape, dtype, max(int(info.min), -(1 << 20)), min(int(info.max), 1 << 20), "all")
    zero = draw.array(zeros, draw.choice(("uint8", to)), 0, 100, "none")
    given = {"axis": axis, "block": block, "bits": bits, "extent": extent}
    return case(name, data, draw.array(blocks, to, 0.01, 1.5, "none"), zero, **given, accuracy=Accuracy(ulps=1))


def _quantized(draw: Draw, dtype: str, scales: str, zeros: str, limits: str) -> tuple[Any, Any, Any, int]:
    """Data, scale and zero point: one for all, one in a vector, or one for each place along an axis."""
    shape = draw.shape(1, 4)
    axis = draw.axis(len(shape))
    vector = draw.choice(((), (shape[axis],), (1,)))
    info = np.iinfo(limits)
    most = min(info.max, 1 << 20)
    data = draw.array(shape, dtype, max(info.min, -most), most, "all")
    zero = draw.array(vector, zeros, max(info.min, -most), most, "none")
    return data, draw.array(vector, scales, 0.01, 1.5, "none"), zero, axis
