"""Blocked summation: a long sum of floats adds up each block by itself, then the blocks (Higham 1993).

A sum of n terms, added one after the other, may be off by n roundings of itself: all of 1.0 ends at 2^24.  Whatever
wrote the loops, an accumulator takes at most :data:`LONGEST` terms in a row here: loops that add more to it are split,
and of each :data:`BLOCK` terms a part of its own is made, parts of parts in the same way.  The order stays, so
nothing else has to know; shorter sums are not touched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TypeAlias

from minitvm.codegen.loops import bind_vars, fresh_vars, redirect, with_memory
from minitvm.ir.dtypes import is_float
from minitvm.ir.loop import (
    Alloc,
    Binary,
    Buffer,
    Const,
    For,
    If,
    Intrin,
    Load,
    LoopExpr,
    LoopKind,
    LoopVar,
    Mma,
    Seq,
    Size,
    Stmt,
    Store,
    Wgmma,
    const,
    seq,
    stmt_children,
    stmt_exprs,
)
from minitvm.ir.loop.affine import Ranges, counter, depends_on, loads

LONGEST = 2048
"""Terms that are added one after the other."""
BLOCK = 512
"""Terms of a block."""
_WRITTEN_OUT = 256
"""Elements, or vectors, of an accumulator that may be in registers."""
_ORDERED = (LoopKind.SERIAL, LoopKind.UNROLLED)


@dataclass(frozen=True)
class _Adds:
    """What a statement does to an accumulator: adds ``terms`` to an element at most (infinite: as many as a run says)
    at some of ``index``; ``vector``: its last dimension is lanes."""

    terms: float
    index: frozenset[tuple[LoopExpr, ...]]
    vector: bool = False

    def along(self, var: LoopVar) -> bool:
        """True if an iteration of a loop adds to other elements than the next."""
        return any(depends_on(i, var) for at in self.index for i in at)

    def then(self, other: _Adds) -> _Adds:
        return _Adds(self.terms + other.terms, self.index | other.index, self.vector or other.vector)


_Effect: TypeAlias = dict[Buffer, _Adds | None]
"""By buffer; ``None``: it is read, or stored, in another way than by adding to it."""


def in_blocks(body: Stmt) -> Stmt:
    """The same loops, long sums in blocks.

    Sums in memory of a thread's own are seen, of products (``fma``, :class:`Mma`) as well; one that is carried from
    step to step in a way other than by an addition is not.
    """
    return _walk(body, {})[0] if _longest(body, {}, ()) > LONGEST else body


def _longest(stmt: Stmt, ranges: Ranges, around: tuple[tuple[LoopVar | Buffer, float], ...]) -> float:
    """The terms at most that an element of some memory below takes, all memory added up; ``around`` are loops, with
    their iterations, and memory, the outermost first."""
    match stmt:
        case For(var, extent, _, kind):
            around = (*around, (var, _times(stmt, ranges) if kind in _ORDERED else 1.0))
            ranges = {**ranges, var: counter(extent, ranges)}
        case Alloc(buffer):
            around = (*around, (buffer, 1.0))
        case Store(sums, index) | Mma(sums, index) | Wgmma(sums, index) if (sums, 1.0) in around:
            inside, varies = around[around.index((sums, 1.0)) :], frozenset().union(*(i.mentions for i in index))
            return math.prod((n for one, n in inside if one not in varies), start=1 if isinstance(stmt, Store) else 16)
    return sum(_longest(part, ranges, around) for part in stmt_children(stmt))


def _walk(stmt: Stmt, ranges: Ranges) -> tuple[Stmt, _Effect]:
    """A statement with long sums in blocks, and what it does to accumulators around it."""
    match stmt:
        case For():
            return _loop(stmt, ranges)
        case Alloc(buffer, body):
            made, effect = _walk(body, ranges)
            effect.pop(buffer, None)
            return (stmt if made is body else Alloc(buffer, made)), effect
        case Seq(stmts):
            found = [_walk(part, ranges) for part in stmts]
            same = all(new is old for (new, _), old in zip(found, stmts, strict=True))
            return (stmt if same else seq(*(new for new, _ in found))), reduce(_both, (e for _, e in found), {})
        case If(condition, then, orelse):
            (first, effect), second = _walk(then, ranges), None
            if orelse is not None:
                second, other = _walk(orelse, ranges)
                effect = _both(effect, other)
            same = first is then and second is orelse
            return (stmt if same else If(condition, first, second)), _both(effect, _read(condition))
    return stmt, _of(stmt)


def _both(one: _Effect, other: _Effect) -> _Effect:
    """One after the other; of two branches it is more than either does."""
    found = dict(one)
    for buffer, adds in other.items():
        before = found.get(buffer, adds)
        known = before is not None and adds is not None and buffer in one
        found[buffer] = before.then(adds) if known and before is not None and adds is not None else before and adds
    return found


def _read(*exprs: LoopExpr) -> _Effect:
    return {load.buffer: None for expr in exprs for load in loads(expr)}


def _of(stmt: Stmt) -> _Effect:
    """What one statement without parts does."""
    match stmt:
        case Mma(sums, at, a, b, kind):
            return _both({sums: _Adds(8.0 if kind == "tf32" else 16.0, frozenset({at}))}, _read(*at, *a, *b))
        case Wgmma(sums, at, a, b):
            return _both({sums: _Adds(16.0, frozenset({at}))}, _read(*at, a, b))
        case Store(buffer, index, value):
            terms = _terms(value, Load(buffer, index)) if is_float(buffer.dtype) else None
            if terms is None:
                return {**_read(*index, value), buffer: None}
            return _both({buffer: _Adds(1.0, frozenset({index}))}, _read(*index, *terms))
    return {**_read(*stmt_exprs(stmt)), **({stmt.to: None} if hasattr(stmt, "to") else {})}


def _terms(value: LoopExpr, own: LoopExpr) -> list[LoopExpr] | None:
    """What is added to ``own``, an element of an accumulator, to make ``value``; ``None`` where it is no such sum."""
    match value:
        case Binary("add", a, b):
            for total, term in ((a, b), (b, a)):
                rest = [] if total is own else _terms(total, own)
                if rest is not None:
                    return [*rest, term]
        case Intrin("fma", (a, b, total)):
            rest = [] if total is own else _terms(total, own)
            return None if rest is None else [*rest, a, b]
    return None


def _loop(found: For, ranges: Ranges) -> tuple[Stmt, _Effect]:
    body, effect = _walk(found.body, {**ranges, found.var: counter(found.extent, ranges)})
    found = found if body is found.body else replace(found, body=body)
    around = _both({b: _in_lanes(found, b, adds) for b, adds in effect.items()}, _read(found.extent))
    if found.kind not in _ORDERED:
        return found, around
    times = _times(found, ranges)
    added = {b: adds for b, adds in around.items() if adds is not None and not adds.along(found.var)}
    long = {b: adds for b, adds in added.items() if adds.terms * times > LONGEST and _is_kept(b)}
    made, left = _split(found, long, times) if long else (found, {})
    more = {b: left.get(b) or replace(adds, terms=adds.terms * times) for b, adds in added.items()}
    return made, {**around, **more}


def _in_lanes(found: For, buffer: Buffer, adds: _Adds | None) -> _Adds | None:
    if adds is None or found.kind is not LoopKind.VECTORIZED or not isinstance(found.extent, Const):
        return adds
    whole = bool(buffer.shape) and found.extent.value == buffer.shape[-1]
    return replace(adds, vector=adds.vector or (whole and any(at[-1] is found.var for at in adds.index)))


def _times(found: For, ranges: Ranges) -> float:
    """Iterations at most; infinite where they depend on a size that a run says."""
    high = counter(found.extent, ranges).high
    unknown = math.inf if any(isinstance(one, Size) for one in found.extent.mentions) else 1.0
    return unknown if high is None else float(high + 1)


def _is_kept(buffer: Buffer) -> bool:
    """True if it is memory of a thread's own that one more of costs little."""
    return buffer.scope != "global" and all(isinstance(n, int) for n in buffer.shape)


