"""Operators on matrices as such: the determinant."""

import math

import numpy as np

from minitvm.ir.dims import differ
from minitvm.ir.loop import Buffer, Const, LoopExpr, LoopKind, Stmt, const, intrin
from minitvm.ir.loop.builder import LoopBuilder
from minitvm.ir.op import Fusion, Op
from minitvm.ir.ops._shape import require_kind, unflatten_index
from minitvm.ir.ops.more.sorting import counter
from minitvm.ir.types import TensorType, accumulator


class Det(Op, name="linalg.det", fusion=Fusion.OPAQUE):
    """The determinant of each matrix, by elimination with the largest pivots.  data: (..., n, n) floats -> (...)."""

    def infer(self, data: TensorType) -> TensorType:
        require_kind(self, data, "f", "data")
        if data.rank < 2 or differ(data.shape[-1], data.shape[-2]):
            raise self.reject(f"takes square matrices, not {data}")
        return data.with_shape(data.shape[:-2])

    def reference(self, data: np.ndarray) -> np.ndarray:
        return np.asarray(np.linalg.det(data.astype("float64"))).astype(data.dtype)

    def statements(self, data: Buffer, result: Buffer) -> Stmt:
        extent, wide = data.shape[-1], accumulator(data.dtype)
        work = Buffer("work", (extent, extent), wide, "shared")
        product, hold = (Buffer(name, (1,), wide, "local") for name in ("product", "hold"))
        best, code = counter("best"), LoopBuilder()
        registers = work, product, hold, best
        with code.loop(math.prod(result.shape), "matrix", LoopKind.PARALLEL) as number, code.memory(*registers):
            at = tuple(unflatten_index(number, result.shape))
            with code.nest((extent, extent)) as (i, j):
                code.store(work, [i, j], data[at + (i, j)].astype(wide))
            code.store(product, [0], const(1, wide))
            with code.loop(Const(extent), "k") as k:
                self._step(code, k, registers)
            code.store(result, at, product[0].astype(data.dtype))
        return code.stmt

    def _step(self, code: LoopBuilder, k: LoopExpr, registers: tuple[Buffer, Buffer, Buffer, Buffer]) -> None:
        """Of elimination: the largest element below comes up, and zeros are made below it."""
        (work, product, hold, best), extent = registers, registers[0].shape[0]
        below = extent - 1 - k
        code.store(best, [0], k)
        with code.loop(below) as i:
            row = i + k + 1
            with code.when(intrin("abs", work[best[0], k]) < intrin("abs", work[row, k])):
                code.store(best, [0], row)
        with code.when(best[0].not_equal(k)):
            with code.loop(extent, "j") as j:
                code.store(hold, [0], work[k, j])
                code.store(work, [k, j], work[best[0], j])
                code.store(work, [best[0], j], hold[0])
            code.store(product, [0], intrin("neg", product[0]))
        code.store(product, [0], product[0] * work[k, k])
        with code.when(work[k, k].not_equal(const(0, work.dtype))), code.loop(below) as i:
            row = i + k + 1
            code.store(hold, [0], work[row, k] / work[k, k])
            with code.loop(extent, "j") as j:
                code.store(work, [row, j], work[row, j] - hold[0] * work[k, j])
