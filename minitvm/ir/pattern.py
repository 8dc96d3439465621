"""Patterns over the graph: what a rule looks for, with the names of what it captures.

    CONV = call(Conv2d, value("x"), const("w"), name="conv", single_use=True)
    match(call(Relu, CONV), expr)      # {"x": ..., "w": ..., "conv": ...} or None

A name that stands twice must bind the same node.  Calls of commutative operators match in both orders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np

from minitvm.errors import IRError
from minitvm.ir.expr import Call, Constant, Expr, Tuple, TupleGetItem
from minitvm.ir.op import Op
from minitvm.ir.ops.tensor import Full, Zeros
from minitvm.ir.visitor import use_counts

Captures: TypeAlias = dict[str, Any]
"""Nodes by name; ``None`` for a name inside an alternative that was not taken."""

Where: TypeAlias = Callable[[Any], bool]
Uses: TypeAlias = Mapping[Expr, int]


MAX_UNIFORM = 1 << 16
"""Constants with more elements are not searched for being all the same."""


def uniform(expr: Expr) -> Any:
    """The one value that all elements of a constant or a fill have; ``None`` where there is none."""
    if isinstance(expr, Constant):
        array = expr.value
        if not 0 < array.size <= MAX_UNIFORM or not bool((array == array.flat[0]).all()):
            return None
        signs = np.signbit(array) if array.dtype.kind == "f" else np.zeros(1, bool)
        return array.flat[0] if signs.all() or not signs.any() else None  # -0.0 equals 0.0
    if isinstance(expr, Call) and isinstance(expr.op, Zeros):
        return np.asarray(expr.op.value, expr.dtype)[()]
    if isinstance(expr, Call) and isinstance(expr.op, Full):
        return uniform(expr.args[0])
    return None


@dataclass(frozen=True, eq=False)
class Pattern:
    """Matches any node.  ``name`` captures it; ``where`` is asked last; ``single_use``: nothing else reads it."""

    name: str | None = None
    where: Where | None = None
    single_use: bool = False

    kind: ClassVar[type[Expr]] = Expr
    """What it may match."""

    def names(self) -> tuple[str, ...]:
        """The names captured, each once, in the order they stand in the pattern."""
        own = () if self.name is None else (self.name,)
        return tuple(dict.fromkeys([*own, *(n for part in self.parts() for n in part.names())]))

    def parts(self) -> tuple[Pattern, ...]:
        return ()

    def matches(self, expr: Expr, captures: Captures, uses: Uses) -> Iterator[Captures]:
        """Every way to match ``expr`` that agrees with ``captures``."""
        if not self.accepts(expr) or (self.single_use and uses.get(expr, 0) > 1):
            return
        if self.name is not None and captures.get(self.name, expr) is not expr:
            return
        if self.where is not None and not self.where(expr):
            return
        own = captures if self.name is None else {**captures, self.name: expr}
        for parts, operands in self.orders(expr):
            yield from _match_all(parts, operands, own, uses)

    def accepts(self, expr: Expr) -> bool:
        """True if the node itself fits, its operands aside."""
        return self.accepts_kind(expr)

    def accepts_kind(self, expr: Expr) -> bool:
        """True if such a node may fit: its class, its operator's class and its number of operands."""
        return isinstance(expr, self.kind)

    def may_occur(self, kinds: Iterable[type]) -> bool:
        """True if there can be a match among nodes of these kinds (``kinds_of``)."""
        return all(part.may_occur(kinds) for part in self.parts())

    def may_match(self, expr: Expr, depth: int = 2) -> bool:
        """True if a node of this kind over operands of these kinds may match, as far as operators say."""
        if depth == 1 or not self.accepts_kind(expr):
            return self.accepts_kind(expr)
        ways = (zip(*order, strict=False) for order in self.orders(expr))  # of tuples, the lengths are asked later
        return any(all(part.may_match(operand, depth - 1) for part, operand in way) for way in ways)

    def orders(self, expr: Expr) -> Iterator[tuple[tuple[Pattern, ...], tuple[Expr, ...]]]:
        """The patterns of the operands beside the operands, in every order that counts."""
        yield (), ()


def _match_all(
    parts: tuple[Pattern, ...], operands: tuple[Expr, ...], captures: Captures, uses: Uses
) -> Iterator[Captures]:
    if not parts:
        yield captures
        return
    for found in parts[0].matches(operands[0], captures, uses):
        yield from _match_all(parts[1:], operands[1:], found, uses)


@dataclass(frozen=True, eq=False)
class CallPattern(Pattern):
    ops: tuple[type[Op] | str, ...] = ()
    args: tuple[Pattern, ...] | None = None
    commutative: bool | None = None

    def parts(self) -> tuple[Pattern, ...]:
        return self.args or ()

    def may_occur(self, kinds: Iterable[type]) -> bool:
        return any(is_one_of(kind, self.ops) for kind in kinds) and super().may_occur(kinds)

    def accepts_kind(self, expr: Expr) -> bool:
        if not isinstance(expr, Call) or not isinstance(expr.op, Op):
            return False
        if self.args is not None and len(self.args) != len(expr.args):
            return False
        return is_one_of(type(expr.op), self.ops)

    def orders(self, expr: Expr) -> Iterator[tuple[tuple[Pattern, ...], tuple[Expr, ...]]]:
        assert isinstance(expr, Call) and isinstance(expr.op, Op)
        if self.args is None:
            yield (), ()
            return
        yield self.args, expr.args
        swaps = expr.op.commutative if self.commutative is None else self.commutative
        if swaps and len(expr.args) == 2:
            yield self.args, (expr.args[1], expr.args[0])


