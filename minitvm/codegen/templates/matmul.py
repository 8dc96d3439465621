"""Matrix products: dense (plain and packed weights), matmul, batch_matmul.

How the right-hand side is read depends on how it lies in memory and on how often it is read:

* packed weights are panels ``[column block][k][lanes]`` already;
* along the depth, as the left-hand side: as dot products (``dots.py``), where packing would cost more;
* along the columns: in place, where few tiles of rows read it;
* anything else is copied into panels first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from minitvm.codegen.nests import unflatten
from minitvm.codegen.problem import TEMPLATES, Config, Declined, Problem
from minitvm.codegen.templates.dots import dots, fits_dots
from minitvm.codegen.templates.gemm import ITEMS_PER_THREAD, Gemm
from minitvm.codegen.templates.product import Product
from minitvm.codegen.templates.tile import choose_tile
from minitvm.codegen.templates.transpose import transposed
from minitvm.ir.loop import (
    Alloc,
    Barrier,
    Buffer,
    Const,
    Kernel,
    Load,
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
    return _Packed(product, lanes, machine).nest()


def _stays_in_cache(product: Product, machine: MachineModel) -> bool:
    """Whether a group of columns is found again by the next tile of rows, or there is hardly a next one."""
    tile = choose_tile(product.rows, -(-product.columns // machine.lanes(product.dtype)), machine)
    readers = product.batch // product.right.batch * -(-product.rows // tile.columns)
    return readers <= _READ_IN_PLACE or product.depth * tile.blocks * machine.vector_bytes <= machine.l2_bytes // 4


def _gemm(product: Product, lanes: int, panel: Callable[[LoopExpr, LoopExpr, LoopExpr, LoopExpr], LoopExpr]) -> Gemm:
    sizes = (product.batch, product.rows, product.columns, product.depth)
    return Gemm(*sizes, lanes, product.dtype, product.left.at, panel, product.store)


def _in_place(product: Product, lanes: int) -> Gemm:
    """The right-hand side where it is, zeros beyond its last column."""

    def panel(p: LoopExpr, block: LoopExpr, r: LoopExpr, lane: LoopExpr) -> LoopExpr:
        column = block * lanes + lane
        value = product.right.at(p, r, column).astype(product.dtype)
        return select(column < product.columns, value, const(0, product.dtype))

    return _gemm(product, lanes, panel)


@dataclass(frozen=True)
class _Packed:
    """The right-hand sides are copied into panels first."""

    product: Product
    lanes: int
    machine: MachineModel

    def nest(self) -> Stmt:
        batch, sides = self.product.batch, self.product.right.batch
        if sides > 1 and (self.machine.threads == 1 or batch >= ITEMS_PER_THREAD * self.machine.threads):
            return loop(batch, self._own, LoopKind.PARALLEL, name="batch")
        packed = self._panels(sides, "global")
        gemm = _gemm(self.product, self.lanes, lambda p, *at: Load(packed, (p if sides > 1 else Const(0), *at)))
        whole, rest = divmod(self.product.columns, self.lanes)

        def panel(flat: LoopExpr) -> Stmt:
            p, block = unflatten(flat, (sides, whole))
            return self._panel(packed, p, p, block, self.lanes)

        def last(p: LoopExpr) -> Stmt:
            return self._panel(packed, p, p, Const(whole), rest)

        panels = loop(sides * whole, panel, LoopKind.PARALLEL, name="panel") if whole else None
        ends = loop(sides, last, LoopKind.PARALLEL, name="panel") if rest else None
        return Alloc(packed, seq(panels, ends, Barrier(), gemm.nest(self.machine)))

    def _own(self, p: LoopExpr) -> Stmt:
        """One of the batch by one thread, its panels in memory that only this thread uses."""
        packed = self._panels(1, "shared")
        gemm = _gemm(self.product, self.lanes, lambda _, *at: Load(packed, (Const(0), *at)))
        whole, rest = divmod(self.product.columns, self.lanes)

        def panel(block: LoopExpr, valid: int) -> Stmt:
            return self._panel(packed, p, Const(0), block, valid)

        panels = loop(whole, lambda block: panel(block, self.lanes), name="panel") if whole else None
        last = panel(Const(whole), rest) if rest else None
        return Alloc(packed, seq(panels, last, gemm.one(p, self.machine)))

    def _panels(self, sides: int, scope: str) -> Buffer:
        blocks = -(-self.product.columns // self.lanes)
        return Buffer("packed", (sides, blocks, self.product.depth, self.lanes), self.product.dtype, scope)

    def _panel(self, packed: Buffer, p: LoopExpr, side: LoopExpr, block: LoopExpr, valid: int) -> Stmt:
        """One panel of right-hand side ``p``; lanes from ``valid`` on are zero."""
        if not self.product.right.along_rows:
            return self._turned_panel(packed, p, side, block, valid)

        def copy(r: LoopExpr, lane: LoopExpr) -> Stmt:
            value = self.product.right.at(p, r, block * self.lanes + lane).astype(packed.dtype)
            return Store(packed, (side, block, r, lane), value)

        def zero(r: LoopExpr, lane: LoopExpr) -> Stmt:
            return Store(packed, (side, block, r, lane + valid), const(0, packed.dtype))

        def row(r: LoopExpr) -> Stmt:
            copied = loop(valid, lambda lane: copy(r, lane), LoopKind.VECTORIZED, name="lane")
            beyond = self.lanes - valid
            return seq(copied, loop(beyond, lambda x: zero(r, x), LoopKind.VECTORIZED, name="x") if beyond else None)

        return loop(self.product.depth, row, name="k")

    def _turned_panel(self, packed: Buffer, p: LoopExpr, side: LoopExpr, block: LoopExpr, valid: int) -> Stmt:
        """The same where columns lie along memory: square by square."""
        whole, rest = divmod(self.product.depth, self.lanes)

        def square(start: LoopExpr, depth: int) -> Stmt:
            def load(column: LoopExpr, r: LoopExpr) -> LoopExpr:
                value = self.product.right.at(p, start + r, block * self.lanes + column)
                return value if depth == self.lanes else select(r < depth, value, const(0, value.dtype))

            def store(r: LoopExpr, lane: LoopExpr, value: LoopExpr) -> Stmt:
                return Store(packed, (side, block, start + r, lane), value)

            return transposed(self.lanes, packed.dtype, valid, depth, load, store)

        squares = loop(whole, lambda q: square(q * self.lanes, self.lanes), name="k") if whole else None
        return seq(squares, square(Const(whole * self.lanes), rest) if rest else None)
