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
from minitvm.codegen.templates.tile import (
    TYPICAL,
    Run,
    block_runs,
    bound,
    divisor_at_most,
    each,
    runs,
    store_at,
    unrolled,
)
from minitvm.cpu_costs import CPU
from minitvm.ir.decision import Declined
from minitvm.ir.loop import Binary, Buffer, Load, LoopExpr, LoopKind, Stmt, Store, const, intrin, loop, seq
from minitvm.ir.ops.more.qnn_blocks import PANEL
from minitvm.ir.ops.more.qnn_blocks import DenseBlocks as Op

_MOST_ROWS, _MOST_VECTORS = 8, 4
_UNPACKING = 1.5  # multiply-adds that a vector of bytes takes the time of
_AT_ONCE = 4  # words of weights in an expression, so that sums of theirs may stay in 16 bits
_OF_A_BLOCK = 4  # that the scales of a vector of sums do


@dataclass(frozen=True)
class _Vectors:
    """``pieces`` of a panel, or of some: each of ``count`` vectors, the last of which has ``width`` units."""

    first: int
    pieces: int
    count: int
    width: int


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
        """True if weights are multiplied as signed bytes: of 8 bits less 128, others as they are."""
        has = self.machine.features
        return "dot4" not in has and not has.isdisjoint(("sdot4", "neon"))

    @property
    def together(self) -> int:
        """Rows of which a panel's sums, of integers and of floats, are in registers."""
        return max(1, (self.machine.vector_registers // self.per_panel - 1) // 2)

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
        """Of whole panels, whose sums, of integers and of floats, the registers hold; or else of one row.  Of parts of
        panels by more rows, whose sums are found in memory: a part's bytes of a block stay in registers."""
        for panels in range(1, max(1, min(self.panels, _MOST_VECTORS // self.per_panel)) + 1):
            blocks = panels * self.per_panel
            for size in range(1, min(rows, _MOST_ROWS) + 1):
                held = 2 * size * blocks + blocks < self.machine.vector_registers or size == panels == 1
                if held and (static or size & (size - 1) == 0):
                    yield Tile(size, blocks)
        for size in (4, 8) if self.per_panel > 1 else ():
            if size <= rows:
                yield Tile(size, 1)

    def _cycles(self, rows: int, tile: Tile) -> float:
        blocks, steps = self.problem.inputs[1].shape[1], self.op.words * self.op.per_word

        def of_tile(r: int, b: int) -> float:
            step = bound(b * (r + _UNPACKING), r + b / self.op.per_word)
            return blocks * (steps * step + _OF_A_BLOCK * r * b / 2)

        across, down = runs(self.panels * self.per_panel, tile.blocks), runs(rows, tile.rows)
        return sum(g.count * t.count * of_tile(t.size, g.size) for g in across for t in down)

    def loops(self, choice: Choice) -> Stmt:
        groups = block_runs(self.op.units, PANEL, max(1, choice.tile.blocks // self.per_panel))
        rows = runs(self.rows, choice.tile.rows)
        items = sum(group.count for group in groups)
        if enough(items, CPU.items_per_thread * self.machine.threads) or not isinstance(self.rows, int):
            return self._by_groups(groups, rows)

        def tiles(group: Run, run: Run) -> Stmt:
            def work(some: _Vectors) -> Stmt:
                def one(g: LoopExpr, t: LoopExpr, v: LoopExpr) -> Stmt:
                    return self._tile(group.start(g), run.start(t), run.size, some, v)

                return in_parallel((group.count, run.count, some.pieces), one)

            return seq(*map(work, self._pieces(group, run.size)))

        return seq(*(tiles(group, run) for group in groups for run in rows))

    def _pieces(self, group: Run, rows: int) -> list[_Vectors]:
        """Of the panels of a group, of which the last may be partly filled: all at once, or a vector at a time."""
        units = (group.size - 1) * PANEL + (group.width or PANEL)
        whole, rest = divmod(units, self.lanes)
        if rows <= self.together:
            return [_Vectors(0, 1, whole + bool(rest), rest or self.lanes)]
        return [v for v in (_Vectors(0, whole, 1, self.lanes), _Vectors(whole, 1, 1, rest)) if v.pieces and v.width]

    def _tile(self, panel: LoopExpr, row: LoopExpr, size: int, some: _Vectors, v: LoopExpr) -> Stmt:
        return _Tile(self, panel, row, size, some.count, some.width, v + some.first).nest()

    def _by_groups(self, groups: Sequence[Run], rows: Sequence[Run]) -> Stmt:
        """All rows of a group of panels by one thread, which so finds its weights in its cache."""

        def work(group: Run) -> Stmt:
            def all_vectors(panel: LoopExpr, row: LoopExpr, size: int) -> Stmt:
                def over(some: _Vectors) -> Stmt:
                    return loop(some.pieces, lambda v: self._tile(panel, row, size, some, v), name="v")

                return seq(*map(over, self._pieces(group, size)))

            def all_rows(panel: LoopExpr) -> Stmt:
                return seq(*(run.over(lambda row, size: all_vectors(panel, row, size)) for run in rows))

            return in_parallel((group.count,), lambda g: all_rows(group.start(g)))

        return seq(*map(work, groups))


@dataclass(frozen=True)
class _Tile:
    """``size`` rows from ``row`` on, by ``vectors`` from number ``vector`` on of the panels from ``first`` on; the last
    one has ``width`` units."""

    layer: DenseBlocks
    first: LoopExpr
    row: LoopExpr
    size: int
    vectors: int
    width: int
    vector: LoopExpr

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
        per, number = self.layer.per_panel, self.vector + v
        return panels[self.first + number // per, place, number % per * self.layer.lanes + lane]

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
        out, lanes, first = self.layer.problem.output, self.layer.lanes, self.first * PANEL

        def store(t: LoopExpr, v: LoopExpr, lane: LoopExpr) -> Stmt:
            unit = first + ((self.vector + v) * lanes + lane)
            return store_at(Load(out, (self.row + t, unit)), self.sums[t, v, lane])

        whole = self.vectors - (self.width < lanes)
        parts = ((range(whole), lanes), (range(whole, self.vectors), self.width))
        return [each(range(self.size), vectors, count, store) for vectors, count in parts if vectors]
