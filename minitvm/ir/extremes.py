"""Minima and maxima of dimensions: what they add up to, and how small sums of them can be.

    smaller(n, 1) + larger(n - 1, 0)    # the same as n
    larger(n, 4) - 3                    # 1 at least

Slices are as long as these say, so that one library serves what is shorter than a slice too.
"""

from __future__ import annotations

from functools import lru_cache

from minitvm.ir.assumed import least
from minitvm.ir.dims import FUNCTIONS, product
from minitvm.ir.polynomials import Atom, Dim, SymbolicDim, applied

_MOST_CASES = 4
"""Minima and maxima of a sum that are looked at one by one."""


def least_of_cases(dim: SymbolicDim) -> int | None:
    """A bound from below of a sum with minima and maxima in it: of the sums with the one and with the other operand in
    the first one's place, the smaller, or the larger where either is a bound."""
    extremes = [term for term in dim.terms if len(term[0]) == 1 and term[0][0].kind in ("min", "max")]
    if not 0 < len(extremes) <= _MOST_CASES:
        return None
    (atom,), factor = extremes[0]
    rest = dim - SymbolicDim((extremes[0],))
    bounds = [bound for of in atom.of if (bound := least(rest + of * factor)) is not None]
    if (atom.kind == "min") == (factor > 0):
        return min(bounds) if len(bounds) == 2 else None
    return max(bounds, default=None)


def same(a: Dim, b: Dim) -> bool:
    """True if they are equal whatever the symbols stand for, as far as that is seen."""
    return _in_minima(a - b) == 0


@lru_cache(1 << 12)
def _in_minima(dim: Dim) -> Dim:
    """The dimension with ``b + min(a - b, 0)`` for each minimum of a and b, and with maxima as sums without minima."""
    if isinstance(dim, int) or not any(atom.kind in FUNCTIONS for monomial, _ in dim.terms for atom in monomial):
        return dim
    total: Dim = 0
    for monomial, factor in dim.terms:
        total = total + product(map(_atom_in_minima, monomial)) * factor
    return total


def _atom_in_minima(atom: Atom) -> Dim:
    if atom.kind not in ("min", "max"):
        return SymbolicDim((((atom,), 1),))
    a, b = map(_in_minima, atom.of)
    apart = a - b
    if isinstance(apart, int):
        return b + (min if atom.kind == "min" else max)(apart, 0)
    sign = 1 if apart.terms[0][1] > 0 else -1
    less = applied("min", apart * sign, 0)  # of a - b and 0, or of b - a and 0
    is_other = (atom.kind == "min") != (sign > 0)
    return (a if is_other else b) + (less if atom.kind == "min" else -less)
