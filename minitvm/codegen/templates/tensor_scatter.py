"""Updates of a cache: a copy of what there is, unless it is there already, and the new places on top of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from minitvm.codegen.problem import TEMPLATES, Choice, Tile
from minitvm.codegen.schedule_loops import loops, parallel, vectorize
from minitvm.codegen.schedule_steps import Steps
from minitvm.codegen.scheduled import Scheduled
from minitvm.ir.decision import Declined, Exactness
from minitvm.ir.dims import larger
from minitvm.ir.dtypes import bits_of
from minitvm.ir.loop import Const, If, Kernel, Load, LoopExpr, Stmt, Store, as_index, const, intrin, loop, nest, seq
from minitvm.ir.ops.more.scatter import TensorScatter

Index: TypeAlias = "tuple[LoopExpr, ...]"


@TEMPLATES.register("llvm", TensorScatter)
class CacheUpdate(Scheduled):
    """Sequences and what else lies before the axis in parallel, what lies behind it in lanes.

    A caller who lets the result lie where the cache is (``runtime.direct``) pays for the new places alone.
    """

    op: TensorScatter
    exactness = Exactness.EXACT
    symbolic = True
    refers_to_results = True

    def refusal(self) -> Declined | None:
        return Declined("elements share bytes") if bits_of(self.problem.output.dtype) < 8 else None

    def choices(self) -> Sequence[Choice]:
        elements = math.prod(d for d in self.problem.output.shape if isinstance(d, int))
        return [Choice("places in order", Tile(1, 1), elements / self.lanes)]

    @property
    def axis(self) -> int:
        return self.op.axis % len(self.problem.output.shape)

    def plain(self) -> Stmt:
        data, updates, start = self.problem.inputs
        out, axis = self.problem.output, self.axis
        shape, extent, length = out.shape, out.shape[axis], updates.shape[axis]

        def each(place: LoopExpr, before: Index, value: Callable[[Index], LoopExpr]) -> Stmt:
            """For every element behind the axis."""
            return nest(shape[axis + 1 :], lambda *i: Store(out, (*before, place, *i), value(i)), names="lmnopq")

        def sequence(*loops: LoopExpr) -> Stmt:
            before = tuple(Const(0) if n == 1 else var for n, var in zip(shape, loops, strict=False))
            first = start[before[0]]

            def old(place: LoopExpr) -> Stmt:
                kept = each(place, before, lambda i: Load(data, (*before, place, *i)))
                cleared = each(place, before, lambda i: const(0, out.dtype))
                return If(place < first, kept, cleared) if self.op.clears else kept

            def new(k: LoopExpr) -> Stmt:
                place = first + k
                place = place % larger(extent, 1) if self.op.circular else place
                written = each(place, before, lambda i: Load(updates, (*before, k, *i)))
                return If((place >= 0) & (place < as_index(extent)), written)

            return seq(self._unless_there(loop(extent, old, name="place")), loop(length, new, name="k"))

        return nest(shape[:axis], sequence)

    def _unless_there(self, copy: Stmt) -> Stmt:
        data, out = self.problem.inputs[0], self.problem.output
        zeros = (Const(0),) * len(out.shape)
        return If(intrin("not", intrin("same_memory", data[zeros], out[zeros])), copy)

    def schedule(self, kernel: Kernel, choice: Choice) -> Steps:
        steps = Steps(kernel)
        sequences = [found.var for found in loops(steps.kernel)[: self.axis]]
        steps.do(parallel, *sequences)
        for found in loops(steps.kernel):
            if isinstance(found.body, Store) and self.axis + 1 < len(self.problem.output.shape):
                steps.do(vectorize, found.var)
        return steps
