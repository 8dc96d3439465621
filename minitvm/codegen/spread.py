"""Loops over the elements of a result: rows in parallel, a row in vectors, the rest of it in a shorter vector.

Nothing runs element by element because a size does not divide, and no loop is written out once for every row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from minitvm.ir.loop import Cast, Const, Load, LoopExpr, LoopKind, Stmt, expr_children, loop, minimum, seq
from minitvm.target import MachineModel

Element = Callable[[Sequence[LoopExpr]], Stmt]

_PIECES = 16
"""Parallel iterations for every thread, so that none has much more than another."""


def lanes_of(value: LoopExpr, dtype: str, machine: MachineModel) -> int:
    """Lanes of a loop that stores ``value`` as ``dtype``: of the widest element that is read, made or stored."""
    widest = machine.lanes(dtype)
    stack, seen = [value], set[int]()
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, (Load, Cast)):
            widest = min(widest, machine.lanes(node.dtype))
        if not isinstance(node, Load):
            stack.extend(expr_children(node))
    return widest


def spread(extents: Sequence[int], element: Element, lanes: int, machine: MachineModel, parallel: bool = True) -> Stmt:
    """Loops over ``extents``: enough of the outer ones fused into one parallel loop, the innermost in vectors."""
    if not extents:
        return element(())
    *outer, inner = extents
    if not parallel:
        return _serial(outer, (), inner, element, lanes)
    wanted = _PIECES * machine.threads
    if math.prod(outer) < wanted // 4 and inner // lanes > math.prod(outer):
        return _few_rows(outer, inner, element, lanes, wanted)
    split = _parallel_prefix(outer, wanted)
    return loop(
        math.prod(outer[:split]),
        lambda row: _serial(outer[split:], unflatten(row, outer[:split]), inner, element, lanes),
        LoopKind.PARALLEL,
        name="row",
    )


def _few_rows(outer: Sequence[int], inner: int, element: Element, lanes: int, wanted: int) -> Stmt:
    """Pieces of rows in parallel; then what is left over of every row."""
    rows, vectors = math.prod(outer), inner // lanes
    length = -(-vectors // max(1, wanted // max(1, rows)))
    pieces = -(-vectors // length)

    def piece(at: LoopExpr) -> Stmt:
        row, first = unflatten(at // pieces, outer), at % pieces * length
        count: LoopExpr = Const(length) if vectors % length == 0 else minimum(length, vectors - first)
        return loop(count, lambda v: in_lanes(lanes, lambda k: element((*row, (first + v) * lanes + k))), name="v")

    parts = [loop(rows * pieces, piece, LoopKind.PARALLEL, name="piece")]
    rest, start = inner % lanes, vectors * lanes
    if rest:
        parts.append(
            loop(
                rows,
                lambda row: in_lanes(rest, lambda k: element((*unflatten(row, outer), k + start))),
                LoopKind.PARALLEL,
                name="row",
            )
        )
    return seq(*parts)


def _parallel_prefix(extents: Sequence[int], wanted: int) -> int:
    """How many leading loops to fuse for ``wanted`` parallel iterations."""
    total = 1
    for count, extent in enumerate(extents):
        if total >= wanted:
            return count
        total *= extent
    return len(extents)


def _serial(extents: Sequence[int], prefix: Sequence[LoopExpr], inner: int, element: Element, lanes: int) -> Stmt:
    if not extents:
        return in_vectors(inner, lanes, lambda start, width: in_lanes(width, lambda k: element((*prefix, start + k))))
    return loop(extents[0], lambda i: _serial(extents[1:], (*prefix, i), inner, element, lanes))


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
