"""The loop interpreter: the living definition of the loop IR, and the oracle of every back end.

Independent iterations run side by side as *lanes*: a parallel, vectorized, block or thread loop multiplies the lanes,
every expression is a numpy array with one element per lane, a branch keeps the lanes that take it.  Serial and
unrolled loops run in order.  Memory of scope ``local`` exists once per lane that reached its ``Alloc``, ``shared``
likewise (one per block); nothing may be read before it is written, no index may leave its buffer, and a data race
between lanes is an error where it is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from minitvm.doors import door, left_out
from minitvm.errors import CompilerError
from minitvm.ir.loop import (
    Alloc,
    Barrier,
    Buffer,
    Const,
    CopyAsync,
    CopyCommit,
    CopyWait,
    For,
    If,
    Kernel,
    Ldmatrix,
    Load,
    LoopExpr,
    LoopKind,
    LoopVar,
    Mma,
    Prefetch,
    Seq,
    Stmt,
    Store,
    Wgmma,
    WgmmaSync,
    walk_stmts,
)
from minitvm.ir.loop.lanes import REMEMBERED, Array, Lanes
from minitvm.ir.loop.memory import THREADS, Memory, Team, Touched, result_of
from minitvm.ir.loop.scalar import as_array

if TYPE_CHECKING:
    from typing_extensions import Self

_SIDE_BY_SIDE = frozenset(LoopKind) - {LoopKind.SERIAL, LoopKind.UNROLLED}
_RACING = _SIDE_BY_SIDE - {LoopKind.VECTORIZED}
_BOUND = _RACING - {LoopKind.PARALLEL}
_MOST_LANES = 1 << 18


def run_kernel(kernel: Kernel, *inputs: Array, check_races: bool = False) -> tuple[Array, ...]:
    """The results of a kernel for arrays of its inputs' shapes and dtypes.

    Raises :class:`CompilerError` for an index out of bounds, a read of memory never written, a result element that
    no store reaches, a barrier that not all threads of a block reach, and (``check_races``) two iterations of parallel
    loops, threads or blocks that store to the same element, two threads that touch one of shared memory, a store
    among them, without a barrier between.
    """
    if len(inputs) != len(kernel.inputs):
        raise CompilerError(f"{kernel.name} takes {len(kernel.inputs)} arrays, {len(inputs)} given")
    found = run_sequence([kernel], dict(zip(kernel.inputs, inputs, strict=True)), check_races)
    return tuple(found[b] for b in kernel.outputs)


def run_sequence(
    kernels: Sequence[Kernel], given: Mapping[Buffer, Array], check_races: bool = False
) -> dict[Buffer, Array]:
    """Kernels one after the other over common buffers: what one stores, the next ones find.

    ``given`` are the arrays that exist before; all arrays come back, those included.
    """
    memory = {b: Memory.holding(b, a) for b, a in given.items()}
    for kernel in kernels:
        memory |= {b: Memory.empty(b, 1) for b in kernel.outputs if b not in memory}
        with np.errstate(all="ignore"):
            Running(kernel, {b: memory[b] for b in kernel.params}, check_races=check_races).run(kernel.body)
    stored = {b: result_of(kernel, memory[b], b) for kernel in kernels for b in kernel.outputs}
    return {**given, **stored}


@door
def run_warps(running: Running, stmt: Mma | Ldmatrix | Wgmma) -> None:
    """Matrices that the threads of warps hold together."""
    raise left_out("a product of a warp's threads")


class Running(Lanes):
    """Statements, in the lanes that are active at one place of the program."""

    def run(self, stmt: Stmt) -> None:
        match stmt:
            case Seq(stmts):
                for part in stmts:
                    self.run(part)
            case For():
                self._for(stmt)
            case Store(buffer, index, value):
                self.for_all = buffer.scope == "local"
                self.store(stmt, buffer, index, as_array(self.eval(value)))
                self.for_all = True
            case If(condition, then, orelse):
                self._if(as_array(self.eval(condition)), then, orelse)
            case Alloc(buffer, body):
                self._alloc(buffer, body)
            case Mma() | Ldmatrix() | Wgmma():
                run_warps(self, stmt)
            case WgmmaSync(what):
                self._whole_team(f"a warpgroup's {what}")
            case Prefetch(element):
                self.eval(element)
            case Barrier():
                self._barrier()
            case CopyCommit():
                self._whole_team("a commit of copies")
                for memory in self.memory.values():
                    memory.commit()
            case CopyWait(left):
                self._whole_team("a wait for copies")
                for memory in self.memory.values():
                    memory.arrive(left)
            case _:
                raise AssertionError(stmt)

    def _for(self, stmt: For) -> None:
        if stmt.kind in _SIDE_BY_SIDE:
            assert isinstance(stmt.extent, Const), "only serial loops have an extent that varies"
            step = max(1, stmt.extent.value if stmt.kind in THREADS else _MOST_LANES // self.count // _together(stmt))
            around = self if self.team or stmt.kind not in _BOUND else self._derived(team=Team(stmt))
            for start in range(0, stmt.extent.value, step):
                around._spread(stmt.var, start, min(start + step, stmt.extent.value), stmt.kind).run(stmt.body)
            return
        extent = self.eval(stmt.extent)
        if isinstance(extent, int) or extent.size == 1:
            extent = int(extent if isinstance(extent, int) else extent[0])
            self._in_order(stmt, (self for _ in range(extent)))
        else:
            self._in_order(stmt, (self._some(extent > i) for i in range(int(extent.max()))))

    def _in_order(self, stmt: For, active: Iterable[Self]) -> None:
        for i, lanes in enumerate(active):
            self.uniform[stmt.var] = i
            lanes.run(stmt.body)
        self.uniform.pop(stmt.var, None)

    def _spread(self, var: LoopVar, start: int, stop: int, kind: LoopKind) -> Self:
        """Every lane once per iteration."""
        key = (var, start, stop, kind)
        found = self.spreads.get(key)
        if found is None:
            times = stop - start
            found = self._derived(
                count=self.count * times,
                variables={
                    **{v: np.repeat(x, times) for v, x in self.variables.items()},
                    var: np.tile(np.arange(start, stop), self.count),
                },
                instances={b: np.repeat(x, times) for b, x in self.instances.items()},
                in_parallel=self.in_parallel or kind in _RACING,
                threads={**self.threads, kind: (var, stop)} if kind in THREADS else self.threads,
            )
            if found.count <= REMEMBERED:
                self.spreads[key] = found
        return found

    def _if(self, mask: Array, then: Stmt, orelse: Stmt | None) -> None:
        if mask.any():
            self._some(mask).run(then)
        if orelse is not None and not mask.all():
            self._some(~mask).run(orelse)

    def _alloc(self, buffer: Buffer, body: Stmt) -> None:
        own = buffer.scope != "global"
        memory = {**self.memory, buffer: Memory.empty(buffer, self.count if own else 1)}
        number = np.arange(self.count) if self.count > 1 else 0
        instances = {**self.instances, buffer: number} if own else self.instances
        if self.check_races and self.team and buffer.scope == "shared":
            memory[buffer].touched = Touched(memory[buffer].data.size)
        self._derived(memory=memory, instances=instances).run(body)

    def store(self, stmt: Store | Load, buffer: Buffer, index: Sequence[LoopExpr], value: Array) -> None:
        where = self.address(stmt, buffer, index)
        memory = self.memory[buffer]
        if self.check_races and self.in_parallel and memory.is_shared(where, self.count):
            raise CompilerError(f"{self.kernel.name}: two iterations store to the same element of {buffer.name}")
        self._race(buffer, index, where, "stores to")
        memory.data[where] = value[-1] if isinstance(where, int) else value
        memory.written[where] = not isinstance(stmt, CopyAsync)
        if isinstance(stmt, CopyAsync):
            memory.copies[-1].append((np.asarray(where), self._numbers()))

    def _barrier(self) -> None:
        """Side by side, what comes before it is done."""
        self._whole_team("a barrier")
        for memory in self.memory.values():
            if memory.touched is not None:
                memory.touched.barrier()

    def _whole_team(self, what: str) -> None:
        if self.team and self.threads and not self.team.is_whole(self.count, self._positions()):
            raise CompilerError(f"{self.kernel.name}: {what} that not all threads of a block reach")


def _together(stmt: For) -> int:
    """Threads of a block that an iteration has, which no time may tell apart."""
    inner = [s for s in walk_stmts(stmt.body) if isinstance(s, For) and s.kind in THREADS]
    extents = [(s.kind, s.extent.value) for s in inner if isinstance(s.extent, Const)]
    return math.prod(max((n for k, n in extents if k is kind), default=1) or 1 for kind in THREADS)
