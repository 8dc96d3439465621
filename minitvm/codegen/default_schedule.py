"""The default schedule of a stage: the first of a list that does not decline.

Rows in parallel; a row in vectors along the result, what is left over of it in a shorter vector.  No loop is written
out because a size does not divide, nor once for every row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from minitvm.codegen.legalize import is_long
from minitvm.codegen.loops import (
    Loops,
    enough,
    fresh_vars,
    fused,
    in_pieces,
    in_strips,
    in_vectors,
    lanes,
    nested,
    or_zero,
    partial_results,
    split,
    transposed,
    trips,
    unflatten,
    vectors,
)
from minitvm.codegen.simplify import simplify_expr
from minitvm.codegen.stages import Output
from minitvm.codegen.walks import (
    FEWEST_LANES,
    MOST_APART,
    Walk,
    asked_around,
    in_bands,
    jumps,
    lanes_of,
    period,
    summed_in_steps,
    walks,
)
from minitvm.cpu_costs import CPU
from minitvm.ir.decision import Declined, decide
from minitvm.ir.dims import Dim, ceil_divide, usual
from minitvm.ir.loop import (
    Alloc,
    Buffer,
    Const,
    For,
    If,
    Load,
    LoopExpr,
    LoopKind,
    LoopVar,
    Select,
    Seq,
    Stmt,
    Store,
    all_of,
    as_index,
    map_expr,
    map_stmt,
    seq,
    substitute_vars,
    walk_exprs,
    walk_stmts,
)
from minitvm.ir.loop.affine import bounds, loads, stride_along, vectorizes
from minitvm.ir.loop.builder import LoopBuilder
from minitvm.ir.op import outer_reductions
from minitvm.target import MachineModel

_LARGEST_SQUARE = 16
_WORTH_A_SQUARE = 4
"""Elements along both axes, below which shuffles move less than they cost."""
_SHORT = 128
"""Elements of a row that are followed by the next one so soon that reading more rows at once costs nothing."""
_STRIPS = 4
"""Of squares for every thread."""
_PIECES = 16
"""Parallel iterations for every thread, so that none has much more than another."""
_WRITTEN_OUT = 32
"""Vectors of a row that jumps through what it reads."""
_TERMS = 4
"""Rows that are added up before what they are added to is read."""
_FEWEST_ROWS = 16
_SUMS_BYTES = 4096
"""Of sums that stay in the first-level cache while rows go by."""
_IN_FLIGHT = 4
"""Vectors that are computed at once, to hide the latency of a reduction's addition or of a long function."""


Element: TypeAlias = "tuple[Sequence[LoopExpr | int], LoopExpr]"
"""An index, and what is stored there."""

Axis: TypeAlias = "tuple[LoopVar, int]"
"""A loop's variable and its extent."""

Schedule: TypeAlias = Callable[[Walk, MachineModel, bool], Stmt | Declined | None]
"""Loops for a machine, parallel ones or not; or why not, or nothing where there is nothing to say."""


def stage_nest(out: Output, machine: MachineModel, parallel: bool = True) -> Stmt:
    """Loops that store every element of ``out``; ``parallel``: divided among the threads."""
    return _nest(Walk.over(out).without_ones(), machine, parallel)


def filled(
    buffer: Buffer,
    extents: Sequence[int],
    element: Callable[..., Element],
    machine: MachineModel,
    parallel: bool = True,
) -> Stmt:
    """Loops over ``extents`` that store ``(index, value) = element(*position)`` to a buffer of a template's own."""
    loops = tuple((LoopVar("ijklmnopq"[d]), extent) for d, extent in enumerate(extents))
    index, value = element(*(var for var, _ in loops))
    walk = Walk(buffer, loops, tuple(map(as_index, index)), value.astype(buffer.dtype))
    return _nest(replace(walk, value=simplify_expr(walk.value, walk.ranges)), machine, parallel)