def is_one_of(kind: type, ops: tuple[type[Op] | str, ...]) -> bool:
    return any(getattr(kind, "name", None) == op if isinstance(op, str) else issubclass(kind, op) for op in ops)


@dataclass(frozen=True, eq=False)
class ConstPattern(Pattern):
    rank: int | None = None
    kind = Constant

    def accepts(self, expr: Expr) -> bool:
        return isinstance(expr, Constant) and self.rank in (None, expr.value.ndim)


@dataclass(frozen=True, eq=False)
class FilledPattern(Pattern):
    number: float = 0

    def accepts(self, expr: Expr) -> bool:
        found = uniform(expr)
        return found is not None and bool(found == self.number)


@dataclass(frozen=True, eq=False)
class TuplePattern(Pattern):
    fields: tuple[Pattern, ...] = ()
    kind = Tuple

    def parts(self) -> tuple[Pattern, ...]:
        return self.fields

    def accepts(self, expr: Expr) -> bool:
        return isinstance(expr, Tuple) and len(expr.fields) == len(self.fields)

    def orders(self, expr: Expr) -> Iterator[tuple[tuple[Pattern, ...], tuple[Expr, ...]]]:
        assert isinstance(expr, Tuple)
        yield self.fields, expr.fields


@dataclass(frozen=True, eq=False)
class GetItemPattern(Pattern):
    inner: Pattern = Pattern()
    index: int | None = None
    kind = TupleGetItem

    def parts(self) -> tuple[Pattern, ...]:
        return (self.inner,)

    def accepts(self, expr: Expr) -> bool:
        return isinstance(expr, TupleGetItem) and self.index in (None, expr.index)

    def orders(self, expr: Expr) -> Iterator[tuple[tuple[Pattern, ...], tuple[Expr, ...]]]:
        assert isinstance(expr, TupleGetItem)
        yield (self.inner,), (expr.tuple,)


@dataclass(frozen=True, eq=False)
class EitherPattern(Pattern):
    alternatives: tuple[Pattern, ...] = ()

    def parts(self) -> tuple[Pattern, ...]:
        return self.alternatives

    def may_occur(self, kinds: Iterable[type]) -> bool:
        return any(part.may_occur(kinds) for part in self.alternatives)

    def orders(self, expr: Expr) -> Iterator[tuple[tuple[Pattern, ...], tuple[Expr, ...]]]:
        for alternative in self.alternatives:
            yield (alternative,), (expr,)


def call(
    op: type[Op] | str | tuple[type[Op] | str, ...],
    *args: Pattern,
    name: str | None = None,
    single_use: bool = False,
    where: Where | None = None,
    commutative: bool | None = None,
) -> Pattern:
    """A call of ``op`` (a class, a name, or several) whose arguments match ``args``; any where none are given.

    ``commutative`` says whether two arguments may be swapped; by default its operator says so (``Op.commutative``).
    """
    ops = op if isinstance(op, tuple) else (op,)
    return CallPattern(name, where, single_use, ops, args or None, commutative)


def value(name: str | None = None, where: Where | None = None, single_use: bool = False) -> Pattern:
    """A pattern for any node."""
    return Pattern(name, where, single_use)


def const(name: str | None = None, where: Where | None = None) -> Pattern:
    """A constant of any shape."""
    return ConstPattern(name, where)


def scalar(name: str | None = None, where: Where | None = None) -> Pattern:
    """A constant of rank 0."""
    return ConstPattern(name, where, rank=0)


def filled(number: float, name: str | None = None, where: Where | None = None) -> Pattern:
    """A constant or a fill whose elements are all ``number``."""
    return FilledPattern(name, where, number=number)


def tuple_of(*fields: Pattern, name: str | None = None, single_use: bool = False) -> Pattern:
    """A tuple with exactly these fields."""
    return TuplePattern(name, None, single_use, fields)


def get_item(pattern: Pattern, index: int | None = None, name: str | None = None, single_use: bool = False) -> Pattern:
    """Field ``index`` (``None``: any) of a tuple that matches ``pattern``."""
    return GetItemPattern(name, None, single_use, pattern, index)


def either(*alternatives: Pattern, name: str | None = None) -> Pattern:
    """The first alternative that matches; names of the others are ``None`` unless they are bound elsewhere."""
    return EitherPattern(name, None, False, alternatives)


def optional(wrap: Callable[[Pattern], Pattern], inner: Pattern) -> Pattern:
    """``wrap(inner)`` or else ``inner``: ``optional(lambda x: call(Relu, x), CONV)``."""
    return either(wrap(inner), inner)


def matches(pattern: Pattern, expr: Expr, uses: Uses | None = None) -> Iterator[Captures]:
    """Every way in which ``pattern`` matches ``expr``: a commutative call may do so twice.

    ``uses`` counts the uses of each node in the whole function (``use_counts``), for ``single_use``; without it
    uses inside ``expr`` are counted.
    """
    if not isinstance(pattern, Pattern):
        raise IRError(f"{pattern!r} is not a pattern", hint="build one with call(), value(), const(), ...")
    if pattern.accepts(expr):
        names = pattern.names()
        for found in pattern.matches(expr, {}, use_counts(expr) if uses is None else uses):
            yield dict.fromkeys(names) | found


def match(pattern: Pattern, expr: Expr, uses: Uses | None = None) -> Captures | None:
    """What ``pattern`` captures in ``expr`` the first way that it :func:`matches`, or ``None``."""
    return next(matches(pattern, expr, uses), None)
