"""Where a generator's decisions come from, and what it commonly asks: sizes, shapes, axes, arrays."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from minitvm.codegen.storage import code_dtype
from minitvm.ir.dtypes import STORED, bits_of, is_float
from minitvm.ir.loop.scalar import convert

T = TypeVar("T")

SIZES = (
    *(1, 2, 3, 4, 5, 7, 8, 9, 11, 13, 15, 16, 17, 23, 31, 32, 33, 47, 63, 64, 65),
    *(127, 129, 131, 255, 257, 513, 1031),
)
"""1, 2, primes, and one less, as many and one more than 4, 8, 16, 32 and 64 lanes, alone and several at a time.
Small first: what shrinks, shrinks to them."""

MOST_ELEMENTS = 2048
_ONE_IN_FOR_ZERO = 24


class Draw:
    """Decisions; a subclass says where numbers come from."""

    def integer(self, low: int, high: int) -> int:
        """From ``low`` up to and including ``high``."""
        raise NotImplementedError

    def choice(self, options: Sequence[T]) -> T:
        """One of several; the first is the simplest."""
        return options[self.integer(0, len(options) - 1)]

    def flag(self, one_in: int = 2) -> bool:
        return self.integer(1, one_in) == one_in and one_in > 1

    def size(self, limit: int = MOST_ELEMENTS, least: int = 1) -> int:
        """An extent that does not divide nicely, at most ``limit``; rarely 0, where ``least`` allows."""
        if least == 0 and self.flag(_ONE_IN_FOR_ZERO):
            return 0
        fitting = [s for s in SIZES if max(least, 1) <= s <= limit]
        return self.choice(fitting) if fitting else max(least, 1)

    def sizes(self, count: int, limit: int = MOST_ELEMENTS, least: int = 0) -> list[int]:
        """Several extents whose product is at most ``limit``, in no order: any of them may be the long one."""
        found = [1] * count
        for place in self.order(count):
            found[place] = self.size(limit // max(1, math.prod(found)), least)
        return found

    def shape(
        self, least_rank: int = 0, most_rank: int = 4, limit: int = MOST_ELEMENTS, least: int = 0
    ) -> tuple[int, ...]:
        return tuple(self.sizes(self.integer(least_rank, most_rank), limit, least))

    def order(self, count: int) -> list[int]:
        """A permutation; the identity is the simplest."""
        left = list(range(count))
        return [left.pop(self.integer(0, len(left) - 1)) for _ in range(count)]

    def axis(self, rank: int) -> int:
        """From the front or from the end."""
        return self.integer(0, rank - 1) - (rank if self.flag() else 0)

    def axes(self, rank: int) -> tuple[int, ...]:
        """Some of the axes, in any order."""
        count = self.integer(0, rank)
        return tuple(a - (rank if self.flag() else 0) for a in self.order(rank)[:count])

    def signed_dtype(self) -> str:
        return self.choice(("int32", "int64"))

    def array(
        self, shape: Sequence[int], dtype: str, low: float = -3, high: float = 3, special: str = "nonfinite"
    ) -> np.ndarray:
        """Values of a dtype.  ``special`` says what may be strewn in among the ordinary ones from ``low`` to ``high``:
        ``"none"``; ``"nonfinite"``: NaN, infinities, both zeros; ``"all"``: also huge, tiny and extreme numbers."""
        rng = np.random.default_rng(self.integer(0, 1 << 16))
        strewn = _strewn(dtype, special) if special != "none" and self.flag(3) else None
        values = _ordinary(rng, tuple(shape), dtype, low, high)
        if strewn is None or not values.size:
            return values
        return np.asarray(np.where(rng.random(values.shape) < 0.3, rng.choice(strewn, values.shape), values))


def _ordinary(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, low: float, high: float) -> np.ndarray:
    if dtype in STORED:
        wide = _ordinary(rng, shape, STORED[dtype], 0.01 if "e8m0" in dtype else low, high)
        return convert(wide, dtype) if is_float(dtype) else wide.astype(dtype)
    kind = np.dtype(dtype).kind
    if kind == "b":
        return np.asarray(rng.integers(0, 2, shape), bool)
    if kind == "f":
        with np.errstate(over="ignore"):
            return np.asarray(rng.uniform(low, high, shape)).astype(dtype)
    info = np.iinfo(dtype)
    least, most = max(math.ceil(low), info.min), min(math.floor(high), info.max)
    return np.asarray(rng.integers(min(least, most), most, shape, "int64", endpoint=True)).astype(dtype)


def _strewn(dtype: str, special: str) -> np.ndarray | None:
    """Numbers that are not ordinary; none of a bool, nor of an integer unless ``special`` is ``"all"``."""
    if dtype in STORED:
        ends = 2 ** bits_of(dtype) - 1  # -1, NaN, ...: no bits that an element does not have
        return np.array([ends, ends // 2, ends // 2 + 1, 1, 0]).astype(code_dtype(dtype)).view(dtype)
    kind = np.dtype(dtype).kind
    if kind == "f":
        finite = [np.finfo(dtype).max, np.finfo(dtype).min, np.finfo(dtype).tiny] if special == "all" else []
        return np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, *finite], dtype)
    if kind == "b" or special != "all":
        return None
    info = np.iinfo(dtype)
    return np.array([info.min, info.min + 1, info.max, info.max - 1, info.max // 3, 0, 1], dtype)


class RandomDraw(Draw):
    """Decisions of numpy's generator."""

    def __init__(self, seed: int | np.random.Generator) -> None:
        self.rng = np.random.default_rng(seed)

    def integer(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high, endpoint=True))


class HypothesisDraw(Draw):
    """Decisions of hypothesis; ``data`` is what ``strategies.data()`` gives."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def integer(self, low: int, high: int) -> int:
        return int(self.data.draw(_integers(low, high)))


@functools.cache
def _integers(low: int, high: int) -> Any:
    from hypothesis import strategies

    return strategies.integers(low, high)