def _nest(walk: Walk, machine: MachineModel, parallel: bool) -> Stmt:
    if outer_reductions(walk.value):
        return _scheduled(walk, (_summed_row_by_row, _reduced_in_lanes, _one_by_one), machine, parallel)
    return seq(
        *(_scheduled(part, (_in_squares, _in_short_rows, _in_vectors), machine, parallel) for part in walks(walk))
    )


def _scheduled(walk: Walk, schedules: Sequence[Schedule], machine: MachineModel, parallel: bool) -> Stmt:
    for schedule in schedules if walk.loops else ():
        made = schedule(walk, machine, parallel)
        if isinstance(made, Stmt):
            return made
        if made is not None:
            decide("schedule", walk.out.name, made)
    return _partial_results(walk.element(), machine)


# --- across the order of the result ---------------------------------------------------------------------------


def _in_squares(walk: Walk, machine: MachineModel, parallel: bool) -> Stmt | Declined | None:
    """The place where something is read across the order of the result."""
    found = _square(walk, machine)
    if not isinstance(found, _Square):
        return found
    decide("schedule", walk.out.name, f"in squares of {found.lanes}, as it reads across the order of the result")
    return _squares(found, machine, parallel)


@dataclass(frozen=True)
class _Square:
    """How a walk goes in squares: ``source`` moves by one element along ``across``, the result along ``along``."""

    walk: Walk
    source: Load
    across: tuple[LoopVar, int]
    along: tuple[LoopVar, int]
    lanes: int


def _square(walk: Walk, machine: MachineModel) -> _Square | Declined | None:
    """The squares of what is read across the order of the result; ``None`` where nothing is."""
    found = crossing(walk)
    if not isinstance(found, tuple):
        return found
    source, across, along = found
    shorter = min(usual(across[1]), usual(along[1]))
    lanes = min(_LARGEST_SQUARE, lanes_of(walk.value, walk.out.dtype, machine), 1 << (shorter - 1).bit_length())
    if _share_places(walk.out, walk.index, across[0], 1) and not _share_places(source.buffer, source.index, along[0]):
        lanes = min(lanes, 1 << (machine.l1_ways.bit_length() - 1))
    if min(shorter, lanes) < _WORTH_A_SQUARE:
        return Declined(f"squares: {shorter} elements along an axis, {lanes} lanes: shuffles cost more than they move")
    return _Square(walk, source, across, along, lanes)


def crossing(walk: Walk, each: int = 1) -> tuple[Load, Axis, Axis] | Declined | None:
    """What is read across the order of the result, the axis that goes through it element by element, and the one that
    goes so through the result; ``None`` where nothing is.  ``each``: elements of the last axis that stay together."""
    axes = walk.loops if each == 1 else walk.loops[:-1]
    if len(axes) < 2 or stride_along(walk.out, walk.index, axes[-1][0]) != each:
        return None
    along = axes[-1]
    strided = {load for load in loads(walk.value) if stride_along(load.buffer, load.index, along[0]) not in (0, each)}
    if not strided:
        return None
    if len(strided) > 1:
        return Declined(f"squares: {len(strided)} operands are read across the result's order")
    (source,) = strided
    if not _is_inside(source, walk):
        return Declined("squares: what is read across the result's order is read only under a condition")
    across = [pair for pair in axes[:-1] if stride_along(source.buffer, source.index, pair[0]) == each]
    if not across:
        return Declined("squares: no axis goes through what is read element by element")
    return source, max(across, key=lambda pair: usual(pair[1])), along


def _is_inside(load: Load, walk: Walk) -> bool:
    """True if every iteration may read it, whatever is asked before."""
    if not all(isinstance(extent, int) for _, extent in walk.loops):
        return not any(isinstance(node, Select) for node in walk_exprs(walk.value))
    return all(bounds(i, walk.ranges).within(0, n - 1) for i, n in zip(load.index, load.buffer.shape, strict=True))


