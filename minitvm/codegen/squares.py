"""Transposing a square of vectors in registers.

The elements of a matrix of ``lanes x lanes`` (a power of two) are numbered row by row.  Taking those of even number
first, then those of odd number, rotates the bits of every number by one; after ``log2(lanes)`` such steps row and
column have changed places.  Each step is one shuffle of two vectors for every vector of the result.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from minitvm.ir.loop import Alloc, Buffer, LoopExpr, LoopKind, Stmt, Store, const, loop, seq

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
