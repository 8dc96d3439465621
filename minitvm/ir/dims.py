"""Dimensions: whole numbers, and symbolic dimensions, which are known only when the model runs.

A :class:`SymbolicDim` is a polynomial over named symbols, each of which stands for 0 or more.  Two are equal where
they are the same whatever their symbols stand for, as far as their normal form shows it:

    n = symbol("n")
    n + n + 1 == 2 * n + 1              # True
    (n - 1) // 2 + 1 == (n + 1) // 2    # True
    anonymous() == anonymous()          # False: ``?`` is equal to itself alone

What grows beyond ``MOST_PARTS``, or is a product of more than ``MOST_FACTORS``, is anonymous: a dimension that each
node of a chain uses twice would be as long as there are ways through it.

What cannot be decided is neither true nor false: ``n < 4`` and ``bool(n)`` raise.  Ask :func:`always_less` and
:func:`differ`, and leave what they deny to the run.  Under :func:`assumptions` with a sample such a question is
answered as the sample has it, and the answer kept as a :class:`Fact` that other sizes must meet as well.
"""

from __future__ import annotations

import itertools
import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
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

    def least(self) -> int | None:
        """The smallest value; ``None`` where there is none or it is not known."""
        if self.kind in ("symbol", "?", "broadcast"):
            return 0
        a, b = map(least, self.of)
        if self.kind == "max":
            return max((x for x in (a, b) if x is not None), default=None)
        if self.kind == "min":
            return None if a is None or b is None else min(a, b)
        divisor = self.of[1]
        known = a is not None and isinstance(divisor, int) and divisor > 0
        found = FUNCTIONS[self.kind](a, divisor) if known else None
        return found if isinstance(found, int) else None

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

    def where(self, extent: int) -> Dim:
        """Its value where every symbol stands for ``extent``."""
        return replace(self, dict.fromkeys(self.symbols(), extent))

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
        return _collect((*self.terms, *_terms(other))) if isinstance(other, (int, SymbolicDim)) else NotImplemented

    def __mul__(self, other: Dim) -> Dim:
        if not isinstance(other, (int, SymbolicDim)):
            return NotImplemented
        if _parts(self) * _parts(other) > MOST_PARTS**2 // 4:
            return anonymous()
        products = itertools.product(self.terms, _terms(other))
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
        return is_less(self, other)

    def __ge__(self, other: Dim) -> bool:
        return not is_less(self, other)

    def __gt__(self, other: Dim) -> bool:
        return is_less(other, self)

    def __le__(self, other: Dim) -> bool:
        return not is_less(other, self)

    def __bool__(self) -> bool:
        return not is_equal(self, 0)

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


def _terms(dim: Dim) -> tuple[tuple[Monomial, int], ...]:
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


ROOM, PLACES = "minitvm.room", ".places"
"""Of caches with room in memory: the symbol of how many places there are, as many in each; what the name of an input
ends with whose shape says how many are in use."""

_numbers = itertools.count()


def anonymous() -> SymbolicDim:
    """A dimension of which nothing is known, equal to no other."""
    return SymbolicDim((((Atom("?", (next(_numbers),)),), 1),))


def is_anonymous(dim: Dim) -> bool:
    return isinstance(dim, SymbolicDim) and dim.is_anonymous


