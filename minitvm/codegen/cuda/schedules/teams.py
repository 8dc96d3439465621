"""Rows by teams of threads: reductions along rows, and softmax, normalizations and their like in one kernel.

A team is some threads of a block that share a row: they take its elements in turn, add up by shuffles within a warp and
through shared memory across warps.  All stages of a row are the same team's; what one stage hands on to the next is in
registers where it is one element, else in shared memory.  Every sum has one order: results do not vary from run to run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from minitvm.codegen.cuda.machine import WARP, GpuModel
from minitvm.codegen.cuda.schedules.elements import THREADS, in_block
from minitvm.codegen.cuda.schedules.registers import WRITTEN_OUT, Held, Pass, held, passes
from minitvm.codegen.loops import in_lanes, redirect, unflatten, with_memory
from minitvm.codegen.rows import row_of
from minitvm.codegen.stages import Group, Output
from minitvm.codegen.walks import COMBINE, combined, element
from minitvm.ir.loop import (
    Barrier,
    Buffer,
    Const,
    If,
    Load,
    LoopExpr,
    LoopKind,
    LoopVar,
    Shuffle,
    Stmt,
    Store,
    binary,
    guarded,
    loop,
    map_expr,
    minimum,
    seq,
    substitute_vars,
)
from minitvm.ir.op import identity_of, outer_reductions

Body: TypeAlias = Callable[[tuple[LoopExpr, ...], LoopExpr, LoopExpr], Stmt]
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

    def block(number: LoopExpr) -> Stmt:
        def thread(y: LoopExpr, lane: LoopExpr) -> Stmt:
            row = number * team.rows + y
            at = unflatten(minimum(row, count - 1) if count % team.rows else row, shape)
            guards = [row < count] if count % team.rows else []
            mine = Row(team, lane, guards, results, kept)
            parts = [mine.nest(row_of(out, rows, at)) for out in group.nests]
            wide.update({b: replace(b, shape=(team.rows, *b.shape)) for b in mine.shared})
            own = [kept.registers.get(b, b) for b in stages if b.scope == "local" or b in kept.registers]
            body = redirect(with_memory(own, seq(*parts)), results, lambda index: (*at, *index))
            return redirect(body, wide, lambda index: (y, *index))

        threads = in_block(team.rows, team.lanes, thread)
        return with_memory(wide.values(), threads)

    return loop(-(-count // team.rows), block, LoopKind.BLOCK_X, "block")


def _row_memory(buffer: Buffer, rank: int) -> Buffer:
    shape = buffer.shape[rank:]
    return Buffer(buffer.name, shape, buffer.dtype, "local" if math.prod(shape) == 1 else "shared")


@dataclass(frozen=True)
class Row:
    """A row as one of its team's threads sees it; ``guards``: whether there is such a row."""

    team: Team
    lane: LoopExpr
    guards: list[LoopExpr]
    results: Mapping[Buffer, Buffer]
    kept: Held = field(default_factory=Held)
    shared: list[Buffer] = field(default_factory=list)
    """Memory that its reductions need."""

    def nest(self, out: Output) -> Stmt:
        if out.buffer.size == 1:
            at = tuple(Const(0) for _ in out.axes)
            value = substitute_vars(out.value, dict(zip(out.axes, at, strict=True)))
            return self.reduced(value, lambda done: self._by_first(Store(out.buffer, at, done)))
        stored = self._each(out)
        alone = out.buffer in self.results or out.buffer in self.kept.registers
        return stored if alone else seq(stored, Barrier())

    def _by_first(self, store: Store) -> Stmt:
        """A result by the first thread; what is kept in registers by all."""
        return self._guarded(store, self.lane.equal(0)) if store.buffer in self.results else store

    def _guarded(self, stmt: Stmt, *more: LoopExpr) -> Stmt:
        return guarded([*self.guards, *more], stmt)

    def _each(self, out: Output) -> Stmt:
        """Elements in turn."""
        (made,) = passes(out)
        guards = self.guards if out.buffer in self.results else []

        def one(at: tuple[LoopExpr, ...], value: LoopExpr, _: LoopExpr) -> Stmt:
            return element(value, lambda done: Store(out.buffer, at, done))

        return self._in_turn(made, self._width(made), one, guards)

    def _width(self, made: Pass) -> int:
        """Elements of a thread at once."""
        return self.kept.widths.get(made.shape) or made.width(self.team.lanes)

    def _in_turn(self, made: Pass, width: int, body: Body, guards: list[LoopExpr]) -> Stmt:
        """``body(index, value, v)`` for every element of a pass, the team's threads side by side, ``width`` of each."""
        lanes, shape = self.team.lanes, (*made.shape[:-1], made.shape[-1] // width)
        count = math.prod(shape)

        def one(i: LoopExpr) -> Stmt:
            number = i * lanes + self.lane
            *index, last = unflatten(number, shape)

            def lane(v: LoopExpr) -> Stmt:
                at = (*index, last * width + v)
                value = substitute_vars(made.value, dict(zip(made.axes, at, strict=True)))
                return redirect(body(at, value, v), self.kept.registers, lambda _: (i, v))

            return guarded([*guards, *([number < count] if count % lanes else [])], in_lanes(width, lane))

        rounds = -(-count // lanes)
        return loop(rounds, one, LoopKind.UNROLLED if rounds <= WRITTEN_OUT else LoopKind.SERIAL, "i")

    # --- reductions -------------------------------------------------------------------------------------------

    def reduced(self, value: LoopExpr, finish: Callable[[LoopExpr], Stmt]) -> Stmt:
        """``finish(value)`` in all threads, the reductions in ``value`` done before by all of them together."""
        found = outer_reductions(value)
        if not found:
            return finish(value)
        reduce = found[0]
        made = next(p for p in passes(Output(Buffer("total", (), reduce.dtype), (), reduce)))
        width = self._width(made)
        parts = Buffer("parts", (width,), reduce.dtype, "local")
        total = Buffer("total", (), reduce.dtype, "local")
        start = in_lanes(width, lambda v: Store(parts, (v,), identity_of(reduce.kind, reduce.dtype)))
        first = Store(total, (), _tree(COMBINE[reduce.kind], [parts[v] for v in range(width)]))
        rest = self.reduced(map_expr(value, lambda node: total[()] if node is reduce else node), finish)

        def more(_: tuple[LoopExpr, ...], value: LoopExpr, v: LoopExpr) -> Stmt:
            return element(value, lambda x: Store(parts, (v,), combined(reduce.kind, Load(parts, (v,)), x)))

        own = [start, self._in_turn(made, width, more, []), first]
        return with_memory([parts, total], seq(*own, self._across(reduce.kind, total), rest))

    def _across(self, kind: str, total: Buffer) -> Stmt:
        """The team's threads' values combined, in all of them."""
        op, lanes = COMBINE[kind], min(WARP, self.team.lanes)
        steps: list[Stmt] = []
        mask = lanes // 2
        while mask:
            steps.append(Store(total, (), binary(op, total[()], Shuffle(total[()], mask))))
            mask //= 2
        return seq(*steps, *self._across_warps(op, total)) if self.team.lanes > WARP else seq(*steps)

    def _across_warps(self, op: str, total: Buffer) -> list[Stmt]:
        """Through shared memory; every thread combines all warps' values, in their order."""
        warps = self.team.lanes // WARP
        memory = Buffer("warps", (warps,), total.dtype, "shared")
        leave = If((self.lane % WARP).equal(0), Store(memory, (self.lane // WARP,), total[()]))
        take = Store(total, (), memory[0])
        more = loop(warps - 1, lambda w: Store(total, (), binary(op, total[()], memory[w + 1])), name="warp")
        self.shared.append(memory)
        return [leave, Barrier(), take, more]


def _tree(op: str, values: list[LoopExpr]) -> LoopExpr:
    while len(values) > 1:
        pairs = zip(values[::2], values[1::2], strict=True)
        values = [binary(op, a, b) for a, b in pairs]
    return values[0]
