"""Between floats and integers of 2 to 16 bits on a linear scale."""

from collections.abc import Sequence
from typing import Annotated

import numpy as np

from minitvm.ir.decision import Declined
from minitvm.ir.dims import differ
from minitvm.ir.dtypes import limits
from minitvm.ir.loop import Buffer, LoopExpr, Stage, intrin, maximum, minimum
from minitvm.ir.op import Fusion, Op, Precision, compute
from minitvm.ir.ops._shape import beside, normalize_axis, require_kind, require_same_dtype
from minitvm.ir.relayout import Move, Placement, Site, along_axis, data_moved
from minitvm.ir.types import DType, TensorType, Type, accumulator

_RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767), "uint16": (0, 65535)}
_RESULTS = {**_RANGES, "int4": (-8, 7), "uint4": (0, 15), "int2": (-2, 1), "uint2": (0, 3)}


class _Quantization(Op, fusion=Fusion.BROADCAST, takes_stored=True, precision=Precision.WIDE):
    """``scale`` and ``zero_point`` are scalars, or vectors along ``axis``: numbers for each channel."""

    axis: int = -1

    def _check_parameters(self, data: TensorType, scale: TensorType, zero_point: TensorType) -> None:
        require_kind(self, scale, "f", "scale")
        for name, type_ in (("scale", scale), ("zero_point", zero_point)):
            if type_.rank > 1:
                raise self.reject(f"{name} must be a scalar or a vector along axis {self.axis}, not {type_}")
            size = data.shape[normalize_axis(self, self.axis, data.rank)] if type_.rank else 1
            if type_.rank and differ(type_.shape[0], 1) and differ(type_.shape[0], size):
                raise self.reject(f"{name} has {type_.shape[0]} numbers but axis {self.axis} of {data} has {size}")

    def _along(self, vector: np.ndarray, rank: int) -> np.ndarray:
        return beside(vector, self.axis, rank) if vector.ndim else vector

    def _at(self, vector: Buffer, index: Sequence[LoopExpr]) -> LoopExpr:
        """The parameter of one element."""
        if not vector.shape:
            return vector[()]
        return vector[0] if vector.shape[0] == 1 else vector[index[self.axis % len(index)]]

    def _solve(self, types: list[Type | None], zero_dtype: str) -> list[Type | None]:
        """Parameters without a type are scalars."""
        guesses = (None, TensorType((), "float32"), TensorType((), zero_dtype))
        return [guess if t is None else t for t, guess in zip(types, guesses, strict=True)]

    def relayout(self, site: Site) -> Placement | Declined:
        """Scale and zero point for all channels, or for each along an axis that is not split."""
        if isinstance(site.carries[0], Move) and all(site.type(i).rank == 0 for i in range(1, len(site.carries))):
            return data_moved(site, self)
        return along_axis(site, self.axis, "its scales lie along")


class Quantize(_Quantization, name="qnn.quantize"):
    """round(data / scale) + zero_point, ties to even, kept within ``out_dtype``; in float32 at least.

    data: (...) floats, output_scale: () or (data.shape[axis],), output_zero_point: the same, of ``out_dtype`` or int32
    -> (...) of ``out_dtype``.
    """

    out_dtype: Annotated[str, tuple(_RESULTS)] = "int8"

    def solve(self, types: list[Type | None]) -> list[Type | None]:
        return self._solve(types, self.out_dtype)

    def infer(self, data: TensorType, output_scale: TensorType, output_zero_point: TensorType) -> TensorType:
        require_kind(self, data, "f", "the input")
        require_same_dtype(self, data, output_scale)
        self._check_parameters(data, output_scale, output_zero_point)
        require_kind(self, output_zero_point, "iu", "zero_point")
        return data.with_dtype(self.out_dtype)

    def reference(self, data: np.ndarray, output_scale: np.ndarray, output_zero_point: np.ndarray) -> np.ndarray:
        wide = np.promote_types(data.dtype, "float32")
        scale, zero = self._along(output_scale, data.ndim), self._along(output_zero_point, data.ndim)
        steps = np.rint(data.astype(wide) / scale.astype(wide)) + zero.astype(wide)
        return np.asarray(np.clip(steps, *limits(self.out_dtype)).astype(self.out_dtype))

    def compute(self, data: Buffer, output_scale: Buffer, output_zero_point: Buffer) -> Stage:
        (low, high), wide = _RESULTS[self.out_dtype], accumulator(data.dtype)

        def element(*i: LoopExpr) -> LoopExpr:
            steps = intrin("round", data[i].astype(wide) / self._at(output_scale, i).astype(wide))
            shifted = steps + self._at(output_zero_point, i).astype(wide)
            return minimum(maximum(shifted, low), high).astype(self.out_dtype)

        return compute(data.shape, element)


class Dequantize(_Quantization, name="qnn.dequantize"):
    """(data - zero_point) * scale, in float32 at least.

    data: (...) of 8, 16 or 32 bits, input_scale: () or (data.shape[axis],), input_zero_point: the same, an integer
    -> (...) of ``out_dtype``, a float dtype; the scale has it too.
    """

    out_dtype: DType = "float32"

    def solve(self, types: list[Type | None]) -> list[Type | None]:
        data = types[0]
        return self._solve(types, data.dtype if isinstance(data, TensorType) else "int32")

    def infer(self, data: TensorType, input_scale: TensorType, input_zero_point: TensorType) -> TensorType:
        if data.dtype not in (*_RANGES, "int32"):
            raise self.reject(f"the input is {data.dtype}; quantized tensors are {', '.join(_RANGES)} or int32")
        self._check_parameters(data, input_scale, input_zero_point)
        require_kind(self, input_zero_point, "iu", "zero_point")
        if self.out_dtype != input_scale.dtype:
            raise self.reject(f"out_dtype={self.out_dtype!r} but the scale is {input_scale}", hint="cast one of them")
        return data.with_dtype(self.out_dtype)

    def reference(self, data: np.ndarray, input_scale: np.ndarray, input_zero_point: np.ndarray) -> np.ndarray:
        zero = self._along(input_zero_point, data.ndim).astype("int64")
        wide = np.promote_types(self.out_dtype, "float32")
        steps = (data.astype("int64") - zero).astype(wide)
        return np.asarray(steps * self._along(input_scale, data.ndim).astype(wide)).astype(self.out_dtype)

    def compute(self, data: Buffer, input_scale: Buffer, input_zero_point: Buffer) -> Stage:
        wide = accumulator(self.out_dtype)
        few = all(np.dtype(b.dtype).itemsize < 4 for b in (data, input_zero_point))
        whole = "int32" if few else "int64"  # holds every difference

        def element(*i: LoopExpr) -> LoopExpr:
            steps = data[i].astype(whole) - self._at(input_zero_point, i).astype(whole)
            return (steps.astype(wide) * self._at(input_scale, i).astype(wide)).astype(self.out_dtype)

        return compute(data.shape, element)
