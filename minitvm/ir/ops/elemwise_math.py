"""Elementwise functions of one float tensor: exponentials, logarithms, roots, trigonometry."""

from __future__ import annotations

import math

import numpy as np

from minitvm.ir.ops.elemwise import Unary


class FloatFunction(Unary, kinds="f"):
    """A function of each element of a float tensor."""


class Exp(FloatFunction, name="exp", ufunc=np.exp):
    """e to the power of x."""


class Expm1(FloatFunction, name="expm1", ufunc=np.expm1):
    """exp(x) - 1, exact near 0."""


class Log(FloatFunction, name="log", ufunc=np.log):
    """The natural logarithm; NaN below 0."""


class Log2(FloatFunction, name="log2", ufunc=np.log2):
    """The logarithm to base 2; NaN below 0."""


class Log1p(FloatFunction, name="log1p", ufunc=np.log1p):
    """log(1 + x), exact near 0."""


class Sqrt(FloatFunction, name="sqrt", ufunc=np.sqrt):
    """The square root; NaN below 0."""


class Rsqrt(FloatFunction, name="rsqrt"):
    """1 / sqrt(x)."""

    def reference(self, data: np.ndarray) -> np.ndarray:
        return np.asarray(1.0 / np.sqrt(data.astype("float64"))).astype(data.dtype)


class Sigmoid(FloatFunction, name="sigmoid"):
    """1 / (1 + exp(-x))."""

    def reference(self, data: np.ndarray) -> np.ndarray:
        wide = data.astype("float64")
        small = np.exp(-np.abs(wide))
        return np.asarray(np.where(wide < 0, small, 1) / (1 + small)).astype(data.dtype)


class Erf(FloatFunction, name="erf"):
    """The error function, 2/sqrt(pi) times the integral of exp(-t*t) from 0 to x."""

    def reference(self, data: np.ndarray) -> np.ndarray:
        values = [math.erf(v) for v in data.ravel().tolist()]
        return np.array(values, data.dtype).reshape(data.shape)


class Tanh(FloatFunction, name="tanh", ufunc=np.tanh):
    """The hyperbolic tangent."""


class Sin(FloatFunction, name="sin", ufunc=np.sin):
    """The sine of an angle in radians."""


class Cos(FloatFunction, name="cos", ufunc=np.cos):
    """The cosine of an angle in radians."""


class Tan(FloatFunction, name="tan", ufunc=np.tan):
    """The tangent of an angle in radians."""


class Asin(FloatFunction, name="asin", ufunc=np.arcsin):
    """The inverse of sin; NaN outside of [-1, 1]."""


class Acos(FloatFunction, name="acos", ufunc=np.arccos):
    """The inverse of cos; NaN outside of [-1, 1]."""


class Atan(FloatFunction, name="atan", ufunc=np.arctan):
    """The inverse of tan."""


class Sinh(FloatFunction, name="sinh", ufunc=np.sinh):
    """The hyperbolic sine."""


class Cosh(FloatFunction, name="cosh", ufunc=np.cosh):
    """The hyperbolic cosine."""


class Asinh(FloatFunction, name="asinh", ufunc=np.arcsinh):
    """The inverse of sinh."""


class Acosh(FloatFunction, name="acosh", ufunc=np.arccosh):
    """The inverse of cosh; NaN below 1."""


class Atanh(FloatFunction, name="atanh", ufunc=np.arctanh):
    """The inverse of tanh; NaN outside of [-1, 1]."""
