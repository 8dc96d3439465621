"""Quantizing without a division: quotients by a number that is known, rounded to whole ones of a few."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from minitvm.ir.loop import Binary, Const, Intrin, LoopExpr, Select, const, intrin, minimum, select

_MOST = 1 << 10
"""Whole numbers of which each is looked at."""
_NEAR = 4
"""Numbers on either side of where a quotient rounds differently."""


def quantized(value: LoopExpr, dtype: str) -> LoopExpr | None:
    """``min(max(round(x / s) + z, low), high)``, to be cast to ``dtype``, without its division, for machines that round
    ``a * b + c`` once: it is 0 where x is NaN, and never -0.  ``None`` of anything else."""
    match value:
        case Binary(
            "min",
            Binary(
                "max",
                Binary("add", Intrin("round", (Binary("div", x, Const(scale, "float32")),)), Const(zero)),
                Const(low),
            ),
            Const(high),
        ):
            reach, zero = np.iinfo(dtype), float(zero)
            if reach.min <= low and high <= reach.max:
                found = _reciprocal(float(np.float32(scale)), low - zero, high - zero)
                return None if found is None else _steps(x, found, zero)
    return None


def is_whole(value: LoopExpr) -> bool:
    """True if it is a whole number, by its form: what :func:`quantized` returns, or what is kept within a range."""
    match value:
        case Select(_, value, Const(other)) | Binary("add", value, Const(other)):
            return float(other).is_integer() and is_whole(value)
    return isinstance(value, Intrin) and value.name == "round"


def _steps(x: LoopExpr, by: _Reciprocal, zero: float) -> LoopExpr:
    least, upper, lower = (const(number, "float32") for number in (by.least, by.upper, by.lower))
    kept = _at_most(select(least < x, x, least), by.most)
    quotient = intrin("fma", kept, upper, kept * lower) if by.lower else kept * upper
    steps = intrin("round", quotient)
    steps = steps + zero if zero or by.least < 0 else steps
    return steps if by.low == -zero else select(x.equal(x), steps, 0)


def _at_most(x: LoopExpr, most: float) -> LoopExpr:
    """The smaller one, x no NaN.  The bits of floats, as integers, are in their order but among negative ones; integers
    are compared by units that are not busy with floats."""
    if most <= 0:
        return select(x < most, x, const(most, "float32"))
    bits = int(np.float32(most).view("int32"))
    return intrin("bitcast_float", minimum(intrin("bitcast_int", x), bits))


@dataclass(frozen=True)
class _Reciprocal:
    """``upper + lower`` is that of a scale; x is kept within ``least``, whose quotient is ``low``, and ``most``."""

    least: float
    most: float
    upper: float
    lower: float
    low: float


@cache
def _reciprocal(scale: float, low: float, high: float) -> _Reciprocal | None:
    """Of a scale; ``None`` where a quotient from ``low`` to ``high`` would be rounded to another one than by division.

    Neither way do quotients become less as x grows: they are the same if they are near every x where they become more.
    """
    is_usual = 2.0**-60 < scale < 2.0**60 and low.is_integer() and high.is_integer() and 0 < high - low < _MOST
    if not is_usual or max(abs(low), abs(high)) > _MOST:
        return None
    divisor = np.float32(scale)
    upper = np.float32(1 / scale)
    lower = np.float32(1 / scale - float(upper))
    ends = (np.array([low, high]) * scale).astype("float32")
    middles = ((np.arange(low, high) + 0.5) * scale).astype("float32")
    steps = np.arange(-2 * _NEAR, 2 * _NEAR + 1) / 2  # below a power of two they are half as far apart
    beside = middles[:, None] + steps * np.spacing(np.abs(middles))[:, None]
    near = np.concatenate([ends, beside.astype("float32").ravel()])
    wanted = np.rint(near / divisor)
    exact = near.astype("float64") * float(upper) + (near * lower).astype("float64")
    sides = [np.rint((exact * (1 + slack)).astype("float32")) for slack in (-(2.0**-50), 2.0**-50)]
    if not all(np.array_equal(side, wanted) for side in sides) or wanted[:2].tolist() != [low, high]:
        return None
    return _Reciprocal(float(ends[0]), float(ends[1]), float(upper), float(lower), low)
