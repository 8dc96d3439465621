"""Loops made of other loops: what schedule steps, default schedules and templates are made with.

Nothing here asks whether iterations may run in another order: the steps of :mod:`minitvm.codegen.schedule` do, and
those who write loops know.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from minitvm.ir.loop import (
    Alloc,
    Binary,
    Buffer,
    Const,
    For,
    If,
    Load,
    LoopExpr,
    LoopKind,
    LoopVar,
    Seq,
    Stmt,
    Store,
    binary,
    loop,
    map_expr,
    map_stmt,
    minimum,
    seq,
    substitute_vars,
)
from minitvm.ir.loop.affine import depends_on

Loops: TypeAlias = Sequence[tuple[LoopVar, int]]
"""Variables and extents, outermost first."""


def trips(found: For) -> int:
    """How often a loop of constant extent runs."""
    assert isinstance(found.extent, Const)
    return int(found.extent.value)


def bind_vars(body: Stmt, values: dict[LoopVar, LoopExpr]) -> Stmt:
    """``body`` with variables replaced."""
    return map_stmt(body, on_expr=lambda e: substitute_vars(e, values)) if values else body


def fresh_vars(body: Stmt) -> Stmt:
    """A copy whose loops have variables of their own."""

    def rename(stmt: Stmt) -> Stmt:
        if isinstance(stmt, For):
            var = LoopVar(stmt.var.name)
            return For(var, stmt.extent, bind_vars(stmt.body, {stmt.var: var}), stmt.kind)
        return stmt

    return map_stmt(body, on_stmt=rename)


def nested(loops: Loops, body: Stmt) -> Stmt:
    """One loop after the other around ``body``."""
    for var, extent in reversed(loops):
        body = For(var, Const(extent), body)
    return body


# --- other memory ----------------------------------------------------------------------------------------------

At: TypeAlias = Callable[[tuple[LoopExpr, ...]], tuple[LoopExpr, ...]]
"""Where in the new buffer the element lies that the old one has at an index."""


def _unmoved(index: tuple[LoopExpr, ...]) -> tuple[LoopExpr, ...]:
    return index


def redirect(stmt: Stmt, targets: Mapping[Buffer, Buffer], at: At = _unmoved) -> Stmt:
    """Loads from and stores to each buffer in ``targets`` go to the one that it stands for, at ``at(index)``."""

    def redirected(node: Stmt) -> Stmt:
        if isinstance(node, Store) and node.buffer in targets:
            return Store(targets[node.buffer], at(node.index), node.value)
        return node

    return map_stmt(stmt, on_expr=lambda e: redirect_loads(e, targets, at), on_stmt=redirected)


def redirect_loads(expr: LoopExpr, targets: Mapping[Buffer, Buffer], at: At = _unmoved) -> LoopExpr:
    """:func:`redirect` for one expression."""

    def redirected(node: LoopExpr) -> LoopExpr:
        if isinstance(node, Load) and node.buffer in targets:
            return Load(targets[node.buffer], at(node.index))
        return node

    return map_expr(expr, redirected)


# --- one loop becomes two, two become one ---------------------------------------------------------------------


def split(found: For, factor: int, tail: str = "peel", each: Callable[[For], Stmt] = lambda f: f) -> Stmt:
    """``i_outer`` over ``i_inner`` of ``factor`` iterations, as :func:`minitvm.codegen.schedule.split` says.

    ``each`` makes something else of the inner loop, and of the one of what is left over (``"peel"``).
    """
    name, extent = found.var.name, trips(found)
    whole, rest = divmod(extent, factor)
    outer, inner = LoopVar(f"{name}_outer"), LoopVar(f"{name}_inner")
    at = outer * factor + inner
    body = bind_vars(found.body, {found.var: at})
    count: LoopExpr = Const(factor)
    if rest and tail == "guard":
        body = If(at < extent, body)
    elif rest and tail == "shorter":
        count = minimum(factor, extent - outer * factor)
    rounds = whole if tail == "peel" else -(-extent // factor)
    main = For(outer, Const(rounds), each(For(inner, count, body)), found.kind) if rounds else None
    if not rest or tail != "peel":
        return seq(main)
    var = LoopVar(f"{name}_tail")
    last = fresh_vars(bind_vars(found.body, {found.var: var + whole * factor}))
    return seq(main, each(For(var, Const(rest), last, found.kind)))


def fused(loops: Loops, body: Stmt, name: str, kind: LoopKind = LoopKind.SERIAL) -> For:
    """Perfectly nested loops as one over their product."""
    var, extents = LoopVar(name), [extent for _, extent in loops]
    values = dict(zip((v for v, _ in loops), unflatten(var, extents), strict=True))
    return For(var, Const(math.prod(extents)), bind_vars(body, values), kind)


def unflatten(position: LoopExpr, extents: Sequence[int]) -> tuple[LoopExpr, ...]:
    """The row-major index of a flat position; the leading one needs no remainder."""
    index: list[LoopExpr] = []
    for extent in reversed(extents[1:]):
        index.append(position % extent)
        position = position // extent
    if extents:
        index.append(position if extents[0] != 1 else Const(0))
    return tuple(reversed(index))


# --- lanes ----------------------------------------------------------------------------------------------------


def lanes(found: For) -> Stmt:
    """All iterations at once: each statement below becomes a loop over lanes, each memory a lane's own element of it.

    Loops below stay around it, so what varies with the lane is neither their extent nor a condition around them.
    """
    var, count = found.var, trips(found)
    if count == 1:
        return bind_vars(found.body, {var: Const(0)})

    def vector(stmt: Stmt) -> Stmt:
        return loop(count, lambda lane: bind_vars(stmt, {var: lane}), LoopKind.VECTORIZED, name=var.name)

    def walk(stmt: Stmt) -> Stmt:
        match stmt:
            case Seq(stmts):
                return seq(*map(walk, stmts))
            case For(inner, extent, body, kind) if not depends_on(extent, var):
                return For(inner, extent, walk(body), kind)
            case If(condition, then, orelse) if not depends_on(condition, var):
                return If(condition, walk(then), None if orelse is None else walk(orelse))
            case Alloc(buffer, body):
                wide = Buffer(buffer.name, (*buffer.shape, count), buffer.dtype, buffer.scope)
                return Alloc(wide, walk(redirect(body, {buffer: wide}, lambda index: (*index, var))))
        return vector(stmt)

    return walk(found.body)


def vectors(found: For, width: int) -> Stmt:
    """The iterations ``width`` at a time, and what is left over in a shorter vector."""
    return split(found, width, "peel", lanes) if width > 1 else found


def partial_results(alloc: Alloc, found: For, width: int) -> Alloc:
    """A reduction along ``found`` into ``alloc``'s buffer as ``width`` of them in lanes, combined when all are done.

    ``found`` holds the update, ``t = t + x`` or the like, and nothing else; before it, the buffer is set to what
    changes no result.
    """
    acc, update, lane = alloc.buffer, found.body, LoopVar("lane")
    assert isinstance(update, Store)
    wide = Buffer(acc.name, (*acc.shape, width), acc.dtype, acc.scope)

    def on(stmt: Stmt, lane: LoopExpr) -> Stmt:
        return redirect(stmt, {acc: wide}, lambda index: (*index, lane))

    def in_lanes_of_its_own(part: For) -> Stmt:
        return lanes(replace(part, body=on(part.body, part.var)))

    def before(stmt: Stmt) -> Stmt:
        moved = on(stmt, lane)
        return stmt if moved is stmt else lanes(For(lane, Const(width), moved))

    def reduced(stmt: Stmt) -> Stmt:
        alone = For(found.var, found.extent, update)
        return split(alone, width, "peel", in_lanes_of_its_own) if stmt is found else stmt

    parts = alloc.body.stmts if isinstance(alloc.body, Seq) else (alloc.body,)
    done = [map_stmt(part, on_stmt=reduced) for part in parts]
    at = next(i for i, (new, old) in enumerate(zip(done, parts, strict=True)) if new is not old)
    after = [on(part, Const(0)) for part in parts[at + 1 :]]
    return Alloc(wide, seq(*map(before, parts[:at]), done[at], *_halved(wide, update, width), *after))


def _halved(wide: Buffer, update: Store, width: int) -> list[Stmt]:
    """Combine the lanes in lane 0, halving their number with every step."""
    op = update.value.op if isinstance(update.value, Binary) else "add"
    steps: list[Stmt] = []
    while width > 1:
        half = -(-width // 2)
        lane = LoopVar("lane")
        a, b = (*update.index, lane), (*update.index, lane + half)
        steps.append(lanes(For(lane, Const(width - half), Store(wide, a, binary(op, wide[a], wide[b])))))
        width = half
    return steps


# --- written with functions of a position ---------------------------------------------------------------------


def in_vectors(extent: int, width: int, body: Callable[[LoopExpr, int], Stmt]) -> Stmt:
    """``body(start, width)`` for whole vectors, then once for what is left over; one by one where ``width`` is 1."""
    if width == 1:
        return loop(extent, lambda j: body(j, 1), name="j")
    whole, rest = divmod(extent, width)
    main = loop(whole, lambda v: body(v * width, width), name="v") if whole else None
    return seq(main, body(Const(whole * width), rest) if rest else None)


def in_lanes(width: int, body: Callable[[LoopExpr], Stmt]) -> Stmt:
    """``body`` for every lane."""
    return loop(width, body, LoopKind.VECTORIZED, name="lane") if width > 1 else body(Const(0))
