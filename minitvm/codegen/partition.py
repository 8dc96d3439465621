"""Cutting a loop where a condition in it changes, so that most of it is free of conditions.

The window of a pooling or the padding of an image asks at every element whether it is inside; along one axis the
answer changes at a few places that are known beforehand (loop partitioning, as Halide does for its boundaries).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from minitvm.codegen.simplify import simplify_expr
from minitvm.ir.loop import Binary, LoopExpr, LoopVar, walk_exprs
from minitvm.ir.loop.affine import Affine, affine, depends_on
from minitvm.ir.loop.bounds import bounds
from minitvm.ir.loop.interval import Range

_MOST_SEGMENTS = 9
_SHORT = 3
"""Elements at an edge that are segments of their own, so that every condition on them is a constant."""


@dataclass(frozen=True)
class Segment:
    """``count`` values of a variable from ``start`` on, and the value as it is there."""

    start: int
    count: int
    value: LoopExpr


def segments(value: LoopExpr, var: LoopVar, extent: int, ranges: Mapping[LoopVar, Range]) -> list[Segment]:
    """All of ``0 <= var < extent`` in order; one piece where nothing changes, or too much."""
    found = _cut(Segment(0, extent, value), var, ranges)
    return found if len(found) <= _MOST_SEGMENTS else [Segment(0, extent, value)]


def _cut(whole: Segment, var: LoopVar, ranges: Mapping[LoopVar, Range], depth: int = 0) -> list[Segment]:
    """The pieces of a segment; what is decided in one may show where it has to be cut again."""
    stop = whole.start + whole.count
    changes = set(_cuts(whole.value, var, ranges))
    cuts = sorted(cut for cut in changes if whole.start < cut < stop)
    if changes and whole.count <= _SHORT:
        cuts = list(range(whole.start + 1, stop))
    if not cuts or len(cuts) >= _MOST_SEGMENTS or depth == _MOST_SEGMENTS:
        return [whole]
    found: list[Segment] = []
    for start, end in zip([whole.start, *cuts], [*cuts, stop], strict=True):
        here = simplify_expr(whole.value, {**ranges, var: Range(start, end - 1)})
        found += _cut(Segment(start, end - start, here), var, ranges, depth + 1)
    return found


def _cuts(value: LoopExpr, var: LoopVar, ranges: Mapping[LoopVar, Range]) -> Iterator[int]:
    """The first ``var`` at which a comparison or a choice of the smaller becomes undecided, or is decided again."""
    for node in walk_exprs(value):
        match node:
            case Binary("lt" | "le" | "min" | "max" as op, a, b) if a.dtype == "int64":
                yield from _changes(Binary("sub", a, b), 1 if op == "le" else 0, var, ranges)


def _changes(gap: LoopExpr, shift: int, var: LoopVar, ranges: Mapping[LoopVar, Range]) -> Iterator[int]:
    """Where ``gap < shift`` is first true, or first false, for some and for all values of the other variables."""
    form = affine(gap)
    factor = form.terms.get(var, 0)
    rest = form.at(var, 0)
    if not factor or any(depends_on(term, var) for term in rest.terms):
        return
    reach = bounds(rest.plus(Affine(-shift)).to_expr(), ranges)
    for edge in {reach.low, reach.high} - {None}:
        assert edge is not None
        yield -(edge // factor) if factor > 0 else edge // -factor + 1
