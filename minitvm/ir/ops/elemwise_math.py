"""Elementwise functions of one float tensor: exponentials, logarithms, roots, trigonometry."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from minitvm.ir.loop import LoopExpr, intrin
from minitvm.ir.ops.elemwise import Unary


@dataclass(frozen=True)
class FloatFunction(Unary):
    """A function of each element of a float tensor; ``intrinsic`` is its name in the loop IR."""

    kinds = "f"
    intrinsic: ClassVar[str]

    def element(self, x: LoopExpr) -> LoopExpr:
        return intrin(self.intrinsic, x)


class Exp(FloatFunction):
    """e to the power of x."""

    name = intrinsic = "exp"
    ufunc = np.exp


class Expm1(FloatFunction):
    """exp(x) - 1, exact near 0."""

    name = intrinsic = "expm1"
    ufunc = np.expm1


class Log(FloatFunction):
    """The natural logarithm; NaN below 0."""

    name = intrinsic = "log"
    ufunc = np.log


class Log2(FloatFunction):
    """The logarithm to base 2; NaN below 0."""

    name = intrinsic = "log2"
    ufunc = np.log2


class Log1p(FloatFunction):
    """log(1 + x), exact near 0."""

    name = intrinsic = "log1p"
    ufunc = np.log1p


class Sqrt(FloatFunction):
    """The square root; NaN below 0."""

    name = intrinsic = "sqrt"
    ufunc = np.sqrt


class Rsqrt(FloatFunction):
    """1 / sqrt(x)."""

    name = intrinsic = "rsqrt"

    def reference(self, data: np.ndarray) -> np.ndarray:
        return np.asarray(1.0 / np.sqrt(data.astype("float64"))).astype(data.dtype)


class Sigmoid(FloatFunction):
    """1 / (1 + exp(-x))."""

    name = intrinsic = "sigmoid"

    def reference(self, data: np.ndarray) -> np.ndarray:
        wide = data.astype("float64")
        small = np.exp(-np.abs(wide))
        return np.asarray(np.where(wide < 0, small, 1) / (1 + small)).astype(data.dtype)


class Erf(FloatFunction):
    """The error function, 2/sqrt(pi) times the integral of exp(-t*t) from 0 to x."""

    name = intrinsic = "erf"

    def reference(self, data: np.ndarray) -> np.ndarray:
        values = [math.erf(v) for v in data.ravel().tolist()]
        return np.array(values, data.dtype).reshape(data.shape)


class Tanh(FloatFunction):
    """The hyperbolic tangent."""

    name = intrinsic = "tanh"
    ufunc = np.tanh


class Sin(FloatFunction):
    """The sine of an angle in radians."""

    name = intrinsic = "sin"
    ufunc = np.sin


class Cos(FloatFunction):
    """The cosine of an angle in radians."""

    name = intrinsic = "cos"
    ufunc = np.cos


class Tan(FloatFunction):
    """The tangent of an angle in radians."""

    name = intrinsic = "tan"
    ufunc = np.tan


class Asin(FloatFunction):
    """The inverse of sin; NaN outside of [-1, 1]."""

    name = intrinsic = "asin"
    ufunc = np.arcsin


class Acos(FloatFunction):
    """The inverse of cos; NaN outside of [-1, 1]."""

    name = intrinsic = "acos"
    ufunc = np.arccos


class Atan(FloatFunction):
    """The inverse of tan."""

    name = intrinsic = "atan"
    ufunc = np.arctan


class Sinh(FloatFunction):
    """The hyperbolic sine."""

    name = intrinsic = "sinh"
    ufunc = np.sinh


class Cosh(FloatFunction):
    """The hyperbolic cosine."""

    name = intrinsic = "cosh"
    ufunc = np.cosh


class Asinh(FloatFunction):
    """The inverse of sinh."""

    name = intrinsic = "asinh"
    ufunc = np.arcsinh


class Acosh(FloatFunction):
    """The inverse of cosh; NaN below 1."""

    name = intrinsic = "acosh"
    ufunc = np.arccosh


class Atanh(FloatFunction):
    """The inverse of tanh; NaN outside of [-1, 1]."""

    name = intrinsic = "atanh"
    ufunc = np.arctanh
