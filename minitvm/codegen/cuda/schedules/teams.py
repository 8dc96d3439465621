"""Rows by teams of threads: reductions along rows, and softmax, normalizations and their like in one kernel.

A team is some threads of a block that share a row: they take its elements in turn, add up by shuffles within a warp and
through shared memory across warps.  All stages of a row are the same team's; what one stage hands on to the next is in
registers where it is one element, else in shared memory.  Every sum has one order: results do not vary from run to run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from minitvm.codegen.cuda.machine import WARP, GpuModel
from minitvm.codegen.cuda.schedules.elements import THREADS, in_block
from minitvm.codegen.cuda.schedules.registers import WRITTEN_OUT, Held, Pass, held, passes
from minitvm.codegen.loops import redirect, unflatten, with_memory
from minitvm.codegen.rows import row_of
from minitvm.codegen.stages import Group, Output
from minitvm.codegen.walks import COMBINE, combined, element
from minitvm.ir.loop import (
    Barrier,
    Buffer,
    Const,
    Load,
    LoopExpr,
    LoopKind,
    LoopVar,
    Shuffle,
    Stmt,
    Store,
    binary,
    map_expr,
    minimum,
    substitute_vars,
)
from minitvm.ir.loop.builder import LoopBuilder
from minitvm.ir.op import identity_of, outer_reductions

Element: TypeAlias = tuple[tuple[LoopExpr, ...], LoopExpr, LoopExpr]
SHORT = 16
"""Elements that one thread adds up faster than several agree."""
STATIC_SHARED = 48 * 1024
"""Bytes of a block's shared memory that need no asking for."""
_MOST_LANES = 1024
_EACH = 4
"""Elements that a thread of a large team takes at least."""


def rounded(count: int) -> int:
    """The next power of two."""
    return 1 << max(0, count - 1).bit_length()


