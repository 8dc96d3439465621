"""Casts and scalar functions on registers."""

from __future__ import annotations

from minitvm.codegen.llvm import arith, spell
from minitvm.codegen.llvm.arith import call, literal, typed
from minitvm.codegen.llvm.spell import BITS, is_float, is_unsigned, type_text
from minitvm.codegen.llvm.values import Val
from minitvm.codegen.llvm.writer import Writer
from minitvm.errors import CompilerError


def _convert(w: Writer, instruction: str, value: Val, dtype: str) -> Val:
    text = w.pure(f"{instruction} {typed(value)} to {type_text(dtype, value.lanes)}")
    return Val(text, dtype, value.lanes)


def cast(w: Writer, value: Val, dtype: str) -> Val:
    """``Cast`` of the loop IR on a register: to anything but bool, of a number that fits."""
    source = value.dtype
    if source == dtype:
        return value
    if is_float(source) and is_float(dtype):
        return _convert(w, "fpext" if BITS[dtype] > BITS[source] else "fptrunc", value, dtype)
    if is_float(source):
        return _convert(w, "fptoui" if is_unsigned(dtype) else "fptosi", value, dtype)
    if is_float(dtype):
        return _convert(w, "uitofp" if is_unsigned(source) else "sitofp", value, dtype)
    return _int_to_int(w, value, dtype)


def _int_to_int(w: Writer, value: Val, dtype: str) -> Val:
    before = 1 if value.dtype == "bool" else BITS[value.dtype]
    if before == BITS[dtype]:
        return Val(value.text, dtype, value.lanes)
    if before > BITS[dtype]:
        return _convert(w, "trunc", value, dtype)
    return _convert(w, "zext" if is_unsigned(value.dtype) else "sext", value, dtype)


def intrinsic(w: Writer, name: str, args: tuple[Val, ...]) -> Val:
    """``Intrin`` of the loop IR on registers."""
    args = arith.aligned(w, *args)
    value = args[0]
    special = _SPECIAL.get(name)
    if special is not None:
        return special(w, value)
    if not is_float(value.dtype):
        raise CompilerError(f"{name} is not defined for {value.dtype}", hint="cast to a float first")
    if value.dtype == "float16" and name not in _HALF:
        return cast(w, intrinsic(w, name, tuple(cast(w, a, "float32") for a in args)), "float16")
    if name in spell.LIBM:
        return _library(w, name, value)
    return call(w, spell.FLOAT_INTRINSICS.get(name, name), *args)


_HALF = {"abs", "floor", "ceil", "round", "trunc", "sqrt"}
"""Functions that LLVM does in float16, or in float32 with the same result."""


def _library(w: Writer, name: str, value: Val) -> Val:
    kind = type_text(value.dtype)
    symbol = f"@{name}f" if value.dtype == "float32" else f"@{name}"
    w.declare(symbol, f"declare {kind} {symbol}({kind}) nounwind memory(none)")
    return arith.per_lane(w, [value], lambda x: Val(w.pure(f"call {kind} {symbol}({typed(x)})"), x.dtype))


def _neg(w: Writer, value: Val) -> Val:
    return Val(w.pure(f"fneg {typed(value)}"), value.dtype, value.lanes)


def _not(w: Writer, value: Val) -> Val:
    if value.text in ("true", "false"):
        return literal(value.text == "false", "bool")
    return Val(w.pure(f"xor {typed(value)}, {literal(-1, value.dtype, value.lanes).text}"), value.dtype, value.lanes)


def _bitcast_int(w: Writer, value: Val) -> Val:
    return _convert(w, "bitcast", value, value.dtype.replace("float", "int"))


def _bitcast_float(w: Writer, value: Val) -> Val:
    return _convert(w, "bitcast", value, value.dtype.replace("int", "float"))


_SPECIAL = {"neg": _neg, "not": _not, "bitcast_int": _bitcast_int, "bitcast_float": _bitcast_float}
