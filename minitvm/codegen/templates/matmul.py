"""Matrix products: dense (plain and packed weights), matmul, batch_matmul.

How the right-hand side is read depends on how it lies in memory and on how often it is read:

* packed weights are panels ``[column block][k][lanes]`` already;
* along the depth, as the left-hand side: as dot products (``dots.py``), where packing would cost more;
* along the columns: in place, where few tiles of rows read it;
* anything else is copied into panels first.
"""

from __future__ import annotations

from minitvm.codegen.problem import TEMPLATES, Config, Declined, Problem
from minitvm.codegen.templates.dots import dots, fits_dots
from minitvm.codegen.templates.gemm import ITEMS_PER_THREAD, Gemm
from minitvm.codegen.templates.panels import Panels, gemm_of
from minitvm.codegen.templates.product import Product
from minitvm.codegen.templates.tile import choose_tile
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
    product = Product.of(problem)
    if product.columns == 1:
        product = product.turned  # a matrix by a vector: its rows are the columns that lanes are made of
    return Kernel(problem.op.name, (*problem.inputs, problem.output), _loops(product, machine))


def _loops(product: Product, machine: MachineModel) -> Stmt:
    lanes = machine.lanes(product.dtype)
    if fits_dots(product, machine):
        return dots(product, machine)
    if product.right.along_rows and _stays_in_cache(product, machine):
        return _in_place(product, lanes).nest(machine)
    return _packed(product, lanes, machine)


def _stays_in_cache(product: Product, machine: MachineModel) -> bool:
    """Whether a group of columns is found again by the next tile of rows, or there is hardly a next one."""
    tile = choose_tile(product.rows, -(-product.columns // machine.lanes(product.dtype)), machine)
    readers = product.batch // product.right.batch * -(-product.rows // tile.columns)
    return readers <= _READ_IN_PLACE or product.depth * tile.blocks * machine.vector_bytes <= machine.l2_bytes // 4


def _in_place(product: Product, lanes: int) -> Gemm:
    """The right-hand side where it is, zeros beyond its last column."""

    def panel(p: LoopExpr, block: LoopExpr, r: LoopExpr, lane: LoopExpr) -> LoopExpr:
        column = block * lanes + lane
        value = product.right.at(p, r, column).astype(product.dtype)
        return select(column < product.columns, value, const(0, product.dtype))

    return gemm_of(product, lanes, panel)


def _packed(product: Product, lanes: int, machine: MachineModel) -> Stmt:
    """The right-hand sides in panels first: each by the thread that needs it, where there are enough of them."""
    batch, sides = product.batch, product.right.batch
    if sides > 1 and (machine.threads == 1 or batch >= ITEMS_PER_THREAD * machine.threads):
        own = Panels.of(product.right, lanes, product.dtype, 1, "shared")

        def one(p: LoopExpr) -> Stmt:
            return Alloc(own.buffer, seq(own.fill_one(p), own.gemm(product).one(p, machine)))

        return loop(batch, one, LoopKind.PARALLEL, name="batch")
    panels = Panels.of(product.right, lanes, product.dtype, sides)
    return Alloc(panels.buffer, seq(panels.fill(), Barrier(), panels.gemm(product).nest(machine)))