@dataclass(frozen=True)
class Team:
    """``lanes`` threads for a row, a power of two; as many ``rows`` a block as make whole warps."""

    lanes: int
    rows: int

    @staticmethod
    def of(rows: int, work: int, machine: GpuModel) -> Team:
        """The team for so many rows of so many elements: one warp, or more where rows are too few to occupy the GPU, or
        long."""
        lanes = min(WARP, rounded(work)) if work >= SHORT else 1
        if work > WARP * 16 or (work >= SHORT and rows * WARP < machine.sms * THREADS):
            lanes = max(lanes, min(_MOST_LANES, rounded(-(-work // _EACH)), THREADS if work < 1 << 14 else _MOST_LANES))
        whole = max(1, WARP // lanes)
        return Team(lanes, max(whole, min(THREADS // lanes, rounded(rows))))

    def __str__(self) -> str:
        each = f"{self.lanes} threads for a row" if self.lanes > 1 else "a thread for a row"
        return f"{each}, {self.rows} rows a block" if self.rows > 1 else each


# --- all stages of a row --------------------------------------------------------------------------------------


def shared_bytes(group: Group, rank: int, team: Team) -> int:
    """The bytes of shared memory for what stages hand on, and for the warps' parts of reductions."""
    rows = [Buffer(s.buffer.name, s.buffer.shape[rank:], s.buffer.dtype) for s in group.stages]
    reductions = sum(len(outer_reductions(out.value)) for out in group.nests)
    return sum(row.nbytes for row in rows if row.size > 1) * team.rows + reductions * WARP * 8


def by_teams(group: Group, rank: int, team: Team) -> Stmt:
    """Every row, the leading ``rank`` axes of all nests, by a team."""
    shape = group.outputs[0].buffer.shape[:rank]
    count = math.prod(shape)
    rows = {out.buffer: _row_memory(out.buffer, rank) for out in group.nests}
    results = {rows[out.buffer]: out.buffer for out in group.outputs}
    stages = [rows[s.buffer] for s in group.stages]
    anywhere = tuple(LoopVar("row") for _ in shape)
    kept = held([row_of(out, rows, anywhere) for out in group.nests], stages, team.lanes)
    handed_on = [b for b in stages if b.scope == "shared" and b not in kept.registers]
    wide = {b: replace(b, shape=(team.rows, *b.shape)) for b in handed_on}

    code = LoopBuilder()
    with code.loop(-(-count // team.rows), "block", LoopKind.BLOCK_X) as number:
        threads = LoopBuilder()
        with in_block(threads, team.rows, team.lanes) as (y, lane):
            row = number * team.rows + y
            at = unflatten(minimum(row, count - 1) if count % team.rows else row, shape)
            mine = Row(LoopBuilder(), team, lane, [row < count] if count % team.rows else [], results, kept)
            for out in group.nests:
                mine.nest(row_of(out, rows, at))
            wide.update({b: replace(b, shape=(team.rows, *b.shape)) for b in mine.shared})
            own = [kept.registers.get(b, b) for b in stages if b.scope == "local" or b in kept.registers]
            body = redirect(with_memory(own, mine.code.stmt), results, lambda index: (*at, *index))
            threads.emit(redirect(body, wide, lambda index: (y, *index)))
        code.emit(with_memory(wide.values(), threads.stmt))
    return code.stmt


def _row_memory(buffer: Buffer, rank: int) -> Buffer:
    shape = buffer.shape[rank:]
    return Buffer(buffer.name, shape, buffer.dtype, "local" if math.prod(shape) == 1 else "shared")


@dataclass(frozen=True)
class Row:
    """Writes what one of its team's threads does for a row; ``guards``: whether there is such a row."""

    code: LoopBuilder
    team: Team
    lane: LoopExpr
    guards: list[LoopExpr]
    results: Mapping[Buffer, Buffer]
    kept: Held = field(default_factory=Held)
    shared: list[Buffer] = field(default_factory=list)
    """Memory that its reductions need."""

    def nest(self, out: Output) -> None:
        if out.buffer.size == 1:
            at = tuple(Const(0) for _ in out.axes)
            value = substitute_vars(out.value, dict(zip(out.axes, at, strict=True)))
            with self.reduced(value) as done, self._by_first(out.buffer):
                self.code.store(out.buffer, at, done)
            return
        self._each(out)
        if out.buffer not in self.results and out.buffer not in self.kept.registers:
            self.code.emit(Barrier())

    def _by_first(self, buffer: Buffer) -> AbstractContextManager[None]:
        """A result by the first thread; what is kept in registers by all."""
        return self.code.where([*self.guards, self.lane.equal(0)] if buffer in self.results else [])

    def _each(self, out: Output) -> None:
        """Elements in turn."""
        (made,) = passes(out)
        guards = self.guards if out.buffer in self.results else []
        with self._in_turn(made, self._width(made), guards) as (at, value, _):
            self.code.emit(element(value, lambda done: Store(out.buffer, at, done)))

    def _width(self, made: Pass) -> int:
        """Elements of a thread at once."""
        return self.kept.widths.get(made.shape) or made.width(self.team.lanes)

    @contextmanager
    def _in_turn(self, made: Pass, width: int, guards: list[LoopExpr]) -> Iterator[Element]:
        """Index, value and register of every element of a pass, the team's threads side by side, ``width`` of each."""
        code, lanes, shape = self.code, self.team.lanes, (*made.shape[:-1], made.shape[-1] // width)
        count = math.prod(shape)
        rounds = -(-count // lanes)
        with code.loop(rounds, "i", LoopKind.UNROLLED if rounds <= WRITTEN_OUT else LoopKind.SERIAL) as i:
            number = i * lanes + self.lane
            *index, last = unflatten(number, shape)
            with code.where([*guards, *([number < count] if count % lanes else [])]), code.lanes(width) as v:
                at = (*index, last * width + v)
                value = substitute_vars(made.value, dict(zip(made.axes, at, strict=True)))
                with code.block(partial(redirect, targets=self.kept.registers, at=lambda _: (i, v))):
                    yield at, value, v

    # --- reductions -------------------------------------------------------------------------------------------

    @contextmanager
    def reduced(self, value: LoopExpr) -> Iterator[LoopExpr]:
        """A value in all threads, the reductions in it done before by all of them together."""
        found = outer_reductions(value)
        if not found:
            yield value
            return
        code, reduce = self.code, found[0]
        made = next(p for p in passes(Output(Buffer("total", (), reduce.dtype), (), reduce)))
        width = self._width(made)
        parts = Buffer("parts", (width,), reduce.dtype, "local")
        total = Buffer("total", (), reduce.dtype, "local")
        with code.memory(parts, total):
            with code.lanes(width) as v:
                code.store(parts, (v,), identity_of(reduce.kind, reduce.dtype))
            with self._in_turn(made, width, []) as (_, term, v):
                code.emit(element(term, partial(_added, reduce.kind, parts, v)))
            code.store(total, (), _tree(COMBINE[reduce.kind], [parts[v] for v in range(width)]))
            self._across(COMBINE[reduce.kind], total)
            with self.reduced(map_expr(value, lambda node: total[()] if node is reduce else node)) as rest:
                yield rest

    def _across(self, op: str, total: Buffer) -> None:
        """The team's threads' values combined, in all of them."""
        mask = min(WARP, self.team.lanes) // 2
        while mask:
            self.code.store(total, (), binary(op, total[()], Shuffle(total[()], mask)))
            mask //= 2
        if self.team.lanes > WARP:
            self._across_warps(op, total)

    def _across_warps(self, op: str, total: Buffer) -> None:
        """Through shared memory; every thread combines all warps' values, in their order."""
        code, warps = self.code, self.team.lanes // WARP
        memory = Buffer("warps", (warps,), total.dtype, "shared")
        with code.when((self.lane % WARP).equal(0)):
            code.store(memory, (self.lane // WARP,), total[()])
        code.emit(Barrier())
        code.store(total, (), memory[0])
        with code.loop(warps - 1, "warp") as w:
            code.store(total, (), binary(op, total[()], memory[w + 1]))
        self.shared.append(memory)


def _added(kind: str, parts: Buffer, v: LoopExpr, term: LoopExpr) -> Stmt:
    return Store(parts, (v,), combined(kind, Load(parts, (v,)), term))


def _tree(op: str, values: list[LoopExpr]) -> LoopExpr:
    while len(values) > 1:
        pairs = zip(values[::2], values[1::2], strict=True)
        values = [binary(op, a, b) for a, b in pairs]
    return values[0]
