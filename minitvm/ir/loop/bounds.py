"""Where an index can lie: intervals first, and where they are too wide, the index itself at the loops' points."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TypeAlias

import numpy as np

from minitvm.ir.loop import (
    Binary,
    Buffer,
    Cast,
    Const,
    Intrin,
    Load,
    LoopExpr,
    LoopVar,
    Select,
    expr_children,
    post_order_exprs,
)
from minitvm.ir.loop.text import print_loop_expr

Interval: TypeAlias = tuple[float, float]
"""Inclusive; integers, or infinite."""

UNKNOWN: Interval = (-math.inf, math.inf)

MAX_POINTS = 1 << 14
"""Loop nests with more iterations are looked at in their corners and in as many points drawn at random."""

Guard: TypeAlias = tuple[LoopExpr, bool]


class Ranges:
    """The loops and conditions around a place."""

    def __init__(self) -> None:
        self.variables: dict[LoopVar, Interval] = {}
        self.conditions: list[Guard] = []

    @contextmanager
    def loop(self, var: LoopVar, extent: LoopExpr) -> Iterator[None]:
        high = interval(extent, self.variables)[1]
        varies = [] if isinstance(extent, Const) else [(Binary("lt", var, extent), True)]
        self.variables[var] = (0, high - 1)
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
        return all(high >= 0 for _, high in self.variables.values())


def out_of_bounds(ranges: Ranges, buffer: Buffer, index: Sequence[LoopExpr]) -> str | None:
    """A sentence naming an index that leaves ``buffer`` and one iteration where it does, or ``None``."""
    if not ranges.reachable:
        return None
    for axis, (expr, extent) in enumerate(zip(index, buffer.shape, strict=True)):
        low, high = interval(expr, ranges.variables)
        if low >= 0 and high < extent:
            continue
        found = _violation(ranges, expr, extent)
        if found is not None:
            return f"index {print_loop_expr(expr)} leaves dimension {axis} of {buffer.name}, {extent} long: {found}"
    return None


def _violation(ranges: Ranges, expr: LoopExpr, extent: int) -> str | None:
    """An iteration that all conditions allow, as far as they can be evaluated, where ``expr`` is out of bounds."""
    conditions = [c for c, _ in ranges.conditions]
    needed = {n for n in post_order_exprs([expr, *conditions]) if isinstance(n, LoopVar)}
    bounds = {v: ranges.variables[v] for v in ranges.variables if v in needed}
    if not all(math.isfinite(high) for _, high in bounds.values()):
        return None
    points = _points({v: int(high) + 1 for v, (_, high) in bounds.items()})
    value = evaluate(expr, points)
    if value is None:
        return None
    wrong = (value < 0) | (value >= extent)
    for condition, holds in ranges.conditions:
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


# --- intervals ------------------------------------------------------------------------------------------------


def interval(expr: LoopExpr, variables: dict[LoopVar, Interval]) -> Interval:
    """Where the value of an integer expression lies."""
    found: dict[LoopExpr, Interval] = {}
    for node in post_order_exprs([expr]):
        found[node] = _interval_of(node, [found[c] for c in expr_children(node)], variables)
    return found[expr]


def _interval_of(node: LoopExpr, args: list[Interval], variables: dict[LoopVar, Interval]) -> Interval:
    match node:
        case Const(value):
            return (value, value)
        case LoopVar():
            return variables.get(node, UNKNOWN)
        case Binary(op, _, _) if op in _INTERVALS:
            return _INTERVALS[op](*args)
        case Select():
            return (min(args[1][0], args[2][0]), max(args[1][1], args[2][1]))
    return UNKNOWN


def _times(x: float, y: float) -> float:
    return 0 if x == 0 or y == 0 else x * y


def _product(a: Interval, b: Interval) -> Interval:
    corners = [_times(x, y) for x in a for y in b]
    return (min(corners), max(corners))


def _floordiv(a: Interval, b: Interval) -> Interval:
    if b[0] != b[1] or b[0] <= 0:
        return UNKNOWN
    return tuple(x if math.isinf(x) else x // b[0] for x in a)  # type: ignore[return-value]


def _floormod(a: Interval, b: Interval) -> Interval:
    if b[0] != b[1] or b[0] <= 0:
        return UNKNOWN
    return a if a[0] >= 0 and a[1] < b[0] else (0, b[0] - 1)


_INTERVALS: dict[str, Callable[[Interval, Interval], Interval]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _product,
    "floordiv": _floordiv,
    "floormod": _floormod,
    "min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
}


# --- values ---------------------------------------------------------------------------------------------------


def evaluate(expr: LoopExpr, points: dict[LoopVar, np.ndarray]) -> np.ndarray | None:
    """An index or a condition at every point; ``None`` where it depends on data."""
    found: dict[LoopExpr, np.ndarray] = {}
    for node in post_order_exprs([expr]):
        value = _value_of(node, [found.get(c) for c in expr_children(node)], points)
        if value is None:
            return None
        found[node] = value
    return found[expr]


def _value_of(node: LoopExpr, args: list[np.ndarray | None], points: dict[LoopVar, np.ndarray]) -> np.ndarray | None:
    match node:
        case Const(value):
            return np.asarray(value)
        case LoopVar():
            return points[node]
        case Binary(op, _, _) if op in _VALUES:
            return np.asarray(_VALUES[op](*args))
        case Select() if not any(a is None for a in args):
            condition, then, orelse = (np.asarray(a) for a in args)
            return np.where(condition, then, orelse)
        case Cast(_, dtype) if not dtype.startswith("float") and args[0] is not None:
            return args[0].astype(dtype)
        case Intrin("neg" | "abs" | "not" as name, _):
            return np.asarray(_UNARY[name](args[0]))
        case Load():
            return None
    return None


def _positive(divide: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda a, b: divide(a, np.where(b == 0, 1, b))


_VALUES: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "floordiv": _positive(np.floor_divide),
    "floormod": _positive(np.mod),
    "mod": _positive(np.fmod),
    "div": _positive(lambda a, b: np.trunc(a / b).astype(np.int64)),
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
}
_UNARY: dict[str, Callable[..., np.ndarray]] = {"neg": np.negative, "abs": np.abs, "not": np.invert}
