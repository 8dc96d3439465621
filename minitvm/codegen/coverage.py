"""How often a kernel stores each element of its results: shown from the loops alone, once, before the kernel runs.

The dimensions of a store's index that share no loop variable, nor a condition around it, are independent: what the
store reaches is the product of what each group of them reaches.  A group is *proved* where its address is a mixed-radix
number of the loop variables (each stride the product of the extents below it), and *enumerated* otherwise: its index is
evaluated at every iteration.  What depends on data, or is too large, is *undecided*, with the reason.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache, cached_property

import numpy as np

from minitvm.errors import CompilerError, origin
from minitvm.ir.loop import (
    Barrier,
    Buffer,
    If,
    Kernel,
    LoopExpr,
    LoopVar,
    Stmt,
    Store,
    allocated,
    map_stmt,
    substitute_vars,
)
from minitvm.ir.loop.affine import address, mixed_radix
from minitvm.ir.loop.stmt import of_all_threads
from minitvm.ir.loop.text import print_loop_expr
from minitvm.ir.loop.verify import Around, Guard, evaluate, places

MOST_POINTS = 1 << 25
"""Iterations and positions of one group of dimensions that are enumerated: half a second, 300 MB."""
MOST_ELEMENTS = 1 << 28
"""Elements of a result that are counted one by one, where several stores share it: a byte each."""
_AT_ONCE = 1 << 21
_MANY = 2  # more often than this is not told apart

Array = np.ndarray


class Verdict(Enum):
    PROVED = "proved"
    ENUMERATED = "enumerated"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Coverage:
    """What is known of one result: every element is stored exactly once, or why that cannot be shown."""

    buffer: Buffer
    verdict: Verdict
    reason: str = ""


class _Undecided(Exception):
    """Whether a store runs, or where it goes, is not known before the kernel runs."""


def _filled_again(inside: Sequence[tuple[Stmt, Around]]) -> set[Buffer]:
    """Buffers that are stored on both sides of a barrier, as the state of a recurrence is."""
    stretches: defaultdict[Buffer, set[int]] = defaultdict(set)
    barriers, again = 0, set()
    for stmt, around in inside:
        barriers += isinstance(stmt, Barrier)
        if isinstance(stmt, Store):
            stretches[stmt.buffer].add(barriers)
            if len(stretches[stmt.buffer]) > 1 or any(map(of_all_threads, around.loops)):
                again.add(stmt.buffer)
    return again


def not_shown_stored(kernel: Kernel) -> tuple[str, ...]:
    """The buffers of :func:`check_coverage` of which it is not decided, each with the reason; raises what it raises."""
    found = check_coverage(kernel)
    return tuple(f"{one.buffer.name}: {one.reason}" for one in found if one.verdict is Verdict.UNDECIDED)


def check_coverage(kernel: Kernel) -> list[Coverage]:
    """One verdict for each result, and for each buffer that the kernel's threads share and fill between two barriers.

    :class:`CompilerError` names the first element that no store reaches, or that more than one does, or one that a
    store looks for outside of the buffer, where it hits the next row or somebody else's memory.
    """
    inside = list(places(map_stmt(kernel.body, on_stmt=_settled)))
    stores = [_Place(stmt, around) for stmt, around in inside if isinstance(stmt, Store)]
    again = _filled_again(inside) if any(isinstance(stmt, Barrier) for stmt, _ in inside) else ()
    shared = [buffer for buffer in allocated(kernel.body) if buffer.scope == "global" and buffer not in again]
    return [_coverage(kernel, b, [p for p in stores if p.store.buffer is b]) for b in (*kernel.outputs, *shared)]


def _coverage(kernel: Kernel, buffer: Buffer, places: Sequence[_Place]) -> Coverage:
    if 0 in buffer.shape:
        return Coverage(buffer, Verdict.PROVED)
    try:
        stores = [parts for parts in map(_parts, places) if parts is not None]
        wrong = _outside(buffer, stores) or _first_wrong(buffer, stores)
    except _Undecided as reason:
        return Coverage(buffer, Verdict.UNDECIDED, str(reason))
    if wrong is not None:
        index, how = wrong
        raise CompilerError(
            f"{kernel.name} {how} {buffer.name}{list(index)}, of {buffer.dtype}{list(buffer.shape)}",
            where=[origin(kernel.spans)] if kernel.spans else [],
            hint="a kernel stores every element of its results, and of memory that its threads share, exactly once",
        )
    proved = all(part.proved for parts in stores for part in parts)
    return Coverage(buffer, Verdict.PROVED if proved else Verdict.ENUMERATED)


# --- branches that data decides on ----------------------------------------------------------------------------


def _settled(stmt: Stmt) -> Stmt:
    """One branch, where data decides on two that store to the same elements, equally often."""
    match stmt:
        case If(condition, then, Stmt() as orelse) if condition.reads and _stored(then) == _stored(orelse):
            return then
    return stmt


def _stored(stmt: Stmt) -> Counter[Hashable]:
    """The stores below a statement, but for those to its own memory: where, in which loops, under which conditions."""
    own = set(allocated(stmt))
    found = ((part, around) for part, around in places(stmt) if isinstance(part, Store) and part.buffer not in own)
    return Counter(_form(store, around) for store, around in found)


def _form(store: Store, around: Around) -> Hashable:
    """The same for stores that differ in the names and the kinds of their loops."""
    names: dict[LoopVar, LoopExpr] = {loop.var: _number(d) for d, loop in enumerate(around.loops)}

    def named(expr: LoopExpr) -> LoopExpr:
        return substitute_vars(expr, names)

    extents = tuple(named(loop.extent) for loop in around.loops)
    conditions = frozenset((named(condition), holds) for condition, holds in around.conditions)
    return store.buffer, tuple(map(named, store.index)), extents, conditions


@cache
def _number(depth: int) -> LoopVar:
    """The variable of the loop so deep inside, whatever it was called."""
    return LoopVar(f"i{depth}")


# --- where stores stand ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Place:
    """A store, and what is around it."""

    store: Store
    around: Around

    @cached_property
    def extents(self) -> dict[LoopVar, int]:
        """Of the loops around it."""
        highs = {loop.var: self.around.variables[loop.var].high for loop in self.around.loops}
        return {var: MOST_POINTS + 1 if high is None else max(0, high + 1) for var, high in highs.items()}


# --- what a store reaches -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """How often the dimensions ``dims`` together hit each position of a box that begins at ``low``."""

    dims: tuple[int, ...]
    low: tuple[int, ...]
    counts: Array
    proved: bool
    outside: tuple[int, ...] = ()
    """A position beyond the buffer that is stored to, if one is."""


@dataclass(frozen=True)
class _Group:
    """Dimensions and conditions that share variables."""

    dims: tuple[int, ...]
    guards: tuple[Guard, ...]
    variables: frozenset[LoopVar]


def _variables(expr: LoopExpr) -> frozenset[LoopVar]:
    if expr.reads:
        raise _Undecided(f"{print_loop_expr(expr)} depends on data")
    return frozenset(node for node in expr.mentions if isinstance(node, LoopVar))


def _groups(place: _Place) -> list[_Group]:
    """Independent of each other.  A variable that nothing here mentions repeats all of them, so it is a group too."""
    single = [_Group((d,), (), _variables(i)) for d, i in enumerate(place.store.index)]
    single += [_Group((), (guard,), _variables(guard[0])) for guard in place.around.conditions]
    found: list[_Group] = []
    for group in [*single, *(_Group((), (), frozenset({v})) for v in place.extents)]:
        joined = [group, *(g for g in found if g.variables & group.variables)]
        dims, guards = sorted(d for g in joined for d in g.dims), [guard for g in joined for guard in g.guards]
        whole = _Group(tuple(dims), tuple(guards), frozenset().union(*(g.variables for g in joined)))
        found = [*(g for g in found if g not in joined), whole]
    return found


def _parts(place: _Place) -> list[_Part] | None:
    """One part a group; ``None`` where the store never runs."""
    if 0 in place.extents.values():
        return None
    found = [_repeated(place, group) or _radix(place, group) or _enumerated(place, group) for group in _groups(place)]
    known = [part for part in found if part is not None]
    return known if len(known) == len(found) else None


def _repeated(place: _Place, group: _Group) -> _Part | None:
    """Variables that nothing depends on: what the other groups reach, they reach that often."""
    times = math.prod(place.extents[v] for v in group.variables)
    nothing = not group.dims and not group.guards
    return _Part((), (), np.array(min(times, _MANY), np.uint8), proved=True) if nothing else None


def _radix(place: _Place, group: _Group) -> _Part | None:
    """The box of a group whose address is a mixed-radix number of its variables, without conditions."""
    shape = tuple(place.store.buffer.shape[d] for d in group.dims)
    if group.guards or not shape:
        return None
    form = address(Buffer("", shape, "bool"), [place.store.index[d] for d in group.dims])
    reach = mixed_radix(form, place.extents)
    if reach is None or math.prod(place.extents[v] for v in group.variables) != reach:
        return None
    row = math.prod(shape[1:])
    if form.constant % row or reach % row or not 0 <= form.constant <= math.prod(shape) - reach:
        return None
    low, size = (form.constant // row, *(0,) * len(shape[1:])), (reach // row, *shape[1:])
    return _Part(group.dims, low, np.broadcast_to(np.uint8(1), size), proved=True)


def _enumerated(place: _Place, group: _Group) -> _Part | None:
    """The same from the index at every iteration; ``None`` where none stores."""
    shape = tuple(place.store.buffer.shape[d] for d in group.dims)
    index = [place.store.index[d] for d in group.dims]
    extents = {v: n for v, n in place.extents.items() if v in group.variables}
    if max(math.prod(extents.values()), math.prod(shape)) > MOST_POINTS:
        raise _Undecided(f"{', '.join(v.name for v in extents)} have more than {MOST_POINTS:,} iterations")
    counts = np.zeros(math.prod(shape), np.int64)
    for some in _points(extents):
        reached, outside = _reached(index, shape, group.guards, some)
        if outside:
            return _Part(group.dims, (), counts, proved=False, outside=outside)
        counts += np.bincount(reached, minlength=len(counts))
    if not counts.any():
        return None
    low, trimmed = _trimmed(np.minimum(counts, _MANY).astype(np.uint8).reshape(shape))
    return _Part(group.dims, low, trimmed, proved=not group.guards and not extents)


def _points(extents: Mapping[LoopVar, int]) -> Iterator[dict[LoopVar, Array]]:
    """All iterations, as arrays that broadcast against each other, a bounded number at a time."""
    if not extents:
        yield {}
        return
    longest = max(extents, key=lambda v: extents[v])
    step = max(1, _AT_ONCE * extents[longest] // math.prod(extents.values()))
    for start in range(0, extents[longest], step):
        stop = min(start + step, extents[longest])
        axes = [np.arange(start, stop) if v is longest else np.arange(n) for v, n in extents.items()]
        yield dict(zip(extents, np.meshgrid(*axes, indexing="ij", sparse=True), strict=True))


def _reached(
    index: Sequence[LoopExpr], shape: Sequence[int], guards: Sequence[Guard], points: dict[LoopVar, Array]
) -> tuple[Array, tuple[int, ...]]:
    """The row-major positions in ``shape`` that those iterations store to, repeated ones repeated; and one outside."""
    active: Array = np.ones(np.broadcast_shapes(*(p.shape for p in points.values())), bool)
    for condition, holds in guards:
        active = active & (_value(condition, points) == holds)
    values = [_value(expr, points) for expr in index]
    position, beyond = np.zeros((), np.int64), np.zeros((), bool)
    for value, extent in zip(values, shape, strict=True):
        beyond = beyond | (value < 0) | (value >= extent)
        position = position * extent + value
    if (outside := active & beyond).any():
        first = np.unravel_index(int(np.argmax(outside)), outside.shape)
        return position, tuple(int(np.broadcast_to(value, outside.shape)[first]) for value in values)
    return np.broadcast_to(position, active.shape)[active], ()


def _value(expr: LoopExpr, points: dict[LoopVar, Array]) -> Array:
    found = evaluate(expr, points)
    if found is None:
        raise _Undecided(f"{print_loop_expr(expr)} cannot be evaluated")
    return found


def _trimmed(counts: Array) -> tuple[tuple[int, ...], Array]:
    """The smallest box around what is not zero, and where it begins."""
    axes = range(counts.ndim)
    used = [np.flatnonzero(counts.any(axis=tuple(a for a in axes if a != axis))) for axis in axes]
    return tuple(int(u[0]) for u in used), counts[tuple(slice(u[0], u[-1] + 1) for u in used)]


# --- all stores together --------------------------------------------------------------------------------------


def _outside(buffer: Buffer, stores: Sequence[Sequence[_Part]]) -> tuple[tuple[int, ...], str] | None:
    """The place where a store leaves the buffer."""
    for parts in stores:
        if any(part.outside for part in parts):
            at = {d: i for part in parts for d, i in zip(part.dims, part.outside or part.low, strict=True)}
            return tuple(at[d] for d in range(len(buffer.shape))), "stores outside of its memory"
    return None


def _first_wrong(buffer: Buffer, stores: Sequence[Sequence[_Part]]) -> tuple[tuple[int, ...], str] | None:
    """An element that is not stored exactly once, and what happens to it."""
    whole = [{p.dims for p in parts if _is_whole(p, buffer)} for parts in stores]
    settled = set.intersection(*whole) if whole else set()
    open_dims = [d for d in range(len(buffer.shape)) if not any(d in dims for dims in settled)]
    if math.prod(buffer.shape[d] for d in open_dims) > MOST_ELEMENTS:
        raise _Undecided(f"{buffer.name} has more than {MOST_ELEMENTS:,} elements")
    total = np.zeros([buffer.shape[d] for d in open_dims], np.uint8)
    for parts in stores:
        _add(total, [p for p in parts if p.dims not in settled], open_dims)
    if (total == 1).all():
        return None
    first = np.unravel_index(int(np.argmax(total != 1)), total.shape)
    where = dict(zip(open_dims, (int(i) for i in first), strict=True))
    how = "stores more than once" if total[first] else "never stores"
    return tuple(where.get(d, 0) for d in range(len(buffer.shape))), how


def _is_whole(part: _Part, buffer: Buffer) -> bool:
    """True if a part hits every position of its dimensions, once."""
    return (
        bool(part.dims)
        and part.counts.shape == tuple(buffer.shape[d] for d in part.dims)
        and (part.proved or bool((part.counts == 1).all()))
    )


def _add(total: Array, parts: Sequence[_Part], open_dims: Sequence[int]) -> None:
    """Add what one store's parts reach together, in the box where they do."""
    times: Array = np.ones((1,) * len(open_dims), np.uint8)
    starts = dict.fromkeys(open_dims, 0)
    for part in parts:
        starts.update(zip(part.dims, part.low, strict=True))
        others = tuple(a for a, d in enumerate(open_dims) if d not in part.dims)
        times = np.minimum(times * np.expand_dims(part.counts, others), _MANY)
    box = tuple(slice(starts[d], starts[d] + n) for d, n in zip(open_dims, times.shape, strict=True))
    total[box] = np.minimum(total[box] + times, _MANY)
