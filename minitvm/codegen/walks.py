"""Elements that are read in another order than they are stored: axes split where an index divides, squares transposed.

A walk is a nest before its loops have kinds: variables with extents, and what is stored in the innermost.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from minitvm.codegen.partition import segments
from minitvm.codegen.simplify import simplify_expr
from minitvm.codegen.spread import in_vectors, lanes_of, unflatten
from minitvm.codegen.squares import transposed
from minitvm.ir.decision import Declined
from minitvm.ir.loop import (
    Binary,
    Buffer,
    Const,
    If,
    Load,
    LoopExpr,
    LoopKind,
    LoopVar,
    Stmt,
    Store,
    const,
    loop,
    map_expr,
    select,
    seq,
    substitute_vars,
    walk_exprs,
)
from minitvm.ir.loop.affine import address, affine, depends_on, loads, stride_along
from minitvm.ir.loop.bounds import bounds
from minitvm.ir.loop.interval import Range
from minitvm.target import MachineModel

_LONGEST_PERIOD = 4
"""Whole vectors that one period may take."""
_LARGEST_SQUARE = 16
_WORTH_A_SQUARE = 4
"""Elements along both axes, below which shuffles move less than they cost."""


@dataclass(frozen=True)
class Walk:
    """``out[index] = value`` for all values of ``loops``, outermost first."""

    out: Buffer
    loops: tuple[tuple[LoopVar, int], ...]
    index: tuple[LoopExpr, ...]
    value: LoopExpr

    def at(self, values: Mapping[LoopVar, LoopExpr]) -> tuple[tuple[LoopExpr, ...], LoopExpr]:
        """Index and value with variables replaced."""
        known = dict(values)
        return tuple(substitute_vars(i, known) for i in self.index), substitute_vars(self.value, known)

    def cut(self, var: LoopVar, extent: int) -> list[Walk]:
        """Walks over parts of a loop, in each of which no condition changes."""
        parts = segments(self.value, var, extent, {v: Range(0, n - 1) for v, n in self.loops})
        if len(parts) == 1:
            return [self]
        there = [(part, LoopVar(var.name)) for part in parts]
        return [
            _substituted(replace(self, value=part.value), var, new + part.start, ((new, part.count),))
            for part, new in there
        ]


def walks(out: Buffer, axes: Sequence[LoopVar], value: LoopExpr) -> list[Walk]:
    """The stage as walks whose indices divide as little as possible: an axis ``c`` that is read at ``c // 16`` and
    ``c % 16`` becomes two, and what is left over of it a walk of its own."""
    found = [Walk(out, tuple(zip(axes, out.shape, strict=True)), tuple(axes), value)]
    while any(_divided(walk) is not None for walk in found):
        found = [part for walk in found for part in _split(walk)]
    return found


def _divided(walk: Walk) -> tuple[LoopVar, int] | None:
    """A variable that is divided by a constant in some index, and the constant."""
    extents = dict(walk.loops)
    for load in loads(walk.value):
        for node in (n for index in load.index for n in walk_exprs(index)):
            match node:
                case Binary("floordiv" | "floormod", LoopVar() as var, Const(divisor, _)):
                    if 1 < divisor < extents.get(var, 0):
                        inner = var == walk.loops[-1][0]
                        if not inner or period(load, var) is None:
                            return var, int(divisor)
    return None


def period(load: Load, var: LoopVar) -> int | None:
    """After how many steps of ``var`` an element is read that lies as many whole elements further: 3 of
    ``x[var * 2 // 3]``.  ``None`` where steps go further than that, or no such number is small."""
    form, found = address(load.buffer, load.index), 1
    for term, factor in form.terms.items():
        if not depends_on(term, var):
            continue
        match term:
            case Binary("floordiv", x, Const(divisor, "int64")) if factor == 1 and divisor > 0:
                moving = affine(x)
                step, rest = moving.terms.get(var, 0), moving.at(var, 0).terms
                if not 0 < step <= divisor or any(k % divisor or depends_on(t, var) for t, k in rest.items()):
                    return None
                found = math.lcm(found, divisor // math.gcd(step, divisor))
            case _:
                return None
    return found if found <= _LONGEST_PERIOD else None


def _split(walk: Walk) -> Iterator[Walk]:
    found = _divided(walk)
    if found is None:
        yield walk
        return
    var, divisor = found
    whole, rest = divmod(dict(walk.loops)[var], divisor)
    outer, inner, last = LoopVar(f"{var.name}o"), LoopVar(f"{var.name}i"), LoopVar(var.name)
    yield _substituted(walk, var, outer * divisor + inner, ((outer, whole), (inner, divisor)))
    if rest:
        yield _substituted(walk, var, last + whole * divisor, ((last, rest),))


def _substituted(walk: Walk, var: LoopVar, by: LoopExpr, new: tuple[tuple[LoopVar, int], ...]) -> Walk:
    loops = tuple(pair for old in walk.loops for pair in (new if old[0] == var else (old,)))
    ranges = {v: Range(0, n - 1) for v, n in loops}
    index, value = walk.at({var: by})
    return replace(walk, loops=loops, index=index, value=simplify_expr(value, ranges))


# --- squares --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Square:
    """How a walk goes in squares: ``source`` moves by one element along ``across``, the result along ``along``."""

    walk: Walk
    source: Load
    across: tuple[LoopVar, int]
    along: tuple[LoopVar, int]
    lanes: int


def square_of(walk: Walk, machine: MachineModel) -> Square | Declined | None:
    """The squares of what is read across the order of the result; ``None`` where nothing is."""
    if len(walk.loops) < 2 or stride_along(walk.out, walk.index, walk.loops[-1][0]) != 1:
        return None
    along = walk.loops[-1]
    strided = {load for load in loads(walk.value) if stride_along(load.buffer, load.index, along[0]) not in (0, 1)}
    if not strided:
        return None
    if len(strided) > 1:
        return Declined(f"squares: {len(strided)} operands are read across the result's order")
    (source,) = strided
    if not _is_inside(source, walk):
        return Declined("squares: what is read across the result's order is read only under a condition")
    across = [pair for pair in walk.loops[:-1] if stride_along(source.buffer, source.index, pair[0]) == 1]
    if not across:
        return Declined("squares: no axis goes through what is read element by element")
    best = max(across, key=lambda pair: pair[1])
    shorter = min(best[1], along[1])
    lanes = min(_LARGEST_SQUARE, lanes_of(walk.value, walk.out.dtype, machine), 1 << (shorter - 1).bit_length())
    if min(shorter, lanes) < _WORTH_A_SQUARE:
        return Declined(f"squares: {shorter} elements along an axis, {lanes} lanes: shuffles cost more than they move")
    return Square(walk, source, best, along, lanes)


def _is_inside(load: Load, walk: Walk) -> bool:
    """Whether every iteration may read it, whatever is asked before."""
    ranges = {var: Range(0, extent - 1) for var, extent in walk.loops}
    return all(bounds(i, ranges).within(0, n - 1) for i, n in zip(load.index, load.buffer.shape, strict=True))


def squares_nest(square: Square, parallel: bool) -> Stmt:
    """All squares, those at the end of either axis with the elements that there are.

    The inner loop walks along what is read: misses of loads are waited for, those of stores are not.
    """
    outer = [pair for pair in square.walk.loops if pair not in (square.across, square.along)]
    extents = [extent for _, extent in outer]
    kind = LoopKind.PARALLEL if parallel else LoopKind.SERIAL

    def strip(row: LoopExpr, first: LoopExpr, rows: int) -> Stmt:
        values = dict(zip((v for v, _ in outer), unflatten(row, extents), strict=True))

        def piece(start: LoopExpr, columns: int) -> Stmt:
            return _one(square, values, start, columns, first, rows)

        return in_vectors(square.across[1], square.lanes, piece)

    count, (whole, rest) = math.prod(extents), divmod(square.along[1], square.lanes)
    lanes, end = square.lanes, Const(whole * square.lanes)
    many = loop(count * whole, lambda p: strip(p // whole, p % whole * lanes, lanes), kind, name="strip")
    return seq(many if whole else None, loop(count, lambda r: strip(r, end, rest), kind, name="row") if rest else None)


def _one(
    square: Square, values: Mapping[LoopVar, LoopExpr], start: LoopExpr, columns: int, first: LoopExpr, rows: int
) -> Stmt:
    walk, source, lanes = square.walk, square.source, square.lanes
    (across, _), (along, _) = square.across, square.along

    def load(i: LoopExpr, lane: LoopExpr) -> LoopExpr:
        found = substitute_vars(source, {**values, along: first + i, across: start + lane})
        return found if columns == lanes else select(lane < columns, found, const(0, source.dtype))

    def store(j: LoopExpr, lane: LoopExpr, moved: LoopExpr) -> Stmt:
        value = map_expr(walk.value, lambda node: moved if node == source else node)
        index, value = replace(walk, value=value).at({**values, along: first + lane, across: start + j})
        stmt = Store(walk.out, index, value)
        return stmt if rows == lanes else If(lane < rows, stmt)

    return transposed(lanes, source.dtype, rows, columns, load, store)
