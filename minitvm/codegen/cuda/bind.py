"""From a group's kernel to what is launched for it; and a plain binding to blocks and threads: right, not tuned.

Nests that a team barrier separates become kernels of their own, because a grid has no other barrier; the workspace
between them becomes a parameter.  A nest that a schedule or a template has bound stays; of any other one, the last
resort, an iteration of a parallel loop becomes

* a block whose threads are the lanes, where lanes do not exchange values: every ``local`` element belongs to one lane;
* a thread that runs the lanes one after the other, otherwise.

``shared`` memory of an iteration becomes a slice of a workspace of its own.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from minitvm.codegen.cuda.arrival import Arrival, arrival_of
from minitvm.codegen.dependences import Access, accesses, carried
from minitvm.codegen.loops import bind_vars, fresh_vars, fused, redirect, split, trips
from minitvm.codegen.simplify import simplify
from minitvm.errors import CompilerError
from minitvm.ir.decision import Declined, decide
from minitvm.ir.loop import (
    Alloc,
    Barrier,
    Buffer,
    Const,
    CopyWait,
    For,
    If,
    Kernel,
    LoopKind,
    LoopVar,
    Mma,
    Seq,
    Shuffle,
    Stmt,
    Store,
    Wgmma,
    allocated,
    map_stmt,
    seq,
    walk_exprs,
    walk_stmts,
)
from minitvm.ir.loop.affine import depends_on

_THREADS = 64  # of a block whose threads run whole iterations
_MOST_THREADS = 1024
_STATIC_SHARED = 48 * 1024
"""Bytes that a function may have of fixed places; more has to be asked for when it is launched."""
_ALIGNED = 16
_SWIZZLED = 1024
"""Of the widest access."""
_GRID = (LoopKind.BLOCK_X, LoopKind.BLOCK_Y, LoopKind.BLOCK_Z)
_BLOCK = (LoopKind.THREAD_X, LoopKind.THREAD_Y, LoopKind.THREAD_Z)


def bind_plain(kernel: Kernel) -> tuple[Kernel, ...]:
    """The kernels to launch one after the other; what one leaves in a parameter the next ones find there.

    The last ``results`` of each one's parameters are those that it stores to.
    """
    nests = ([_bound(nest, kernel.name) for nest in phase] for phase in _phases(kernel.body))
    phases = [seq(*part) for phase in nests for part in _launched(phase)]
    ends = [f"_{number}" for number in range(len(phases))] if len(phases) > 1 else [""] * len(phases)
    return tuple(_as_kernel(kernel.name + end, kernel, body) for end, body in zip(ends, phases, strict=True))


# --- phases ---------------------------------------------------------------------------------------------------


def _phases(body: Stmt) -> list[list[Stmt]]:
    """The top-level nests between team barriers; workspaces around them are left out.  Two with an arrival between them
    are one."""
    phases: list[list[Stmt]] = [[]]
    arrived = False
    for part in _top_level(body):
        if isinstance(part, Arrival) or arrived:
            phases[-1][-1] = seq(phases[-1][-1], part)
            arrived = isinstance(part, Arrival)
        elif isinstance(part, Barrier):
            phases.append([])
        else:
            phases[-1].append(part)
    return [phase for phase in phases if phase]


def _top_level(stmt: Stmt) -> Iterator[Stmt]:
    match stmt:
        case Seq(stmts):
            for part in stmts:
                yield from _top_level(part)
        case Alloc(buffer, body) if buffer.scope == "global":
            yield from _top_level(body)
        case _:
            yield stmt


def _launched(nests: Sequence[Stmt]) -> Iterator[list[Stmt]]:
    """Neighbours by one launch, as long as one block serves all of them."""
    found: list[Stmt] = []
    for nest in nests:
        if found and not _share_blocks([*found, nest]):
            yield found
            found = []
        found.append(nest)
    yield found


def _share_blocks(nests: Sequence[Stmt]) -> bool:
    """True if a block may have what any of them needs, and where threads meet, they are all there."""
    whole = seq(*nests)
    if any(isinstance(stmt, Arrival) for stmt in walk_stmts(whole)):
        return False
    block, shared = _block(whole), sum(buffer.nbytes for buffer in allocated(whole) if buffer.scope == "shared")
    fits = math.prod(block) <= _MOST_THREADS and shared <= _STATIC_SHARED
    return fits and all(_block(nest) == block for nest in nests if _threads_meet(nest))


def _threads_meet(nest: Stmt) -> bool:
    meet = any(isinstance(stmt, (Barrier, CopyWait, Mma, Wgmma)) for stmt in walk_stmts(nest))
    return meet or any(isinstance(expr, Shuffle) for expr in walk_exprs(nest))


def _block(nest: Stmt) -> tuple[int, int, int]:
    x, y, z = (_most(nest, kind) for kind in _BLOCK)
    return x, y, z


def _as_kernel(name: str, whole: Kernel, body: Stmt) -> Kernel:
    used = accesses(body)
    private = allocated(body)
    buffers = [b for b in dict.fromkeys([*whole.params, *(a.buffer for a in used)]) if b not in private]
    stored = {a.buffer for a in used if a.is_store}
    touched = {a.buffer for a in used}
    inputs = [b for b in buffers if b in touched and b not in stored]
    outputs = [b for b in buffers if b in stored]
    return simplify(Kernel(name, (*inputs, *outputs), body, results=len(outputs), spans=whole.spans))


# --- one nest -------------------------------------------------------------------------------------------------


def _is_bound(nest: Stmt) -> bool:
    return any(isinstance(s, For) and s.kind in (*_GRID, *_BLOCK) for s in walk_stmts(nest))


def _bound(nest: Stmt, name: str) -> Stmt:
    """As a nest of blocks."""
    if _is_bound(nest):
        return nest
    decide("bind", name, Declined("a nest that no schedule of GPUs wrote: iterations of its outer loop are threads"))
    if not (isinstance(nest, For) and nest.kind is LoopKind.PARALLEL):
        nest = For(LoopVar("once"), Const(1), nest, LoopKind.PARALLEL)
    single = _one_loop(nest)
    body = _own_slices(single)
    lanes = _lane_loops(body)
    threads = _lanes_as_threads(body, lanes) if lanes and body is single.body else None
    if threads is not None:
        return For(single.var, single.extent, threads, LoopKind.BLOCK_X)
    blocks = For(single.var, single.extent, _serial_lanes(body), LoopKind.BLOCK_X)
    factor = max(1, min(_THREADS, trips(single)))
    return split(blocks, factor, "guard", lambda inner: replace(inner, kind=LoopKind.THREAD_X))


def _one_loop(nest: For) -> For:
    """Perfectly nested parallel loops as one."""
    around = [nest]
    while isinstance(inner := around[-1].body, For) and inner.kind is LoopKind.PARALLEL:
        around.append(inner)
    if len(around) == 1:
        return nest
    loops = [(f.var, trips(f)) for f in around]
    return fused(loops, around[-1].body, "_".join(f.var.name for f in around), LoopKind.PARALLEL)


def _own_slices(nest: For) -> Stmt:
    """The body over ``workspace[iteration, ...]`` in place of each ``shared`` buffer."""
    body = nest.body
    for buffer in [b for b in allocated(nest.body) if b.scope == "shared"]:
        workspace = Buffer(buffer.name, (trips(nest), *buffer.shape), buffer.dtype)
        body = redirect(body, {buffer: workspace}, lambda index: (nest.var, *index))
        body = map_stmt(body, on_stmt=lambda s, b=buffer: s.body if isinstance(s, Alloc) and s.buffer is b else s)  # type: ignore[misc]
    return body


# --- lanes ----------------------------------------------------------------------------------------------------


def _lane_loops(body: Stmt) -> list[For]:
    return [s for s in walk_stmts(body) if isinstance(s, For) and s.kind is LoopKind.VECTORIZED]


def _without_lanes(body: Stmt) -> Stmt:
    return map_stmt(body, on_stmt=lambda s: Seq(()) if isinstance(s, For) and s.kind is LoopKind.VECTORIZED else s)


def _lane_axis(buffer: Buffer, inside: Sequence[tuple[For, Access]]) -> int | None:
    """The dimension that is indexed by the lane, and by nothing else, in every access; no other one depends on it."""
    found = [(f.var, a.index) for f, a in inside if a.buffer is buffer]
    for axis in range(len(buffer.shape)):
        if all(
            index[axis] == lane and not any(depends_on(i, lane) for d, i in enumerate(index) if d != axis)
            for lane, index in found
        ):
            return axis
    return None


def _lanes_as_threads(body: Stmt, lanes: Sequence[For]) -> Stmt | None:
    """The whole body once per thread: scalar code is run by all, its stores to global memory by the first.

    ``None`` where a lane needs what another one computed, or scalar code needs something of one.
    """
    width, private, thread = max(map(trips, lanes)), {*allocated(body)}, LoopVar("thread")
    inside, scalar = [(f, access) for f in lanes for access in accesses(f.body)], accesses(_without_lanes(body))
    stored, loaded = ({a.buffer for a in (*(i for _, i in inside), *scalar) if a.is_store == s} for s in (True, False))
    axes = {a.buffer: _lane_axis(a.buffer, inside) for _, a in inside if a.is_store and a.buffer in private}
    exchanged = (stored & loaded) - private or axes.keys() & {a.buffer for a in scalar} or None in axes.values()
    if exchanged or width > _MOST_THREADS:
        return None
    in_lanes = {s for f in lanes for s in walk_stmts(f.body)}

    def threaded_part(stmt: Stmt) -> Stmt:
        if isinstance(stmt, For) and stmt.kind is LoopKind.VECTORIZED:
            moved = bind_vars(stmt.body, {stmt.var: thread})
            return moved if trips(stmt) == width else If(thread < stmt.extent, moved)
        if isinstance(stmt, Store) and stmt not in in_lanes and stmt.buffer not in private:
            return If(thread.equal(0), stmt)
        return stmt

    threaded = map_stmt(body, on_stmt=threaded_part)
    for buffer, axis in axes.items():
        assert axis is not None
        threaded = _one_element_per_thread(threaded, buffer, axis)
    return For(thread, Const(width), threaded, LoopKind.THREAD_X)


def _one_element_per_thread(body: Stmt, buffer: Buffer, axis: int) -> Stmt:
    """A local buffer without the dimension that the lanes were in."""
    own = Buffer(buffer.name, buffer.shape[:axis] + buffer.shape[axis + 1 :], buffer.dtype, "local")
    moved = redirect(body, {buffer: own}, lambda index: index[:axis] + index[axis + 1 :])
    return map_stmt(moved, on_stmt=lambda s: Alloc(own, s.body) if isinstance(s, Alloc) and s.buffer is buffer else s)


def _serial_lanes(body: Stmt) -> Stmt:
    """Lanes in order, statement by statement where one lane's store is another one's load."""

    def serial(stmt: Stmt) -> Stmt:
        if not (isinstance(stmt, For) and stmt.kind is LoopKind.VECTORIZED):
            return stmt
        met = carried(stmt, only_flow=True)
        if met is None:
            return replace(stmt, kind=LoopKind.SERIAL)
        if isinstance(stmt.body, Seq):
            return seq(*(serial(fresh_vars(replace(stmt, body=part))) for part in stmt.body.stmts))
        raise CompilerError(f"lanes of loop {stmt.var.name} exchange values through {met.buffer.name} in one statement")

    return map_stmt(body, on_stmt=serial)


# --- launching ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Launch:
    """Blocks of the grid and threads of a block: x, y, z; bytes of dynamic shared memory; counters of arrivals, which
    the kernel is given behind its parameters."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int = 0
    counters: int = 0

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]


