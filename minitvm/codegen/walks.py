"""A nest before its loops have kinds: variables with extents, and what is stored in the innermost.

Axes are split where an index divides, and cut where a condition changes.  The window of a pooling or the padding of an
image asks at every element whether it is inside; along one axis the answer changes at a few places that are known
beforehand (loop partitioning, as Halide does for its boundaries).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Generic, TypeVar

from minitvm.codegen.simplify import simplify_expr
from minitvm.codegen.stages import Output
from minitvm.doors import door
from minitvm.ir.dims import Dim
from minitvm.ir.loop import (
    Alloc,
    Binary,
    Buffer,
    Cast,
    Const,
    For,
    Load,
    LoopExpr,
    LoopKind,
    LoopVar,
    Reduce,
    Select,
    Stmt,
    Store,
    all_of,
    as_index,
    binary,
    guarded,
    intrin,
    map_expr,
    select,
    seq,
    substitute_vars,
    walk_exprs,
)
from minitvm.ir.loop.affine import Affine, Range, address, affine, bounds, loads, vectorizes
from minitvm.ir.op import identity_of, outer_reductions
from minitvm.target import MachineModel

_LONGEST_PERIOD = 4
"""Whole vectors that one period may take."""
_MOST_PIECES = 9
"""Nests that one may become."""
COMBINE = {"sum": "add", "dot": "add", "prod": "mul", "max": "max", "min": "min", "larger": "larger"}
MOST_APART = 8
"""Elements between what neighbouring lanes read, so that whole vectors are read and shuffled; of a short reduction."""
FEWEST_LANES = 4
_MOST_STEPS = 9
"""Of a reduction, written out one after the other: a window of 3 by 3."""
_MOST_SEGMENTS = 9
_FEWEST_ROWS = 4
"""Of a thread's band: each band reads some of the rows of the one before."""
_SHORT = 3
"""Elements at an edge that are segments of their own, so that every condition on them is a constant."""


def counts(extent: Dim) -> Range:
    """What the variable of a loop may be."""
    return Range(0, extent - 1 if isinstance(extent, int) else None)


@dataclass(frozen=True)
class Walk:
    """``out[index] = value`` for all values of ``loops``, outermost first."""

    out: Buffer
    loops: tuple[tuple[LoopVar, int], ...]
    index: tuple[LoopExpr, ...]
    value: LoopExpr

    @staticmethod
    def over(out: Output) -> Walk:
        """Every element; index arithmetic simplified."""
        whole = Walk(out.buffer, tuple(zip(out.axes, out.buffer.shape, strict=True)), out.axes, out.value)
        return replace(whole, value=simplify_expr(out.value, whole.ranges))

    def without_ones(self) -> Walk:
        """The walk without loops over a single element: the innermost is the last axis that has more."""
        index, value = self.at({var: Const(0) for var, extent in self.loops if extent == 1})
        return replace(self, loops=tuple(pair for pair in self.loops if pair[1] != 1), index=index, value=value)

    @cached_property
    def ranges(self) -> dict[LoopVar, Range]:
        """The ranges of its variables, and of those of its reductions."""
        inner = [pair for node in walk_exprs(self.value) if isinstance(node, Reduce) for pair in node.axes]
        return {var: counts(extent) for var, extent in (*self.loops, *inner)}

    def at(self, values: Mapping[LoopVar, LoopExpr]) -> tuple[tuple[LoopExpr, ...], LoopExpr]:
        """Index and value with variables replaced."""
        known = dict(values)
        return tuple(substitute_vars(i, known) for i in self.index), substitute_vars(self.value, known)

    def element(self, lane: LoopVar | None = None) -> Stmt:
        """What an iteration does; its reductions see :func:`element`."""
        return element(self.value, lambda done: Store(self.out, self.index, done), lane)

    def cut(self, var: LoopVar, extent: int) -> list[Walk]:
        """Walks over parts of a loop, in each of which no condition changes."""
        parts = segments(self.value, var, extent, self.ranges) if isinstance(extent, int) else []
        if len(parts) <= 1:
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

    def moved(self, var: LoopVar, by: LoopExpr, new: tuple[tuple[LoopVar, Any], ...]) -> Walk:
        """Over the loops ``new``, some as long as only a run says, in place of that of ``var``, which is ``by``."""
        loops = tuple(pair for old in self.loops for pair in (new if old[0] == var else (old,)))
        index, value = self.at({var: by})
        walk = replace(self, loops=loops, index=index, value=value)
        return replace(walk, value=simplify_expr(value, walk.ranges))


