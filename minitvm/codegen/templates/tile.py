"""The micro-kernel: a register tile of ``rows x blocks`` vectors of accumulators, kept while the reduction runs.

A step of the reduction takes ``rows`` broadcasts and ``blocks`` vector loads for ``rows * blocks`` multiply-adds.
Matrix products, convolutions in all layouts, attention and recurrent layers are made of it (micro-kernels and packing:
Goto and van de Geijn 2008; Van Zee and van de Geijn 2015).  The cost model of products is here, too: the cycles of a
tile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from minitvm.codegen.loops import in_vectors
from minitvm.codegen.problem import Choice, Tile
from minitvm.cpu_costs import CPU
from minitvm.ir.dims import smaller
from minitvm.ir.loop import Buffer, Load, LoopExpr, LoopKind, Prefetch, Stmt, Store, as_index, const, intrin
from minitvm.ir.loop.builder import LoopBuilder
from minitvm.target import MachineModel

_WRITTEN_OUT, _OF_PAIRS, ENOUGH = 4, 2, 16
"""So many steps of a reduction are written out, but of more than so many multiply-adds, which hide a loop's own
instructions.  Of pairs LLVM adds the products of three steps and more first, for which there are no registers."""

TYPICAL = 64
"""What a size that only a run knows is taken for where costs are predicted."""

_MOST_FETCHED = 4
"""Lines that a turn of a reduction fetches of what comes next; more take the place of its own loads, where its
multiply-adds leave no time for them."""

WRITTEN = 256  # results of a row that are written before the next row's are
_MOST_ROWS, _MOST_BLOCKS = 28, 8


# --- pieces of an extent ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """``count`` neighbouring pieces of ``size``, the first at ``begin``.

    Of blocks of lanes: in the last block of a piece ``width`` lanes are results, all of them where it is 0.
    """

    begin: int
    count: int
    size: int
    width: int = 0
    is_cut: bool = False
    """Whether only a run knows how many lanes of the last block are results."""

    def start(self, piece: LoopExpr) -> LoopExpr:
        return piece * self.size + self.begin

    @property
    def end(self) -> int:
        return self.begin + self.count * self.size

    def split_last(self, width: int) -> tuple[Run, ...]:
        """The last piece apart, of another width."""
        last = Run(self.end - self.size, 1, self.size, width)
        return (Run(self.begin, self.count - 1, self.size), last) if self.count > 1 else (last,)


def runs(total: int, most: int) -> list[Run]:
    """``total`` as few pieces of at most ``most``: a run for each size."""
    return pieces(total, -(-total // most)) if isinstance(total, int) else halves(total, most)


def halves(total: Any, most: int, part: int = 2) -> list[Run]:
    """A total that only a run knows in pieces of ``most``, then fewer than ``part`` of each of its powers below."""
    sizes = [part**power for power in reversed(range(most.bit_length())) if part**power < most]
    whole = 0 if not sizes or sizes[0] * part == most else total // most * most
    left = total - whole
    rest = [Run(whole + left // (part * n) * (part * n), left // n - left // (part * n) * part, n) for n in sizes]
    return [Run(0, total // most, most), *rest]


def quarters(total: Any, most: int) -> list[Run]:
    """The same with a third of the code for what is left over: of pixels, where that is little of an image."""
    return halves(total, most, 4)


def pieces(total: int, count: int) -> list[Run]:
    """``total`` in ``count`` pieces, sizes differing by one: a run for each size."""
    size, larger = divmod(total, max(1, count))
    found = [Run(0, larger, size + 1), Run(larger * (size + 1), count - larger, size)]
    return [run for run in found if run.count and run.size]


def over(code: LoopBuilder, found: Iterable[Run], name: str = "tile") -> Iterator[tuple[LoopExpr, int]]:
    """The start and the size of every piece, run after run."""
    for run in found:
        with code.loop(run.count, name) as piece:
            yield run.start(piece), run.size


def over_all(
    code: LoopBuilder, found: Sequence[Run], name: str, kind: LoopKind = LoopKind.SERIAL
) -> Iterator[tuple[LoopExpr, int]]:
    """The start and the size of every piece of one run or two, in one loop, so that threads share all of them."""
    first, *others = found
    with code.loop(sum(run.count for run in found), name, kind) as i:
        if not others:
            yield first.start(i), first.size
            return
        with code.when(i < first.count):
            yield first.start(i), first.size
        for run in others:
            with code.otherwise():
                yield run.start(i - first.count), run.size


def block_runs(columns: int, lanes: int, most: int) -> list[Run]:
    """``columns`` in blocks of ``lanes``, these in pieces of at most ``most``; a piece that ends in a part of a block
    is by itself, and there may be none where only a run knows the columns."""
    if not isinstance(columns, int):
        return halves(columns, most) if lanes == 1 else _open_block_runs(columns, lanes, most)
    *found, last = runs(-(-columns // lanes), most)
    return [*found, *(last.split_last(columns % lanes) if columns % lanes else (last,))]


def _open_block_runs(columns: Any, lanes: int, most: int) -> list[Run]:
    """Pieces of ``most``, then one or none as wide, or of one block, of which a part of the lanes are results."""
    begin: Any = columns // (lanes * most) * most
    left = -(-columns // lanes) - begin
    wide: Any = smaller(left // 2, 1) if most > 1 else 0
    found = [Run(0, columns // (lanes * most), most), Run(begin, smaller(left, 1) - wide, 1, is_cut=True)]
    return found if most == 1 else [*found, Run(begin, wide, most, is_cut=True)]


def divisor_at_most(value: int, most: int) -> int:
    return next(d for d in range(min(value, most), 0, -1) if value % d == 0)


# --- the search space -------------------------------------------------------------------------------------------------


def bound(products: float, loads: float, chain: int = 1) -> float:
    """Cycles of multiply-adds, of loads, or of a chain of so many multiply-adds: whichever is most."""
    most = max(products / CPU.fma_per_cycle, loads / CPU.loads_per_cycle, float(chain * CPU.fma_latency))
    return most + CPU.step


def cycles(rows: int, blocks: int, each: int = 1, spread: int = 0) -> float:
    """Cycles of one reduction step of a tile; a vector takes ``each`` loads, a broadcast the time of ``spread``
    multiply-adds."""
    return bound(rows * (blocks + spread), rows + blocks * each)


def tiles(rows: int, blocks: int, machine: MachineModel, product: str = "fma") -> list[Tile]:
    """The tiles whose accumulators and operands the registers hold.  A product of pairs is one of its own before it is
    added; of NEON, whose multiply-adds take nothing from memory, LLVM loads three broadcasts ahead."""
    free = machine.vector_registers - (4 if "neon" in machine.features else 2 if product == "dot2" else 1)
    return [
        Tile(r, b)
        for b in range(1, min(blocks, _MOST_BLOCKS) + 1)
        for r in range(1, min(rows, _MOST_ROWS) + 1)
        if r * b + min(b, r) <= free
    ]


@cache
def step_cycles(rows: int, blocks: int, tile: Tile, each: int = 1, spread: int = 0) -> float:
    """Cycles of one reduction step for ``rows x blocks`` vectors in tiles."""
    across, down = runs(blocks, tile.blocks), runs(rows, tile.rows)
    return sum(b.count * sum(r.count * cycles(r.size, b.size, each, spread) for r in down) for b in across)


@cache
def open_cycles(tiled: int, ends: tuple[int, ...], blocks: int, tile: Tile, each: int = 1) -> float:
    """The same where only a run knows how many rows there are: usually so many in tiles, and tiles at the ends."""
    across, down = runs(blocks, tile.blocks), [*quarters(tiled, tile.rows), *(Run(0, 1, size) for size in ends)]
    return sum(b.count * sum(r.count * cycles(r.size, b.size, each) for r in down) for b in across)


@cache
def least_cycles(rows: int, blocks: int, machine: MachineModel, each: int = 1) -> float:
    """The cycles of the best tile."""
    return min(step_cycles(rows, blocks, tile, each) for tile in tiles(rows, blocks, machine))


def tile_choices(
    scheme: str, rows: int, blocks: int, steps: float, machine: MachineModel, product: str = "fma", loads: int = 1
) -> list[Choice]:
    """Every tile for ``rows x blocks`` vectors of sums of ``steps`` products; ``loads``: that a vector takes.

    NEON spreads a word over a vector in the units that multiply (LD1R); its multiply-adds of floats take a lane.
    """
    found, spread = tiles(rows, blocks, machine, product), int(product != "fma" and "neon" in machine.features)
    return [Choice(scheme, tile, steps * step_cycles(rows, blocks, tile, loads, spread)) for tile in found]


def best_tile(rows: int, blocks: int, machine: MachineModel, product: str = "fma") -> Tile:
    """The one with the fewest cycles, of these the one with the most blocks."""
    found = tile_choices("", max(rows, 1), max(blocks, 1), 1, machine, product)
    return min(found, key=lambda c: (round(c.cycles, 6), -c.tile.blocks)).tile


def dot_operations(batch: int, rows: int, columns: int, depth: int, dtype: str, machine: MachineModel) -> float:
    """Vector operations of a product whose sums are each spread over the lanes, and added up across them."""
    lanes, tile = machine.lanes(dtype), best_tile(rows, columns, machine)
    leaves_cache = (tile.rows + tile.blocks) * depth * 4 > machine.l1_bytes and rows > tile.rows
    each_sum = -(-depth // lanes) * (CPU.dots_from_l2 if leaves_cache else 1) + 1 + math.log2(lanes)
    return batch * rows * columns * each_sum


# --- the loops --------------------------------------------------------------------------------------------------------

Operand = Callable[..., LoopExpr]
"""An element of an operand: ``a(row, lane, *index)``, ``b(block, lane, *index)``, at an index of the reduction."""

Step = Callable[..., None]
"""``step(*index, rows=...)`` adds the products at an index of the reduction to the sums of all rows, or some."""


Fetch = Callable[[LoopBuilder, LoopExpr], None]
"""Fetches what a turn of a reduction does of what comes next."""


@dataclass(frozen=True)
class TileKernel:
    """``store(row, block, lane, sum over the reduction of a(row, lane, *index) * b(block, lane, *index))``.

    Sums are kept in ``dtype``, operands are cast to it as they are loaded, ``store`` rounds.  ``a`` is one element
    broadcast to all lanes where it does not use ``lane``.
    ``width``: how many lanes of the last block are results (all of them where 0), ``first`` the first of them.
    ``piece``: how many lanes ``store`` is given at a time, where the result lies in smaller blocks.
    ``product``: the function that multiplies and adds, of elements as they are or of the bytes in them.
    ``reads(row, *index)``: whether a row of sums takes part in a step.
    """

    rows: int
    blocks: int
    lanes: int
    dtype: str
    a: Operand
    b: Operand
    store: Callable[[LoopExpr, LoopExpr, LoopExpr, LoopExpr], Stmt]
    width: int = 0
    first: int = 0
    piece: int | None = None
    product: str = "fma"
    reads: Callable[..., LoopExpr] | None = None

    @contextmanager
    def sums(self, code: LoopBuilder) -> Iterator[Step]:
        """The tile's loops around those of its reduction, which takes a step at each index."""
        acc = Buffer("acc", (self.rows, self.blocks, self.lanes), self.dtype, "local")
        with code.memory(acc):
            self.zero(code, acc)
            yield partial(self.step, code, acc)
            self.results(code, acc)

    def results(self, code: LoopBuilder, acc: Buffer) -> None:
        """What is stored of the sums (rows, blocks, lanes)."""
        whole = self.blocks if self.width in (0, self.lanes) else self.blocks - 1
        self._stores(code, acc, range(whole), self.lanes, 0)
        self._stores(code, acc, range(whole, self.blocks), self.width or self.lanes, self.first)

    def zero(self, code: LoopBuilder, acc: Buffer) -> None:
        with each(code, range(self.rows), range(self.blocks), self.lanes) as at:
            code.store(acc, at, const(0, self.dtype))

    def step(self, code: LoopBuilder, acc: Buffer, *index: LoopExpr, rows: range | None = None) -> None:
        with each(code, range(self.rows) if rows is None else rows, range(self.blocks), self.lanes) as (r, b, lane):
            factors = (self.a(r, lane, *index).astype(self.dtype), self.b(b, lane, *index).astype(self.dtype))
            with code.when(None if self.reads is None else self.reads(r, *index)):
                code.store(acc, (r, b, lane), intrin(self.product, *factors, acc[r, b, lane]))

    def _stores(self, code: LoopBuilder, acc: Buffer, blocks: range, width: int, first: int) -> None:
        piece = self.piece or width
        for p in range(0, width if blocks else 0, piece):
            with each(code, range(self.rows), blocks, min(piece, width - p)) as (r, b, lane):
                code.emit(self.store(r, b, lane + p, acc[r, b, lane + (p + first)]))


