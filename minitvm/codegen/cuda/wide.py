"""Lanes of a thread: one access for all of them where they are neighbours in memory, aligned as a vector has to be.

What is loaded so, and what is to be stored so, is a ``Pack``: an array of registers that is copied as a whole.  All
else happens lane by lane.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from minitvm.codegen.simplify import simplify_expr
from minitvm.ir.loop import (
    Buffer,
    Const,
    CopyAsync,
    For,
    Load,
    LoopExpr,
    LoopKind,
    LoopVar,
    Select,
    Seq,
    Stmt,
    Store,
    rebuild_expr,
    substitute_vars,
    walk_exprs,
)
from minitvm.ir.loop.affine import Affine, Ranges, address, affine, depends_on

_WIDEST = 16
"""Bytes of one access."""


@dataclass(frozen=True)
class Packed:
    """An expression lane by lane over packs, and the steps that fill these, in order."""

    value: LoopExpr
    steps: list[Step]


@dataclass(frozen=True)
class Step:
    """``pack`` gets what lies in memory from ``source`` on, with the lane taken for 0; else what a branch leaves in it:
    of ``sides``, the first where ``condition`` holds."""

    pack: Buffer
    source: Load | None = None
    condition: LoopExpr | None = None
    sides: tuple[Packed, ...] = ()


@dataclass
class Widening:
    """Widens one statement over ``lanes`` lanes; ``is_own`` tells whether a buffer is registers already."""

    var: LoopVar
    lanes: int
    ranges: Ranges
    is_own: Callable[[Buffer], bool]
    done: dict[LoopExpr, LoopExpr] = field(default_factory=dict)

    def first(self, load: Load) -> Load | None:
        """Lane 0's element, where all lanes' are one access; ``None`` where they are not."""
        buffer, size = load.buffer, np.dtype(load.buffer.dtype).itemsize
        if self.is_own(buffer) or self.lanes & (self.lanes - 1) or self.lanes == 1:
            return None
        aligned = min(self.lanes, max(1, _WIDEST // size))
        form: Affine[LoopExpr] = affine(simplify_expr(address(buffer, load.index).to_expr(), self.ranges))
        others = [term for term in form.terms if term != self.var]
        if form.terms.get(self.var) != 1 or any(depends_on(term, self.var) for term in others):
            return None
        if math.gcd(form.constant, *(form.terms[term] for term in others)) % aligned:
            return None
        at_first = tuple(substitute_vars(i, {self.var: Const(0)}) for i in load.index)
        return Load(buffer, at_first)

    def copied(self, store: Store) -> Load | None:
        """Lane 0's place of an asynchronous copy, where all lanes' are one of 4, 8 or 16 bytes."""
        found = store.source() if isinstance(store, CopyAsync) else None
        nbytes = self.lanes * np.dtype(store.buffer.dtype).itemsize
        if found is None or nbytes > _WIDEST or any(depends_on(c, self.var) for c in found[1]):
            return None
        return None if self.first(found[0]) is None else self.first(Load(store.buffer, store.index))

    def pack(self, dtype: str) -> Buffer:
        return Buffer("pack", (self.lanes,), dtype, "local")

    def of(self, value: LoopExpr) -> Packed:
        """Lane by lane over packs."""
        inside = Widening(self.var, self.lanes, self.ranges, self.is_own, dict(self.done))
        steps: list[Step] = []
        return Packed(inside._visit(value, steps), steps)

    def _visit(self, node: LoopExpr, steps: list[Step]) -> LoopExpr:
        if node not in self.done:
            self.done[node] = self._replaced(node, steps)
        return self.done[node]

    def _replaced(self, node: LoopExpr, steps: list[Step]) -> LoopExpr:
        match node:
            case Load():
                first = self.first(node)
                return node if first is None else self._filled(Step(self.pack(node.dtype), first), steps)
            case Select(condition, then, orelse):
                if not depends_on(condition, self.var) and (self._is_wide(then) or self._is_wide(orelse)):
                    sides = (self.of(then), self.of(orelse))
                    return self._filled(Step(self.pack(node.dtype), None, condition, sides), steps)
                return Select(self._visit(condition, steps), then, orelse)
        return rebuild_expr(node, [self._visit(child, steps) for child in node.operands])

    def _filled(self, step: Step, steps: list[Step]) -> LoopExpr:
        steps.append(step)
        return Load(step.pack, (self.var,))

    def _is_wide(self, node: LoopExpr) -> bool:
        return any(isinstance(n, Load) and self.first(n) is not None for n in walk_exprs(node))


def by_lanes(loop: For, store: Store) -> For:
    """A store of every lane, one after the other: nothing that it loads is stored by another lane."""
    return For(loop.var, loop.extent, store, LoopKind.UNROLLED)


def stores_of(body: Stmt) -> list[Store] | None:
    """The stores that a loop over lanes consists of; ``None`` where there is something else."""
    parts = body.stmts if isinstance(body, Seq) else (body,)
    stores = [part for part in parts if isinstance(part, Store)]
    return stores if len(stores) == len(parts) else None
