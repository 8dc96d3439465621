"""What an expression becomes while LLVM IR is written: a register, or an integer that is still symbolic.

``int64`` expressions stay linear combinations of registers (:data:`Index`) for as long as they can be.  So constants
of unrolled loops vanish from addresses, ranges decide comparisons, and the stride of every access along the lanes of
a vectorized loop is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TypeAlias

from minitvm.ir.loop.affine import INT64, Affine, Range


@dataclass(frozen=True, slots=True)
class Val:
    """A register or literal of ``dtype``; ``lanes`` 0 is a scalar."""

    text: str
    dtype: str
    lanes: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Atom:
    """An ``i64`` register, or the lane number of the current vectorized loop, and what it may be."""

    text: str
    range: Range = INT64


Index: TypeAlias = Affine[Atom]

Lanes: TypeAlias = list[Index]
"""An ``int64`` value that is no linear function of the lane: one scalar per lane."""

Value: TypeAlias = "Val | Index | Lanes"

_range_of = attrgetter("range")


def exact(value: Index) -> Range:
    """What the sum may be as a mathematical integer."""
    return value.bounds(_range_of)


def reach(value: Index) -> Range:
    """What it may be in 64 bits."""
    found = exact(value)
    return found if found.fits else INT64


def power_of_two(count: int) -> int:
    """The next one, ``count`` itself if it is one."""
    return 1 << max(0, count - 1).bit_length()
