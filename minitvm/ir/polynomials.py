"""Symbolic dimensions as polynomials in one normal form; integer arithmetic that is exact for all sizes.

A :class:`SymbolicDim` is a polynomial over named symbols, each of which stands for 0 or more.  Two are equal where
they are the same whatever their symbols stand for, as far as their normal form shows it:

    n = symbol("n")
    n + n + 1 == 2 * n + 1              # True
    (n - 1) // 2 + 1 == (n + 1) // 2    # True
    anonymous() == anonymous()          # False: ``?`` is equal to itself alone

What grows beyond ``MOST_PARTS``, or is a product of more than ``MOST_FACTORS``, is anonymous: a dimension that each
node of a chain uses twice would be as long as there are ways through it.
"""

from __future__ import annotations

import itertools
import json
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NoReturn, TypeAlias, TypeVar

Item = TypeVar("Item")

_PLAIN = re.compile(r"(?!(?:inf|nan|min|max|truncdiv|broadcast)\Z)[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True)
class Atom:
    """A symbol (``of`` its name), an anonymous dimension (its number), or one of ``FUNCTIONS``, of two dimensions."""

    kind: str
    of: tuple[Any, ...]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.kind, self.of))

    def __reduce__(self) -> tuple[Any, ...]:
        return Atom, (self.kind, self.of)  # no hash of this process

    def symbols(self) -> frozenset[Atom]:
        """The symbols and anonymous dimensions that it is made with."""
        return self._symbols

    @cached_property
    def _symbols(self) -> frozenset[Atom]:
        if self.kind not in FUNCTIONS:
            return frozenset((self,))
        return frozenset().union(*(d.symbols() for d in self.of if isinstance(d, SymbolicDim)))

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        if self.kind == "symbol":
            name: str = self.of[0]
            return name if _PLAIN.match(name) else json.dumps(name, ensure_ascii=False)
        if self.kind == "//":
            return "//".join(str(d) if isinstance(d, int) or d.is_atom else f"({d})" for d in self.of)
        return f"{self.kind}({', '.join(map(str, self.of))})" if self.kind in FUNCTIONS else "?"

    @cached_property
    def parts(self) -> int:
        """Symbols and functions that it is written with."""
        return 1 + (sum(map(_parts, self.of)) if self.kind in FUNCTIONS else 0)


Monomial: TypeAlias = tuple[Atom, ...]

MOST_PARTS, MOST_FACTORS = 512, 32


class Undecided(TypeError):
    """What was asked of a dimension is decided only when the model runs."""


@dataclass(frozen=True)
class SymbolicDim:
    """A sum of products of atoms, each with its factor: sorted, without 0, never a number alone."""

    terms: tuple[tuple[Monomial, int], ...]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self.terms)

    def __reduce__(self) -> tuple[Any, ...]:
        return SymbolicDim, (self.terms,)  # no hash of this process

    @cached_property
    def is_anonymous(self) -> bool:
        return any(atom.kind == "?" for atom in self.symbols())

    def symbols(self) -> frozenset[Atom]:
        return self._symbols

    @cached_property
    def _symbols(self) -> frozenset[Atom]:
        return frozenset().union(*(atom.symbols() for monomial, _ in self.terms for atom in monomial))

    @cached_property
    def parts(self) -> int:
        """Symbols and functions that it is written with, each as often as it stands there."""
        return sum(1 + sum(atom.parts for atom in monomial) for monomial, _ in self.terms)

    @property
    def is_atom(self) -> bool:
        return len(self.terms) == 1 and self.terms[0][1] == 1 and len(self.terms[0][0]) == 1

    @property
    def atom(self) -> Atom:
        return self.terms[0][0][0]

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        if self.is_anonymous:
            return "?"
        text = " + ".join(_term_text(monomial, factor) for monomial, factor in self.terms)
        return text.replace("+ -", "- ")

    def __add__(self, other: Dim) -> Dim:
        return _collect((*self.terms, *terms_of(other))) if isinstance(other, (int, SymbolicDim)) else NotImplemented

    def __mul__(self, other: Dim) -> Dim:
        if not isinstance(other, (int, SymbolicDim)):
            return NotImplemented
        if _parts(self) * _parts(other) > MOST_PARTS**2 // 4:
            return anonymous()
        products = itertools.product(self.terms, terms_of(other))
        return _collect(tuple((_sorted((*m, *k)), a * b) for (m, a), (k, b) in products))

    def __floordiv__(self, other: Dim) -> Dim:
        return divide(self, other) if isinstance(other, (int, SymbolicDim)) else NotImplemented

    def __rfloordiv__(self, other: int) -> Dim:
        return divide(other, self)

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim) -> Dim:
        return self + -1 * other

    def __rsub__(self, other: int) -> Dim:
        return -1 * self + other

    def __mod__(self, other: Dim) -> Dim:
        return self - self // other * other

    def __rmod__(self, other: int) -> Dim:
        return other - other // self * self

    __radd__ = __add__
    __rmul__ = __mul__

    def __lt__(self, other: Dim) -> bool:
        return ASKED["<"](self, other)

    def __ge__(self, other: Dim) -> bool:
        return not ASKED["<"](self, other)

    def __gt__(self, other: Dim) -> bool:
        return ASKED["<"](other, self)

    def __le__(self, other: Dim) -> bool:
        return not ASKED["<"](other, self)

    def __bool__(self) -> bool:
        return not ASKED["=="](self, 0)

    def _undecided(self, *_: object) -> NoReturn:
        raise undecided(self)

    def _uncounted(self, *_: object) -> NoReturn:
        raise Undecided(f"a calculation with the dimension {self} has a result only when the model runs")

    __divmod__ = __rdivmod__ = __truediv__ = __rtruediv__ = __pow__ = __rpow__ = __lshift__ = _uncounted
    __round__ = __trunc__ = __floor__ = __ceil__ = __and__ = __or__ = __xor__ = __rshift__ = _uncounted
    __index__ = __int__ = __float__ = _undecided


