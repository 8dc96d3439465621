"""Lanes of the loop interpreter: what expressions are worth in each, and where in memory their elements lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from minitvm.errors import CompilerError
from minitvm.ir.loop.affine import affine
from minitvm.ir.loop.expr import INT, Binary, Buffer, Const, Intrin, Load, LoopExpr, LoopVar, Select, Shuffle
from minitvm.ir.loop.memory import THREADS, Memory, Team
from minitvm.ir.loop.scalar import as_array, compute
from minitvm.ir.loop.stmt import Kernel, LoopKind, Store, dependency_order, walk_exprs

if TYPE_CHECKING:
    from typing_extensions import Self

WARP = 32
"""Threads that exchange values."""
REMEMBERED = 1 << 13
"""Of more lanes, what was worked out for one statement is not kept: it takes memory."""

Array = np.ndarray
Value: TypeAlias = "Array | int"
"""One element per lane, or one where all lanes agree; of ``int64``, that may be an ``int``."""


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
class Lanes:
    """The lanes that are active at one place of the program.  Counters of ordered loops are in ``uniform``, which all
    sets of lanes share, as they do ``orders``."""

    kernel: Kernel
    memory: dict[Buffer, Memory]
    uniform: dict[LoopExpr, int] = field(default_factory=dict)
    count: int = 1
    variables: dict[LoopVar, Array] = field(default_factory=dict)
    instances: dict[Buffer, Value] = field(default_factory=dict)
    check_races: bool = False
    in_parallel: bool = False
    threads: dict[LoopKind, tuple[LoopVar, int]] = field(default_factory=dict)
    team: Team | None = None
    for_all: bool = True
    """Whether what is evaluated is for all threads where no loop tells them apart; stores are by the first."""
    spreads: dict[tuple[LoopVar, int, int, LoopKind], Self] = field(default_factory=dict)
    plans: dict[Load | Store, _Plan] = field(default_factory=dict)
    orders: dict[LoopExpr, list[LoopExpr]] = field(default_factory=dict)

    def _some(self, mask: Array) -> Self:
        """The lanes that a mask chooses."""
        if mask.all():
            return self
        return self._derived(
            count=int(mask.sum()),
            variables={v: x[mask] for v, x in self.variables.items()},
            instances={b: as_array(x)[mask] for b, x in self.instances.items()},
        )

    def _derived(self, **changes: Any) -> Self:
        return replace(self, **{"spreads": {}, "plans": {}, **changes})

    # --- expressions ------------------------------------------------------------------------------------------

    def eval(self, expr: LoopExpr) -> Value:
        """The value in every lane.  Shared subexpressions are evaluated once."""
        counter = self.uniform.get(expr)
        if counter is not None:
            return counter
        order = self.orders.get(expr)
        if order is None:
            order = self.orders[expr] = dependency_order([expr], _operands)
        done: dict[LoopExpr, Value] = {}
        for node in order:
            done[node] = self._node(node, done)
        return done[expr]

    def _node(self, node: LoopExpr, done: Mapping[LoopExpr, Value]) -> Value:
        match node:
            case Load(buffer, index):
                return self.load(node, buffer, index)
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
            case Intrin("same_memory", (Load() as a, Load() as b)):
                return self._is_one(a, b)
        return compute(node, [as_array(done[operand]) for operand in node.operands])

    def _select(self, mask: Array, then: LoopExpr, orelse: LoopExpr, dtype: str) -> Value:
        """Each side is evaluated only for the lanes that choose it."""
        if mask.all() or not mask.any():
            return self.eval(then if mask[0] else orelse)
        result = np.empty(self.count, dtype)
        for chosen, side in ((mask, then), (~mask, orelse)):
            result[chosen] = self._some(chosen).eval(side)
        return result

    def _shuffle(self, value: Array, mask: int) -> Array:
        lanes = self.whole_warps("a shuffle")
        return np.asarray(np.broadcast_to(value, self.count)[lanes ^ mask])

    def whole_warps(self, what: str) -> Array:
        """Lanes are in the order of threads, whole warps one after the other."""
        number: Value = 0
        below = 1
        for var, extent in (self.threads[kind] for kind in THREADS if kind in self.threads):
            number, below = number + self.variables[var] * below, below * extent
        lanes = np.arange(self.count)
        if self.count % WARP or not np.array_equal(number % WARP, lanes % WARP):
            raise CompilerError(f"{self.kernel.name}: {what} that not all threads of a warp reach")
        return lanes

    def load(self, load: Load, buffer: Buffer, index: Sequence[LoopExpr]) -> Array:
        where = self.address(load, buffer, index)
        memory = self.memory[buffer]
        at = slice(where, where + 1) if isinstance(where, int) else where
        if not memory.whole and not (ready := memory.written[at]).all():
            late = memory.is_late(at if isinstance(at, slice) else at[~ready])
            raise CompilerError(
                f"{self.kernel.name} reads {buffer.name} before it is {'waited for' if late else 'written'}",
                where=self._place(index, int(np.argmin(ready))),
            )
        self._race(buffer, index, where, "reads")
        found = memory.data[at]
        return found.copy() if isinstance(where, int) else found  # what is stored later is not seen

    def _is_one(self, a: Load, b: Load) -> Array:
        """Whether two elements are one, in every lane; neither is read."""
        if self.memory[a.buffer] is not self.memory[b.buffer]:
            return np.zeros(self.count, bool)
        first, second = (as_array(self.address(e, e.buffer, e.index)) for e in (a, b))
        return np.broadcast_to(first == second, self.count)

    # --- threads of a block -----------------------------------------------------------------------------------

    def _positions(self) -> dict[LoopKind, Array]:
        return {kind: self.variables[var] for kind, (var, _) in self.threads.items()}

    def _numbers(self) -> Array:
        """Of each lane's thread in its block."""
        return np.zeros(1, np.int64) if self.team is None else self.team.numbers(self.count, self._positions())

    def _race(self, buffer: Buffer, index: Sequence[LoopExpr], where: Value, does: str) -> None:
        touched = self.memory[buffer].touched
        if touched is None or self.team is None:
            return
        at, threads = np.broadcast_to(as_array(where), self.count), self._numbers()
        is_for_all = self.for_all and self.threads.keys() != self.team.extents.keys()
        lane = touched.store(at, threads) if does != "reads" else touched.load(at, None if is_for_all else threads)
        if lane is not None:
            message = f"{does} an element of {buffer.name} that another thread touched since the last barrier"
            raise CompilerError(f"{self.kernel.name} {message}", where=self._place(index, lane))

    # --- addresses --------------------------------------------------------------------------------------------

    def address(self, access: Load | Store, buffer: Buffer, index: Sequence[LoopExpr]) -> Value:
        """The place where every lane's element is; one number where it is the same for all."""
        plan = self.plans.get(access)
        if plan is None:
            plan = self._plan(buffer, index)
            if self.count <= REMEMBERED:
                self.plans[access] = plan
        where, axes = plan
        shift = 0
        for number, axis in enumerate(axes):
            moved: Value = 0
            for term, factor in axis.terms:
                moved = moved + self.eval(term) * factor
            least, most = (moved, moved) if isinstance(moved, int) else (moved.min(), moved.max())
            if least + axis.low < 0 or most + axis.high >= axis.extent:
                self._check(buffer, index, number)
            if isinstance(moved, int):
                shift += moved * axis.stride
            else:
                where = where + moved * axis.stride
        return where + shift if shift else where

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
        """True if its value stays while the lanes stay the same."""
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
        values = [*((v, int(x[lane])) for v, x in self.variables.items()), *self.uniform.items()]
        at = ", ".join(f"{v.name}={x}" for v, x in values if isinstance(v, LoopVar))
        position = [np.broadcast_to(as_array(self.eval(i)), self.count)[lane] for i in index]
        return [f"index ({', '.join(str(int(p)) for p in position)}) where {at or 'no loop'}"]


def _operands(node: LoopExpr) -> tuple[LoopExpr, ...]:
    """What is evaluated in all lanes, whatever a select chooses; addresses see to their indices."""
    if isinstance(node, Select):
        return (node.condition,)
    is_address = isinstance(node, Load) or (isinstance(node, Intrin) and node.name == "same_memory")
    return () if is_address else node.operands
