"""Interval analysis and affine forms of indices: how far a load moves when a loop variable advances by one, and what
the ranges of variables prove.

``int64`` is the dtype of indices and of data.  Sums of loop variables stay far from its ends; data may wrap around.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

from minitvm.ir.dims import Dim, always_less
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
    Size,
    binary,
    walk_exprs,
)
from minitvm.ir.loop.expr import wrapped

Term = TypeVar("Term", bound=Hashable)


@dataclass(slots=True, unsafe_hash=True)
class Range:
    """``low <= value <= high``; ``None`` where there is no bound.  Nobody changes it, nor an ``Affine``; that both are
    not frozen is for speed: a model needs some 100,000."""

    low: int | None
    high: int | None

    def scaled(self, factor: int) -> Range:
        low = None if self.low is None else self.low * factor
        high = None if self.high is None else self.high * factor
        return Range(low, high) if factor >= 0 else Range(high, low)

    def plus(self, other: Range) -> Range:
        low = None if self.low is None or other.low is None else self.low + other.low
        high = None if self.high is None or other.high is None else self.high + other.high
        return Range(low, high)

    def times(self, other: Range) -> Range:
        """Products; nothing is known of those that may wrap around."""
        if self.low is None or self.high is None or other.low is None or other.high is None:
            return ANYTHING
        corners = [x * y for x in (self.low, self.high) for y in (other.low, other.high)]
        found = Range(min(corners), max(corners))
        return found if found.fits else ANYTHING

    def divided(self, op: str, c: int) -> Range:
        """``floordiv`` or ``floormod`` by ``c > 0``."""
        low, high = (None if end is None else end // c for end in (self.low, self.high))
        if op == "floordiv":
            return Range(low, high)
        return self.plus(Range(-low * c, -low * c)) if low is not None and low == high else Range(0, c - 1)

    def truncated(self, op: str, c: int) -> Range:
        """``div`` or ``mod`` by ``c > 0``, which round towards zero."""
        if self.low is not None and self.low >= 0:
            return self.divided("floordiv" if op == "div" else "floormod", c)
        return self.divided("floordiv", c).plus(Range(0, 1)) if op == "div" else Range(1 - c, c - 1)

    def least(self, other: Range) -> Range:
        """The smaller of a value of each."""
        highs = [high for high in (self.high, other.high) if high is not None]
        low = None if self.low is None or other.low is None else min(self.low, other.low)
        return Range(low, min(highs, default=None))

    def greatest(self, other: Range) -> Range:
        return self.scaled(-1).least(other.scaled(-1)).scaled(-1)

    def hull(self, other: Range) -> Range:
        """A value of either."""
        return Range(self.least(other).low, self.greatest(other).high)

    def within(self, low: int, high: Dim) -> bool:
        """True if it is known to lie there, whatever ``high`` is when the model runs."""
        if self.low is None or self.high is None or self.low < low:
            return False
        return self.high <= high if isinstance(high, int) else always_less(self.high, high + 1)

    @property
    def fits(self) -> bool:
        """True if it is known to be what ``int64`` holds, so that no wrap around can happen."""
        return self.within(-(2**63), 2**63 - 1)

    @property
    def is_empty(self) -> bool:
        return self.high is not None and self.low is not None and self.high < self.low

    @property
    def counter(self) -> Range:
        """What counts from 0 to below such a value."""
        return Range(0, None if self.high is None else self.high - 1)

    def decides(self, op: str) -> bool | None:
        """What ``value op 0`` is for every value; ``None`` where both happen."""
        low, high = self.low, self.high
        if op in ("lt", "le"):
            limit = 0 if op == "le" else -1
            return True if high is not None and high <= limit else False if low is not None and low > limit else None
        apart = (low is not None and low > 0) or (high is not None and high < 0)
        return apart == (op == "ne") if apart or low == high == 0 else None


ANYTHING = Range(None, None)
INT64 = Range(-(2**63), 2**63 - 1)
COUNT = Range(0, 2**47)
"""Of a symbol of dimensions: nothing larger fits into memory."""


@dataclass(slots=True)
class Affine(Generic[Term]):
    """``constant + sum(coefficient * term)``, no coefficient being 0.

    A term is a loop variable, or whatever is not affine (``i // 3``); an emitter's are registers.
    """

    constant: int
    terms: Mapping[Term, int] = field(default_factory=dict)

    @staticmethod
    def of(term: Term) -> Affine[Term]:
        return Affine(0, {term: 1})

    def scaled(self, factor: int) -> Affine[Term]:
        if factor == 1:
            return self
        return Affine(self.constant * factor, {t: c * factor for t, c in self.terms.items()} if factor else {})

    def plus(self, other: Affine[Term], factor: int = 1) -> Affine[Term]:
        if not other.terms:
            return Affine(self.constant + other.constant * factor, self.terms)
        return weighted_sum((self, other), (1, factor))

    def split(self, divisor: int) -> tuple[Affine[Term], Affine[Term]]:
        """``(q, r)`` with ``self == q * divisor + r``; ``r`` holds what is no visible multiple of ``divisor``."""
        quotient = {t: c // divisor for t, c in self.terms.items() if c % divisor == 0}
        rest = {t: c for t, c in self.terms.items() if c % divisor}
        return Affine(self.constant // divisor, quotient), Affine(self.constant % divisor, rest)

    def at(self, term: Term, value: int) -> Affine[Term]:
        """The form with a number in the place of a term."""
        coefficient = self.terms.get(term)
        if coefficient is None:
            return self
        return Affine(self.constant + coefficient * value, {t: c for t, c in self.terms.items() if t != term})

    def bounds(self, bounds_of: Callable[[Term], Range]) -> Range:
        """The bounds of the sum as a mathematical integer."""
        low: int | None = self.constant
        high: int | None = self.constant
        for term, coefficient in self.terms.items():
            of = bounds_of(term)
            least, most = (of.low, of.high) if coefficient >= 0 else (of.high, of.low)
            low = None if low is None or least is None else low + least * coefficient
            high = None if high is None or most is None else high + most * coefficient
        return Range(low, high)

    def joined(self: Affine[LoopExpr]) -> Affine[LoopExpr]:
        """The form with every ``c * (x // c) + x % c`` (times a factor) written as ``x``; the remainder may be that of
        ``x`` moved by a multiple of ``c``."""
        for term, coefficient in self.terms.items():
            match term:
                case Binary("floormod", x, Const(c, _)):
                    partner = self._quotient(x, int(c), coefficient * int(c))
                    if partner is not None:
                        rest = {t: k for t, k in self.terms.items() if t not in (term, partner)}
                        return Affine(self.constant, rest).plus(affine(partner.lhs).scaled(coefficient)).joined()
        return self

    def _quotient(self: Affine[LoopExpr], x: LoopExpr, c: int, coefficient: int) -> Binary | None:
        """The term ``y // c`` with this coefficient whose ``y`` differs from ``x`` by a multiple of ``c``; data, which
        may wrap around, by nothing."""
        for term, found in self.terms.items():
            match term:
                case Binary("floordiv", y, Const(divisor, _)) if found == coefficient and divisor == c:
                    gap = affine(x).plus(affine(y), -1)
                    apart = [k for k in (gap.constant, *gap.terms.values()) if k]
                    if not apart or (not term.reads and all(k % c == 0 for k in apart)):
                        return term
        return None

    def to_expr(self: Affine[LoopExpr]) -> LoopExpr:
        """The sum in 64 bits; so are its coefficients, which may have grown beyond."""
        total: LoopExpr = Const(0)
        for term, coefficient in self.terms.items():
            total = binary("add", total, binary("mul", term, Const(wrapped(coefficient))))
        return binary("add", total, Const(wrapped(self.constant)))


def mixed_radix(form: Affine[LoopExpr], extents: Mapping[LoopVar, int]) -> int | None:
    """The number of values that a sum of loop variables takes, each once and in a row from its constant on: each stride
    is the product of the extents below it.  ``None`` where it is no such number."""
    reach = 1
    for term, stride in sorted(form.terms.items(), key=lambda item: abs(item[1])):
        extent = extents.get(term) if isinstance(term, LoopVar) else None
        if extent is None or (stride != reach and extent > 1):
            return None
        reach *= extent
    return reach


def weighted_sum(forms: Iterable[Affine[Term]], factors: Iterable[int], constant: int = 0) -> Affine[Term]:
    """``constant + sum(form * factor)``."""
    terms: dict[Term, int] = {}
    for form, factor in zip(forms, factors, strict=True):
        constant += form.constant * factor
        for term, coefficient in form.terms.items():
            terms[term] = terms.get(term, 0) + coefficient * factor
    return Affine(constant, {t: c for t, c in terms.items() if c} if 0 in terms.values() else terms)


def affine(expr: LoopExpr) -> Affine[LoopExpr]:
    """The affine form of an index expression.  A sum keeps its own: sums of sums that share parts are asked often."""
    if isinstance(expr, Const):
        return Affine(int(expr.value))
    if not isinstance(expr, Binary):
        return Affine.of(expr)
    form: Affine[LoopExpr] | None = getattr(expr, "form", None)
    if form is None:
        form = _form(expr)
        if expr not in form.terms:  # else it would hold itself, and never go
            object.__setattr__(expr, "form", form)
    return form


def _form(expr: Binary) -> Affine[LoopExpr]:
    match expr:
        case Binary("add", a, b):
            return affine(a).plus(affine(b))
        case Binary("sub", a, b):
            return affine(a).plus(affine(b), -1)
        case Binary("mul", a, Const(factor, _)) | Binary("mul", Const(factor, _), a):
            return affine(a).scaled(int(factor))
    return Affine.of(expr)


def address(buffer: Buffer, index: Sequence[LoopExpr]) -> Affine[LoopExpr]:
    """The element offset of ``buffer[index]``."""
    return offset(buffer, index).joined()


def offset(buffer: Buffer, index: Sequence[LoopExpr]) -> Affine[LoopExpr]:
    """:func:`address` as it is spelled, divisions that cancel included."""
    total: Affine[LoopExpr] = Affine(0)
    for position, stride in zip(index, buffer.strides, strict=True):
        known = isinstance(stride, int)
        total = total.plus(affine(position) if known else affine(position * stride), stride if known else 1)
    return total


def depends_on(expr: LoopExpr, var: LoopVar) -> bool:
    return var in expr.mentions


def stride_along(buffer: Buffer, index: Sequence[LoopExpr], var: LoopVar) -> int | None:
    """Elements that the address moves when ``var`` advances by one; ``None`` where that is not a constant."""
    terms = address(buffer, index).terms
    if any(term != var and depends_on(term, var) for term in terms):
        return None
    return terms.get(var, 0)


def loads(expr: LoopExpr) -> list[Load]:
    """The loads below an expression, each once."""
    return [node for node in walk_exprs(expr) if isinstance(node, Load)] if expr.reads else []


def vectorizes(expr: LoopExpr, var: LoopVar) -> bool:
    """True where every load below ``expr`` moves by zero or one element along ``var``."""
    return all(stride_along(load.buffer, load.index, var) in (0, 1) for load in loads(expr))


# --- what ranges of variables prove -----------------------------------------------------------------------------

Ranges: TypeAlias = Mapping[LoopVar, Range]


class Facts(dict[LoopVar, Range]):
    """Ranges of variables, with what has been found of expressions: each is looked at once, however many share it."""

    def __init__(self, ranges: Ranges) -> None:
        super().__init__(ranges)
        self.bounds: dict[LoopExpr, Range] = {}
        self.proved: dict[LoopExpr, bool | None] = {}
        self.data: dict[LoopExpr, bool] = {}
        self.simpler: dict[LoopExpr, LoopExpr] = {}

    @staticmethod
    def of(ranges: Ranges) -> Facts:
        return ranges if isinstance(ranges, Facts) else Facts(ranges)


def counter(extent: LoopExpr, ranges: Ranges) -> Range:
    """What the variable of a loop may be."""
    return bounds(extent, ranges).counter


def bounds(expr: LoopExpr, ranges: Ranges) -> Range:
    """An interval that holds an integer expression."""
    facts = Facts.of(ranges)
    found = facts.bounds.get(expr)
    if found is None:
        found = facts.bounds[expr] = _bounds(expr, facts)
    return found


def _bounds(expr: LoopExpr, ranges: Facts) -> Range:
    match expr:
        case Const(value, "int64"):
            return Range(value, value)
        case Size():
            return COUNT
        case LoopVar():
            return ranges.get(expr, ANYTHING)
        case Binary("add" | "sub", _, _) | Binary("mul", _, Const()):
            exact, beyond = _summed(expr, affine(expr).joined(), ranges)  # like terms added up: ``i - i`` is 0
            return ANYTHING if beyond else exact
        case Binary("mul", a, b):
            return bounds(a, ranges).times(bounds(b, ranges))
        case Binary("floordiv" | "floormod" as op, a, Const(c, _)) if c > 0:
            return bounds(a, ranges).divided(op, c)
        case Binary("div" | "mod" as op, a, Const(c, "int64")) if c > 0:
            return bounds(a, ranges).truncated(op, c)
        case Binary("min", a, b):
            return bounds(a, ranges).least(bounds(b, ranges))
        case Binary("max", a, b):
            return bounds(a, ranges).greatest(bounds(b, ranges))
        case Cast(value, "int64") if value.dtype == "bool":
            return Range(0, 1)
        case Select(_, a, b):
            return bounds(a, ranges).hull(bounds(b, ranges))
    return ANYTHING


def _summed(expr: LoopExpr, form: Affine[LoopExpr], ranges: Facts) -> tuple[Range, bool]:
    """Bounds of the exact sum ``form``, which ``expr`` is, and whether it may differ from its value in 64 bits: data
    may be near the ends."""
    exact = form.bounds(lambda term: ANYTHING if term is expr else bounds(term, ranges))
    if any(edge is not None and not Range(edge, edge).fits for edge in (exact.low, exact.high)):
        return exact, True
    if None not in (exact.low, exact.high) or (not form.constant and list(form.terms.values()) == [1]):
        return exact, False
    return exact, any(not bounds(term, ranges).fits for term in form.terms if _is_data(term, ranges))


def _is_data(expr: LoopExpr, facts: Facts) -> bool:
    """True if it is made of more than loop variables and numbers."""
    if isinstance(expr, (LoopVar, Const)):
        return False
    if not isinstance(expr, Binary):
        return True
    found = facts.data.get(expr)
    if found is None:
        found = facts.data[expr] = _is_data(expr.lhs, facts) or _is_data(expr.rhs, facts)
    return found


def wraps(expr: LoopExpr, ranges: Ranges) -> bool:
    """True if an ``int64`` sum may wrap around: its exact value then differs from what is computed."""
    return _summed(expr, affine(expr), Facts.of(ranges))[1]


def prove(condition: LoopExpr, ranges: Ranges) -> bool | None:
    """True, or false, if a condition on indices always, or never, holds; ``None`` where that is not known."""
    facts = Facts.of(ranges)
    if condition not in facts.proved:
        facts.proved[condition] = _proved(condition, facts)
    return facts.proved[condition]


def _proved(condition: LoopExpr, ranges: Facts) -> bool | None:
    match condition:
        case Const(value, "bool"):
            return bool(value)
        case Binary("lt" | "le" | "eq" | "ne" as op, a, b) if a.dtype == "int64":
            known = bounds(Binary("sub", a, b), ranges).decides(op)
            return None if known is not None and (wraps(a, ranges) or wraps(b, ranges)) else known
        case Binary("and", a, b) if condition.dtype == "bool":
            x, y = prove(a, ranges), prove(b, ranges)
            return False if x is False or y is False else True if x and y else None
        case Binary("or", a, b) if condition.dtype == "bool":
            x, y = prove(a, ranges), prove(b, ranges)
            return True if x or y else False if x is False and y is False else None
        case Intrin("unlikely", (a,)):
            return prove(a, ranges)
        case Intrin("not", (a,)) if condition.dtype == "bool":
            x = prove(a, ranges)
            return None if x is None else not x
    return None
