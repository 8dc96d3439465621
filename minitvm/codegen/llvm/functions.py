"""Casts and scalar functions on registers."""

from __future__ import annotations

import math

import numpy as np

from minitvm.codegen.llvm import arith, spell
from minitvm.codegen.llvm.arith import call, compare, literal, select, typed
from minitvm.codegen.llvm.spell import BITS, is_float, is_unsigned, mangled, type_text
from minitvm.codegen.llvm.values import Val
from minitvm.codegen.llvm.writer import Writer
from minitvm.errors import CompilerError


def _convert(w: Writer, instruction: str, value: Val, dtype: str) -> Val:
    text = w.pure(f"{instruction} {typed(value)} to {type_text(dtype, value.lanes)}")
    return Val(text, dtype, value.lanes)


def cast(w: Writer, value: Val, dtype: str) -> Val:
    """``Cast`` of the loop IR on a register."""
    source = value.dtype
    if source == dtype:
        return value
    if dtype == "bool":
        return compare(w, "ne", value, literal(0, source, value.lanes))
    if is_float(source):
        return _float_to_float(w, value, dtype) if is_float(dtype) else _float_to_int(w, value, dtype)
    if is_float(dtype):
        return _int_to_float(w, value, dtype)
    return _int_to_int(w, value, dtype)


def _int_to_int(w: Writer, value: Val, dtype: str) -> Val:
    before = 1 if value.dtype == "bool" else BITS[value.dtype]
    if before == BITS[dtype]:
        return Val(value.text, dtype, value.lanes)
    if before > BITS[dtype]:
        return _convert(w, "trunc", value, dtype)
    return _convert(w, "zext" if is_unsigned(value.dtype) else "sext", value, dtype)


def _int_to_float(w: Writer, value: Val, dtype: str) -> Val:
    """To float16 by way of float32: what a second rounding could change is beyond float16's range."""
    wide = "float32" if dtype == "float16" else dtype
    found = _convert(w, "uitofp" if is_unsigned(value.dtype) else "sitofp", value, wide)
    return cast(w, found, dtype)


def _float_to_int(w: Writer, value: Val, dtype: str) -> Val:
    if value.dtype == "float16":
        value = cast(w, value, "float32")
    if value.lanes:
        return _float_to_int_lanes(w, value, dtype)
    source, target = type_text(value.dtype, value.lanes), type_text(dtype, value.lanes)
    kind = "fptoui" if is_unsigned(dtype) else "fptosi"
    symbol = f"@llvm.{kind}.sat.{mangled(dtype, value.lanes)}.{mangled(value.dtype, value.lanes)}"
    w.declare(symbol, f"declare {target} {symbol}({source})")
    return Val(w.pure(f"call {target} {symbol}({typed(value)})"), dtype, value.lanes)


def _float_to_int_lanes(w: Writer, value: Val, dtype: str) -> Val:
    """The saturating conversion of a vector, spelled out: LLVM would do the intrinsic's lane by lane."""
    lanes, reach, source = value.lanes, np.iinfo(dtype), np.dtype(value.dtype).type
    low, high = source(reach.min), source(reach.max)
    if int(high) > reach.max:
        high = np.nextafter(high, source(0))
    least, most = (literal(float(edge), value.dtype, lanes) for edge in (low, high))
    inside = select(w, compare(w, "le", least, value), value, least)  # NaN becomes the least
    inside = select(w, compare(w, "le", inside, most), inside, most)
    found = _convert(w, "fptoui" if is_unsigned(dtype) else "fptosi", inside, dtype)
    if int(high) < reach.max:
        found = select(w, compare(w, "lt", most, value), literal(reach.max, dtype, lanes), found)
    if is_unsigned(dtype):
        return found
    return select(w, compare(w, "eq", value, value), found, literal(0, dtype, lanes))


def _float_to_float(w: Writer, value: Val, dtype: str) -> Val:
    if BITS[dtype] > BITS[value.dtype]:
        return _convert(w, "fpext", value, dtype)
    if (value.dtype, dtype) == ("float64", "float16"):
        value = _round_to_odd(w, value)
    return _convert(w, "fptrunc", value, dtype)


def _round_to_odd(w: Writer, value: Val) -> Val:
    """float64 to float32 with the last bit sticky, so that rounding once more to float16 is right.

    Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to odd".
    """
    near = _convert(w, "fptrunc", value, "float32")
    back = _convert(w, "fpext", near, "float64")
    bits = _convert(w, "bitcast", near, "int32")
    one = literal(1, "int32", value.lanes)
    beyond = compare(w, "lt", call(w, "fabs", value), call(w, "fabs", back))
    below = select(w, beyond, arith.binary(w, "sub", bits, one), bits)
    inexact = Val(w.pure(f"fcmp one {typed(value)}, {back.text}"), "bool", value.lanes)
    odd = select(w, inexact, arith.binary(w, "or", below, one), bits)
    return _convert(w, "bitcast", odd, "float32")


