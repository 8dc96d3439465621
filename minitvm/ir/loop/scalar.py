"""What scalar operations mean where numpy, C and the processors differ; the tables are in docs/loop-ir.md.

For the operators' references and the loop interpreter; the LLVM and the CUDA printers have to agree.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np

Array = np.ndarray

INT: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": lambda a, b: a // b if b else a,
    "floormod": lambda a, b: a % b if b else 0,
    "min": min,
    "max": max,
}
"""``int64`` operators on Python numbers, not yet :func:`wrapped`."""


def wrapped(value: int) -> int:
    """An integer as ``int64`` holds it."""
    return (value + 2**63) % 2**64 - 2**63


def convert(values: Array, dtype: str | np.dtype) -> Array:
    """``astype``, but floats beyond an integer dtype's range become its nearest end, and NaN becomes 0."""
    target = np.dtype(dtype)
    if values.dtype.kind != "f" or target.kind not in "iu":
        with np.errstate(all="ignore"):
            return np.asarray(values.astype(target))
    info = np.iinfo(target)
    whole = np.trunc(values.astype("float64"))
    above, below = whole >= float(info.max + 1), whole < float(info.min)
    inside = np.where(above | below | np.isnan(whole), 0.0, whole).astype(target)
    return np.asarray(np.where(above, target.type(info.max), np.where(below, target.type(info.min), inside)))


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
