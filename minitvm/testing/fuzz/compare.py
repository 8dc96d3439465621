"""Do two results agree?  Tolerances follow from the dtype; where they are exceeded, from the case's condition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

TOLERANCE = {"float16": (4e-3, 5e-4), "float32": (1e-5, 1e-6), "float64": (1e-9, 1e-10)}
"""Relative to the element, and to the largest element: roundings of some nodes, and of a sum of some hundred terms.
What lies further off is measured by the case's condition."""
CONDITION = 10.0
"""How many times further than the perturbed evaluations a result may lie: there are few of them, and peers round
inside of nodes, too."""


def difference(mine: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> str | None:
    """What differs first, in words; ``None`` where all results agree."""
    if len(mine) != len(theirs):
        return f"{len(mine)} results where {len(theirs)} are expected"
    for i, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        what = _type_difference(a, b) or _value_difference(a, b, near(a, b))
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


def near(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Elements that are equal, or finite and within the dtype's tolerance; none where the types differ."""
    if _type_difference(a, b):
        return np.zeros(a.shape, bool)
    if a.dtype.kind != "f":
        return np.asarray(a == b)
    rtol, atol = TOLERANCE[a.dtype.name]
    with np.errstate(all="ignore"):
        wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
        bound = rtol * np.abs(wide_b) + atol * _largest(wide_b) + _subnormal(a.dtype)
        close = np.isfinite(wide_b) & (np.abs(wide_a - wide_b) <= bound)
        return np.asarray((a == b) | close | (np.isnan(a) & np.isnan(b)))


def _subnormal(dtype: np.dtype[Any]) -> float:
    """What subnormal numbers may differ by: they have few digits."""
    return float(np.finfo(dtype).tiny) / 64


def _largest(a: np.ndarray) -> float:
    """The largest everyday magnitude: the ends of the range would hide every difference."""
    magnitudes = np.abs(a[np.isfinite(a)])
    usual = magnitudes[magnitudes < 1e4]
    return float(usual.max(initial=0.0))


def coarsest(arrays: Iterable[np.ndarray], single: bool) -> str:
    """The float dtype of fewest digits in a graph, which its results can be right to; ``single``: not more than
    those of float32."""
    found = {a.dtype.name for a in arrays} | ({"float32"} if single else set())
    return next((name for name in TOLERANCE if name in found), "float64")


def within_condition(a: np.ndarray, evaluations: Sequence[np.ndarray], digits: str) -> np.ndarray:
    """Elements that lie as near to the evaluation in double as roundings of the inputs alone move it.

    ``digits`` is the graph's :func:`coarsest` dtype.
    ``evaluations`` are that in double, and those with perturbed inputs.  Where these disagree about a shape, or what
    is finite, the case is on an edge, and any result is.
    """
    exact, *perturbed = (np.asarray(e) for e in evaluations)
    if any(p.shape != exact.shape for p in perturbed):
        return np.ones(a.shape, bool)
    return _within(a, exact, np.stack(perturbed), digits) if a.shape == exact.shape else np.zeros(a.shape, bool)


def _within(a: np.ndarray, exact: np.ndarray, perturbed: np.ndarray, digits: str) -> np.ndarray:
    edge = np.any(np.isfinite(perturbed) != np.isfinite(exact), axis=0)
    if a.dtype.kind == "b":
        return np.asarray((a == exact) | np.any(perturbed != exact, axis=0))
    if a.dtype.kind != "f":
        return np.asarray(_between(a, exact, perturbed) | edge)
    with np.errstate(all="ignore"):
        rtol, atol = max(TOLERANCE[a.dtype.name], TOLERANCE[digits])
        bound = _clipped(exact, a.dtype)
        moved = np.max(np.abs(_clipped(perturbed, a.dtype) - bound), axis=0)
        slack = rtol * np.abs(bound) + atol * _largest(bound) + CONDITION * moved
        return np.asarray((np.abs(_clipped(a, a.dtype) - bound) <= slack) | (np.isnan(a) & np.isnan(exact)) | edge)


def _between(a: np.ndarray, exact: np.ndarray, perturbed: np.ndarray) -> np.ndarray:
    """Integers as far from the exact one as those perturbed are from each other."""
    all_of = np.concatenate([exact[None], perturbed]).astype(np.float64)
    low, high = all_of.min(0), all_of.max(0)
    return np.asarray((a == exact) | ((low < high) & (a >= 2 * low - high) & (a <= 2 * high - low)))


def _clipped(exact: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    most = float(np.finfo(dtype).max)
    return np.clip(exact.astype(np.float64), -most, most)
