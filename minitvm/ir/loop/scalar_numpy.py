"""What the loop IR's expressions mean: scalar operations on numpy arrays, a table each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from minitvm.ir.loop import scalar
from minitvm.ir.loop.expr import Binary, Cast, Const, Intrin, LoopExpr, Select

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
    return np.array([math.erf(v) for v in x.astype(np.float64).ravel()], x.dtype).reshape(x.shape)


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


def compute(node: LoopExpr, operands: Sequence[Array]) -> Array:
    """The value of a constant, or of an operation on its operands' values."""
    match node:
        case Const(value, dtype):
            return np.array([value]).astype(dtype)
        case Binary(op, _, _):
            return BINARY[op](*operands)
        case Intrin(name, _):
            return np.asarray(INTRIN[name](*operands).astype(node.dtype, copy=False))
        case Cast(_, dtype):
            return scalar.convert(operands[0], dtype)
        case Select():
            return np.where(*operands)
    raise AssertionError(node)


def as_array(value: Array | int) -> Array:
    """A value as an array; integers wrap around to ``int64``."""
    if isinstance(value, int):
        return np.array([scalar.wrapped(value)])
    return value
