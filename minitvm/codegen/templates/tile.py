"""Register tiles: a block of outputs kept in vector registers while the reduction runs.

A tile of ``columns x blocks`` vectors needs, per step of the reduction, ``columns`` broadcasts and ``blocks`` vector
loads for ``columns * blocks`` multiply-adds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from minitvm.ir.loop import (
    Alloc,
    Buffer,
    LoopExpr,
    LoopKind,
    Stmt,
    Store,
    const,
    intrin,
    loop,
    seq,
)
from minitvm.target import MachineModel

_FMA_PER_CYCLE = 2
_LOADS_PER_CYCLE = 2
_FMA_LATENCY = 4
_STEP_OVERHEAD = 0.5  # loop counters and addresses, measured


@dataclass(frozen=True)
class Tile:
    columns: int
    blocks: int


def split_evenly(total: int, most: int) -> list[tuple[int, int]]:
    """``total`` as few pieces of at most ``most``, sizes differing by one: ``[(count, size), ...]``."""
    if total == 0:
        return []
    pieces = -(-total // most)
    size, larger = divmod(total, pieces)
    return [(count, s) for count, s in ((larger, size + 1), (pieces - larger, size)) if count and s]


@dataclass(frozen=True)
class Run:
    """``count`` neighbouring pieces of ``size``, the first at ``begin``."""

    begin: int
    count: int
    size: int

    def start(self, piece: LoopExpr) -> LoopExpr:
        return piece * self.size + self.begin

    @property
    def last(self) -> Run:
        return Run(self.begin + (self.count - 1) * self.size, 1, self.size)

    @property
    def without_last(self) -> tuple[Run, ...]:
        return (Run(self.begin, self.count - 1, self.size),) if self.count > 1 else ()


def runs(total: int, most: int) -> list[Run]:
    """``total`` as few pieces of at most ``most``, sizes differing by one: a run for each size."""
    found, begin = [], 0
    for count, size in split_evenly(total, most):
        found.append(Run(begin, count, size))
        begin += count * size
    return found


def cycles(columns: int, blocks: int) -> float:
    """Cycles of one reduction step of a tile: bound by arithmetic, by loads, or by the latency of a chain."""
    bound = max(columns * blocks / _FMA_PER_CYCLE, (columns + blocks) / _LOADS_PER_CYCLE, float(_FMA_LATENCY))
    return bound + _STEP_OVERHEAD


def choose_tile(columns: int, blocks: int, machine: MachineModel, block_bytes: int = 0) -> Tile:
    """The tile with the fewest cycles for ``columns x blocks`` outputs.

    ``block_bytes``: the weights of one block.  Every tile reads those of its blocks, so they should stay in the
    second-level cache from one tile to the next.
    """
    most = max(1, machine.l2_bytes * 5 // 8 // block_bytes) if block_bytes else blocks

    def cost(tile: Tile) -> float:
        return sum(
            groups * sum(n * cycles(size, width) for n, size in split_evenly(columns, tile.columns))
            for _, groups, width in block_groups(blocks, tile.blocks)
        )

    fitting = [t for t in _candidates(columns, blocks, machine) if t.blocks <= most]
    return min(fitting, key=lambda t: (round(cost(t), 6), -t.blocks))


def block_groups(blocks: int, width: int) -> list[tuple[int, int, int]]:
    """``blocks`` in groups of ``width`` and what is left over: ``[(first block, groups, blocks of a group), ...]``."""
    groups, rest = divmod(blocks, width)
    found = [(0, groups, width)] if groups else []
    return [*found, (groups * width, 1, rest)] if rest else found


def _candidates(columns: int, blocks: int, machine: MachineModel) -> list[Tile]:
    free = machine.vector_registers - 1  # one holds the broadcast
    return [
        Tile(c, b)
        for b in range(1, min(blocks, 8) + 1)
        for c in range(1, min(columns, 28) + 1)
        if c * b + min(b, c) <= free
    ]


Operand: TypeAlias = Callable[[LoopExpr, LoopExpr], LoopExpr]
"""An operand of the products at (column or block, lane)."""

Step: TypeAlias = Callable[..., Stmt]
"""``step(left, right, columns)``: add ``left(column, lane) * right(block, lane)`` to the accumulators of ``columns``,
all of them by default.  ``left`` is one element broadcast to all lanes where it does not use ``lane``."""


def accumulate(
    size: int,
    blocks: int,
    lanes: int,
    dtype: str,
    reduction: Callable[[Step], Stmt],
    finish: Callable[[LoopExpr, LoopExpr, LoopExpr, LoopExpr], Stmt],
    last_width: int | None = None,
    last_lane: int = 0,
    piece: int | None = None,
    start: Callable[[LoopExpr, LoopExpr, LoopExpr], LoopExpr] | None = None,
) -> Stmt:
    """Zero a tile of accumulators, run ``reduction(step)``, then ``finish(column, block, lane, value)`` each.

    ``dtype`` is the accumulators'; operands are cast to it as they are loaded, ``finish`` rounds what it stores.
    ``start(column, block, lane)``: what to begin with instead of zero.
    ``last_width``: how many lanes of the last block are results (all of them by default), ``last_lane`` the first.
    ``piece``: how many lanes ``finish`` is given at a time, where the result lies in smaller blocks.
    """
    acc = Buffer("acc", (size, blocks, lanes), dtype, "local")
    everything = range(size)

    def step(left: Operand, right: Operand, columns: range = everything) -> Stmt:
        def multiply_add(c: LoopExpr, b: LoopExpr, lane: LoopExpr) -> Stmt:
            factors = (left(c, lane).astype(dtype), right(b, lane).astype(dtype))
            return Store(acc, (c, b, lane), intrin("fma", *factors, acc[c, b, lane]))

        return _each(columns, range(blocks), lanes, multiply_add)

    def begin(c: LoopExpr, b: LoopExpr, lane: LoopExpr) -> Stmt:
        return Store(acc, (c, b, lane), const(0, dtype) if start is None else start(c, b, lane))

    def finished(which: range, width: int, first: int = 0) -> list[Stmt]:
        return [
            _each(
                everything,
                which,
                min(piece or width, width - p),
                lambda c, b, lane, p=p: finish(c, b, lane + p, acc[c, b, lane + (p + first)]),  # type: ignore[misc]
            )
            for p in range(0, width if which else 0, piece or width)
        ]

    whole = blocks if last_width in (None, lanes) else blocks - 1
    last = finished(range(whole, blocks), last_width or lanes, last_lane)
    first = _each(everything, range(blocks), lanes, begin)
    return Alloc(acc, seq(first, reduction(step), *finished(range(whole), lanes), *last))


def _each(columns: range, blocks: range, width: int, body: Callable[[LoopExpr, LoopExpr, LoopExpr], Stmt]) -> Stmt:
    """``body(column, block, lane)``, unrolled so that the operands kept in registers meanwhile are the fewer ones."""

    def lane_loop(c: LoopExpr, b: LoopExpr) -> Stmt:
        return loop(width, lambda lane: body(c, b, lane), LoopKind.VECTORIZED, name="lane")

    if len(columns) < len(blocks):
        return _unrolled(blocks, "block", lambda b: _unrolled(columns, "column", lambda c: lane_loop(c, b)))
    return _unrolled(columns, "column", lambda c: _unrolled(blocks, "block", lambda b: lane_loop(c, b)))


def _unrolled(values: range, name: str, body: Callable[[LoopExpr], Stmt]) -> Stmt:
    return loop(len(values), lambda i: body(i + values.start), LoopKind.UNROLLED, name=name)


def divisor_at_most(value: int, most: int) -> int:
    return next(d for d in range(min(value, most), 0, -1) if value % d == 0)