Dim: TypeAlias = int | SymbolicDim


def _term_text(monomial: Monomial, factor: int) -> str:
    atoms = [f"({a})" if a.kind == "//" and (len(monomial) > 1 or factor != 1) else str(a) for a in monomial]
    text = "*".join(atoms if abs(factor) == 1 and atoms else [str(abs(factor)), *atoms])
    return f"-{text}" if factor < 0 else text


def terms_of(dim: Dim) -> tuple[tuple[Monomial, int], ...]:
    return dim.terms if isinstance(dim, SymbolicDim) else (((), dim),)


def _sorted(monomial: Monomial) -> Monomial:
    return tuple(_in_order(monomial, str)) if len(monomial) > 1 else monomial


def _in_order(items: Sequence[Item], key: Callable[[Item], Any]) -> list[Item]:
    """Sorted by ``key``; what that does not tell apart, by all that it is made of."""
    if len(items) < 2:
        return list(items)
    keyed = sorted(((key(item), item) for item in items), key=operator.itemgetter(0))
    if any(one[0] == other[0] for one, other in itertools.pairwise(keyed)):
        keyed.sort(key=lambda pair: (pair[0], repr(pair[1])))
    return [item for _, item in keyed]


def _collect(terms: tuple[tuple[Monomial, int], ...]) -> Dim:
    found = _collected(terms)
    return anonymous() if found is None else found


@lru_cache(1 << 14)
def _collected(terms: tuple[tuple[Monomial, int], ...]) -> Dim | None:
    """The sum, one object for each; ``None`` where it is too long."""
    factors: dict[Monomial, int] = {}
    for monomial, factor in terms:
        factors[monomial] = factors.get(monomial, 0) + factor
    kept = [(monomial, factor) for monomial, factor in factors.items() if factor]
    if all(not monomial for monomial, _ in kept):
        return sum(factor for _, factor in kept)
    if len(kept) > MOST_PARTS or any(len(monomial) > MOST_FACTORS for monomial, _ in kept):
        return None
    found = SymbolicDim(tuple(_in_order(kept, lambda term: (-len(term[0]), list(map(str, term[0]))))))
    return found if found.parts <= MOST_PARTS else None


def _parts(dim: Dim) -> int:
    return dim.parts if isinstance(dim, SymbolicDim) else 1


def symbol(name: str) -> SymbolicDim:
    """The dimension of that name: the same wherever it stands."""
    return SymbolicDim(((((Atom("symbol", (name,)),)), 1),))


_numbers = itertools.count()


