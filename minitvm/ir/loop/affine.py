"""Affine views of index arithmetic: how far a load moves when a loop variable advances by one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from minitvm.ir.loop import Binary, Buffer, Const, Load, LoopExpr, LoopVar, binary, walk_exprs
from minitvm.ir.loop.scalar import wrapped


@dataclass(frozen=True)
class Affine:
    """``constant + sum(coefficient * term)``.  A term is a loop variable, or whatever is not affine (``i // 3``)."""

    constant: int
    terms: dict[LoopExpr, int]

    def scaled(self, factor: int) -> Affine:
        return Affine(self.constant * factor, {t: c * factor for t, c in self.terms.items() if c * factor})

    def plus(self, other: Affine) -> Affine:
        terms = dict(self.terms)
        for term, coefficient in other.terms.items():
            terms[term] = terms.get(term, 0) + coefficient
        return Affine(self.constant + other.constant, {t: c for t, c in terms.items() if c})

    def joined(self) -> Affine:
        """With every ``c * (x // c) + x % c`` (times a factor) written as ``x``; the remainder may be that of ``x``
        moved by a multiple of ``c``."""
        for term, coefficient in self.terms.items():
            match term:
                case Binary("floormod", x, Const(c, _)):
                    partner = self._quotient(x, int(c), coefficient * int(c))
                    if partner is not None:
                        rest = {t: k for t, k in self.terms.items() if t not in (term, partner)}
                        return Affine(self.constant, rest).plus(affine(partner.lhs).scaled(coefficient)).joined()
        return self

    def _quotient(self, x: LoopExpr, c: int, coefficient: int) -> Binary | None:
        """The term ``y // c`` with this coefficient whose ``y`` differs from ``x`` by a multiple of ``c``; data, which
        may wrap around, by nothing."""
        for term, found in self.terms.items():
            match term:
                case Binary("floordiv", y, Const(divisor, _)) if found == coefficient and divisor == c:
                    gap = affine(x).plus(affine(y).scaled(-1))
                    apart = [k for k in (gap.constant, *gap.terms.values()) if k]
                    if not apart or (not loads(term) and all(k % c == 0 for k in apart)):
                        return term
        return None

    def to_expr(self) -> LoopExpr:
        """The sum in 64 bits; so are its coefficients, which may have grown beyond."""
        total: LoopExpr = Const(0)
        for term, coefficient in self.terms.items():
            total = binary("add", total, binary("mul", term, Const(wrapped(coefficient))))
        return binary("add", total, Const(wrapped(self.constant)))


def affine(expr: LoopExpr) -> Affine:
    """The affine form of an index expression."""
    match expr:
        case Const(value, _):
            return Affine(int(value), {})
        case Binary("add", a, b):
            return affine(a).plus(affine(b))
        case Binary("sub", a, b):
            return affine(a).plus(affine(b).scaled(-1))
        case Binary("mul", a, Const(factor, _)) | Binary("mul", Const(factor, _), a):
            return affine(a).scaled(int(factor))
    return Affine(0, {expr: 1})


def address(buffer: Buffer, index: Sequence[LoopExpr]) -> Affine:
    """The element offset of ``buffer[index]``."""
    return offset(buffer, index).joined()


def offset(buffer: Buffer, index: Sequence[LoopExpr]) -> Affine:
    """:func:`address` as it is spelled, divisions that cancel included."""
    total = Affine(buffer.offset, {})
    for position, stride in zip(index, buffer.row_major_strides, strict=True):
        total = total.plus(affine(position).scaled(stride))
    return total


def depends_on(expr: LoopExpr, var: LoopVar) -> bool:
    return any(node == var for node in walk_exprs(expr) if isinstance(node, LoopVar))


def stride_along(buffer: Buffer, index: Sequence[LoopExpr], var: LoopVar) -> int | None:
    """Elements that the address moves when ``var`` advances by one; ``None`` where that is not a constant."""
    terms = address(buffer, index).terms
    if any(term != var and depends_on(term, var) for term in terms):
        return None
    return terms.get(var, 0)


def loads(expr: LoopExpr) -> list[Load]:
    """The loads below an expression, each once."""
    return [node for node in walk_exprs(expr) if isinstance(node, Load)]


def vectorizes(expr: LoopExpr, var: LoopVar) -> bool:
    """True where every load below ``expr`` moves by zero or one element along ``var``."""
    return all(stride_along(load.buffer, load.index, var) in (0, 1) for load in loads(expr))


def storage_size(buffer: Buffer) -> int:
    """Elements of memory that a buffer spans."""
    if buffer.strides is None:
        return math.prod(buffer.shape)
    if 0 in buffer.shape:
        return 0
    return buffer.offset + 1 + sum((e - 1) * s for e, s in zip(buffer.shape, buffer.strides, strict=True))
