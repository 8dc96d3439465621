"""Loops over the elements of a result: rows in parallel, a row in vectors, the rest of it in a shorter vector.

Nothing runs element by element because a size does not divide, and no loop is written out once for every row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minitvm.ir.loop import Cast, Const, Load, LoopExpr, LoopKind, Stmt, expr_children, loop, minimum, seq
from minitvm.target import MachineModel

_PIECES = 16
"""Parallel iterations for every thread, so that none has much more than another."""


def lanes_of(value: LoopExpr, dtype: str, machine: MachineModel) -> int:
    """Lanes of a loop that stores ``value`` as ``dtype``: of the widest element that is read, made or stored."""
    widest = machine.lanes(dtype)
    stack, seen = [value], set[LoopExpr]()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, (Load, Cast)):
            widest = min(widest, machine.lanes(node.dtype))
        if not isinstance(node, Load):
            stack.extend(expr_children(node))
    return widest


@dataclass(frozen=True)
class Columns:
    """``count`` elements of every row, ``width`` at a time: ``vector(row, start, width)``, less for what is left."""

    count: int
    width: int
    vector: Callable[[Sequence[LoopExpr], LoopExpr, int], Stmt]

    def serial(self, row: Sequence[LoopExpr]) -> Stmt:
        return in_vectors(self.count, self.width, lambda start, width: self.vector(row, start, width))


def spread(outer: Sequence[int], parts: Sequence[Columns], machine: MachineModel, parallel: bool = True) -> Stmt:
    """Loops over the rows ``outer``, enough of them fused into one parallel loop; a row's parts one after the other."""
    if not parallel:
        return _serial(outer, (), parts)
    wanted = _PIECES * machine.threads
    if math.prod(outer) < wanted // 4 and max(part.count // part.width for part in parts) > math.prod(outer):
        return seq(*(_few_rows(outer, part, wanted) for part in parts))
    split = _parallel_prefix(outer, wanted)
    return loop(
        math.prod(outer[:split]),
        lambda row: _serial(outer[split:], unflatten(row, outer[:split]), parts),
        LoopKind.PARALLEL,
        name="row",
    )


def _few_rows(outer: Sequence[int], part: Columns, wanted: int) -> Stmt:
    """Pieces of rows in parallel; then what is left over of every row."""
    rows, (vectors, rest) = math.prod(outer), divmod(part.count, part.width)
    length = -(-vectors // max(1, wanted // max(1, rows))) or 1
    pieces = -(-vectors // length)

    def piece(at: LoopExpr) -> Stmt:
        row, first = unflatten(at // pieces, outer), at % pieces * length
        count: LoopExpr = Const(length) if vectors % length == 0 else minimum(length, vectors - first)
        return loop(count, lambda v: part.vector(row, (first + v) * part.width, part.width), name="v")

    def tail(row: LoopExpr) -> Stmt:
        return part.vector(unflatten(row, outer), Const(vectors * part.width), rest)

    whole = loop(rows * pieces, piece, LoopKind.PARALLEL, name="piece") if pieces else None
    return seq(whole, loop(rows, tail, LoopKind.PARALLEL, name="row") if rest else None)


def _parallel_prefix(extents: Sequence[int], wanted: int) -> int:
    """How many leading loops to fuse for ``wanted`` parallel iterations."""
    total = 1
    for count, extent in enumerate(extents):
        if total >= wanted:
            return count
        total *= extent
    return len(extents)


def _serial(extents: Sequence[int], prefix: Sequence[LoopExpr], parts: Sequence[Columns]) -> Stmt:
    if not extents:
        return seq(*(part.serial(prefix) for part in parts))
    return loop(extents[0], lambda i: _serial(extents[1:], (*prefix, i), parts))


def unflatten(position: LoopExpr, extents: Sequence[int]) -> tuple[LoopExpr, ...]:
    """The row-major index of a flat position; the leading one needs no remainder."""
    index: list[LoopExpr] = []
    for extent in reversed(extents[1:]):
        index.append(position % extent)
        position = position // extent
    if extents:
        index.append(position if extents[0] != 1 else Const(0))
    return tuple(reversed(index))


def in_vectors(extent: int, lanes: int, body: Callable[[LoopExpr, int], Stmt]) -> Stmt:
    """``body(start, width)`` for whole vectors, then once for what is left over; one by one where ``lanes`` is 1."""
    if lanes == 1:
        return loop(extent, lambda j: body(j, 1), name="j")
    whole, rest = divmod(extent, lanes)
    vectors = loop(whole, lambda v: body(v * lanes, lanes), name="v") if whole else None
    return seq(vectors, body(Const(whole * lanes), rest) if rest else None)


def in_lanes(width: int, body: Callable[[LoopExpr], Stmt]) -> Stmt:
    """``body`` for every lane."""
    return loop(width, body, LoopKind.VECTORIZED, name="lane") if width > 1 else body(Const(0))
