"""Matrix products: dense (plain and packed weights), matmul, batch_matmul.

How the right-hand side is read depends on how it lies in memory and on how often it is read:

* packed weights are panels ``[column block][k][lanes]`` already;
* along the depth, as the left-hand side: as dot products (``dots.py``), where packing would cost more;
* along the columns: in place, where few tiles of rows read it, and in pieces of the depth where its rows are far apart;
* anything else is copied into panels first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minitvm.codegen.problem import TEMPLATES, Config, Problem
from minitvm.codegen.spread import unflatten
from minitvm.codegen.templates.dots import dots, fits_dots
from minitvm.codegen.templates.gemm import ITEMS_PER_THREAD, Gemm
from minitvm.codegen.templates.panels import Panels, gemm_of
from minitvm.codegen.templates.pieces import in_pieces
from minitvm.codegen.templates.product import Product
from minitvm.codegen.templates.tile import Run, Tile, choose_tile, runs
from minitvm.ir.decision import Declined
from minitvm.ir.loop import (
    Alloc,
    Barrier,
    Kernel,
    LoopExpr,
    LoopKind,
    Stmt,
    Store,
    const,
    loop,
    select,
    seq,
)
from minitvm.target import MachineModel

_READ_IN_PLACE = 2  # tiles of rows that read the right-hand side where it is, however far apart its rows are
_NO_NEIGHBOUR = 8192  # bytes between rows of which one is not fetched ahead with the other
_NEAR_CACHES = 8  # times the second-level cache: what is read from there or nearly as fast


@TEMPLATES.register("llvm", "nn.contrib_dense_pack")
def dense_pack(problem: Problem, machine: MachineModel, config: Config) -> Kernel | Declined:
    """x: (m, k), weight: (n / c, k, c) -> (m, n)."""
    (x, weight), out = problem.inputs, problem.output
    lanes = machine.lanes(problem.accumulator)
    width = weight.shape[2]
    if (refusal := problem.not_floats) is not None:
        return refusal
    if width % lanes:
        return Declined(f"the weight's blocks of {width} are not whole vectors of {lanes}")
    per = width // lanes
    gemm = Gemm(
        1,
        out.shape[0],
        out.shape[1],
        x.shape[1],
        lanes,
        problem.accumulator,
        lambda _, i, r: x[i, r],
        lambda _, block, r, lane: weight[block // per, r, (block % per) * lanes + lane],
        lambda _, i, j, value: Store(out, (i, j), value.astype(out.dtype)),
    )
    return Kernel(problem.op.name, (x, weight, out), gemm.nest(machine))


@TEMPLATES.register("llvm", "nn.dense", "nn.matmul", "nn.batch_matmul")
def matmul(problem: Problem, machine: MachineModel, config: Config) -> Kernel | Declined:
    """Two operands of rank 2 or 3, each of them transposed or not."""
    if (refusal := problem.not_floats) is not None:
        return refusal
    return Kernel(problem.op.name, (*problem.inputs, problem.output), product_loops(Product.of(problem), machine))


def product_loops(product: Product, machine: MachineModel) -> Stmt:
    """Of any product; neighbours in the result are the columns that lanes are made of."""
    if product.columns == 1 or not product.out.along_rows:
        product = product.turned
    lanes = machine.lanes(product.dtype)
    if fits_dots(product, machine):
        return dots(product, machine)
    if product.right.along_rows and _stays_in_cache(product, machine):
        gemm = _in_place(product, lanes)
        return in_pieces(gemm, machine) if _far_apart(product, machine) else gemm.nest(machine)
    return _packed(product, lanes, machine)


def _stays_in_cache(product: Product, machine: MachineModel) -> bool:
    """Whether a group of columns is found again by the next tile of rows, or there is hardly a next one."""
    tile, readers = _readers(product, machine)
    return readers <= _READ_IN_PLACE or product.depth * tile.blocks * machine.vector_bytes <= machine.l2_bytes // 4


def _far_apart(product: Product, machine: MachineModel) -> bool:
    """Whether a right-hand side that the caches do not hold is read once or twice, and a row is no neighbour of the
    next one: what a group of columns leaves of its cache lines is gone when the next group wants it."""
    right = product.right.buffer
    row = right.shape[-1] * np.dtype(right.dtype).itemsize
    many = product.depth * row > _NEAR_CACHES * machine.l2_bytes
    return many and row >= _NO_NEIGHBOUR and _readers(product, machine)[1] <= _READ_IN_PLACE


def _readers(product: Product, machine: MachineModel) -> tuple[Tile, int]:
    """The register tile, and how many tiles of rows read a right-hand side."""
    tile = choose_tile(product.rows, -(-product.columns // machine.lanes(product.dtype)), machine)
    return tile, product.batch // product.right.batch * -(-product.rows // tile.columns)


def _in_place(product: Product, lanes: int) -> Gemm:
    """The right-hand side where it is, zeros beyond its last column."""

    def panel(p: LoopExpr, block: LoopExpr, r: LoopExpr, lane: LoopExpr) -> LoopExpr:
        column = block * lanes + lane
        value = product.right.at(p, r, column).astype(product.dtype)
        return select(column < product.columns, value, const(0, product.dtype))

    return gemm_of(product, lanes, panel)


def _packed(product: Product, lanes: int, machine: MachineModel) -> Stmt:
    """The right-hand sides in panels first: a group of columns by the thread that needs it, where there are enough."""
    sides = product.right.batch
    panels = Panels.of(product.right, lanes, product.dtype, sides)
    gemm = panels.gemm(product)
    tile = gemm.tile(machine)
    groups = gemm.column_runs(tile.blocks)
    if machine.threads == 1 or sides * sum(g.count for g, _ in groups) >= ITEMS_PER_THREAD * machine.threads:
        rows = runs(product.rows, tile.columns)
        return seq(*(_group_by_group(product, lanes, group, last, rows) for group, last in groups))
    return Alloc(panels.buffer, seq(panels.fill(), Barrier(), gemm.nest(machine)))


def _group_by_group(product: Product, lanes: int, groups: Run, last: int, rows: Sequence[Run]) -> Stmt:
    """Panels of one group at a time, which the tiles of all rows find in the cache."""
    sides = product.right.batch
    panels = Panels.of(product.right, lanes, product.dtype, 1, "shared", groups.size)

    def work(flat: LoopExpr) -> Stmt:
        side, group = unflatten(flat, (sides, groups.count))
        begin = groups.start(group)
        gemm = panels.gemm(product, begin)
        readers = product.batch // sides

        def one(p: LoopExpr) -> Stmt:
            return gemm.all_rows(side if readers == 1 else p, begin, rows, groups.size, last)

        return Alloc(panels.buffer, seq(panels.fill_group(side, begin, last), loop(readers, one, name="p")))

    return loop(sides * groups.count, work, LoopKind.PARALLEL, name="work")