def launch_of(kernel: Kernel) -> Launch:
    """The blocks and threads that a bound kernel needs: the most that any of its loops has."""

    x, y, z = (_most(kernel.body, kind) for kind in _GRID)
    arrival = arrival_of(kernel)
    counters = x // arrival.parts * y if arrival and not arrival.together else 0
    return Launch((x, y, z), _block(kernel.body), dynamic_shared(kernel)[1], counters)


def dynamic_shared(kernel: Kernel) -> tuple[dict[Buffer, int], int]:
    """The place where buffers begin in a block's dynamic shared memory, and its bytes; none where static memory
    suffices; swizzled ones come first, on multiples of 1,024."""
    offsets: dict[Buffer, int] = {}
    total = 0
    shared = [buffer for buffer in allocated(kernel.body) if buffer.scope == "shared"]
    for buffer in sorted(shared, key=lambda b: not b.swizzled):
        offsets[buffer] = total
        align = _SWIZZLED if buffer.swizzled else _ALIGNED
        total += -(-buffer.nbytes // align) * align
    if any(buffer.swizzled for buffer in shared):
        return offsets, -(-total // _SWIZZLED) * _SWIZZLED
    return (offsets, total) if total > _STATIC_SHARED else ({}, 0)


def _most(stmt: Stmt, kind: LoopKind) -> int:
    """Iterations of the longest loop of a kind."""
    extents = [s.extent for s in walk_stmts(stmt) if isinstance(s, For) and s.kind is kind]
    return max((int(e.value) for e in extents if isinstance(e, Const)), default=1)
