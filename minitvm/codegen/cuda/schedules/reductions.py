"""Reductions of one result: by teams along what is reduced, by threads along the result, or a thread for each result.

Where results are too few to occupy a GPU and each sums much, the sum goes in parts: one launch for the parts of all
results, another one that adds them up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from minitvm.codegen.cuda.machine import WARP, GpuModel
from minitvm.codegen.cuda.schedules.elements import BUSY, in_block, in_threads
from minitvm.codegen.cuda.schedules.teams import SHORT, Team, by_teams, rounded
from minitvm.codegen.loops import unflatten, with_memory
from minitvm.codegen.stages import Group, Output
from minitvm.codegen.walks import COMBINE, MOST_APART, combined, element
from minitvm.ir.decision import decide
from minitvm.ir.loop import (
    Barrier,
    Buffer,
    Load,
    LoopExpr,
    LoopKind,
    LoopVar,
    Reduce,
    Select,
    Stmt,
    Store,
    binary,
    map_expr,
    minimum,
    seq,
    substitute_vars,
)
from minitvm.ir.loop.affine import loads, stride_along
from minitvm.ir.loop.builder import LoopBuilder
from minitvm.ir.op import identity_of, outer_reductions

_PART = 4096
"""Elements that are worth a part of their own."""


def reduction(out: Output, machine: GpuModel) -> Stmt:
    """A result with reductions in it."""
    along, found = _neighbours(out), outer_reductions(out.value)
    parts = _parts(out.buffer.size, _work(found), along[0], machine) if len(found) == 1 and any(along) else 1
    if parts == 1:
        return _at_once(out, along, machine)
    decide("schedule", out.buffer.name, f"reduced in {parts} parts, which a second launch combines")
    stage, last = _in_parts(out, found[0], parts)
    first, second = _at_once(stage, along, machine), _at_once(last, _neighbours(last), machine)
    return with_memory([stage.buffer], seq(first, Barrier(), second))


def _work(found: Sequence[Reduce]) -> int:
    return max(math.prod(extent for _, extent in reduce.axes) for reduce in found)


def _neighbours(out: Output) -> tuple[bool, bool]:
    """Whether elements that lie beside each other are read along the result; along what is reduced."""
    found = outer_reductions(out.value)
    return _along_result(out, found), _along_reduced(found)


def _at_once(out: Output, along: tuple[bool, bool], machine: GpuModel) -> Stmt:
    """By one launch, neighbouring threads along the result, or along what is reduced."""
    results, found, (by_columns, by_rows) = out.buffer.size, outer_reductions(out.value), along
    work = _work(found)
    if work < SHORT or not (by_columns or by_rows) or (by_columns and results >= BUSY * machine.sms):
        decide("schedule", out.buffer.name, "a thread reduces for each result")
        return in_threads(results, lambda number: _result(out, number))
    if by_columns and len(found) == 1:
        return _columns(out, found[0], work, machine)
    team = Team.of(results, work, machine)
    decide("schedule", out.buffer.name, f"reduced by {team}")
    return by_teams(Group((), (), (out,)), len(out.axes), team)


def _along_result(out: Output, found: Sequence[Reduce]) -> bool:
    """True if neighbouring results read neighbouring elements."""
    last = next((axis for axis, n in zip(reversed(out.axes), reversed(out.buffer.shape), strict=True) if n > 1), None)
    read = [load for reduce in found for load in loads(reduce.value)]
    strides = [stride_along(load.buffer, load.index, last) for load in read] if last is not None else []
    return any(strides) and all(stride is not None and 0 <= stride <= MOST_APART for stride in strides)


def _along_reduced(found: Sequence[Reduce]) -> bool:
    """True if a reduction reads neighbouring elements one after the other."""
    pairs = [(load, reduce.axes[-1][0]) for reduce in found for load in loads(reduce.value)]
    return all(stride_along(load.buffer, load.index, last) in (0, 1) for load, last in pairs)


def _result(out: Output, number: LoopExpr) -> Stmt:
    at = unflatten(number, out.buffer.shape)
    value = substitute_vars(out.value, dict(zip(out.axes, at, strict=True)))
    return element(value, lambda done: Store(out.buffer, at, done))


# --- in parts -------------------------------------------------------------------------------------------------


def _parts(results: int, work: int, by_columns: bool, machine: GpuModel) -> int:
    """In how many parts each result is reduced, of one length where about so many divide it."""
    beside = min(results, WARP) if by_columns else 1
    blocks, shortest = results / beside, _PART // beside
    wanted = min(math.ceil(2 * machine.sms / blocks), work // shortest)
    if blocks >= machine.sms // 2 or wanted < 2:
        return 1
    return next((parts for parts in range(wanted, 2 * wanted) if work % parts == 0), wanted)


def _in_parts(out: Output, reduce: Reduce, parts: int) -> tuple[Output, Output]:
    """A stage with the parts of every result, and the result made of them."""
    extents = [extent for _, extent in reduce.axes]
    work = math.prod(extents)
    length = -(-work // parts)
    part, at, each = LoopVar("part"), LoopVar("r"), LoopVar("s")
    number = part * length + at
    inside = minimum(number, work - 1) if length * parts > work else number
    values = dict(zip((var for var, _ in reduce.axes), unflatten(inside, extents), strict=True))
    value = substitute_vars(reduce.value, values)
    if length * parts > work:
        value = Select(number < work, value, identity_of(reduce.kind, reduce.dtype))
    axes = tuple(LoopVar(axis.name) for axis in out.axes)
    value = substitute_vars(value, dict(zip(out.axes, axes, strict=True)))
    memory = Buffer("partial", (parts, *out.buffer.shape), reduce.dtype)
    stage = Output(memory, (part, *axes), Reduce(reduce.kind, ((at, length),), value))
    kind = "sum" if reduce.kind == "dot" else reduce.kind
    whole = Reduce(kind, ((each, parts),), Load(memory, (each, *out.axes)))
    return stage, Output(out.buffer, out.axes, map_expr(out.value, lambda node: whole if node is reduce else node))


# --- along the result -----------------------------------------------------------------------------------------


def _columns(out: Output, reduce: Reduce, work: int, machine: GpuModel) -> Stmt:
    """Neighbouring threads for neighbouring results; rows of threads take rows in turn, and their sums are combined."""
    results = out.buffer.size
    down = min(WARP, rounded(-(-work // 8)), rounded(-(-BUSY * machine.sms // results)))
    decide("schedule", out.buffer.name, f"a thread of 32 for each result, {down} of them share it")
    parts, acc = Buffer("parts", (down, WARP), reduce.dtype, "shared"), Buffer("acc", (), reduce.dtype, "local")
    shared, code = [parts] if down > 1 else [], LoopBuilder()
    blocks = code.loop(-(-results // WARP), "block", LoopKind.BLOCK_X)
    with blocks as number, code.memory(*shared), in_block(code, down, WARP) as (y, x), code.memory(acc):
        column = number * WARP + x
        at = unflatten(minimum(column, results - 1) if results % WARP else column, out.buffer.shape)
        here = dict(zip(out.axes, at, strict=True))
        code.store(acc, (), identity_of(reduce.kind, reduce.dtype))
        with code.loop(-(-work // down)) as i:
            row = i * down + y
            with code.when(row < work if work % down else None):
                code.emit(_added(reduce, acc, here, row))
        if shared:
            code.store(parts, (y, x), acc[()])
            code.emit(Barrier())
        with code.where([*([y.equal(0)] if shared else []), *([column < results] if results % WARP else [])]):
            if shared:
                with code.loop(down - 1, "part") as i:
                    code.store(acc, (), binary(COMBINE[reduce.kind], acc[()], parts[i + 1, x]))
            value = map_expr(out.value, lambda node: acc[()] if node is reduce else node)
            code.store(out.buffer, at, substitute_vars(value, here))
    return code.stmt


def _added(reduce: Reduce, acc: Buffer, here: Mapping[LoopVar, LoopExpr], row: LoopExpr) -> Stmt:
    """One more element of a reduction, counted row-major over its axes."""
    index = unflatten(row, [extent for _, extent in reduce.axes])
    values = {**here, **dict(zip((v for v, _ in reduce.axes), index, strict=True))}
    return element(substitute_vars(reduce.value, values), lambda x: Store(acc, (), combined(reduce.kind, acc[()], x)))