@contextmanager
def each(code: LoopBuilder, rows: range, blocks: range, width: int) -> Iterator[tuple[LoopExpr, LoopExpr, LoopExpr]]:
    """Row, block and lane, unrolled so that the operands kept in registers meanwhile are the fewer ones."""
    by_block = len(rows) < len(blocks)
    sides = [(rows, "row"), (blocks, "block")][:: -1 if by_block else 1]
    with (
        code.unrolled(*sides[0]) as x,
        code.unrolled(*sides[1]) as y,
        code.loop(width, "lane", LoopKind.VECTORIZED) as lane,
    ):
        yield (y, x, lane) if by_block else (x, y, lane)


def written_out(sums: float, product: str = "fma") -> int:
    """Steps of a reduction that a turn of its loop consists of, of ``sums`` multiply-adds each by ``product``."""
    return 1 if sums > ENOUGH else _OF_PAIRS if product == "dot2" or 2 * sums > ENOUGH else _WRITTEN_OUT


def steps(
    code: LoopBuilder, extent: int, sums: float, product: str = "fma", behind: Fetch | None = None
) -> Iterator[LoopExpr]:
    """The positions of a reduction, in a loop with some of its steps written out, ``behind(turn)`` after them (ahead of
    them it would cost a register); what is left over after the loop."""
    if not isinstance(extent, int):
        with code.loop(extent, "k") as k:
            yield k
        return
    out = written_out(sums, product)
    whole, rest = divmod(extent, out)
    if whole:
        with code.loop(whole, "k") as turn:
            with code.unrolled(range(out)) as u:
                yield u + turn * out
            if behind is not None:
                behind(code, turn)
    if rest:
        with code.unrolled(range(whole * out, extent)) as k:
            yield k


