"""The nests of a group that no template writes, as loops: one after the other, or all of them row by row.

A kind of machine may have ways of its own: ``NESTS["cuda"] = Nests(...)``.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np

from minitvm.codegen.default_schedule import stage_nest
from minitvm.codegen.loops import (
    in_pieces,
    in_strips,
    nested,
    parallel,
    redirect,
    redirect_loads,
    unflatten,
    with_memory,
)
from minitvm.codegen.stages import Axes, Group, Output
from minitvm.codegen.walks import FEWEST_LANES, MOST_APART
from minitvm.cpu_costs import CPU
from minitvm.ir.decision import Declined, decide
from minitvm.ir.dims import Dim, sampled, usual
from minitvm.ir.loop import (
    Barrier,
    Binary,
    Buffer,
    Load,
    LoopExpr,
    LoopKind,
    LoopVar,
    Reduce,
    Select,
    Stmt,
    map_expr,
    seq,
    substitute_vars,
    walk_exprs,
)
from minitvm.ir.loop.affine import affine, depends_on, loads, stride_along, vectorizes
from minitvm.ir.loop.builder import LoopBuilder
from minitvm.ir.op import outer_reductions
from minitvm.target import MachineModel

_SHORTEST = 4
"""Columns of a window, below which it is not worth a row in memory; one less where windows are apart and stick out:
those at the edges would be computed one by one."""
_AT_ONCE = 64
"""Short rows side by side: a few vectors of them, whose elements stay in the nearest cache."""
_PIECES = 4
"""Parallel iterations for every thread, at least."""
_TOGETHER = 16
"""Rows of some length that are made together: vectors of what they are reduced to."""
_FEWEST_TOGETHER = 4
_TOGETHER_FAR = 5
"""The same where results leave the second-level cache: more rows are bursts of stores that miss."""

Nest: TypeAlias = Callable[[Output], Stmt]


@dataclass(frozen=True)
class Nests:
    """The writers of loops: for all nests of a group, and for one by itself."""

    group: Callable[[Group, str, MachineModel], Stmt]
    one: Callable[[Output, MachineModel], Stmt]


def default_nests(group: Group, name: str, machine: MachineModel) -> Stmt:
    """All stages row by row, or else one nest after the other."""
    if len(group.nests) == 1:
        return _single(group.outputs[0], machine)
    body = by_rows(group, machine)
    decide("schedule", name, body if isinstance(body, Declined) else "row by row, rows in parallel")
    return at_root(group, partial(stage_nest, machine=machine)) if isinstance(body, Declined) else body


NESTS = {"llvm": Nests(default_nests, stage_nest)}
"""By kind of schedules; where a kind has none, those of ``llvm``."""


def nests_of(kind: str) -> Nests:
    return NESTS.get(kind, NESTS["llvm"])


def _single(out: Output, machine: MachineModel) -> Stmt:
    """One nest, or two for every row where windows are separable."""
    found = _separated(out)
    body = None if found is None else _windows(Group((), found[:1], found[1:]), machine)
    if body is None or isinstance(body, Declined):
        return stage_nest(out, machine)
    decide("schedule", out.buffer.name, "windows first down the rows, then along each row")
    return body


def _windows(group: Group, machine: MachineModel) -> Stmt | Declined:
    """What goes down the rows for some of them, then along these: what was just stored in vectors is waited for where
    it is read from between them."""
    (down, _), shape = group.nests, group.outputs[0].buffer.shape[:-1]
    row = row_buffer(down.buffer, len(shape)).nbytes
    if not shape or not isinstance(shape[-1], int) or not isinstance(row, int):
        return by_rows(group, machine)
    outer, rows = math.prod(shape[:-1]), shape[-1]
    pieces = -(-_PIECES * machine.threads // outer) if machine.threads > 1 and isinstance(outer, int) else 1
    most = -(-rows // max(pieces, -(-rows * row // (machine.l1_bytes // 4))))
    even = next((count for count in range(most, most // 2, -1) if rows % count == 0), most)
    return _in_strips(group, machine, shape, len(shape) - 1, even)


def at_root(group: Group, nest: Nest) -> Stmt:
    """One nest after the other, intermediate results in memory that all threads see."""
    first, *others = map(nest, group.nests)
    body = seq(first, *(part for other in others for part in (Barrier(), other)))
    memory = {s.buffer: Buffer(s.buffer.name, s.buffer.shape, s.buffer.dtype, "global") for s in group.stages}
    return with_memory(memory.values(), redirect(body, memory))


# --- row by row: softmax, normalizations and their like, rows in parallel, no barrier ------------------------------


def by_rows(group: Group, machine: MachineModel) -> Stmt | Declined:
    """All stages of one row after the other, or of a few together; of many short rows at once, a lane for each."""
    rank = _rank_of_rows(group)
    if rank == 0:
        return Declined("row by row: the stages share no leading axes at which they read each other unchanged")
    shape = group.outputs[0].buffer.shape[:rank]
    first, most = _side_by_side(group, rank), _AT_ONCE
    if first is None:
        first, most = 0, _together(group, rank, machine)
        if most == 1:
            return _one_by_one(group, machine, shape)
        group = _reduced_first(group, rank)
    many = math.prod(shape[first:])
    most = min(many, most) if isinstance(many, int) else most
    decide("schedule", group.outputs[0].buffer.name, f"{most} rows side by side")
    return _in_strips(group, machine, shape, first, most)


def _one_by_one(group: Group, machine: MachineModel, shape: tuple[int, ...]) -> Stmt:
    if all(isinstance(extent, int) for extent in shape):
        code = LoopBuilder()
        with parallel(code, shape, name="row") as row:
            code.emit(_stages(group, machine, row))
        return code.stmt
    axes, wanted = [(LoopVar("row"), extent) for extent in shape], _PIECES * machine.threads
    enough = (d for d in range(len(axes)) if math.prod(map(usual, shape[:d])) >= wanted)
    at = next(enough, len(axes))
    body = _stages(group, machine, tuple(var for var, _ in axes))
    return in_pieces(axes[:at], nested(axes[at:], body), "row", wanted)


def _in_strips(group: Group, machine: MachineModel, shape: tuple[int, ...], first: int, most: int) -> Stmt:
    """Each stage for ``most`` rows at a time, neighbours along the axes from ``first`` on."""

    code, lane = LoopBuilder(), LoopVar("row")
    extents = math.prod(shape[:first]), math.prod(shape[first:])
    for flat, start, count in in_strips(code, *extents, most, LoopKind.PARALLEL):
        at = (*unflatten(flat, shape[:first]), *unflatten(start + lane, shape[first:]))
        code.emit(_stages(group, machine, at, ((lane, count),)))
    return code.stmt


def _stages(group: Group, machine: MachineModel, at: tuple[LoopExpr, ...], lanes: Axes = ()) -> Stmt:
    """All stages of the row at an index, or of the rows at all values of ``lanes``, which is in the index."""
    rank, extents = len(at), tuple(extent for _, extent in lanes)
    rows = {out.buffer: row_buffer(out.buffer, rank, extents) for out in group.nests}
    results = {rows[out.buffer]: out.buffer for out in group.outputs}
    nests = [stage_nest(row_of(out, rows, at, lanes), machine, parallel=False) for out in group.nests]
    body = with_memory([rows[s.buffer] for s in group.stages], seq(*nests))

    def whole(index: tuple[LoopExpr, ...]) -> tuple[LoopExpr, ...]:
        moved = dict(zip((var for var, _ in lanes), index, strict=False))
        return (*(substitute_vars(i, moved) for i in at), *index[len(lanes) :])

    return redirect(body, results, whole)


def _together(group: Group, rank: int, machine: MachineModel) -> int:
    """How many rows are made together, where each is reduced to numbers that more is computed of: in lanes then, while
    one row by itself would wait for each of these chains.  As many as half of the first-level cache holds, where rows
    are as long as in the first run; 1 where that is less than :data:`_FEWEST_TOGETHER`."""
    shape = group.outputs[0].buffer.shape[:rank]
    found = [reduce for out in group.stages if len(out.axes) == rank for reduce in outer_reductions(out.value)]
    extents = [*shape, *(n for out in group.nests for n in out.buffer.shape), *(n for r in found for _, n in r.axes)]
    if not found or not all(_usual(n) for n in extents):
        return 1
    kept = sum(_usual_bytes(out.buffer.shape[rank:], out.buffer.dtype) for out in group.nests)
    read = max(_usual_bytes([n for _, n in reduce.axes], reduce.dtype) for reduce in found)
    far = any(_usual_bytes(out.buffer.shape, out.buffer.dtype) > machine.l2_bytes for out in group.outputs)
    many, most = math.prod(shape), machine.l1_bytes // 2 // (kept + read)
    most = min(most, _TOGETHER_FAR if far else _TOGETHER)
    if not isinstance(many, int):
        return most if most >= _FEWEST_TOGETHER else 1
    if machine.threads > 1:
        most = min(most, many // (_PIECES * machine.threads))
    even = (count for count in range(most, max(most // 2, _FEWEST_TOGETHER - 1), -1) if many % count == 0)
    return next(even, most if most >= _FEWEST_TOGETHER else 1)


def _usual(extent: Dim) -> int:
    """What it is in the first run, where only a run knows; 0 where nothing is known of it."""
    return extent if isinstance(extent, int) else sampled(extent) or 0


def _usual_bytes(shape: Sequence[Dim], dtype: str) -> int:
    return math.prod(map(_usual, shape)) * np.dtype(dtype).itemsize


def _reduced_first(group: Group, rank: int) -> Group:
    """With what a row is reduced to in memory before anything else is computed of it."""

    def parts(out: Output) -> list[Output]:
        found = outer_reductions(out.value)
        if len(out.axes) != rank or len(found) != 1 or found[0] is out.value:
            return [out]
        total = Buffer("total", out.buffer.shape, found[0].dtype)
        value = map_expr(out.value, lambda node: total[out.axes] if node is found[0] else node)
        return [Output(total, out.axes, found[0]), Output(out.buffer, out.axes, value)]

    return Group(group.params, tuple(part for out in group.stages for part in parts(out)), group.outputs)


def _side_by_side(group: Group, rank: int) -> int | None:
    """The first of the shared axes, at best of all of them, that make one whose neighbours can be lanes: each reduces
    a few elements of its own, and reads what is a few elements from what the next one reads."""
    shape, reducing = group.outputs[0].buffer.shape[:rank], [o for o in group.nests if outer_reductions(o.value)]
    found = [reduce for out in reducing for reduce in outer_reductions(out.value)]
    short = all(isinstance(n, int) and n <= MOST_APART for reduce in found for _, n in reduce.axes)
    if not found or not short or any(math.prod(out.buffer.shape[rank:]) != 1 for out in reducing):
        return None
    long = (d for d in range(rank) if usual(math.prod(shape[d:])) >= FEWEST_LANES)
    return next((d for d in long if _apart(group, rank, d)), None)


def _apart(group: Group, rank: int, first: int) -> bool:
    """True if what neighbours along the axes from ``first`` on read is always equally far apart, and near."""
    var, shape = LoopVar("row"), group.outputs[0].buffer.shape
    kept = {out.buffer for out in group.nests}
    for out in group.nests:
        index = (*out.axes[:first], *unflatten(var, shape[first:rank]))
        value = substitute_vars(out.value, dict(zip(out.axes[:rank], index, strict=True)))
        strides = [stride_along(x.buffer, x.index, var) for x in loads(value) if x.buffer not in kept]
        if not all(stride is not None and 0 <= stride <= MOST_APART for stride in strides):
            return False
    return True


def common_rank(group: Group) -> int:
    """The number of leading axes that all stages have in common, and read each other at unchanged."""
    kept = {s.buffer for s in group.stages}
    first, *others = (o.buffer.shape for o in group.nests)
    rank = next(d for d in range(len(first), -1, -1) if all(other[:d] == first[:d] for other in others))
    for output in group.nests:
        for load in loads(output.value):
            while load.buffer in kept and load.index[:rank] != output.axes[:rank]:
                rank -= 1
    return rank


def _rank_of_rows(group: Group) -> int:
    """One less where a row would be one element, and neighbours can be lanes."""
    rank = common_rank(group)
    scalars = all(len(o.axes) == rank > 0 and o.buffer.shape[-1] != 1 for o in group.nests)
    return rank - 1 if scalars and all(vectorizes(o.value, o.axes[-1]) for o in group.nests) else rank


def row_buffer(buffer: Buffer, rank: int, lanes: tuple[int, ...] = ()) -> Buffer:
    row = Buffer(buffer.name, (*lanes, *buffer.shape[rank:]), buffer.dtype)
    return replace(row, scope="local" if row.fits(CPU.stack_bytes) else "shared")


def row_of(out: Output, rows: Mapping[Buffer, Buffer], at: tuple[LoopExpr, ...], lanes: Axes = ()) -> Output:
    """One row of a stage or a result, over rows of the others; or rows side by side."""
    rank, beside = len(at), tuple(var for var, _ in lanes)
    value = substitute_vars(out.value, dict(zip(out.axes[:rank], at, strict=True)))
    value = redirect_loads(value, rows, lambda index: (*beside, *index[rank:]))
    return Output(rows[out.buffer], (*beside, *out.axes[rank:]), value)


# --- windows over rows and columns: first down the rows, for every column once, then along each row -----------------
# A maximum over 7 x 7 elements is one over 7 of those over 7; neighbouring windows share the inner ones.


def _separated(out: Output) -> tuple[Output, Output] | None:
    """What is reduced down the rows as a stage of its own, and the result with a reduction of that along a row.

    ``None`` where it is no reduction over a window of two axes or more, that moves along the last axis.
    """
    found, axes, shape = outer_reductions(out.value), out.axes, out.buffer.shape
    if not axes or 0 in shape or len(found) != 1 or len(found[0].axes) == 1 or outer_reductions(found[0].value):
        return None
    reduce, step = found[0], _step(found[0], axes[-1])
    if not step or not isinstance(shape[-1], int):
        return None
    *rows, (tap, taps) = reduce.axes
    sticks_out = any(isinstance(node, Select) for node in walk_exprs(reduce.value))
    if taps < _SHORTEST - (step > 1 and sticks_out):
        return None
    column, columns = LoopVar("column"), (shape[-1] - 1) * step + taps
    element = map_expr(substitute_vars(reduce.value, {tap: column - axes[-1] * step}), _cancelled)
    if depends_on(element, axes[-1]):
        return None
    down = Reduce(reduce.kind, tuple(rows), element)
    stage = Buffer("down", (*shape[:-1], columns), down.dtype)
    along = Reduce(reduce.kind, ((tap, taps),), Load(stage, (*axes[:-1], axes[-1] * step + tap)))
    value = map_expr(out.value, lambda node: along if node is reduce else node)
    return Output(stage, (*axes[:-1], column), down), Output(out.buffer, axes, value)


def _cancelled(node: LoopExpr) -> LoopExpr:
    """A sum of indices with every variable in it once, or not at all."""
    is_sum = isinstance(node, Binary) and node.op in ("add", "sub") and node.dtype == "int64"
    return affine(node).to_expr() if is_sum else node


def _step(reduce: Reduce, last: LoopVar) -> int:
    """Columns from one window to the next; 0 where the last axis moves no window."""
    forms = [affine(index).terms for load in loads(reduce.value) for index in load.index]
    steps = {form.get(last, 0) for form in forms if form.get(reduce.axes[-1][0]) == 1}
    return steps.pop() if len(steps) == 1 else 0
