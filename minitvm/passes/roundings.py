"""How far a function's results may move because its own roundings are open, and what moves further.

The operators that IEEE 754 defines (``Op.is_exact``) give one result; sums, and functions such as ``exp``, may round
otherwise: their operands and results are moved by some units in the last place, and what the function's results do then
is what an implementation of the same function may do.  Its inputs stay as they are: an error that only moved inputs
would explain is an error of the rewrite.
"""

from __future__ import annotations  # so that numpy.random is imported by who draws numbers

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from minitvm.errors import MiniTVMError
from minitvm.ir.dtypes import STORED, carrier, is_float
from minitvm.ir.evaluate import evaluate, evaluate_call
from minitvm.ir.expr import Call, Constant, Function, Tuple
from minitvm.ir.visitor import calls, post_order

RTOL = 1e-4
HALF_RTOL = 4e-3
"""float16 keeps 11 bits: eight roundings."""
FEW_CALLS = 12
"""In a function of more, roundings of many layers come together: pieces of it are compared element by element."""
UNITS = (16, -16, *(64,) * 4, *(256,) * 12)
"""In the last place, by which open values are moved: all one way, then as chance has it, until a difference is
explained."""
MARGIN = 4.0
"""Times what a sample moves: the worst is further away than a few of them find."""

NO_NUMBERS, ANY = (np.nan, np.inf, -np.inf), (0.0, 1.0, -1.0, 1e4, -1e4)
"""What is no number on the way, and some that an overflow may stand for where terms come in another order."""

Results = list[np.ndarray]


def flatten(value: Any) -> Results:
    """The arrays of a value, one after the other; of what has no fixed number of them, that number before them."""
    if isinstance(value, dict):
        value = list(value.items())
    if isinstance(value, tuple):
        return [leaf for part in value for leaf in flatten(part)]
    if isinstance(value, list):
        return [np.asarray(len(value)), *(leaf for part in value for leaf in flatten(part))]
    return [np.asarray(-1 if value is None else value)]


def moved(value: Any, ends: Sequence[int], rng: np.random.Generator, inside: bool = False) -> Any:
    """Floats moved by a few units in the last place; everything else as it is.  ``inside``: whole numbers stay, too,
    where there are no others: somebody rounded to them, or they were integers."""
    if isinstance(value, tuple):
        return tuple(moved(field, ends, rng, inside) for field in value)
    if isinstance(value, list):
        return [moved(part, ends, rng, inside) for part in value]
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or value.dtype.name in STORED:
        return value
    info = np.finfo(value.dtype)
    eps, is_tiny = info.eps, (value != 0) & (np.abs(value) < info.smallest_normal)
    with np.errstate(all="ignore"):
        if inside and not np.any((value != np.rint(value)) | (np.abs(value) > 1 / eps)):
            return value
        most = (HALF_RTOL if value.dtype == np.float16 else RTOL) / 4
        part = np.clip(eps * rng.uniform(ends[0], ends[-1], value.shape), -most, most)
        step = np.where(is_tiny, np.sign(part) * info.smallest_subnormal, 0)  # which have fewer bits
        return (value * (1 + part) + step).astype(value.dtype)


def is_small(function: Function) -> bool:
    return len(calls(function.body)) <= FEW_CALLS


def rounded_otherwise(
    function: Function, inputs: Sequence[Any], units: int, seed: int = 0, every: bool = False
) -> Results:
    """The results where all that is open is rounded otherwise, by up to so many units in the last place.

    ``every``: so is what IEEE 754 defines, as another order of sums and products would; what overflows on the way is
    any number, and what is no number there any other that is none.
    """
    rng = np.random.default_rng([abs(units), seed])
    ends = (units,) if units < 0 or units == UNITS[0] else (-units, units)
    return flatten(_evaluated(function, inputs, ends, rng, every))


def _evaluated(
    function: Function, inputs: Sequence[Any], ends: Sequence[int], rng: np.random.Generator, every: bool
) -> Any:
    results = {function.body, *(function.body.fields if isinstance(function.body, Tuple) else ())}

    def value(call: Call, *given: Any) -> Any:
        found = _value(call, given, ends, rng, every)
        if not every or call in results:
            return found
        finite = all(np.isfinite(leaf).all() for operand in given for leaf in _floats(operand))
        return _unknown(found, (*NO_NUMBERS, *(ANY if finite else ())), rng)

    return evaluate(function, *inputs, how=value)


def _floats(value: Any) -> Results:
    return [leaf for leaf in flatten(value) if leaf.dtype.kind == "f"]


def _unknown(value: Any, ones: Sequence[float], rng: np.random.Generator) -> Any:
    """Others in the place of what is no number."""
    if isinstance(value, tuple):
        return tuple(_unknown(field, ones, rng) for field in value)
    value = np.asarray(value) if isinstance(value, np.generic) else value
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or np.isfinite(value).all():
        return value
    return np.where(np.isfinite(value), value, rng.choice(np.array(ones, value.dtype), value.shape))


def _value(call: Call, given: Sequence[Any], ends: Sequence[int], rng: np.random.Generator, every: bool) -> Any:
    if isinstance(call.op, Function):
        return _evaluated(call.op, given, ends, rng, every)
    if call.op.is_exact():
        value = evaluate_call(call, *given)
        return moved(value, ends, rng, inside=True) if every else value
    return moved(evaluate_call(call, *(moved(value, ends, rng) for value in given)), ends, rng)


def has_open_roundings(function: Function) -> bool:
    return any(isinstance(c.op, Function) or not c.op.is_exact() for c in calls(function.body))


