"""Matrix products in register tiles: elements of the left-hand side broadcast, the right-hand side as vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minitvm.codegen.spread import unflatten
from minitvm.codegen.templates.tile import Run, Step, Tile, accumulate, choose_tile, runs
from minitvm.ir.loop import LoopExpr, LoopKind, Stmt, loop, seq
from minitvm.target import MachineModel

_K_UNROLL = 4
ITEMS_PER_THREAD = 4  # so that threads end at about the same time


@dataclass(frozen=True)
class Gemm:
    """``out[p, i, j] = sum over r of left(p, i, r) * panel(p, block, r, lane)`` with ``j = block * lanes + lane``.

    ``start``: what sums begin with, zero by default.  It and ``panel`` may be asked for lanes beyond the last column,
    whose sums are not stored.
    """

    batch: int
    rows: int
    columns: int
    depth: int
    lanes: int
    dtype: str
    left: Callable[[LoopExpr, LoopExpr, LoopExpr], LoopExpr]
    panel: Callable[[LoopExpr, LoopExpr, LoopExpr, LoopExpr], LoopExpr]
    store: Callable[[LoopExpr, LoopExpr, LoopExpr, LoopExpr], Stmt]
    start: Callable[[LoopExpr, LoopExpr, LoopExpr], LoopExpr] | None = None

    @property
    def blocks(self) -> int:
        return -(-self.columns // self.lanes)

    def tile(self, machine: MachineModel) -> Tile:
        return choose_tile(self.rows, self.blocks, machine)

    def nest(self, machine: MachineModel) -> Stmt:
        """The loops.  A work item is a group of columns with all of its rows, or where these are few a single tile."""
        tile = self.tile(machine)
        columns, rows = self.column_runs(tile.blocks), runs(self.rows, tile.columns)
        if self.batch * sum(c.count for c, _ in columns) >= ITEMS_PER_THREAD * machine.threads:
            return seq(*(self._groups(c, last, rows) for c, last in columns))
        return seq(*(self._single_tiles(c, last, r) for c, last in columns for r in rows))

    def one(self, p: LoopExpr, machine: MachineModel) -> Stmt:
        """The loops of one matrix of the batch, for one thread."""
        tile = self.tile(machine)
        rows = runs(self.rows, tile.columns)

        def group(groups: Run, last: int) -> Stmt:
            def one(g: LoopExpr) -> Stmt:
                return self.all_rows(p, groups.start(g), rows, groups.size, last)

            return loop(groups.count, one, name="group")

        return seq(*(group(*c) for c in self.column_runs(tile.blocks)))

    def column_runs(self, most: int) -> list[tuple[Run, int]]:
        """The blocks in groups of at most ``most``, with the width of a group's last block."""
        rest = self.columns % self.lanes
        *found, final = runs(self.blocks, most)
        whole = [(run, self.lanes) for run in (*found, *final.without_last)] if rest else []
        return [*whole, (final.last, rest)] if rest else [(run, self.lanes) for run in (*found, final)]

    def _groups(self, groups: Run, last: int, rows: Sequence[Run]) -> Stmt:
        """All rows of a group of columns by one thread, which so keeps its part of the panels in its cache."""

        def work(flat: LoopExpr) -> Stmt:
            p, group = unflatten(flat, (self.batch, groups.count))
            return self.all_rows(p, groups.start(group), rows, groups.size, last)

        return loop(self.batch * groups.count, work, LoopKind.PARALLEL, name="work")

    def all_rows(self, p: LoopExpr, block: LoopExpr, rows: Sequence[Run], size: int, last: int) -> Stmt:
        def tiles(run: Run) -> Stmt:
            return loop(run.count, lambda t: self._tile(p, block, run.start(t), run.size, size, last), name="tile")

        return seq(*(tiles(run) for run in rows))

    def _single_tiles(self, groups: Run, last: int, rows: Run) -> Stmt:
        order = (self.batch, groups.count, rows.count)

        def work(flat: LoopExpr) -> Stmt:
            p, group, t = unflatten(flat, order)
            return self._tile(p, groups.start(group), rows.start(t), rows.size, groups.size, last)

        return loop(math.prod(order), work, LoopKind.PARALLEL, name="work")

    def _tile(self, p: LoopExpr, block: LoopExpr, row: LoopExpr, rows: int, size: int, last: int) -> Stmt:
        def reduction(step: Step) -> Stmt:
            def at(r: LoopExpr) -> Stmt:
                return step(lambda t, _: self.left(p, row + t, r), lambda b, lane: self.panel(p, block + b, r, lane))

            return unrolled_in_fours(self.depth, at)

        def place(t: LoopExpr, b: LoopExpr, lane: LoopExpr) -> tuple[LoopExpr, LoopExpr, LoopExpr]:
            return p, row + t, (block + b) * self.lanes + lane

        def finish(t: LoopExpr, b: LoopExpr, lane: LoopExpr, value: LoopExpr) -> Stmt:
            return self.store(*place(t, b, lane), value)

        begin = self.start
        start = None if begin is None else lambda t, b, lane: begin(*place(t, b, lane))
        return accumulate(rows, size, self.lanes, self.dtype, reduction, finish, last, start=start)


def unrolled_in_fours(extent: int, body: Callable[[LoopExpr], Stmt], name: str = "k") -> Stmt:
    """A loop whose body is written out four times, and what is left over after it."""
    whole, rest = divmod(extent, _K_UNROLL)

    def several(count: int, start: LoopExpr | int) -> Stmt:
        return loop(count, lambda u: body(u + start), LoopKind.UNROLLED, name="u")

    main = loop(whole, lambda q: several(_K_UNROLL, q * _K_UNROLL), name=name) if whole else None
    return seq(main, several(rest, whole * _K_UNROLL) if rest else None)
