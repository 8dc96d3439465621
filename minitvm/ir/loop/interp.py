"""The loop interpreter: the living definition of the loop IR, and the oracle of every back end.

Independent iterations run side by side as *lanes*: a parallel, vectorized, block or thread loop multiplies the lanes,
every expression is a numpy array with one element per lane, a branch keeps the lanes that take it.  Serial and
unrolled loops run in order.  Memory of scope ``local`` exists once per lane that reached its ``Alloc``, ``shared``
likewise (one per block); nothing may be read before it is written, and no index may leave its buffer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from minitvm.errors import CompilerError
from minitvm.ir.loop import (
    Alloc,
    Barrier,
    Binary,
    Buffer,
    Const,
    For,
    If,
    Kernel,
    Load,
    LoopExpr,
    LoopKind,
    LoopVar,
    Mma,
    Select,
    Seq,
    Shuffle,
    Stmt,
    Store,
    expr_children,
    post_order_exprs,
    walk_exprs,
    walk_stmts,
)
from minitvm.ir.loop.affine import affine
from minitvm.ir.loop.expr import INT
from minitvm.ir.loop.memory import Memory, Team, Touched, result_of
from minitvm.ir.loop.scalar import as_array, compute

_SIDE_BY_SIDE = frozenset(LoopKind) - {LoopKind.SERIAL, LoopKind.UNROLLED}
_RACING = _SIDE_BY_SIDE - {LoopKind.VECTORIZED}
_BOUND = _RACING - {LoopKind.PARALLEL}
_THREADS = (LoopKind.THREAD_X, LoopKind.THREAD_Y, LoopKind.THREAD_Z)
WARP = 32
"""Threads that exchange values."""
_MOST_LANES = 1 << 18
_REMEMBERED_LANES = 1 << 13  # of larger sets, what was worked out for one statement is not kept: it takes memory

Array = np.ndarray
Value: TypeAlias = "Array | int"
"""One element per lane, or one where all lanes agree; of ``int64``, that may be an ``int``."""


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
            _Lanes(kernel, {b: memory[b] for b in kernel.params}, check_races=check_races).run(kernel.body)
    stored = {b: result_of(kernel, memory[b], b) for kernel in kernels for b in kernel.outputs}
    return {**given, **stored}


def _tf32(value: Array) -> Array:
    """Rounded to TF32, ties away from zero: 10 bits of mantissa are left."""
    bits = value.astype("float32").view("int32")
    return np.where(np.isfinite(value), (bits + 0x1000) & ~0x1FFF, bits).astype("int32").view("float32")


class _Axis(NamedTuple):
    """One dimension of an access: by lane a base between ``low`` and ``high``, and ``sum(factor * term)``."""

    low: int
    high: int
    terms: tuple[tuple[LoopExpr, int], ...]  # what changes while the lanes stay the same
    extent: int
    stride: int


_Plan: TypeAlias = tuple[Value, list[_Axis]]
"""An access as seen by a set of lanes; first what all axes' bases and the instance add up to."""


