"""Prefix sums along rows: a thread's elements in order, threads of a warp by shuffles, warps in shared memory.

Few long rows go by parts: their totals, sums of those before each part, and the parts from there on, by three launches
("reduce, then scan").  Every sum has one order: results do not vary from run to run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from minitvm.codegen.cuda.machine import WARP, GpuModel
from minitvm.codegen.cuda.schedules.elements import BUSY, THREADS, in_block, threads
from minitvm.codegen.cuda.schedules.reductions import reduction
from minitvm.codegen.cuda.schedules.teams import SHORT, rounded
from minitvm.codegen.loops import in_lanes, unflatten, with_memory
from minitvm.codegen.problem import TEMPLATES, Choice, Tile
from minitvm.codegen.stages import Output
from minitvm.codegen.templates.running_sum import RunningSum
from minitvm.codegen.walks import COMBINE
from minitvm.ir.loop import (
    Barrier,
    Buffer,
    If,
    LoopExpr,
    LoopKind,
    LoopVar,
    Reduce,
    Select,
    Shuffle,
    Stmt,
    Store,
    all_of,
    binary,
    const,
    loop,
    minimum,
    seq,
)
from minitvm.ir.loop.builder import LoopBuilder
from minitvm.ir.op import identity_of

_T = TypeVar("_T")
Along: TypeAlias = Callable[[LoopExpr, LoopExpr], LoopExpr]
"""Something of a row's element: ``(row, place)``."""
Place: TypeAlias = Callable[[LoopExpr], tuple[LoopExpr, ...]]
Put: TypeAlias = Callable[[LoopExpr, LoopExpr, LoopExpr, LoopExpr], Stmt]
"""What becomes of it: ``(row, place, sum before, sum with it)``."""

_EACH = 4
"""Neighbours that a thread adds up by itself."""
_PART, _COLUMN_PART = 4096, 64
"""Elements that are worth a part of their own, to a team of threads and to one."""


