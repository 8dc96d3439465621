"""Elementwise operators: arithmetic, rounding, logic, comparisons, float functions, rectifiers, casts, clip, where."""

import math
from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import numpy as np

from minitvm.ir.dims import common_shape
from minitvm.ir.dtypes import limits
from minitvm.ir.loop import Binary, Const, LoopExpr, Stage, binary, const, intrin, maximum, minimum, select
from minitvm.ir.loop.scalar import convert, divide, floor_divide, greatest, least, power
from minitvm.ir.op import Fusion, Op, Precision, broadcast_index, compute, define
from minitvm.ir.ops._shape import broadcast_shapes, require_kind, require_same_dtype
from minitvm.ir.types import DType, TensorType


class Elementwise(Op):
    """An element of the result is made of one of each argument; arguments are broadcast by numpy's rule.

    A subclass says its ``kinds`` (numpy dtype kinds that it takes), ``ufunc`` (the reference) and, where it has another
    name, ``scalar`` (the operation of the loop IR); or has an ``element`` of its own.
    """

    kinds: ClassVar[str] = "biuf"
    ufunc: ClassVar[Callable[..., Any]]
    scalar: ClassVar[str] = ""

    def reference(self, *arrays: Any) -> np.ndarray:
        return np.asarray(self.ufunc(*arrays))

    def element(self, *elements: Any) -> LoopExpr:
        """One element of the result."""
        raise NotImplementedError(self.name)

    def compute(self, *buffers: Any) -> Stage:
        shape = common_shape(*(b.shape for b in buffers))
        return compute(shape, lambda *i: self.element(*(b[broadcast_index(b, i)] for b in buffers)))


class Unary(Elementwise, fusion=Fusion.ELEMWISE):
    """One tensor to one of the same shape.  data: (...) -> (...)."""

    argument: ClassVar[str] = "the argument"

    def infer(self, data: TensorType) -> TensorType:
        require_kind(self, data, self.kinds, self.argument)
        return data

    def element(self, x: LoopExpr) -> LoopExpr:
        return intrin(self.scalar or self.name, x)


class FloatTest(Unary, kinds="f", exact=True):
    """A property of each float, as bool."""

    def infer(self, data: TensorType) -> TensorType:
        return super().infer(data).with_dtype("bool")


define(Unary, "floor", "Rounds floats towards minus infinity.", kinds="f", exact=True, ufunc=np.floor)
define(Unary, "ceil", "Rounds floats towards plus infinity.", kinds="f", exact=True, ufunc=np.ceil)
define(Unary, "round", "Rounds floats to the nearest integer, halves to even.", kinds="f", exact=True, ufunc=np.rint)
define(Unary, "trunc", "Rounds floats towards zero.", kinds="f", exact=True, ufunc=np.trunc)
define(Unary, "logical_not", "Negation of bool.", kinds="b", scalar="not", exact=True, ufunc=np.logical_not)
define(
    Unary,
    "bitwise_not",
    "All bits flipped; of bool, the negation.",
    kinds="biu",
    scalar="not",
    exact=True,
    ufunc=np.invert,
)
define(FloatTest, "isnan", "True where x is not a number.", ufunc=np.isnan)
define(FloatTest, "isinf", "True where x is plus or minus infinity.", ufunc=np.isinf)
define(Unary, "exp", "e to the power of x.", kinds="f", ufunc=np.exp)
define(Unary, "expm1", "exp(x) - 1, exact near 0.", kinds="f", ufunc=np.expm1)
define(Unary, "log", "The natural logarithm; NaN below 0.", kinds="f", ufunc=np.log)
define(Unary, "log2", "The logarithm to base 2; NaN below 0.", kinds="f", ufunc=np.log2)
define(Unary, "log1p", "log(1 + x), exact near 0.", kinds="f", ufunc=np.log1p)
Sqrt = define(Unary, "sqrt", "The square root; NaN below 0.", kinds="f", exact=True, ufunc=np.sqrt)
define(Unary, "tanh", "The hyperbolic tangent.", kinds="f", ufunc=np.tanh)
define(Unary, "sin", "The sine of an angle in radians.", kinds="f", ufunc=np.sin)
define(Unary, "cos", "The cosine of an angle in radians.", kinds="f", ufunc=np.cos)
define(Unary, "tan", "The tangent of an angle in radians.", kinds="f", ufunc=np.tan)
define(Unary, "asin", "The inverse of sin; NaN outside of [-1, 1].", kinds="f", ufunc=np.arcsin)
define(Unary, "acos", "The inverse of cos; NaN outside of [-1, 1].", kinds="f", ufunc=np.arccos)
define(Unary, "atan", "The inverse of tan.", kinds="f", ufunc=np.arctan)
define(Unary, "sinh", "The hyperbolic sine.", kinds="f", ufunc=np.sinh)
define(Unary, "cosh", "The hyperbolic cosine.", kinds="f", ufunc=np.cosh)
define(Unary, "asinh", "The inverse of sinh.", kinds="f", ufunc=np.arcsinh)
define(Unary, "acosh", "The inverse of cosh; NaN below 1.", kinds="f", ufunc=np.arccosh)
define(Unary, "atanh", "The inverse of tanh; NaN outside of [-1, 1].", kinds="f", ufunc=np.arctanh)