def divide(a: Dim, b: Dim) -> Dim:
    """floor(a / b).  Whole multiples of b leave the fraction; by a symbol only what has it as a factor is divided."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if not isinstance(b, int):
        exact = _exact_quotient(a, b)
        return _applied("//", a, b) if exact is None else exact
    uneven = next((factor for m, factor in _terms(a) if m and factor % b), 0)
    if uneven < 0 < b:
        return -divide(b - 1 - a, b)
    whole = _collect(tuple((m, factor // b) for m, factor in _terms(a)))
    rest = a - whole * b
    if not isinstance(rest, SymbolicDim):
        return whole + rest // b
    inner = next((m[0] for m, factor in rest.terms if factor == 1 and _is_quotient(m)), None)
    if inner is not None and b > 0:  # (x // n + y) // b
        return whole + divide(inner.of[0] + (rest - SymbolicDim((((inner,), 1),))) * inner.of[1], inner.of[1] * b)
    common = math.gcd(b, *(factor for m, factor in rest.terms if m))
    if common == 1:
        return whole + _applied("//", rest, b)
    return whole + divide(_collect(tuple((m, factor // common) for m, factor in rest.terms)), b // common)


def _is_quotient(monomial: Monomial) -> bool:
    """True if it is a quotient by a number alone."""
    return len(monomial) == 1 and monomial[0].kind == "//" and isinstance(monomial[0].of[1], int)


def _exact_quotient(a: Dim, b: SymbolicDim) -> Dim | None:
    """a / b where nothing is left: by long division of polynomials."""
    found: Dim = 0
    while a != 0:
        lead = _divided(*_terms(a)[0], *b.terms[0])
        if lead is None or is_anonymous(a):
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


def _applied(function: str, a: Dim, b: Dim) -> Dim:
    if function in ("min", "max", "broadcast"):
        a, b = _in_order((a, b), lambda d: (isinstance(d, int), str(d)))
    return _collect((((Atom(function, (a, b)),), 1),)) if function != "//" or b != 1 else a


@lru_cache(1 << 14)
def least(dim: Dim) -> int | None:
    """The smallest value of a dimension; ``None`` where there is none or it is not known."""
    found = _least_of_terms(dim)
    if found is not None or isinstance(dim, int):
        return found
    bound = _below_quotients(dim)
    return None if bound == dim else least(bound)


def _below_quotients(dim: SymbolicDim) -> Dim:
    """What is at most ``dim``, without quotients of which multiples are taken: ``n - 31 <= 32 * (n // 32) <= n``."""
    total: Dim = 0
    for monomial, factor in dim.terms:
        term: Dim = SymbolicDim(((monomial, factor),)) if monomial else factor
        if _is_quotient(monomial) and factor % monomial[0].of[1] == 0:
            of, by = monomial[0].of
            term = (of - (by - 1 if factor > 0 else 0)) * (factor // by)
        total = total + term
    return total


def _least_of_terms(dim: Dim) -> int | None:
    total, terms = _without_quotients(_terms(dim))
    for monomial, factor in terms:
        bounds = [bound for atom in monomial if (bound := atom.least()) is not None]
        if len(bounds) < len(monomial) or (monomial and factor < 0) or (len(bounds) > 1 and min(bounds) < 0):
            return None
        total += factor * math.prod(bounds)
    return total


def _without_quotients(terms: Sequence[tuple[Monomial, int]]) -> tuple[int, list[tuple[Monomial, int]]]:
    """Terms without pairs such as ``(n + 3)//4 - (n + 1)//4``, which rise alike, and the least that those are."""
    total, left = 0, list(terms)
    for taken in [term for term in terms if term[1] < 0 and _is_quotient(term[0])]:
        for added in [term for term in left if term[1] == -taken[1] and _is_quotient(term[0])]:
            (low, by), (high, other) = taken[0][0].of, added[0][0].of
            apart = least(high - low) if by == other > 0 else None
            if apart is not None:
                total += added[1] * (apart // by)
                left.remove(taken)
                left.remove(added)
                break
    return total, left


def symbols_of(dims: Iterable[SymbolicDim]) -> frozenset[str]:
    """The names of the symbols that dimensions are made with."""
    return frozenset(atom.of[0] for dim in dims for atom in dim.symbols() if atom.kind == "symbol")


@lru_cache(1 << 14)
def always_less(a: Dim, b: Dim) -> bool:
    """True if a < b whatever the symbols stand for, as far as that is seen."""
    if isinstance(a, int) and isinstance(b, int):
        return a < b
    room = least(b - a)
    return room is not None and room > 0


@dataclass(frozen=True)
class Fact:
    """What a compilation took for granted of two dimensions: ``a == b``, ``a != b`` or ``a < b``."""

    relation: str
    a: Dim
    b: Dim

    def holds(self, values: Mapping[str, int]) -> bool:
        """``ValueError`` where one of them is no number."""
        return RELATIONS[self.relation](*(_value_of(dim, values) for dim in (self.a, self.b)))

    def __str__(self) -> str:
        return f"{self.a} {self.relation} {self.b}"


RELATIONS: dict[str, Callable[[int, int], bool]] = {"==": operator.eq, "!=": operator.ne, "<": operator.lt}


@dataclass
class Assumptions:
    """What is counted on of dimensions that only a run knows."""

    sample: Mapping[str, int] | None
    """What symbols stand for in one run, which answers what nothing else decides."""
    deciding: bool
    """Whether comparisons are answered by the sample: while a model is read, not by passes, which decline instead."""
    facts: set[Fact]
    measured: dict[str, Any]
    """By symbol that the data decide, what computes it in a run: an expression of one whole number, of the graph or
    body that is read."""
    keys: dict[object, str]
    """Such symbols by what they were asked for with."""
    guessed: dict[str, int]
    """What such symbols are taken for in comparisons until a run has measured them.  Types are counted on to fit."""
    is_asked: bool = False
    """Whether anything was asked that a sample answers, or the data."""
    count: int = 0
    """Of sizes that were measured, in bodies too."""


_assumed: ContextVar[Assumptions | None] = ContextVar("_assumed", default=None)


@contextmanager
def assumptions(sample: Mapping[str, int] | None = None) -> Iterator[set[Fact]]:
    """Collects what types and values were found to be as if it held, which only a run can say."""
    found = Assumptions(sample, False, set(), {}, {}, {})
    with under(found):
        yield found.facts


@contextmanager
def under(assumptions: Assumptions | None) -> Iterator[None]:
    """What was taken for granted elsewhere, for another thread or a later question."""
    token = _assumed.set(assumptions)
    try:
        yield
    finally:
        _assumed.reset(token)


def assumed() -> Assumptions | None:
    """What is taken for granted here."""
    return _assumed.get()


def _asked() -> Assumptions | None:
    """The same for who asks them, the sample, or the data."""
    found = _assumed.get()
    if found is not None:
        found.is_asked = True
    return found


@contextmanager
def deciding() -> Iterator[None]:
    """Comparisons of dimensions are answered as the sample of :func:`assumptions` has it."""
    found = _assumed.get()
    if found is None or found.sample is None:
        yield
        return
    before, found.deciding = found.deciding, True
    try:
        yield
    finally:
        found.deciding = before


def facts() -> frozenset[Fact]:
    """What was counted on so far; nothing where nobody collects it."""
    found = _assumed.get()
    return frozenset() if found is None else frozenset(found.facts)


def forget_since(before: frozenset[Fact]) -> None:
    """What was counted on since then was in vain."""
    found = _assumed.get()
    if found is not None:
        found.facts.intersection_update(before)


def facts_of(measured: Iterable[str] = (), fresh: Iterable[str] = ()) -> frozenset[Fact]:
    """The facts that are known to hold or not once these sizes are ``measured``, which the data decide, and were not
    before the ``fresh`` ones of them were."""
    known, new = {*measured}, {*fresh}
    named = (fact for fact in facts() if not is_anonymous(fact.a) and not is_anonymous(fact.b))  # others: host calls
    said = ((fact, _measured_in(fact)) for fact in named)
    return frozenset(fact for fact, names in said if names <= known and not (new and names.isdisjoint(new)))


def _measured_in(fact: Fact) -> set[str]:
    named = symbols_of(dim for dim in (fact.a, fact.b) if isinstance(dim, SymbolicDim))
    return {name for name in named if name.startswith(MEASURED)}


def are_counted_on() -> bool:
    """True if somebody collects assumptions: then symbols may be calculated with as if they were numbers."""
    return _assumed.get() is not None


def measure(make: Callable[[], Any], key: object, guess: int | None = None) -> SymbolicDim:
    """The dimension whose value the expression that ``make`` makes has in a run: the same for the same ``key``.  0 or
    more; what is less is seen when it is measured.  Until then comparisons are answered as if it were ``guess``.
    :class:`Undecided` where nobody collects assumptions."""
    found = _asked()
    if found is None:
        raise Undecided("a size that data decide")
    if key in found.keys:
        return symbol(found.keys[key])
    name = found.keys[key] = f"{MEASURED}{found.count}"
    found.count, found.measured[name] = found.count + 1, make()
    if found.sample is not None and name not in found.sample:
        found.guessed[name] = _UNMEASURED + 2 * found.count if guess is None else guess
    return symbol(name)


def is_asked() -> bool:
    """True if anything was asked that a sample answers, or the data: else all is so whatever the sizes are."""
    found = _assumed.get()
    return found is not None and found.is_asked


@contextmanager
def measuring() -> Iterator[Mapping[str, Any]]:
    """Within it sizes are those of a body, which differ from trip to trip; yields what computes them there."""
    found = _assumed.get()
    if found is None:
        yield {}
        return
    before, found.measured, found.keys = (found.measured, found.keys), {}, {}
    try:
        yield found.measured
    finally:
        found.measured, found.keys = before


def measured() -> Mapping[str, Any]:
    """The expressions that compute the symbols that data decide."""
    found = _assumed.get()
    return {} if found is None else found.measured


MEASURED = "measured_"
"""What names of symbols begin with that the data decide."""

_UNMEASURED = 15
"""About what such a one is taken for until a run has had it otherwise."""


def is_measured(dim: Dim) -> bool:
    """True if the data decide it."""
    return isinstance(dim, SymbolicDim) and any(name.startswith(MEASURED) for name in symbols_of([dim]))


def sampled(dim: Dim) -> int | None:
    """What a dimension is in the sample; ``None`` where there is none."""
    found = _asked()
    try:
        return None if found is None or found.sample is None else number(dim, found.sample)
    except ValueError:
        return None


_USUAL = 32


def usual(dim: Dim) -> int:
    """A dimension, or what it is in the sample, or some size where there is none."""
    found = dim if isinstance(dim, int) else sampled(dim)
    return _USUAL if found is None else max(0, found)


def undecided(*dims: Dim) -> Undecided:
    named = next(dim for dim in dims if isinstance(dim, SymbolicDim))
    return Undecided(f"a comparison with the dimension {named} is decided only when the model runs")


def is_less(a: Dim, b: Dim) -> bool:
    """True if a < b: as far as it is seen, else as the sample has it; :class:`Undecided` where there is none."""
    if always_less(a, b):
        return True
    if always_less(b, a + 1):
        return False
    return _sampled(Fact("<", a, b), Fact("<", b, a + 1))


def is_equal(a: Dim, b: Dim) -> bool:
    """True if a is b: as far as it is seen, else as the sample has it; :class:`Undecided` where there is none."""
    if a == b:
        return True
    if always_less(a, b) or always_less(b, a):
        return False
    return _sampled(Fact("==", a, b), Fact("!=", a, b))


def _sampled(fact: Fact, other: Fact) -> bool:
    """Which of two facts holds: what was decided before stays so."""
    found = _asked()
    if found is None or found.sample is None:
        raise undecided(fact.a, fact.b)
    if fact in found.facts or other in found.facts:
        return fact in found.facts
    if not found.deciding:
        raise undecided(fact.a, fact.b)
    answer = _holds(fact, {**found.sample, **found.guessed})
    if answer is None:
        raise undecided(fact.a, fact.b)
    found.facts.add(fact if answer else other)
    return answer


def differ(a: Dim, b: Dim) -> bool:
    """True if two dimensions are never equal, as far as that is seen; who asks counts on it where it is not."""
    return always_less(a, b) or always_less(b, a) or not _count_on(a, b)


def _count_on(a: Dim, b: Dim) -> bool:
    """Counts on that they are equal, unless the sample has it otherwise: then on that they are not."""
    found = None if a == b else _asked()
    if found is None:
        return True
    fact = Fact("==", a, b)
    holds = found.sample is None or _holds(fact, found.sample) is not False
    found.facts.add(fact if holds else Fact("!=", a, b))
    return holds


def _holds(fact: Fact, sample: Mapping[str, int]) -> bool | None:
    """``None`` where one of its dimensions is no number."""
    try:
        return fact.holds(sample)
    except ValueError:
        return None


def falls_short(a: Dim, b: Dim) -> bool:
    """True if a < b whatever the symbols stand for; who asks counts on a >= b where that is not seen."""
    if always_less(a, b):
        return True
    if is_anonymous(a) or is_anonymous(b):  # who has those is a host call, which looks itself
        return False
    return not _count_on(smaller(a, b), b)


def lacks(extent: Dim, wanted: Dim) -> bool:
    """True if there is nothing where ``wanted`` elements are read, one at least; who asks counts on that there is
    something where that is not seen.  Kernels read where they are told to, and of nothing that is others' memory."""
    if extent == 0 and always_less(0, wanted):
        return True
    if is_anonymous(extent) or is_anonymous(wanted):
        return False
    return not _count_on(smaller(extent, 1), smaller(larger(extent, wanted), 1))


def smaller(a: Dim, b: Dim) -> Dim:
    """The smaller one: min(a, b)."""
    return _extreme("min", a, b)


def larger(a: Dim, b: Dim) -> Dim:
    """The larger one: max(a, b)."""
    return _extreme("max", b, a)


def _extreme(function: str, a: Dim, b: Dim) -> Dim:
    if a == b or always_less(a, b + 1):
        return a if function == "min" else b
    if always_less(b, a + 1):
        return b if function == "min" else a
    return _applied(function, a, b)


def larger_here(a: Dim, b: Dim) -> Dim:
    """The larger of a and b as the sample has it, a where they are equal; that the other is no larger is a fact."""
    found = _assumed.get()
    if is_measured(a) or is_measured(b):  # which of them is larger differs from run to run
        return larger(a, b)
    if found is not None and found.sample is not None and _holds(Fact("<", a, b), found.sample):
        a, b = b, a
    try:
        return b if is_less(a, b) else a
    except Undecided:
        return larger(a, b)


def smaller_here(a: Dim, b: Dim) -> Dim:
    """The smaller of a and b as the sample has it, b where they are equal; that the other is no smaller is a fact."""
    if is_measured(a) or is_measured(b):
        return smaller(a, b)
    larger_one = larger_here(a, b)
    return a if larger_one == b else b if larger_one == a else smaller(a, b)


def ceil_divide(a: Dim, b: int) -> Dim:
    """a / b rounded up."""
    return (a + (b - 1)) // b


def truncating_divide(a: Dim, b: int) -> Dim:
    """a / b rounded towards zero; b is positive."""
    try:
        return -(-a // b) if is_less(a, 0) else a // b
    except Undecided:
        return _applied("truncdiv", a, b)


def broadcast_dims(a: Dim, b: Dim) -> Dim:
    """numpy's rule for one dimension.  Raises ``ValueError`` where two numbers differ and neither is 1."""
    if a == 1 or a == b:
        return b
    if b == 1:
        return a
    sizes = [d for d in (a, b) if isinstance(d, int)]
    if len(sizes) > 1:
        raise ValueError(f"{a} and {b}")
    if not _count_on(a, b):
        raise undecided(a, b)
    if sizes or not are_counted_on():
        return sizes[0] if sizes else _applied("broadcast", a, b)
    return min(a, b, key=lambda dim: len(str(dim)))


def common_shape(*shapes: tuple[Dim, ...]) -> tuple[Any, ...]:
    """The shape that several broadcast to, by numpy's rule."""
    rank = max(map(len, shapes), default=0)
    aligned = ((1,) * (rank - len(shape)) + shape for shape in shapes)
    return tuple(reduce(broadcast_dims, dims) for dims in zip(*aligned, strict=True))


def with_ones(*shapes: tuple[Dim, ...]) -> list[tuple[Dim, ...]]:
    """Shapes that are to be broadcast, with 1 for each dimension that is 1 in the sample where another one is not."""
    if _assumed.get() is None or len({*shapes}) == 1:
        return list(shapes)
    rank = max(map(len, shapes), default=0)
    columns = list(zip(*((1,) * (rank - len(shape)) + shape for shape in shapes), strict=True))
    decided = [[_as_one(dim, column) for dim in column] for column in columns]
    return [tuple(column[i] for column in decided[rank - len(shape) :]) for i, shape in enumerate(shapes)]


def _as_one(dim: Dim, column: tuple[Dim, ...]) -> Dim:
    if isinstance(dim, int) or all(other in (1, dim) for other in column) or sampled(dim) != 1:
        return dim
    is_alone = any(other != 1 and sampled(other) != 1 for other in column)
    try:
        return 1 if is_alone and is_equal(dim, 1) else dim
    except Undecided:
        return dim


def product(dims: Any) -> Dim:
    """The number of elements.  Numbers are multiplied first: a product with a symbol is put in order each time."""
    count = 1
    found: Dim | None = None
    for dim in dims:
        if isinstance(dim, int):
            count *= dim
        else:
            found = dim if found is None else found * dim
    return count if found is None else found if count == 1 else found * count


def replace(dim: Dim, values: Mapping[Atom, Dim]) -> Dim:
    """``dim`` with some atoms replaced."""
    if isinstance(dim, int):
        return dim
    total: Dim = 0
    for monomial, factor in dim.terms:
        total = total + product(_replaced_atom(atom, values) for atom in monomial) * factor
    return total


def _replaced_atom(atom: Atom, values: Mapping[Atom, Dim]) -> Dim:
    if atom in values:
        return values[atom]
    if atom.kind not in FUNCTIONS:
        return SymbolicDim((((atom,), 1),))
    a, b = (replace(d, values) for d in atom.of)
    return FUNCTIONS[atom.kind](a, b)


def number(dim: Dim, values: Mapping[str, int]) -> int:
    """A dimension where symbols have values; ``ValueError`` where it is no number then, or less than 0."""
    found = _value_of(dim, values)
    if found < 0:
        raise ValueError(f"{dim} is {found}")
    return found


def _value_of(dim: Dim, values: Mapping[str, int]) -> int:
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


FUNCTIONS: dict[str, Callable[[Any, Any], Dim]] = {
    "//": divide,
    "min": smaller,
    "max": larger,
    "truncdiv": truncating_divide,
    "broadcast": broadcast_dims,
}
"""What else than sums and products dimensions are made with, as a text names it."""
