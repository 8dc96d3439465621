"""Schedule steps that take loops apart: partition, fission, distribute; and the condition that moves to the stores.

A ragged end is a loop of its own, so that what most iterations do asks nothing: loop partitioning as Halide does for
its boundaries, loop fission and scalar expansion as in Allen and Kennedy, "Optimizing Compilers for Modern
Architectures" (2001).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from minitvm.codegen.dependences import accesses, inner_ranges, may_meet
from minitvm.codegen.loops import fresh_vars, inside, lanes, redirect
from minitvm.codegen.schedule_loops import (
    ORDERED,
    LoopName,
    check_independent,
    check_interchange,
    constant_extent,
    find_loop,
    known_extent,
    reorder,
    require,
    require_nested,
    split,
    with_body,
    with_loop,
)
from minitvm.codegen.schedule_memory import is_filled
from minitvm.codegen.simplify import simplify_expr
from minitvm.codegen.walks import Cutter
from minitvm.ir.loop import (
    Alloc,
    Barrier,
    Binary,
    Const,
    For,
    If,
    Kernel,
    Ldmatrix,
    LoopExpr,
    LoopKind,
    LoopVar,
    Mma,
    Seq,
    Stmt,
    Store,
    Wgmma,
    allocated,
    map_stmt,
    seq,
    stmt_exprs,
    walk_exprs,
    walk_stmts,
)
from minitvm.ir.loop.affine import Range, Ranges, bounds, prove

# --- cutting a loop -------------------------------------------------------------------------------------------


def partition(kernel: Kernel, loop: LoopName, at: Sequence[int] | None = None) -> Kernel:
    """``i`` becomes ``i_0``, ``i_1``, ... one after the other, each over a part of its iterations, in order.

    A part begins at each of ``at``; by default where a condition in the loop changes.  Conditions that a part decides
    are gone from it, and so is a part that does nothing.
    """
    found = find_loop(kernel, loop)
    name, extent = found.var.name, constant_extent(kernel, found)
    ranges = inner_ranges(kernel.body)
    if at is None:
        pieces = [(p.start, p.count, p.value) for p in _BODIES.segments(found.body, found.var, extent, ranges)]
        why = f"no condition in loop {name} changes along it"
        require(kernel, len(pieces) > 1, why, "or in too many places; at= says where to cut it")
    else:
        edges = [0, *at, extent]
        fits = all(start < end for start, end in pairwise(edges))
        require(kernel, fits, f"loop {name} of {extent} iterations cannot be cut at {', '.join(map(str, at))}")
        pieces = [(s, e - s, decided(found.body, {**ranges, found.var: Range(s, e - 1)})) for s, e in pairwise(edges)]
    parts = [_part(found, number, *piece) for number, piece in enumerate(pieces) if piece[2] != NOTHING]
    return with_loop(kernel, found, seq(*parts))


def _part(found: For, number: int, start: int, count: int, body: Stmt) -> Stmt:
    var = LoopVar(f"{found.var.name}_{number}")
    return For(var, Const(count), fresh_vars(body, {found.var: var + start}), found.kind)


def exprs(stmt: Stmt) -> Iterator[LoopExpr]:
    """Every expression below a statement, each with what it is made of."""
    for part in walk_stmts(stmt):
        for root in stmt_exprs(part):
            yield from walk_exprs(root)


NOTHING = Seq(())


def decided(stmt: Stmt, ranges: Ranges) -> Stmt:
    """A statement whose conditions, as far as the ranges of variables decide them, are gone; its loops stay."""

    def chosen(node: Stmt) -> Stmt:
        match node:
            case If(condition, then, orelse):
                known = prove(condition, ranges)
                return node if known is None else then if known else NOTHING if orelse is None else orelse
            case For(_, _, body) | Alloc(_, body):
                return NOTHING if body == NOTHING else node
        return NOTHING if isinstance(node, Seq) and not node.stmts else node

    return map_stmt(stmt, lambda e: simplify_expr(e, ranges), chosen)


_BODIES: Cutter[Stmt] = Cutter(exprs, decided)


# --- one loop around several statements -----------------------------------------------------------------------


def fission(kernel: Kernel, loop: LoopName) -> Kernel:
    """A loop around several statements becomes a loop around each, one after the other."""
    found = find_loop(kernel, loop)
    name, body = found.var.name, found.body
    why = f"loop {name} is not directly around several statements"
    require(kernel, isinstance(body, Seq), why, "distribute moves memory in the loop out of it")
    assert isinstance(body, Seq)
    kinds = (*ORDERED, LoopKind.VECTORIZED)
    require(kernel, found.kind in kinds, f"loop {name} is {found.kind.value}", "fission first")
    for number in range(1, len(body.stmts) if known_extent(kernel, found) != 1 else 0):
        _require_apart(kernel, found, seq(*body.stmts[:number]), body.stmts[number])
    first, *others = (For(found.var, found.extent, part, found.kind) for part in body.stmts)
    return with_loop(kernel, found, seq(first, *map(fresh_vars, others)))


def _require_apart(kernel: Kernel, around: For, first: Stmt, then: Stmt) -> None:
    """No iteration's second part may touch what a later iteration's first part touches, unless both only read."""
    extent, ranges, private = bounds(around.extent, {}).high, inner_ranges(around.body), allocated(around.body)
    for a in accesses(first):
        for b in accesses(then):
            shared = a.buffer is b.buffer and (a.is_store or b.is_store) and a.buffer not in private
            met = shared and may_meet(a, b, around.var, extent, ranges)
            name = around.var.name
            require(kernel, not met, f"iterations of loop {name} depend on each other through {a.buffer.name}")
    barrier = any(isinstance(s, Barrier) for s in walk_stmts(around.body))
    require(kernel, not barrier, f"loop {around.var.name} has a barrier")


def distribute(kernel: Kernel, loop: LoopName, scope: str = "shared") -> Kernel:
    """The iterations side by side in the loops below, as ``jam`` has them, but in loops: each statement below becomes a
    loop (stores side by side share one), and memory below gets a place for each iteration in front, in ``scope``.

    A reduction's loop so gets around ``loop``, and its sums stay in memory: partial sums, a piece of the depth at a
    time once that loop is split.
    """
    found = find_loop(kernel, loop)
    constant_extent(kernel, found)
    check_independent(kernel, found)
    require(kernel, found.kind in ORDERED, f"loop {found.var.name} is {found.kind.value}", "distribute first")
    made = lanes(found, LoopKind.SERIAL)
    inside = [f for f in walk_stmts(made) if isinstance(f, For) and f.var.name == found.var.name]
    alike = not any(isinstance(s, (Alloc, Barrier)) for f in inside for s in walk_stmts(f.body))
    why = f"memory inside loop {found.var.name} is under a loop or a condition that varies with it"
    require(kernel, alike, why)
    moved = {b: replace(b, scope=scope) for b in allocated(made) if b.scope != scope}

    def elsewhere(stmt: Stmt) -> Stmt:
        return Alloc(moved[stmt.buffer], stmt.body) if isinstance(stmt, Alloc) and stmt.buffer in moved else stmt

    return with_loop(kernel, found, map_stmt(redirect(made, moved), on_stmt=elsewhere))


# --- a condition around what may be done anyway -----------------------------------------------------------------


def predicate(kernel: Kernel, loop: LoopName) -> Kernel:
    """The condition around all that an iteration does, as ``split`` leaves one, is asked only where it stores something
    that is read elsewhere; the rest is done in any case, as a vector's last lanes are.

    Whatever is loaded has to be there without the condition: panels filled up with zeros (``stage``) are.
    """
    found = find_loop(kernel, loop)
    name, body = found.var.name, found.body
    why = f"an iteration of loop {name} is not under one condition"
    require(kernel, isinstance(body, If) and body.orelse is None and not body.condition.reads, why)
    assert isinstance(body, If)
    condition, private, ranges = body.condition, set(allocated(body)), inner_ranges(kernel.body)
    for access in accesses(body.then):
        known = access.buffer in private or is_filled(kernel, access.buffer)
        why = f"without its condition loop {name} may leave {access.buffer.name}, or read what is not there yet"
        there = prove(inside(access.index, access.buffer.shape), ranges) is True
        require(kernel, (access.is_store and access.buffer not in private) or (known and there), why)
    unsafe = any(map(_may_trap, exprs(body.then))) or any(isinstance(s, Barrier) for s in walk_stmts(body.then))
    require(kernel, not unsafe, f"without its condition loop {name} may divide by zero, or wait")

    def asked(stmt: Stmt) -> Stmt:
        outside = isinstance(stmt, (Mma, Ldmatrix, Wgmma)) or (isinstance(stmt, Store) and stmt.buffer not in private)
        return If(condition, stmt) if outside else stmt

    return with_body(kernel, found, map_stmt(body.then, on_stmt=asked))


def _may_trap(expr: LoopExpr) -> bool:
    match expr:
        case Binary("div" | "mod" | "floordiv" | "floormod", _, divisor) if not divisor.dtype.startswith("float"):
            return not isinstance(divisor, Const) or not divisor.value
    return False


# --- ragged ends of two axes ----------------------------------------------------------------------------------


def tile(kernel: Kernel, first: LoopName, second: LoopName, rows: int, columns: int, tail: str = "guard") -> Kernel:
    """``i`` over ``j`` becomes ``i_outer, j_outer, i_inner, j_inner``: blocks of ``rows x columns``.

    ``tail`` is that of ``split`` for the columns, and rows have to be divisible; or ``"peel"``: what is left over of
    rows, of columns and of both are nests of their own, tiled as far as they go, without a condition.
    """
    i, j = find_loop(kernel, first), find_loop(kernel, second)
    require_nested(kernel, i, j)
    if tail == "peel":
        return _peeled(kernel, i, j, rows, columns)
    extent, hint = constant_extent(kernel, i), "tail='peel' makes nests of what is left over"
    why = f"the {extent} iterations of loop {i.var.name} are not divisible by {rows}"
    require(kernel, extent % rows == 0, why, hint)
    made = split(split(kernel, j.var, columns, tail), i.var, rows)
    return reorder(made, *(f"{f.var.name}_{part}" for part in ("outer", "inner") for f in (i, j)))


def _peeled(kernel: Kernel, i: For, j: For, rows: int, columns: int) -> Kernel:
    """Four nests at most: whole blocks, and what is left over of columns, of rows, and of both."""
    check_interchange(kernel, [i, j])
    lanes = LoopKind.VECTORIZED in (i.kind, j.kind)
    require(kernel, not lanes, f"loop {j.var.name} is vectorized", "tile first, then vectorize the inner loop")
    nests: list[Stmt] = []
    for row, tall, size in _runs(constant_extent(kernel, i), rows):
        for column, wide, width in _runs(constant_extent(kernel, j), columns):
            around = tuple(LoopVar(f"{f.var.name}_{part}") for part in ("outer", "inner") for f in (i, j))
            at = [
                outer * n + inner + begin
                for outer, inner, n, begin in zip(around[:2], around[2:], (size, width), (row, column), strict=True)
            ]
            body = fresh_vars(j.body, {i.var: at[0], j.var: at[1]})
            kinds = (i.kind, j.kind, LoopKind.SERIAL, LoopKind.SERIAL)
            for var, extent, kind in reversed([*zip(around, (tall, wide, size, width), kinds, strict=True)]):
                body = For(var, Const(extent), body, kind)
            nests.append(body)
    return with_loop(kernel, i, seq(*nests))


def _runs(extent: int, size: int) -> list[tuple[int, int, int]]:
    """Where pieces of a size begin, how many there are, and the size: whole ones, and what is left over."""
    whole, rest = divmod(extent, size)
    return [(begin, count, n) for begin, count, n in ((0, whole, size), (whole * size, 1, rest)) if count and n]