@dataclass(frozen=True)
class Scan:
    """``put`` for every element of ``rows`` rows, with what ``kind`` makes of all elements up to it.

    ``apart``: a row's neighbours are not neighbours in memory; those of one place in all rows are.
    """

    kind: str
    dtype: str
    rows: int
    extent: int
    value: Along
    put: Put
    apart: bool = False

    def loops(self, machine: GpuModel) -> Stmt:
        """The loops of the scan, in as many launches as it takes."""
        parts = self._parts(machine)
        length = -(-self.extent // parts)
        length = -(-length // (THREADS * _EACH)) * THREADS * _EACH if parts > 1 and not self.apart else length
        parts = -(-self.extent // length)
        if parts == 1:
            return self._pieces(1, length, None)
        shape = self.ordered(self.rows, parts)
        totals, starts = (Buffer(name, shape, self.dtype) for name in ("totals", "starts"))

        def start(row: LoopExpr, part: LoopExpr, before: LoopExpr, _: LoopExpr) -> Stmt:
            return Store(starts, self.ordered(row, part), before)

        def total(row: LoopExpr, part: LoopExpr) -> LoopExpr:
            return totals[self.ordered(row, part)]

        sums = replace(self, extent=parts, value=total, put=start, apart=False)
        steps = [self._totals(totals, length, machine), sums.loops(machine), self._pieces(parts, length, starts)]
        return with_memory([totals, starts], seq(steps[0], Barrier(), steps[1], Barrier(), steps[2]))

    def ordered(self, row: _T, part: _T) -> tuple[_T, _T]:
        """Neighbouring threads' neighbours last."""
        return (part, row) if self.apart else (row, part)

    def _parts(self, machine: GpuModel) -> int:
        """Of a row, as many as keep the GPU busy."""
        if self.apart:
            wanted, most = -(-BUSY * machine.sms // self.rows), self.extent // _COLUMN_PART
        else:
            wanted, most = -(-2 * machine.sms // self.rows), self.extent // _PART
        return min(wanted, most) if min(wanted, most) > 2 else 1

    def _totals(self, totals: Buffer, length: int, machine: GpuModel) -> Stmt:
        row, part, k = LoopVar("row"), LoopVar("part"), LoopVar("k")
        at = part * length + k
        value = self.value(row, at)
        value = Select(at < self.extent, value, self.neutral) if self.extent % length else value
        return reduction(Output(totals, self.ordered(row, part), Reduce(self.kind, ((k, length),), value)), machine)

    def _pieces(self, parts: int, length: int, starts: Buffer | None) -> Stmt:
        """Every part of every row, from what comes before it."""
        pieces = _Pieces(self, parts, length, starts)
        return pieces.by_threads() if self.apart or length < SHORT else pieces.by_teams()

    def combined(self, left: LoopExpr, right: LoopExpr) -> LoopExpr:
        return binary(COMBINE[self.kind], left, right)

    @property
    def neutral(self) -> LoopExpr:
        return identity_of(self.kind, self.dtype)


@dataclass(frozen=True)
class _Pieces:
    """``parts`` of ``length`` elements of each row, the last one maybe shorter."""

    scan: Scan
    parts: int
    length: int
    starts: Buffer | None

    def _start(self, row: LoopExpr, part: LoopExpr) -> LoopExpr:
        return self.scan.neutral if self.starts is None else self.starts[self.scan.ordered(row, part)]

    def by_threads(self) -> Stmt:
        """A thread for each; neighbouring threads for neighbouring rows."""
        scan, code = self.scan, LoopBuilder()
        acc, upto, before = (Buffer(name, (1,), scan.dtype, "local") for name in ("acc", "upto", "before"))
        with threads(code, self.parts * scan.rows) as number, code.memory(acc):
            part, row = unflatten(number, (self.parts, scan.rows))
            code.store(acc, (_0,), self._start(row, part))
            with code.loop(minimum(self.length, scan.extent - part * self.length), "k") as k, code.memory(upto, before):
                at = part * self.length + k
                code.store(before, (_0,), acc[0])
                code.store(upto, (_0,), scan.combined(acc[0], scan.value(row, at)))
                code.emit(scan.put(row, at, before[0], upto[0]))
                code.store(acc, (_0,), upto[0])
        return code.stmt

    # --- by teams -------------------------------------------------------------------------------------------------

    @property
    def lanes(self) -> int:
        """Threads of a team."""
        return min(THREADS, rounded(-(-self.length // _EACH)))

    @property
    def teams(self) -> int:
        """Of a block."""
        wanted = min(THREADS // self.lanes, rounded(self.scan.rows * self.parts))
        return max(wanted, WARP // self.lanes, 1)

    def by_teams(self) -> Stmt:
        """A team of threads for each."""
        scan, count, teams = self.scan, self.scan.rows * self.parts, self.teams
        warps = Buffer("warps", (teams, -(-self.lanes // WARP)), scan.dtype, "shared")
        code, shared = LoopBuilder(), [warps] if self.lanes > WARP else []
        blocks = code.loop(-(-count // teams), "block", LoopKind.BLOCK_X)
        with blocks as number, code.memory(*shared), in_block(code, teams, self.lanes) as (y, lane):
            piece = number * teams + y
            guards = [piece < count] if count % teams else []
            row, part = unflatten(minimum(piece, count - 1) if guards else piece, (scan.rows, self.parts))
            code.emit(self._walk(row, part, lane, guards, lambda w: (y, w), warps))
        return code.stmt

    def _walk(
        self, row: LoopExpr, part: LoopExpr, lane: LoopExpr, guards: list[LoopExpr], at: Place, warps: Buffer
    ) -> Stmt:
        """All of a part, as many elements at a time as the team's threads take."""
        scan, together = self.scan, self.lanes * _EACH
        rounds = -(-self.length // together)
        end = minimum((part + 1) * self.length, scan.extent) if self.parts > 1 else scan.extent
        own, ahead = (Buffer(name, (_EACH,), scan.dtype, "local") for name in ("own", "ahead"))
        carry, total, before = (Buffer(name, (1,), scan.dtype, "local") for name in ("carry", "total", "before"))

        code = LoopBuilder()
        with code.memory(own, ahead, carry, total, before):
            code.emit(_put(carry, self._start(row, part)))
            with code.loop(rounds) as i:
                first = part * self.length + i * together + lane * _EACH
                code.emit(self._take(row, first, end, own), _put(total, own[0]))
                with code.unrolled(range(_EACH - 1), "v") as v:
                    code.emit(_put(total, scan.combined(total[0], own[v + 1])))
                code.emit(_put(before, scan.neutral), self._across_lanes(lane, total, before))
                code.emit(*self._across_warps(lane, total, before, at, warps))
                code.emit(_put(before, scan.combined(carry[0], before[0])))
                with code.unrolled(range(_EACH), "v") as v:
                    code.store(ahead, (v,), before[0])
                    code.emit(_put(before, scan.combined(before[0], own[v])))
                code.emit(self._leave(row, first, end, guards, own, ahead))
                code.emit(_put(carry, scan.combined(carry[0], total[0])))
        return code.stmt

    @property
    def _is_whole(self) -> bool:
        """True if a thread has all of its elements, or none."""
        return self.scan.extent % _EACH == 0

    def _take(self, row: LoopExpr, first: LoopExpr, end: LoopExpr | int, own: Buffer) -> Stmt:
        """A thread's elements from ``first`` on; neutral ones behind the last."""
        scan, is_whole = self.scan, self._is_whole

        def load(v: LoopExpr) -> Stmt:
            inside = scan.value(row, first + v)
            return Store(own, (v,), inside if is_whole else Select(first + v < end, inside, scan.neutral))

        loads = in_lanes(_EACH, load)
        return If(first < end, loads, _each(lambda v: Store(own, (v,), scan.neutral))) if is_whole else loads

    def _leave(
        self, row: LoopExpr, first: LoopExpr, end: LoopExpr | int, guards: list[LoopExpr], own: Buffer, ahead: Buffer
    ) -> Stmt:
        """What becomes of them."""
        scan, is_whole = self.scan, self._is_whole

        def put(v: LoopExpr) -> Stmt:
            stored = scan.put(row, first + v, ahead[v], scan.combined(ahead[v], own[v]))
            return stored if is_whole else _where([*guards, first + v < end], stored)

        return _where([*guards, first < end], in_lanes(_EACH, put)) if is_whole else _each(put)

    def _across_lanes(self, lane: LoopExpr, total: Buffer, before: Buffer) -> Stmt:
        """Pairs of threads, of pairs, ...: the upper half adds the lower one's total to what comes before."""
        scan, got = self.scan, Buffer("got", (1,), self.scan.dtype, "local")
        steps: list[Stmt] = []
        mask = 1
        while mask < min(WARP, self.lanes):
            is_upper = (lane // mask % 2).equal(1)
            steps.append(_put(got, Shuffle(total[0], mask)))
            steps.append(_put(before, Select(is_upper, scan.combined(got[0], before[0]), before[0])))
            steps.append(_put(total, scan.combined(total[0], got[0])))
            mask *= 2
        return with_memory([got], seq(*steps))

    def _across_warps(self, lane: LoopExpr, total: Buffer, before: Buffer, at: Place, warps: Buffer) -> list[Stmt]:
        """The warps' totals, one after the other."""
        if self.lanes <= WARP:
            return []
        scan, lower = self.scan, Buffer("lower", (1,), self.scan.dtype, "local")
        leave = If((lane % WARP).equal(0), Store(warps, at(lane // WARP), total[0]))

        def add(w: LoopExpr) -> Stmt:
            found = warps[at(w)]
            own = _put(lower, Select(w < lane // WARP, scan.combined(lower[0], found), lower[0]))
            return seq(own, _put(total, scan.combined(total[0], found)))

        clear = seq(*(_put(buffer, scan.neutral) for buffer in (lower, total)))
        sums = loop(self.lanes // WARP, add, LoopKind.UNROLLED, "w")
        join = _put(before, scan.combined(lower[0], before[0]))
        return [with_memory([lower], seq(leave, Barrier(), clear, sums, join, Barrier()))]


_0 = const(0, "int64")


def _each(body: Callable[[LoopExpr], Stmt]) -> Stmt:
    """``body`` for each of a thread's elements."""
    return loop(_EACH, body, LoopKind.UNROLLED, "v")


def _where(conditions: list[LoopExpr], stmt: Stmt) -> Stmt:
    return If(all_of(conditions), stmt)


def _put(register: Buffer, value: LoopExpr) -> Stmt:
    return Store(register, (_0,), value)


class GpuRunningSum(RunningSum):
    """Rows by teams of threads; columns by a thread each, in parts where they are few."""

    def choices(self) -> list[Choice]:
        return [Choice("rows by teams of threads", Tile(1, 1), 0.0)]

    def loops(self, choice: Choice) -> Stmt:
        assert isinstance(self.machine, GpuModel)
        (data,), out, op, axis = self.problem.inputs, self.problem.output, self.op, self.axis
        if not out.size:
            return seq()
        extent, behind = out.shape[axis], out.size // out.shape[axis]
        shape = [n for d, n in enumerate(out.shape) if d != axis]

        def at(row: LoopExpr, k: LoopExpr) -> tuple[LoopExpr, ...]:
            index = unflatten(row, shape)
            return (*index[:axis], k, *index[axis:])

        def value(row: LoopExpr, k: LoopExpr) -> LoopExpr:
            return data[at(row, k)].astype(self.accumulator)

        def put(row: LoopExpr, k: LoopExpr, before: LoopExpr, upto: LoopExpr) -> Stmt:
            return Store(out, at(row, k), (before if op.exclusive else upto).astype(out.dtype))

        apart = any(n > 1 for n in out.shape[axis + 1 :])
        return Scan(op.kind, self.accumulator, behind, extent, value, put, apart).loops(self.machine)


TEMPLATES.register("cuda", "cumsum", "cumprod")(GpuRunningSum)
