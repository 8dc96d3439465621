"""Do two results agree?  Tolerances follow from the dtype; where they are exceeded, from the case's condition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

TOLERANCE = {"float16": (4e-3, 1e-3), "float32": (1e-4, 1e-5), "float64": (1e-6, 1e-7)}
"""Relative to the element, and to the largest element: a few nodes' roundings, and a sum's of some hundred terms.
Attributes are float32, and so are the peers' constants in places: float64 is right to as many digits."""
CONDITION = 30.0
"""How many times further than the perturbed evaluations a result may lie: roundings happen at every node, too."""


def difference(
    mine: Sequence[np.ndarray], theirs: Sequence[np.ndarray], slack: float = 1.0, floor: float = 0.0
) -> str | None:
    """What differs first, in words; ``None`` where all results agree.

    ``slack`` multiplies the tolerances, ``floor`` is an absolute error beneath them.
    """
    if len(mine) != len(theirs):
        return f"{len(mine)} results where {len(theirs)} are expected"
    for i, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        what = _type_difference(a, b) or _value_difference(a, b, _near(a, b, slack, floor))
        if what:
            return f"output {i}: {what}"
    return None


def _type_difference(a: np.ndarray, b: np.ndarray) -> str | None:
    if a.shape != b.shape:
        return f"shape {a.shape} where {b.shape} is expected"
    if a.dtype != b.dtype:
        return f"dtype {a.dtype} where {b.dtype} is expected"
    return None


def _value_difference(a: np.ndarray, b: np.ndarray, fine: np.ndarray) -> str | None:
    if fine.all():
        return None
    wrong = np.argwhere(~np.atleast_1d(fine))
    at = tuple(int(i) for i in wrong[0])
    where = f"the first at {at}: {np.atleast_1d(a)[at]!s} where {np.atleast_1d(b)[at]!s} is expected"
    return f"{len(wrong)} of {fine.size} elements differ, {where}"


def _near(a: np.ndarray, b: np.ndarray, slack: float, floor: float) -> np.ndarray:
    """Elements that are equal, or finite and within the dtype's tolerance.  A result that rounds to infinity in
    one evaluation may be the largest number in another."""
    if a.dtype.kind != "f":
        return np.asarray(a == b)
    rtol, atol = TOLERANCE[a.dtype.name]
    with np.errstate(all="ignore"):
        wide_a, wide_b = _clipped(a), _clipped(b)
        scale = _largest(wide_b)
        bound = slack * (rtol * np.abs(wide_b) + atol * scale) + _subnormal(a.dtype) + floor
        close = (a == b) | (np.abs(wide_a - wide_b) <= bound)
        return np.asarray(close | (np.isnan(a) & np.isnan(b)))


def _subnormal(dtype: np.dtype[Any]) -> float:
    """What subnormal numbers may differ by: they have few digits."""
    return float(np.finfo(dtype).tiny) / 64


def _clipped(a: np.ndarray) -> np.ndarray:
    """In double, with infinity at the dtype's largest number."""
    most = float(np.finfo(a.dtype).max)
    return np.clip(a.astype(np.float64), -most, most)


def _largest(a: np.ndarray) -> float:
    """The largest everyday magnitude: the ends of the range would hide every difference."""
    magnitudes = np.abs(a[np.isfinite(a)])
    usual = magnitudes[magnitudes < 1e4]
    return float(usual.max(initial=0.0))


def coarsest(arrays: Iterable[np.ndarray]) -> str:
    """The float dtype of fewest digits among a graph's values: what its results can be right to."""
    found = {a.dtype.name for a in arrays}
    return next((name for name in TOLERANCE if name in found), "float64")


def within_condition(mine: Sequence[np.ndarray], evaluations: Sequence[Sequence[np.ndarray]], digits: str) -> bool:
    """Whether results lie as near to the evaluation in double as roundings of the inputs alone move it.

    ``digits`` is the graph's :func:`coarsest` dtype.
    ``evaluations`` are that in double, and those with perturbed inputs.  Where these disagree about an integer, a
    shape, or what is finite, the case is on an edge, and any result is.
    """
    exact, *perturbed = evaluations
    if any([p.shape for p in other] != [e.shape for e in exact] for other in perturbed):
        return True
    return all(
        _within(a, np.asarray(e), [np.asarray(p[i]) for p in perturbed], digits)
        for i, (a, e) in enumerate(zip(mine, exact, strict=True))
    )


def _within(a: np.ndarray, exact: np.ndarray, perturbed: Sequence[np.ndarray], digits: str) -> bool:
    if a.shape != exact.shape:
        return False
    edge = np.any([np.isfinite(p) != np.isfinite(exact) for p in perturbed], axis=0)
    if a.dtype.kind != "f":
        moved = np.any([p != exact for p in perturbed], axis=0)
        return bool(np.all((a == exact) | moved | edge))
    with np.errstate(all="ignore"):
        rtol, atol = max(TOLERANCE[a.dtype.name], TOLERANCE[digits])
        bound = _clipped_to(exact, a.dtype)
        moved = np.max([np.abs(_clipped_to(p, a.dtype) - bound) for p in perturbed], axis=0)
        slack = rtol * np.abs(bound) + atol * _largest(bound) + CONDITION * moved
        fine = (np.abs(_clipped(a) - bound) <= slack) | (np.isnan(a) & np.isnan(exact)) | edge
    return bool(np.all(fine))


def _clipped_to(exact: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    most = float(np.finfo(dtype).max)
    return np.clip(exact.astype(np.float64), -most, most)