def beyond_roundings(
    function: Function,
    inputs: Sequence[Any],
    found: Results,
    expected: Results,
    rtol: float = RTOL,
    margin: float = MARGIN,
    units: Sequence[int] = UNITS,
    roundings: int | None = None,
) -> str:
    """The element, if any, that is further from the function's own result than ``rtol`` of its magnitude (or so many
    ``roundings``), and ``margin`` times what its open roundings move it; in words.

    Where they move most of a result by as much as it is large, as a recurrence over many steps does, nothing is said
    of it.
    """
    allowed = [_allowed(want, rtol, roundings) for want in expected]
    left = _beyond(found, expected, allowed)
    if not left or not has_open_roundings(function):
        return left
    for turn, unit in enumerate(units):
        try:
            other = rounded_otherwise(function, inputs, unit, turn)
        except MiniTVMError:
            return ""
        if [have.shape for have in other] != [want.shape for want in expected]:
            return ""  # rounding decides how many there are
        for slack, want, have in zip(allowed, expected, other, strict=True):
            np.maximum(slack, _allowed(want, rtol, roundings) + margin * _distance(have, want), out=slack)
        left = _beyond(found, expected, [_undecided(a, e) for a, e in zip(allowed, expected, strict=True)])
        if not left:
            return ""
    return left


def beyond_reassociation(
    ways: Sequence[tuple[Function, Sequence[Any]]], found: Results, expected: Results, rtol: float = RTOL
) -> str:
    """The same where sums and products may be made in another order: the magnitudes of what is on the way decide,
    before and after.  ``ways``: the function and what was made of it, each with its inputs."""
    slack = [_allowed(want, rtol, None) for want in expected]
    left = _beyond(found, expected, slack)
    for turn, unit in enumerate(UNITS if left else ()):
        for (function, inputs), own in zip(ways, (expected, found), strict=True):
            try:
                other = rounded_otherwise(function, inputs, unit, turn, every=True)
            except MiniTVMError:
                return ""
            if [have.shape for have in other] != [want.shape for want in expected]:
                return ""  # rounding decides how many there are
            for room, want, have in zip(slack, own, other, strict=True):
                np.maximum(room, _allowed(want, rtol, None) + MARGIN * _distance(have, want), out=room)
        left = _beyond(found, expected, [_undecided(a, e) for a, e in zip(slack, expected, strict=True)])
        if not left:
            return ""
    return left


def _allowed(want: np.ndarray, rtol: float, roundings: int | None) -> np.ndarray:
    """How far each element may move where nothing is open."""
    if roundings is None or want.dtype.kind != "f":
        return np.asarray(rtol * _magnitude(want))
    info, size = np.finfo(want.dtype), np.abs(want.astype("float64"))
    size = np.where(np.isfinite(size), np.maximum(size, float(info.tiny)), 0.0)
    return np.asarray(roundings * float(info.eps) / 2 * size)


def _magnitude(want: np.ndarray) -> np.ndarray:
    """Of each element; below the normal numbers, as of the least of them."""
    if not is_float(want.dtype.name):
        return np.zeros(want.shape)
    wide = np.abs(want.astype(carrier(want.dtype.name)).astype("float64"))
    tiny = 2.0**-126 if want.dtype.name in STORED else float(np.finfo(want.dtype).tiny)
    coarse = {"float16": HALF_RTOL / RTOL}.get(want.dtype.name, 1e4 if want.dtype.name in STORED else 1.0)
    return np.asarray(np.where(np.isfinite(wide), coarse * np.maximum(wide, tiny), 0.0))


def _distance(have: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Infinite between a number and what is none, and between infinities; of infinity and NaN none, as ``(x - y) * s``
    is ``x * s - y * s``."""
    if not is_float(want.dtype.name):
        return np.where(have == want, 0.0, np.inf)
    h, w = (a.astype(carrier(a.dtype.name)).astype("float64") for a in (have, want))
    with np.errstate(all="ignore"):
        numbers = np.isfinite(h) & np.isfinite(w)
        apart = np.isfinite(h) | np.isfinite(w) | (np.isinf(h) & np.isinf(w) & (h != w))
        return np.where(numbers, np.abs(h - w), np.where(apart, np.inf, 0.0))


def _undecided(allowed: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Everything is allowed of a result of which open roundings decide most elements."""
    decided = allowed < np.maximum(_magnitude(want), 1e-30)
    return allowed if not allowed.size or decided.mean() >= 0.5 else np.full(allowed.shape, np.inf)


def _beyond(found: Results, expected: Results, allowed: Iterable[np.ndarray]) -> str:
    for position, (have, want, slack) in enumerate(zip(found, expected, allowed, strict=True)):
        apart = _distance(have, want)
        if not bool((apart <= slack).all()):
            with np.errstate(all="ignore"):
                excess = np.where(apart > slack, apart / np.maximum(slack, 1e-300), -1.0)
            at = np.unravel_index(int(np.argmax(excess)), excess.shape)
            before, after = (a.astype(carrier(a.dtype.name))[at] for a in (want, have))
            place = tuple(map(int, at))
            return f"result {position}: element {place} was {before:.9g} and is {after:.9g}, further than it rounds"
    return ""


def numbers_in(function: Function, most: int = 8) -> list[float]:
    """The finite floats of a function's constants, where they are few, and their quotients: near them sums cancel."""
    found = list[float]()
    for node in post_order(function.body):
        if isinstance(node, Constant) and is_float(node.dtype) and node.value.size <= 64 and len(found) < most:
            found += [float(v) for v in np.unique(node.value.astype("float64"))[:most] if np.isfinite(v) and v != 0]
    return [sign * n for n in (*found, *(a / b for a in found for b in found if a != b)) for sign in (1, -1)]
