"""What is no defect: refusals for a stated reason, and elements of a graph's results that ONNX leaves open, since they
move when an open element inside of it moves.

A rule (in ``open_ends``) is a function of a node as a walk sees it.  It says how far each element of the node's results
may lie elsewhere: 0 where ONNX decides, infinity where it leaves the element open.  It broadcasts with the result.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import onnx

from tests.fuzz.case import Arrays, plain
from tests.fuzz.walk import Array, Compute, NoAnswer, Seen, walk

REFUSALS = (
    r"minitvm needs it while importing",
    r"cannot be compared",
    r"^the model has operators that minitvm cannot import",
    r"is not supported",
    r"are not supported",
    r"there is no element to choose",
    r"^Resize: \S.* has nothing to fill",
    r"^nn\.conv\w+: (the window spans|padding=\S.* removes all)",
)
"""Messages that name a known limit.  Of windows larger than the image ONNX says that there are none, ONNX Runtime
refuses convolutions without a pixel, in the dtypes that it has.  Of no elements it chooses the first."""

SINGLE = {
    "Attention": "its scale is a float32 attribute in ONNX's definition",
    "Gelu": "its constants are float32 in ONNX's definition",
    "com.microsoft.FastGelu": "its constants are float32 in ONNX Runtime",
    "HardSwish": "its slope is a float32 attribute in ONNX's definition",
    "GroupNormalization": "its statistics are float32 (stash_type)",
    "LayerNormalization": "as GroupNormalization",
    "RMSNormalization": "as GroupNormalization",
    "Resize": "scales and coordinates are float32",
}
"""Operators whose results in float64 have the digits of float32."""


Spread = Callable[[Seen], "Array | float"]
"""How far each element may lie elsewhere."""


class Rule(NamedTuple):
    why: str
    better: str
    """The peer that knows better: its answer stands, where it has one."""
    spread: Spread


RULES: dict[str, list[Rule]] = {}
"""By operator, whatever its domain."""


def rule(why: str, operators: str, better: str = "") -> Callable[[Spread], Spread]:
    """Registers a rule for operators, by its reason."""

    def register(spread: Spread) -> Spread:
        for name in operators.split():
            RULES.setdefault(name, []).append(Rule(why, better, spread))
        return spread

    return register


def spread(s: Seen, answered: Sequence[str], whys: list[str]) -> Array | float:
    """How far the results of a node may lie elsewhere by all rules; adds the reasons to ``whys``.

    ``answered``: the peers that have an answer."""
    total: Array | float = 0.0
    for each in RULES.get(s.node.op_type, ()):
        found = 0.0 if each.better in answered else each.spread(s)
        if np.any(found):
            whys.append(f"{s.node.op_type}: {each.why}")
            total = np.maximum(total, found)
    return total


# --- what rules ask -------------------------------------------------------------------------------------------


def opened(elements: Any) -> Array:
    return np.where(elements, np.inf, 0.0)


def wide(a: Array) -> Array:
    return a.astype(np.float64)


def magnitudes(a: Array) -> Array:
    """Magnitudes in double; 0 for what is not finite."""
    return np.asarray(np.nan_to_num(np.abs(wide(a)), nan=0.0, posinf=0.0))


def is_float(s: Seen) -> bool:
    return s.first.dtype.kind == "f"


def fits(found: Array, dtype: np.dtype[Any], margin: float = 1.0) -> Array:
    """Doubles that lie within an integer dtype, or less than ``margin`` beside it."""
    info = np.iinfo(dtype)
    return np.asarray((found > float(info.min) - margin) & (found < float(info.max) + margin))


def limit(a: Array) -> float:
    """The largest number in which sums of a dtype are kept."""
    if a.dtype.kind in "iu":
        return float(np.iinfo(a.dtype).max)
    return float(np.finfo(np.float64 if a.dtype == np.float64 else np.float32).max)


def axes_of(s: Seen) -> list[int]:
    axes = s.operand(1)
    return list(s.attributes.get("axes", [] if axes is None else axes.tolist()))


def along(scale: Array, s: Seen) -> Array:
    """The scale of every element: one for all, one for each place along an axis, or one for each block of places."""
    axis = s.attributes.get("axis", 1) % max(s.first.ndim, 1)
    if scale.size == 1:
        return scale.reshape(())
    if scale.ndim == s.first.ndim and scale.shape != s.first.shape:
        blocks = np.repeat(scale, s.attributes["block_size"], axis)
        return np.asarray(np.take(blocks, range(s.first.shape[axis]), axis))
    return scale if scale.ndim == s.first.ndim > 1 else scale.reshape(-1, *[1] * (s.first.ndim - 1 - axis))


def padded_same(s: Seen, kernel: Sequence[int]) -> list[tuple[int, ...]]:
    """Pixels, span of the window and stride of every axis, where the padding is SAME."""
    strides, dilations = (s.attributes.get(name, [1] * len(kernel)) for name in ("strides", "dilations"))
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    is_same = s.attributes.get("auto_pad", b"").startswith(b"SAME")
    return list(zip(s.first.shape[2:], spans, strides, strict=True)) if is_same else []


OPEN = 10
"""Evaluations with other numbers in elements that are open ..."""
NEAR = 10
"""... and with numbers as far off as elements are open to: all down, all up, and as chance has it."""
_EVERYDAY = 9


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
    with np.errstate(invalid="ignore"):  # both infinite
        is_open = np.isinf(high - low)
    return np.asarray((low < high) & (is_open | ((low <= wide) & (wide <= high))))


def freedom(model: onnx.ModelProto, feeds: Arrays, compute: Compute, answered: Sequence[str] = ()) -> Freedom | None:
    """``None`` where no node of the graph has an open element.  ``answered``: the peers that have an answer."""
    names, whys = [v.name for v in model.graph.output], list[str]()

    def varied(kind: int) -> Arrays:
        """Every value with open elements moved in some way; none where an evaluation has no answer."""
        turns = itertools.count()

        def moved(seen: Seen) -> Sequence[Array]:
            operands = [None if a is None else plain(a) for a in seen.x]
            found = replace(seen, x=operands, results=[plain(a) for a in seen.results])
            wide = spread(found, answered, whys)
            if not np.any(wide):
                return seen.results
            changed = _moved(found.results, wide, kind, next(turns))
            return [a.astype(own.dtype) for a, own in zip(changed, seen.results, strict=True)]

        try:
            return walk(model, feeds, compute, moved)
        except NoAnswer:
            return {}

    base = {n: plain(a) for n, a in walk(model, feeds, compute).items()}
    kinds = [varied(kind) for kind in range(OPEN)]
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
    others = [None if a is None else plain(a) for a in others]
    wide = [base.astype(np.float64), *(a.astype(np.float64) for a in near if a is not None)]
    low, high = np.min(wide, 0), np.max(wide, 0)
    is_open = np.any([_differs(a, base) for a in others if a is not None], axis=0)
    with np.errstate(invalid="ignore"):  # an infinity less itself is no width
        width = np.nan_to_num(high - low)
        is_open = is_open | np.any([_differs(a, wide[0]) & ~np.isfinite(a - wide[0]) for a in wide], axis=0)
    return np.where(is_open, -np.inf, low - width), np.where(is_open, np.inf, high + width)


def _differs(a: Array, base: Array) -> Array:
    same = a == base
    return np.asarray(~(same | (np.isnan(a) & np.isnan(base))) if base.dtype.kind == "f" else ~same)


def _moved(results: Sequence[Array], spread: Array | float, kind: int, turn: int) -> list[Array]:
    """``kind`` up to ``OPEN`` puts anything into open elements; else elements move by their spread at most."""
    found = []
    for value in results:
        try:
            wide = np.broadcast_to(spread, value.shape)
        except ValueError:  # a result of another shape than the first
            wide = np.full(value.shape, np.max(spread, initial=0.0))
        if kind < OPEN:
            moved = np.where(np.isinf(wide), _anything(value, kind, turn), value)
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


def _anything(value: Array, kind: int, turn: int) -> Array:
    """Another thing at another node's ``turn``; of the last two kinds everyday numbers at every node, as one NaN
    hides what others make.  One of these is the other's opposite: what their order decides differs."""
    kind = (kind + 3 * turn) % (OPEN - 2) if kind < OPEN - 2 else kind
    rng, dtype = np.random.default_rng((min(kind, OPEN - 2), turn)), value.dtype
    if dtype.kind == "b":
        return np.asarray(kind == 1 if kind < 2 else (rng.random(value.shape) < 0.5) ^ (kind == OPEN - 1))
    if dtype.kind == "f":
        most = np.finfo(dtype).max
        numbers = (0.0, 1.0, -1.0, most, -most, np.nan, np.inf, -np.inf)
        sign = -1 if kind == OPEN - 1 else 1
        return np.asarray(numbers[kind] if kind < len(numbers) else sign * rng.normal(0, 10, value.shape))
    info = np.iinfo(dtype)
    if kind < 4:
        return np.asarray((0, 1, info.min, info.max)[kind], dtype)
    if kind < OPEN - 2:
        return np.asarray(rng.integers(info.min, info.max, value.shape, dtype=dtype, endpoint=True))
    drawn = rng.integers(max(info.min, -_EVERYDAY), _EVERYDAY, value.shape, dtype=dtype, endpoint=True)
    return drawn if kind < OPEN - 1 else np.asarray(_EVERYDAY - drawn, dtype)