def intrinsic(w: Writer, name: str, args: tuple[Val, ...]) -> Val:
    """``Intrin`` of the loop IR on registers."""
    args = arith.aligned(w, *args)
    value = args[0]
    special = _SPECIAL.get(name)
    if special is not None:
        return special(w, value)
    if not is_float(value.dtype):
        return _int_function(w, name, value)
    if value.dtype == "float16" and name not in _HALF:
        return cast(w, intrinsic(w, name, tuple(cast(w, a, "float32") for a in args)), "float16")
    if name in spell.FLOAT_INTRINSICS:
        return call(w, spell.FLOAT_INTRINSICS[name], *args)
    if name in spell.LIBM:
        return _library(w, name, value)
    return _COMPOSED[name](w, value)


_HALF = {"abs", "floor", "ceil", "round", "trunc", "sqrt"}
"""Functions that LLVM does in float16, or in float32 with the same result."""


def _library(w: Writer, name: str, value: Val) -> Val:
    kind = type_text(value.dtype)
    symbol = f"@{name}f" if value.dtype == "float32" else f"@{name}"
    w.declare(symbol, f"declare {kind} {symbol}({kind}) nounwind memory(none)")
    return arith.per_lane(w, [value], lambda x: Val(w.pure(f"call {kind} {symbol}({typed(x)})"), x.dtype))


def _int_function(w: Writer, name: str, value: Val) -> Val:
    if name in ("floor", "ceil", "round", "trunc"):
        return value
    if name == "abs":
        return value if is_unsigned(value.dtype) else _int_abs(w, value)
    raise CompilerError(f"{name} is not defined for {value.dtype}", hint="cast to a float first")


def _int_abs(w: Writer, value: Val) -> Val:
    negative = compare(w, "lt", value, literal(0, value.dtype, value.lanes))
    return select(w, negative, _neg(w, value), value)


def _neg(w: Writer, value: Val) -> Val:
    if is_float(value.dtype):
        return Val(w.pure(f"fneg {typed(value)}"), value.dtype, value.lanes)
    return arith.binary(w, "sub", literal(0, value.dtype, value.lanes), value)


def _not(w: Writer, value: Val) -> Val:
    if value.text in ("true", "false"):
        return literal(value.text == "false", "bool")
    return Val(w.pure(f"xor {typed(value)}, {literal(-1, value.dtype, value.lanes).text}"), value.dtype, value.lanes)


def _sign(w: Writer, value: Val) -> Val:
    """-1, 0 or 1; NaN and -0.0 stay."""
    zero, one = (literal(n, value.dtype, value.lanes) for n in (0, 1))
    if value.dtype == "bool":
        return value
    found = value if is_float(value.dtype) else zero
    if not is_unsigned(value.dtype):
        found = select(w, compare(w, "lt", value, zero), literal(-1, value.dtype, value.lanes), found)
    return select(w, compare(w, "lt", zero, value), one, found)


def _isnan(w: Writer, value: Val) -> Val:
    if not is_float(value.dtype):
        return literal(False, "bool", value.lanes)
    return Val(w.pure(f"fcmp uno {typed(value)}, {value.text}"), "bool", value.lanes)


def _isinf(w: Writer, value: Val) -> Val:
    if not is_float(value.dtype):
        return literal(False, "bool", value.lanes)
    return compare(w, "eq", call(w, "fabs", value), literal(math.inf, value.dtype, value.lanes))


def _bitcast_int(w: Writer, value: Val) -> Val:
    return _convert(w, "bitcast", value, value.dtype.replace("float", "int"))


def _bitcast_float(w: Writer, value: Val) -> Val:
    return _convert(w, "bitcast", value, value.dtype.replace("int", "float"))


def _rsqrt(w: Writer, value: Val) -> Val:
    return arith.binary(w, "div", literal(1, value.dtype, value.lanes), call(w, "sqrt", value))


def _sigmoid(w: Writer, value: Val) -> Val:
    """By the exponential of what is negative, which does not overflow."""
    zero, one = (literal(n, value.dtype, value.lanes) for n in (0, 1))
    small = call(w, "exp", _neg(w, call(w, "fabs", value)))
    top = select(w, compare(w, "lt", value, zero), small, one)
    return arith.binary(w, "div", top, arith.binary(w, "add", one, small))


_SPECIAL = {
    "neg": _neg,
    "not": _not,
    "sign": _sign,
    "isnan": _isnan,
    "isinf": _isinf,
    "bitcast_int": _bitcast_int,
    "bitcast_float": _bitcast_float,
}
_COMPOSED = {"rsqrt": _rsqrt, "sigmoid": _sigmoid}