def anonymous() -> SymbolicDim:
    """A dimension of which nothing is known, equal to no other."""
    return SymbolicDim((((Atom("?", (next(_numbers),)),), 1),))


def divide(a: Dim, b: Dim) -> Dim:
    """floor(a / b).  Whole multiples of b leave the fraction; by a symbol only what has it as a factor is divided."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if not isinstance(b, int):
        exact = _exact_quotient(a, b)
        return applied("//", a, b) if exact is None else exact
    uneven = next((factor for m, factor in terms_of(a) if m and factor % b), 0)
    if uneven < 0 < b:
        return -divide(b - 1 - a, b)
    whole = _collect(tuple((m, factor // b) for m, factor in terms_of(a)))
    rest = a - whole * b
    if not isinstance(rest, SymbolicDim):
        return whole + rest // b
    inner = next((m[0] for m, factor in rest.terms if factor == 1 and is_quotient(m)), None)
    if inner is not None and b > 0:  # (x // n + y) // b
        return whole + divide(inner.of[0] + (rest - SymbolicDim((((inner,), 1),))) * inner.of[1], inner.of[1] * b)
    common = math.gcd(b, *(factor for m, factor in rest.terms if m))
    if common == 1:
        return whole + applied("//", rest, b)
    return whole + divide(_collect(tuple((m, factor // common) for m, factor in rest.terms)), b // common)


def is_quotient(monomial: Monomial) -> bool:
    """True if it is a quotient by a number alone."""
    return len(monomial) == 1 and monomial[0].kind == "//" and isinstance(monomial[0].of[1], int)


def _exact_quotient(a: Dim, b: SymbolicDim) -> Dim | None:
    """a / b where nothing is left: by long division of polynomials."""
    found: Dim = 0
    while a != 0:
        lead = _divided(*terms_of(a)[0], *b.terms[0])
        if lead is None or (isinstance(a, SymbolicDim) and a.is_anonymous):
            return None
        found, a = found + lead, a - lead * b
    return found


def _divided(monomial: Monomial, factor: int, by: Monomial, divisor: int) -> Dim | None:
    """A term over another; ``None`` where it is no multiple of it."""
    left = list(monomial)
    for atom in by:
        if atom not in left:
            return None
        left.remove(atom)
    return None if factor % divisor else _collect(((tuple(left), factor // divisor),))


def applied(function: str, a: Dim, b: Dim) -> Dim:
    if function in ("min", "max", "broadcast"):
        a, b = _in_order((a, b), lambda d: (isinstance(d, int), str(d)))
    return _collect((((Atom(function, (a, b)),), 1),)) if function != "//" or b != 1 else a


def undecided(*dims: Dim) -> Undecided:
    named = next(dim for dim in dims if isinstance(dim, SymbolicDim))
    return Undecided(f"a comparison with the dimension {named} is decided only when the model runs")


def number(dim: Dim, values: Mapping[str, int]) -> int:
    """A dimension where symbols have values; ``ValueError`` where it is no number then, or less than 0."""
    found = value_of(dim, values)
    if found < 0:
        raise ValueError(f"{dim} is {found}")
    return found


def value_of(dim: Dim, values: Mapping[str, int]) -> int:
    """A dimension's value, which may be less than 0; ``ValueError`` where it is no number."""
    try:
        return dim if isinstance(dim, int) else _number(dim, values)
    except (KeyError, ZeroDivisionError):
        raise ValueError(f"{dim} is no number") from None


def _number(dim: SymbolicDim, values: Mapping[str, int]) -> int:
    total = 0
    for monomial, factor in dim.terms:
        for atom in monomial:
            factor *= values[atom.of[0]] if atom.kind == "symbol" else _applied_number(atom, values)
        total += factor
    return total


def _applied_number(atom: Atom, values: Mapping[str, int]) -> int:
    found = FUNCTIONS[atom.kind](*(d if isinstance(d, int) else _number(d, values) for d in atom.of))
    assert isinstance(found, int), found
    return found


FUNCTIONS: dict[str, Callable[[Any, Any], Dim]] = {"//": divide}
"""What else than sums and products dimensions are made with, as a text names it; ``dims`` adds its own."""

ASKED: dict[str, Callable[[Dim, Dim], bool]] = {}
"""Comparisons by their operators, as ``dims`` answers them."""
