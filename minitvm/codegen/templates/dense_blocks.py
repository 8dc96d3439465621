"""``qnn.dense_blocks``: weights are unpacked by a shift and a mask, and multiplied with words of all rows of a tile.

A block's sums are integers in registers; its scales are multiplied when they are added to the tile's results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from minitvm.codegen.loops import enough, in_parallel, with_memory
from minitvm.codegen.problem import TEMPLATES, Choice, Template, Tile
from minitvm.codegen.templates.product import TYPICAL
from minitvm.codegen.templates.tile import (
    ITEMS_PER_THREAD,
    Run,
    block_runs,
    bound,
    each,
    in_one_loop,
    in_steps,
    runs,
    store_at,
    unrolled,
)
from minitvm.ir.decision import Declined
from minitvm.ir.loop import Buffer, Load, LoopExpr, LoopKind, Stmt, Store, const, intrin, seq
from minitvm.ir.ops.qnn_blocks import PANEL
from minitvm.ir.ops.qnn_blocks import DenseBlocks as Op

_MOST_ROWS, _MOST_VECTORS = 8, 4
_UNPACKING = 1.5  # multiply-adds that a vector of bytes takes the time of
_OF_A_BLOCK = 4  # that the scales of a vector of sums do
_WHOLE = 4  # words of weights that are written out


@TEMPLATES.register("llvm", "qnn.dense_blocks")
class DenseBlocks(Template):
    """Tiles of rows by vectors of units.  A work item is a group of units with all rows, or where these are few groups
    a tile."""

    symbolic = True

    op: Op

    def refusal(self) -> Declined | None:
        return None

    @property
    def lanes(self) -> int:
        return min(PANEL, self.machine.lanes("int32"))

    @property
    def rows(self) -> Any:
        return self.problem.output.shape[0]

    @cached_property
    def product(self) -> str:
        """Numbers below 128 are signed bytes, too."""
        has = self.machine.features
        return "sdot4" if self.op.bits < 8 and "dot4" not in has and ("sdot4" in has or "neon" in has) else "dot4"

    def choices(self) -> Sequence[Choice]:
        static = isinstance(self.rows, int)
        rows = max(1, self.rows) if static else TYPICAL
        return [Choice("blocks", tile, self._cycles(rows, tile)) for tile in self._tiles(rows, static)]

    def _tiles(self, rows: int, static: bool) -> Iterator[Tile]:
        """Those whose sums, of integers and of floats, the registers hold."""
        most = -(-self.op.units // self.lanes)
        for blocks in range(1, min(most, _MOST_VECTORS) + 1):
            for size in range(1, min(rows, _MOST_ROWS) + 1):
                power = size & (size - 1) == 0
                if 2 * size * blocks + blocks + 1 <= self.machine.vector_registers and (static or power):
                    yield Tile(size, blocks)

    def _cycles(self, rows: int, tile: Tile) -> float:
        blocks, steps = self.problem.inputs[1].shape[1], self.op.words * self.op.per_word

        def of_tile(r: int, b: int) -> float:
            step = bound(b * (r + _UNPACKING), r + b / self.op.per_word)
            return blocks * (steps * step + _OF_A_BLOCK * r * b / 2)

        across, down = runs(-(-self.op.units // self.lanes), tile.blocks), runs(rows, tile.rows)
        return sum(g.count * t.count * of_tile(t.size, g.size) for g in across for t in down)

    def loops(self, choice: Choice) -> Stmt:
        groups = block_runs(self.op.units, self.lanes, choice.tile.blocks)
        rows = runs(self.rows, choice.tile.rows)
        items = sum(group.count for group in groups)
        if enough(items, ITEMS_PER_THREAD * self.machine.threads) or not isinstance(self.rows, int):
            return self._by_groups(groups, rows)

        def tiles(group: Run, run: Run) -> Stmt:
            def work(g: LoopExpr, t: LoopExpr) -> Stmt:
                return self._tile(group, group.start(g), run.start(t), run.size)

            return in_parallel((group.count, run.count), work)

        return seq(*(tiles(group, run) for group in groups for run in rows))

    def _by_groups(self, groups: Sequence[Run], rows: Sequence[Run]) -> Stmt:
        """All rows of a group of units by one thread, which so finds its weights in its cache."""

        def work(group: Run) -> Callable[[LoopExpr, int], Stmt]:
            def all_rows(first: LoopExpr, _: int) -> Stmt:
                return seq(*(run.over(lambda row, size: self._tile(group, first, row, size)) for run in rows))

            return all_rows

        return seq(*(in_one_loop([g], work(g), LoopKind.PARALLEL, "work") for g in groups))

    def _tile(self, group: Run, first: LoopExpr, row: LoopExpr, rows: int) -> Stmt:
        return _Tile(self, group, first, row, rows).nest()


@dataclass(frozen=True)
class _Tile:
    """``rows`` rows from ``row`` on, by a group of vectors from ``first`` on."""

    layer: DenseBlocks
    group: Run
    first: LoopExpr
    row: LoopExpr
    rows: int

    @cached_property
    def sums(self) -> Buffer:
        return Buffer("sums", (self.rows, self.group.size, self.layer.lanes), "float32", "local")

    @cached_property
    def dots(self) -> Buffer:
        """Of a block."""
        return Buffer("dots", (self.rows, self.group.size, self.layer.lanes), "int32", "local")

    def nest(self) -> Stmt:
        sums, blocks = self.sums, self.layer.problem.inputs[1].shape[1]
        zero = self._each(lambda *at: Store(sums, at, const(0, "float32")))
        return with_memory([sums, self.dots], seq(zero, in_steps(blocks, _WHOLE * 16, self._block), *self._results()))

    def _each(self, body: Callable[[LoopExpr, LoopExpr, LoopExpr], Stmt]) -> Stmt:
        return each(range(self.rows), range(self.group.size), self.layer.lanes, body)

    def _at(self, panels: Buffer, place: LoopExpr, v: LoopExpr, lane: LoopExpr) -> LoopExpr:
        """What panels hold for a lane of vector ``v``."""
        vectors, number = PANEL // self.layer.lanes, self.first + v
        return panels[number // vectors, place, number % vectors * self.layer.lanes + lane]

    def _block(self, block: LoopExpr) -> Stmt:
        (data, scale, total, weight, factor, zero), dots, sums = self.layer.problem.inputs, self.dots, self.sums
        op = self.layer.op

        def begin(t: LoopExpr, v: LoopExpr, lane: LoopExpr) -> Stmt:
            point = self._at(zero, block, v, lane) if zero.shape else zero[()]
            return Store(dots, (t, v, lane), const(0, "int32") - point.astype("int32") * total[self.row + t, block])

        def part(word: LoopExpr, at: LoopExpr) -> Stmt:
            def add(t: LoopExpr, v: LoopExpr, lane: LoopExpr) -> Stmt:
                number, other = (
                    op.part(self._at(weight, word, v, lane), at),
                    data[self.row + t, word * op.per_word + at],
                )
                return Store(dots, (t, v, lane), intrin(self.layer.product, number, other, dots[t, v, lane]))

            return self._each(add)

        def scaled(t: LoopExpr, v: LoopExpr, lane: LoopExpr) -> Stmt:
            of_both = scale[self.row + t, block] * self._at(factor, block, v, lane).astype("float32")
            found = intrin("fma", dots[t, v, lane].astype("float32"), of_both, sums[t, v, lane])
            return Store(sums, (t, v, lane), found)

        def words(q: LoopExpr) -> Stmt:
            return unrolled(range(op.per_word), lambda at: part(block * op.words + q, at), "part")

        return seq(self._each(begin), in_steps(op.words, 1, words), self._each(scaled))

    def _results(self) -> list[Stmt]:
        out, lanes, width = self.layer.problem.output, self.layer.lanes, self.group.width
        whole = self.group.size if width in (0, lanes) else self.group.size - 1

        def store(t: LoopExpr, v: LoopExpr, lane: LoopExpr) -> Stmt:
            place = Load(out, (self.row + t, (self.first + v) * lanes + lane))
            return store_at(place, self.sums[t, v, lane])

        parts = ((range(whole), lanes), (range(whole, self.group.size), width))
        return [each(range(self.rows), vectors, count, store) for vectors, count in parts if vectors]
