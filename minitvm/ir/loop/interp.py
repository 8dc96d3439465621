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
from typing import TYPE_CHECKING, Any

import numpy as np

from minitvm.errors import CompilerError
from minitvm.ir.dtypes import register
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
from minitvm.ir.loop.lanes import REMEMBERED, WARP, Array, Lanes
from minitvm.ir.loop.memory import THREADS, Memory, Team, Touched, result_of
from minitvm.ir.loop.scalar import as_array

if TYPE_CHECKING:
    from typing_extensions import Self

_SIDE_BY_SIDE = frozenset(LoopKind) - {LoopKind.SERIAL, LoopKind.UNROLLED}
_RACING = _SIDE_BY_SIDE - {LoopKind.VECTORIZED}
_BOUND = _RACING - {LoopKind.PARALLEL}
_MOST_LANES = 1 << 18
_G, _T = np.arange(WARP) // 4, np.arange(WARP) % 4
"""Where a thread of a warp stands in matrices (:class:`Mma`)."""


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
            _Running(kernel, {b: memory[b] for b in kernel.params}, check_races=check_races).run(kernel.body)
    stored = {b: result_of(kernel, memory[b], b) for kernel in kernels for b in kernel.outputs}
    return {**given, **stored}


def _half(kind: str) -> np.dtype[Any]:
    register()
    return np.dtype(kind)


def _tf32(value: Array) -> Array:
    """Rounded to TF32, ties away from zero: 10 bits of mantissa are left."""
    bits = value.astype("float32").view("int32")
    return np.where(np.isfinite(value), (bits + 0x1000) & ~0x1FFF, bits).astype("int32").view("float32")


class _Running(Lanes):
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
                self._store(stmt, buffer, index, as_array(self.eval(value)))
                self.for_all = True
            case If(condition, then, orelse):
                self._if(as_array(self.eval(condition)), then, orelse)
            case Alloc(buffer, body):
                self._alloc(buffer, body)
            case Mma():
                self._mma(stmt)
            case Ldmatrix():
                self._matrices(stmt)
            case Wgmma():
                self._group_product(stmt)
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

    def _store(self, stmt: Store | Load, buffer: Buffer, index: Sequence[LoopExpr], value: Array) -> None:
        where = self._address(stmt, buffer, index)
        memory = self.memory[buffer]
        if self.check_races and self.in_parallel and memory.is_shared(where, self.count):
            raise CompilerError(f"{self.kernel.name}: two iterations store to the same element of {buffer.name}")
        self._race(buffer, index, where, "stores to")
        memory.data[where] = value[-1] if isinstance(where, int) else value
        memory.written[where] = not isinstance(stmt, CopyAsync)
        if isinstance(stmt, CopyAsync):
            memory.copies[-1].append((np.asarray(where), self._numbers()))

    def _mma(self, stmt: Mma) -> None:
        """Matrices from the threads of each warp, their product, and back."""
        warps = self._whole_warps("a product").reshape(-1, WARP)
        a, b = ([self._factor(value, stmt.kind)[:, warps] for value in factor] for factor in (stmt.a, stmt.b))
        per = len(a[0])
        left, right = np.zeros((len(warps), 16, 8 * per)), np.zeros((len(warps), 8 * per, 8))
        for part in range(per):
            for number, value in enumerate(a):
                left[:, _G + number % 2 * 8, (_T + number // 2 * 4) * per + part] = value[part]
            for number, value in enumerate(b):
                right[:, (_T + number * 4) * per + part, _G] = value[part]
        product = left @ right
        for number in range(4):
            place = Load(stmt.sums, (*stmt.at, Const(number)))
            found = product[:, _G + number // 2 * 8, 2 * _T + number % 2].ravel()
            total = self._load(place, stmt.sums, place.index) + found
            self._store(place, stmt.sums, place.index, total.astype("float32"))

    def _factor(self, value: LoopExpr, kind: str) -> Array:
        """What a value holds in every lane: one number, or the two of a word."""
        found = np.broadcast_to(as_array(self.eval(value)), self.count)
        if kind == "tf32":
            return _tf32(found)[None]
        pairs: Array = np.ascontiguousarray(found).view(_half(kind)).reshape(-1, 2)
        wide: Array = pairs.T.astype("float32")
        return wide

    def _matrices(self, stmt: Ldmatrix) -> None:
        """Rows from the threads of each warp, and words back."""
        warps, row = self._whole_warps("a load of matrices").reshape(-1, WARP), stmt.row
        assert isinstance(row, Load)
        if (as_array(self._address(row, row.buffer, row.index)) % 8).any():
            raise CompilerError(f"{self.kernel.name}: a row of matrices in {row.buffer.name} that is not on 16 bytes")
        elements = (Load(row.buffer, (*row.index[:-1], row.index[-1] + n)) for n in range(8))
        loaded = [np.broadcast_to(self._load(e, e.buffer, e.index), self.count).view("uint16") for e in elements]
        matrices = np.stack(loaded, axis=-1)[warps].reshape(-1, 4, 8, 8)
        swapped = matrices.swapaxes(2, 3) if stmt.transposed else matrices
        for number in range(stmt.count):
            low, high = (swapped[:, number, _G, 2 * _T + n].astype("uint32") for n in (0, 1))
            place = Load(stmt.to, (*stmt.at, Const(number)))
            self._store(place, stmt.to, place.index, (low | high << 16).ravel())

    def _group_product(self, stmt: Wgmma) -> None:
        """At once, whenever it is waited for."""
        groups, pieces = self._whole_warps("a product of a warpgroup").reshape(-1, 4 * WARP), stmt.sums.shape[-2]
        left = self._factor_rows(stmt.a, groups[:, 0], 64, False)
        right = self._factor_rows(stmt.b, groups[:, 0], 8 * pieces, stmt.transposed)
        product = left @ right.swapaxes(1, 2)
        lanes = np.arange(4 * WARP)
        row, column = lanes // WARP * 16 + lanes % WARP // 4, lanes % 4 * 2
        for piece, number in np.ndindex(pieces, 4):
            found = np.empty(self.count)
            found[groups] = product[:, row + number // 2 * 8, column + piece * 8 + number % 2]
            place = Load(stmt.sums, (*stmt.at, Const(piece), Const(number)))
            total = self._load(place, stmt.sums, place.index) + found
            self._store(place, stmt.sums, place.index, total.astype("float32"))

    def _factor_rows(self, first: LoopExpr, lanes: Array, lines: int, transposed: bool) -> Array:
        """(lane, lines, 16) of a warpgroup's factor in shared memory."""
        assert isinstance(first, Load)
        buffer, (*_, line, r) = first.buffer, first.index
        last = (line + 15, r + 63) if transposed else (line + (lines - 1), r + 15)
        for index in (first.index, (*first.index[:-2], *last)):
            self._load(Load(buffer, index), buffer, index)
        start = np.broadcast_to(as_array(self._address(first, buffer, first.index)), self.count)[lanes]
        n, k = np.arange(lines)[:, None], np.arange(16)
        inside = n // 64 * buffer.strides[-3] + k * 64 + n % 64 if transposed else n * buffer.strides[-2] + k
        where = start[:, None, None] + inside
        if not self.memory[buffer].written[where].all():
            raise CompilerError(f"{self.kernel.name}: a warpgroup's factor in {buffer.name} that nobody wrote")
        found: Array = self.memory[buffer].data[where].astype("float32")
        return found

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
