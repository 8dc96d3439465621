"""Schedule steps that change where values live: cache_read, cache_write, compute_at.

A buffer is given by itself, or by its name where only one has it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TypeAlias

from minitvm.codegen.dependences import accesses, inner_ranges
from minitvm.codegen.loops import bind_vars, redirect
from minitvm.codegen.schedule_loops import LoopName, find_loop, is_update, require, with_body
from minitvm.ir.loop import (
    Alloc,
    Barrier,
    Buffer,
    Const,
    For,
    If,
    Intrin,
    Kernel,
    Load,
    LoopExpr,
    LoopKind,
    LoopVar,
    Seq,
    Stmt,
    Store,
    all_of,
    allocated,
    map_stmt,
    nest,
    seq,
    stmt_exprs,
    walk_exprs,
    walk_stmts,
)
from minitvm.ir.loop.affine import Affine, Range, affine, bounds, mixed_radix, prove

BufferName: TypeAlias = Buffer | str
Index: TypeAlias = tuple[LoopExpr, ...]


@dataclass(frozen=True)
class Region:
    """The part of a buffer that one iteration touches: ``start`` per dimension, and a constant shape."""

    start: Index
    shape: tuple[int, ...]

    def relative(self, index: Index) -> Index:
        """``index`` counted from ``start``."""
        return tuple(affine(i).plus(affine(s), -1).to_expr() for i, s in zip(index, self.start, strict=True))

    def each(self, kernel: Kernel, buffer: Buffer, body: Callable[[Index, Index], Stmt]) -> Stmt:
        """``body(index here, index in the buffer)`` for every element, as far as that is in the buffer."""
        around = inner_ranges(kernel.body)

        def element(*here: LoopVar) -> Stmt:
            there = tuple(s + i for s, i in zip(self.start, here, strict=True))
            ranges = around | {v: Range(0, n - 1) for v, n in zip(here, self.shape, strict=True)}
            checks = [c for i, n in zip(there, buffer.shape, strict=True) for c in (i >= 0, i < n)]
            open_ends = [c for c in checks if prove(c, ranges) is not True]
            return If(all_of(open_ends), body(here, there)) if open_ends else body(here, there)

        return nest(self.shape, element, names="uvwrstpq")


def touched_box(kernel: Kernel, buffer: Buffer, touched: Sequence[Index], found: For) -> Region:
    """What the indices ``touched`` reach in one iteration of a loop."""
    ranges = inner_ranges(found.body)
    start: list[LoopExpr] = []
    shape: list[int] = []
    for axis in range(len(buffer.shape)):
        forms = [affine(index[axis]) for index in touched]
        still = [Affine(0, {t: c for t, c in form.terms.items() if not _runs(t, ranges)}) for form in forms]
        moving = (bounds(form.plus(s, -1).to_expr(), ranges) for form, s in zip(forms, still, strict=True))
        reach = reduce(Range.hull, moving)
        box = all(s.terms == still[0].terms for s in still) and reach.low is not None and reach.high is not None
        why = f"what loop {found.var.name} touches of {buffer.name} is no box of constant size (dimension {axis})"
        require(kernel, box, why)
        assert reach.low is not None and reach.high is not None
        start.append(still[0].plus(Affine(reach.low)).to_expr())
        shape.append(reach.high - reach.low + 1)
    return Region(tuple(start), tuple(shape))


def _runs(term: LoopExpr, ranges: Mapping[LoopVar, Range]) -> bool:
    return term.reads or not ranges.keys().isdisjoint(term.mentions)


def uses_of(stmt: Stmt, buffer: Buffer, stores: bool) -> list[Index]:
    """The indices that a buffer is stored at, or read at."""
    return [a.index for a in accesses(stmt) if a.buffer is buffer and a.is_store == stores]


def find_buffer(kernel: Kernel, buffer: BufferName) -> Buffer:
    known = [*kernel.params, *allocated(kernel.body)]
    found = [b for b in known if buffer in (b, b.name)]
    name, many = buffer if isinstance(buffer, str) else buffer.name, len(found) or "no"
    names = ", ".join(b.name for b in known)
    require(kernel, len(found) == 1, f" has {many} buffer{'s' * bool(found)} {name}", f"it has: {names}")
    return found[0]


def check_place(kernel: Kernel, buffer: Buffer, found: For) -> None:
    """Raise where an iteration of a loop cannot have a copy of a buffer: it is lanes, or the buffer lives in it."""
    name = found.var.name
    why = f"loop {name} is vectorized"
    require(kernel, found.kind is not LoopKind.VECTORIZED, why, "a loop around it has memory for all lanes")
    require(kernel, buffer not in allocated(found.body), f"{buffer.name} is allocated inside loop {name} already")
    check_no_address(kernel, buffer, found.body)


def check_no_address(kernel: Kernel, buffer: Buffer, stmt: Stmt) -> None:
    """Raise where a statement asks where a buffer lies, which a copy would change."""
    nodes = (node for part in walk_stmts(stmt) for root in stmt_exprs(part) for node in walk_exprs(root))
    named = (a for node in nodes if isinstance(node, Intrin) and node.name == "same_memory" for a in node.args)
    asked = any(isinstance(a, Load) and a.buffer is buffer for a in named)
    require(kernel, not asked, f"it is asked where {buffer.name} lies, and a copy lies elsewhere")


# --- caches ---------------------------------------------------------------------------------------------------


def cache_read(kernel: Kernel, buffer: BufferName, loop: LoopName, scope: str = "local") -> Kernel:
    """Each iteration of ``loop`` first copies what it reads of ``buffer`` to memory of its own."""
    found, source = find_loop(kernel, loop), find_buffer(kernel, buffer)
    check_place(kernel, source, found)
    name, touched = found.var.name, uses_of(found.body, source, stores=False)
    require(kernel, bool(touched), f"loop {name} does not read {source.name}")
    stored = uses_of(found.body, source, stores=True)
    require(kernel, not stored, f"loop {name} stores to {source.name}, so a copy would be out of date")
    box = touched_box(kernel, source, touched, found)
    copy = Buffer(f"{source.name}_{scope}", box.shape, source.dtype, scope)
    fill = box.each(kernel, source, lambda here, there: Store(copy, here, source[there]))
    return with_body(kernel, found, Alloc(copy, seq(fill, redirect(found.body, {source: copy}, box.relative))))


def cache_write(kernel: Kernel, buffer: BufferName, loop: LoopName, scope: str = "local") -> Kernel:
    """Each iteration of ``loop`` computes its part of ``buffer`` in memory of its own, and copies it out at its end.

    Where an iteration adds to all of its part, as one of a reduction cut in pieces does, that is copied in first.
    """
    found, target = find_loop(kernel, loop), find_buffer(kernel, buffer)
    check_place(kernel, target, found)
    name, stores = found.var.name, uses_of(found.body, target, stores=True)
    require(kernel, bool(stores), f"loop {name} does not store to {target.name}")
    box = touched_box(kernel, target, [*stores, *uses_of(found.body, target, stores=False)], found)
    ranges = inner_ranges(found.body)

    def all_of_it(indices: Sequence[Index]) -> bool:
        return any(_fills(box.relative(i), box.shape, ranges) for i in indices)

    whole, adds = all_of_it(_first_stores(found.body, target)), all_of_it(_first_updates(found.body, target))
    why = f"loop {name} does not store all of its part of {target.name} before it reads it, nor adds to all of it"
    require(kernel, whole or adds, why, "the loops of the reduction must be inside, and no condition around the store")
    copy = Buffer(f"{target.name}_{scope}", box.shape, target.dtype, scope)
    load = None if whole else box.each(kernel, target, lambda here, there: Store(copy, here, target[there]))
    drain = box.each(kernel, target, lambda here, there: Store(target, there, copy[here]))
    return with_body(kernel, found, Alloc(copy, seq(load, redirect(found.body, {target: copy}, box.relative), drain)))


def is_filled(kernel: Kernel, buffer: Buffer) -> bool:
    """True if every element of a buffer holds something wherever it may be read: an input, or memory that is stored to
    as a whole first."""
    alloc = next((s for s in walk_stmts(kernel.body) if isinstance(s, Alloc) and s.buffer is buffer), None)
    ranges = inner_ranges(kernel.body)
    filled = alloc is not None and any(_fills(i, buffer.shape, ranges) for i in _first_stores(alloc.body, buffer))
    return buffer in kernel.inputs or filled


def _first_updates(stmt: Stmt, buffer: Buffer) -> list[Index]:
    """Where the first statement that has to do with ``buffer`` adds to it, in loops that run at least once."""
    match stmt:
        case Store():
            return [stmt.index] if stmt.buffer is buffer and is_update(stmt) else []
        case Alloc(_, body):
            return _first_updates(body, buffer)
        case For(_, Const(extent), body) if extent > 0:
            return _first_updates(body, buffer)
        case Seq(stmts):
            concerned = (p for p in stmts if any(a.buffer is buffer for a in accesses(p)))
            first = next(concerned, None)
            return [] if first is None else _first_updates(first, buffer)
    return []


def _first_stores(stmt: Stmt, buffer: Buffer) -> list[Index]:
    """Unconditional stores that come before every load of ``buffer``, in loops that run at least once."""
    match stmt:
        case Store():
            return [stmt.index] if stmt.buffer is buffer and not uses_of(stmt, buffer, stores=False) else []
        case Alloc(_, body):
            return _first_stores(body, buffer)
        case For(_, Const(extent), body) if extent > 0:
            return _first_stores(body, buffer)
        case Seq(stmts):
            found: list[Index] = []
            for part in stmts:
                found += _first_stores(part, buffer)
                if uses_of(part, buffer, stores=False):
                    break
            return found
    return []


def _fills(index: Index, shape: Sequence[int], ranges: Mapping[LoopVar, Range]) -> bool:
    """True if a store reaches every element of a box: loop variables of its own for each dimension."""
    forms, extents = [affine(i) for i in index], {v: r.high + 1 for v, r in ranges.items() if r.high is not None}
    used = [term for form in forms for term in form.terms]
    whole = all(mixed_radix(form, extents) == extent for form, extent in zip(forms, shape, strict=True))
    return whole and len(set(used)) == len(used)


# --- moving a producer ----------------------------------------------------------------------------------------


def compute_at(kernel: Kernel, buffer: BufferName, loop: LoopName) -> Kernel:
    """Each iteration of ``loop`` computes what it reads of ``buffer`` itself; the nest that did so before goes.

    For a buffer allocated by the kernel that one nest computes, element by element: a loop for each dimension around
    all that is done for an element.
    """
    source = find_buffer(kernel, buffer)
    alloc = next((s for s in walk_stmts(kernel.body) if isinstance(s, Alloc) and s.buffer is source), None)
    require(kernel, alloc is not None, f"{source.name} is a parameter; only memory of the kernel can move")
    assert alloc is not None
    found = find_loop(kernel, loop)
    check_place(kernel, source, found)
    around = any(part is found for part in walk_stmts(alloc.body))
    require(kernel, around, f"{source.name} does not live around loop {found.var.name}")
    producer, axes, element = _producer(kernel, alloc)
    name, touched = found.var.name, uses_of(found.body, source, stores=False)
    require(kernel, found not in walk_stmts(producer), f"loop {name} computes {source.name} itself")
    elsewhere = len(uses_of(alloc.body, source, stores=False)) - len(uses_of(producer, source, stores=False))
    require(kernel, 0 < len(touched) == elsewhere, f"{source.name} is not read in loop {name} alone")
    box = touched_box(kernel, source, touched, found)
    copy = Buffer(source.name, box.shape, source.dtype, "local")

    def computed(here: Index, there: Index) -> Stmt:
        return bind_vars(redirect(element, {source: copy}, lambda _: here), dict(zip(axes, there, strict=True)))

    body = seq(box.each(kernel, source, computed), redirect(found.body, {source: copy}, box.relative))
    return _without(with_body(kernel, found, Alloc(copy, body)), source, producer)


def _producer(kernel: Kernel, alloc: Alloc) -> tuple[Stmt, tuple[LoopVar, ...], Stmt]:
    """The nest that computes the buffer, its loop variables by dimension, and what they are around."""
    writers = [p for p in _nests(alloc.body) if uses_of(p, alloc.buffer, stores=True)]
    places = {a.index for p in writers for a in accesses(p) if a.buffer is alloc.buffer}
    axes = tuple(i for index in places for i in index if isinstance(i, LoopVar))
    inner, around = seq(*writers), set[LoopVar]()
    while isinstance(inner, For) and inner.var in axes:
        around.add(inner.var)
        inner = inner.body
    one = len(writers) == len(places) == 1 and len(axes) == len(around) == len(alloc.buffer.shape)
    why = f"{alloc.buffer.name} is not stored by one perfect nest with a loop for each dimension"
    require(kernel, one, why)
    return writers[0], axes, inner


def _nests(stmt: Stmt) -> list[Stmt]:
    """What stands in order, whatever memory is around it."""
    inside = stmt.stmts if isinstance(stmt, Seq) else (stmt.body,) if isinstance(stmt, Alloc) else ()
    return [nest for part in inside for nest in _nests(part)] or [stmt]


def _without(kernel: Kernel, buffer: Buffer, producer: Stmt) -> Kernel:
    """The kernel without a buffer, the nest that filled it, and the barrier that stood behind."""

    def removed(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Alloc) and stmt.buffer is buffer:
            return stmt.body
        if not isinstance(stmt, Seq) or producer not in stmt.stmts:
            return stmt
        at = stmt.stmts.index(producer)
        last = at + isinstance(stmt.stmts[min(at + 1, len(stmt.stmts) - 1)], Barrier)
        return seq(*stmt.stmts[:at], *stmt.stmts[last + 1 :])

    return replace(kernel, body=map_stmt(kernel.body, on_stmt=removed))
