"""The default loop nest of one stage."""

from __future__ import annotations

from collections.abc import Sequence

from minitvm.codegen.affine import vectorizes
from minitvm.codegen.reductions import reduction_nest
from minitvm.codegen.simplify import Range, simplify_expr
from minitvm.codegen.spread import lanes_of, spread
from minitvm.ir.loop import Buffer, LoopExpr, LoopVar, Reduce, Stmt, Store, substitute_vars, walk_exprs
from minitvm.target import MachineModel


def stage_nest(
    out: Buffer, axes: Sequence[LoopVar], value: LoopExpr, machine: MachineModel, parallel: bool = True
) -> Stmt:
    """Loops that store ``value`` to every element of ``out``; ``axes`` are the variables that ``value`` is over."""
    value = simplify_expr(value, _ranges(out, axes, value))
    if any(isinstance(node, Reduce) for node in walk_exprs(value)):
        return reduction_nest(out, axes, value, machine, parallel)

    def element(index: Sequence[LoopExpr]) -> Stmt:
        return Store(out, tuple(index), substitute_vars(value, dict(zip(axes, index, strict=True))))

    vector = bool(axes) and vectorizes(value, axes[-1]) and out.row_major_strides[-1] == 1
    return spread(out.shape, element, lanes_of(value, out.dtype, machine) if vector else 1, machine, parallel)


def _ranges(out: Buffer, axes: Sequence[LoopVar], value: LoopExpr) -> dict[LoopVar, Range]:
    """Where the axes of a stage and of the reductions in it run."""
    extents = [*zip(axes, out.shape, strict=True)]
    extents += [pair for node in walk_exprs(value) if isinstance(node, Reduce) for pair in node.axes]
    return {var: Range(0, extent - 1) for var, extent in extents}