def in_bands(walk: Walk, threads: int) -> Walk:
    """Over the rows of a pooled image in bands for the threads, channel by channel in each: convolutions, whose result
    it is and which read it, share rows as well.  The walk itself where rows are few, or move no windows."""
    if threads == 1 or not _moves_windows_by_rows(walk):
        return walk
    rows, extent = walk.loops[1]
    size = next((n for n in range(extent // threads, _FEWEST_ROWS - 1, -1) if extent % n == 0), None)
    if size is None:
        return walk
    (split,) = walk.split(rows, size)
    channels, band, *others = split.loops
    return replace(split, loops=(band, channels, *others))


def _moves_windows_by_rows(walk: Walk) -> bool:
    """True if the loops are one over channels, one over the rows of windows, and others."""
    steps = {var for reduce in outer_reductions(walk.value) for var, _ in reduce.axes}
    windows = [i for load in loads(walk.value) for i in load.index if any(step in i.mentions for step in steps)]
    moves = [any(var in i.mentions for i in windows) for var, _ in walk.loops]
    return len(moves) > 2 and moves[:2] == [False, True] and isinstance(walk.loops[1][1], int)


def walks(walk: Walk) -> list[Walk]:
    """The walk as walks whose indices divide as little as possible: an axis ``c`` that is read at ``c // 16`` and ``c %
    16`` becomes two.  They have no conditions where something is read across the order of the result under one."""
    return [part for whole in _split(walk) for piece in _without_conditions(whole) for part in _split(piece)]


@door
def split_open(walk: Walk) -> list[Walk]:
    """Walks over parts of an axis as long as only a run says, or one with two axes in its place; none where no
    condition nor index asks for it."""
    return []


def _split(walk: Walk) -> list[Walk]:
    pieces = [] if all(isinstance(n, int) for _, n in walk.loops) else split_open(walk)
    if not pieces and (found := _divided(walk)):
        pieces = walk.split(*found)
    return [part for piece in pieces for part in _split(piece)] or [walk]


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
        for node in walk_exprs(load):
            match node:
                case Binary("floordiv" | "floormod", LoopVar() as var, Const(divisor, _)):
                    extent = extents.get(var, 0)
                    if isinstance(extent, int) and 1 < divisor < extent:
                        in_lanes = divisor < FEWEST_LANES or period(load, var) is not None
                        if var != walk.loops[-1][0] or not in_lanes:
                            return var, int(divisor)
    return None


def period(load: Load, var: LoopVar) -> int | None:
    """The number of steps of ``var`` after which an element is read that lies as many whole elements further: 3 of
    ``x[var * 2 // 3]``.  ``None`` where steps go further than that, or no such number is small."""
    form, found = address(load.buffer, load.index), 1
    for term, factor in form.terms.items():
        if var not in term.mentions:
            continue
        match term:
            case Binary("floordiv", x, Const(divisor, "int64")) if factor == 1 and divisor > 0:
                moving = affine(x)
                step, rest = moving.terms.get(var, 0), moving.at(var, 0).terms
                if not 0 < step <= divisor or any(k % divisor or var in t.mentions for t, k in rest.items()):
                    return None
                found = math.lcm(found, divisor // math.gcd(step, divisor))
            case _:
                return None
    return found if found <= _LONGEST_PERIOD else None


def summed_in_steps(walk: Walk, terms: int) -> Walk | None:
    """The walk with so many terms of its one sum added up first, along its last axis, and those that are left over at
    the end; of a sum over several axes a number of terms that divides.  ``None`` where no such sum is."""
    match outer_reductions(walk.value):
        case [Reduce("sum", (*outer, (var, int(extent))), value) as found] if extent >= terms:
            nested = any(isinstance(node, (Reduce, Select)) for node in walk_exprs(value))
        case _:
            return None
    if outer:
        terms = next(count for count in range(2 * terms, 0, -1) if extent % count == 0)
    if nested or terms == 1:
        return None
    whole, rest = divmod(extent, terms)
    step = LoopVar(var.name)

    def added(first: LoopExpr, count: int) -> LoopExpr:
        parts = (substitute_vars(value, {var: first + k}) for k in range(count))
        return functools.reduce(partial(binary, "add"), parts)

    total: LoopExpr = Reduce("sum", (*outer, (step, whole)), added(step * terms, terms))
    if rest:
        total = total + added(Const(whole * terms), rest)
    done = replace(walk, value=map_expr(walk.value, lambda node: total if node is found else node))
    return replace(done, value=simplify_expr(done.value, done.ranges))


def jumps(value: LoopExpr, var: LoopVar) -> bool:
    """True if something is read where ``var`` alone says, but by no fixed step nor period: ``x[var * 5 // 28]``."""
    for load in loads(value):
        terms = [t for t in address(load.buffer, load.index).terms if t != var and var in t.mentions]
        known = not any(term.reads or term.mentions - {var} for term in terms)
        if terms and known and period(load, var) is None:
            return True
    return False


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
            stack.extend(node.operands)
    return widest


# --- one element in plain loops --------------------------------------------------------------------------------


def element(value: LoopExpr, finish: Callable[[LoopExpr], Stmt], lane: LoopVar | None = None) -> Stmt:
    """``finish(value)``, the reductions in ``value`` done before.

    ``lane`` is the variable that will be lanes: what a condition asks of others is asked around the loops inside.
    """
    found = outer_reductions(value)
    if not found:
        return finish(value)
    reduce = found[0]
    acc = Buffer("acc", (), reduce.dtype, "local")
    guards, reduced, outside = ([], reduce.value, reduce.value) if lane is None else asked_around(reduce.value, lane)
    if outside != identity_of(reduce.kind, outside.dtype):  # else there is nothing to be done where they do not hold
        guards, reduced = [], reduce.value
    update = element(reduced, lambda x: Store(acc, (), combined(reduce.kind, acc[()], x)), lane)
    start = Store(acc, (), identity_of(reduce.kind, reduce.dtype))
    rest = element(map_expr(value, lambda node: acc[()] if node is reduce else node), finish, lane)
    return Alloc(acc, seq(start, _over(reduce.axes, update, guards), rest))


def combined(kind: str, left: LoopExpr, right: LoopExpr) -> LoopExpr:
    """One more element; products of other operators, inlined into a ``"sum"``, keep their rounding."""
    if kind == "dot" and isinstance(right, Binary) and right.op == "mul":
        return intrin("fma", right.lhs, right.rhs, left)
    return binary(COMBINE[kind], left, right)


def _over(axes: Sequence[tuple[LoopVar, int]], body: Stmt, guards: Sequence[LoopExpr]) -> Stmt:
    """Loops over a reduction; short inner ones, as of a window, are written out.  Each of ``guards`` is asked as far
    outside as it is known."""
    steps: Dim = 1
    for var, extent in reversed(axes):
        body = guarded([c for c in guards if var in c.mentions], body)
        guards = [c for c in guards if var not in c.mentions]
        steps *= extent
        short = isinstance(steps, int) and (steps <= _MOST_STEPS if len(axes) > 1 else steps < FEWEST_LANES)
        body = For(var, as_index(extent), body, LoopKind.UNROLLED if short else LoopKind.SERIAL)
    return guarded(guards, body)


def asked_around(value: LoopExpr, lane: LoopVar) -> tuple[list[LoopExpr], LoopExpr, LoopExpr]:
    """Conditions that all lanes share, the value where they hold, and, before it is cast, elsewhere."""
    match value:
        case Select(condition, then, orelse) | Cast(Select(condition, then, orelse), _):
            parts = _conjuncts(condition)
            shared = [c for c in parts if lane not in c.mentions and not c.reads]
            own = [c for c in parts if c not in shared]
            return shared, (select(all_of(own), then, orelse) if own else then).astype(value.dtype), orelse
    return [], value, value


def _conjuncts(condition: LoopExpr) -> list[LoopExpr]:
    match condition:
        case Binary("and", a, b) if condition.dtype == "bool":
            return [*_conjuncts(a), *_conjuncts(b)]
    return [condition]


# --- where conditions change -----------------------------------------------------------------------------------


Piece = TypeVar("Piece", LoopExpr, Stmt)
"""What is cut: the value that a walk stores, or the body of a loop."""


@dataclass(frozen=True)
class Segment(Generic[Piece]):
    """``count`` values of a variable from ``start`` on, and the value as it is there."""

    start: int
    count: int
    value: Piece


@dataclass(frozen=True)
class Cutter(Generic[Piece]):
    """Looks through what is cut, and makes it simpler over known ranges."""

    nodes: Callable[[Piece], Iterable[LoopExpr]]
    simplified: Callable[[Piece, Mapping[LoopVar, Range]], Piece]

    def segments(
        self, value: Piece, var: LoopVar, extent: int, ranges: Mapping[LoopVar, Range]
    ) -> list[Segment[Piece]]:
        """All of ``0 <= var < extent`` in order; one piece where nothing changes, or too much."""
        found = self._cut(Segment(0, extent, value), var, ranges)
        return found if len(found) <= _MOST_SEGMENTS else [Segment(0, extent, value)]

    def _cut(
        self, whole: Segment[Piece], var: LoopVar, ranges: Mapping[LoopVar, Range], depth: int = 0
    ) -> list[Segment[Piece]]:
        """The pieces of a segment; what is decided in one may show where it has to be cut again."""
        stop = whole.start + whole.count
        changes = set(_cuts(self.nodes(whole.value), var, ranges))
        cuts: list[int] = sorted(cut for cut in changes if whole.start < cut < stop)
        if changes and whole.count <= _SHORT:
            cuts = list(range(whole.start + 1, stop))
        if not cuts or len(cuts) >= _MOST_SEGMENTS or depth == _MOST_SEGMENTS:
            return [whole]
        found: list[Segment[Piece]] = []
        for start, end in zip([whole.start, *cuts], [*cuts, stop], strict=True):
            here = self.simplified(whole.value, {**ranges, var: Range(start, end - 1)})
            found += self._cut(Segment(start, end - start, here), var, ranges, depth + 1)
        return found


_VALUES: Cutter[LoopExpr] = Cutter(walk_exprs, simplify_expr)
segments = _VALUES.segments


def _cuts(nodes: Iterable[LoopExpr], var: LoopVar, ranges: Mapping[LoopVar, Range]) -> Iterator[int]:
    """The first ``var`` at which a comparison or a choice of the smaller becomes undecided, or is decided again."""
    for node in nodes:
        match node:
            case Binary("lt" | "le" | "min" | "max" as op, a, b) if a.dtype == "int64":
                yield from _changes(Binary("sub", a, b), 1 if op == "le" else 0, var, ranges)


def _changes(gap: LoopExpr, shift: int, var: LoopVar, ranges: Mapping[LoopVar, Range]) -> Iterator[int]:
    """The place where ``gap < shift`` is first true, or first false, for some and for all values of the other
    variables."""
    form = affine(gap)
    factor = form.terms.get(var, 0)
    rest = form.at(var, 0)
    if not factor or any(var in term.mentions for term in rest.terms):
        return
    reach = bounds(rest.plus(Affine(-shift)).to_expr(), ranges)
    for edge in {reach.low, reach.high} - {None}:
        assert edge is not None
        yield -(edge // factor) if factor > 0 else edge // -factor + 1
