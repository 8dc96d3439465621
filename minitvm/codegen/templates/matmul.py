"""Matrix products: dense (plain and packed weights), matmul, batch_matmul.

How the right-hand side is read depends on how it lies in memory and on how often it is read:

* packed weights are panels ``[column block][k][lanes]`` already;
* along the depth, as the left-hand side: as dot products (``dots.py``), where packing would cost more;
* along the columns: in place, where few tiles of rows read it, and in pieces of the depth where its rows are far apart;
* anything else is copied into panels first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from minitvm.codegen.problem import TEMPLATES, Choice, Template, Tile
from minitvm.codegen.templates.dots import PACKING, Dots, dot_operations, panel_operations
from minitvm.codegen.templates.gemm import Gemm
from minitvm.codegen.templates.panels import packed
from minitvm.codegen.templates.product import Matrix, Product
from minitvm.codegen.templates.tile import best_tile, tile_choices
from minitvm.ir.decision import Declined
from minitvm.ir.loop import Load, Stmt
from minitvm.target import MachineModel

DOTS, IN_PLACE, IN_PIECES, PACKED = "dot products", "in place", "in pieces of the depth", "packed"

_READ_IN_PLACE = 2  # tiles of rows that read the right-hand side where it is, however far apart its rows are
_NO_NEIGHBOUR = 8192  # bytes between rows of which one is not fetched ahead with the other
_NEAR_CACHES = 8  # times the second-level cache: what is read from there or nearly as fast


@TEMPLATES.register("llvm", "nn.contrib_dense_pack")
class DensePack(Template):
    """x: (m, k), weight: (n / c, k, c) -> (m, n)."""

    def refusal(self) -> Declined | None:
        width = self.problem.inputs[1].shape[2]
        if width % self.lanes and self.problem.not_floats is None:
            return Declined(f"the weight's blocks of {width} are not whole vectors of {self.lanes}")
        return self.problem.not_floats

    @cached_property
    def product(self) -> Product:
        (x, weight), out = self.problem.inputs, self.problem.output
        blocks, depth, width = weight.shape
        right = Matrix.stored(1, depth, blocks * width, lambda _, r, j: Load(weight, (j // width, r, j % width)), False)
        product = Product(Matrix.of(x), right, Matrix.of(out), self.accumulator)
        return replace(product, panels=right.at)

    def choices(self) -> Sequence[Choice]:
        product = self.product
        blocks = -(-product.columns // self.lanes)
        return tile_choices("panels", product.rows, blocks, product.depth, self.machine)

    def loops(self, choice: Choice) -> Stmt:
        return Gemm(self.product, choice.tile, self.lanes).nest(self.machine)


@TEMPLATES.register("llvm", "nn.dense", "nn.matmul", "nn.batch_matmul")
class Matmul(Template):
    """Two operands of rank 2 or 3, each of them transposed or not."""

    @cached_property
    def product(self) -> Product:
        return along_lanes(Product.of(self.problem))

    def choices(self) -> Sequence[Choice]:
        return product_choices(self.product, self.machine)

    def loops(self, choice: Choice) -> Stmt:
        return product_loops(self.product, choice, self.machine)


def along_lanes(product: Product) -> Product:
    """The product, or the operands exchanged: neighbours in the result are the columns that lanes are made of."""
    return product.turned if product.columns == 1 or not product.out.along_rows else product


def product_loops(product: Product, choice: Choice, machine: MachineModel) -> Stmt:
    """Of any product with its columns along the lanes."""
    if choice.scheme == DOTS:
        return Dots.of(product, choice.tile, machine).by_tiles()
    if choice.scheme == PACKED:
        return packed(product, choice.tile, machine)
    gemm = Gemm(product, choice.tile, machine.lanes(product.dtype))
    return gemm.in_pieces(machine) if choice.scheme == IN_PIECES else gemm.nest(machine)


def product_choices(product: Product, machine: MachineModel) -> list[Choice]:
    """Every way to read the right-hand side, with every tile."""
    lanes = machine.lanes(product.dtype)
    blocks, found = -(-product.columns // lanes), list[Choice]()
    for scheme, why_not in _schemes(product, machine).items():
        columns, steps = (product.columns, -(-product.depth // lanes)) if scheme == DOTS else (blocks, product.depth)
        extra = _extra(scheme, product, machine)
        for c in tile_choices(scheme, product.rows, columns, product.batch * steps, machine):
            found.append(replace(c, cycles=c.cycles + extra, why_not=why_not))
    return found


def _extra(scheme: str, product: Product, machine: MachineModel) -> float:
    """Cycles beside those of the tiles: adding up across lanes, packing."""
    lanes = machine.lanes(product.dtype)
    if scheme == DOTS:
        return product.batch * product.rows * product.columns * (1 + math.log2(lanes))
    if scheme == PACKED:
        each = 1 / lanes if product.right.along_rows else PACKING
        return each * product.right.batch * product.depth * product.columns
    return 0.0


def _schemes(product: Product, machine: MachineModel) -> dict[str, str]:
    """The ways to read the right-hand side that there are, and what speaks against each: against one, nothing."""
    found = {}
    if product.left.along_rows and product.right.along_columns:
        dots, panels = dot_operations(product, machine), panel_operations(product, machine)
        found[DOTS] = "" if dots <= panels else f"{dots:,.0f} vector operations, {panels:,.0f} with panels"
    if product.right.along_rows:
        leaves = (
            "" if _stays_in_cache(product, machine) else "a group of columns leaves the cache between tiles of rows"
        )
        near = "" if _far_apart(product, machine) else "rows of the right-hand side are near each other, or read often"
        found |= {IN_PIECES: leaves or near, IN_PLACE: leaves}
    found[PACKED] = ""
    first = next(scheme for scheme, why_not in found.items() if not why_not)
    return {scheme: why_not or ("" if scheme == first else f"{first} costs less") for scheme, why_not in found.items()}


def _stays_in_cache(product: Product, machine: MachineModel) -> bool:
    """Whether a group of columns is found again by the next tile of rows, or there is hardly a next one."""
    tile, readers = _readers(product, machine)
    return readers <= _READ_IN_PLACE or product.depth * tile.blocks * machine.vector_bytes <= machine.l2_bytes // 4


def _far_apart(product: Product, machine: MachineModel) -> bool:
    """Whether a right-hand side that the caches do not hold is read once or twice, and a row is no neighbour of the
    next one: what a group of columns leaves of its cache lines is gone when the next group wants it."""
    row = product.columns * np.dtype(product.right.dtype).itemsize
    many = product.depth * row > _NEAR_CACHES * machine.l2_bytes
    return many and row >= _NO_NEIGHBOUR and _readers(product, machine)[1] <= _READ_IN_PLACE


def _readers(product: Product, machine: MachineModel) -> tuple[Tile, int]:
    """The register tile, and how many tiles of rows read a right-hand side."""
    tile = best_tile(product.rows, -(-product.columns // machine.lanes(product.dtype)), machine)
    return tile, product.batch // product.right.batch * -(-product.rows // tile.rows)
