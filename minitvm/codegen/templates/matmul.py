"""Matrix products: dense (plain and packed weights), matmul, batch_matmul.

How the right-hand side is read depends on how it lies in memory and on how often it is read:

* packed weights are panels ``[column block][k][lanes]`` already, the last block filled up with zeros;
* along the depth, as the left-hand side: as dot products, where packing would cost more;
* along the columns: in place, where few tiles of rows read it, and in pieces of the depth where its rows are far apart;
* anything else is copied into panels first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from minitvm.codegen.default_schedule import Element, filled
from minitvm.codegen.loops import parallel
from minitvm.codegen.problem import TEMPLATES, Choice, Template, Tile
from minitvm.codegen.templates.product import Dots, Gemm, Matrix, Product
from minitvm.codegen.templates.tile import (
    WRITTEN,
    Run,
    best_tile,
    block_runs,
    divisor_at_most,
    dot_operations,
    runs,
    tile_choices,
)
from minitvm.cpu_costs import CPU
from minitvm.doors import door, left_out
from minitvm.ir.decision import Declined
from minitvm.ir.loop import Barrier, Buffer, Load, LoopExpr, Stmt, as_index, const
from minitvm.ir.loop.builder import LoopBuilder
from minitvm.target import MachineModel

DOTS, IN_PLACE, IN_PIECES, PACKED = "dot products", "in place", "in pieces of the depth", "packed"
PANELS = "panels"

_READ_IN_PLACE = 2  # tiles of rows that read the right-hand side where it is, however far apart its rows are
_HALVED = (1, 2, 4, 8)  # rows of a tile, and columns of one of dot products, where only a run knows how many there are
_NO_NEIGHBOUR = 8192  # bytes between rows of which one is not fetched ahead with the other
_PAGE, _PAGES = 4096, 64  # bytes of a page, and how many the processor finds at once
_FEW_READERS = 8  # rows that make floats of weights again sooner than they read panels of them
_FEW_ROWS = 32  # whose multiply-adds hide no wait for a right-hand side


def packed(code: LoopBuilder, product: Product, tile: Tile, machine: MachineModel) -> None:
    """Right-hand sides packed first: a group of columns by the thread that needs it, where there are enough."""
    lanes, sides = machine.lanes(product.dtype), product.right.batch
    gemm = Gemm(product, tile, lanes)
    many = machine.threads == 1 or sides * sum(g.count for g in gemm.groups) >= CPU.items_per_thread * machine.threads
    if many and not gemm.is_near(machine):
        for group in gemm.groups:
            _group_by_group(code, gemm, group, machine)
        return
    panels = Panels.of(product.right, lanes, product.dtype)
    with code.memory(panels.buffer):
        panels.fill(code, machine)
        code.emit(Barrier())
        replace(gemm, product=panels.times(product)).nest(code, machine)


def _group_by_group(code: LoopBuilder, gemm: Gemm, group: Run, machine: MachineModel) -> None:
    """Panels of some groups at a time, which the tiles of all rows find in the cache; results are written in runs as
    long as that allows."""
    product, sides = gemm.product, gemm.product.right.batch
    readers = product.batch // sides
    for strip in runs(group.count, _groups_at_once(gemm, group, machine)):
        shape = (1, group.size * strip.size, product.depth, gemm.lanes)
        panels = Panels(product.right, Buffer("packed", shape, product.dtype, "shared"))
        some = replace(group, begin=0, count=strip.size)
        with parallel(code, (sides, strip.count)) as (side, at), code.memory(panels.buffer):
            begin = group.start(strip.start(at))
            panels.fill_group(code, side, begin, group.width, machine)
            with code.loop(readers, "p") as p:
                part = replace(gemm, product=panels.times(product, begin))
                part.strip(code, side if readers == 1 else p, begin, some)


def _groups_at_once(gemm: Gemm, group: Run, machine: MachineModel) -> int:
    """So many that rows of results are written from one cache line to the next, the second-level cache keeps their
    panels, and every thread has its share."""
    product = gemm.product
    panel = product.depth * group.size * machine.vector_bytes
    most = min(WRITTEN // (group.size * gemm.lanes), machine.l2_bytes // 4 // panel)
    if machine.threads > 1:
        most = min(most, product.right.batch * group.count // (CPU.items_per_thread * machine.threads))
    return divisor_at_most(group.count, max(1, most))


Source = Callable[[LoopExpr, LoopExpr], tuple[LoopExpr, LoopExpr]]


@dataclass(frozen=True)
class Panels:
    """A copy of some right-hand sides in ``buffer``: (sides, blocks, depth, lanes)."""

    right: Matrix
    buffer: Buffer

    @staticmethod
    def of(right: Matrix, lanes: int, dtype: str) -> Panels:
        """Memory for all of them, which all threads see."""
        blocks = -(-right.columns // lanes)
        return Panels(right, Buffer("packed", (right.batch, blocks, right.rows, lanes), dtype))

    @property
    def lanes(self) -> int:
        return self.buffer.shape[3]

    def times(self, product: Product, begin: LoopExpr | int = 0) -> Product:
        """``product`` with its right-hand side read from here, where block ``begin`` is the first one."""
        sides = self.buffer.shape[0]

        def at(p: LoopExpr, r: LoopExpr, j: LoopExpr) -> LoopExpr:
            return self.buffer[p if sides > 1 else 0, j // self.lanes - begin, r, j % self.lanes]

        return replace(product, panels=at)

    def fill(self, code: LoopBuilder, machine: MachineModel) -> None:
        """All sides, by all threads; a barrier has to follow."""
        sides, columns = self.buffer.shape[0], self.right.columns
        self._fill(code, lambda p, at: (p, at), sides, columns, machine, parallel=True)

    def fill_group(self, code: LoopBuilder, p: LoopExpr, begin: LoopExpr, width: int, machine: MachineModel) -> None:
        """The blocks of side ``p`` from ``begin`` on that there is room for, by one thread; ``width``: of the last."""
        columns = self.buffer.shape[1] * self.lanes - (self.lanes - width if width else 0)
        self._fill(code, lambda _, at: (p, begin + at), 1, columns, machine, parallel=False)

    def _fill(
        self, code: LoopBuilder, source: Source, sides: int, columns: int, machine: MachineModel, parallel: bool
    ) -> None:
        """``source``: which side's which block is copied to (side, block); lanes beyond the last column are zero."""
        for run in block_runs(columns, self.lanes, 1):
            width = run.width or self.lanes
            for first, count in ((0, width), (width, self.lanes - width)):
                if count:
                    element = partial(self._element, source, run, first)
                    extents = (sides, run.count, self.right.rows, count)
                    code.emit(filled(self.buffer, extents, element, machine, parallel))

    def _element(
        self, source: Source, run: Run, first: int, p: LoopExpr, at: LoopExpr, r: LoopExpr, lane: LoopExpr
    ) -> Element:
        to, (side, block) = run.start(at), source(p, run.start(at))
        value = const(0, self.buffer.dtype) if first else self.right.at(side, r, block * self.lanes + lane)
        return (p, to, r, lane + first), value


