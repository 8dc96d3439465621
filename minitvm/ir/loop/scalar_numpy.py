"""Scalar operations on numpy arrays, a table each: what the loop IR's operators and functions mean."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

import numpy as np

from minitvm.ir.loop import scalar

Array = np.ndarray


BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": lambda a, b: a | b if a.dtype == bool else a + b,
    "sub": lambda a, b: a ^ b if a.dtype == bool else a - b,
    "mul": lambda a, b: a * b,
    "div": scalar.divide,
    "mod": scalar.remainder,
    "floordiv": scalar.floor_divide,
    "floormod": scalar.floor_remainder,
    "min": np.minimum,
    "max": np.maximum,
    "pow": scalar.power,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "shl": np.left_shift,
    "shr": np.right_shift,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
}


def _erf(x: Array) -> Array:
    return np.array([math.erf(v) for v in x.astype(np.float64)], x.dtype).reshape(x.shape)


def _sigmoid(x: Array) -> Array:
    z = x.astype(np.float64)
    return np.where(z >= 0, 1 / (1 + np.exp(-z)), np.exp(z) / (1 + np.exp(z))).astype(x.dtype)


_BITS = {2: (np.int16, np.float16), 4: (np.int32, np.float32), 8: (np.int64, np.float64)}

INTRIN: dict[str, Callable[..., Array]] = {
    **{
        n: getattr(np, n)
        for n in ["abs", "sign", "floor", "ceil", "trunc", "sqrt", "exp", "log", "log2", "log1p", "expm1", "tanh"]
    },
    **{n: getattr(np, n) for n in ["sin", "cos", "tan", "sinh", "cosh", "isnan", "isinf"]},
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "neg": np.negative,
    "not": np.invert,
    "round": np.rint,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "erf": _erf,
    "sigmoid": _sigmoid,
    "fma": lambda a, b, c: (a.astype(np.float64) * b + c).astype(a.dtype) if a.dtype != np.float64 else a * b + c,
    "bitcast_int": lambda x: x.view(_BITS[x.dtype.itemsize][0]),
    "bitcast_float": lambda x: x.view(_BITS[x.dtype.itemsize][1]),
}

INT: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": lambda a, b: a // b if b else a,
    "floormod": lambda a, b: a % b if b else 0,
    "min": min,
    "max": max,
}
"""``int64`` operators on Python numbers, for what is the same in all lanes."""


def as_array(value: Array | int) -> Array:
    """A value as an array; integers wrap around to ``int64``."""
    if isinstance(value, int):
        return np.array([(value + (1 << 63)) % (1 << 64) - (1 << 63)])
    return value
