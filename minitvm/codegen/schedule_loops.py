"""Schedule steps that change loops: split, fuse, reorder, unroll, vectorize, parallel, bind.

Each takes a kernel and returns another that computes the same, or raises :class:`ScheduleError` with the reason.
A loop is given by its :class:`LoopVar`, or by its name where only one loop has it.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial, reduce
from itertools import combinations, pairwise
from typing import Any, TypeAlias

from minitvm.codegen.dependences import accesses, carried
from minitvm.codegen.loops import fused, lanes, partial_results, trips, vectors
from minitvm.codegen.loops import split as split_loop
from minitvm.errors import ScheduleError
from minitvm.ir.dims import Dim
from minitvm.ir.loop import (
    Alloc,
    Barrier,
    Binary,
    Const,
    For,
    Intrin,
    Kernel,
    Load,
    LoopExpr,
    LoopKind,
    LoopVar,
    Stmt,
    Store,
    allocated,
    dim_of,
    replace_stmt,
    stmt_children,
    summary,
    walk_stmts,
)
from minitvm.ir.loop.stmt import of_all_threads
from minitvm.ir.op import identity_of

LoopName: TypeAlias = LoopVar | str

ORDERED = (LoopKind.SERIAL, LoopKind.UNROLLED)
_BOUND = frozenset(LoopKind) - {LoopKind.SERIAL, LoopKind.UNROLLED, LoopKind.PARALLEL, LoopKind.VECTORIZED}
_ANY_ORDER = frozenset({"add", "mul", "min", "max", "and", "or", "xor"})


def loops(kernel: Kernel) -> list[For]:
    """Every loop, outer before inner, in program order."""
    return [s for s in walk_stmts(kernel.body) if isinstance(s, For)]


def require(kernel: Kernel, holds: bool, why: str, hint: str | None = None) -> None:
    """Raise a :class:`ScheduleError` that says why a step does not apply."""
    if not holds:
        raise ScheduleError(f"{kernel.name}{why if why.startswith(' ') else f': {why}'}", hint=hint)


def find_loop(kernel: Kernel, loop: LoopName) -> For:
    """The loop that a variable or a name stands for."""
    every = summary(kernel.body).loops
    found = [var for var in every if loop in (var, var.name)]
    if len(found) != 1:
        name = loop if isinstance(loop, str) else loop.name
        known = ", ".join(dict.fromkeys(var.name for var in every)) or "none"
        require(kernel, bool(found), f" has no loop {name}", f"its loops: {known}")
        hint = "pass the variable of the one that is meant: loops(kernel)"
        require(kernel, False, f" has {len(found)} loops {name}", hint)
    return _down_to(kernel.body, found[0])[-1]


def _down_to(stmt: Stmt, var: LoopVar) -> list[For]:
    """The loops around the one of a variable, the outermost first, and itself."""
    around: list[For] = []
    while not around or around[-1].var is not var:
        around += [stmt] if isinstance(stmt, For) else []
        stmt = next((part for part in stmt_children(stmt) if var in summary(part).loops), stmt)
    return around


def with_loop(kernel: Kernel, old: Stmt, new: Stmt) -> Kernel:
    """The kernel with one statement replaced; threads have to be divided outside of all else."""
    made = replace(kernel, body=replace_stmt(kernel.body, old, new))
    for inner in [s for s in walk_stmts(new) if isinstance(s, For) and s.kind is LoopKind.PARALLEL]:
        for outer in _down_to(made.body, inner.var)[:-1]:
            divided = outer.kind is LoopKind.PARALLEL and isinstance(outer.body, For) and outer.body.kind is outer.kind
            why = f"parallel loop {inner.var.name} would be inside loop {outer.var.name}, or what is in it"
            require(kernel, divided or of_all_threads(outer), why, "make loops parallel last")
    return made


def with_body(kernel: Kernel, loop: For, body: Stmt) -> Kernel:
    return with_loop(kernel, loop, replace(loop, body=body))


def constant_extent(kernel: Kernel, loop: For) -> int:
    require(kernel, isinstance(loop.extent, Const), f"the extent of loop {loop.var.name} is not a constant")
    return trips(loop)


def known_extent(kernel: Kernel, loop: For) -> Dim:
    """A number, or what the sizes of a run make of an open extent."""
    found = dim_of(loop.extent)
    require(kernel, found is not None, f"the extent of loop {loop.var.name} is not a constant")
    assert found is not None
    return found


# --- split, fuse ----------------------------------------------------------------------------------------


def split(kernel: Kernel, loop: LoopName, factor: int, tail: str = "guard") -> Kernel:
    """``i`` becomes ``i_outer`` over ``i_inner`` of ``factor`` iterations.

    ``tail`` says what happens to iterations that are left over: ``"guard"`` (the last round checks), ``"shorter"``
    (the last round has fewer), ``"peel"`` (a loop ``i_tail`` of their own), ``"exact"`` (there may be none).  The
    outer loop keeps the kind.  Of an extent as long as only a run says, the tail may be empty.
    """
    found = find_loop(kernel, loop)
    name, extent = found.var.name, known_extent(kernel, found)
    if tail not in ("guard", "shorter", "peel", "exact"):
        raise ScheduleError(f"unknown tail {tail!r}", hint="one of guard, shorter, peel, exact")
    require(kernel, factor >= 1, f"loop {name} cannot be split by {factor}")
    vectorized = found.kind is LoopKind.VECTORIZED
    require(kernel, not vectorized, f"loop {name} is vectorized", "split first, then vectorize the inner loop")
    fits, uneven = tail != "exact" or extent // factor * factor == extent, f"the {extent} iterations of loop {name}"
    require(kernel, fits, f"{uneven} are not divisible by {factor}", "tail='guard' or tail='peel'")
    return with_loop(kernel, found, split_loop(found, factor, tail))


def fuse(kernel: Kernel, *nest: LoopName) -> Kernel:
    """Perfectly nested loops, the outermost first, become one over their product, named ``i_j``."""
    found = [find_loop(kernel, loop) for loop in nest]
    require(kernel, len(found) > 1, "only several loops can be fused")
    for outer, inner in pairwise(found):
        require_nested(kernel, outer, inner)
        kinds = f"loop {outer.var.name} is {outer.kind.value}, loop {inner.var.name} {inner.kind.value}"
        require(kernel, outer.kind is inner.kind, kinds)
    pairs: list[tuple[LoopVar, Any]] = [(f.var, known_extent(kernel, f)) for f in found]
    name = "_".join(f.var.name for f in found)
    return with_loop(kernel, found[0], fused(pairs, found[-1].body, name, found[0].kind))


def require_nested(kernel: Kernel, outer: For, inner: For) -> None:
    why = f"loop {inner.var.name} is not perfectly nested in loop {outer.var.name}"
    hint = "nothing may stand between the two; cache_write moves an accumulator out of the way"
    require(kernel, outer.body is inner, why, hint)


# --- order ----------------------------------------------------------------------------------------------------


def reorder(kernel: Kernel, *order: LoopName) -> Kernel:
    """Perfectly nested loops in another order, the outermost first; all loops of the chain that change place."""
    wanted = [find_loop(kernel, loop) for loop in order]
    require(kernel, len(set(wanted)) == len(wanted), "a loop is named twice")
    chain = _chain(kernel, wanted)
    body = chain[-1].body
    for outer, inner in pairwise(wanted):
        lanes_out = outer.kind is LoopKind.VECTORIZED
        require(kernel, not lanes_out, f"loop {outer.var.name} is vectorized, and has to stay innermost")
        inward = inner.kind is LoopKind.PARALLEL and outer.kind is not LoopKind.PARALLEL
        require(kernel, not inward, f"loop {inner.var.name} is parallel, and has to stay outermost")
    for position, found in enumerate(wanted):
        free = not any(inner.var in found.extent.mentions for inner in wanted[position + 1 :])
        require(kernel, free, f"the extent of loop {found.var.name} depends on a loop that it would leave")
    _check_order(kernel, chain, wanted)
    for found in reversed(wanted):
        body = For(found.var, found.extent, body, found.kind)
    return with_loop(kernel, chain[0], body)


def _chain(kernel: Kernel, wanted: Sequence[For]) -> list[For]:
    """The wanted loops in their present order, each directly around the next."""
    chain = [f for f in loops(kernel) if f in wanted]
    for outer, inner in pairwise(chain):
        require_nested(kernel, outer, inner)
    return chain


def _check_order(kernel: Kernel, chain: Sequence[For], wanted: Sequence[For]) -> None:
    """Every element must be stored to in the same order as before, unless its updates may come in any order."""
    for a, b in combinations(wanted, 2):
        if chain.index(a) > chain.index(b):
            check_interchange(kernel, chain[chain.index(b) : chain.index(a) + 1])


def check_interchange(kernel: Kernel, chain: Sequence[For]) -> None:
    """Raise where iterations of the outermost of nested loops may meet, at other ones of the innermost."""
    outer, inner = chain[0], chain[-1]
    body = inner.body
    for between in reversed(chain[:-1]):
        body = For(between.var, between.extent, body)
    met = carried(outer)
    if met is not None and carried(For(inner.var, inner.extent, body)) is not None:
        names = f"loops {inner.var.name} and {outer.var.name}"
        why = f"{names} cannot change places: iterations depend on each other through {met.buffer.name}"
        require(kernel, _commutes(outer), why)


def _commutes(nest: For) -> bool:
    """True where all that is stored is one update ``t[i] = t[i] + x`` that may run in any order."""
    private = allocated(nest)
    stores = [s for s in walk_stmts(nest) if isinstance(s, Store) and s.buffer not in private]
    return len(stores) == 1 and is_update(stores[0]) and _reads_itself_once(stores[0], nest)


def _reads_itself_once(store: Store, around: Stmt) -> bool:
    return sum(a.buffer is store.buffer and not a.is_store for a in accesses(around)) == 1


def is_update(store: Store) -> bool:
    itself = Load(store.buffer, store.index)
    match store.value:
        case Binary(op, lhs, rhs) if op in _ANY_ORDER:
            return itself in (lhs, rhs)
        case Intrin("fma", (_, _, total)):
            return total == itself
    return False


# --- kinds ----------------------------------------------------------------------------------------------------


def unroll(kernel: Kernel, loop: LoopName, factor: int = 0) -> Kernel:
    """Write the iterations out one after the other: all, or ``factor`` of them in a turn of a loop, and then what is
    left over."""
    found = find_loop(kernel, loop)
    constant_extent(kernel, found)
    require(kernel, found.kind in ORDERED, f"loop {found.var.name} is {found.kind.value} already")
    unrolled = partial(replace, kind=LoopKind.UNROLLED)
    return with_loop(kernel, found, split_loop(found, factor, "peel", unrolled) if factor else unrolled(found))


def vectorize(kernel: Kernel, loop: LoopName, width: int = 0) -> Kernel:
    """All iterations at once, one per lane: loops below stay around the lanes, memory below gets a place for each.

    ``width``: so many of them at a time, and what is left over in a shorter vector.
    A loop of an open extent holds one store; its last vector is a shorter one.
    """
    found = find_loop(kernel, loop)
    check_independent(kernel, found)
    require(kernel, found.kind in ORDERED, f"loop {found.var.name} is {found.kind.value} already")
    if isinstance(found.body, Store) and not width:
        return _with_kind(kernel, found, LoopKind.VECTORIZED)
    constant_extent(kernel, found)
    made = vectors(found, width) if width else lanes(found)
    alike = _alike(made, LoopKind.VECTORIZED, [*LoopKind])
    why = f"loops inside loop {found.var.name} vary with it, or are lanes themselves"
    require(kernel, alike, why, "only what all lanes do alike can be vectorized; reorder first")
    return with_loop(kernel, found, made)


def jam(kernel: Kernel, loop: LoopName, *inner: LoopName) -> Kernel:
    """Unroll and jam: the iterations, written out, side by side in the loops below; memory below has a place for each.

    What all of them read is read once; sums in different registers need not wait for each other.  Of several loops the
    last one's iterations are next to each other.
    """
    return reduce(_jam, inner, _jam(kernel, loop))


def _jam(kernel: Kernel, loop: LoopName) -> Kernel:
    found = find_loop(kernel, loop)
    constant_extent(kernel, found)
    check_independent(kernel, found)
    made = lanes(found, LoopKind.UNROLLED)
    alike = _alike(made, LoopKind.UNROLLED, ORDERED[:1])
    why = f"loops inside loop {found.var.name} vary with it"
    require(kernel, alike, why, "only what all iterations do alike can be jammed")
    return with_loop(kernel, found, made)


def _alike(made: Stmt, kind: LoopKind, others: Sequence[LoopKind]) -> bool:
    """True if there is no memory, barrier or loop of other kinds in the loops of one."""
    inside = [s for f in walk_stmts(made) if isinstance(f, For) and f.kind is kind for s in walk_stmts(f.body)]
    return not any(isinstance(s, (Alloc, Barrier)) or (isinstance(s, For) and s.kind in others) for s in inside)


def rfactor(kernel: Kernel, loop: LoopName, width: int) -> Kernel:
    """A reduction along ``loop`` as ``width`` partial results, one per lane, combined after it: other roundings."""
    found = find_loop(kernel, loop)
    constant_extent(kernel, found)
    update, name = found.body, found.var.name
    reduces = isinstance(update, Store) and is_update(update) and _reads_itself_once(update, update)
    require(kernel, reduces, f"loop {name} is no reduction: it has to hold one update, t = t + x")
    assert isinstance(update, Store)
    acc, start = update.buffer, _neutral(update)
    alloc = next((s for s in walk_stmts(kernel.body) if isinstance(s, Alloc) and s.buffer is acc), None)
    stores = [s for s in walk_stmts(kernel.body) if isinstance(s, Store) and s.buffer is acc and s is not update]
    made = None if alloc is None else partial_results(alloc, found, width)
    left = any(a.buffer is acc for a in accesses(made or kernel.body))
    why = f"{acc.name} is not memory for loop {name} alone, set before it to what changes no result"
    alone = made is not None and not left and all(s.value == start for s in stores)
    require(kernel, alone, why, "cache_write gives a loop an accumulator of its own")
    assert alloc is not None and made is not None
    return with_loop(kernel, alloc, made)


def _neutral(update: Store) -> LoopExpr | None:
    """What a reduction starts from."""
    op = update.value.op if isinstance(update.value, Binary) else "add"
    kinds = {"add": "sum", "mul": "prod", "min": "min", "max": "max"}
    return identity_of(kinds[op], update.value.dtype) if op in kinds else None


def parallel(kernel: Kernel, loop: LoopName, *inner: LoopName) -> Kernel:
    """Divide the iterations of an outermost loop among the threads; perfectly nested ones become one."""
    kernel = reduce(_parallel, inner, _parallel(kernel, loop))
    return fuse(kernel, loop, *inner) if inner else kernel


def _parallel(kernel: Kernel, loop: LoopName) -> Kernel:
    *around, found = _down_to(kernel.body, find_loop(kernel, loop).var)
    for outer in around[-1:]:
        free = all(f.kind is LoopKind.PARALLEL for f in around)
        why = f"loop {found.var.name} is inside loop {outer.var.name}"
        require(kernel, free, why, "only outermost loops can be parallel; reorder first")
        require_nested(kernel, outer, found)
    check_independent(kernel, found)
    return _with_kind(kernel, found, LoopKind.PARALLEL)


def bind(kernel: Kernel, loop: LoopName, kind: LoopKind | str) -> Kernel:
    """One block or one thread of a GPU per iteration."""
    found, kind = find_loop(kernel, loop), LoopKind(kind)
    if kind not in _BOUND:
        raise ScheduleError(f"a loop is bound to a block or a thread, not to {kind.value}")
    every = [f for f in loops(kernel) if f.kind is kind]
    for other in (f for f in every if f in walk_stmts(found.body) or found in walk_stmts(f.body)):
        require(kernel, False, f"{kind.value} is bound to loop {other.var.name} already")
    check_independent(kernel, found)
    return _with_kind(kernel, found, kind)


def check_independent(kernel: Kernel, loop: For) -> None:
    """Raise where iterations may meet, so that they cannot run side by side.  Needs an extent that does not vary."""
    if known_extent(kernel, loop) in (0, 1):
        return
    met = carried(loop)
    if met is None or loop.kind not in ORDERED:  # what runs side by side already was shown, or promised, to be free
        return
    name, var = met.buffer.name, loop.var
    stores = [s for s in walk_stmts(loop.body) if isinstance(s, Store) and s.buffer is met.buffer]
    reduces = any(is_update(s) and not any(var in i.mentions for i in s.index) for s in stores)
    why = f"loop {var.name} is a reduction into {name}: its iterations cannot run side by side"
    require(kernel, False, why if reduces else f"iterations of loop {var.name} depend on each other through {name}")


def _with_kind(kernel: Kernel, loop: For, kind: LoopKind) -> Kernel:
    return with_loop(kernel, loop, replace(loop, kind=kind))
