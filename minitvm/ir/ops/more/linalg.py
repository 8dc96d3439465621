"""Operators on matrices as such: the determinant."""

import math

import numpy as np

from minitvm.ir.dims import differ
from minitvm.ir.loop import Alloc, Buffer, Const, If, LoopExpr, LoopKind, Stmt, const, intrin, loop, nest, seq, store
from minitvm.ir.op import Fusion, Op
from minitvm.ir.ops._shape import require_kind, unflatten_index
from minitvm.ir.ops.sorting import counter, with_counters
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
        best = counter("best")

        def step(k: LoopExpr) -> Stmt:
            def look(i: LoopExpr) -> Stmt:
                row = i + k + 1
                larger = intrin("abs", work[best[0], k]) < intrin("abs", work[row, k])
                return If(larger, store(best, [0], row))

            def swap(j: LoopExpr) -> Stmt:
                kept, moved = store(hold, [0], work[k, j]), store(work, [k, j], work[best[0], j])
                return seq(kept, moved, store(work, [best[0], j], hold[0]))

            def eliminate(i: LoopExpr) -> Stmt:
                row, factor = i + k + 1, hold[0]
                ratio = store(hold, [0], work[row, k] / work[k, k])
                each = loop(extent, lambda j: store(work, [row, j], work[row, j] - factor * work[k, j]), name="j")
                return seq(ratio, each)

            below = extent - 1 - k
            exchanged = seq(loop(extent, swap, name="j"), store(product, [0], intrin("neg", product[0])))
            pivot = seq(store(best, [0], k), loop(below, look, name="i"), If(best[0].not_equal(k), exchanged))
            used = store(product, [0], product[0] * work[k, k])
            rest = If(work[k, k].not_equal(const(0, wide)), loop(below, eliminate, name="i"))
            return seq(pivot, used, rest)

        def matrix(number: LoopExpr) -> Stmt:
            at = tuple(unflatten_index(number, result.shape))
            copy = nest((extent, extent), lambda i, j: store(work, [i, j], data[at + (i, j)].astype(wide)))
            start = store(product, [0], const(1, wide))
            put = store(result, at, product[0].astype(data.dtype))
            body = seq(copy, start, loop(Const(extent), step, name="k"), put)
            return Alloc(work, with_counters([product, hold, best], body))

        return loop(math.prod(result.shape), matrix, LoopKind.PARALLEL, name="matrix")