def _squares(square: _Square, machine: MachineModel, parallel: bool) -> Stmt:
    """All squares, those at the end of either axis with the elements that there are.

    The inner loop walks along what is read: misses of loads are waited for, those of stores are not.  A cache line of
    the result is written whole before the next ones, which may want its place in the cache; two where rows are so
    short, and do not end with a line; where rows do want one place, many lines of a few rows.
    """
    outer = [pair for pair in square.walk.loops if pair not in (square.across, square.along)]
    if not isinstance(square.across[1], int) or not isinstance(square.along[1], int):
        return _open_squares(square, outer, machine, parallel)
    extents = [extent for _, extent in outer]

    kind = LoopKind.PARALLEL if parallel else LoopKind.SERIAL
    code, high = LoopBuilder(), max(square.lanes, _strip(square, machine.threads))
    for row, first, rows in in_strips(code, math.prod(extents), square.along[1], high, kind):
        values = dict(zip((v for v, _ in outer), unflatten(row, extents), strict=True))
        for start, columns in in_vectors(code, square.across[1], square.lanes):
            for below, count in in_vectors(code, rows, square.lanes):
                if count > 1:
                    code.emit(_one_square(square, values, start, columns, first + below, count))
                else:  # there is nothing to turn
                    with code.unrolled(range(columns)) as j:
                        code.emit(_one_square(replace(square, lanes=1), values, start + j, 1, first + below, 1))
    return code.stmt


def _open_squares(square: _Square, outer: Loops, machine: MachineModel, parallel: bool) -> Stmt:
    """Where an axis is as long as only a run says: whole squares, and at its end one of which a part is there."""
    lanes, values = square.lanes, {var: var for var, _ in outer}
    (_, wide), (_, high) = square.across, square.along
    i, j = LoopVar("square"), LoopVar("square")
    start, first = j * lanes, i * lanes
    is_whole = (start + lanes <= as_index(wide)) & (first + lanes <= as_index(high))

    def one(ends: tuple[Dim, Dim] | None) -> Stmt:
        return _one_square(square, values, start, lanes, first, lanes, ends)

    row = For(j, as_index(ceil_divide(wide, lanes)), If(is_whole, one(None), fresh_vars(one((wide, high)))))
    return _rows([*outer, (i, ceil_divide(high, lanes))], [row], machine, parallel)  # type: ignore[list-item]