@dataclass
class _Lanes:
    """The lanes that are active at one place of the program.  Counters of ordered loops are in ``uniform``, which all
    sets of lanes share, as they do ``orders``."""

    kernel: Kernel
    memory: dict[Buffer, Memory]
    uniform: dict[LoopVar, int] = field(default_factory=dict)
    count: int = 1
    variables: dict[LoopVar, Array] = field(default_factory=dict)
    instances: dict[Buffer, Value] = field(default_factory=dict)
    check_races: bool = False
    in_parallel: bool = False
    threads: dict[LoopKind, tuple[LoopVar, int]] = field(default_factory=dict)
    team: Team | None = None
    for_all: bool = True
    """Whether what is evaluated is for all threads where no loop tells them apart; stores are by the first."""
    spreads: dict[tuple[LoopVar, int, int, LoopKind], _Lanes] = field(default_factory=dict)
    plans: dict[Load | Store, _Plan] = field(default_factory=dict)
    orders: dict[LoopExpr, list[LoopExpr]] = field(default_factory=dict)

    # --- statements -------------------------------------------------------------------------------------------

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
            case Barrier():
                self._barrier()
            case _:
                raise AssertionError(stmt)

    def _for(self, stmt: For) -> None:
        if stmt.kind in _SIDE_BY_SIDE:
            assert isinstance(stmt.extent, Const), "only serial loops have an extent that varies"
            step = max(1, stmt.extent.value if stmt.kind in _THREADS else _MOST_LANES // self.count // _together(stmt))
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

    def _in_order(self, stmt: For, active: Iterable[_Lanes]) -> None:
        for i, lanes in enumerate(active):
            self.uniform[stmt.var] = i
            lanes.run(stmt.body)
        self.uniform.pop(stmt.var, None)

    def _spread(self, var: LoopVar, start: int, stop: int, kind: LoopKind) -> _Lanes:
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
                threads={**self.threads, kind: (var, stop)} if kind in _THREADS else self.threads,
            )
            if found.count <= _REMEMBERED_LANES:
                self.spreads[key] = found
        return found

    def _some(self, mask: Array) -> _Lanes:
        """The lanes that a mask chooses."""
        if mask.all():
            return self
        return self._derived(
            count=int(mask.sum()),
            variables={v: x[mask] for v, x in self.variables.items()},
            instances={b: as_array(x)[mask] for b, x in self.instances.items()},
        )

    def _derived(self, **changes: Any) -> _Lanes:
        return replace(self, **{"spreads": {}, "plans": {}, **changes})

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
        if self.check_races and self.in_parallel and np.unique(where).size != self.count:
            raise CompilerError(f"{self.kernel.name}: two iterations store to the same element of {buffer.name}")
        self._race(buffer, index, where, "stores to")
        memory.data[where] = value[-1] if isinstance(where, int) else value
        memory.written[where] = True

    # --- expressions ------------------------------------------------------------------------------------------

    def eval(self, expr: LoopExpr) -> Value:
        """The value in every lane.  Shared subexpressions are evaluated once."""
        order = self.orders.get(expr)
        if order is None:
            order = self.orders[expr] = post_order_exprs([expr], _operands)
        done: dict[LoopExpr, Value] = {}
        for node in order:
            done[node] = self._node(node, done)
        return done[expr]

    def _node(self, node: LoopExpr, done: Mapping[LoopExpr, Value]) -> Value:
        match node:
            case Load(buffer, index):
                return self._load(node, buffer, index)
            case Binary(op, lhs, rhs):
                a, b = done[lhs], done[rhs]
                if isinstance(a, int) and isinstance(b, int) and op in INT:
                    return INT[op](a, b)
                return compute(node, (as_array(a), as_array(b)))
            case Const(value, "int64"):
                return int(value)
            case LoopVar():
                return self.uniform[node] if node in self.uniform else self.variables[node]
            case Select(condition, then, orelse):
                return self._select(as_array(done[condition]), then, orelse, node.dtype)
            case Shuffle(value, mask):
                return self._shuffle(as_array(done[value]), mask)
        return compute(node, [as_array(done[operand]) for operand in expr_children(node)])

    def _select(self, mask: Array, then: LoopExpr, orelse: LoopExpr, dtype: str) -> Value:
        """Each side is evaluated only for the lanes that choose it."""
        if mask.all() or not mask.any():
            return self.eval(then if mask[0] else orelse)
        result = np.empty(self.count, dtype)
        for chosen, side in ((mask, then), (~mask, orelse)):
            result[chosen] = self._some(chosen).eval(side)
        return result

    def _shuffle(self, value: Array, mask: int) -> Array:
        lanes = self._whole_warps("a shuffle")
        return np.asarray(np.broadcast_to(value, self.count)[lanes ^ mask])

    def _mma(self, stmt: Mma) -> None:
        """Matrices from the threads of each warp, their product, and back."""
        warps = self._whole_warps("a product").reshape(-1, WARP)
        g, t = np.arange(WARP) // 4, np.arange(WARP) % 4
        left, right = np.zeros((len(warps), 16, 8)), np.zeros((len(warps), 8, 8))
        for value, row, column in zip(stmt.a, (g, g + 8, g, g + 8), (t, t, t + 4, t + 4), strict=True):
            left[:, row, column] = _tf32(np.broadcast_to(as_array(self.eval(value)), self.count))[warps]
        for value, row in zip(stmt.b, (t, t + 4), strict=True):
            right[:, row, g] = _tf32(np.broadcast_to(as_array(self.eval(value)), self.count))[warps]
        product = left @ right
        for number in range(4):
            place = Load(stmt.sums, (*stmt.at, Const(number)))
            found = product[:, g + number // 2 * 8, 2 * t + number % 2].ravel()
            total = self._load(place, stmt.sums, place.index) + found
            self._store(place, stmt.sums, place.index, total.astype("float32"))

    def _whole_warps(self, what: str) -> Array:
        """Lanes are in the order of threads, whole warps one after the other."""
        number: Value = 0
        below = 1
        for var, extent in (self.threads[kind] for kind in _THREADS if kind in self.threads):
            number, below = number + self.variables[var] * below, below * extent
        lanes = np.arange(self.count)
        if self.count % WARP or not np.array_equal(number % WARP, lanes % WARP):
            raise CompilerError(f"{self.kernel.name}: {what} that not all threads of a warp reach")
        return lanes

    def _load(self, load: Load, buffer: Buffer, index: Sequence[LoopExpr]) -> Array:
        where = self._address(load, buffer, index)
        memory = self.memory[buffer]
        at = slice(where, where + 1) if isinstance(where, int) else where
        if not memory.whole and not (ready := memory.written[at]).all():
            raise CompilerError(
                f"{self.kernel.name} reads {buffer.name} before it is written",
                where=self._place(index, int(np.argmin(ready))),
            )
        self._race(buffer, index, where, "reads")
        found = memory.data[at]
        return found.copy() if isinstance(where, int) else found  # what is stored later is not seen

    # --- threads of a block -----------------------------------------------------------------------------------

    def _positions(self) -> dict[LoopKind, Array]:
        return {kind: self.variables[var] for kind, (var, _) in self.threads.items()}

    def _barrier(self) -> None:
        """Side by side, what comes before it is done."""
        if self.team and self.threads and not self.team.is_whole(self.count, self._positions()):
            raise CompilerError(f"{self.kernel.name}: a barrier that not all threads of a block reach")
        for memory in self.memory.values():
            if memory.touched is not None:
                memory.touched.barrier()

    def _race(self, buffer: Buffer, index: Sequence[LoopExpr], where: Value, does: str) -> None:
        touched = self.memory[buffer].touched
        if touched is None or self.team is None:
            return
        at, threads = np.broadcast_to(as_array(where), self.count), self.team.numbers(self.count, self._positions())
        is_for_all = self.for_all and self.threads.keys() != self.team.extents.keys()
        lane = touched.store(at, threads) if does != "reads" else touched.load(at, None if is_for_all else threads)
        if lane is not None:
            message = f"{does} an element of {buffer.name} that another thread touched since the last barrier"
            raise CompilerError(f"{self.kernel.name} {message}", where=self._place(index, lane))

    # --- addresses --------------------------------------------------------------------------------------------

    def _address(self, access: Load | Store, buffer: Buffer, index: Sequence[LoopExpr]) -> Value:
        """Where every lane's element is; one number where it is the same for all."""
        plan = self.plans.get(access)
        if plan is None:
            plan = self._plan(buffer, index)
            if self.count <= _REMEMBERED_LANES:
                self.plans[access] = plan
        where, axes = plan
        for number, axis in enumerate(axes):
            moved: Value = 0
            for term, factor in axis.terms:
                moved = moved + self.eval(term) * factor
            least, most = (moved, moved) if isinstance(moved, int) else (moved.min(), moved.max())
            if least + axis.low < 0 or most + axis.high >= axis.extent:
                self._check(buffer, index, number)
            where = where + moved * axis.stride
        return where

    def _plan(self, buffer: Buffer, index: Sequence[LoopExpr]) -> _Plan:
        if buffer not in self.memory:
            raise CompilerError(f"{self.kernel.name} uses {buffer.name}, which is neither a parameter nor allocated")
        start = self.instances.get(buffer, 0) * self.memory[buffer].size
        axes: list[_Axis] = []
        for position, extent, stride in zip(index, buffer.shape, buffer.strides, strict=True):
            form = affine(position)
            fixed = {term: factor for term, factor in form.terms.items() if self._is_fixed(term)}
            base: Value = form.constant
            for term, factor in fixed.items():
                base = base + self.eval(term) * factor
            low, high = (base, base) if isinstance(base, int) else (int(base.min()), int(base.max()))
            moving = tuple((term, factor) for term, factor in form.terms.items() if term not in fixed)
            axes.append(_Axis(low, high, moving, extent, stride))
            start = start + base * stride
        return start, axes

    def _is_fixed(self, term: LoopExpr) -> bool:
        """Whether its value stays while the lanes stay the same."""
        return all(isinstance(n, (Binary, Const)) or n in self.variables for n in walk_exprs(term))

    def _check(self, buffer: Buffer, index: Sequence[LoopExpr], number: int) -> None:
        """Lane by lane, where the bounds of all of them together are too wide."""
        value, extent = as_array(self.eval(index[number])), buffer.shape[number]
        outside = (value < 0) | (value >= extent)
        if outside.any():
            lane = int(np.argmax(outside))
            raise CompilerError(
                f"{self.kernel.name} reaches outside of {buffer.name}: "
                f"index {int(value[lane])} in dimension {number} of extent {extent}",
                where=self._place(index, lane),
            )

    def _place(self, index: Sequence[LoopExpr], lane: int) -> list[str]:
        values = {**{v: int(x[lane]) for v, x in self.variables.items()}, **self.uniform}
        at = ", ".join(f"{v.name}={x}" for v, x in values.items())
        position = [np.broadcast_to(as_array(self.eval(i)), self.count)[lane] for i in index]
        return [f"index ({', '.join(str(int(p)) for p in position)}) where {at or 'no loop'}"]


def _together(stmt: For) -> int:
    """Threads of a block that an iteration has, which no time may tell apart."""
    inner = [s for s in walk_stmts(stmt.body) if isinstance(s, For) and s.kind in _THREADS]
    extents = [(s.kind, s.extent.value) for s in inner if isinstance(s.extent, Const)]
    return math.prod(max((n for k, n in extents if k is kind), default=1) or 1 for kind in _THREADS)


def _operands(node: LoopExpr) -> tuple[LoopExpr, ...]:
    """What is evaluated in all lanes, whatever a select chooses; an address sees to its indices."""
    if isinstance(node, Select):
        return (node.condition,)
    return () if isinstance(node, Load) else expr_children(node)
