"""What a graph that is to be quantized has in it: floats rounded to a few steps, and marks of what becomes integers."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal

import numpy as np

from minitvm.ir.loop import Buffer, LoopExpr, Stage, intrin, maximum, minimum
from minitvm.ir.op import Fusion, Op, Precision, compute
from minitvm.ir.ops._shape import require_kind
from minitvm.ir.types import DType, TensorType, Type


class QAnnotateKind(IntEnum):
    """What a value is to its user, which says in how many bits it is held."""

    IDENTITY, INPUT, WEIGHT, ACTIVATION = range(4)


class SimulatedQuantize(Op, name="annotation.simulated_quantize", fusion=Fusion.BROADCAST, precision=Precision.WIDE):
    """``round(clip(data / dom_scale, clip_min, clip_max)) * dom_scale``, ties to even; ``data`` itself for a ``kind``
    of 0.  The kinds are 1, an input, 2, a weight, and 3, a sum.  ``sign`` says whether the integers have one, which the
    bounds decide; ``rounding`` is to the nearest.

    data: (...) floats, dom_scale, clip_min, clip_max: () of the same dtype -> (...).
    """

    kind: int = QAnnotateKind.INPUT
    sign: bool = True
    rounding: Literal["round"] = "round"

    def solve(self, types: list[Type | None]) -> list[Type | None]:
        """Bounds and scale without a type are scalars."""
        dtype = types[0].dtype if isinstance(types[0], TensorType) else "float32"
        return [types[0], *(TensorType((), dtype) if t is None else t for t in types[1:])]

    def infer(self, data: TensorType, dom_scale: TensorType, clip_min: TensorType, clip_max: TensorType) -> TensorType:
        require_kind(self, data, "f", "the input")
        for name, type_ in (("dom_scale", dom_scale), ("clip_min", clip_min), ("clip_max", clip_max)):
            if type_ != TensorType((), data.dtype):
                raise self.reject(f"{name} is {type_}, not one number of {data.dtype}")
        return data

    def reference(
        self, data: np.ndarray, dom_scale: np.ndarray, clip_min: np.ndarray, clip_max: np.ndarray
    ) -> np.ndarray:
        if self.kind == QAnnotateKind.IDENTITY:
            return data
        return np.asarray(np.rint(np.clip(data / dom_scale, clip_min, clip_max)) * dom_scale, data.dtype)

    def compute(self, data: Buffer, dom_scale: Buffer, clip_min: Buffer, clip_max: Buffer) -> Stage:
        def element(*i: LoopExpr) -> LoopExpr:
            if self.kind == QAnnotateKind.IDENTITY:
                return data[i]
            steps = minimum(maximum(data[i] / dom_scale[()], clip_min[()]), clip_max[()])
            return intrin("round", steps) * dom_scale[()]

        return compute(data.shape, element)


class CastHint(Op, name="annotation.cast_hint", fusion=Fusion.ELEMWISE):
    """``data`` itself, which is worth having in ``dtype`` where it lies in memory.  data: (...) -> the same."""

    dtype: DType = "int8"

    def infer(self, data: TensorType) -> TensorType:
        return data

    def reference(self, data: np.ndarray) -> np.ndarray:
        return data

    def compute(self, data: Buffer) -> Stage:
        return compute(data.shape, lambda *i: data[i])
