"""Random sizes, arrays and names, with a taste for what goes wrong."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

SIZES = (1, 1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 64, 100)
MOODS = ("plain", "plain", "plain", "plain", "plain", "plain", "special", "large", "small", "equal", "halves")
FLOAT_SPECIALS = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5, -0.5, 1.5, 2.5, 1e-40, -1e-45, 6e-8, 1e4)
LARGE = {"float16": 6e4, "float32": 3e38, "float64": 1e308, "bfloat16": 3e38}
ELEMENTS = 1 << 13
"""The most elements of one tensor."""

AWKWARD_NAMES = (
    "key", "value", "self", "params", "kwargs", "name", "input:0", "input/0", "日本語", "é", "a b", " ", "%x",
    "%0", "p0", "p1", "x" * 300, "None", "0", "1x", "-", ".", "main", "lambda", "a,b", 'quo"te', "it's",
    "back\\slash", "new\nline", "{}", "{0}", "%s", "tab\t", "default", "entry", "out", "run", "T_add", "meta",
    "def", "@main", "[1]", "(a)", "A", "a", "data", "tvmgen", "fused_add", "workspace", "barrier", "thread",
    "threads", "__init__", "NaN", "😀", "\u202eabc",
)  # fmt: skip


def sizes(rng: random.Random, rank: int, budget: int = ELEMENTS, zero: float = 0.01) -> tuple[int, ...]:
    """A shape of some rank with at most ``budget`` elements; with probability ``zero`` each, a dimension is 0."""
    shape: list[int] = []
    for left in range(rank, 0, -1):
        most = max(1, int(budget ** (1 / left) * 3) if left > 1 else budget)
        size = rng.choice([s for s in SIZES if s <= most] or [1])
        if rng.random() < zero:
            size = 0
        shape.append(size)
        budget //= max(size, 1)
    rng.shuffle(shape)
    return tuple(shape)


def array(rng: random.Random, shape: Sequence[int], dtype: str, mood: str = "plain") -> np.ndarray:
    """Random elements.  ``plain`` ones are of everyday size; ``special`` has infinities, NaN, denormals and the
    extremes of integers sprinkled in, ``large`` and ``small`` are near the ends of the range, ``equal`` all one;
    ``halves`` lie between two integers, or on one; ``positive`` ones are scales that do not vanish."""
    draw = np.random.default_rng(rng.getrandbits(64))
    shape = tuple(shape)
    if dtype == "bool":
        return draw.random(shape) < 0.5
    if np.dtype(dtype).kind in "iu":
        return _integers(draw, shape, dtype, mood)
    found = draw.normal(0.0, rng.choice((0.5, 1.0, 4.0)), shape)
    if mood == "equal":
        found = np.full(shape, rng.choice((0.0, -0.0, 1.0, 1.0, -1.0, 0.5, 3.0)))
    elif mood == "halves":
        found = np.round(4 * found) / 2
    elif mood == "positive":
        found = np.abs(found) + 0.1
    elif mood == "large":
        found = found * (LARGE.get(dtype, 100.0) * 10.0 ** -float(draw.integers(1, 6)))
    elif mood == "small":
        found = found * 10.0 ** -float(draw.integers(3, 42))
    elif mood == "special":
        found = np.where(draw.random(shape) < 0.2, draw.choice(FLOAT_SPECIALS, shape), found)
    with np.errstate(all="ignore"):
        return found.astype(dtype)


def _integers(draw: np.random.Generator, shape: tuple[int, ...], dtype: str, mood: str) -> np.ndarray:
    info = np.iinfo(dtype)
    low, high = max(info.min, -10), min(info.max, 10)
    found = draw.integers(low, high, shape, dtype=dtype, endpoint=True)
    if mood == "equal":
        return np.full(shape, draw.choice([0, 1, 1, 3]), dtype)
    if mood in ("large", "small"):
        return draw.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    if mood == "special":
        extremes = np.array([info.min, info.max, info.min + 1, info.max - 1, 0, info.max // 2], dtype)
        return np.where(draw.random(shape) < 0.2, draw.choice(extremes, shape), found)
    return found


def uniform(rng: random.Random, shape: Sequence[int], dtype: str, low: float, high: float) -> np.ndarray:
    """Elements of ``[low, high]``, of an integer or float dtype; ``low`` where that is empty."""
    high = max(low, high)
    draw = np.random.default_rng(rng.getrandbits(64))
    if np.dtype(dtype).kind in "iu":
        return draw.integers(int(low), int(high), tuple(shape), dtype=dtype, endpoint=True)
    return draw.uniform(low, high, tuple(shape)).astype(dtype)
