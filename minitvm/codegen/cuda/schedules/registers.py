"""What stages of a row hand on in registers: a thread that meets the same elements in every stage keeps its own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from minitvm.codegen.cuda.schedules.elements import vector_width
from minitvm.codegen.stages import Output
from minitvm.ir.loop import Buffer, LoopExpr, LoopVar
from minitvm.ir.loop.affine import loads
from minitvm.ir.op import outer_reductions

WRITTEN_OUT = 8
"""Rounds of a loop, whose loads are then all on their way at once; places in registers have to be constants."""


class Pass(NamedTuple):
    """A way of a team through a row's elements: for results, or into a reduction."""

    axes: tuple[LoopVar, ...]
    shape: tuple[int, ...]
    value: LoopExpr
    out: Buffer

    def width(self, lanes: int) -> int:
        """Elements of a thread at once, as far as this pass goes."""
        if outer_reductions(self.value):
            return 1
        found = vector_width(self.value, self.out, self.axes[-1], self.shape[-1])
        return found if math.prod(self.shape) >= found * lanes else 1


def passes(out: Output) -> Iterator[Pass]:
    """Yields the passes of a nest: one over its elements, and one for each of its reductions."""
    if out.buffer.size > 1:
        yield Pass(out.axes, out.buffer.shape, out.value, out.buffer)
        return
    for reduce in outer_reductions(out.value):
        axes, shape = zip(*reduce.axes, strict=True)
        yield Pass(axes, shape, reduce.value, Buffer("parts", shape, reduce.dtype))


@dataclass(frozen=True)
class Held:
    """The registers that stand for each buffer of a row; by shape, the elements that a thread has at once."""

    registers: dict[Buffer, Buffer] = field(default_factory=dict)
    widths: dict[tuple[int, ...], int] = field(default_factory=dict)


def held(outs: Sequence[Output], stages: Sequence[Buffer], lanes: int) -> Held:
    """``outs``: the nests of a row, all passes over one shape in step; ``stages``: what they hand on."""
    found = Held()
    for made in (p for out in outs for p in passes(out)):
        found.widths[made.shape] = min(found.widths.get(made.shape, 16), made.width(lanes))
    for stage in stages:
        width = found.widths[stage.shape] if stage.size > 1 else 0
        rounds = -(-stage.size // (lanes * width)) if width else 0
        if 0 < rounds <= WRITTEN_OUT and all(_in_step(out, stage) for out in outs):
            found.registers[stage] = Buffer(stage.name, (rounds, width), stage.dtype, "local")
    return found


def _in_step(out: Output, stage: Buffer) -> bool:
    """True if a nest reads, and stores, each of the stage's elements where its pass is."""
    if out.buffer is stage and outer_reductions(out.value):
        return False
    own = {p.axes for p in passes(out) if p.shape == stage.shape and not outer_reductions(p.value)}
    return all(load.index in own for load in loads(out.value) if load.buffer is stage)
