"""Schedule steps that change where values live: cache_read, cache_write, compute_at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minitvm.codegen.dependence import inner_ranges
from minitvm.codegen.loops import bind_vars
from minitvm.codegen.rewrite import redirect
from minitvm.codegen.schedule_loops import LoopName, find_loop, with_body, with_loop
from minitvm.errors import ScheduleError
from minitvm.ir.loop import (
    Alloc,
    Barrier,
    Buffer,
    Const,
    For,
    If,
    Kernel,
    Load,
    LoopExpr,
    LoopVar,
    Seq,
    Stmt,
    Store,
    all_of,
    nest,
    seq,
    stmt_exprs,
    walk_exprs,
    walk_stmts,
)
from minitvm.ir.loop.affine import Affine, affine
from minitvm.ir.loop.bounds import bounds, prove
from minitvm.ir.loop.interval import Range


@dataclass(frozen=True)
class Region:
    """The part of a buffer that one iteration touches: ``start`` per dimension, and a constant shape."""

    start: tuple[LoopExpr, ...]
    shape: tuple[int, ...]

    def relative(self, index: Sequence[LoopExpr]) -> tuple[LoopExpr, ...]:
        """``index`` counted from ``start``."""
        moved = [affine(i).plus(affine(s), -1) for i, s in zip(index, self.start, strict=True)]
        return tuple(form.to_expr() for form in moved)


def region(
    kernel: Kernel, buffer: Buffer, touched: Sequence[tuple[LoopExpr, ...]], ranges: Mapping[LoopVar, Range], where: str
) -> Region:
    """What the indices ``touched`` reach while the variables in ``ranges`` run and all others stand still."""
    start: list[LoopExpr] = []
    shape: list[int] = []
    for axis in range(len(buffer.shape)):
        parts = [_fixed_and_moving(index[axis], ranges) for index in touched]
        fixed = parts[0][0]
        reach = [bounds(moving.to_expr(), ranges) for _, moving in parts]
        lows, highs = [r.low for r in reach], [r.high for r in reach]
        if any(f.terms != fixed.terms for f, _ in parts) or None in lows or None in highs:
            raise ScheduleError(
                f"{kernel.name}: what loop {where} touches of {buffer.name} is no box of constant size "
                f"(dimension {axis})"
            )
        low = min(x for x in lows if x is not None)
        start.append(fixed.plus(Affine(low)).to_expr())
        shape.append(max(x for x in highs if x is not None) - low + 1)
    return Region(tuple(start), tuple(shape))


def _fixed_and_moving(index: LoopExpr, ranges: Mapping[LoopVar, Range]) -> tuple[Affine[LoopExpr], Affine[LoopExpr]]:
    form = affine(index)
    moving = {t: c for t, c in form.terms.items() if any(isinstance(n, Load) or n in ranges for n in walk_exprs(t))}
    return (
        Affine(0, {t: c for t, c in form.terms.items() if t not in moving}),
        Affine(form.constant, moving),
    )


def _loads_of(stmt: Stmt, buffer: Buffer) -> list[tuple[LoopExpr, ...]]:
    nodes = (n for s in walk_stmts(stmt) for e in stmt_exprs(s) for n in walk_exprs(e))
    return [n.index for n in nodes if isinstance(n, Load) and n.buffer is buffer]


def _stores_to(stmt: Stmt, buffer: Buffer) -> list[Store]:
    return [s for s in walk_stmts(stmt) if isinstance(s, Store) and s.buffer is buffer]


def _known(kernel: Kernel, buffer: Buffer) -> None:
    known = [*kernel.params, *(s.buffer for s in walk_stmts(kernel.body) if isinstance(s, Alloc))]
    if buffer not in known:
        raise ScheduleError(
            f"{kernel.name} has no buffer {buffer.name}", hint=f"it has: {', '.join(b.name for b in known)}"
        )


# --- caches ---------------------------------------------------------------------------------------------------


def cache_read(kernel: Kernel, buffer: Buffer, loop: LoopName, scope: str = "local") -> Kernel:
    """Each iteration of ``loop`` first copies what it reads of ``buffer`` to memory of its own."""
    found = find_loop(kernel, loop)
    _known(kernel, buffer)
    name, touched = found.var.name, _loads_of(found.body, buffer)
    if not touched:
        raise ScheduleError(f"{kernel.name}: loop {name} does not read {buffer.name}")
    if _stores_to(found.body, buffer):
        raise ScheduleError(f"{kernel.name}: loop {name} stores to {buffer.name}, so a copy would be out of date")
    box = region(kernel, buffer, touched, inner_ranges(found.body), name)
    copy = Buffer(f"{buffer.name}_{scope}", box.shape, buffer.dtype, scope)
    ranges = _all_ranges(kernel)

    def element(*index: LoopVar) -> Stmt:
        source = tuple(s + i for s, i in zip(box.start, index, strict=True))
        inside = _inside(buffer, source, ranges | {v: Range(0, n - 1) for v, n in zip(index, box.shape, strict=True)})
        stored = Store(copy, index, Load(buffer, source))
        return stored if inside is None else If(inside, stored)

    fill = nest(box.shape, element, names="uvwrstpq")
    body = Alloc(copy, seq(fill, redirect(found.body, {buffer: copy}, box.relative)))
    return with_body(kernel, found, body)


def _all_ranges(kernel: Kernel) -> dict[LoopVar, Range]:
    return inner_ranges(kernel.body)


def _inside(buffer: Buffer, index: Sequence[LoopExpr], ranges: Mapping[LoopVar, Range]) -> LoopExpr | None:
    """The conditions under which ``index`` is in the buffer that do not hold anyway."""
    checks = [
        c for i, n in zip(index, buffer.shape, strict=True) for c in (i >= 0, i < n) if prove(c, ranges) is not True
    ]
    return all_of(checks) if checks else None


def cache_write(kernel: Kernel, buffer: Buffer, loop: LoopName, scope: str = "local") -> Kernel:
    """Each iteration of ``loop`` computes its part of ``buffer`` in memory of its own, and copies it out at its end."""
    found = find_loop(kernel, loop)
    _known(kernel, buffer)
    name, stores = found.var.name, _stores_to(found.body, buffer)
    if not stores:
        raise ScheduleError(f"{kernel.name}: loop {name} does not store to {buffer.name}")
    ranges = inner_ranges(found.body)
    box = region(kernel, buffer, [*(s.index for s in stores), *_loads_of(found.body, buffer)], ranges, name)
    if not _covers(_first_stores(found.body, buffer), box, ranges):
        raise ScheduleError(
            f"{kernel.name}: loop {name} does not store all of its part of {buffer.name} before it reads it",
            hint="the loops of the reduction must be inside, and no condition around the store",
        )
    copy = Buffer(f"{buffer.name}_{scope}", box.shape, buffer.dtype, scope)

    def element(*index: LoopVar) -> Stmt:
        return Store(buffer, tuple(s + i for s, i in zip(box.start, index, strict=True)), copy[index])

    body = seq(redirect(found.body, {buffer: copy}, box.relative), nest(box.shape, element, names="uvwrstpq"))
    return with_body(kernel, found, Alloc(copy, body))


def _first_stores(stmt: Stmt, buffer: Buffer) -> list[Store]:
    """Unconditional stores that come before every load of ``buffer``, in loops that run at least once."""
    match stmt:
        case Store():
            return [stmt] if stmt.buffer is buffer and not _loads_of(stmt, buffer) else []
        case Alloc(_, body):
            return _first_stores(body, buffer)
        case For(_, Const(extent), body) if extent > 0:
            inner = _first_stores(body, buffer)
            return inner if not _loads_of(body, buffer) or inner else []
        case Seq(stmts):
            found: list[Store] = []
            for part in stmts:
                found += _first_stores(part, buffer)
                if _loads_of(part, buffer):
                    break
            return found
    return []


def _covers(stores: Sequence[Store], box: Region, ranges: Mapping[LoopVar, Range]) -> bool:
    """True where one of the stores reaches every element of the box: a loop variable of its own per dimension."""
    return any(_fills(box.relative(store.index), box.shape, ranges) for store in stores)


def _fills(index: Sequence[LoopExpr], shape: Sequence[int], ranges: Mapping[LoopVar, Range]) -> bool:
    used: set[LoopExpr] = set()
    for position, extent in zip(index, shape, strict=True):
        reach = 1
        for term, factor in sorted(affine(position).terms.items(), key=lambda item: abs(item[1])):
            if factor != reach or term in used or not isinstance(term, LoopVar):
                return False
            used.add(term)
            reach *= (ranges[term].high or 0) + 1
        if reach != extent:
            return False
    return True


# --- moving a producer ----------------------------------------------------------------------------------------


def compute_at(kernel: Kernel, buffer: Buffer, loop: LoopName) -> Kernel:
    """Each iteration of ``loop`` computes what it reads of ``buffer`` itself; the nest that did so before goes.

    For a buffer allocated by the kernel and stored by one perfect nest, a loop variable per dimension.
    """
    _known(kernel, buffer)
    alloc = next((s for s in walk_stmts(kernel.body) if isinstance(s, Alloc) and s.buffer is buffer), None)
    if alloc is None:
        raise ScheduleError(f"{kernel.name}: {buffer.name} is a parameter; only memory of the kernel can move")
    found = find_loop(kernel, loop)
    producer, axes, value = _producer(kernel, alloc)
    name, touched = found.var.name, _loads_of(found.body, buffer)
    if any(s is found for s in walk_stmts(producer)):
        raise ScheduleError(f"{kernel.name}: loop {name} computes {buffer.name} itself")
    if not touched or len(touched) != len(_loads_of(alloc.body, buffer)):
        raise ScheduleError(f"{kernel.name}: {buffer.name} is not read in loop {name} alone")
    box = region(kernel, buffer, touched, inner_ranges(found.body), name)
    copy = Buffer(buffer.name, box.shape, buffer.dtype, "local")

    def element(*index: LoopVar) -> Stmt:
        at = tuple(s + i for s, i in zip(box.start, index, strict=True))
        moved = bind_vars(Store(copy, index, value), dict(zip(axes, at, strict=True)))
        ranges = _all_ranges(kernel) | {v: Range(0, n - 1) for v, n in zip(index, box.shape, strict=True)}
        inside = _inside(buffer, at, ranges)
        return moved if inside is None else If(inside, moved)

    body = seq(nest(box.shape, element, names="uvwrstpq"), redirect(found.body, {buffer: copy}, box.relative))
    moved = with_body(kernel, found, Alloc(copy, body))
    return _without(moved, buffer, producer)


def _producer(kernel: Kernel, alloc: Alloc) -> tuple[Stmt, tuple[LoopVar, ...], LoopExpr]:
    """The nest that stores the buffer, its loop variables by dimension, and the value."""
    parts = alloc.body.stmts if isinstance(alloc.body, Seq) else (alloc.body,)
    writers = [p for p in parts if _stores_to(p, alloc.buffer)]
    refusal = ScheduleError(
        f"{kernel.name}: {alloc.buffer.name} is not stored by one perfect nest with a loop for each dimension"
    )
    if len(writers) != 1:
        raise refusal
    bound: list[LoopVar] = []
    inner: Stmt = writers[0]
    while isinstance(inner, For):
        bound.append(inner.var)
        inner = inner.body
    if not isinstance(inner, Store) or sorted(map(str, inner.index)) != sorted(map(str, bound)):
        raise refusal
    return writers[0], tuple(v for v in inner.index if isinstance(v, LoopVar)), inner.value


def _without(kernel: Kernel, buffer: Buffer, producer: Stmt) -> Kernel:
    """The kernel without a buffer, the nest that filled it, and the barrier that stood behind."""
    alloc = next(s for s in walk_stmts(kernel.body) if isinstance(s, Alloc) and s.buffer is buffer)
    parts = list(alloc.body.stmts) if isinstance(alloc.body, Seq) else [alloc.body]
    position = next(i for i, p in enumerate(parts) if p is producer)
    follows = position + 1 < len(parts) and isinstance(parts[position + 1], Barrier)
    del parts[position : position + 1 + follows]
    return with_loop(kernel, alloc, seq(*parts))
