"""What a rule that rounds otherwise states of itself, and where rounding is nobody's business.

An addition, a product, a quotient, a root of IEEE 754 has one right result, and models rely on it: ``(x + c) - c`` with
a large ``c`` rounds, ``floor((x + 1) * 100)`` finds a bucket.  Of a sum over an axis nobody says in which order it is
made, nor of ``exp`` which neighbour it gives: their rounding is *open*, and so is that of what scales and adds them.
A rule moves a result within roundings that are open already, or by some of the result itself where the last digit is.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from minitvm.ir.decision import Declined
from minitvm.ir.expr import Call, Expr, Tuple
from minitvm.ir.op import Op
from minitvm.ir.ops.elemwise import Divide, Multiply

MOST = 64
"""Halved at every call between a value and the sum that it is made of: they are few, however often one is used."""


class Of(str, Enum):
    """The magnitude that a bound counts roundings of."""

    RESULT = "the result"
    SUMS = "the result and of its sums' terms"


@dataclass(frozen=True)
class Bound:
    """An element moves by no more than ``roundings`` halves of a unit in the last place of ``of``, as long as that is
    a normal number; ``where`` says in words when a rule or pass acts at all.

    Of sums, each term's magnitude counts as often as the sum has terms: that is what an order of adding them costs.
    """

    roundings: int
    of: Of = Of.RESULT
    where: str = ""

    def __str__(self) -> str:
        return f"{self.roundings} roundings of {self.of.value}"


USUAL = Bound(8, Of.SUMS)
"""What a reassociating rule is held to that states nothing else."""

SAME_PRODUCTS = Bound(2, Of.SUMS, "the same products are added in another order")


def is_open(expr: Expr, deep: int = MOST) -> bool:
    """True if a value's rounding is open: a sum in an order of its own, or what scales, moves or adds such sums."""
    if not isinstance(expr, Call) or not isinstance(expr.op, Op) or not deep:
        return False
    if expr.op.is_sum:
        return True
    if expr.op.additive:
        return all(is_open(arg, deep // 2) for arg in expr.args)
    return _carries(expr.op) and any(is_open(arg, deep // 2) for arg in expr.args)


def holds_sum(expr: Expr, deep: int = MOST) -> bool:
    """True if a value is made of a sum in an order of its own, element by element, chosen or moved."""
    if isinstance(expr, Tuple):
        return any(holds_sum(part, deep // 2) for part in expr.fields)
    if not isinstance(expr, Call) or not isinstance(expr.op, Op) or not deep:
        return False
    follows = expr.op.is_elementwise or expr.op.is_exact()
    return expr.op.is_sum or (follows and any(holds_sum(arg, deep // 2) for arg in expr.args))


def _carries(op: Op) -> bool:
    return op.homogeneous or op.view or isinstance(op, (Multiply, Divide))


HEADROOM = 16
"""Of the range that a combined constant leaves free: what is made with it is beyond the end only where the result is at
least close to it."""


def out_of_range(found: np.ndarray, *factors: np.ndarray) -> Declined | None:
    """The reason why a product or quotient of constants is not as good as they are: it is close to the end of the range
    or beyond, or it has lost digits below the normal numbers (of what is added, without ``factors``, none are
    missed)."""
    if found.dtype.kind != "f":
        return None
    info, size = np.finfo(found.dtype), np.abs(found)
    if not bool((size <= info.max / HEADROOM).all()):
        return Declined("the constants overflow together")
    small = (size < info.tiny) & np.logical_and.reduce([f != 0 for f in np.broadcast_arrays(*factors)])
    return Declined("the constants underflow together") if factors and small.any() else None