def rows_of_line(dtype: str, lanes: int) -> int:
    """Rows of ``lanes`` elements that a cache line holds, at least one."""
    return max(1, CPU.line_bytes // (np.dtype(dtype).itemsize * lanes))


def spare_loads(rows: int, blocks: int, steps: int, product: str = "fma") -> int:
    """Lines that a tile fetches of what comes next while it multiplies ``steps`` times: a quarter of what it could load
    besides."""
    spare = steps * (rows * blocks - rows - blocks) if product == "fma" else 0
    return max(_MOST_FETCHED, spare // 4)


@dataclass(frozen=True)
class Ahead:
    """What tiles of ``rows`` rows together fetch while they multiply: ``lines`` of what is multiplied with next.

    ``line(number)``: an element of one, of the last where there are no more.
    """

    lines: int
    rows: int
    line: Callable[[LoopExpr], Load]

    def by(self, row: LoopExpr | int, size: int, most: int, turns: int = 1) -> Fetch | None:
        """What to fetch by turn of a reduction: the part for the tile that begins with ``row``; nothing of more than
        ``most`` lines."""
        first, part = as_index(row) * self.lines // self.rows, -(-size * self.lines // self.rows)
        each = -(-part // turns) if turns else most + 1
        return partial(self._fetch, first, each) if 0 < each <= most else None

    def _fetch(self, first: LoopExpr, each: int, code: LoopBuilder, turn: LoopExpr) -> None:
        with code.unrolled(range(each), "line") as u:
            code.emit(Prefetch(self.line(first + turn * each + u)))


def store_at(place: Load, value: LoopExpr) -> Stmt:
    """A sum to where a load would find it, rounded."""
    return Store(place.buffer, place.index, value.astype(place.dtype))


def vectors(code: LoopBuilder, count: int, lanes: int) -> Iterator[LoopExpr]:
    """``count`` neighbours: whole vectors, then one as wide as what is left."""
    for start, width in in_vectors(code, count, lanes):
        with code.lanes(width) as lane:
            yield start + lane
