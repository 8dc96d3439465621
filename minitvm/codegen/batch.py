"""A batch that only a run knows, around loops made for one image: what templates with numbers in their tiles are for.

Work that each image needs is done for all of them: parallel loops get the batch as one more loop around, and memory
that threads share, such as the padded image, an image more in front.  What does not depend on an image, such as packed
weights, is done once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from minitvm.codegen.dependences import stored
from minitvm.codegen.loops import redirect
from minitvm.codegen.problem import Problem, Template
from minitvm.ir.decision import Declined
from minitvm.ir.dims import Dim, SymbolicDim
from minitvm.ir.loop import (
    Alloc,
    Barrier,
    Buffer,
    LoopExpr,
    LoopKind,
    Seq,
    Stmt,
    allocated,
    loop,
    seq,
    summary,
    walk_stmts,
)


@dataclass(frozen=True)
class Batch:
    """``one``: the problem for a single image.  ``targets``: by its buffer, the whole one and the axis of the batch."""

    extent: Dim
    one: Problem
    targets: Mapping[Buffer, tuple[Buffer, int]]

    @staticmethod
    def of(problem: Problem) -> Batch | None:
        """The batch of an operator that works image by image, where only a run knows how many images there are."""
        axes = problem.op.batch_axes()
        if axes is None:
            return None
        operands = [axis for _, axis in zip(problem.inputs, axes[0], strict=False)]
        buffers = dict(zip((*problem.inputs, *problem.outputs), (*operands, *axes[1]), strict=True))
        found = {buffer: axis for buffer, axis in buffers.items() if axis is not None}
        extents = {buffer.shape[axis] for buffer, axis in found.items()}
        if len(extents) > 1 or not isinstance(extent := extents.pop(), SymbolicDim):
            return None
        single = {b: replace(b, shape=(*b.shape[:a], 1, *b.shape[a + 1 :])) for b, a in found.items()}
        inputs, outputs = (tuple(single.get(b, b) for b in some) for some in (problem.inputs, problem.outputs))
        one = replace(problem, inputs=inputs, outputs=outputs)
        return Batch(extent, one, {single[b]: (b, axis) for b, axis in found.items()})

    def loops(self, body: Stmt) -> Stmt | Declined:
        """``body``, the loops for one image, for all of them over the whole buffers."""
        if any(isinstance(s, Barrier) for leaf in _leaves(body) for s in walk_stmts(leaf)):
            return Declined("an image's loops wait for each other inside of others")
        targets = dict(self.targets)
        shared = [buffer for buffer in allocated(body) if buffer.scope == "global"]
        while True:
            left = [b for b in shared if b not in targets]
            found = [b for b in left if any(_depends(leaf, b, targets) for leaf in _leaves(body))]
            if not found:
                return self._whole(body, targets)
            targets |= {b: (replace(b, shape=(self.extent, *b.shape)), -1) for b in found}  # type: ignore[arg-type]

    def _whole(self, stmt: Stmt, targets: Mapping[Buffer, tuple[Buffer, int]]) -> Stmt:
        match stmt:
            case Seq(stmts):
                return seq(*(self._whole(part, targets) for part in stmts))
            case Alloc(buffer, body) if buffer.scope == "global":
                return Alloc(targets.get(buffer, (buffer, 0))[0], self._whole(body, targets))
        used = {b: whole for b, whole in targets.items() if b in summary(stmt).mentions}
        return loop(self.extent, lambda n: _moved(stmt, used, n), LoopKind.PARALLEL, "image") if used else stmt


def batch_of(problem: Problem, maker: type[Template]) -> Batch | Declined | None:
    """What a template for numbers needs around it; ``None`` where it takes the problem as it is."""
    batch = Batch.of(problem)
    one = problem if batch is None else batch.one
    return batch if one.is_static or maker.symbolic else Declined("its loops are made for numbers")


def _moved(stmt: Stmt, targets: Mapping[Buffer, tuple[Buffer, int]], image: LoopExpr) -> Stmt:
    for one, (whole, axis) in targets.items():

        def at(index: tuple[LoopExpr, ...], axis: int = axis) -> tuple[LoopExpr, ...]:
            return (image, *index) if axis < 0 else (*index[:axis], image, *index[axis + 1 :])

        stmt = redirect(stmt, {one: whole}, at)
    return stmt


def _leaves(stmt: Stmt) -> Iterator[Stmt]:
    """What stands between barriers, around which another loop may go."""
    match stmt:
        case Seq(stmts):
            for part in stmts:
                yield from _leaves(part)
        case Alloc(buffer, body) if buffer.scope == "global":
            yield from _leaves(body)
        case _ if not isinstance(stmt, Barrier):
            yield stmt


def _depends(leaf: Stmt, buffer: Buffer, images: Mapping[Buffer, tuple[Buffer, int]]) -> bool:
    """True if what a statement stores to a buffer may be another thing for each image."""
    return buffer in stored(leaf) and not images.keys().isdisjoint(summary(leaf).mentions)
