"""Transposing a square of vectors in registers.

The elements of a matrix of ``lanes x lanes`` (a power of two) are numbered row by row.  Taking those of even number
first, then those of odd number, rotates the bits of every number by one; after ``log2(lanes)`` such steps row and
column have changed places.  Each step is one shuffle of two vectors for every vector of the result.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from minitvm.codegen.loops import in_vectors, unflatten
from minitvm.codegen.walks import Walk, lanes_of
from minitvm.ir.decision import Declined
from minitvm.ir.loop import (
    Alloc,
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
)
from minitvm.ir.loop.affine import loads, stride_along
from minitvm.ir.loop.bounds import bounds
from minitvm.target import MachineModel

_LARGEST_SQUARE = 16
_WORTH_A_SQUARE = 4
"""Elements along both axes, below which shuffles move less than they cost."""

Element = Callable[[LoopExpr, LoopExpr], LoopExpr]


def transposed(
    lanes: int,
    dtype: str,
    rows: int,
    columns: int,
    load: Element,
    store: Callable[[LoopExpr, LoopExpr, LoopExpr], Stmt],
) -> Stmt:
    """``store(column, row, load(row, column))`` for ``rows x columns`` elements, in vectors of whole rows both times.

    At most ``lanes`` of each.  Rows that are missing are zeros for ``store``, which gets whole vectors of ``lanes``;
    ``load`` is asked for ``lanes`` columns and has to answer for those that are missing.
    """
    squares = [Buffer(f"square{step}", (lanes * lanes,), dtype, "local") for step in range(lanes.bit_length())]
    first, last = squares[0], squares[-1]

    def fill(i: LoopExpr, lane: LoopExpr) -> Stmt:
        return Store(first, (i * lanes + lane,), load(i, lane).astype(dtype))

    def zero(i: LoopExpr, lane: LoopExpr) -> Stmt:
        return Store(first, ((i + rows) * lanes + lane,), const(0, dtype))

    def result(j: LoopExpr, lane: LoopExpr) -> Stmt:
        return store(j, lane, last[j * lanes + lane])

    steps = [_evens_and_odds(a, b, lanes) for a, b in itertools.pairwise(squares)]
    missing = _vectors(lanes - rows, lanes, zero) if rows < lanes else None
    body = seq(_vectors(rows, lanes, fill), missing, *steps, _vectors(columns, lanes, result))
    for square in squares:
        body = Alloc(square, body)
    return body


def _evens_and_odds(source: Buffer, target: Buffer, lanes: int) -> Stmt:
    half = lanes // 2

    def move(odd: int) -> Stmt:
        def element(v: LoopExpr, lane: LoopExpr) -> Stmt:
            at = v * lanes + lane
            return Store(target, (at + odd * half * lanes,), source[at * 2 + odd])

        return _vectors(half, lanes, element)

    return seq(move(0), move(1))


def _vectors(count: int, lanes: int, body: Callable[[LoopExpr, LoopExpr], Stmt]) -> Stmt:
    def vector(v: LoopExpr) -> Stmt:
        return loop(lanes, lambda lane: body(v, lane), LoopKind.VECTORIZED, name="lane")

    return loop(count, vector, LoopKind.UNROLLED, name="v")


# --- of a walk ------------------------------------------------------------------------------------------------


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
    return all(bounds(i, walk.ranges).within(0, n - 1) for i, n in zip(load.index, load.buffer.shape, strict=True))


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