class Rsqrt(Unary, name="rsqrt", kinds="f"):
    """1 / sqrt(x)."""

    def reference(self, data: np.ndarray) -> np.ndarray:
        return np.asarray(1.0 / np.sqrt(data.astype("float64"))).astype(data.dtype)


class Sigmoid(Unary, name="sigmoid", kinds="f"):
    """1 / (1 + exp(-x))."""

    def reference(self, data: np.ndarray) -> np.ndarray:
        wide = data.astype("float64")
        small = np.exp(-np.abs(wide))
        return np.asarray(np.where(wide < 0, small, 1) / (1 + small)).astype(data.dtype)


class Erf(Unary, name="erf", kinds="f"):
    """The error function, 2/sqrt(pi) times the integral of exp(-t*t) from 0 to x."""

    def reference(self, data: np.ndarray) -> np.ndarray:
        values = [math.erf(v) for v in data.ravel().tolist()]
        return np.array(values, data.dtype).reshape(data.shape)


class Negative(Unary, name="negative", kinds="iuf", ufunc=np.negative, exact=True, precision=Precision.FOLLOW):
    """-x; integers wrap around."""

    def element(self, x: LoopExpr) -> LoopExpr:
        return -x


class Abs(Unary, name="abs", kinds="iuf", ufunc=np.abs, exact=True, precision=Precision.FOLLOW):
    """The absolute value of numbers."""

    def element(self, x: LoopExpr) -> LoopExpr:
        return x if x.dtype.startswith("uint") else intrin("abs", x)


class Sign(Unary, name="sign", kinds="iuf", ufunc=np.sign, exact=True, precision=Precision.FOLLOW):
    """-1, 0 or 1; NaN of NaN."""

    def element(self, x: LoopExpr) -> LoopExpr:
        return minimum(x, 1) if x.dtype.startswith("uint") else intrin("sign", x)


class Copy(Unary, name="copy", kinds="biufV", ufunc=np.copy, takes_stored=True):
    """The same values in memory of their own."""

    def element(self, x: LoopExpr) -> LoopExpr:
        return x


class IsFinite(FloatTest, name="isfinite", ufunc=np.isfinite):
    """True where x is neither infinite nor NaN."""

    def element(self, x: LoopExpr) -> LoopExpr:
        return intrin("not", Binary("or", intrin("isnan", x), intrin("isinf", x)))


class Relu(
    Unary, name="nn.relu", kinds="iuf", argument="the input", homogeneous=True, exact=True, precision=Precision.FOLLOW
):
    """max(data, 0).  data: (...) -> (...)."""

    def reference(self, data: np.ndarray) -> np.ndarray:
        return greatest(data, data.dtype.type(0))

    def element(self, x: LoopExpr) -> LoopExpr:
        return maximum(x, 0)


class LeakyRelu(
    Unary,
    name="nn.leaky_relu",
    kinds="f",
    argument="the input",
    homogeneous=True,
    exact=True,
    precision=Precision.FOLLOW,
):
    """``alpha * data`` where data is negative, else data.  data: (...) floats -> (...)."""

    alpha: float = 0.25

    def reference(self, data: np.ndarray) -> np.ndarray:
        return np.asarray(np.where(data < 0, data * data.dtype.type(self.alpha), data))

    def element(self, x: LoopExpr) -> LoopExpr:
        return select(x < 0, x * self.alpha, x)


