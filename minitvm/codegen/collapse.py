"""Merging dimensions that every access walks through together, so that inner loops get long."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from minitvm.codegen.affine import loads
from minitvm.ir.loop import Buffer, Const, Load, LoopExpr, LoopVar, Reduce, expr_children, map_expr


@dataclass(frozen=True)
class Collapsed:
    params: tuple[Buffer, ...]
    out: Buffer
    axes: tuple[LoopVar, ...]
    value: LoopExpr


def collapse(params: Sequence[Buffer], out: Buffer, axes: Sequence[LoopVar], value: LoopExpr) -> Collapsed:
    """The same element function over as few dimensions as possible.

    ``x[i, j, k] + b[j, 0]``-like accesses only: each index is an axis of its own, in order, or 0 in a dimension of
    extent 1.  Anything else (a transpose, a window, a use of the axis itself) is returned as it is.
    """
    unchanged = Collapsed(tuple(params), out, tuple(axes), value)
    accesses = loads(value)
    used = [_axes_used(load, axes, out.shape) for load in accesses]
    if len(axes) < 2 or _reads_axes_directly(value) or None in used:
        return unchanged
    groups = _groups(len(axes), [u for u in used if u is not None])
    if len(groups) == len(axes):
        return unchanged
    new_axes = tuple(LoopVar("ijklmnopq"[g]) for g in range(len(groups)))
    extents = [math.prod(out.shape[a] for a in group) for group in groups]
    replaced: dict[Buffer, Buffer] = {}
    for load, positions in zip(accesses, used, strict=True):
        shape = tuple(e for e, group in zip(extents, groups, strict=True) if group[0] in (positions or ()))
        replaced.setdefault(load.buffer, Buffer(load.buffer.name, shape, load.buffer.dtype))

    def visit(node: LoopExpr) -> LoopExpr:
        if isinstance(node, Load):
            positions = _axes_used(node, axes, out.shape) or ()
            index = tuple(v for v, group in zip(new_axes, groups, strict=True) if group[0] in positions)
            return Load(replaced[node.buffer], index)
        return node

    new_out = Buffer(out.name, tuple(extents), out.dtype)
    new_value = map_expr(value, visit)
    return Collapsed(tuple(replaced.get(p, p) for p in params), new_out, new_axes, new_value)


def _reads_axes_directly(value: LoopExpr) -> bool:
    """True where a loop variable is used other than as an index of a load, or a reduction is below."""
    stack = [value]
    while stack:
        node = stack.pop()
        if isinstance(node, (LoopVar, Reduce)):
            return True
        if not isinstance(node, Load):
            stack.extend(expr_children(node))
    return False


def _axes_used(load: Load, axes: Sequence[LoopVar], extents: Sequence[int]) -> tuple[int, ...] | None:
    """Positions of the axes that index ``load``, in order; ``None`` where the access is not a plain broadcast."""
    if load.buffer.strides is not None:
        return None
    positions: list[int] = []
    for index, extent in zip(load.index, load.buffer.shape, strict=True):
        if isinstance(index, Const) and index.value == 0 and extent == 1:
            continue
        if not isinstance(index, LoopVar) or index not in axes:
            return None
        position = list(axes).index(index)
        if extents[position] != extent or (positions and position <= positions[-1]):
            return None
        positions.append(position)
    return tuple(positions)


def _groups(rank: int, used: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """Neighbouring axes that every access uses both, or neither."""
    groups = [[0]]
    for axis in range(1, rank):
        together = all((axis in positions) == (axis - 1 in positions) for positions in used)
        if together:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    return groups
