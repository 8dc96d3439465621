"""Matrix products as block tiles: ``nn.dense``, ``nn.matmul``, ``nn.batch_matmul``, each operand transposed or not."""

from collections.abc import Sequence
from functools import cached_property

from minitvm.codegen.cuda.machine import GpuModel
from minitvm.codegen.cuda.templates.product import Factor, GpuProduct
from minitvm.codegen.cuda.templates.tile import BlockTile, choices, power_of_two
from minitvm.codegen.problem import TEMPLATES, Choice, Template
from minitvm.codegen.templates.product import Matrix
from minitvm.codegen.templates.tile import store_at
from minitvm.ir.loop import LoopExpr, Stmt


class GpuTemplate(Template):
    """One that is a product of blocks, or several one after the other."""

    @property
    def gpu(self) -> GpuModel:
        assert isinstance(self.machine, GpuModel)
        return self.machine

    @cached_property
    def product(self) -> GpuProduct:
        raise NotImplementedError

    def choices(self) -> Sequence[Choice]:
        return choices(self.product.extent, self.gpu)

    def loops(self, choice: Choice) -> Stmt:
        assert isinstance(choice.tile, BlockTile)
        return self.product.nests(choice.tile)


@TEMPLATES.register("cuda", "nn.dense", "nn.matmul", "nn.batch_matmul")
class GpuMatmul(GpuTemplate):
    """Two operands of rank 2 or 3."""

    @cached_property
    def product(self) -> GpuProduct:
        (a, b), attributes, out = self.problem.inputs, self.problem.op.attributes(), Matrix.of(self.problem.output)
        transpose_b = bool(attributes.get("transpose_b", self.problem.op.name == "nn.dense"))
        left, right = Factor.of(a, bool(attributes.get("transpose_a", False))), Factor.of(b, not transpose_b)

        def store(p: LoopExpr, i: LoopExpr, j: LoopExpr, value: LoopExpr) -> Stmt:
            return store_at(out.at(p, i, j), value)

        depth = b.shape[-1 if transpose_b else -2]
        return GpuProduct(out.batch, depth, left, right, self.accumulator, store, power_of_two(out.columns))
