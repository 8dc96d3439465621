"""A nest before its loops have kinds: variables with extents, and what is stored in the innermost.

Axes are split where an index divides, and cut where a condition changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from minitvm.codegen.elements import element
from minitvm.codegen.partition import segments
from minitvm.codegen.simplify import simplify_expr
from minitvm.ir.loop import (
    Binary,
    Buffer,
    Cast,
    Const,
    Load,
    LoopExpr,
    LoopVar,
    Reduce,
    Stmt,
    Store,
    expr_children,
    substitute_vars,
    walk_exprs,
)
from minitvm.ir.loop.affine import address, affine, depends_on, loads, vectorizes
from minitvm.ir.loop.interval import Range
from minitvm.target import MachineModel

_LONGEST_PERIOD = 4
"""Whole vectors that one period may take."""
_MOST_PIECES = 9
"""Nests that one may become."""


@dataclass(frozen=True)
class Walk:
    """``out[index] = value`` for all values of ``loops``, outermost first."""

    out: Buffer
    loops: tuple[tuple[LoopVar, int], ...]
    index: tuple[LoopExpr, ...]
    value: LoopExpr

    @staticmethod
    def over(out: Buffer, axes: tuple[LoopVar, ...], value: LoopExpr) -> Walk:
        """Every element of ``out``; index arithmetic in ``value`` simplified."""
        whole = Walk(out, tuple(zip(axes, out.shape, strict=True)), axes, value)
        return replace(whole, value=simplify_expr(value, whole.ranges))

    @cached_property
    def ranges(self) -> dict[LoopVar, Range]:
        """Of its variables, and of those of its reductions."""
        inner = [pair for node in walk_exprs(self.value) if isinstance(node, Reduce) for pair in node.axes]
        return {var: Range(0, extent - 1) for var, extent in (*self.loops, *inner)}

    def at(self, values: Mapping[LoopVar, LoopExpr]) -> tuple[tuple[LoopExpr, ...], LoopExpr]:
        """Index and value with variables replaced."""
        known = dict(values)
        return tuple(substitute_vars(i, known) for i in self.index), substitute_vars(self.value, known)

    def element(self, lane: LoopVar | None = None) -> Stmt:
        """What an iteration does (:func:`~minitvm.codegen.elements.element`)."""
        return element(self.value, lambda done: Store(self.out, self.index, done), lane)

    def cut(self, var: LoopVar, extent: int) -> list[Walk]:
        """Walks over parts of a loop, in each of which no condition changes."""
        parts = segments(self.value, var, extent, self.ranges)
        if len(parts) == 1:
            return [self]
        there = [(part, LoopVar(var.name)) for part in parts]
        return [
            replace(self, value=part.value).moved(var, new + part.start, ((new, part.count),)) for part, new in there
        ]

    def split(self, var: LoopVar, factor: int) -> list[Walk]:
        """``var`` as two loops, the inner one of ``factor``; what is left over of it is a walk of its own."""
        whole, rest = divmod(dict(self.loops)[var], factor)
        outer, inner, last = LoopVar(f"{var.name}o"), LoopVar(f"{var.name}i"), LoopVar(var.name)
        main = self.moved(var, outer * factor + inner, ((outer, whole), (inner, factor)))
        return [main, self.moved(var, last + whole * factor, ((last, rest),))] if rest else [main]

    def moved(self, var: LoopVar, by: LoopExpr, new: tuple[tuple[LoopVar, int], ...]) -> Walk:
        """Over the loops ``new`` in place of that of ``var``, which is ``by``."""
        loops = tuple(pair for old in self.loops for pair in (new if old[0] == var else (old,)))
        index, value = self.at({var: by})
        walk = replace(self, loops=loops, index=index, value=value)
        return replace(walk, value=simplify_expr(value, walk.ranges))


def walks(walk: Walk) -> list[Walk]:
    """As walks whose indices divide as little as possible: an axis ``c`` that is read at ``c // 16`` and ``c % 16``
    becomes two.  And without conditions, where something is read across the order of the result under one."""
    return [part for piece in _split(walk) for part in _without_conditions(piece)]


def _split(walk: Walk) -> list[Walk]:
    found = _divided(walk)
    return [walk] if found is None else [part for piece in walk.split(*found) for part in _split(piece)]


def _without_conditions(walk: Walk) -> list[Walk]:
    if not walk.loops or vectorizes(walk.value, walk.loops[-1][0]):
        return [walk]
    pieces = [walk]
    for var, extent in walk.loops:
        pieces = [part for piece in pieces for part in piece.cut(var, extent)]
        if len(pieces) > _MOST_PIECES:
            return [walk]
    return pieces


def _divided(walk: Walk) -> tuple[LoopVar, int] | None:
    """A variable that is divided by a constant in some index, and the constant."""
    extents = dict(walk.loops)
    for load in loads(walk.value):
        for node in (n for index in load.index for n in walk_exprs(index)):
            match node:
                case Binary("floordiv" | "floormod", LoopVar() as var, Const(divisor, _)):
                    if 1 < divisor < extents.get(var, 0):
                        inner = var == walk.loops[-1][0]
                        if not inner or period(load, var) is None:
                            return var, int(divisor)
    return None


def period(load: Load, var: LoopVar) -> int | None:
    """After how many steps of ``var`` an element is read that lies as many whole elements further: 3 of
    ``x[var * 2 // 3]``.  ``None`` where steps go further than that, or no such number is small."""
    form, found = address(load.buffer, load.index), 1
    for term, factor in form.terms.items():
        if not depends_on(term, var):
            continue
        match term:
            case Binary("floordiv", x, Const(divisor, "int64")) if factor == 1 and divisor > 0:
                moving = affine(x)
                step, rest = moving.terms.get(var, 0), moving.at(var, 0).terms
                if not 0 < step <= divisor or any(k % divisor or depends_on(t, var) for t, k in rest.items()):
                    return None
                found = math.lcm(found, divisor // math.gcd(step, divisor))
            case _:
                return None
    return found if found <= _LONGEST_PERIOD else None


def lanes_of(value: LoopExpr, dtype: str, machine: MachineModel) -> int:
    """Lanes of a loop that stores ``value`` as ``dtype``: of the widest element that is read, made or stored."""
    widest = machine.lanes(dtype)
    stack, seen = [value], set[LoopExpr]()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, (Load, Cast)):
            widest = min(widest, machine.lanes(node.dtype))
        if not isinstance(node, Load):
            stack.extend(expr_children(node))
    return widest
