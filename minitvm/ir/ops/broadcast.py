"""Elementwise operators of several tensors, broadcast against each other by numpy's rule."""

from __future__ import annotations

from typing import Any

import numpy as np

from minitvm.ir.compute import broadcast_index, compute
from minitvm.ir.dims import Dim, differ
from minitvm.ir.loop import Buffer, LoopExpr, Stage, binary, intrin, scalar, select
from minitvm.ir.op import Fusion, Op, define
from minitvm.ir.ops._shape import broadcast_shapes, require_kind, require_same_dtype, shapes_differ
from minitvm.ir.ops.elemwise import Elementwise
from minitvm.ir.types import TensorType


class BinaryOp(Elementwise, fusion=Fusion.BROADCAST, kinds="iuf"):
    """Two tensors of one dtype, broadcast.  lhs: (...), rhs: (...) -> their common shape."""

    def keeps_positions(self, arguments: int) -> bool:
        return True

    def infer(self, lhs: TensorType, rhs: TensorType) -> TensorType:
        dtype = require_same_dtype(self, lhs, rhs)
        require_kind(self, lhs, self.kinds, "lhs")
        return TensorType(broadcast_shapes(self, lhs, rhs), dtype)

    def element(self, lhs: LoopExpr, rhs: LoopExpr) -> LoopExpr:
        return binary(self.scalar or self.name, lhs, rhs)


class Comparison(BinaryOp):
    """A comparison of two tensors, as bool; false where either is NaN (``not_equal``: true)."""

    def infer(self, lhs: TensorType, rhs: TensorType) -> TensorType:
        return super().infer(lhs, rhs).with_dtype("bool")


_wraps, _shifted = "integers wrap around.", "by the width or more, or by less than 0, everything is shifted out."
Add = define(BinaryOp, "add", f"lhs + rhs; {_wraps}", ufunc=np.add, commutative=True, additive=True)
Subtract = define(BinaryOp, "subtract", f"lhs - rhs; {_wraps}", scalar="sub", ufunc=np.subtract, additive=True)
Multiply = define(BinaryOp, "multiply", f"lhs * rhs; {_wraps}", scalar="mul", ufunc=np.multiply, commutative=True)
define(BinaryOp, "mod", "The remainder of division that truncates: the sign of lhs (C, fmod).", ufunc=np.fmod)
_extreme: dict[str, Any] = {"kinds": "biuf", "commutative": True}
Maximum = define(BinaryOp, "maximum", "The larger one; NaN if either is.", scalar="max", ufunc=np.maximum, **_extreme)
Minimum = define(BinaryOp, "minimum", "The smaller one; NaN if either is.", scalar="min", ufunc=np.minimum, **_extreme)
define(Comparison, "equal", "lhs == rhs.", scalar="eq", ufunc=np.equal, **_extreme)
define(Comparison, "not_equal", "lhs != rhs.", scalar="ne", ufunc=np.not_equal, **_extreme)
define(Comparison, "less", "lhs < rhs.", scalar="lt", ufunc=np.less)
define(Comparison, "less_equal", "lhs <= rhs.", scalar="le", ufunc=np.less_equal)
_logical: dict[str, Any] = {"kinds": "b", "commutative": True}
define(BinaryOp, "logical_and", "Both, of bool.", scalar="and", ufunc=np.logical_and, **_logical)
define(BinaryOp, "logical_or", "Either, of bool.", scalar="or", ufunc=np.logical_or, **_logical)
define(BinaryOp, "logical_xor", "Exactly one, of bool.", scalar="xor", ufunc=np.logical_xor, **_logical)
_bitwise: dict[str, Any] = {"meaning": "Bit by bit, of integers or bool.", "kinds": "biu", "commutative": True}
define(BinaryOp, "bitwise_and", scalar="and", ufunc=np.bitwise_and, **_bitwise)
define(BinaryOp, "bitwise_or", scalar="or", ufunc=np.bitwise_or, **_bitwise)
define(BinaryOp, "bitwise_xor", scalar="xor", ufunc=np.bitwise_xor, **_bitwise)
define(BinaryOp, "left_shift", f"lhs * 2**rhs; {_shifted}", kinds="iu", scalar="shl", ufunc=np.left_shift)
define(BinaryOp, "right_shift", f"floor(lhs / 2**rhs); {_shifted}", kinds="iu", scalar="shr", ufunc=np.right_shift)


