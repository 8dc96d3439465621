"""TVM's ``te.var``, ``tir.Any`` and numbers of ``tir`` where scripts of Relay's need them: sizes that are open, and
values of attributes."""

from __future__ import annotations

import typing

from minitvm.ir.dims import Dim, SymbolicDim, anonymous, symbol


def var(name: str = "tindex", dtype: str = "int32", span: typing.Any = None) -> Dim:
    """An open size of that name: equal to every other one of it."""
    return symbol(name)


size_var = var


class _OpenSizes(type):
    """Open sizes are its instances."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, SymbolicDim)


class Var(metaclass=_OpenSizes):
    """Makes an open size as :func:`var` does: ``tir.Var("n", "int32")``."""

    def __new__(cls, name: str = "tindex", dtype: str = "int32", span: typing.Any = None) -> typing.Any:
        return symbol(name)


SizeVar = Var


class Any(metaclass=_OpenSizes):
    """Makes a dimension of any extent: ``tir.Any()``."""

    def __new__(cls) -> typing.Any:
        return anonymous()


class IntImm(int):
    """A whole number of a dtype, ``IntImm("int32", 1)``."""

    def __new__(cls, dtype: str, value: int, span: typing.Any = None) -> IntImm:
        made = super().__new__(cls, value)
        made.dtype, made.value = dtype, int(value)
        return made

    dtype: str
    value: int


class FloatImm(float):
    """A number of a dtype, ``FloatImm("float32", 0.5)``."""

    def __new__(cls, dtype: str, value: float, span: typing.Any = None) -> FloatImm:
        made = super().__new__(cls, value)
        made.dtype, made.value = dtype, float(value)
        return made

    dtype: str
    value: float


class StringImm(str):
    """A text, ``StringImm("a")``."""

    __slots__ = ()
    value = property(str)


def indexdiv(a: Dim, b: int, span: typing.Any = None) -> Dim:
    """The whole quotient of sizes."""
    return a // b


def indexmod(a: Dim, b: int, span: typing.Any = None) -> Dim:
    """The rest of a quotient of sizes."""
    return a - b * (a // b)


floordiv, floormod = indexdiv, indexmod
