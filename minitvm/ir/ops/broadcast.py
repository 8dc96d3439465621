"""Elementwise operators of several tensors, broadcast against each other by numpy's rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from minitvm.ir.compute import broadcast_index, compute
from minitvm.ir.dims import differ
from minitvm.ir.loop import Buffer, LoopExpr, Stage, binary, intrin, scalar, select
from minitvm.ir.op import Fusion, Op
from minitvm.ir.ops._shape import broadcast_shapes, require_kind, require_same_dtype, shapes_differ
from minitvm.ir.types import TensorType


@dataclass(frozen=True)
class BinaryOp(Op):
    """Two tensors of one dtype, broadcast.  lhs: (...), rhs: (...) -> their common shape.

    A subclass sets ``kinds`` (numpy dtype kinds that it takes), ``ufunc`` (the reference) and ``binary_op``
    (the operator of the loop IR) or ``element``.
    """

    fusion = Fusion.BROADCAST
    kinds: ClassVar[str] = "iuf"
    ufunc: ClassVar[Callable[..., Any]]
    binary_op: ClassVar[str]

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
        return binary(self.binary_op, lhs, rhs)

    def compute(self, lhs: Buffer, rhs: Buffer) -> Stage:
        shape = np.broadcast_shapes(lhs.shape, rhs.shape)
        return compute(shape, lambda *i: self.element(lhs[broadcast_index(lhs, i)], rhs[broadcast_index(rhs, i)]))


class Add(BinaryOp):
    """lhs + rhs; integers wrap around."""

    name = binary_op = "add"
    additive = True
    commutative = True
    ufunc = np.add


class Subtract(BinaryOp):
    """lhs - rhs; integers wrap around."""

    name = "subtract"
    additive = True
    binary_op = "sub"
    ufunc = np.subtract


class Multiply(BinaryOp):
    """lhs * rhs; integers wrap around."""

    name = "multiply"
    commutative = True
    binary_op = "mul"
    ufunc = np.multiply


class Divide(BinaryOp):
    """lhs / rhs; integers truncate towards zero, as in C and ONNX.  An integer divided by 0 stays as it is."""

    name = "divide"
    binary_op = "div"
    ufunc = staticmethod(scalar.divide)


class FloorDivide(BinaryOp):
    """floor(lhs / rhs).  An integer divided by 0 stays as it is."""

    name = "floor_divide"
    ufunc = staticmethod(scalar.floor_divide)

    def element(self, lhs: LoopExpr, rhs: LoopExpr) -> LoopExpr:
        return intrin("floor", lhs / rhs) if lhs.dtype.startswith("float") else lhs // rhs


class Mod(BinaryOp):
    """The remainder of division that truncates: the sign of lhs (C, fmod)."""

    name = binary_op = "mod"
    ufunc = np.fmod


class FloorMod(BinaryOp):
    """The remainder of division that rounds down: the sign of rhs (Python)."""

    name = "floor_mod"
    ufunc = np.mod

    def element(self, lhs: LoopExpr, rhs: LoopExpr) -> LoopExpr:
        if not lhs.dtype.startswith("float"):
            return lhs % rhs
        rest = binary("mod", lhs, rhs)
        opposite = (rest < 0.0).not_equal(rhs < 0.0)
        return select(rest.not_equal(0.0) & opposite, rest + rhs, rest)


class Power(BinaryOp):
    """lhs to the power of rhs.  Integers wrap around; a negative power truncates: 0, but for bases 1 and -1."""

    name = "power"
    binary_op = "pow"
    ufunc = staticmethod(scalar.power)


class Maximum(BinaryOp):
    """The larger one; NaN if either is."""

    name = "maximum"
    commutative = True
    kinds = "biuf"
    binary_op = "max"
    ufunc = np.maximum


class Minimum(BinaryOp):
    """The smaller one; NaN if either is."""

    name = "minimum"
    commutative = True
    kinds = "biuf"
    binary_op = "min"
    ufunc = np.minimum


@dataclass(frozen=True)
class Comparison(BinaryOp):
    """A comparison of two tensors, as bool; false where either is NaN (``not_equal``: true)."""

    def infer(self, lhs: TensorType, rhs: TensorType) -> TensorType:
        return super().infer(lhs, rhs).with_dtype("bool")


class Equal(Comparison):
    """lhs == rhs."""

    name = "equal"
    commutative = True
    kinds = "biuf"
    binary_op = "eq"
    ufunc = np.equal


class NotEqual(Comparison):
    """lhs != rhs."""

    name = "not_equal"
    commutative = True
    kinds = "biuf"
    binary_op = "ne"
    ufunc = np.not_equal


class Less(Comparison):
    """lhs < rhs."""

    name = "less"
    binary_op = "lt"
    ufunc = np.less


class LessEqual(Comparison):
    """lhs <= rhs."""

    name = "less_equal"
    binary_op = "le"
    ufunc = np.less_equal


class Greater(Comparison):
    """lhs > rhs."""

    name = "greater"
    ufunc = np.greater

    def element(self, lhs: LoopExpr, rhs: LoopExpr) -> LoopExpr:
        return rhs < lhs


class GreaterEqual(Comparison):
    """lhs >= rhs."""

    name = "greater_equal"
    ufunc = np.greater_equal

    def element(self, lhs: LoopExpr, rhs: LoopExpr) -> LoopExpr:
        return rhs <= lhs


class LogicalAnd(BinaryOp):
    """Both, of bool."""

    name = "logical_and"
    commutative = True
    kinds = "b"
    binary_op = "and"
    ufunc = np.logical_and


class LogicalOr(BinaryOp):
    """Either, of bool."""

    name = "logical_or"
    commutative = True
    kinds = "b"
    binary_op = "or"
    ufunc = np.logical_or


class LogicalXor(BinaryOp):
    """Exactly one, of bool."""

    name = "logical_xor"
    commutative = True
    kinds = "b"
    binary_op = "xor"
    ufunc = np.logical_xor


class BitwiseAnd(BinaryOp):
    """Bit by bit, of integers or bool."""

    name = "bitwise_and"
    commutative = True
    kinds = "biu"
    binary_op = "and"
    ufunc = np.bitwise_and


class BitwiseOr(BinaryOp):
    """Bit by bit, of integers or bool."""

    name = "bitwise_or"
    commutative = True
    kinds = "biu"
    binary_op = "or"
    ufunc = np.bitwise_or


class BitwiseXor(BinaryOp):
    """Bit by bit, of integers or bool."""

    name = "bitwise_xor"
    commutative = True
    kinds = "biu"
    binary_op = "xor"
    ufunc = np.bitwise_xor


class LeftShift(BinaryOp):
    """lhs * 2**rhs; by the width or more, or by less than 0, everything is shifted out."""

    name = "left_shift"
    kinds = "iu"
    binary_op = "shl"
    ufunc = np.left_shift


class RightShift(BinaryOp):
    """floor(lhs / 2**rhs); by the width or more, or by less than 0, everything is shifted out."""

    name = "right_shift"
    kinds = "iu"
    binary_op = "shr"
    ufunc = np.right_shift


@dataclass(frozen=True)
class Where(Op):
    """x where the condition holds, else y; all three broadcast.  condition: bool; x, y: one dtype."""

    name = "where"
    fusion = Fusion.BROADCAST

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


@dataclass(frozen=True)
class BroadcastTo(Op):
    """data repeated along dimensions of extent 1, and new ones in front, until it has ``shape``."""

    name = "broadcast_to"
    fusion = Fusion.BROADCAST
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


@dataclass(frozen=True)
class BroadcastToLike(Op):
    """data broadcast to the shape of another tensor.  data: (...), shape_like: (...) -> shape_like's shape."""

    name = "broadcast_to_like"
    fusion = Fusion.BROADCAST

    def infer(self, data: TensorType, shape_like: TensorType) -> TensorType:
        common = broadcast_shapes(self, data, shape_like)
        if shapes_differ(shape_like.shape, common):
            raise self.reject(f"{data} cannot be broadcast to the shape of {shape_like}")
        return TensorType(shape_like.shape, data.dtype)

    def reference(self, data: np.ndarray, shape_like: np.ndarray) -> np.ndarray:
        return np.array(np.broadcast_to(data, shape_like.shape))

    def compute(self, data: Buffer, shape_like: Buffer) -> Stage:
        return compute(shape_like.shape, lambda *i: data[broadcast_index(data, i)])
