"""A group from its operators' compute rules: in plain loops, which schedules start from, or by default schedules."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from minitvm.codegen.default_schedule import stage_nest
from minitvm.codegen.loops import in_parallel, nested, redirect, redirect_loads, with_memory
from minitvm.codegen.stages import (
    Inliner,
    Output,
    collapse,
    compose,
    flatten,
    outputs_of,
    parameter_buffers,
    stage_order,
    stages_to_keep,
)
from minitvm.codegen.walks import Walk, outer_reductions
from minitvm.ir.decision import Declined, decide
from minitvm.ir.expr import Function
from minitvm.ir.loop import (
    Barrier,
    Binary,
    Buffer,
    Kernel,
    Load,
    LoopExpr,
    LoopVar,
    Reduce,
    Select,
    Stmt,
    map_expr,
    seq,
    substitute_vars,
    walk_exprs,
)
from minitvm.ir.loop.affine import affine, depends_on, loads, vectorizes
from minitvm.ir.visitor import calls, span_of
from minitvm.target import MachineModel

_SHORTEST = 4
"""Columns of a window, below which it is not worth a row in memory; one less where windows are apart and stick out:
those at the edges would be computed one by one."""
_STACK_BYTES = 16 * 1024  # larger row buffers live in the workspace, one per thread


@dataclass(frozen=True)
class _Group:
    """Parameters, the stages that are kept in memory, each over memory of the ones before it, and the results."""

    params: tuple[Buffer, ...]
    stages: tuple[Output, ...]
    outputs: tuple[Output, ...]


def _group(function: Function) -> _Group:
    params = parameter_buffers(function)
    values = compose(function, params, {})
    results = flatten(values[function.body])
    kept = stages_to_keep(stage_order(results), results)
    inliner = Inliner(kept)
    stages = [Output(stage, stage.axes, inliner.inline(stage.value)) for stage in kept]
    return _Group(tuple(params), tuple(stages), tuple(outputs_of(function, values, kept)))


def plain(function: Function, name: str) -> Kernel:
    """One nest for each stage that is kept, one for each result, element by element: nothing is scheduled."""
    group = _group(function)

    def elements(out: Output) -> Stmt:
        walk = Walk.over(out.buffer, out.axes, out.value)
        return nested(walk.loops, walk.element())

    return _kernel(name, function, group, _at_root(group.stages, group.outputs, elements))


def scheduled(function: Function, name: str, machine: MachineModel) -> Kernel:
    """By default schedules: all stages row by row, or else one nest after the other."""
    group = _group(function)
    if not group.stages and len(group.outputs) == 1:
        params, out = collapse(group.params, group.outputs[0])
        return _kernel(name, function, _Group(params, (), (out,)), _single(out, machine))
    by_rows = _by_rows(group.stages, group.outputs, machine)
    decide("schedule", name, by_rows if isinstance(by_rows, Declined) else "row by row, rows in parallel")
    if isinstance(by_rows, Declined):
        by_rows = _at_root(group.stages, group.outputs, partial(_nest, machine=machine))
    return _kernel(name, function, group, by_rows)


def _kernel(name: str, function: Function, group: _Group, body: Stmt) -> Kernel:
    results = tuple(out.buffer for out in group.outputs)
    return Kernel(name, (*group.params, *results), body, len(results), span_of(*calls(function.body)))


def _nest(out: Output, machine: MachineModel) -> Stmt:
    return stage_nest(out.buffer, out.axes, out.value, machine)


def _single(out: Output, machine: MachineModel) -> Stmt:
    """One nest, or two for every row where windows are separable."""
    found = _separated(out)
    if found is not None:
        down, along = found
        body = _by_rows((down,), (along,), machine)
        if not isinstance(body, Declined):
            decide("schedule", out.buffer.name, "windows first down the rows, then along each row")
            return body
    return _nest(out, machine)


def _at_root(stages: Sequence[Output], outputs: Sequence[Output], nest: Callable[[Output], Stmt]) -> Stmt:
    """One nest after the other, intermediate results in memory that all threads see."""
    first, *others = (nest(out) for out in (*stages, *outputs))
    body = seq(first, *(part for other in others for part in (Barrier(), other)))
    memory = {s.buffer: Buffer(s.buffer.name, s.buffer.shape, s.buffer.dtype, "global") for s in stages}
    return with_memory(memory.values(), redirect(body, memory))


# --- row by row: softmax, normalizations and their like, rows in parallel, no barrier ------------------------------


def _by_rows(stages: Sequence[Output], outputs: Sequence[Output], machine: MachineModel) -> Stmt | Declined:
    """All stages of one row after the other."""
    rank = _common_rank(stages, outputs)
    if rank == 0:
        return Declined("row by row: the stages share no leading axes at which they read each other unchanged")
    rows = {s.buffer: _row_buffer(s.buffer, rank) for s in stages}

    def row(*at: LoopExpr) -> Stmt:
        nests = [_row(out, rows, at, machine) for out in (*stages, *outputs)]
        return with_memory(rows.values(), seq(*nests))

    return in_parallel(outputs[0].buffer.shape[:rank], row, name="row")


def _common_rank(stages: Sequence[Output], outputs: Sequence[Output]) -> int:
    """How many leading axes all stages have in common, and read each other at unchanged."""
    everything = (*stages, *outputs)
    kept = {s.buffer for s in stages}
    rank = min(len(o.buffer.shape) for o in everything)
    while rank and any(o.buffer.shape[:rank] != outputs[0].buffer.shape[:rank] for o in everything):
        rank -= 1
    for output in everything:
        for load in loads(output.value):
            while load.buffer in kept and load.index[:rank] != output.axes[:rank]:
                rank -= 1
    return rank - 1 if all(_in_lanes(o, rank) for o in everything) else rank


def _in_lanes(output: Output, rank: int) -> bool:
    """Whether single elements are left of a stage, and neighbouring ones read neighbouring memory."""
    scalar = len(output.axes) == rank > 0 and output.buffer.shape[-1] > 1
    return scalar and vectorizes(output.value, output.axes[-1])


def _row_buffer(buffer: Buffer, rank: int) -> Buffer:
    shape = buffer.shape[rank:]
    nbytes = math.prod(shape) * np.dtype(buffer.dtype).itemsize
    return Buffer(buffer.name, shape, buffer.dtype, "local" if nbytes <= _STACK_BYTES else "shared")


def _row(out: Output, rows: dict[Buffer, Buffer], at: tuple[LoopExpr, ...], machine: MachineModel) -> Stmt:
    """One row of a stage, into its row's memory, or of a result."""
    rank, whole = len(at), out.buffer
    value = substitute_vars(out.value, dict(zip(out.axes[:rank], at, strict=True)))
    value = redirect_loads(value, rows, lambda index: index[rank:])
    if whole in rows:
        return stage_nest(rows[whole], out.axes[rank:], value, machine, parallel=False)
    row = Buffer(whole.name, whole.shape[rank:], whole.dtype)
    nest = stage_nest(row, out.axes[rank:], value, machine, parallel=False)
    return redirect(nest, {row: whole}, lambda index: (*at, *index))


# --- windows over rows and columns: first down the rows, for every column once, then along each row -----------------
# A maximum over 7 x 7 elements is one over 7 of those over 7; neighbouring windows share the inner ones.


def _separated(out: Output) -> tuple[Output, Output] | None:
    """What is reduced down the rows as a stage of its own, and the result with a reduction of that along a row.

    ``None`` where it is no reduction over a window of two axes or more, that moves along the last axis.
    """
    reduce, axes, shape = _windows(out.value), out.axes, out.buffer.shape
    step = _step(reduce, axes[-1]) if reduce is not None and axes else 0
    if reduce is None or not step or 0 in shape:
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


def _windows(value: LoopExpr) -> Reduce | None:
    found = outer_reductions(value)
    flat = len(found) == 1 and len(found[0].axes) > 1 and not outer_reductions(found[0].value)
    return found[0] if flat else None


def _step(reduce: Reduce, last: LoopVar) -> int:
    """Columns from one window to the next; 0 where the last axis moves no window."""
    forms = [affine(index).terms for load in loads(reduce.value) for index in load.index]
    steps = {form.get(last, 0) for form in forms if form.get(reduce.axes[-1][0]) == 1}
    return steps.pop() if len(steps) == 1 else 0
