"""Recurrences on GPUs: a block walks through a sequence, its states and gates in shared memory.

A step is that of the processors' templates (``codegen/templates/recurrent.py``): products of the weight with the
states, a warp for each, then elementwise gates, a thread for each hidden unit.  Where states are too many for a block,
the processors' loops are bound: a thread for each row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from minitvm.codegen.cuda.machine import WARP
from minitvm.codegen.cuda.schedules.elements import in_block
from minitvm.codegen.cuda.schedules.teams import STATIC_SHARED, Row, Team, rounded
from minitvm.codegen.problem import TEMPLATES, Choice, Template, Tile
from minitvm.codegen.templates.recurrent import Gates, Gru, Lstm, Recurrent, Rnn, Stores, Walk
from minitvm.ir.decision import Declined
from minitvm.ir.loop import Barrier, Buffer, Const, LoopExpr, LoopKind, LoopVar, Reduce, Stmt, minimum
from minitvm.ir.loop.builder import LoopBuilder

_MOST_WARPS = 32


class GpuRecurrent(Recurrent):
    """A block for each sequence of the batch."""

    @cached_property
    def warps(self) -> int:
        """The warps of a block; each has some of the products."""
        return min(_MOST_WARPS, rounded(-(-self.gates * self.hidden // 4)))

    def refusal(self) -> Declined | None:
        found = super().refusal()
        memory = self.memory("", (self.gates + self.first_state + 1) * self.hidden, 1)
        taken = None if memory.fits(STATIC_SHARED) else Declined(f"a sequence's states are {memory.nbytes} bytes")
        return found or taken

    def choices(self) -> Sequence[Choice]:
        return [Choice("a block for a sequence", Tile(1, self.warps), 0.0)]

    def loops(self, choice: Choice) -> Stmt:
        code = LoopBuilder()
        with code.loop(self.xw.shape[1], "b", LoopKind.BLOCK_X) as b:
            _BlockWalk(code, self, choice, {}, b, 1).loops()
        return code.stmt


@dataclass(frozen=True)
class _BlockWalk(Walk):
    """One sequence, by the threads of a block; a barrier after everything that they share."""

    layer: GpuRecurrent

    def times(self, gates: Gates, state: Buffer, t: LoopExpr) -> None:
        layer, first, count = self.layer, gates[0] * self.layer.hidden, gates[1] * self.layer.hidden
        code, warps = self.code, layer.warps
        with in_block(code, warps, WARP) as (y, lane), code.loop(-(-count // warps)) as i:
            number, k = i * warps + y, LoopVar("k")
            column = first + (minimum(number, count - 1) if count % warps else number)
            weight = self.read(layer.problem.inputs[1], column, k)
            dot = Reduce("dot", ((k, layer.hidden),), state[0, k] * weight)
            asked = [lane.equal(0), *([number < count] if count % warps else [])]
            with Row(code, Team(WARP, warps), lane, [], {}).reduced(dot) as total, code.where(asked):
                code.store(self.gates, (Const(0), column), total)
        code.emit(Barrier())

    def units(self, element: Callable[[LoopExpr, LoopExpr, LoopExpr], Stores]) -> None:
        code, layer, together = self.code, self.layer, self.layer.warps * WARP
        with in_block(code, layer.warps, WARP) as (y, lane), code.loop(-(-layer.hidden // together)) as i:
            unit = (i * layer.warps + y) * WARP + lane
            with code.when(unit < layer.hidden if layer.hidden % together else None):
                for buffer, at, value in element(self.first, Const(0), unit):
                    code.store(buffer, at, value.astype(buffer.dtype))
        code.emit(Barrier())


class GpuLstm(GpuRecurrent, Lstm):
    """Gates i, o, f, c."""


class GpuGru(GpuRecurrent, Gru):
    """Gates z, r, h."""


class GpuRnn(GpuRecurrent, Rnn):
    """A recurrent layer without gates."""


def _register(theirs: type[Template], *ours: type[Template]) -> None:
    """For the operators of a processor's template: ours first, then that, whose loops are bound."""
    names = [name for (kind, name), makers in TEMPLATES.table.items() if kind == "llvm" and theirs in makers]
    for maker in (*ours, theirs):
        TEMPLATES.register("cuda", *names)(maker)


_register(Lstm, GpuLstm)
_register(Gru, GpuGru)
_register(Rnn, GpuRnn)
