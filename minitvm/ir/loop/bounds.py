"""What loops and conditions say of an index: an interval that holds it, what that decides; the index at all points.

``int64`` is the dtype of indices and of data.  Sums of loop variables stay far from its ends; data may wrap around.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from minitvm.ir.loop import (
    Binary,
    Buffer,
    Const,
    Intrin,
    Load,
    LoopExpr,
    LoopVar,
    Select,
    expr_children,
    post_order_exprs,
    walk_exprs,
)
from minitvm.ir.loop.affine import Affine, affine
from minitvm.ir.loop.scalar_numpy import compute
from minitvm.ir.loop.text import print_loop_expr


@dataclass(frozen=True)
class Range:
    """``low <= value <= high``; ``None`` where there is no bound."""

    low: int | None
    high: int | None

    def scaled(self, factor: int) -> Range:
        low, high = (None if end is None else end * factor for end in (self.low, self.high))
        return Range(low, high) if factor >= 0 else Range(high, low)

    def plus(self, other: Range) -> Range:
        low = None if self.low is None or other.low is None else self.low + other.low
        high = None if self.high is None or other.high is None else self.high + other.high
        return Range(low, high)

    def within(self, low: int, high: int) -> bool:
        """Whether it is known to lie there."""
        return self.low is not None and self.high is not None and low <= self.low and self.high <= high

    @property
    def is_empty(self) -> bool:
        return self.high is not None and self.low is not None and self.high < self.low


ANYTHING = Range(None, None)
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1
Ranges: TypeAlias = Mapping[LoopVar, Range]


# --- intervals ------------------------------------------------------------------------------------------------


def counter(extent: LoopExpr, ranges: Ranges) -> Range:
    """What the variable of a loop may be."""
    high = bounds(extent, ranges).high
    return Range(0, None if high is None else high - 1)


def bounds(expr: LoopExpr, ranges: Ranges) -> Range:
    """An interval that holds an integer expression."""
    match expr:
        case Const(value, "int64"):
            return Range(value, value)
        case LoopVar():
            return ranges.get(expr, ANYTHING)
        case Binary("add" | "sub", _, _) | Binary("mul", _, Const()):
            return _affine_bounds(expr, ranges)
        case Binary("mul", a, b):
            return _product(bounds(a, ranges), bounds(b, ranges))
        case Binary("floordiv" | "floormod" as op, a, Const(c, _)) if c > 0:
            return _divided(op, bounds(a, ranges), c)
        case Binary("min", a, b):
            return _least(bounds(a, ranges), bounds(b, ranges))
        case Binary("max", a, b):
            return _least(bounds(a, ranges).scaled(-1), bounds(b, ranges).scaled(-1)).scaled(-1)
        case Select(_, a, b):
            x, y = bounds(a, ranges), bounds(b, ranges)
            return Range(_least(x, y).low, _least(x.scaled(-1), y.scaled(-1)).scaled(-1).high)
    return ANYTHING


def _product(a: Range, b: Range) -> Range:
    if a.low is None or a.high is None or b.low is None or b.high is None:
        return ANYTHING
    corners = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    found = Range(min(corners), max(corners))
    return found if found.within(_LOWEST, _HIGHEST) else ANYTHING


def _divided(op: str, a: Range, c: int) -> Range:
    low, high = (None if end is None else end // c for end in (a.low, a.high))
    if op == "floordiv":
        return Range(low, high)
    return a.plus(Range(-low * c, -low * c)) if low is not None and low == high else Range(0, c - 1)


def _least(a: Range, b: Range) -> Range:
    highs = [h for h in (a.high, b.high) if h is not None]
    low = None if a.low is None or b.low is None else min(a.low, b.low)
    return Range(low, min(highs, default=None))


def _affine_bounds(expr: LoopExpr, ranges: Ranges) -> Range:
    """Term by term, after like terms have been added up: ``i - i`` is 0.  Nothing is known of a sum that may wrap."""
    form = affine(expr).joined()
    r = _exact_bounds(expr, form, ranges)
    return ANYTHING if _may_wrap(form, r, ranges) else r


def _exact_bounds(expr: LoopExpr, form: Affine, ranges: Ranges) -> Range:
    """Of the sum as a mathematical integer."""
    total = Range(form.constant, form.constant)
    for term, coefficient in form.terms.items():
        total = total.plus((ANYTHING if term == expr else bounds(term, ranges)).scaled(coefficient))
    return total


def _may_wrap(form: Affine, exact: Range, ranges: Ranges) -> bool:
    """Whether a sum whose exact value lies in ``exact`` may differ from its value in 64 bits."""
    if any(edge is not None and not _LOWEST <= edge <= _HIGHEST for edge in (exact.low, exact.high)):
        return True
    if None not in (exact.low, exact.high) or (not form.constant and list(form.terms.values()) == [1]):
        return False
    return any(_holds_data(t) and not bounds(t, ranges).within(_LOWEST, _HIGHEST) for t in form.terms)


def _holds_data(term: LoopExpr) -> bool:
    """Whether a value is made of anything but loop variables and constants."""
    return not all(isinstance(node, (LoopVar, Const, Binary)) for node in walk_exprs(term))


def wraps(expr: LoopExpr, ranges: Ranges) -> bool:
    """Whether an ``int64`` sum may wrap around: its exact value then differs from what is computed."""
    form = affine(expr)
    return _may_wrap(form, _exact_bounds(expr, form, ranges), ranges)


def prove(condition: LoopExpr, ranges: Ranges) -> bool | None:
    """Whether a condition on indices always (or never) holds; ``None`` where that is not known."""
    match condition:
        case Const(value, "bool"):
            return bool(value)
        case Binary("lt" | "le" | "eq" | "ne" as op, a, b) if a.dtype == "int64":
            known = _compare(op, bounds(Binary("sub", a, b), ranges))
            return None if known is not None and (wraps(a, ranges) or wraps(b, ranges)) else known
        case Binary("and", a, b) if condition.dtype == "bool":
            x, y = prove(a, ranges), prove(b, ranges)
            return False if x is False or y is False else True if x and y else None
        case Binary("or", a, b) if condition.dtype == "bool":
            x, y = prove(a, ranges), prove(b, ranges)
            return True if x or y else False if x is False and y is False else None
        case Intrin("not", (a,)) if condition.dtype == "bool":
            x = prove(a, ranges)
            return None if x is None else not x
    return None


def _compare(op: str, difference: Range) -> bool | None:
    low, high = difference.low, difference.high
    if op in ("lt", "le"):
        limit = 0 if op == "le" else -1
        return True if high is not None and high <= limit else False if low is not None and low > limit else None
    apart = (low is not None and low > 0) or (high is not None and high < 0)
    equal = low == high == 0
    known = equal or apart
    return (equal if op == "eq" else apart) if known else None


# --- the places of a kernel -----------------------------------------------------------------------------------

MAX_POINTS = 1 << 14
"""Loop nests with more iterations are looked at in their corners and in as many points drawn at random."""

Guard: TypeAlias = tuple[LoopExpr, bool]


class Around:
    """The loops and conditions around a place."""

    def __init__(self) -> None:
        self.variables: dict[LoopVar, Range] = {}
        self.conditions: list[Guard] = []

    @contextmanager
    def loop(self, var: LoopVar, extent: LoopExpr) -> Iterator[None]:
        varies = [] if isinstance(extent, Const) else [(Binary("lt", var, extent), True)]
        self.variables[var] = counter(extent, self.variables)
        with self.guards(varies):
            yield
        del self.variables[var]

    @contextmanager
    def guard(self, condition: LoopExpr, holds: bool) -> Iterator[None]:
        self.conditions.append((condition, holds))
        yield
        self.conditions.pop()

    @contextmanager
    def guards(self, guards: Sequence[Guard]) -> Iterator[None]:
        with ExitStack() as stack:
            for condition, holds in guards:
                stack.enter_context(self.guard(condition, holds))
            yield

    @property
    def reachable(self) -> bool:
        """False inside a loop that never runs."""
        return not any(reach.is_empty for reach in self.variables.values())


def out_of_bounds(around: Around, buffer: Buffer, index: Sequence[LoopExpr]) -> str | None:
    """A sentence naming an index that leaves ``buffer`` and one iteration where it does, or ``None``."""
    if not around.reachable:
        return None
    for axis, (expr, extent) in enumerate(zip(index, buffer.shape, strict=True)):
        if bounds(expr, around.variables).within(0, extent - 1):
            continue
        found = _violation(around, expr, extent)
        if found is not None:
            return f"index {print_loop_expr(expr)} leaves dimension {axis} of {buffer.name}, {extent} long: {found}"
    return None


def _violation(around: Around, expr: LoopExpr, extent: int) -> str | None:
    """An iteration that all conditions allow, as far as they can be evaluated, where ``expr`` is out of bounds."""
    conditions = [c for c, _ in around.conditions]
    needed = {n for n in post_order_exprs([expr, *conditions]) if isinstance(n, LoopVar)}
    highs = {v: r.high for v, r in around.variables.items() if v in needed}
    if None in highs.values():
        return None
    points = _points({v: high + 1 for v, high in highs.items() if high is not None})
    value = evaluate(expr, points)
    if value is None:
        return None
    wrong = (value < 0) | (value >= extent)
    for condition, holds in around.conditions:
        truth = evaluate(condition, points)
        if truth is None:
            return None  # depends on data: trusted
        wrong = wrong & (truth == holds)
    if not np.any(wrong):
        return None
    first = int(np.argmax(wrong))
    at = ", ".join(f"{v.name}={int(points[v][first])}" for v in points)
    return f"{int(np.broadcast_to(value, np.shape(wrong)).flat[first])}{' at ' + at if at else ''}"


def _points(extents: dict[LoopVar, int]) -> dict[LoopVar, np.ndarray]:
    """Every iteration of a small nest; corners and random ones of a large one."""
    if math.prod(extents.values()) <= MAX_POINTS:
        grids = np.meshgrid(*[np.arange(n) for n in extents.values()], indexing="ij")
        return {v: g.ravel() for v, g in zip(extents, grids, strict=True)}
    corners = list(itertools.islice(itertools.product(*[(0, n - 1) for n in extents.values()]), MAX_POINTS))
    rng = np.random.default_rng(0)
    return {
        v: np.concatenate([np.array([c[i] for c in corners]), rng.integers(0, n, MAX_POINTS)])
        for i, (v, n) in enumerate(extents.items())
    }


def evaluate(expr: LoopExpr, points: Mapping[LoopVar, np.ndarray]) -> np.ndarray | None:
    """An index or a condition at every point; ``None`` where it depends on data."""
    found: dict[LoopExpr, np.ndarray] = dict(points.items())
    for node in post_order_exprs([expr]):
        if isinstance(node, Load):
            return None
        if node not in found:
            with np.errstate(all="ignore"):
                found[node] = compute(node, [found[c] for c in expr_children(node)])
    return found[expr]
