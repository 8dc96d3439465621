"""Dimensions: whole numbers, and symbolic dimensions, which are known only when the model runs.

The door of three files: :mod:`minitvm.ir.polynomials` is their arithmetic, :mod:`minitvm.ir.assumed` what is counted on
of them; here they are compared, and shapes made of them.

What cannot be decided is neither true nor false: ``n < 4`` and ``bool(n)`` raise.  Ask :func:`always_less` and
:func:`differ`, and leave what they deny to the run.  Under :func:`assumptions` with a sample such a question is
answered as the sample has it, and the answer kept as a :class:`Fact` that other sizes must meet as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

from minitvm.doors import door
from minitvm.ir.assumed import (
    MEASURED,
    RELATIONS,
    Assumptions,
    Fact,
    always_less,
    are_counted_on,
    asked,
    assumed,
    assumptions,
    deciding,
    facts,
    facts_of,
    forget_since,
    is_anonymous,
    is_asked,
    is_measured,
    least,
    measure,
    measured,
    measuring,
    sampled,
    symbols_of,
    under,
    usual,
)
from minitvm.ir.polynomials import (
    ASKED,
    FUNCTIONS,
    Atom,
    Dim,
    SymbolicDim,
    Undecided,
    anonymous,
    applied,
    divide,
    number,
    symbol,
    undecided,
)

__all__ = ["FUNCTIONS", "MEASURED", "PLACES", "RELATIONS", "ROOM", "Assumptions", "Atom", "Dim", "Fact"]
__all__ += ["SymbolicDim", "Undecided", "always_less", "anonymous", "are_counted_on", "assumed", "assumptions"]
__all__ += ["broadcast_dims", "ceil_divide", "common_shape", "deciding", "differ", "divide", "facts", "facts_of"]
__all__ += ["falls_short", "forget_since", "is_anonymous", "is_asked", "is_equal", "is_less", "is_measured", "lacks"]
__all__ += ["larger", "larger_here", "least", "measure", "measured", "measuring", "number", "product", "replace"]
__all__ += ["same", "sampled", "smaller", "smaller_here", "symbol", "symbols_of", "truncating_divide", "under", "usual"]
__all__ += ["with_ones"]

ROOM, PLACES = "minitvm.room", ".places"
"""Of caches with room in memory: the symbol of how many places there are, as many in each; what the name of an input
ends with whose shape says how many are in use."""


def is_less(a: Dim, b: Dim) -> bool:
    """True if a < b: as far as it is seen, else as the sample has it; :class:`Undecided` where there is none."""
    if always_less(a, b):
        return True
    if always_less(b, a + 1):
        return False
    return _sampled(Fact("<", a, b), Fact("<", b, a + 1))


def is_equal(a: Dim, b: Dim) -> bool:
    """True if a is b: as far as it is seen, else as the sample has it; :class:`Undecided` where there is none."""
    if a == b or same(a, b):
        return True
    if always_less(a, b) or always_less(b, a):
        return False
    return _sampled(Fact("==", a, b), Fact("!=", a, b))


@door
def same(a: Dim, b: Dim) -> bool:
    """True if they are equal whatever the symbols stand for, as far as that is seen."""
    return a == b


def _sampled(fact: Fact, other: Fact) -> bool:
    """Which of two facts holds: what was decided before stays so."""
    found = asked()
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
    found = None if a == b or same(a, b) else asked()
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
    return applied(function, a, b)


def larger_here(a: Dim, b: Dim) -> Dim:
    """The larger of a and b: a maximum where they are plain or differ from run to run.  Of extremes and quotients,
    which would grow from slice to slice, the one that the sample has, a where they are equal; that the other is no
    larger is a fact then."""
    found = assumed()
    if _are_plain(a, b) or is_measured(a) or is_measured(b):
        return larger(a, b)
    if found is not None and found.sample is not None and _holds(Fact("<", a, b), found.sample):
        a, b = b, a
    try:
        return b if is_less(a, b) else a
    except Undecided:
        return larger(a, b)


def smaller_here(a: Dim, b: Dim) -> Dim:
    """The smaller of a and b likewise, b where they are equal."""
    if _are_plain(a, b) or is_measured(a) or is_measured(b):
        return smaller(a, b)
    larger_one = larger_here(a, b)
    return a if larger_one == b else b if larger_one == a else smaller(a, b)


def _are_plain(*dims: Dim) -> bool:
    """True if they hold neither extremes nor quotients."""
    terms = (monomial for dim in dims if isinstance(dim, SymbolicDim) for monomial, _ in dim.terms)
    return not any(atom.kind in FUNCTIONS for monomial in terms for atom in monomial)


def ceil_divide(a: Dim, b: int) -> Dim:
    """a / b rounded up."""
    return (a + (b - 1)) // b


def truncating_divide(a: Dim, b: int) -> Dim:
    """a / b rounded towards zero; b is positive."""
    try:
        return -(-a // b) if is_less(a, 0) else a // b
    except Undecided:
        return applied("truncdiv", a, b)


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
        return sizes[0] if sizes else applied("broadcast", a, b)
    return min(a, b, key=lambda dim: len(str(dim)))


def common_shape(*shapes: tuple[Dim, ...]) -> tuple[Any, ...]:
    """The shape that several broadcast to, by numpy's rule."""
    rank = max(map(len, shapes), default=0)
    aligned = ((1,) * (rank - len(shape)) + shape for shape in shapes)
    return tuple(reduce(broadcast_dims, dims) for dims in zip(*aligned, strict=True))


def with_ones(*shapes: tuple[Dim, ...]) -> list[tuple[Dim, ...]]:
    """Shapes that are to be broadcast, with 1 for each dimension that is 1 in the sample where another one is not."""
    if assumed() is None or len({*shapes}) == 1:
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


def at_extent(dim: SymbolicDim, extent: int) -> Dim:
    """A dimension where every symbol stands for ``extent``."""
    return replace(dim, dict.fromkeys(dim.symbols(), extent))


ASKED |= {"<": is_less, "==": is_equal}
FUNCTIONS |= {"min": smaller, "max": larger, "truncdiv": truncating_divide, "broadcast": broadcast_dims}
