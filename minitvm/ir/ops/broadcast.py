"""Elementwise operators of several tensors, broadcast against each other by numpy's rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from minitvm.ir.compute import broadcast_index, compute
from minitvm.ir.dims import differ
from minitvm.ir.loop import Buffer, LoopExpr, Stage, binary, intrin, scalar, select
from minitvm.ir.op import Fusion, Op
from minitvm.ir.ops._shape import broadcast_shapes, require_kind, require_same_dtype, shapes_differ
from minitvm.ir.types import TensorType


class BinaryOp(Op, fusion=Fusion.BROADCAST):
    """Two tensors of one dtype, broadcast.  lhs: (...), rhs: (...) -> their common shape.

    A subclass says its ``kinds`` (numpy dtype kinds that it takes), ``ufunc`` (the reference) and, where it has
    another name, ``binary_op`` (the operator of the loop IR); or has an ``element`` of its own.
    """

    kinds: ClassVar[str] = "iuf"
    ufunc: ClassVar[Callable[..., Any]]
    binary_op: ClassVar[str] = ""

    def keeps_positions(self, arguments: int) -> bool:
        return True

    def infer(self, lhs: TensorType, rhs: TensorType) -> TensorType:
        dtype = require_same_dtype(self, lhs, rhs)
        require_kind(self, lhs, self.kinds, "lhs")
        return TensorType(broadcast_shapes(self, lhs, rhs), dtype)

    def reference(self, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        return np.asarray(self.ufunc(lhs, rhs))

    def element(self, lhs: LoopExpr, rhs: LoopExpr) -> LoopExpr:
        """One element of the result."""
        return binary(self.binary_op or self.name, lhs, rhs)

    def compute(self, lhs: Buffer, rhs: Buffer) -> Stage:
        shape = np.broadcast_shapes(lhs.shape, rhs.shape)
        return compute(shape, lambda *i: self.element(lhs[broadcast_index(lhs, i)], rhs[broadcast_index(rhs, i)]))


class Add(BinaryOp, name="add", ufunc=np.add, commutative=True, additive=True):
    """lhs + rhs; integers wrap around."""


class Subtract(BinaryOp, name="subtract", binary_op="sub", ufunc=np.subtract, additive=True):
    """lhs - rhs; integers wrap around."""


class Multiply(BinaryOp, name="multiply", binary_op="mul", ufunc=np.multiply, commutative=True):
    """lhs * rhs; integers wrap around."""


class Divide(BinaryOp, name="divide", binary_op="div", ufunc=staticmethod(scalar.divide)):
    """lhs / rhs; integers truncate towards zero, as in C and ONNX.  An integer divided by 0 stays as it is."""


class FloorDivide(BinaryOp, name="floor_divide", ufunc=staticmethod(scalar.floor_divide)):
    """floor(lhs / rhs).  An integer divided by 0 stays as it is."""

    def element(self, lhs: LoopExpr, rhs: LoopExpr) -> LoopExpr:
        return intrin("floor", lhs / rhs) if lhs.dtype.startswith("float") else lhs // rhs


class Mod(BinaryOp, name="mod", ufunc=np.fmod):
    """The remainder of division that truncates: the sign of lhs (C, fmod)."""


class FloorMod(BinaryOp, name="floor_mod", ufunc=np.mod):
    """The remainder of division that rounds down: the sign of rhs (Python)."""

    def element(self, lhs: LoopExpr, rhs: LoopExpr) -> LoopExpr:
        if not lhs.dtype.startswith("float"):
            return lhs % rhs
        rest = binary("mod", lhs, rhs)
        opposite = (rest < 0.0).not_equal(rhs < 0.0)
        return select(rest.not_equal(0.0) & opposite, rest + rhs, rest)


class Power(BinaryOp, name="power", binary_op="pow", ufunc=staticmethod(scalar.power)):
    """lhs to the power of rhs.  Integers wrap around; a negative power truncates: 0, but for bases 1 and -1."""


class Maximum(BinaryOp, name="maximum", kinds="biuf", binary_op="max", ufunc=np.maximum, commutative=True):
    """The larger one; NaN if either is."""


class Minimum(BinaryOp, name="minimum", kinds="biuf", binary_op="min", ufunc=np.minimum, commutative=True):
    """The smaller one; NaN if either is."""


class Comparison(BinaryOp):
    """A comparison of two tensors, as bool; false where either is NaN (``not_equal``: true)."""

    def infer(self, lhs: TensorType, rhs: TensorType) -> TensorType:
        return super().infer(lhs, rhs).with_dtype("bool")


class Equal(Comparison, name="equal", kinds="biuf", binary_op="eq", ufunc=np.equal, commutative=True):
    """lhs == rhs."""


class NotEqual(Comparison, name="not_equal", kinds="biuf", binary_op="ne", ufunc=np.not_equal, commutative=True):
    """lhs != rhs."""


class Less(Comparison, name="less", binary_op="lt", ufunc=np.less):
    """lhs < rhs."""


class LessEqual(Comparison, name="less_equal", binary_op="le", ufunc=np.less_equal):
    """lhs <= rhs."""


class Greater(Comparison, name="greater", ufunc=np.greater):
    """lhs > rhs."""

    def element(self, lhs: LoopExpr, rhs: LoopExpr) -> LoopExpr:
        return rhs < lhs


class GreaterEqual(Comparison, name="greater_equal", ufunc=np.greater_equal):
    """lhs >= rhs."""

    def element(self, lhs: LoopExpr, rhs: LoopExpr) -> LoopExpr:
        return rhs <= lhs


class LogicalAnd(BinaryOp, name="logical_and", kinds="b", binary_op="and", ufunc=np.logical_and, commutative=True):
    """Both, of bool."""


class LogicalOr(BinaryOp, name="logical_or", kinds="b", binary_op="or", ufunc=np.logical_or, commutative=True):
    """Either, of bool."""


class LogicalXor(BinaryOp, name="logical_xor", kinds="b", binary_op="xor", ufunc=np.logical_xor, commutative=True):
    """Exactly one, of bool."""


class BitwiseAnd(BinaryOp, name="bitwise_and", kinds="biu", binary_op="and", ufunc=np.bitwise_and, commutative=True):
    """Bit by bit, of integers or bool."""


class BitwiseOr(BinaryOp, name="bitwise_or", kinds="biu", binary_op="or", ufunc=np.bitwise_or, commutative=True):
    """Bit by bit, of integers or bool."""


class BitwiseXor(BinaryOp, name="bitwise_xor", kinds="biu", binary_op="xor", ufunc=np.bitwise_xor, commutative=True):
    """Bit by bit, of integers or bool."""


class LeftShift(BinaryOp, name="left_shift", kinds="iu", binary_op="shl", ufunc=np.left_shift):
    """lhs * 2**rhs; by the width or more, or by less than 0, everything is shifted out."""


class RightShift(BinaryOp, name="right_shift", kinds="iu", binary_op="shr", ufunc=np.right_shift):
    """floor(lhs / 2**rhs); by the width or more, or by less than 0, everything is shifted out."""


class Where(Op, name="where", fusion=Fusion.BROADCAST):
    """x where the condition holds, else y; all three broadcast.  condition: bool; x, y: one dtype."""

    def infer(self, condition: TensorType, x: TensorType, y: TensorType) -> TensorType:
        require_kind(self, condition, "b", "condition")
        dtype = require_same_dtype(self, x, y)
        return TensorType(broadcast_shapes(self, condition, x, y), dtype)

    def reference(self, condition: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.asarray(np.where(condition, x, y))

    def compute(self, condition: Buffer, x: Buffer, y: Buffer) -> Stage:
        shape = np.broadcast_shapes(condition.shape, x.shape, y.shape)

        def element(*i: LoopExpr) -> LoopExpr:
            return select(*(b[broadcast_index(b, i)] for b in (condition, x, y)))

        return compute(shape, element)


class BroadcastTo(Op, name="broadcast_to", fusion=Fusion.BROADCAST):
    """data repeated along dimensions of extent 1, and new ones in front, until it has ``shape``."""

    shape: tuple[int, ...]

    def infer(self, data: TensorType) -> TensorType:
        target = TensorType(self.shape, data.dtype)
        padded = (1,) * (target.rank - data.rank) + data.shape
        if target.rank < data.rank or any(
            differ(a, 1) and differ(a, b) for a, b in zip(padded, self.shape, strict=True)
        ):
            raise self.reject(f"{data} cannot be broadcast to shape {list(self.shape)}")
        return target

    def reference(self, data: np.ndarray) -> np.ndarray:
        return np.array(np.broadcast_to(data, self.shape))

    def compute(self, data: Buffer) -> Stage:
        return compute(self.shape, lambda *i: data[broadcast_index(data, i)])


class BroadcastToLike(Op, name="broadcast_to_like", fusion=Fusion.BROADCAST):
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
