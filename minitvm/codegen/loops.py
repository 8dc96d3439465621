"""Loops made of other loops: what schedule steps, default schedules and templates are made with.

Nothing here asks whether iterations may run in another order: the steps of :mod:`minitvm.codegen.schedule` do, and
those who write loops know.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from minitvm.doors import door
from minitvm.ir.dims import Dim, ceil_divide, usual
from minitvm.ir.loop import (
    Alloc,
    Barrier,
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
    Seq,
    Stmt,
    Store,
    all_of,
    as_index,
    binary,
    const,
    dim_of,
    intrin,
    loop,
    map_expr,
    map_nodes,
    map_stmt,
    maximum,
    minimum,
    select,
    seq,
    summary,
)
from minitvm.ir.loop.builder import LoopBuilder
from minitvm.ir.op import identity_of

Loops: TypeAlias = Sequence[tuple[LoopVar, int]]
"""Variables and extents, outermost first."""


def enough(count: Dim, wanted: float) -> bool:
    """True if a number of iterations is known to be large enough."""
    return isinstance(count, int) and count >= wanted


def trips(found: For) -> int:
    """The number of iterations of a loop of constant extent."""
    assert isinstance(found.extent, Const)
    return int(found.extent.value)


def bind_vars(body: Stmt, values: Mapping[LoopVar, LoopExpr], on_stmt: Callable[[Stmt], Stmt] = lambda s: s) -> Stmt:
    """``body`` with variables replaced."""
    return map_nodes(body, lambda e: values.get(e, e) if isinstance(e, LoopVar) else e, on_stmt, values.keys())


def fresh_vars(body: Stmt, values: Mapping[LoopVar, LoopExpr] | None = None) -> Stmt:
    """A copy whose loops have variables of their own; with other variables replaced by ``values``."""
    own = {var: LoopVar(var.name) for var in summary(body).loops}

    def rename(stmt: Stmt) -> Stmt:
        return For(own[stmt.var], stmt.extent, stmt.body, stmt.kind) if isinstance(stmt, For) else stmt

    return bind_vars(body, {**(values or {}), **own}, rename)


def nested(loops: Loops, body: Stmt) -> Stmt:
    """One loop after the other around ``body``."""
    for var, extent in reversed(loops):
        body = For(var, as_index(extent), body)
    return body


def with_memory(buffers: Iterable[Buffer], body: Stmt) -> Stmt:
    """``body``, and buffers that live around it, the first one outermost."""
    for buffer in reversed([*buffers]):
        body = Alloc(buffer, body)
    return body


def after(buffer: Buffer, fill: Stmt, body: Stmt) -> Stmt:
    """``fill``, a barrier, ``body``; the buffer that is filled lives around them."""
    return Alloc(buffer, seq(fill, Barrier(), body))


# --- other memory ----------------------------------------------------------------------------------------------

At: TypeAlias = Callable[[tuple[LoopExpr, ...]], tuple[LoopExpr, ...]]
"""Where in the new buffer the element lies that the old one has at an index."""


def redirect(stmt: Stmt, targets: Mapping[Buffer, Buffer], at: At = tuple) -> Stmt:
    """Loads from and stores to each buffer in ``targets`` go to the one that it stands for, at ``at(index)``."""

    def redirected(node: Stmt) -> Stmt:
        if isinstance(node, Store) and node.buffer in targets:
            return type(node)(targets[node.buffer], at(node.index), node.value)
        return node

    done: dict[LoopExpr, LoopExpr] = {}
    return map_stmt(stmt, lambda e: redirect_loads(e, targets, at, done), redirected, targets.keys())


def redirect_loads(
    expr: LoopExpr, targets: Mapping[Buffer, Buffer], at: At = tuple, done: dict[LoopExpr, LoopExpr] | None = None
) -> LoopExpr:
    """:func:`redirect` for one expression; ``done``: what was made of others."""

    def redirected(node: LoopExpr) -> LoopExpr:
        if isinstance(node, Load) and node.buffer in targets:
            return Load(targets[node.buffer], at(node.index))
        return node

    return map_expr(expr, redirected, done, targets.keys())


# --- one loop becomes two, two become one ---------------------------------------------------------------------


def split(found: For, factor: int, tail: str = "peel", each: Callable[[For], Stmt] = lambda f: f) -> Stmt:
    """Strip mining: ``i_outer`` over ``i_inner`` of ``factor`` iterations, as :func:`minitvm.codegen.schedule.split`
    says.

    ``tail`` says what becomes of iterations that are left over: peeling (a loop of their own), a guard, or a shorter
    inner loop.  ``each`` makes something else of the inner loop, and of the one of what is left over (``"peel"``).
    """
    name, extent = found.var.name, dim_of(found.extent)
    assert extent is not None
    whole = extent // factor
    rest = extent - whole * factor
    outer, inner = LoopVar(f"{name}_outer"), LoopVar(f"{name}_inner")
    at = outer * factor + inner
    body = bind_vars(found.body, {found.var: at})
    count: LoopExpr = Const(factor)
    if rest != 0 and tail == "guard":
        body = If(at < found.extent, body)
    elif rest != 0 and tail == "shorter":
        count = minimum(factor, found.extent - outer * factor)
    rounds = whole if tail == "peel" else ceil_divide(extent, factor)
    main = For(outer, as_index(rounds), each(For(inner, count, body)), found.kind) if rounds != 0 else None
    if rest == 0 or tail != "peel":
        return seq(main)
    var = LoopVar(f"{name}_tail")
    last = fresh_vars(found.body, {found.var: var + whole * factor})
    return seq(main, each(For(var, as_index(rest), last, found.kind)))


def fused(loops: Loops, body: Stmt, name: str, kind: LoopKind = LoopKind.SERIAL) -> For:
    """Perfectly nested loops as one over their product."""
    var, extents = LoopVar(name), [extent for _, extent in loops]
    values = dict(zip((v for v, _ in loops), unflatten(var, extents), strict=True))
    return For(var, as_index(math.prod(extents)), bind_vars(body, values), kind)


def in_pieces(loops: Loops, body: Stmt, name: str, wanted: int) -> For:
    """Perfectly nested loops as a parallel one, of ``wanted`` iterations and more where there are so many.  The last
    one goes in pieces where only a run knows how long it is: what divides a position by such a number is done for
    each."""
    if not loops or isinstance(loops[-1][1], int):
        return fused(loops, body, name, LoopKind.PARALLEL)
    *outer, (var, extent) = loops
    count = max(1, -(-wanted // max(1, math.prod(usual(n) for _, n in outer))))
    piece, inner, length = LoopVar("piece"), LoopVar(var.name), ceil_divide(extent, count)
    start = piece * length
    here = as_index(length) if count == 1 else maximum(0, minimum(as_index(length), as_index(extent) - start))
    part = For(inner, here, bind_vars(body, {var: start + inner}))
    return fused((*outer, (piece, count)), part, name, LoopKind.PARALLEL)


def unflatten(position: LoopExpr, extents: Sequence[Dim]) -> tuple[LoopExpr, ...]:
    """The row-major index of a flat position; the leading one of several needs no remainder."""
    index: list[LoopExpr] = []
    for d, extent in reversed([*enumerate(extents)]):
        leads = all(n == 1 for n in extents[:d])
        index.append(Const(0) if extent == 1 else position if leads else position % extent)
        position = position if leads else position // extent
    return tuple(reversed(index))


# --- lanes ----------------------------------------------------------------------------------------------------


def lanes(found: For, kind: LoopKind = LoopKind.VECTORIZED) -> Stmt:
    """All iterations at once: each statement below becomes a loop over lanes, each memory a lane's own element of it.
    Serial ones keep stores side by side together.

    Loops below stay around it, so what varies with the lane is neither their extent nor a condition around them.  Of
    another ``kind`` the new loops are around lanes that are there already, and memory has the place in front.
    """
    var, count = found.var, trips(found)
    if count == 1:
        return bind_vars(found.body, {var: Const(0)})
    last, wide = kind is LoopKind.VECTORIZED, dict[Buffer, Buffer]()

    def vector(stmt: Stmt) -> Stmt:
        lane = LoopVar(var.name)
        moved = redirect(stmt, wide, lambda i: (*i, lane) if last else (lane, *i))
        return For(lane, Const(count), fresh_vars(moved, {var: lane}), kind)

    def walk(stmt: Stmt) -> Stmt:
        match stmt:
            case Seq(stmts) if kind is not LoopKind.SERIAL or not all(isinstance(part, Store) for part in stmts):
                return seq(*map(walk, stmts))
            case For(inner, extent, body, inside) if var not in extent.mentions and (
                last or inside is not LoopKind.VECTORIZED
            ):
                return For(inner, extent, walk(body), inside)
            case If(condition, then, orelse) if var not in condition.mentions:
                return If(condition, walk(then), None if orelse is None else walk(orelse))
            case Alloc(buffer, body):
                shape = (*buffer.shape, count) if last else (count, *buffer.shape)
                wide[buffer] = Buffer(buffer.name, shape, buffer.dtype, buffer.scope)
                return Alloc(wide[buffer], walk(body))
        return vector(stmt)

    return walk(found.body)


def vectors(found: For, width: int) -> Stmt:
    """The iterations ``width`` at a time, and what is left over in a shorter vector; in a masked one where it is known
    only when the kernel runs."""
    if width > 1 and not isinstance(found.extent, Const):
        return _masked(found, width, lanes)
    return split(found, width, "peel", lanes) if width > 1 else found


def _masked(
    found: For, width: int, each: Callable[[For], Stmt], at_the_end: Callable[[LoopExpr, Stmt], Stmt] = If
) -> Stmt:
    """A loop of symbolic extent, ``width`` iterations at a time; ``each`` makes lanes of so many, ``at_the_end`` the
    body of the last ones, of which there are some under a condition."""
    extent, outer, inner, last = found.extent, LoopVar(f"{found.var.name}_outer"), LoopVar("lane"), LoopVar("lane")
    whole = extent // width
    main = For(outer, whole, each(For(inner, Const(width), bind_vars(found.body, {found.var: outer * width + inner}))))
    at = whole * width + last
    rest = each(For(last, Const(width), at_the_end(at < extent, fresh_vars(found.body, {found.var: at}))))
    return seq(main, If(whole * width < extent, rest))


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
        if stmt is not found:
            return stmt
        alone = For(found.var, found.extent, update)
        if not isinstance(found.extent, Const):
            return _masked(alone, width, in_lanes_of_its_own, _added_where)
        return split(alone, width, "peel", in_lanes_of_its_own)

    parts = alloc.body.stmts if isinstance(alloc.body, Seq) else (alloc.body,)
    done = [map_stmt(part, on_stmt=reduced) for part in parts]
    at = next(i for i, (new, old) in enumerate(zip(done, parts, strict=True)) if new is not old)
    after = [on(part, Const(0)) for part in parts[at + 1 :]]
    op = update.value.op if isinstance(update.value, Binary) else "add"
    return Alloc(wide, seq(*map(before, parts[:at]), done[at], halved(wide, update.index, width, op), *after))


_KINDS = {"add": "sum", "mul": "prod", "max": "max", "min": "min", "larger": "larger"}


def _added_where(condition: LoopExpr, update: Stmt) -> Stmt:
    """An update of partial results in all lanes, by what changes nothing where a condition does not hold: what is
    stored under a mask stays in memory, and is waited for there."""
    match update:
        case Store(acc, index, Binary(op, Load() as held, x)) if held.buffer is acc and op in _KINDS:
            return Store(acc, index, binary(op, held, select(condition, x, identity_of(_KINDS[op], x.dtype))))
        case Store(acc, index, Intrin("fma", (x, y, Load() as held))) if held.buffer is acc:
            return Store(acc, index, intrin("fma", or_zero(condition, x), or_zero(condition, y), held))
    return If(condition, update)


def halved(wide: Buffer, at: Sequence[LoopExpr], width: int, op: str) -> Stmt:
    """Combine ``width`` lanes in lane 0 of ``wide[at]``, halving their number with every step."""
    steps: list[Stmt] = []
    while width > 1:
        half = -(-width // 2)
        lane = LoopVar("lane")
        a, b = (*at, lane), (*at, lane + half)
        steps.append(lanes(For(lane, Const(width - half), Store(wide, a, binary(op, wide[a], wide[b])))))
        width = half
    return seq(*steps)


# --- written with functions of a position ---------------------------------------------------------------------


Valid: TypeAlias = int | LoopExpr
"""How many lanes of a vector there are elements for."""


def in_vectors(code: LoopBuilder, extent: Dim, width: int) -> Iterator[tuple[LoopExpr, Any]]:
    """The start and the width of whole vectors, then once of what is left over, a :data:`Valid`, which may be nothing
    where only a run knows it; one by one where ``width`` is 1."""
    if width == 1:
        with code.loop(extent, "j") as j:
            yield j, 1
        return
    whole = extent // width
    rest = extent - whole * width
    if whole != 0:
        with code.loop(whole, "v") as v:
            yield v * width, width
    if rest != 0:
        yield as_index(whole * width), rest if isinstance(rest, int) else as_index(rest)


def in_strips(
    code: LoopBuilder, rows: Dim, extent: Dim, width: int, kind: LoopKind
) -> Iterator[tuple[LoopExpr, LoopExpr, int]]:
    """Row, start and width of strips of ``width`` of all rows, then of what is left over of each row: at once, or one
    by one where only a run knows how much that is."""
    whole = extent // width
    rest, strips = extent - whole * width, as_index(whole)
    if whole != 0 or not isinstance(rest, int):
        with code.loop(rows * whole, "strip", kind) as p:
            row, strip = unflatten(p, (rows, whole))
            yield row, strip * width, width
    if not isinstance(rest, int):
        with code.loop(rows * rest, "row", kind) as p:
            row, one = unflatten(p, (rows, rest))
            yield row, strips * width + one, 1
    elif rest:
        with code.loop(rows, "row", kind) as row:
            yield row, strips * width, rest


@contextmanager
def parallel(
    code: LoopBuilder, extents: Sequence[int], wanted: float = math.inf, name: str = "work"
) -> Iterator[tuple[LoopExpr, ...]]:
    """Loops over ``extents``, all of them divided among threads; or as many of the outer ones as give ``wanted`` pieces
    of work."""
    count = next((k for k in range(1, len(extents)) if enough(math.prod(extents[:k]), wanted)), len(extents))
    outer, inner = extents[:count], extents[count:]
    with code.loop(math.prod(outer), name, LoopKind.PARALLEL) as flat, code.nest(inner, "i") as rest:
        yield (*unflatten(flat, outer), *rest)


def inside(index: Iterable[LoopExpr], shape: Iterable[int]) -> LoopExpr:
    """Tells whether an index lies in a shape."""
    return all_of([condition for i, n in zip(index, shape, strict=True) for condition in (i >= 0, i < n)])


def or_zero(condition: LoopExpr, value: LoopExpr) -> LoopExpr:
    """The value where the condition holds, which is asked first; else zero."""
    return select(condition, value, const(0, value.dtype))


def in_lanes(width: int, body: Callable[[LoopExpr], Stmt]) -> Stmt:
    """``body`` for every lane."""
    return loop(width, body, LoopKind.VECTORIZED, name="lane") if width > 1 else body(Const(0))


# --- transposing a square of vectors in registers -------------------------------------------------------------
# The elements of a matrix of ``lanes x lanes`` (a power of two) are numbered row by row.  Taking those of even number
# first, then those of odd number, rotates the bits of every number by one; after ``log2(lanes)`` such steps row and
# column have changed places.  Each step is one shuffle of two vectors for every vector of the result.
#
# One instruction shuffles two vectors of 32 bytes (AVX2) within their halves only, so there it is done for the four
# quarters of the matrix side by side; then those off the diagonal change places.

_HALF = 16
"""Bytes of half a vector of AVX2."""


@contextmanager
def transposed(
    code: LoopBuilder, lanes: int, dtype: str, rows: int, columns: int, load: Callable[[LoopExpr, LoopExpr], LoopExpr]
) -> Iterator[tuple[LoopExpr, LoopExpr, LoopExpr]]:
    """Column, row and ``load(row, column)`` of ``rows x columns`` elements, in vectors of whole rows both times.

    At most ``lanes`` of each.  ``load`` is asked for ``lanes`` columns and has to answer for those that are missing;
    what is in here gets vectors of ``rows``.
    """
    squares = [Buffer(f"square{step}", (lanes * lanes,), dtype, "local") for step in range(lanes.bit_length())]
    first, last = squares[0], squares[-1]
    size = np.dtype(dtype).itemsize
    part = _HALF // size if size >= 4 and lanes * size == 2 * _HALF else lanes
    with code.memory(*squares[::-1]):
        with _vectors(code, rows, lanes) as (i, lane):
            code.store(first, (i * lanes + lane,), load(i, lane).astype(dtype))
        with _vectors(code, lanes - rows, lanes) as (i, lane):
            code.store(first, ((i + rows) * lanes + lane,), const(0, dtype))
        for a, b in itertools.pairwise(squares):
            if part < lanes and b is last:
                _swap_quarters(code, a, b, lanes)
            else:
                _evens_and_odds(code, a, b, lanes, part)
        with _vectors(code, columns, rows) as (j, lane):
            yield j, lane, last[j * lanes + lane]


def _evens_and_odds(code: LoopBuilder, source: Buffer, target: Buffer, lanes: int, part: int) -> None:
    """Of every block of ``part x part`` elements."""
    half = part // 2
    for row, odd in itertools.product(range(0, lanes, part), (0, 1)):
        with _vectors(code, half, lanes) as (v, lane):
            number = (v * part + (lane if part == lanes else lane % part)) * 2 + odd
            if part < lanes:
                number = (number // part + row) * lanes + lane // part * part + number % part
            code.store(target, ((v + (row + odd * half)) * lanes + lane,), source[number])


def _swap_quarters(code: LoopBuilder, source: Buffer, target: Buffer, lanes: int) -> None:
    half = lanes // 2
    with _vectors(code, lanes, lanes) as (v, lane):
        row = lane // half * half + v % half
        code.store(target, (v * lanes + lane,), source[row * lanes + lane % half + v // half * half])


@contextmanager
def _vectors(code: LoopBuilder, count: int, lanes: int) -> Iterator[tuple[LoopExpr, LoopExpr]]:
    with code.loop(count, "v", LoopKind.UNROLLED) as v, code.lanes(lanes) as lane:
        yield v, lane


@door
def in_blocks(body: Stmt) -> Stmt:
    """The same loops, of which long sums are made block by block, so that they are exact; here as they are."""
    return body
