"""What is known of dimensions whatever their symbols stand for, and what a compilation counts on besides.

Under :func:`assumptions` with a sample a question that nothing else decides is answered as the sample has it, and the
answer is kept as a :class:`Fact` that other sizes must meet as well.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from minitvm.doors import door
from minitvm.ir.polynomials import (
    FUNCTIONS,
    Atom,
    Dim,
    Monomial,
    SymbolicDim,
    Undecided,
    is_quotient,
    number,
    symbol,
    terms_of,
    value_of,
)


def symbols_of(dims: Iterable[SymbolicDim]) -> frozenset[str]:
    """The names of the symbols that dimensions are made with."""
    return frozenset(atom.of[0] for dim in dims for atom in dim.symbols() if atom.kind == "symbol")


def is_anonymous(dim: Dim) -> bool:
    return isinstance(dim, SymbolicDim) and dim.is_anonymous


@lru_cache(1 << 14)
def least(dim: Dim) -> int | None:
    """The smallest value of a dimension; ``None`` where there is none or it is not known."""
    found = _least_of_terms(dim)
    if found is not None or isinstance(dim, int):
        return found
    bound = _below_quotients(dim)
    return least_of_cases(dim) if bound == dim else least(bound)


@door
def least_of_cases(dim: SymbolicDim) -> int | None:
    """The smallest value of a sum in which a minimum or maximum stands, as far as that is seen."""
    return None


def _least_of_atom(atom: Atom) -> int | None:
    """The smallest value of an atom; ``None`` where there is none or it is not known."""
    if atom.kind in ("symbol", "?", "broadcast"):
        return 0
    a, b = map(least, atom.of)
    if atom.kind == "max":
        return max((x for x in (a, b) if x is not None), default=None)
    if atom.kind == "min":
        return None if a is None or b is None else min(a, b)
    divisor = atom.of[1]
    known = a is not None and isinstance(divisor, int) and divisor > 0
    found = FUNCTIONS[atom.kind](a, divisor) if known else None
    return found if isinstance(found, int) else None


def _below_quotients(dim: SymbolicDim) -> Dim:
    """What is at most ``dim``, without quotients of which multiples are taken: ``n - 31 <= 32 * (n // 32) <= n``."""
    total: Dim = 0
    for monomial, factor in dim.terms:
        term: Dim = SymbolicDim(((monomial, factor),)) if monomial else factor
        if is_quotient(monomial) and factor % monomial[0].of[1] == 0:
            of, by = monomial[0].of
            term = (of - (by - 1 if factor > 0 else 0)) * (factor // by)
        total = total + term
    return total


def _least_of_terms(dim: Dim) -> int | None:
    total, terms = _without_quotients(terms_of(dim))
    for monomial, factor in terms:
        bounds = [bound for atom in monomial if (bound := _least_of_atom(atom)) is not None]
        if len(bounds) < len(monomial) or (monomial and factor < 0) or (len(bounds) > 1 and min(bounds) < 0):
            return None
        total += factor * math.prod(bounds)
    return total


def _without_quotients(terms: Sequence[tuple[Monomial, int]]) -> tuple[int, list[tuple[Monomial, int]]]:
    """Terms without pairs such as ``(n + 3)//4 - (n + 1)//4``, which rise alike, and the least that those are."""
    total, left = 0, list(terms)
    for taken in [term for term in terms if term[1] < 0 and is_quotient(term[0])]:
        for added in [term for term in left if term[1] == -taken[1] and is_quotient(term[0])]:
            (low, by), (high, other) = taken[0][0].of, added[0][0].of
            apart = least(high - low) if by == other > 0 else None
            if apart is not None:
                total += added[1] * (apart // by)
                left.remove(taken)
                left.remove(added)
                break
    return total, left


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
        return RELATIONS[self.relation](*(value_of(dim, values) for dim in (self.a, self.b)))

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


def asked() -> Assumptions | None:
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
    found = asked()
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
    found = asked()
    try:
        return None if found is None or found.sample is None else number(dim, found.sample)
    except ValueError:
        return None


_USUAL = 32


def usual(dim: Dim) -> int:
    """A dimension, or what it is in the sample, or some size where there is none."""
    found = dim if isinstance(dim, int) else sampled(dim)
    return _USUAL if found is None else max(0, found)
