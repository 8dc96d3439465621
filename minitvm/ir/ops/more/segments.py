"""Sums of stretches of rows, as long as values say: bags of embeddings."""

from typing import Literal

import numpy as np

from minitvm.ir.dims import differ
from minitvm.ir.loop import Buffer, LoopKind, Stmt, const, maximum, minimum
from minitvm.ir.loop.builder import LoopBuilder
from minitvm.ir.op import Fusion, Op
from minitvm.ir.ops._shape import require_kind
from minitvm.ir.types import TensorType


class SegmentReduce(Op, name="segment_reduce", fusion=Fusion.OPAQUE):
    """The sum of each segment's rows, one after the other, or their mean, as ``mode`` says.

    data: (n, ...) floats; starts, ends: (b,) int64, of each segment its first row and the one behind its last, cut to
    0 and n -> (b, ...).  Of no rows the sum is 0 and the mean NaN.
    """

    mode: Literal["sum", "mean"] = "sum"

    def infer(self, data: TensorType, starts: TensorType, ends: TensorType) -> TensorType:
        require_kind(self, data, "f", "data")
        for name, given in (("starts", starts), ("ends", ends)):
            if given.rank != 1 or given.dtype != "int64":
                raise self.reject(f"{name} are {given}; expected one int64 for each segment")
        if not data.rank or differ(starts.shape[0], ends.shape[0]):
            raise self.reject(f"expected rows, and as many starts as ends: {data}, {starts}, {ends}")
        return data.with_shape((starts.shape[0], *data.shape[1:]))

    def reference(self, data: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        found = np.zeros((len(starts), *data.shape[1:]), data.dtype)
        for b, (start, end) in enumerate(np.clip(np.stack([starts, ends], 1), 0, len(data)).tolist()):
            for row in data[start:end]:
                found[b] += row
            if self.mode == "mean":
                found[b] /= np.asarray(max(end - start, 0), data.dtype)
        return found

    def statements(self, data: Buffer, starts: Buffer, ends: Buffer, result: Buffer) -> Stmt:
        rows, inner = data.shape[0], data.shape[1:]
        total, code = Buffer("total", (1,), data.dtype, "local"), LoopBuilder()
        with code.loop(starts.shape[0], "b", LoopKind.PARALLEL) as b, code.memory(total), code.nest(inner) as i:
            start, end = (minimum(maximum(at[b], 0), rows) for at in (starts, ends))
            count = maximum(end - start, 0)
            code.store(total, [0], const(0, data.dtype))
            if rows != 0:
                with code.loop(count, "r") as r:
                    place = minimum(start + r, rows - 1), *i
                    code.store(total, [0], total[0] + data[place])
            found = total[0] / count.astype(data.dtype) if self.mode == "mean" else total[0]
            code.store(result, [b, *i], found)
        return code.stmt
