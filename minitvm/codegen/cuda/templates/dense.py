"""Matrix products as block tiles: ``nn.dense``, ``nn.matmul``, ``nn.batch_matmul``, each operand transposed or not."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from minitvm.codegen.cuda.machine import GpuModel
from minitvm.codegen.cuda.templates.extent import choices
from minitvm.codegen.cuda.templates.launches import launches
from minitvm.codegen.cuda.templates.product import GpuProduct, Operand
from minitvm.codegen.cuda.templates.tile import (
    SLICED,
    TILES,
    WIDEST,
    BlockTile,
    group_tiles,
    power_of_two,
    tensor_tiles,
    with_copies,
)
from minitvm.codegen.problem import TEMPLATES, Choice, Problem, Template, Tile
from minitvm.codegen.templates.product import Matrix
from minitvm.codegen.templates.tile import store_at
from minitvm.ir.dtypes import SHORT
from minitvm.ir.loop import LoopExpr, Stmt
from minitvm.ir.ops.nn_dense import BatchMatmul, Dense, Matmul
from minitvm.passes.manager import PassContext


def tensor_products(problem: Problem, gpu: GpuModel) -> tuple[str, int]:
    """The kind of products that tensor cores may make of the problem's, and how many of each; 0 where they may not."""
    option, narrow = PassContext.current().option, {*problem.narrow}
    if "mma" not in gpu.features or problem.accumulator != "float32":
        return "", 0
    if len(narrow) == 1 and narrow <= {*SHORT}:
        return narrow.pop(), 1
    if option("cuda.allow_tf32") or option("minitvm.mixed_precision"):
        return "tf32", 1
    return "tf32", 3 if option("cuda.split_tf32") else 0


def worth_rounding(exact: Sequence[Choice], rounded: Sequence[Choice], gpu: GpuModel) -> list[Choice]:
    """All, those of rounded factors with what speaks against them where they are not predicted to save enough."""
    kept, fewer = (min((c.cycles for c in ways if not c.why_not), default=math.inf) for ways in (exact, rounded))
    if gpu.pays_to_round(kept, fewer):
        return [*exact, *rounded]
    why_not = f"{fewer:,.0f} cycles predicted, {kept:,.0f} without rounding factors: too few are saved"
    return [*exact, *(replace(choice, why_not=why_not) for choice in rounded)]


_COPIED, _CARRIED = 8, 32
"""Single elements of windows whose places a thread has registers for, as asynchronous copies and by registers."""

_FEW = 4
"""Tiles for each SM up to which slices have something to hide."""


class GpuTemplate(Template):
    """One that is a product of blocks, or several one after the other."""

    @property
    def gpu(self) -> GpuModel:
        assert isinstance(self.machine, GpuModel)
        return self.machine

    @cached_property
    def product(self) -> GpuProduct:
        raise NotImplementedError

    def may_copy(self, dtype: str) -> bool:
        """True if shared memory of a dtype gets elements as they are, by asynchronous copies of 4 bytes or more."""
        as_given = self.problem.as_given and {*self.problem.narrow} == {dtype} and self.product.depth > 0
        enough = dtype == "float32" or min(self.product.left.vector, self.product.right.vector) > 1
        return "cp.async" in self.gpu.features and as_given and enough

    def choices(self) -> Sequence[Choice]:
        kind, products = tensor_products(self.problem, self.gpu)
        if (kind, products) != ("tf32", 1):
            return self._ways(kind, products)
        exact = [*self._ways("", 0), *self._ways(kind, 3)]
        if not PassContext.current().option("cuda.allow_tf32"):
            return exact
        return worth_rounding(exact, self._ways(kind, 1), self.gpu)

    def _ways(self, kind: str, products: int) -> list[Choice]:
        """To multiply by a kind of products."""
        half = products > 0 and kind in SHORT
        tiles = tensor_tiles(kind, products) if products else TILES
        one_by_one = self.product.right.one_by_one
        if self.may_copy(kind if half else "float32") and (products or not one_by_one):
            tiles = with_copies(tiles)
            if not products and not self.product.right.along_depth:  # whose elements come one by one
                tiles += [tile for tile in SLICED if self._is_few(tile) and not self._places(tile)]
            if half and self._in_groups():
                tiles = [*group_tiles(kind), *tiles]
        extent = replace(self.product.extent, size=2) if half else self.product.extent
        scheme = f"{'three ' * (products == 3)}{kind.replace('tf', 'TF')}, " if products else ""
        found = choices(extent, self.gpu, tiles, scheme)
        return [replace(c, why_not=c.why_not or self._places(c.tile)) for c in found] if products else found

    def _is_few(self, tile: BlockTile) -> bool:
        """True if a product has few such tiles; many large ones get more out of what they load."""
        return self.product.extent.blocks(tile) <= _FEW * self.gpu.sms

    def _in_groups(self) -> bool:
        """True if warpgroups can multiply: whole vectors go to shared memory, those of the left-hand side along the
        depth."""
        left, right = self.product.left, self.product.right
        return "wgmma" in self.gpu.features and left.along_depth and min(left.vector, right.vector) == WIDEST

    def _places(self, tile: Tile) -> str:
        """What speaks against a tile whose threads copy many single elements of windows: each has its own address."""
        assert isinstance(tile, BlockTile)
        for operand, lines in ((self.product.left, tile.rows), (self.product.right, tile.columns)):
            single = lines * tile.depth // tile.threads if operand.windows and operand.vector == 1 else 0
            if single > (_COPIED if tile.copied else _CARRIED):
                return "its threads have the places of many single elements to work out"
        return ""

    def cycles(self, choice: Choice, registers: int) -> float:
        """The cycles of a choice, predicted for threads that have so many registers."""
        assert isinstance(choice.tile, BlockTile)
        return self.product.extent.cycles(choice.tile, self.gpu, registers)

    def loops(self, choice: Choice) -> Stmt:
        assert isinstance(choice.tile, BlockTile)
        return launches(choice.tile, self.gpu, self.product)


@TEMPLATES.register("cuda", Dense, Matmul, BatchMatmul)
class GpuMatmul(GpuTemplate):
    """Two operands of rank 2 or 3."""

    @cached_property
    def product(self) -> GpuProduct:
        (a, b), attributes, out = self.problem.inputs, self.op.attributes(), Matrix.of(self.problem.output)
        transpose_b = bool(attributes.get("transpose_b", isinstance(self.op, Dense)))
        left, right = Operand.of(a, bool(attributes.get("transpose_a", False))), Operand.of(b, not transpose_b)

        def store(p: LoopExpr, i: LoopExpr, j: LoopExpr, value: LoopExpr) -> Stmt:
            return store_at(out.at(p, i, j), value)

        depth = b.shape[-1 if transpose_b else -2]
        return GpuProduct(out.batch, depth, left, right, self.accumulator, store, power_of_two(out.columns))