# --- the templates ------------------------------------------------------------------------------------------------


@TEMPLATES.register("llvm", "nn.dense", "nn.matmul", "nn.batch_matmul")
class Matmul(Template):
    """Two operands of rank 2 or 3, each of them transposed or not."""

    symbolic = True

    @cached_property
    def product(self) -> Product:
        return along_lanes(Product.of(self.problem))

    def choices(self) -> Sequence[Choice]:
        return product_choices(self.product, self.machine)

    def loops(self, choice: Choice) -> Stmt:
        code = LoopBuilder()
        product_loops(code, self.product, choice, self.machine)
        return code.stmt


@door
def in_blocks_of(registers: int, block: int, together: int, at: Callable[[LoopExpr, LoopExpr], LoopExpr]) -> Any:
    """The tiles of weights in blocks of so many rows with a scale each, several rows ``together`` in a byte."""
    raise left_out("weights in few bytes")


@TEMPLATES.register("llvm", "nn.contrib_dense_pack", "qnn.contrib_dense_pack")
class DensePack(Matmul):
    """x: (m, k), weight: (n / c, k, c) -> (m, n)."""

    takes_scaled = True

    def refusal(self) -> Declined | None:
        width = self.problem.inputs[1].shape[2]
        if width % self.lanes and self.problem.not_floats is None:
            return Declined(f"the weight's blocks of {width} are not whole vectors of {self.lanes}")
        return self.problem.not_floats

    @cached_property
    def product(self) -> Product:
        (x, weight), out = self.problem.inputs, self.problem.output
        blocks, depth, width = weight.shape

        def at(buffer: Buffer) -> Callable[[LoopExpr, LoopExpr], Load]:
            return lambda r, j: Load(buffer, (j // width, r, j % width))

        right = Matrix.stored(1, depth, blocks * width, lambda _, r, j: at(weight)(r, j), False)
        product = Product(Matrix.of(x), right, Matrix.of(out), self.accumulator, multiply=self.problem.product)
        scaled = self.problem.scaled
        if scaled is None:
            return replace(product, panels=right.at)
        numbers, registers = at(scaled.numbers), self.machine.vector_registers
        scales = in_blocks_of(registers, scaled.block, scaled.per_byte, at(scaled.scales))
        return replace(product, panels=lambda _, r, j: numbers(r, j), scales=scales)

    def loops(self, choice: Choice) -> Stmt:
        """Weights that are computed as they are read become floats once for all rows, where these are many."""
        direct, rows = super().loops(choice), self.product.rows
        if self.problem.as_given or self.problem.product != "fma" or (isinstance(rows, int) and rows <= _FEW_READERS):
            return direct
        gemm = Gemm(replace(self.product, panels=None, scales=None), choice.tile, self.lanes)
        code = LoopBuilder()
        with code.when(None if isinstance(rows, int) else as_index(rows) > _FEW_READERS):
            for group in gemm.groups:
                _group_by_group(code, gemm, group, self.machine)
        if not isinstance(rows, int):
            with code.otherwise():
                code.emit(direct)
        return code.stmt


def along_lanes(product: Product) -> Product:
    """The product, or the operands exchanged: neighbours in the result are the columns that lanes are made of."""
    return product.turned if product.columns == 1 or not product.out.along_rows else product


def product_loops(code: LoopBuilder, product: Product, choice: Choice, machine: MachineModel) -> None:
    """The loops of any product with its columns along the lanes."""
    ahead = choice.scheme == PANELS and _from_afar(product, choice.tile, machine)
    gemm = Gemm(product, choice.tile, machine.lanes(product.dtype), ahead)
    if choice.scheme == DOTS:
        Dots.of(product, choice.tile, machine).by_tiles(code)
    elif choice.scheme == PACKED:
        packed(code, product, choice.tile, machine)
    elif choice.scheme == IN_PIECES:
        gemm.in_pieces(code, machine)
    else:
        gemm.nest(code, machine)


def product_choices(product: Product, machine: MachineModel, times: int = 1, in_place: bool = True) -> list[Choice]:
    """Every way to read the right-hand side, with every tile; ``times``: how often the same one is multiplied with."""
    if not all(isinstance(size, int) for size in product.sizes):
        return _symbolic_choices(product, machine)
    lanes = machine.lanes(product.dtype)
    blocks, found = -(-product.columns // lanes), list[Choice]()
    for scheme, why_not in _schemes(product, machine, times, in_place).items():
        columns, steps = (product.columns, -(-product.depth // lanes)) if scheme == DOTS else (blocks, product.depth)
        steps, multiply = times * product.batch * steps, product.multiply
        extra = _extra(scheme, product, machine, times)
        loads = CPU.unaligned_loads if scheme in (IN_PIECES, IN_PLACE) else 1
        for c in tile_choices(scheme, product.rows, columns, steps, machine, multiply, loads):
            crowd = _crowding(product, scheme, c.tile, machine)
            least = 0.0 if scheme == DOTS else _streaming(product, scheme, c.tile, machine, times)
            found.append(replace(c, cycles=max(c.cycles * crowd, least) + extra, why_not=why_not))
    return found


def _streaming(product: Product, scheme: str, tile: Tile, machine: MachineModel, times: int) -> float:
    """Cycles that the second-level cache takes to hand panels to all tiles of rows, where the first level does not keep
    them until they are read again: a panel of ``tile``, or packed ones of neighbours, by the next rows, or all of them
    by the next product."""
    lanes, down = machine.lanes(product.dtype), -(-product.rows // tile.rows)
    blocks = -(-product.columns // lanes)
    beside = max(tile.blocks, WRITTEN // lanes) if scheme == PACKED else tile.blocks
    again = product.depth * (min(beside, blocks) if down > 1 else blocks) * machine.vector_bytes
    found = times * down * product.batch * product.depth * blocks * CPU.l2_vector
    return found if times * down > 1 and again > machine.l1_bytes else 0.0


def _crowding(product: Product, scheme: str, tile: Tile, machine: MachineModel) -> float:
    """What it costs that rows lie so far apart that they push each other out of the first-level cache: a tile's of the
    left-hand side (more than 8 of 1024 floats each), or, a group of columns at a time, those of a right-hand side in
    place and of the result; or that the right-hand side's leave it."""
    row = product.depth * np.dtype(product.left.dtype).itemsize
    if product.left.along_rows and tile.rows > machine.lines_kept(row):
        return CPU.rows_evicted
    if scheme != IN_PLACE or product.rows <= tile.rows:
        return 1.0
    row = product.columns * np.dtype(product.right.dtype).itemsize
    touched = tile.blocks * machine.vector_bytes + CPU.line_bytes
    apart = product.depth > (_PAGES if row >= _PAGE else machine.lines_kept(row))
    if apart or product.rows * min(row, touched) > machine.l1_bytes:
        return CPU.rows_evicted
    beside = tile.rows * product.depth * np.dtype(product.left.dtype).itemsize
    return 1.0 if product.depth * touched + beside <= machine.l1_bytes else CPU.rows_from_l2


def _symbolic_choices(product: Product, machine: MachineModel) -> list[Choice]:
    """Those that need no memory of their own, in tiles that halve until nothing is left."""
    is_open = not isinstance(product.columns, int)
    schemes = (DOTS, IN_PLACE) if is_open else (DOTS, PANELS, IN_PLACE)
    found = [c for c in product_choices(product.typical, machine) if c.scheme in schemes and c.tile.rows in _HALVED]
    able = [c for c in found if (c.scheme != DOTS and not is_open) or c.tile.blocks in _HALVED]
    return [replace(c, why_not="") for c in able if c.scheme == able[0].scheme]


def _extra(scheme: str, product: Product, machine: MachineModel, times: int) -> float:
    """Cycles beside those of the tiles: adding up across lanes, packing."""
    lanes = machine.lanes(product.dtype)
    if scheme == DOTS:
        return times * product.batch * product.rows * product.columns * (1 + math.log2(lanes))
    if scheme == PACKED:
        each = CPU.copy_vector / lanes if product.right.along_rows else CPU.pack_element
        return each * product.right.batch * product.depth * product.columns
    return 0.0


def _schemes(product: Product, machine: MachineModel, times: int, in_place: bool) -> dict[str, str]:
    """The ways to read the right-hand side that there are, and what speaks against each: against one, nothing."""
    if product.panels is not None:
        return {PANELS: ""}
    found, (batch, rows, columns, depth) = {}, product.sizes
    if product.left.along_rows and product.right.along_columns:
        dots = times * dot_operations(*product.sizes, product.dtype, machine)
        blocks = times * batch * rows * -(-columns // machine.lanes(product.dtype)) * depth
        panels = blocks + CPU.pack_element * product.right.batch * depth * columns
        found[DOTS] = "" if dots <= panels else f"{dots:,.0f} vector operations, {panels:,.0f} with panels"
    if product.right.along_rows and in_place:
        stays = _stays_in_cache(product, machine)
        leaves = "" if stays else "a group of columns leaves the cache between tiles of rows"
        near = "" if _far_apart(product, machine) else "rows of the right-hand side are near each other, or read often"
        found |= {IN_PIECES: leaves or near, IN_PLACE: leaves}
    found[PACKED] = ""
    first = next(scheme for scheme, why_not in found.items() if not why_not)
    if first == IN_PLACE and _readers(product, machine)[1] > _READ_IN_PLACE:
        return found
    return {scheme: why_not or ("" if scheme == first else f"{first} costs less") for scheme, why_not in found.items()}


def _from_afar(product: Product, tile: Tile, machine: MachineModel) -> bool:
    """True if panels of floats come from beyond the first-level cache for the first of several tiles of rows."""
    if product.multiply != "fma" or not all(isinstance(size, int) for size in (product.columns, product.depth)):
        return False
    panels = product.depth * product.columns * np.dtype(product.dtype).itemsize
    several = not isinstance(product.rows, int) or product.rows > tile.rows
    return several and panels > machine.l1_bytes


def _stays_in_cache(product: Product, machine: MachineModel) -> bool:
    """True if a group of columns is found again by the next tile of rows, or there is hardly a next one."""
    tile, readers = _readers(product, machine)
    return readers <= _READ_IN_PLACE or product.depth * tile.blocks * machine.vector_bytes <= machine.l2_bytes // 4


def _far_apart(product: Product, machine: MachineModel) -> bool:
    """True if a right-hand side that the caches do not hold is for few rows, and one of its own is no neighbour of the
    next: what a group of columns leaves of its cache lines is gone when the next group wants it."""
    row = product.columns * np.dtype(product.right.dtype).itemsize
    many = product.depth * row > CPU.near_caches * machine.l2_bytes
    rows = product.batch // product.right.batch * product.rows
    return many and row >= _NO_NEIGHBOUR and rows <= _FEW_ROWS


def _readers(product: Product, machine: MachineModel) -> tuple[Tile, int]:
    """The register tile, and how many tiles of rows read a right-hand side."""
    tile = best_tile(product.rows, -(-product.columns // machine.lanes(product.dtype)), machine)
    return tile, product.batch // product.right.batch * -(-product.rows // tile.rows)
