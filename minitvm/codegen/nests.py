"""The default loop nest of one stage."""

from __future__ import annotations

from collections.abc import Sequence

from minitvm.codegen.affine import stride_along, vectorizes
from minitvm.codegen.reductions import reduction_nest
from minitvm.codegen.simplify import Range, simplify_expr
from minitvm.codegen.spread import lanes_of, spread
from minitvm.codegen.walks import Walk, square_of, squares_nest, walks
from minitvm.ir.loop import Buffer, LoopExpr, LoopVar, Reduce, Stmt, Store, seq, walk_exprs
from minitvm.target import MachineModel


def stage_nest(
    out: Buffer, axes: Sequence[LoopVar], value: LoopExpr, machine: MachineModel, parallel: bool = True
) -> Stmt:
    """Loops that store ``value`` to every element of ``out``; ``axes`` are the variables that ``value`` is over."""
    value = simplify_expr(value, _ranges(out, axes, value))
    if any(isinstance(node, Reduce) for node in walk_exprs(value)):
        return reduction_nest(out, axes, value, machine, parallel)
    return seq(*(_elementwise(walk, machine, parallel) for walk in walks(out, axes, value)))


def _elementwise(walk: Walk, machine: MachineModel, parallel: bool) -> Stmt:
    """In vectors along the innermost loop, in squares where it reads across, or one by one."""
    square = square_of(walk, machine)
    if square is not None:
        return squares_nest(square, parallel)
    variables = [var for var, _ in walk.loops]

    def element(position: Sequence[LoopExpr]) -> Stmt:
        index, value = walk.at(dict(zip(variables, position, strict=True)))
        return Store(walk.out, index, value)

    lanes = lanes_of(walk.value, walk.out.dtype, machine) if _in_vectors(walk) else 1
    return spread([extent for _, extent in walk.loops], element, lanes, machine, parallel)


def _in_vectors(walk: Walk) -> bool:
    """Whether the innermost loop moves through the result, and through all that it reads, element by element."""
    if not walk.loops:
        return False
    inner = walk.loops[-1][0]
    return stride_along(walk.out, walk.index, inner) == 1 and vectorizes(walk.value, inner)


def _ranges(out: Buffer, axes: Sequence[LoopVar], value: LoopExpr) -> dict[LoopVar, Range]:
    """Where the axes of a stage and of the reductions in it run."""
    extents = [*zip(axes, out.shape, strict=True)]
    extents += [pair for node in walk_exprs(value) if isinstance(node, Reduce) for pair in node.axes]
    return {var: Range(0, extent - 1) for var, extent in extents}
