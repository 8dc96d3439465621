"""Windows over rows and columns: first down the rows, for every column once, then along each row.

A maximum over 7 x 7 elements is one over 7 of those over 7; neighbouring windows share the inner ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from minitvm.codegen.elements import outer_reductions
from minitvm.ir.loop import (
    Binary,
    Buffer,
    Load,
    LoopExpr,
    LoopVar,
    Reduce,
    Select,
    Stage,
    map_expr,
    substitute_vars,
    walk_exprs,
)
from minitvm.ir.loop.affine import affine, depends_on, loads

_SHORTEST = 4
"""Columns of a window, below which it is not worth a row in memory; one less where windows are apart and stick out:
those at the edges would be computed one by one."""


def separated(out: Buffer, axes: Sequence[LoopVar], value: LoopExpr) -> tuple[Stage, LoopExpr] | None:
    """What is reduced down the rows as a stage of its own, and ``value`` with a reduction of that along a row.

    ``None`` where ``value`` is no reduction over a window of two axes or more, that moves along the last axis.
    """
    reduce = _windows(value)
    step = _step(reduce, axes[-1]) if reduce is not None and axes else 0
    if reduce is None or not step or 0 in out.shape:
        return None
    *rows, (tap, taps) = reduce.axes
    sticks_out = any(isinstance(node, Select) for node in walk_exprs(reduce.value))
    if taps < _SHORTEST - (step > 1 and sticks_out):
        return None
    column, columns = LoopVar("column"), (out.shape[-1] - 1) * step + taps
    element = map_expr(substitute_vars(reduce.value, {tap: column - axes[-1] * step}), _cancelled)
    if depends_on(element, axes[-1]):
        return None
    down = Reduce(reduce.kind, tuple(rows), element)
    stage = Stage("down", (*out.shape[:-1], columns), down.dtype, axes=(*axes[:-1], column), value=down)
    window = (*axes[:-1], axes[-1] * step + tap)
    along = Reduce(reduce.kind, ((tap, taps),), Load(stage, window))
    return stage, map_expr(value, lambda node: along if node is reduce else node)


def _cancelled(node: LoopExpr) -> LoopExpr:
    """A sum of indices with every variable in it once, or not at all."""
    is_sum = isinstance(node, Binary) and node.op in ("add", "sub") and node.dtype == "int64"
    return affine(node).to_expr() if is_sum else node


def _windows(value: LoopExpr) -> Reduce | None:
    found = outer_reductions(value)
    flat = len(found) == 1 and len(found[0].axes) > 1 and not outer_reductions(found[0].value)
    return found[0] if flat else None


def _step(reduce: Reduce, last: LoopVar) -> int:
    """Columns from one window to the next; 0 where the last axis moves no window."""
    forms = [affine(index).terms for load in loads(reduce.value) for index in load.index]
    steps = {form.get(last, 0) for form in forms if form.get(reduce.axes[-1][0]) == 1}
    return steps.pop() if len(steps) == 1 else 0
