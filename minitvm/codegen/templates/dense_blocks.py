"""``qnn.dense_blocks``: weights are unpacked by a shift and a mask, and multiplied with words of all rows of a tile.

A block's sums are integers in registers; its scales are multiplied when they are added to the tile's results.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from minitvm.codegen.loops import enough, parallel
from minitvm.codegen.problem import TEMPLATES, Choice, Template, Tile
from minitvm.codegen.templates.tile import TYPICAL, Run, block_runs, bound, divisor_at_most, each, over, runs, store_at
from minitvm.cpu_costs import CPU
from minitvm.ir.decision import Declined
from minitvm.ir.loop import Binary, Buffer, Load, LoopExpr, LoopKind, Prefetch, Stmt, as_index, const, intrin, minimum
from minitvm.ir.loop.builder import LoopBuilder
from minitvm.ir.ops.more.qnn_blocks import BYTES, PANEL
from minitvm.ir.ops.more.qnn_blocks import DenseBlocks as Op

_MOST_ROWS, _MOST_VECTORS = 8, 4
_UNPACKING = 1.5  # multiply-adds that a vector of bytes takes the time of
_AT_ONCE = 4  # words of weights in an expression, so that sums of theirs may stay in 16 bits
_OF_A_BLOCK = 4  # that the scales of a vector of sums do
_FEW_ROWS = 2  # whose products take less time than their weights to come
_AHEAD = 8192  # bytes of weights that come meanwhile: more leave the first-level cache again


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
        return max(1, (self.machine.vector_registers // self.per_panel - 1) // (1 + self.op.parts))

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
                sums = (1 + self.op.parts) * size * blocks
                held = sums + blocks < self.machine.vector_registers or size == panels == 1
                if held and (static or size & (size - 1) == 0):
                    yield Tile(size, blocks)
        for size in (4, 8) if self.per_panel > 1 else ():
            if size <= rows:
                yield Tile(size, 1)

    def _cycles(self, rows: int, tile: Tile) -> float:
        blocks, steps = self.problem.inputs[1].shape[1], self.op.words * self.op.per_word

        def of_tile(r: int, b: int) -> float:
            each = self.op.parts * r
            step = bound(b * (each + _UNPACKING), each + b / self.op.per_word)
            return blocks * (steps * step + _OF_A_BLOCK * r * b / 2)

        across, down = runs(self.panels * self.per_panel, tile.blocks), runs(rows, tile.rows)
        return sum(g.count * t.count * of_tile(t.size, g.size) for g in across for t in down)

    def loops(self, choice: Choice) -> Stmt:
        most = max(1, choice.tile.blocks // self.per_panel)
        groups = block_runs(self.op.units, PANEL, most) if self.op.units else []
        code, rows, items = LoopBuilder(), runs(self.rows, choice.tile.rows), sum(group.count for group in groups)
        if enough(items, CPU.items_per_thread * self.machine.threads) or not isinstance(self.rows, int):
            self._by_groups(code, groups, rows)
            return code.stmt
        for group, run in itertools.product(groups, rows):
            for some in self._pieces(group, run.size):
                with parallel(code, (group.count, run.count, some.pieces)) as (g, t, v):
                    self._tile(code, group.start(g), run.start(t), run.size, some, v)
        return code.stmt

    def _pieces(self, group: Run, rows: int) -> list[_Vectors]:
        """Of the panels of a group, of which the last may be partly filled: all at once, or a vector at a time."""
        units = (group.size - 1) * PANEL + (group.width or PANEL)
        whole, rest = divmod(units, self.lanes)
        if rows <= self.together:
            return [_Vectors(0, 1, whole + bool(rest), rest or self.lanes)]
        return [v for v in (_Vectors(0, whole, 1, self.lanes), _Vectors(whole, 1, 1, rest)) if v.pieces and v.width]

    def _tile(self, code: LoopBuilder, panel: LoopExpr, row: LoopExpr, size: int, some: _Vectors, v: LoopExpr) -> None:
        _Tile(code, self, panel, row, size, some.count, some.width, v + some.first).nest()

    def _by_groups(self, code: LoopBuilder, groups: Sequence[Run], rows: Sequence[Run]) -> None:
        """All rows of a group of panels by one thread, which so finds its weights in its cache."""
        for group in groups:
            with parallel(code, (group.count,)) as (g,):
                for row, size in over(code, rows):
                    for some in self._pieces(group, size):
                        with code.loop(some.pieces, "v") as v:
                            self._tile(code, group.start(g), row, size, some, v)


@dataclass(frozen=True)
class _Tile:
    """``size`` rows from ``row`` on, by ``vectors`` from number ``vector`` on of the panels from ``first`` on; the last
    one has ``width`` units."""

    code: LoopBuilder
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
        """Of a block, part by part."""
        return Buffer("dots", (self.layer.op.parts, self.size, self.vectors, self.layer.lanes), "int32", "local")

    def nest(self) -> None:
        code, blocks = self.code, self.layer.problem.inputs[1].shape[1]
        with code.memory(self.sums, self.dots):
            with self._each() as at:
                code.store(self.sums, at, const(0, "float32"))
            with code.loop(blocks, "k") as block:
                self._block(block)
            self._results()

    @contextmanager
    def _each(self) -> Iterator[tuple[LoopExpr, LoopExpr, LoopExpr]]:
        """Row, vector and lane of the sums."""
        code = self.code
        with (
            code.unrolled(range(self.vectors), "vector") as v,
            code.unrolled(range(self.size), "row") as t,
            code.loop(self.layer.lanes, "lane", LoopKind.VECTORIZED) as lane,
        ):
            yield t, v, lane

    def _at(self, panels: Buffer, place: LoopExpr, v: LoopExpr, lane: LoopExpr) -> LoopExpr:
        """What panels hold for a lane of vector ``v``."""
        per, number = self.layer.per_panel, self.vector + v
        return panels[self.first + number // per, place, number % per * self.layer.lanes + lane]

    def _block(self, block: LoopExpr) -> None:
        (_, scale, total, _, factor, zero), dots, sums = self.layer.problem.inputs, self.dots, self.sums
        code, words = self.code, self.layer.op.words
        at_once = divisor_at_most(words, _AT_ONCE)
        parts = range(self.layer.op.parts)
        for p in parts:
            with self._each() as (t, v, lane):
                point = (self._at(zero, block, v, lane) if zero.shape else zero[()]).astype("int32")
                code.store(dots, (p, t, v, lane), (self.layer.shift - point) * total[self._row(p, t), block])
        with code.loop(words // at_once, "word") as q:
            for p in parts:
                with self._each() as (t, v, lane):
                    found = self._multiplied(block * words + q * at_once, at_once, p, t, v, lane)
                    code.store(dots, (p, t, v, lane), found)
        with self._each() as (t, v, lane):
            of_both = scale[self.row + t, block] * self._at(factor, block, v, lane).astype("float32")
            *lower, exact = (dots[p, t, v, lane].astype("float32") for p in parts)
            for part in reversed(lower):
                exact = intrin("fma", exact, const(256, "float32"), part)
            code.store(sums, (t, v, lane), intrin("fma", exact, of_both, sums[t, v, lane]))
        if self.size <= _FEW_ROWS:
            code.emit(*self._fetched(block))

    def _row(self, p: int, t: LoopExpr) -> LoopExpr:
        """A part of a row among those of all rows."""
        return as_index(p * self.layer.rows) + (self.row + t)

    def _multiplied(self, first: LoopExpr, count: int, p: int, t: LoopExpr, v: LoopExpr, lane: LoopExpr) -> LoopExpr:
        """A sum of integers and the products of some words, in one expression."""
        (data, _, _, weight, *_), op = self.layer.problem.inputs, self.layer.op
        name, found = "sdot4" if self.layer.is_signed else "dot4", self.dots[p, t, v, lane]
        for place, at in itertools.product([first + u for u in range(count)], range(op.per_word)):
            number = self.layer.number(self._at(weight, place, v, lane), at)
            found = intrin(name, number, data[self._row(p, t), place * op.per_word + at], found)
        return found

    def _fetched(self, block: LoopExpr) -> Iterator[Stmt]:
        """What is multiplied some blocks later, or with the panels behind these."""
        (_, scale, _, weight, factor, _), op = self.layer.problem.inputs, self.layer.op
        blocks, count = scale.shape[1], -(-self.vectors // self.layer.per_panel)
        ahead = -(-_AHEAD // (BYTES * PANEL * op.words * count))
        place = block + (ahead if 2 * ahead < blocks else -(-ahead // blocks) * blocks)
        for p in range(count):
            panel = minimum(self.first + p + place // blocks * count, self.layer.panels - 1)
            for w in range(op.words):
                yield Prefetch(weight[panel, place % blocks * op.words + w, 0], 1)
            yield Prefetch(factor[panel, place % blocks, 0], 1)

    def _results(self) -> None:
        out, lanes, first = self.layer.problem.output, self.layer.lanes, self.first * PANEL
        whole = self.vectors - (self.width < lanes)
        for vectors, count in ((range(whole), lanes), (range(whole, self.vectors), self.width)):
            if vectors:
                with each(self.code, range(self.size), vectors, count) as (t, v, lane):
                    unit = first + ((self.vector + v) * lanes + lane)
                    self.code.emit(store_at(Load(out, (self.row + t, unit)), self.sums[t, v, lane]))
