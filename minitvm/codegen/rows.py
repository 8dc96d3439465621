"""Softmax, normalizations and their like: all stages of one row after the other, rows in parallel, no barrier."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from minitvm.codegen.default_schedule import stage_nest
from minitvm.codegen.loops import unflatten
from minitvm.codegen.rewrite import redirect, redirect_loads
from minitvm.codegen.stages import Output
from minitvm.ir.decision import Declined
from minitvm.ir.loop import (
    Alloc,
    Buffer,
    Load,
    LoopExpr,
    LoopKind,
    Stmt,
    loop,
    seq,
    substitute_vars,
    walk_exprs,
)
from minitvm.ir.loop.affine import vectorizes
from minitvm.target import MachineModel

_STACK_BYTES = 16 * 1024  # larger row buffers live in the workspace, one per thread


def lower_by_rows(stages: Sequence[Output], outputs: Sequence[Output], machine: MachineModel) -> Stmt | Declined:
    """All stages of one row after the other."""
    rank = _common_rank(stages, outputs)
    if rank == 0:
        return Declined("row by row: the stages share no leading axes at which they read each other unchanged")
    shape = outputs[0].buffer.shape[:rank]
    rows = {s.buffer: _row_buffer(s.buffer, rank) for s in stages}
    return loop(
        math.prod(shape),
        lambda flat: _row(unflatten(flat, shape), rank, stages, outputs, rows, machine),
        LoopKind.PARALLEL,
        name="row",
    )


def _common_rank(stages: Sequence[Output], outputs: Sequence[Output]) -> int:
    """How many leading axes all stages have in common, and read each other at unchanged."""
    everything = (*stages, *outputs)
    kept = {s.buffer for s in stages}
    rank = min(len(o.buffer.shape) for o in everything)
    while rank and any(o.buffer.shape[:rank] != outputs[0].buffer.shape[:rank] for o in everything):
        rank -= 1
    for output in everything:
        for node in walk_exprs(output.value):
            if isinstance(node, Load) and node.buffer in kept:
                while node.index[:rank] != output.axes[:rank]:
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


def _row(
    prefix: tuple[LoopExpr, ...],
    rank: int,
    stages: Sequence[Output],
    outputs: Sequence[Output],
    rows: dict[Buffer, Buffer],
    machine: MachineModel,
) -> Stmt:
    def in_row(output: Output) -> LoopExpr:
        at = substitute_vars(output.value, dict(zip(output.axes[:rank], prefix, strict=True)))
        return redirect_loads(at, rows, lambda index: index[rank:])

    stmts = [stage_nest(rows[s.buffer], s.axes[rank:], in_row(s), machine, parallel=False) for s in stages]
    for output in outputs:
        row = Buffer(output.buffer.name, output.buffer.shape[rank:], output.buffer.dtype)
        nest = stage_nest(row, output.axes[rank:], in_row(output), machine, parallel=False)
        stmts.append(redirect(nest, {row: output.buffer}, lambda index: (*prefix, *index)))
    body: Stmt = seq(*stmts)
    for buffer in reversed(list(rows.values())):
        body = Alloc(buffer, body)
    return body
