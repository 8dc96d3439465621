"""Matrix products as block tiles: ``nn.dense``, ``nn.matmul``, ``nn.batch_matmul``, each operand transposed or not."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from minitvm.codegen.cuda.machine import GpuModel
from minitvm.codegen.cuda.templates.blocks import launches
from minitvm.codegen.cuda.templates.product import Factor, GpuProduct
from minitvm.codegen.cuda.templates.tile import MMA_TILES, TILES, BlockTile, choices, power_of_two, with_copies
from minitvm.codegen.problem import TEMPLATES, Choice, Problem, Template
from minitvm.codegen.templates.product import Matrix
from minitvm.codegen.templates.tile import store_at
from minitvm.ir.loop import LoopExpr, Stmt
from minitvm.ir.ops.nn_dense import BatchMatmul, Dense, Matmul
from minitvm.passes.manager import PassContext


def tensor_products(problem: Problem, gpu: GpuModel) -> int:
    """Of how many TF32 products tensor cores make one of the problem's; 0 where they may not.

    float16 is TF32 already.
    """
    option = PassContext.current().option
    if "mma" not in gpu.features or problem.accumulator != "float32":
        return 0
    if option("cuda.allow_tf32") or all(b.dtype == "float16" for b in problem.inputs):
        return 1
    return 3 if option("cuda.split_tf32") else 0


class GpuTemplate(Template):
    """One that is a product of blocks, or several one after the other."""

    @property
    def gpu(self) -> GpuModel:
        assert isinstance(self.machine, GpuModel)
        return self.machine

    @cached_property
    def product(self) -> GpuProduct:
        raise NotImplementedError

    @property
    def may_copy(self) -> bool:
        """Whether shared memory gets elements as they are, by asynchronous copies."""
        words = {b.dtype for b in self.problem.inputs} == {"float32"} and self.product.depth > 0
        return "cp.async" in self.gpu.features and self.problem.as_given and words

    def choices(self) -> Sequence[Choice]:
        products = tensor_products(self.problem, self.gpu)
        tiles = [replace(tile, products=products) for tile in MMA_TILES] if products else TILES
        factors = (self.product.left, self.product.right)
        if self.may_copy and (products or not any(factor.one_by_one for factor in factors)):
            tiles = with_copies(tiles)
        if not products:
            return choices(self.product.extent, self.gpu, tiles)
        return choices(self.product.extent, self.gpu, tiles, "TF32, " if products == 1 else "three TF32, ")

    def loops(self, choice: Choice) -> Stmt:
        assert isinstance(choice.tile, BlockTile)
        return launches(self.product, choice.tile)


@TEMPLATES.register("cuda", Dense, Matmul, BatchMatmul)
class GpuMatmul(GpuTemplate):
    """Two operands of rank 2 or 3."""

    @cached_property
    def product(self) -> GpuProduct:
        (a, b), attributes, out = self.problem.inputs, self.problem.op.attributes(), Matrix.of(self.problem.output)
        transpose_b = bool(attributes.get("transpose_b", isinstance(self.problem.op, Dense)))
        left, right = Factor.of(a, bool(attributes.get("transpose_a", False))), Factor.of(b, not transpose_b)

        def store(p: LoopExpr, i: LoopExpr, j: LoopExpr, value: LoopExpr) -> Stmt:
            return store_at(out.at(p, i, j), value)

        depth = b.shape[-1 if transpose_b else -2]
        return GpuProduct(out.batch, depth, left, right, self.accumulator, store, power_of_two(out.columns))