class Clip(Unary, name="clip", kinds="iuf", exact=True, precision=Precision.FOLLOW):
    """``min(max(x, a_min), a_max)``; NaN stays.  For integers, bounds are moved into the dtype's range."""

    a_min: int | float
    a_max: int | float

    def reference(self, data: np.ndarray) -> np.ndarray:
        low, high = self._bounds(data.dtype.name)
        return least(greatest(data, data.dtype.type(low)), data.dtype.type(high))

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


class CastTo(Unary, name="cast", takes_stored=True, precision=Precision.WIDE):
    """Conversion to ``dtype``: floats to integers truncate and saturate (NaN is 0), to bool anything but 0 is true.

    ``saturate``: numbers beyond a float8 dtype's range, infinities too, become its nearest end.  ``round_mode``: to
    which power of two ``float8_e8m0fnu`` rounds; without saturation 0 and what is negative are NaN there.
    """

    dtype: DType
    saturate: bool = True
    round_mode: Annotated[str, ("up", "down", "nearest")] = "up"

    def infer(self, data: TensorType) -> TensorType:
        return data.with_dtype(self.dtype)

    def reference(self, data: np.ndarray) -> np.ndarray:
        if data.dtype != self.dtype and (self.dtype == _POWERS or (self.saturate and self.dtype in _ENDS)):
            (low, high), wide = limits(self.dtype), convert(data, "float64")
            wide = self._power_of(wide) if self.dtype == _POWERS else wide
            beyond = (wide < low) | (wide > high)
            data = np.clip(wide, low, high) if self.saturate else np.where(beyond, np.nan, wide)
        return convert(data, self.dtype)

    def _power_of(self, x: np.ndarray) -> np.ndarray:
        """What is not positive is 0."""
        digits, exponents = np.frexp(np.where(x < 0, 0.0, x))  # from a half to 1
        up = digits > {"up": 0.5, "down": 1.0, "nearest": np.nextafter(0.75, 0)}[self.round_mode]
        return np.asarray(np.where((digits == 0) | ~np.isfinite(x), np.maximum(x, 0), np.ldexp(0.5, exponents + up)))

    def element(self, x: LoopExpr) -> LoopExpr:
        if x.dtype == self.dtype or (self.dtype != _POWERS and (not self.saturate or self.dtype not in _ENDS)):
            return x.astype(self.dtype)
        low, high = _ENDS[self.dtype]
        few_digits = x.dtype == "float32" or np.dtype(x.dtype).itemsize <= 2
        wide = x.astype("float32" if few_digits and self.dtype != _POWERS else "float64")
        if self.dtype == _POWERS:
            wide = select(intrin("isnan", wide), wide, _power_of_two(wide, self.round_mode))
        if self.saturate:
            return minimum(maximum(wide, low), high).astype(self.dtype)
        return select(Binary("or", wide < low, wide > high), math.nan, wide).astype(self.dtype)


_POWERS = "float8_e8m0fnu"
_ENDS = {
    "float8_e4m3fn": (-448.0, 448.0),
    "float8_e4m3fnuz": (-240.0, 240.0),
    "float8_e5m2": (-57344.0, 57344.0),
    "float8_e5m2fnuz": (-57344.0, 57344.0),
    _POWERS: (2.0**-127, 2.0**127),
}
"""Of dtypes whose casts may saturate."""


def _power_of_two(x: LoopExpr, round_mode: str) -> LoopExpr:
    """The power of two beside a float64: the digits behind its first one are cut off."""
    fraction = (1 << 52) - 1
    ahead = {"up": fraction, "down": 0, "nearest": 1 << 51}[round_mode]
    return intrin("bitcast_float", Binary("and", intrin("bitcast_int", x) + ahead, Const(~fraction)))


class Reinterpret(Unary, name="reinterpret", exact=True):
    """The same bits as elements of ``dtype``, which is as wide; as bool, whether any bit is set."""

    dtype: DType

    def infer(self, data: TensorType) -> TensorType:
        wide, wanted = (np.dtype(d).itemsize for d in (data.dtype, self.dtype))
        if wide != wanted:
            raise self.reject(f"{data.dtype} has {8 * wide} bits, {self.dtype} {8 * wanted}")
        return data.with_dtype(self.dtype)

    def reference(self, data: np.ndarray) -> np.ndarray:
        return data.view("uint8") != 0 if self.dtype == "bool" else data.view(self.dtype)

    def element(self, x: LoopExpr) -> LoopExpr:
        if x.dtype == self.dtype:
            return x
        bits = intrin("bitcast_int", x) if x.dtype.startswith("float") else x
        if not self.dtype.startswith("float"):
            return bits.astype(self.dtype)
        return intrin("bitcast_float", bits.astype(self.dtype.replace("float", "int")))