def _strip(square: _Square, threads: int) -> int:
    """Elements of the result's rows that are written before the next rows are: many of those that share places."""
    line, along = CPU.line_bytes // np.dtype(square.walk.out.dtype).itemsize, square.along[1]
    if _share_places(square.walk.out, square.walk.index, square.across[0]):
        each = math.prod(extent for _, extent in square.walk.loops) // square.across[1] // (_STRIPS * threads)
        return max(line, min(_SHORT, each // line * line)) if isinstance(each, int) else _SHORT
    return 2 * line if along % line and along <= 2 * line else line


def _share_places(buffer: Buffer, index: Sequence[LoopExpr], var: LoopVar, places: int = 4) -> bool:
    """True if what is read or written for neighbouring ``var`` has so few places in the first-level cache."""
    apart = stride_along(buffer, index, var)
    return apart is not None and apart * np.dtype(buffer.dtype).itemsize * places % CPU.way_bytes == 0


def _one_square(
    square: _Square,
    values: Mapping[LoopVar, LoopExpr],
    start: LoopExpr,
    columns: int,
    first: LoopExpr,
    rows: int,
    ends: tuple[Dim, Dim] | None = None,
) -> Stmt:
    """``ends``: where columns and rows end, of which some may not be there."""
    walk, source, lanes = square.walk, square.source, square.lanes
    (across, _), (along, _) = square.across, square.along

    def load(i: LoopExpr, lane: LoopExpr) -> LoopExpr:
        found = substitute_vars(source, {**values, along: first + i, across: start + lane})
        if ends is not None:
            return or_zero((start + lane < as_index(ends[0])) & (first + i < as_index(ends[1])), found)
        return found if columns == lanes else or_zero(lane < columns, found)

    code = LoopBuilder()
    with transposed(code, lanes, source.dtype, rows, columns, load) as (j, lane, moved):
        value = map_expr(walk.value, lambda node: moved if node == source else node)
        index, value = replace(walk, value=value).at({**values, along: first + lane, across: start + j})
        there = ends and all_of([start + j < as_index(ends[0]), first + lane < as_index(ends[1])])
        with code.when(there):
            code.store(walk.out, index, value)
    return code.stmt


def _in_short_rows(walk: Walk, machine: MachineModel, parallel: bool) -> Stmt | None:
    """Rows of a few elements that are read across the order of the result: in the order in which they are read, a cache
    line of the result at a time."""
    last, count = walk.loops[-1]
    line = CPU.line_bytes // np.dtype(walk.out.dtype).itemsize
    found = crossing(walk, count) if isinstance(count, int) and 1 < count <= line // 4 else None
    if not isinstance(found, tuple) or not vectorizes(walk.value, last) or not isinstance(found[2][1], int):
        return None
    _, across, (along, rows) = found
    decide("schedule", walk.out.name, f"rows of {count} in the order in which they are read")
    nests = []
    for part in walk.split(along, line // count) if rows > line // count else [walk]:
        *outer, (var, together), _ = part.loops
        outer = [*(pair for pair in outer if pair != across), across]
        row = For(var, Const(together), _row(part, lanes_of(part.value, part.out.dtype, machine)), LoopKind.UNROLLED)
        nests.append(_rows(outer, [row], machine, parallel))
    return seq(*nests)


# --- along the result's last axis -----------------------------------------------------------------------------


def _in_vectors(walk: Walk, machine: MachineModel, parallel: bool) -> Stmt:
    """A row in pieces, in each of which no condition changes."""
    taken: str | Declined = f"in vectors of {max(width for _, width in _pieces(walk, machine))}"
    if taken == "in vectors of 1":
        taken = Declined("vectors: neighbours of the last axis are not stored to neighbouring memory")
    if walk.loops[-1][1] == 1:
        taken = "one by one, as its last axis has one element"
    decide("schedule", walk.out.name, taken)
    few = parallel and _few(walk.loops[:-1], machine)
    return _rows(walk.loops[:-1], _row_in_vectors(walk, machine, guarded=not few), machine, parallel)


def _pieces(walk: Walk, machine: MachineModel) -> list[tuple[Walk, int]]:
    """Of a row, and how many elements of each are computed at a time."""
    return [(part, _width(part, machine)) for part in walk.cut(*walk.loops[-1])]


def _row_in_vectors(walk: Walk, machine: MachineModel, guarded: bool) -> list[Stmt]:
    """``guarded``: conditions that all of the row shares are asked once."""
    guards, inside, outside = asked_around(walk.value, walk.loops[-1][0])
    if not guarded or not guards:
        return [_row(part, width) for part, width in _pieces(walk, machine)]
    both = (replace(walk, value=value.astype(walk.value.dtype)) for value in (inside, outside))
    then, orelse = (seq(*_row_in_vectors(side, machine, guarded)) for side in both)
    return [If(all_of(guards), then, orelse)]


def _width(walk: Walk, machine: MachineModel) -> int:
    """Elements of the innermost loop at a time: a vector where it moves through the result element by element (what
    lies apart is read lane by lane), more where functions are long, what it reads repeats, or elements that are read or
    stored are narrower than others: whole vectors of these; or 1."""
    inner, extent = walk.loops[-1]
    if stride_along(walk.out, walk.index, inner) != 1:
        return 1
    lanes = lanes_of(walk.value, walk.out.dtype, machine)
    narrow = max(machine.lanes(buffer.dtype) for buffer in (walk.out, *(load.buffer for load in loads(walk.value))))
    lanes *= max(1, min(_IN_FLIGHT, -(-usual(extent) // lanes)))
    lanes = lanes if is_long(walk.value) else min(narrow, lanes)
    irregular = (x for x in loads(walk.value) if stride_along(x.buffer, x.index, inner) is None)
    return math.lcm(lanes, *(period(load, inner) or 1 for load in irregular))


def _summed_row_by_row(walk: Walk, machine: MachineModel, parallel: bool) -> Stmt | None:
    """Sums down long rows, a few rows at a time: what is read follows what was read, which a few vectors of all rows
    do not, and rows of which many share a place of the cache do not meet there."""
    (last, count), wide = walk.loops[-1], lanes_of(walk.value, walk.out.dtype, machine)
    found, steps = outer_reductions(walk.value), summed_in_steps(walk, _TERMS)
    if steps is None or not enough(count, _IN_FLIGHT * wide + 1) or not vectorizes(walk.value, last):
        return None
    if is_long(found[0].value) or not enough(math.prod(extent for _, extent in found[0].axes), _FEWEST_ROWS):
        return None
    strip = _SUMS_BYTES // np.dtype(found[0].dtype).itemsize
    columns = math.prod(extent for _, extent in walk.loops)
    if parallel and machine.threads > 1 and isinstance(columns, int):
        strip = min(strip, max(_IN_FLIGHT, columns // (_STRIPS * machine.threads) // wide) * wide)
    decide("schedule", walk.out.name, f"row by row, {min(strip, count)} sums at a time in the cache")
    nests = []
    for part in [steps] if count <= strip else steps.split(last, strip):
        row = _row(part, wide)
        pieces = [
            lanes(piece, LoopKind.SERIAL) if isinstance(piece, For) else piece
            for piece in (row.stmts if isinstance(row, Seq) else (row,))
        ]
        nests.append(_rows(part.loops[:-1], pieces, machine, parallel))
    return seq(*nests)


def _reduced_in_lanes(walk: Walk, machine: MachineModel, parallel: bool) -> Stmt | Declined:
    """Each lane reduces for an element of its own, a few vectors at once."""
    lanes = lanes_of(walk.value, walk.out.dtype, machine)
    parts = walk.cut(*walk.loops[-1])
    if not _reads_near(parts, lanes):
        return Declined("results in lanes: they are few, or what neighbours read lies apart")
    decide("schedule", walk.out.name, f"each lane reduces for a result of its own, {lanes} lanes")

    def in_flight(count: int) -> int:
        if not isinstance(count, int):
            return lanes
        vectors = -(-count // lanes)
        return min(count, lanes * -(-vectors // max(1, vectors // _IN_FLIGHT)))

    bands = in_bands(walk, machine.threads) if parallel else walk
    rows = [_row(part, in_flight(part.loops[-1][1])) for part in bands.cut(*bands.loops[-1])]
    return _rows(bands.loops[:-1], rows, machine, parallel)


def _reads_near(parts: Sequence[Walk], lanes: int) -> bool:
    """True if neighbouring results read neighbouring elements, or, of a short reduction, elements a few apart."""
    longest = parts[0] if len(parts) == 1 else max(parts, key=lambda part: part.loops[-1][1])
    last, count = longest.loops[-1]
    if isinstance(count, int) and count < min(FEWEST_LANES, lanes) and len(parts) == 1:
        return False
    if vectorizes(longest.value, last):
        return True
    strides = [stride_along(load.buffer, load.index, last) for load in loads(longest.value)]
    short = all(not enough(reduce.axes[-1][1], MOST_APART + 1) for reduce in outer_reductions(longest.value))
    return short and all(stride is not None and 0 <= stride <= MOST_APART for stride in strides)


# --- rows -----------------------------------------------------------------------------------------------------


def _row(walk: Walk, width: int) -> Stmt:
    """The innermost loop, ``width`` elements at a time; written out where positions and factors are constants then."""
    var, extent = walk.loops[-1]
    short = isinstance(extent, int) and width > 1 and extent <= width * _WRITTEN_OUT
    kind = LoopKind.UNROLLED if short and jumps(walk.value, var) else LoopKind.SERIAL
    return vectors(For(var, as_index(extent), walk.element(var), kind), width)


def _rows(outer: Loops, row: Sequence[Stmt], machine: MachineModel, parallel: bool) -> Stmt:
    """Loops around what makes up a row, enough of them fused into a parallel one; a few long rows go in pieces."""
    if not parallel:
        return nested(outer, seq(*row))
    wanted, rows = _PIECES * machine.threads, math.prod(extent for _, extent in outer)
    body = seq(*row)
    parts = body.stmts if isinstance(body, Seq) else (body,)
    if _few(outer, machine) and max(map(_rounds, parts), default=0) > rows:
        return seq(*(_few_rows(outer, part, max(1, wanted // max(1, rows))) for part in parts))
    all_but_last = len(outer) - (len(outer) > 1 and not isinstance(rows, int) and enough(outer[-1][1], _FEWEST_ROWS))
    at = next((d for d in range(len(outer)) if math.prod(usual(n) for _, n in outer[:d]) >= wanted), all_but_last)
    return in_pieces(outer[:at], nested(outer[at:], body), "row", wanted)


def _few(outer: Loops, machine: MachineModel) -> bool:
    """True if there are too few rows for the threads."""
    rows = math.prod(extent for _, extent in outer)
    return isinstance(rows, int) and rows < _PIECES * machine.threads // 4


def _rounds(part: Stmt) -> int:
    """Iterations of a loop over vectors; 0 of what is left over, and where only a run says."""
    if isinstance(part, For) and part.kind is LoopKind.SERIAL and isinstance(part.extent, Const):
        return trips(part)
    return 0


def _few_rows(outer: Loops, part: Stmt, pieces: int) -> Stmt:
    """One of the parts of all rows, in so many pieces of a row in parallel if it is a loop over vectors."""
    if not _rounds(part) or not isinstance(part, For):
        return fused(outer, part, "row", LoopKind.PARALLEL)
    main = split(part, -(-trips(part) // pieces), "shorter")
    assert isinstance(main, For)
    return fused((*outer, (main.var, trips(main))), main.body, "piece", LoopKind.PARALLEL)


# --- one element of a reduction after the other ---------------------------------------------------------------


def _one_by_one(walk: Walk, machine: MachineModel, parallel: bool) -> Stmt:
    body = _partial_results(walk.element(), machine)
    return fused(walk.loops, body, "element", LoopKind.PARALLEL if parallel else LoopKind.SERIAL)


def _partial_results(body: Stmt, machine: MachineModel) -> Stmt:
    """Along the last axis of each reduction in vectors, several in flight, where that is long."""

    def visit(stmt: Stmt) -> Stmt:
        found = _last_loop(stmt) if isinstance(stmt, Alloc) else None
        width = 1 if found is None else _lanes_along(found, machine)
        return partial_results(stmt, found, width) if isinstance(stmt, Alloc) and found and width > 1 else stmt

    return map_stmt(body, on_stmt=visit)


def _last_loop(alloc: Alloc) -> For | None:
    """The loop around the update of a reduction; none where that reduces something itself."""
    updates = (s for s in walk_stmts(alloc.body) if isinstance(s, For) and isinstance(s.body, Store))
    return next((f for f in updates if isinstance(f.body, Store) and f.body.buffer is alloc.buffer), None)


def _lanes_along(found: For, machine: MachineModel) -> int:
    """Several vectors, a power of two of elements; 1 where what is read along the loop does not lie side by side."""
    assert isinstance(found.body, Store)
    value, extent = found.body.value, trips(found) if isinstance(found.extent, Const) else None
    lanes = lanes_of(value, found.body.buffer.dtype, machine)
    strides = [stride_along(load.buffer, load.index, found.var) for load in loads(value)]
    if lanes == 1 or not all(s in (0, 1) for s in strides) or found.var not in value.mentions:
        return 1
    if extent is None or extent * 2 <= lanes:
        return lanes * _IN_FLIGHT if extent is None else 1
    return lanes * min(_IN_FLIGHT, 1 << max(0, (extent // lanes).bit_length() - 1))
