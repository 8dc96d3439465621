"""Updates of a cache: a copy of what there is, unless it is there already, and the new places on top of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from minitvm.codegen.loops import unflatten
from minitvm.codegen.problem import TEMPLATES, Choice, Template, Tile
from minitvm.ir.decision import Declined, Exactness
from minitvm.ir.dims import larger, product
from minitvm.ir.dtypes import bits_of
from minitvm.ir.loop import Const, If, LoopExpr, LoopKind, Stmt, Store, as_index, const, intrin, loop, nest, seq
from minitvm.ir.ops.indexing import TensorScatter


@TEMPLATES.register("llvm", TensorScatter)
class CacheUpdate(Template):
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

    def loops(self, choice: Choice) -> Stmt:
        shape = self.problem.output.shape
        axis = self.op.axis % len(shape)
        outer, inner = shape[:axis], shape[axis + 1 :]
        data, updates, start = self.problem.inputs
        out, extent, length = self.problem.output, shape[axis], updates.shape[axis]

        def each(body: Callable[..., Stmt]) -> Stmt:
            """For every element behind the axis."""
            if not inner:
                return body()
            return nest(inner[:-1], lambda *i: loop(inner[-1], lambda lane: body(*i, lane), LoopKind.VECTORIZED))

        def sequence(row: LoopExpr) -> Stmt:
            before = unflatten(row, outer)
            first = start[(before[0],)]

            def at(place: LoopExpr, behind: tuple[LoopExpr, ...]) -> tuple[LoopExpr, ...]:
                return (*before, place, *behind)

            def kept(place: LoopExpr) -> Stmt:
                return each(lambda *i: Store(out, at(place, i), data[at(place, i)]))

            def cleared(place: LoopExpr) -> Stmt:
                return each(lambda *i: Store(out, at(place, i), const(0, out.dtype)))

            def old(place: LoopExpr) -> Stmt:
                return If(place < first, kept(place), cleared(place)) if self.op.clears else kept(place)

            def new(k: LoopExpr) -> Stmt:
                place = first + k
                place = place % larger(extent, 1) if self.op.circular else place
                written = each(lambda *i: Store(out, at(place, i), updates[at(k, i)]))
                return If((place >= 0) & (place < as_index(extent)), written)

            return seq(self._unless_there(loop(extent, old, name="place")), loop(length, new, name="k"))

        return loop(product(outer), sequence, LoopKind.PARALLEL, name="sequence")

    def _unless_there(self, copy: Stmt) -> Stmt:
        data, out = self.problem.inputs[0], self.problem.output
        zeros = (Const(0),) * len(out.shape)
        return If(intrin("not", intrin("same_memory", data[zeros], out[zeros])), copy)
