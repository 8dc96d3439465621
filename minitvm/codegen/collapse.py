"""Merging dimensions that every access walks through together, so that inner loops get long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from minitvm.codegen.stages import Output
from minitvm.ir.loop import Buffer, Const, Load, LoopExpr, LoopVar, Reduce, map_expr, substitute_vars, walk_exprs
from minitvm.ir.loop.affine import loads

Axes = tuple[tuple[LoopVar, int], ...]


@dataclass(frozen=True)
class _Element:
    """A value over axes; reshaped parameters by what they were."""

    axes: Axes
    value: LoopExpr
    params: tuple[Buffer, ...]

    @property
    def reductions(self) -> list[Reduce]:
        return [node for node in walk_exprs(self.value) if isinstance(node, Reduce)]


def collapse(params: Sequence[Buffer], out: Output) -> tuple[tuple[Buffer, ...], Output]:
    """The same element function over as few dimensions as possible, of the result and of its reductions.

    Two neighbouring axes become one where every load has both, one right after the other and each as an index of its
    own, or neither: ``x[i, j, k] + b[k]`` joins ``i`` and ``j``.  Dimensions of one element go.
    """
    found = _without_ones(tuple(params), tuple(zip(out.axes, out.buffer.shape, strict=True)), out.value)
    while (simpler := _simpler(found)) is not None:
        found = simpler
    shape = tuple(extent for _, extent in found.axes)
    return found.params, Output(_reshaped(out.buffer, shape), tuple(var for var, _ in found.axes), found.value)


def _without_ones(params: tuple[Buffer, ...], axes: Axes, value: LoopExpr) -> _Element:
    value = substitute_vars(value, {v: Const(0) for v, n in axes if n == 1})
    squeezed: dict[Buffer, Buffer] = {}

    def visit(node: LoopExpr) -> LoopExpr:
        if not isinstance(node, Load) or node.buffer.strides is not None or 1 not in node.buffer.shape:
            return node
        shape = tuple(n for n in node.buffer.shape if n != 1)
        index = tuple(i for i, n in zip(node.index, node.buffer.shape, strict=True) if n != 1)
        return Load(squeezed.setdefault(node.buffer, _reshaped(node.buffer, shape)), index)

    value = map_expr(value, visit)
    return _Element(tuple(a for a in axes if a[1] != 1), value, tuple(squeezed.get(p, p) for p in params))


def _reshaped(buffer: Buffer, shape: tuple[int, ...]) -> Buffer:
    return Buffer(buffer.name, shape, buffer.dtype, buffer.scope)


def _simpler(element: _Element) -> _Element | None:
    """With one pair of neighbouring axes merged."""
    chains = [element.axes, *(node.axes for node in element.reductions)]
    found = (_merged(element, a, b) for chain in chains for a, b in pairwise(chain))
    return next((made for made in found if made is not None), None)


def _merged(element: _Element, a: tuple[LoopVar, int], b: tuple[LoopVar, int]) -> _Element | None:
    """With one axis in place of two neighbouring ones, or nothing where that leaves either of them anywhere."""
    both = (LoopVar(a[0].name), a[1] * b[1])
    made: dict[tuple[Buffer, int], Buffer] = {}

    def joined(axes: Axes) -> Axes:
        at = next((d for d, pair in enumerate(pairwise(axes)) if pair == (a, b)), None)
        return axes if at is None else (*axes[:at], both, *axes[at + 2 :])

    def visit(node: LoopExpr) -> LoopExpr:
        if isinstance(node, Reduce):
            return Reduce(node.kind, joined(node.axes), node.value)
        if not isinstance(node, Load) or node.buffer.strides is not None:
            return node
        dims = list(zip(node.index, node.buffer.shape, strict=True))
        at = next((d for d, pair in enumerate(pairwise(dims)) if pair == (a, b)), None)
        if at is None:
            return node
        shape = (*node.buffer.shape[:at], both[1], *node.buffer.shape[at + 2 :])
        buffer = made.setdefault((node.buffer, at), _reshaped(node.buffer, shape))
        return Load(buffer, (*node.index[:at], both[0], *node.index[at + 2 :]))

    value = map_expr(element.value, visit)
    left, new = set(walk_exprs(value)), {old: buffer for (old, _), buffer in made.items()}
    if a[0] in left or b[0] in left or any(load.buffer in new for load in loads(value)) or len(new) < len(made):
        return None
    return _Element(joined(element.axes), value, tuple(new.get(p, p) for p in element.params))