def _split(found: For, sums: Mapping[Buffer, _Adds], times: float) -> tuple[Stmt, _Effect]:
    """A loop in blocks, each of which adds to parts of its own; what is left over after them is one more."""
    each = max(adds.terms for adds in sums.values())
    size = max(1, int((LONGEST if math.isinf(times) else BLOCK) // each))
    name, whole, kind = found.var.name, found.extent // size, found.kind
    outer, inner, last = LoopVar(f"{name}_block"), LoopVar(name), LoopVar(f"{name}_rest")
    some = bind_vars(found.body, {found.var: outer * size + inner if size > 1 else outer})
    block = _in_parts(For(inner, Const(size), some, kind) if size > 1 else some, sums)
    main, rounds = For(outer, whole, block, kind), times if math.isinf(times) else times // size
    parts = {b: replace(adds, terms=1.0) for b, adds in sums.items()}
    made: tuple[Stmt, _Effect] = main, {b: replace(adds, terms=rounds) for b, adds in sums.items()}
    if isinstance(whole, Const) and rounds > LONGEST:
        made = _split(main, parts, rounds)
    rest = found.extent - whole * size
    if size == 1 or (isinstance(rest, Const) and rest.value == 0):
        return made
    tail = For(last, rest, fresh_vars(found.body, {found.var: whole * size + last}), kind)
    return seq(made[0], _in_parts(tail, sums)), _both(made[1], {**parts})


def _in_parts(body: Stmt, sums: Mapping[Buffer, _Adds]) -> Stmt:
    """What is added to sums, added to parts first, and these to the sums."""
    parts = {b: Buffer(f"{b.name}_part", b.shape, b.dtype, b.scope) for b in sums}

    def zero(part: Buffer, index: tuple[LoopExpr, ...]) -> Stmt:
        return Store(part, index, const(0, part.dtype))

    def add(total: Buffer, index: tuple[LoopExpr, ...]) -> Stmt:
        return Store(total, index, Load(total, index) + Load(parts[total], index))

    before = (_everywhere(part, sums[total], partial(zero, part)) for total, part in parts.items())
    after = (_everywhere(total, sums[total], partial(add, total)) for total in parts)
    return with_memory(parts.values(), seq(*before, redirect(body, parts), *after))


def _everywhere(buffer: Buffer, adds: _Adds, body: Callable[[tuple[LoopExpr, ...]], Stmt]) -> Stmt:
    """``body(index)`` at every element of an accumulator: in lanes as it is added to, in registers where small."""
    loops = [(LoopVar("ijklmnopq"[d]), n) for d, n in enumerate(buffer.shape)]
    stmt = body(tuple(var for var, _ in loops))
    small = math.prod(buffer.shape[: -1 if adds.vector else None]) <= _WRITTEN_OUT
    for number, (var, extent) in enumerate(reversed(loops)):
        kind = LoopKind.UNROLLED if small else LoopKind.SERIAL
        stmt = For(var, Const(extent), stmt, LoopKind.VECTORIZED if adds.vector and not number else kind)
    return stmt
