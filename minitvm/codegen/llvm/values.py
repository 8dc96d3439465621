"""What an expression becomes while LLVM IR is written: a register, or an integer that is still symbolic.

``int64`` expressions stay linear combinations of registers (:class:`Affine`) for as long as they can be.  So constants
of unrolled loops vanish from addresses, ranges decide comparisons, and the stride of every access along the lanes of
a vectorized loop is known.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

_order = itertools.count()


@dataclass(frozen=True, slots=True)
class Val:
    """A register or literal of ``dtype``; ``lanes`` 0 is a scalar."""

    text: str
    dtype: str
    lanes: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Atom:
    """An ``i64`` register with its range, or (``lanes`` > 0) the lane number of the current vectorized loop."""

    text: str
    lo: int = INT64_MIN
    hi: int = INT64_MAX
    lanes: int = 0
    order: int = field(default_factory=lambda: next(_order))


class Affine:
    """``sum(factor * atom) + const`` with the range of its values; ``step`` is what one lane adds."""

    __slots__ = ("_range", "const", "step", "terms")

    def __init__(self, terms: Mapping[Atom, int], const: int) -> None:
        kept = [term for term in terms.items() if term[1]]
        if len(kept) > 1:
            kept.sort(key=_by_order)
        self.terms: tuple[tuple[Atom, int], ...] = tuple(kept)
        self.const = const
        self.step = sum(factor for atom, factor in kept if atom.lanes)
        self._range: tuple[int, int] | None = None

    @property
    def range(self) -> tuple[int, int]:
        """The smallest and the largest value."""
        if self._range is None:
            lo = hi = self.const
            for atom, factor in self.terms:
                lo += factor * (atom.lo if factor > 0 else atom.hi)
                hi += factor * (atom.hi if factor > 0 else atom.lo)
            self._range = lo, hi
        return self._range

    @property
    def lo(self) -> int:
        return self.range[0]

    @property
    def hi(self) -> int:
        return self.range[1]

    @property
    def is_const(self) -> bool:
        return not self.terms

    @property
    def fits(self) -> bool:
        """True where no wrap around can happen."""
        return self.lo >= INT64_MIN and self.hi <= INT64_MAX

    def plus(self, other: Affine, factor: int = 1) -> Affine:
        if not other.terms:
            return Affine(dict(self.terms), self.const + factor * other.const)
        terms = dict(self.terms)
        for atom, f in other.terms:
            terms[atom] = terms.get(atom, 0) + factor * f
        return Affine(terms, self.const + factor * other.const)

    def times(self, factor: int) -> Affine:
        return Affine({a: f * factor for a, f in self.terms}, self.const * factor)

    def split(self, divisor: int) -> tuple[Affine, Affine]:
        """``(q, r)`` with ``self == q * divisor + r``; ``r`` holds what is no visible multiple of ``divisor``."""
        quotient = {a: f // divisor for a, f in self.terms if f % divisor == 0}
        rest = {a: f for a, f in self.terms if f % divisor}
        return Affine(quotient, self.const // divisor), Affine(rest, self.const % divisor)

    def lane(self, number: int) -> Affine:
        """The value in one lane."""
        if not self.step:
            return self
        return Affine({a: f for a, f in self.terms if not a.lanes}, self.const + self.step * number)


def _by_order(term: tuple[Atom, int]) -> int:
    return term[0].order


def power_of_two(count: int) -> int:
    """The next one, ``count`` itself if it is one."""
    return 1 << max(0, count - 1).bit_length()


def number(value: int) -> Affine:
    return Affine({}, value)


def of_atom(atom: Atom) -> Affine:
    return Affine({atom: 1}, 0)


def weighted_sum(values: Sequence[Affine], factors: Sequence[int], const: int) -> Affine:
    """``sum(value * factor) + const``."""
    terms: dict[Atom, int] = {}
    for value, factor in zip(values, factors, strict=True):
        const += value.const * factor
        for atom, f in value.terms:
            terms[atom] = terms.get(atom, 0) + f * factor
    return Affine(terms, const)


Lanes: TypeAlias = list[Affine]
"""An ``int64`` value that is no linear function of the lane: one scalar per lane."""

Value: TypeAlias = "Val | Affine | Lanes"


def as_lanes(value: Affine | Lanes, lanes: int) -> Lanes:
    return value if isinstance(value, list) else [value.lane(i) for i in range(lanes)]