class Divide(BinaryOp, name="divide", scalar="div", ufunc=scalar.divide):
    """lhs / rhs; integers truncate towards zero, as in C and ONNX.  An integer divided by 0 stays as it is."""


class Power(BinaryOp, name="power", scalar="pow", ufunc=scalar.power):
    """lhs to the power of rhs.  Integers wrap around; a negative power truncates: 0, but for bases 1 and -1."""


class FloorDivide(BinaryOp, name="floor_divide", ufunc=scalar.floor_divide):
    """floor(lhs / rhs).  An integer divided by 0 stays as it is."""

    def element(self, lhs: LoopExpr, rhs: LoopExpr) -> LoopExpr:
        return intrin("floor", lhs / rhs) if lhs.dtype.startswith("float") else lhs // rhs


class FloorMod(BinaryOp, name="floor_mod", ufunc=np.mod):
    """The remainder of division that rounds down: the sign of rhs (Python)."""

    def element(self, lhs: LoopExpr, rhs: LoopExpr) -> LoopExpr:
        if not lhs.dtype.startswith("float"):
            return lhs % rhs
        rest = binary("mod", lhs, rhs)
        opposite = (rest < 0.0).not_equal(rhs < 0.0)
        return select(rest.not_equal(0.0) & opposite, rest + rhs, rest)


class Greater(Comparison, name="greater", ufunc=np.greater):
    """lhs > rhs."""

    def element(self, lhs: LoopExpr, rhs: LoopExpr) -> LoopExpr:
        return rhs < lhs


class GreaterEqual(Comparison, name="greater_equal", ufunc=np.greater_equal):
    """lhs >= rhs."""

    def element(self, lhs: LoopExpr, rhs: LoopExpr) -> LoopExpr:
        return rhs <= lhs


class Where(Elementwise, name="where", fusion=Fusion.BROADCAST, ufunc=np.where, takes_stored=True):
    """x where the condition holds, else y; all three broadcast.  condition: bool; x, y: one dtype."""

    def infer(self, condition: TensorType, x: TensorType, y: TensorType) -> TensorType:
        require_kind(self, condition, "b", "condition")
        dtype = require_same_dtype(self, x, y)
        return TensorType(broadcast_shapes(self, condition, x, y), dtype)

    def element(self, condition: LoopExpr, x: LoopExpr, y: LoopExpr) -> LoopExpr:
        return select(condition, x, y)


class BroadcastTo(Op, name="broadcast_to", fusion=Fusion.BROADCAST, takes_stored=True):
    """data repeated along dimensions of extent 1, and new ones in front, until it has ``shape``."""

    shape: tuple[Dim, ...]

    def infer(self, data: TensorType) -> TensorType:
        target = TensorType(self.shape, data.dtype)
        padded = (1,) * (target.rank - data.rank) + data.shape
        if target.rank < data.rank or any(a != 1 and differ(a, b) for a, b in zip(padded, self.shape, strict=True)):
            raise self.reject(f"{data} cannot be broadcast to shape {list(self.shape)}")
        return target

    def reference(self, data: np.ndarray) -> np.ndarray:
        return np.array(np.broadcast_to(data, TensorType(self.shape).static_shape))

    def compute(self, data: Buffer) -> Stage:
        return compute(self.shape, lambda *i: data[broadcast_index(data, i)])


class BroadcastToLike(Op, name="broadcast_to_like", fusion=Fusion.BROADCAST, takes_stored=True):
    """data broadcast to the shape of another tensor.  data: (...), shape_like: (...) -> shape_like's shape."""

    def infer(self, data: TensorType, shape_like: TensorType) -> TensorType:
        common = broadcast_shapes(self, data, shape_like)
        if shapes_differ(shape_like.shape, common):
            raise self.reject(f"{data} cannot be broadcast to the shape of {shape_like}")
        return TensorType(shape_like.shape, data.dtype)

    def reference(self, data: np.ndarray, shape_like: np.ndarray) -> np.ndarray:
        return np.array(np.broadcast_to(data, shape_like.shape))

    def compute(self, data: Buffer, shape_like: Buffer) -> Stage:
        return compute(shape_like.shape, lambda *i: data[broadcast_index(data, i)])
