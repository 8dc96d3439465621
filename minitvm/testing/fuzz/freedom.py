"""Which elements of a graph's results ONNX leaves open: what moves when an open element inside of it moves."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from minitvm.testing.fuzz import open_ends  # noqa: F401  (register the rules)
from minitvm.testing.fuzz.case import Arrays
from minitvm.testing.fuzz.rules import spread
from minitvm.testing.fuzz.walk import Array, Compute, NoAnswer, Seen, walk

OPEN = 9
"""Evaluations with other numbers in elements that are open ..."""
NEAR = 10
"""... and with numbers as far off as elements are open to: all down, all up, and as chance has it."""


@dataclass(frozen=True)
class Freedom:
    """Bounds of every result; both infinite where an element is open, and both its value where it is decided."""

    why: str
    low: list[Array]
    high: list[Array]

    def allows(self, results: Sequence[Array]) -> list[Array]:
        """For each result, the elements within bounds."""
        return [_inside(a, low, high) for a, low, high in zip(results, self.low, self.high, strict=True)]


def _inside(a: Array, low: Array, high: Array) -> Array:
    if a.shape != low.shape:
        return np.asarray(low == -np.inf).all() & np.ones(a.shape, bool)
    wide = a.astype(np.float64)
    return np.asarray((low < high) & (np.isinf(high - low) | ((low <= wide) & (wide <= high))))


def freedom(model: onnx.ModelProto, feeds: Arrays, compute: Compute, answered: Sequence[str] = ()) -> Freedom | None:
    """``None`` where no node of the graph has an open element.  ``answered``: the peers that have an answer."""
    names, whys = [v.name for v in model.graph.output], list[str]()

    def varied(kind: int) -> Arrays:
        """Every value with open elements moved in some way; none where an evaluation has no answer."""
        turns = itertools.count()

        def moved(seen: Seen) -> Sequence[Array]:
            wide = spread(seen, answered, whys)
            return _moved(seen.results, wide, kind, next(turns)) if np.any(wide) else seen.results

        try:
            return walk(model, feeds, compute, moved)
        except NoAnswer:
            return {}

    base, kinds = walk(model, feeds, compute), [varied(kind) for kind in range(OPEN)]
    if not whys:
        return None
    near = [varied(OPEN + way) for way in range(NEAR)]
    bounds = [_bounds(base[n], [v.get(n) for v in kinds], [v.get(n) for v in near]) for n in names]
    return Freedom("; ".join(dict.fromkeys(whys)), [low for low, _ in bounds], [high for _, high in bounds])


def _bounds(base: Array, others: Sequence[Array | None], near: Sequence[Array | None]) -> tuple[Array, Array]:
    """Where an evaluation has no answer, or another shape, all is open."""
    everywhere = np.full(base.shape, np.inf)
    if any(a is None or a.shape != base.shape for a in (*others, *near)):
        return -everywhere, everywhere
    wide = [base.astype(np.float64), *(a.astype(np.float64) for a in near if a is not None)]
    low, high = np.min(wide, 0), np.max(wide, 0)
    with np.errstate(invalid="ignore"):  # an infinity less itself is no width
        width = np.nan_to_num(high - low)
    is_open = np.any([_differs(a, base) for a in others if a is not None], axis=0)
    is_open = is_open | np.any([np.isfinite(a) != np.isfinite(wide[0]) for a in wide], axis=0)
    return np.where(is_open, -np.inf, low - width), np.where(is_open, np.inf, high + width)


def _differs(a: Array, base: Array) -> Array:
    same = a == base
    return np.asarray(~(same | (np.isnan(a) & np.isnan(base))) if base.dtype.kind == "f" else ~same)


def _moved(results: Sequence[Array], spread: Array | float, kind: int, turn: int) -> list[Array]:
    """``kind`` up to ``OPEN`` puts anything into open elements, another thing at another node's ``turn``; else
    elements move by their spread at most."""
    found = []
    for value in results:
        try:
            wide = np.broadcast_to(spread, value.shape)
        except ValueError:  # a result of another shape than the first
            wide = np.full(value.shape, np.max(spread, initial=0.0))
        if kind < OPEN:
            moved = np.where(np.isinf(wide), _anything(value, (kind + 3 * turn) % OPEN), value)
        else:
            moved = _nearby(value, np.where(np.isinf(wide), 0.0, wide), kind - OPEN)
        found.append(moved.astype(value.dtype))
    return found


def _nearby(value: Array, distance: Array, kind: int) -> Array:
    way = (-1.0, 1.0)[kind] if kind < 2 else np.random.default_rng(kind).choice((-1.0, 1.0), value.shape)
    moved = value + distance * way
    if value.dtype.kind in "fb":
        return np.asarray(moved)
    info = np.iinfo(value.dtype)
    return np.clip(np.rint(moved), info.min, info.max)


def _anything(value: Array, kind: int) -> Array:
    rng, dtype = np.random.default_rng(kind), value.dtype
    if dtype.kind == "b":
        return np.asarray(rng.random(value.shape) < 0.5 if kind > 1 else kind == 1)
    if dtype.kind == "f":
        most = np.finfo(dtype).max
        numbers = (0.0, 1.0, -1.0, most, -most, np.nan, np.inf, -np.inf)
        return np.asarray(numbers[kind] if kind < len(numbers) else rng.normal(0, 10, value.shape))
    info = np.iinfo(dtype)
    if kind < 4:
        return np.asarray((0, 1, info.min, info.max)[kind], dtype)
    return rng.integers(info.min, info.max, value.shape, dtype=dtype, endpoint=True)
