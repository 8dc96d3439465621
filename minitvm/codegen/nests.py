"""The default loop nest of one stage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from minitvm.codegen.partition import Segment, segments
from minitvm.codegen.reductions import MOST_APART, reduction_nest
from minitvm.codegen.simplify import simplify_expr
from minitvm.codegen.spread import Columns, in_lanes, lanes_of, spread
from minitvm.codegen.walks import Square, Walk, period, square_of, squares_nest, walks
from minitvm.ir.decision import Declined, decide
from minitvm.ir.loop import Buffer, LoopExpr, LoopVar, Reduce, Stmt, Store, seq, walk_exprs
from minitvm.ir.loop.affine import loads, stride_along, vectorizes
from minitvm.ir.loop.interval import Range
from minitvm.target import MachineModel

_MOST_PIECES = 9
"""Nests that one may become."""


def stage_nest(
    out: Buffer, axes: Sequence[LoopVar], value: LoopExpr, machine: MachineModel, parallel: bool = True
) -> Stmt:
    """Loops that store ``value`` to every element of ``out``; ``axes`` are the variables that ``value`` is over."""
    ranges = _ranges(out, axes, value)
    value = simplify_expr(value, ranges)
    if any(isinstance(node, Reduce) for node in walk_exprs(value)):
        return reduction_nest(out, axes, value, ranges, machine, parallel)
    return seq(*(_elementwise(part, machine, parallel) for walk in walks(out, axes, value) for part in _cut(walk)))


def _cut(walk: Walk) -> list[Walk]:
    """In pieces without conditions, where something is read across the order of the result under one."""
    if not walk.loops or vectorizes(walk.value, walk.loops[-1][0]):
        return [walk]
    pieces = [walk]
    for var, extent in walk.loops:
        pieces = [part for piece in pieces for part in piece.cut(var, extent)]
        if len(pieces) > _MOST_PIECES:
            return [walk]
    return pieces


def _elementwise(walk: Walk, machine: MachineModel, parallel: bool) -> Stmt:
    """In vectors along the innermost loop, in squares where it reads across, or one by one."""
    if not walk.loops:
        return Store(walk.out, walk.index, walk.value)
    square = square_of(walk, machine)
    if isinstance(square, Square):
        decide("schedule", walk.out.name, f"in squares of {square.lanes}, as it reads across the order of the result")
        return squares_nest(square, parallel)
    if square is not None:
        decide("schedule", walk.out.name, square)
    ranges = {var: Range(0, extent - 1) for var, extent in walk.loops}
    parts = [_columns(walk, part, machine) for part in segments(walk.value, *walk.loops[-1], ranges)]
    decide("schedule", walk.out.name, _in_words(max(part.width for part in parts), walk.loops[-1][1]))
    return spread([extent for _, extent in walk.loops[:-1]], parts, machine, parallel)


def _in_words(width: int, extent: int) -> str | Declined:
    if width > 1 or extent == 1:
        return f"in vectors of {width}" if width > 1 else "one by one, as its last axis has one element"
    return Declined("vectors: neighbours of the last axis are not read from, or stored to, neighbouring memory")


def _columns(walk: Walk, part: Segment, machine: MachineModel) -> Columns:
    """The part of the innermost loop in which no condition changes."""
    here = replace(walk, value=part.value)
    *outer, (inner, _) = walk.loops

    def vector(row: Sequence[LoopExpr], start: LoopExpr, width: int) -> Stmt:
        values = dict(zip((var for var, _ in outer), row, strict=True))
        return in_lanes(width, lambda k: Store(walk.out, *here.at({**values, inner: start + k + part.start})))

    return Columns(part.count, _width(here, lanes_of(part.value, walk.out.dtype, machine)), vector)


def _width(walk: Walk, lanes: int) -> int:
    """Elements of the innermost loop at a time: ``lanes`` where it moves through the result element by element, and
    reads what is near; more of them where what it reads repeats; or 1."""
    inner = walk.loops[-1][0]
    if stride_along(walk.out, walk.index, inner) != 1:
        return 1
    width = lanes
    for load in loads(walk.value):
        stride = stride_along(load.buffer, load.index, inner)
        steps = period(load, inner) if stride is None else 1 if -1 <= stride <= MOST_APART else None
        if steps is None:
            return 1
        width = math.lcm(width, steps)
    return width


def _ranges(out: Buffer, axes: Sequence[LoopVar], value: LoopExpr) -> dict[LoopVar, Range]:
    """Where the axes of a stage and of the reductions in it run."""
    extents = [*zip(axes, out.shape, strict=True)]
    extents += [pair for node in walk_exprs(value) if isinstance(node, Reduce) for pair in node.axes]
    return {var: Range(0, extent - 1) for var, extent in extents}
