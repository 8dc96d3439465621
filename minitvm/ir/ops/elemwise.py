"""Elementwise operators of one tensor that are not float functions: arithmetic, rounding, logic, casts, clip."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from minitvm.ir.compute import compute
from minitvm.ir.loop import Binary, Buffer, Const, LoopExpr, Stage, const, intrin, maximum, minimum
from minitvm.ir.loop.scalar import convert
from minitvm.ir.op import Fusion, Op
from minitvm.ir.ops._shape import require_kind
from minitvm.ir.types import DType, TensorType


class Unary(Op, fusion=Fusion.ELEMWISE):
    """One tensor to one of the same shape.  data: (...) -> (...).

    A subclass says its ``kinds`` (numpy dtype kinds that it takes), ``ufunc`` (the reference) and, where it has another
    name, ``intrinsic`` (the function of the loop IR); or has an ``element`` of its own.
    """

    kinds: ClassVar[str] = "biuf"
    ufunc: ClassVar[Callable[..., Any]]
    intrinsic: ClassVar[str] = ""

    def infer(self, data: TensorType) -> TensorType:
        require_kind(self, data, self.kinds)
        return data

    def reference(self, data: np.ndarray) -> np.ndarray:
        return np.asarray(self.ufunc(data))

    def element(self, x: LoopExpr) -> LoopExpr:
        """One element of the result."""
        return intrin(self.intrinsic or self.name, x)

    def compute(self, data: Buffer) -> Stage:
        return compute(data.shape, lambda *i: self.element(data[i]))


class Negative(Unary, name="negative", kinds="iuf", ufunc=np.negative):
    """-x; integers wrap around."""

    def element(self, x: LoopExpr) -> LoopExpr:
        return -x


class Abs(Unary, name="abs", kinds="iuf", ufunc=np.abs):
    """The absolute value of numbers."""

    def element(self, x: LoopExpr) -> LoopExpr:
        return x if x.dtype.startswith("uint") else intrin("abs", x)


class Sign(Unary, name="sign", kinds="iuf", ufunc=np.sign):
    """-1, 0 or 1; NaN of NaN."""

    def element(self, x: LoopExpr) -> LoopExpr:
        return minimum(x, 1) if x.dtype.startswith("uint") else intrin("sign", x)


class Floor(Unary, name="floor", kinds="f", ufunc=np.floor):
    """Rounds floats towards minus infinity."""


class Ceil(Unary, name="ceil", kinds="f", ufunc=np.ceil):
    """Rounds floats towards plus infinity."""


class Round(Unary, name="round", kinds="f", ufunc=np.rint):
    """Rounds floats to the nearest integer, halves to even."""


class Trunc(Unary, name="trunc", kinds="f", ufunc=np.trunc):
    """Rounds floats towards zero."""


class LogicalNot(Unary, name="logical_not", intrinsic="not", kinds="b", ufunc=np.logical_not):
    """Negation of bool."""


class BitwiseNot(Unary, name="bitwise_not", intrinsic="not", kinds="biu", ufunc=np.invert):
    """All bits flipped; of bool, the negation."""


class Copy(Unary, name="copy", ufunc=staticmethod(np.copy)):
    """The same values in memory of their own."""

    def element(self, x: LoopExpr) -> LoopExpr:
        return x


class FloatTest(Unary, kinds="f"):
    """A property of each float, as bool."""

    def infer(self, data: TensorType) -> TensorType:
        return super().infer(data).with_dtype("bool")


class IsNan(FloatTest, name="isnan", ufunc=np.isnan):
    """True where x is not a number."""


class IsInf(FloatTest, name="isinf", ufunc=np.isinf):
    """True where x is plus or minus infinity."""


class IsFinite(FloatTest, name="isfinite", ufunc=np.isfinite):
    """True where x is neither infinite nor NaN."""

    def element(self, x: LoopExpr) -> LoopExpr:
        return intrin("not", Binary("or", intrin("isnan", x), intrin("isinf", x)))


class Clip(Unary, name="clip", kinds="iuf"):
    """min(max(x, a_min), a_max); NaN stays.  For integers, bounds are moved into the dtype's range."""

    a_min: int | float
    a_max: int | float

    def reference(self, data: np.ndarray) -> np.ndarray:
        low, high = self._bounds(data.dtype.name)
        return np.asarray(np.minimum(np.maximum(data, data.dtype.type(low)), data.dtype.type(high)))

    def element(self, x: LoopExpr) -> LoopExpr:
        low, high = self._bounds(x.dtype)
        return minimum(maximum(x, const(low, x.dtype)), const(high, x.dtype))

    def _bounds(self, dtype: str) -> tuple[float, float]:
        """The attributes as values of ``dtype``."""
        if dtype.startswith("float"):
            return float(self.a_min), float(self.a_max)
        info = np.iinfo(dtype)
        low, high = (min(max(bound, info.min), info.max) for bound in (self.a_min, self.a_max))
        return math.ceil(low), math.floor(high)


