"""Merging dimensions that every access walks through together, so that inner loops get long."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from minitvm.ir.loop import (
    Buffer,
    Const,
    Load,
    LoopExpr,
    LoopVar,
    Reduce,
    expr_children,
    map_expr,
    substitute_vars,
    walk_exprs,
)
from minitvm.ir.loop.affine import loads


@dataclass(frozen=True)
class Collapsed:
    params: tuple[Buffer, ...]
    out: Buffer
    axes: tuple[LoopVar, ...]
    value: LoopExpr


Extents = dict[LoopVar, int]
Pair = tuple[LoopVar, LoopVar]


def collapse(params: Sequence[Buffer], out: Buffer, axes: Sequence[LoopVar], value: LoopExpr) -> Collapsed:
    """The same element function over as few dimensions as possible, of the result and of its reductions.

    Two neighbouring axes become one where every load has both, one right after the other and each as an index of its
    own, or neither: ``x[i, j, k] + b[k]`` joins ``i`` and ``j``.  Dimensions of one element go.
    """
    if out.strides is not None:
        return Collapsed(tuple(params), out, tuple(axes), value)
    value = substitute_vars(value, {v: Const(0) for v, n in zip(axes, out.shape, strict=True) if n == 1})
    kept = [(v, n) for v, n in zip(axes, out.shape, strict=True) if n != 1]
    chains = [[v for v, _ in kept], *([v for v, _ in node.axes] for node in _reductions(value))]
    extents = dict([*kept, *(pair for node in _reductions(value) for pair in node.axes)])
    groups = [group for chain in chains for group in _groups(chain, _joined(value, chains, extents))]
    merged = {v: group for group in groups for v in group}
    rewritten = _Rewrite(extents, merged, value)
    new_axes = tuple(dict.fromkeys(rewritten.variable(v) for v in chains[0]))
    shape = tuple(math.prod(extents[v] for v in group) for group in _groups(chains[0], _pairs(merged)))
    new_params = tuple(rewritten.buffers.get(p, p) for p in params)
    return Collapsed(new_params, Buffer(out.name, shape, out.dtype), new_axes, rewritten.value)


def _reductions(value: LoopExpr) -> list[Reduce]:
    return [n for n in walk_exprs(value) if isinstance(n, Reduce)]


def _pairs(merged: Mapping[LoopVar, Sequence[LoopVar]]) -> set[Pair]:
    return {pair for group in merged.values() for pair in pairwise(group)}


def _groups(chain: Sequence[LoopVar], joined: Iterable[Pair]) -> list[list[LoopVar]]:
    known = set(joined)
    groups: list[list[LoopVar]] = []
    for var in chain:
        if groups and (groups[-1][-1], var) in known:
            groups[-1].append(var)
        else:
            groups.append([var])
    return groups


def _joined(value: LoopExpr, chains: Sequence[Sequence[LoopVar]], extents: Extents) -> set[Pair]:
    """The neighbours that can become one."""
    pinned = _pinned(value, extents)
    accesses = loads(value)
    possible = {
        (a, b)
        for chain in chains
        for a, b in pairwise(chain)
        if not {a, b} & pinned and all(_together(load, a, b) for load in accesses)
    }
    for buffer in {load.buffer for load in accesses}:
        shapes = [_merged_dims(load, possible) for load in accesses if load.buffer is buffer]
        possible -= {pair for found in shapes for at, pair in found.items() if any(at not in other for other in shapes)}
    return possible


def _pinned(value: LoopExpr, extents: Extents) -> set[LoopVar]:
    """Variables that are used other than as an index by themselves, over a whole dimension."""
    found: set[LoopVar] = set()
    stack, seen = [value], set[LoopExpr]()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, LoopVar):
            found.add(node)
        elif isinstance(node, Reduce):
            stack.append(node.value)
        elif isinstance(node, Load):
            for index, extent in zip(node.index, node.buffer.shape, strict=True):
                whole = isinstance(index, LoopVar) and extents.get(index) == extent and node.buffer.strides is None
                stack += [] if whole else [index]
        else:
            stack.extend(expr_children(node))
    return found


def _dims(load: Load) -> list[int]:
    """The dimensions of more than one element."""
    return [d for d, extent in enumerate(load.buffer.shape) if extent != 1]


def _together(load: Load, a: LoopVar, b: LoopVar) -> bool:
    order = [load.index[d] for d in _dims(load)]
    if a not in order and b not in order:
        return True
    return order.count(a) == order.count(b) == 1 and order.index(b) == order.index(a) + 1


def _merged_dims(load: Load, pairs: set[Pair]) -> dict[tuple[int, int], Pair]:
    found: dict[tuple[int, int], Pair] = {}
    for d, e in pairwise(_dims(load)):
        for a, b in pairs:
            if (load.index[d], load.index[e]) == (a, b):
                found[d, e] = (a, b)
    return found


class _Rewrite:
    """The value over merged axes, and the buffers that it reads then."""

    def __init__(self, extents: Extents, merged: Mapping[LoopVar, Sequence[LoopVar]], value: LoopExpr) -> None:
        self._extents, self._merged = extents, merged
        self._variables: dict[LoopVar, LoopVar] = {}
        self.buffers: dict[Buffer, Buffer] = {}
        self.value = map_expr(value, self._visit)

    def variable(self, var: LoopVar) -> LoopVar:
        """The one that stands for a group."""
        group = self._merged[var]
        if len(group) == 1:
            return var
        return self._variables.setdefault(group[0], LoopVar(group[0].name))

    def _visit(self, node: LoopExpr) -> LoopExpr:
        if isinstance(node, Reduce):
            axes = dict.fromkeys(
                (self.variable(v), math.prod(self._extents[m] for m in self._merged[v])) for v, _ in node.axes
            )
            return Reduce(node.kind, tuple(axes), node.value)
        return self._load(node) if isinstance(node, Load) and node.buffer.strides is None else node

    def _load(self, load: Load) -> LoopExpr:
        shape: list[int] = []
        index: list[LoopExpr] = []
        for d in _dims(load):
            at = load.index[d]
            group = self._merged.get(at, [at]) if isinstance(at, LoopVar) else [at]
            if group[0] != at:
                shape[-1] *= load.buffer.shape[d]
                continue
            shape.append(load.buffer.shape[d])
            index.append(self.variable(at) if isinstance(at, LoopVar) and len(group) > 1 else at)
        buffer = self.buffers.setdefault(
            load.buffer, Buffer(load.buffer.name, tuple(shape), load.buffer.dtype, load.buffer.scope)
        )
        return Load(buffer, tuple(index))
