"""What scalar operations mean where numpy, C and the processors differ (the tables are in docs/loop-ir.md), and all of
the loop IR's on numpy arrays.

For the operators' references and the loop interpreter; the LLVM and the CUDA printers have to agree.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from minitvm.ir.dtypes import STORED, register
from minitvm.ir.loop.expr import DOT_OPERANDS, Binary, Cast, Const, Intrin, LoopExpr, Select, wrapped

Array = np.ndarray


register()
_CARRIERS = {np.dtype(stored): np.dtype(carrier) for stored, carrier in STORED.items()}


def convert(values: Array, dtype: str | np.dtype) -> Array:
    """``astype``, but floats beyond an integer dtype's range become its nearest end, and NaN becomes 0.

    Stored dtypes take what their carrier holds: integers of fewer than 8 bits the lowest ones, floats what is nearest,
    halves to even (``float8_e8m0fnu``: the next power of two below, of 0 the least); beyond their range infinity, else
    NaN, else their largest number.
    """
    target = np.dtype(dtype)
    if values.dtype == target:
        return values
    if values.dtype in _CARRIERS:
        return convert(values.astype(_CARRIERS[values.dtype]), target)
    if target in _CARRIERS:
        return _stored(values, target)
    if values.dtype.kind != "f" or target.kind not in "iu":
        with np.errstate(all="ignore"):
            return np.asarray(values.astype(target))
    info = np.iinfo(target)
    whole = np.trunc(values.astype("float64"))
    above, below = whole >= float(info.max + 1), whole < float(info.min)
    inside = np.where(above | below | np.isnan(whole), 0.0, whole).astype(target)
    return np.asarray(np.where(above, target.type(info.max), np.where(below, target.type(info.min), inside)))


def _stored(values: Array, target: np.dtype) -> Array:
    if _CARRIERS[target] != np.float32:
        whole = values.astype("int8") if values.dtype == bool else convert(values, "int32")
        return np.asarray((values if values.dtype.kind in "iu" else whole).astype(target))
    with np.errstate(all="ignore"):
        single = _sticky_float32(values)
        return _power_below(single) if target == "float8_e8m0fnu" else np.asarray(single.astype(target))


def _sticky_float32(values: Array) -> Array:
    """As float32; what that does not hold becomes the neighbour whose last bit is 1, so that rounding again is right.

    Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to odd".
    """
    wide = values.astype("float64") if values.dtype.itemsize > 2 else values
    near = np.atleast_1d(wide.astype("float32"))
    if wide.dtype != np.float64:
        return near.reshape(values.shape)
    inexact = (near.astype("float64") != wide) & ~np.isnan(wide)
    bits = near.view("int32") - (inexact & (np.abs(near.astype("float64")) > np.abs(wide)))
    return np.asarray(bits | inexact).astype("int32").view("float32").reshape(values.shape)


def _power_below(values: Array) -> Array:
    """The exponent of numbers as ``float8_e8m0fnu``: the least one for 0, NaN below and for what is not finite."""
    exponents = np.where(values == 0, 0, np.frexp(values)[1].astype("int32") + 126)
    codes = np.where((values >= 0) & np.isfinite(values), np.maximum(exponents, 0), 255)
    return codes.astype("uint8").view("float8_e8m0fnu")


def nonzero(divisor: Array) -> Array:
    """Integers are divided by 1 where they would be divided by 0: the quotient is the dividend, the remainder 0."""
    return np.asarray(np.where(divisor == 0, divisor.dtype.type(1), divisor))


def divide(a: Array, b: Array) -> Array:
    """Towards zero for integers; the smallest one divided by -1 is itself."""
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    safe = nonzero(b)
    quotient = floor_divide(a, safe)
    return np.asarray(quotient + ((floor_remainder(a, safe) != 0) & ((a < 0) != (safe < 0))).astype(a.dtype))


def remainder(a: Array, b: Array) -> Array:
    """What :func:`divide` leaves, with the sign of ``a``; of floats ``fmod``."""
    return np.asarray(np.fmod(a, b if a.dtype.kind == "f" else nonzero(b)))


def floor_divide(a: Array, b: Array) -> Array:
    """Rounded down; the smallest integer divided by -1 is itself."""
    with np.errstate(all="ignore"):
        return np.asarray(np.floor(a / b) if a.dtype.kind == "f" else a // nonzero(b))


def floor_remainder(a: Array, b: Array) -> Array:
    """What :func:`floor_divide` leaves, with the sign of ``b``."""
    with np.errstate(all="ignore"):
        return np.asarray(np.mod(a, b if a.dtype.kind == "f" else nonzero(b)))


def power(a: Array, b: Array) -> Array:
    """Integers wrap around; a negative exponent truncates the reciprocal: 0, but for bases 1 and -1."""
    if a.dtype.kind == "f":
        return np.asarray(np.power(a, b))
    whole = np.power(a, np.maximum(b, 0))
    if a.dtype.kind == "u":
        return np.asarray(whole)
    reciprocal = np.where(np.abs(a) == 1, np.where(b % 2 == 1, a, np.abs(a)), 0)
    return np.asarray(np.where(b < 0, reciprocal, whole)).astype(a.dtype)


# --- tables: what the loop IR's expressions mean ---------------------------------------------------------------


def greatest(a: Array, b: Array) -> Array:
    """The larger one, NaN if either is, the first of two zeros."""
    return np.asarray(np.where((b > a) | (b != b), b, a))


def least(a: Array, b: Array) -> Array:
    """The smaller one, NaN if either is, the first of two zeros."""
    return np.asarray(np.where((b < a) | (b != b), b, a))


BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": lambda a, b: a | b if a.dtype == bool else a + b,
    "sub": lambda a, b: a ^ b if a.dtype == bool else a - b,
    "mul": lambda a, b: a * b,
    "div": divide,
    "mod": remainder,
    "floordiv": floor_divide,
    "floormod": floor_remainder,
    "min": least,
    "max": greatest,
    "larger": lambda a, b: np.where(a < b, b, a),
    "pow": power,
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


def _dot(first: str, second: str, a: Array, b: Array, total: Array) -> Array:
    """The parts of two words, of these dtypes, multiplied and added to a third; wraps around."""
    left, right = (np.ascontiguousarray(x)[..., None].view(d).astype(np.int64) for x, d in ((a, first), (b, second)))
    return np.asarray((total + (left * right).sum(-1)).astype(np.int32))


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
    "unlikely": lambda x: x,
    "round": np.rint,
    "rsqrt": lambda x: 1 / np.sqrt(x.astype(np.float32) if x.dtype == np.float16 else x),
    "erf": _erf,
    "sigmoid": _sigmoid,
    "fma": lambda a, b, c: (a.astype(np.float64) * b + c).astype(a.dtype) if a.dtype != np.float64 else a * b + c,
    **{name: partial(_dot, *parts) for name, parts in DOT_OPERANDS.items()},
    "ldexp": np.ldexp,
    "bitcast_int": lambda x: x.view(_BITS[x.dtype.itemsize][0]),
    "bitcast_float": lambda x: x.view(_BITS[x.dtype.itemsize][1]),
}


def compute(node: LoopExpr, operands: Sequence[Array]) -> Array:
    """The value of a constant, or of an operation on its operands' values."""
    match node:
        case Const(value, dtype):
            return convert(np.array([value]), dtype) if dtype in STORED else np.array([value]).astype(dtype)
        case Binary(op, _, _):
            return BINARY[op](*operands)
        case Intrin(name, _):
            return np.asarray(INTRIN[name](*operands).astype(node.dtype, copy=False))
        case Cast(_, dtype):
            return convert(operands[0], dtype)
        case Select():
            return np.where(*operands)
    raise AssertionError(node)


def as_array(value: Array | int) -> Array:
    """A value as an array; integers wrap around to ``int64``."""
    if isinstance(value, int):
        return np.array([wrapped(value)])
    return value