class CastTo(Unary, name="cast"):
    """Conversion to ``dtype``: floats to integers truncate and saturate (NaN is 0), to bool anything but 0 is true."""

    dtype: DType

    def infer(self, data: TensorType) -> TensorType:
        return data.with_dtype(self.dtype)

    def reference(self, data: np.ndarray) -> np.ndarray:
        return convert(data, self.dtype)

    def element(self, x: LoopExpr) -> LoopExpr:
        return x.astype(self.dtype)


class Fill(Unary):
    """Every element the same value, in the shape of another tensor.  data: (...) -> (...), same dtype."""

    value: ClassVar[int] = 0

    def reference(self, data: np.ndarray) -> np.ndarray:
        return np.full_like(data, self.value)

    def compute(self, data: Buffer) -> Stage:
        return compute(data.shape, lambda *i: const(self.value, data.dtype))


class ZerosLike(Fill, name="zeros_like"):
    """Zeros in the shape and dtype of data."""


class OnesLike(Fill, name="ones_like", value=1):
    """Ones in the shape and dtype of data."""


class FullLike(Op, name="full_like", fusion=Fusion.ELEMWISE):
    """A scalar's value in every element.  data: (...), fill_value: () -> (...), both of one dtype."""

    def infer(self, data: TensorType, fill_value: TensorType) -> TensorType:
        if fill_value.shape or fill_value.dtype != data.dtype:
            raise self.reject(f"fill_value is {fill_value}; expected a scalar of {data.dtype}")
        return data

    def reference(self, data: np.ndarray, fill_value: np.ndarray) -> np.ndarray:
        return np.full_like(data, fill_value)

    def compute(self, data: Buffer, fill_value: Buffer) -> Stage:
        return compute(data.shape, lambda *i: fill_value[()])


class Full(Op, name="full", fusion=Fusion.ELEMWISE):
    """A tensor of one value.  fill_value: () -> shape, of ``dtype`` (the scalar's by default)."""

    shape: tuple[int, ...]
    dtype: DType | None = None

    def infer(self, fill_value: TensorType) -> TensorType:
        if fill_value.shape:
            raise self.reject(f"fill_value is {fill_value}; expected a scalar")
        return TensorType(self.shape, self.dtype or fill_value.dtype)

    def reference(self, fill_value: np.ndarray) -> np.ndarray:
        return np.full(self.shape, convert(fill_value, self.dtype or fill_value.dtype))

    def compute(self, fill_value: Buffer) -> Stage:
        return compute(self.shape, lambda *i: fill_value[()].astype(self.dtype or fill_value.dtype))


class Zeros(Op, name="zeros", fusion=Fusion.ELEMWISE):
    """Zeros of ``shape`` and ``dtype``, from nothing."""

    shape: tuple[int, ...]
    dtype: DType = "float32"
    value: ClassVar[int] = 0

    def infer(self) -> TensorType:
        return TensorType(self.shape, self.dtype)

    def reference(self) -> np.ndarray:
        return np.full(self.shape, self.value, self.dtype)

    def compute(self) -> Stage:
        return compute(self.shape, lambda *i: Const(np.dtype(self.dtype).type(self.value).item(), self.dtype))


class Ones(Zeros, name="ones", value=1):
    """Ones of ``shape`` and ``dtype``, from nothing."""