# --- of several tensors, broadcast against each other ------------------------------------------------------------


class BinaryOp(Elementwise, fusion=Fusion.BROADCAST, kinds="iuf", exact=True, precision=Precision.FOLLOW):
    """Two tensors of one dtype, broadcast.  lhs: (...), rhs: (...) -> their common shape."""

    def keeps_positions(self, arguments: int) -> bool:
        return True

    def infer(self, lhs: TensorType, rhs: TensorType) -> TensorType:
        dtype = require_same_dtype(self, lhs, rhs)
        require_kind(self, lhs, self.kinds, "lhs")
        return TensorType(broadcast_shapes(self, lhs, rhs), dtype)

    def element(self, lhs: LoopExpr, rhs: LoopExpr) -> LoopExpr:
        return binary(self.scalar or self.name, lhs, rhs)


class Comparison(BinaryOp, precision=Precision.WIDE):
    """A comparison of two tensors, as bool; false where either is NaN (``not_equal``: true)."""

    def infer(self, lhs: TensorType, rhs: TensorType) -> TensorType:
        return super().infer(lhs, rhs).with_dtype("bool")


_wraps, _shifted = "integers wrap around.", "by the width or more, or by less than 0, everything is shifted out."
Add = define(BinaryOp, "add", f"lhs + rhs; {_wraps}", ufunc=np.add, commutative=True, additive=True)
Subtract = define(BinaryOp, "subtract", f"lhs - rhs; {_wraps}", scalar="sub", ufunc=np.subtract, additive=True)
Multiply = define(BinaryOp, "multiply", f"lhs * rhs; {_wraps}", scalar="mul", ufunc=np.multiply, commutative=True)
define(BinaryOp, "mod", "The remainder of division that truncates: the sign of lhs (C, fmod).", ufunc=np.fmod)
_extreme: dict[str, Any] = {"kinds": "biuf", "commutative": True}
Maximum = define(BinaryOp, "maximum", "The larger one; NaN if either is.", scalar="max", ufunc=greatest, **_extreme)
Minimum = define(BinaryOp, "minimum", "The smaller one; NaN if either is.", scalar="min", ufunc=least, **_extreme)
define(Comparison, "equal", "lhs == rhs.", scalar="eq", ufunc=np.equal, **_extreme)
define(Comparison, "not_equal", "lhs != rhs.", scalar="ne", ufunc=np.not_equal, **_extreme)
Less = define(Comparison, "less", "lhs < rhs.", scalar="lt", ufunc=np.less)
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


class Divide(BinaryOp, name="divide", scalar="div", ufunc=divide):
    """lhs / rhs; integers truncate towards zero, as in C and ONNX.  An integer divided by 0 stays as it is."""


class Power(BinaryOp, name="power", scalar="pow", ufunc=power, exact=False, precision=Precision.WIDE):
    """lhs to the power of rhs.  Integers wrap around; a negative power truncates: 0, but for bases 1 and -1."""


class FloorDivide(BinaryOp, name="floor_divide", ufunc=floor_divide, precision=Precision.WIDE):
    """floor(lhs / rhs).  An integer divided by 0 stays as it is."""

    def element(self, lhs: LoopExpr, rhs: LoopExpr) -> LoopExpr:
        return intrin("floor", lhs / rhs) if lhs.dtype.startswith("float") else lhs // rhs


class FloorMod(BinaryOp, name="floor_mod", ufunc=np.mod, precision=Precision.WIDE):
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


class Where(Elementwise, name="where", fusion=Fusion.BROADCAST, ufunc=np.where, takes_stored=True, chooses=True):
    """x where the condition holds, else y; all three broadcast.  condition: bool; x, y: one dtype."""

    def infer(self, condition: TensorType, x: TensorType, y: TensorType) -> TensorType:
        require_kind(self, condition, "b", "condition")
        dtype = require_same_dtype(self, x, y)
        return TensorType(broadcast_shapes(self, condition, x, y), dtype)

    def element(self, condition: LoopExpr, x: LoopExpr, y: LoopExpr) -> LoopExpr:
        return select(condition, x, y)
