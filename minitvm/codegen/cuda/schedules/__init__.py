"""Schedules of GPUs for what no template writes: nests bound to blocks and threads.

Elements by threads, transposes by tiles (``elements.py``); reductions (``reductions.py``); all stages of a row by a
team of threads (``teams.py``); recurrent layers (``recurrent.py``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import minitvm.codegen.cuda.schedules.recurrent
import minitvm.codegen.cuda.schedules.scans
import minitvm.codegen.cuda.schedules.scatter
import minitvm.codegen.cuda.schedules.selection
import minitvm.codegen.cuda.schedules.sorting
import minitvm.codegen.cuda.schedules.suppression  # noqa: F401  (registers the templates)
from minitvm.codegen.cuda.machine import GpuModel
from minitvm.codegen.cuda.schedules.elements import elements
from minitvm.codegen.cuda.schedules.reductions import reduction
from minitvm.codegen.cuda.schedules.teams import STATIC_SHARED, Team, by_teams, shared_bytes
from minitvm.codegen.loops import redirect, with_memory
from minitvm.codegen.rows import NESTS, Nests, common_rank
from minitvm.codegen.stages import Group, Output
from minitvm.ir.decision import Declined, decide
from minitvm.ir.loop import Barrier, Buffer, Load, LoopExpr, Seq, Stmt, map_expr, seq
from minitvm.ir.loop.affine import loads
from minitvm.ir.op import outer_reductions
from minitvm.target import MachineModel

_LONGEST = 1 << 13
"""Elements of a row, beyond which a few rows leave too much of a GPU idle."""


def nest(out: Output, machine: MachineModel) -> Stmt:
    """One result by itself."""
    assert isinstance(machine, GpuModel)
    if 0 in out.buffer.shape:
        return Seq(())
    return reduction(out, machine) if outer_reductions(out.value) else elements([out], machine)


def nests(group: Group, name: str, machine: MachineModel) -> Stmt:
    """All stages of a row by a team of threads, or else one nest after the other."""
    assert isinstance(machine, GpuModel)
    if not group.stages:
        return _results(group.outputs, machine)
    group = _aligned(group)
    team = _team(group, machine)
    decide("schedule", name, team if isinstance(team, Declined) else f"row by row, {team[1]}")
    return _in_launches(group, machine) if isinstance(team, Declined) else by_teams(group, *team)


def _results(outs: Sequence[Output], machine: GpuModel) -> Stmt:
    """Results that do not read each other; of one shape and without reductions, element by element all at once."""
    shape, several = outs[0].buffer.shape, len(outs) > 1 and 0 not in outs[0].buffer.shape
    if several and all(out.buffer.shape == shape and not outer_reductions(out.value) for out in outs):
        return elements(outs, machine)
    return seq(*(nest(out, machine) for out in outs))


def _aligned(group: Group) -> Group:
    """Stages read at a nest's own axes also where those have one element, at which 0 is all there is."""
    kept = {s.buffer for s in group.stages}

    def at_own(out: Output) -> Output:
        def visit(node: LoopExpr) -> LoopExpr:
            if not isinstance(node, Load) or node.buffer not in kept:
                return node
            pairs = zip(node.buffer.shape, out.buffer.shape, strict=False)
            read = zip(node.index, out.axes, pairs, strict=False)
            index = tuple(axis if a == b == 1 else i for i, axis, (a, b) in read)
            return Load(node.buffer, (*index, *node.index[len(index) :]))

        return Output(out.buffer, out.axes, map_expr(out.value, visit))

    return Group(group.params, tuple(map(at_own, group.stages)), tuple(map(at_own, group.outputs)))


def _team(group: Group, machine: GpuModel) -> tuple[int, Team] | Declined:
    """How many leading axes are rows, and who takes one."""
    if any(0 in out.buffer.shape for out in group.nests):
        return Declined("row by row: there are no elements")
    rank, shape = common_rank(group), group.outputs[0].buffer.shape
    rows = math.prod(shape[:rank])
    work = max(_work(out, rank) for out in group.nests)
    if work > _LONGEST and rows < machine.sms // 4:
        return Declined(f"row by row: {rows} rows of {work} elements leave most of the GPU idle")
    team = Team.of(rows, work, machine)
    taken = shared_bytes(group, rank, team)
    if taken > STATIC_SHARED:
        return Declined(f"row by row: {taken} bytes of shared memory")
    return rank, team


def _work(out: Output, rank: int) -> int:
    """Elements of a row that one after the other asks for: of the result, or of a reduction."""
    inner = [math.prod(n for _, n in reduce.axes) for reduce in outer_reductions(out.value)]
    return max([math.prod(out.buffer.shape[rank:]), *inner])


def _in_launches(group: Group, machine: GpuModel) -> Stmt:
    """One nest after the other; a new launch where one reads what another one stored since the last."""
    parts: list[Stmt] = []
    fresh: set[Buffer] = set()
    for out in group.nests:
        if fresh & {load.buffer for load in loads(out.value)}:
            parts.append(Barrier())
            fresh = set()
        parts.append(nest(out, machine))
        fresh.add(out.buffer)
    memory = {s.buffer: Buffer(s.buffer.name, s.buffer.shape, s.buffer.dtype) for s in group.stages}
    return with_memory(memory.values(), redirect(seq(*parts), memory))


NESTS["cuda"] = Nests(nests, nest)
