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
    divisor_at_most,
    each,
    runs,
    store_at,
    unrolled,
)
from minitvm.ir.decision import Declined
from minitvm.ir.loop import Binary, Buffer, Load, LoopExpr, LoopKind, Stmt, Store, const, intrin, loop, seq
from minitvm.ir.ops.qnn_blocks import PANEL
from minitvm.ir.ops.qnn_blocks import DenseBlocks as Op

_MOST_ROWS, _MOST_VECTORS = 8, 4
_UNPACKING = 1.5  # multiply-adds that a vector of bytes takes the time of
_AT_ONCE = 4  # words of weights in an expression, so that sums of theirs may stay in 16 bits
_OF_A_BLOCK = 4  # that the scales of a vector of sums do


@TEMPLATES.register("llvm", "qnn.dense_blocks")
class DenseBlocks(Template):
    """Tiles of rows by panels of units.  A work item is a group of panels with all rows, where these are few a tile."""

    symbolic = True

    op: Op

    def refusal(self) -> Declined | None:
        return None

    @property
    def lanes(self) -> int:
        return min(PANEL, self.machine.lanes("int32"))

    @property
    def per_panel(self) -> int:
        """Vectors of a panel."""
        return PANEL // self.lanes

    @property
    def panels(self) -> int:
        return -(-self.op.units // PANEL)

    @property
    def rows(self) -> Any:
        return self.problem.output.shape[0]

    @cached_property
    def is_signed(self) -> bool:
        """Whether weights are multiplied as signed bytes: of 8 bits less 128, others as they are."""
        has = self.machine.features
        return "dot4" not in has and not has.isdisjoint(("sdot4", "neon"))

    @property
    def shift(self) -> int:
        """What is taken off a weight before it is multiplied."""
        return 128 if self.is_signed and self.op.bits == 8 else 0

    def number(self, word: LoopExpr, at: int) -> LoopExpr:
        """Four weights, less :attr:`shift`."""
        found: LoopExpr = self.op.part(word, at)
        return Binary("xor", found, const(-0x7F7F7F80, "int32")) if self.shift else found

    def choices(self) -> Sequence[Choice]:
        static = isinstance(self.rows, int)
        rows = max(1, self.rows) if static else TYPICAL
        return [Choice("blocks", tile, self._cycles(rows, tile)) for tile in self._tiles(rows, static)]

    def _tiles(self, rows: int, static: bool) -> Iterator[Tile]:
        """Of whole panels, whose sums, of integers and of floats, the registers hold; or else of one row."""
        for panels in range(1, max(1, min(self.panels, _MOST_VECTORS // self.per_panel)) + 1):
            blocks = panels * self.per_panel
            for size in range(1, min(rows, _MOST_ROWS) + 1):
                held = 2 * size * blocks + blocks < self.machine.vector_registers or size == panels == 1
                if held and (static or size & (size - 1) == 0):
                    yield Tile(size, blocks)

    def _cycles(self, rows: int, tile: Tile) -> float:
        blocks, steps = self.problem.inputs[1].shape[1], self.op.words * self.op.per_word

        def of_tile(r: int, b: int) -> float:
            step = bound(b * (r + _UNPACKING), r + b / self.op.per_word)
            return blocks * (steps * step + _OF_A_BLOCK * r * b / 2)

        across, down = runs(self.panels, tile.blocks // self.per_panel), runs(rows, tile.rows)
        return sum(g.count * t.count * of_tile(t.size, g.size * self.per_panel) for g in across for t in down)

    def loops(self, choice: Choice) -> Stmt:
        groups = block_runs(self.op.units, PANEL, choice.tile.blocks // self.per_panel)
        rows = runs(self.rows, choice.tile.rows)
        items = sum(group.count for group in groups)
        if enough(items, ITEMS_PER_THREAD * self.machine.threads) or not isinstance(self.rows, int):
            return self._by_groups(groups, rows)

        def tiles(group: Run, run: Run) -> Stmt:
            def work(g: LoopExpr, t: LoopExpr) -> Stmt:
                return _Tile(self, group, group.start(g), run.start(t), run.size).nest()

            return in_parallel((group.count, run.count), work)

        return seq(*(tiles(group, run) for group in groups for run in rows))

    def _by_groups(self, groups: Sequence[Run], rows: Sequence[Run]) -> Stmt:
        """All rows of a group of panels by one thread, which so finds its weights in its cache."""

        def work(group: Run) -> Stmt:
            def all_rows(first: LoopExpr) -> Stmt:
                return seq(*(run.over(lambda row, size: _Tile(self, group, first, row, size).nest()) for run in rows))

            return in_parallel((group.count,), lambda g: all_rows(group.start(g)))

        return seq(*map(work, groups))


@dataclass(frozen=True)
class _Tile:
    """``size`` rows from ``row`` on, by the panels of a group from ``first`` on."""

    layer: DenseBlocks
    group: Run
    first: LoopExpr
    row: LoopExpr
    size: int

    @property
    def vectors(self) -> int:
        return self.group.size * self.layer.per_panel

    @cached_property
    def sums(self) -> Buffer:
        return Buffer("sums", (self.size, self.vectors, self.layer.lanes), "float32", "local")

    @cached_property
    def dots(self) -> Buffer:
        """Of a block."""
        return Buffer("dots", (self.size, self.vectors, self.layer.lanes), "int32", "local")

    def nest(self) -> Stmt:
        blocks = self.layer.problem.inputs[1].shape[1]
        zero = self._each(lambda *at: Store(self.sums, at, const(0, "float32")))
        return with_memory([self.sums, self.dots], seq(zero, loop(blocks, self._block, name="k"), *self._results()))

    def _each(self, body: Callable[[LoopExpr, LoopExpr, LoopExpr], Stmt]) -> Stmt:
        def lanes(v: LoopExpr, t: LoopExpr) -> Stmt:
            return loop(self.layer.lanes, lambda lane: body(t, v, lane), LoopKind.VECTORIZED, "lane")

        return unrolled(
            range(self.vectors), lambda v: unrolled(range(self.size), lambda t: lanes(v, t), "row"), "vector"
        )

    def _at(self, panels: Buffer, place: LoopExpr, v: LoopExpr, lane: LoopExpr) -> LoopExpr:
        """What panels hold for a lane of vector ``v``."""
        per = self.layer.per_panel
        return panels[self.first + v // per, place, v % per * self.layer.lanes + lane]

    def _block(self, block: LoopExpr) -> Stmt:
        (data, scale, total, weight, factor, zero), dots, sums = self.layer.problem.inputs, self.dots, self.sums
        op, name = self.layer.op, "sdot4" if self.layer.is_signed else "dot4"
        at_once = divisor_at_most(op.words, _AT_ONCE)

        def begin(t: LoopExpr, v: LoopExpr, lane: LoopExpr) -> Stmt:
            point = (self._at(zero, block, v, lane) if zero.shape else zero[()]).astype("int32")
            return Store(dots, (t, v, lane), (self.layer.shift - point) * total[self.row + t, block])

        def words(q: LoopExpr) -> Stmt:
            """Of all rows and vectors, some words in one expression."""

            def add(t: LoopExpr, v: LoopExpr, lane: LoopExpr) -> Stmt:
                found = dots[t, v, lane]
                for u in range(at_once):
                    place = block * op.words + q * at_once + u
                    for at in range(op.per_word):
                        number = self.layer.number(self._at(weight, place, v, lane), at)
                        found = intrin(name, number, data[self.row + t, place * op.per_word + at], found)
                return Store(dots, (t, v, lane), found)

            return self._each(add)

        def scaled(t: LoopExpr, v: LoopExpr, lane: LoopExpr) -> Stmt:
            of_both = scale[self.row + t, block] * self._at(factor, block, v, lane).astype("float32")
            found = intrin("fma", dots[t, v, lane].astype("float32"), of_both, sums[t, v, lane])
            return Store(sums, (t, v, lane), found)

        return seq(self._each(begin), loop(op.words // at_once, words, name="word"), self._each(scaled))

    def _results(self) -> list[Stmt]:
        """Of all units; the last panel may be partly filled."""
        out, lanes, first = self.layer.problem.output, self.layer.lanes, self.first * PANEL
        units = (self.group.size - 1) * PANEL + (self.group.width or PANEL)

        def store(t: LoopExpr, v: LoopExpr, lane: LoopExpr) -> Stmt:
            return store_at(Load(out, (self.row + t, first + (v * lanes + lane))), self.sums[t, v, lane])

        whole, rest = divmod(units, lanes)
        parts = ((range(whole), lanes), (range(whole, whole + 1), rest))
        return [each(range(self.size), vectors, count, store) for vectors, count in parts if vectors and count]
