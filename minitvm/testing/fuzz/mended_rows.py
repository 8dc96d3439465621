"""Operators of ONNX's reference evaluator over rows of elements, written anew where its own are wrong or lacking.

Its Mean does not broadcast the first operand; its MeanVarianceNormalization is that of float32 alone, by a difference
of squares; its ReduceMean of no integers is the least one; its Attention takes heads that do not divide; it has no
DequantizeLinear before opset 19.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops._quant_utils import reshape_input
from onnx.reference.ops.op_attention import Attention as _Attention

from minitvm.testing.fuzz.case import attributes, dtype_of

Array = np.ndarray


class Mean(OpRun):
    op_domain = ""

    def _run(self, *operands: Array) -> tuple[Array]:
        wide = np.promote_types(operands[0].dtype, "float32")
        return (np.asarray(sum(a.astype(wide) for a in operands) / len(operands), operands[0].dtype),)


class MeanVarianceNormalization(OpRun):
    op_domain = ""

    def _run(self, x: Array, **_: Any) -> tuple[Array]:
        axes = tuple(attributes(self.onnx_node).get("axes", (0, 2, 3)))
        wide = x.astype(np.promote_types(x.dtype, "float32"))
        centred = wide - wide.mean(axes, keepdims=True)
        deviation = np.sqrt(np.square(centred).mean(axes, keepdims=True))
        return (np.asarray(centred / (deviation + 1e-9), x.dtype),)


class ReduceMean(OpRun):
    """Of integers without the fraction; of no integers 0."""

    op_domain = ""

    def _run(self, x: Array, axes: Array | None = None, **_: Any) -> tuple[Array]:
        given = attributes(self.onnx_node)
        chosen = tuple(given.get("axes", () if axes is None else np.asarray(axes).tolist()))
        if not chosen and given.get("noop_with_empty_axes"):
            return (x,)
        wide = np.float64 if x.dtype.kind in "iu" else np.promote_types(x.dtype, "float32")
        found = x.mean(chosen or None, dtype=wide, keepdims=bool(given.get("keepdims", 1)))
        return (np.asarray(found if x.dtype.kind == "f" else np.nan_to_num(np.trunc(found)), x.dtype),)


class Attention(_Attention):
    op_domain = ""

    def _run(self, q: Array, k: Array, *operands: Array | None, **given: Any) -> tuple[Array, ...]:  # type: ignore[override]
        if q.ndim == 4 and k.shape[1] and q.shape[1] % k.shape[1]:
            raise ValueError("heads of queries that those of keys do not divide")
        found: Any = super()._run(q, k, *operands, **given)  # type: ignore[arg-type]
        return tuple(found)


class DequantizeLinear(OpRun):
    op_domain = ""

    def _run(self, x: Array, scale: Array, zero: Array | None = None, **_: Any) -> tuple[Array]:
        given = {"axis": 1, "block_size": 0, "output_dtype": 0} | attributes(self.onnx_node)
        places = (x.shape, given["axis"], given["block_size"])
        wide = np.promote_types(scale.dtype, "float32")
        distance = x.astype(np.int64) - (0 if zero is None else reshape_input(zero.astype(np.int64), *places))
        found = distance.astype(wide) * reshape_input(scale.astype(wide), *places)
        return (found.astype(dtype_of(given["output_dtype"]) if given["output_dtype"] else scale.dtype),)


ROWS: list[type[Any]] = [DequantizeLinear, Mean, MeanVarianceNormalization, ReduceMean, Attention]
