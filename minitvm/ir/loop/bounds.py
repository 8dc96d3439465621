"""What loops and conditions say of an index: an interval that holds it, what that decides; the index at all points.

``int64`` is the dtype of indices and of data.  Sums of loop variables stay far from its ends; data may wrap around.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from minitvm.ir.loop import (
    Alloc,
    Binary,
    Buffer,
    Const,
    For,
    If,
    Intrin,
    Load,
    LoopExpr,
    LoopVar,
    Select,
    Stmt,
    expr_children,
    post_order_exprs,
    stmt_children,
    walk_exprs,
)
from minitvm.ir.loop.affine import ANYTHING, Affine, Range, affine
from minitvm.ir.loop.scalar import compute
from minitvm.ir.loop.text import print_loop_expr

Ranges: TypeAlias = Mapping[LoopVar, Range]


# --- intervals ------------------------------------------------------------------------------------------------


def counter(extent: LoopExpr, ranges: Ranges) -> Range:
    """What the variable of a loop may be."""
    return bounds(extent, ranges).counter


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
            return bounds(a, ranges).times(bounds(b, ranges))
        case Binary("floordiv" | "floormod" as op, a, Const(c, _)) if c > 0:
            return bounds(a, ranges).divided(op, c)
        case Binary("min", a, b):
            return bounds(a, ranges).least(bounds(b, ranges))
        case Binary("max", a, b):
            return bounds(a, ranges).greatest(bounds(b, ranges))
        case Select(_, a, b):
            return bounds(a, ranges).hull(bounds(b, ranges))
    return ANYTHING


def _affine_bounds(expr: LoopExpr, ranges: Ranges) -> Range:
    """Term by term, after like terms have been added up: ``i - i`` is 0.  Nothing is known of a sum that may wrap."""
    form = affine(expr).joined()
    r = _exact_bounds(expr, form, ranges)
    return ANYTHING if _may_wrap(form, r, ranges) else r


def _exact_bounds(expr: LoopExpr, form: Affine[LoopExpr], ranges: Ranges) -> Range:
    return form.bounds(lambda term: ANYTHING if term is expr else bounds(term, ranges))


def _may_wrap(form: Affine[LoopExpr], exact: Range, ranges: Ranges) -> bool:
    """Whether a sum whose exact value lies in ``exact`` may differ from its value in 64 bits."""
    if any(edge is not None and not Range(edge, edge).fits for edge in (exact.low, exact.high)):
        return True
    if None not in (exact.low, exact.high) or (not form.constant and list(form.terms.values()) == [1]):
        return False
    return any(_holds_data(t) and not bounds(t, ranges).fits for t in form.terms)


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
            known = bounds(Binary("sub", a, b), ranges).decides(op)
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


# --- the places of a kernel -----------------------------------------------------------------------------------

MAX_POINTS = 1 << 14
"""Loop nests with more iterations are looked at in their corners and in as many points drawn at random."""

Guard: TypeAlias = tuple[LoopExpr, bool]


@dataclass(frozen=True)
class Around:
    """The loops, conditions and allocations around a place, the outermost first."""

    loops: tuple[For, ...] = ()
    variables: Ranges = field(default_factory=dict)
    conditions: tuple[Guard, ...] = ()
    buffers: tuple[Buffer, ...] = ()

    def inside(self, loop: For) -> Around:
        varies = () if isinstance(loop.extent, Const) else ((Binary("lt", loop.var, loop.extent), True),)
        variables = {**self.variables, loop.var: counter(loop.extent, self.variables)}
        return replace(self, loops=(*self.loops, loop), variables=variables, conditions=(*self.conditions, *varies))

    def where(self, *guards: Guard) -> Around:
        return replace(self, conditions=(*self.conditions, *guards))

    @property
    def reachable(self) -> bool:
        """False inside a loop that never runs."""
        return not any(reach.is_empty for reach in self.variables.values())


def places(stmt: Stmt, around: Around | None = None) -> Iterator[tuple[Stmt, Around]]:
    """Every statement with what is around it, outer before inner, in program order."""
    around = around or Around()
    yield stmt, around
    for number, part in enumerate(stmt_children(stmt)):
        match stmt:
            case For():
                inner = around.inside(stmt)
            case Alloc(buffer):
                inner = replace(around, buffers=(*around.buffers, buffer))
            case If(condition):
                inner = around.where((condition, number == 0))
            case _:
                inner = around
        yield from places(part, inner)


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
