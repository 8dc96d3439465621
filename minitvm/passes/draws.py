"""Random inputs that tell operators apart: small ones and large, what cancels, what is not finite."""

from __future__ import annotations  # so that numpy.random is imported by who draws numbers

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minitvm.ir.decision import Declined
from minitvm.ir.dtypes import STORED
from minitvm.ir.expr import Expr, Function
from minitvm.ir.op import Fusion, Op
from minitvm.ir.types import TensorType, TupleType, Type, closed, is_numeric
from minitvm.ir.visitor import calls
from minitvm.passes.roundings import is_small, numbers_in

MAX_ELEMENTS = 1 << 24
"""Inputs larger than this are not drawn."""
FEW_ELEMENTS = 64
TURNS = 4
"""Of every draw, where the inputs have few elements."""


@dataclass(frozen=True)
class Draw:
    """The way in which random inputs are drawn: the ranges of floats and of integers, and what is mixed in.

    ``rare``: floats that a quarter of the elements are.  ``extremes``: a quarter of the integers are the dtype's
    smallest and largest.  ``extent``: of dimensions that are known only when the module runs.
    """

    name: str
    floats: tuple[float, float]
    integers: tuple[int, int] = (0, 3)
    rare: tuple[float, ...] = ()
    extremes: bool = False
    extent: int = 3
    turn: int = 0
    """Of drawing again, where inputs are so small that one draw holds few kinds of numbers."""
    share: float = 0.25
    """Of rare elements; 0: one of each tensor."""
    jitter: int = 0
    """Units in the last place by which rare elements are moved."""
    exponents: bool = False
    """Whether ``floats`` are those of powers of two: all sizes are as likely."""


DRAWS = (
    Draw("small", (-1.0, 1.5)),
    Draw("positive", (0.1, 1.5), (0, 1), extent=1),
    Draw("wide", (-12.0, 12.0), (-12, 12), rare=(0.0, -0.0)),
    Draw("huge", (-1e9, 1e9), (-12, 12), extremes=True),
    Draw("not finite", (-12.0, 12.0), (0, 0), rare=(np.nan, np.inf, -np.inf, 0.0, -0.0)),
)
"""Small ones are indices, or where roots are taken; the others show a clip, a sign, a zero, what wraps around."""
SMALL = Draw("of all small sizes", (-120.0, 20.0), share=1.0, exponents=True)
"""Products of them are below the normal numbers."""
LARGE = Draw("of all large sizes", (-20.0, 126.0), share=1.0, exponents=True)
"""Products of them are infinite."""
ONE_NAN = Draw("finite but for one", (-1.0, 1.5), rare=(np.nan, np.inf), share=0.0)
"""What only its own sums may spread."""


def closer(function: Function) -> list[Draw]:
    """The draws for a function of few calls: where sums with its constants cancel, products underflow, one number is
    none.

    None for a recurrence, whose state hands roundings on from step to step.
    """
    if not is_small(function) or any(_hands_on(c.op) for c in calls(function.body)):
        return []
    near = tuple(n for n in numbers_in(function) if abs(n) < 1e30)
    beside = Draw("beside its constants", (-1.0, 1.5), rare=near, share=0.75, jitter=64)
    return [*([beside] if near else []), SMALL, ONE_NAN]


def _hands_on(op: Op | Function) -> bool:
    return isinstance(op, Op) and op.fusion is Fusion.OPAQUE and not op.is_exact()


def turns(function: Function, draws: Sequence[Draw]) -> list[Draw]:
    elements = sum(_elements(closed(p.type, 1)) for p in function.params if p.checked_type is not None)
    return [replace(draw, turn=turn) for draw in draws for turn in range(TURNS if elements < FEW_ELEMENTS else 1)]


def random_inputs(
    function: Function, seed: int = 0, draw: Draw = DRAWS[0], typed: Function | None = None
) -> list[Any] | Declined:
    """Random values for a function's parameters, the same for the same names; or why there are none."""
    types = {p.name: p.checked_type for p in (typed or function).params}
    weights = _weights(function) if draw.rare else set()
    found = []
    for param in function.params:
        known = param.checked_type or types.get(param.name)
        if known is None:
            return Declined(f"%{param.name} has no type")
        type_ = closed(known, draw.extent)
        if not is_numeric(type_):
            return Declined(f"%{param.name} is {type_}, of which no value is drawn")
        if _elements(type_) > MAX_ELEMENTS:
            return Declined(f"%{param.name} is very large: {type_}")
        key = zlib.crc32(f"{param.name} {draw.name} {draw.turn}".encode())
        found.append(random_value(type_, np.random.default_rng([seed, key]), draw, finite=param in weights))
    return found


def _elements(type_: Type) -> int:
    if isinstance(type_, TupleType):
        return sum(map(_elements, type_.fields))
    return type_.size if isinstance(type_, TensorType) and is_numeric(type_) else 0


def _weights(function: Function) -> set[Expr]:
    """What convolutions multiply with: whether it meets a padding's zero, which makes NaN of infinity, is open."""
    anchors = [c for c in calls(function.body) if isinstance(c.op, Op) and c.op.fusion is Fusion.OUT_ELEMWISE_FUSABLE]
    return {arg for call in anchors for arg in call.args[1:]}


def random_value(type_: Type, rng: np.random.Generator, draw: Draw = DRAWS[0], finite: bool = False) -> Any:
    """A random array of a type, or a tuple of them; ``finite``: nothing rare that is not."""
    if isinstance(type_, TupleType):
        return tuple(random_value(field, rng, draw, finite) for field in type_.fields)
    assert isinstance(type_, TensorType), type_
    if type_.dtype in STORED:
        wide = random_value(type_.with_dtype(STORED[type_.dtype]), rng, draw, finite)
        return wide.astype(type_.dtype)
    shape, dtype = type_.static_shape, np.dtype(type_.dtype)
    if dtype.kind == "b":
        return np.asarray(rng.random(shape) < 0.5)
    ends: tuple[float, ...] = tuple(x for x in draw.rare if not finite or math.isfinite(x))
    if dtype.kind in "iu":
        info, (low, high) = np.iinfo(dtype), draw.integers
        values = np.floor(_spread(max(low, info.min), high + 1, shape, rng)).astype(dtype)
        ends = (info.min, info.min + 1, info.max, info.max // 3) if draw.extremes else ()
    else:
        most = float(np.sqrt(np.finfo(dtype).max)) / 16  # so that a few products and sums of them are finite
        if draw.exponents:
            least, largest = (end / 128 * float(np.log2(np.finfo(dtype).max)) for end in draw.floats)
            values = np.exp2(_spread(least, largest, shape, rng)).astype(dtype)
            return np.asarray(values * rng.choice(np.array([1, -1], dtype), shape))
        low, high = np.clip(draw.floats, -most, most)
        values = _spread(low, high, shape, rng).astype(dtype)
    if not ends:
        return values
    where = rng.random(shape) < draw.share if draw.share else np.arange(values.size).reshape(shape) == values.size // 2
    with np.errstate(all="ignore"):
        rare = rng.choice(np.array(ends, dtype), shape)
        if draw.jitter and dtype.kind == "f":
            rare = (rare * (1 + np.finfo(dtype).eps * rng.integers(-draw.jitter, draw.jitter, shape))).astype(dtype)
    return np.where(where, rare, values)


def _spread(low: float, high: float, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Numbers all over a range: with two elements, one of each half."""
    count = math.prod(shape)
    steps = (rng.permutation(count) + rng.random(count)) / max(count, 1)
    return np.asarray(low + (high - low) * steps).reshape(shape)
