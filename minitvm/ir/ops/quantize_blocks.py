"""Weights in blocks, each with a scale of its own, several numbers in a byte."""

from collections.abc import Sequence

import numpy as np

from minitvm.ir.dims import Dim, differ
from minitvm.ir.loop import Buffer, LoopExpr, Stage, binary, const, intrin
from minitvm.ir.op import Fusion, Op, compute
from minitvm.ir.ops._shape import beside, normalize_axis, require_kind
from minitvm.ir.types import TensorType, accumulator


class DequantizeBlocks(Op, name="qnn.dequantize_blocks", fusion=Fusion.INJECTIVE):
    """(data - zero_point) * scale, in float32 at least, with a scale for each ``block`` elements along ``axis``.

    data: (..., b, ...) integers, or bytes of ``8 // bits`` numbers each along ``axis``, lowest bits first; input_scale:
    (..., ceil(n / block), ...); input_zero_point: the same or (), integers or floats -> (..., n, ...) of the scale's
    dtype.  n is ``extent``, or all that b holds.
    """

    axis: int = -1
    block: int = 32
    bits: int = 0
    extent: int = 0

    @property
    def per_byte(self) -> int:
        return 8 // self.bits if self.bits else 1

    def _extent(self, stored: Dim) -> Dim:
        return self.extent or stored * self.per_byte

    def infer(self, data: TensorType, input_scale: TensorType, input_zero_point: TensorType) -> TensorType:
        require_kind(self, data, "iu", "the input")
        require_kind(self, input_scale, "f", "scale")
        if self.bits not in (0, 2, 4, 8) or self.block < 1 or (self.bits and data.dtype != "uint8"):
            hint = "of packed numbers uint8, bits=2, 4 or 8"
            raise self.reject(f"bits={self.bits} and block={self.block} of {data} say nothing", hint=hint)
        axis = normalize_axis(self, self.axis, data.rank)
        extent = self._extent(data.shape[axis])
        if self.extent and isinstance(held := data.shape[axis], int) and held * self.per_byte < extent:
            raise self.reject(f"axis {self.axis} of {data} does not hold {extent} numbers of {self.bits or 'all'} bits")
        blocks = -(-extent // self.block)
        shape = (*data.shape[:axis], blocks, *data.shape[axis + 1 :])
        for name, given in (("scale", input_scale), ("zero_point", input_zero_point)):
            apart = given.rank != data.rank or any(map(differ, given.shape, shape))
            if apart and (given.rank or given is input_scale):
                raise self.reject(f"{name} must be {input_scale.with_shape(shape)}, one for each block, not {given}")
        return TensorType((*data.shape[:axis], extent, *data.shape[axis + 1 :]), input_scale.dtype)

    def reference(self, data: np.ndarray, input_scale: np.ndarray, input_zero_point: np.ndarray) -> np.ndarray:
        axis, wide = self.axis % data.ndim, np.promote_types(input_scale.dtype, "float32")
        extent = int(self._extent(data.shape[axis]))
        place = np.arange(extent)
        codes = np.take(data, place // self.per_byte, axis)
        if self.bits:
            shifts = beside((place % self.per_byte * self.bits).astype("uint8"), axis, data.ndim)
            codes = codes >> shifts & (2**self.bits - 1)
        numbers = (input_zero_point, input_scale)
        zero, scale = (np.take(p, place // self.block, axis) if p.ndim else p for p in numbers)
        steps = codes.astype(wide) - zero.astype(wide)
        return np.asarray((steps * scale.astype(wide)).astype(input_scale.dtype))

    def compute(self, data: Buffer, input_scale: Buffer, input_zero_point: Buffer) -> Stage:
        axis, wide = self.axis % len(data.shape), accumulator(input_scale.dtype)
        shape = (*data.shape[:axis], self._extent(data.shape[axis]), *data.shape[axis + 1 :])

        def element(*i: LoopExpr) -> LoopExpr:
            steps = self._code(data, i).astype(wide) - self._at(input_zero_point, i, self.block).astype(wide)
            return (steps * self._at(input_scale, i, self.block).astype(wide)).astype(input_scale.dtype)

        return compute(shape, element)

    def factors(self, data: Buffer, input_scale: Buffer, input_zero_point: Buffer) -> tuple[Stage, Stage]:
        """Returns, in float32, what a result is the product of: data - zero_point, and its scale.

        Where several numbers are in a byte, one becomes a float where it is in the byte: its bits are put into those of
        a power of two whose last digits they are, and the power is taken off with the zero point.  All of it is exact.
        """
        axis = self.axis % len(data.shape)
        shape = (*data.shape[:axis], self._extent(data.shape[axis]), *data.shape[axis + 1 :])
        in_place = self.per_byte > 1 and input_zero_point.dtype in ("int8", "uint8")

        def number(*i: LoopExpr) -> LoopExpr:
            zero = self._at(input_zero_point, i, self.block).astype("float32")
            if not in_place:
                return self._code(data, i).astype("float32") - zero
            shift = self._shift(i)
            power = binary("shl", 127 + 23 - shift, const(23, "int32"))
            mask = binary("shl", const(2**self.bits - 1, "int32"), shift)
            digits = self._at(data, i, self.per_byte).astype("int32") & mask
            return intrin("bitcast_float", digits | power) - (intrin("bitcast_float", power) + zero)

        def scale(*i: LoopExpr) -> LoopExpr:
            return self._at(input_scale, i, self.block).astype("float32")

        return compute(shape, number), compute(shape, scale)

    def _at(self, buffer: Buffer, i: Sequence[LoopExpr], step: int) -> LoopExpr:
        """What holds for a result, one of ``step`` neighbours; or for all of them."""
        axis = self.axis % len(i)
        return buffer[(*i[:axis], i[axis] // step, *i[axis + 1 :]) if buffer.shape else ()]

    def _code(self, data: Buffer, i: Sequence[LoopExpr]) -> LoopExpr:
        code = self._at(data, i, self.per_byte)
        return binary("shr", code.astype("int32"), self._shift(i)) & (2**self.bits - 1) if self.per_byte > 1 else code

    def _shift(self, i: Sequence[LoopExpr]) -> LoopExpr:
        """Where its bits begin in its byte."""
        return (i[self.axis % len(i)] % self.per_byte * self.bits).astype("int32")
