"""How LLVM spells dtypes, constants and scalar operations: tables, no logic that depends on a kernel."""

from __future__ import annotations

import struct
from functools import cache

import numpy as np

from minitvm.errors import CompilerError
from minitvm.ir.loop import CHEAP
from minitvm.runtime.spin import spinning_text

SCALAR_TYPES = {
    "bool": "i1",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "i8",
    "uint16": "i16",
    "uint32": "i32",
    "uint64": "i64",
    "float16": "half",
    "float32": "float",
    "float64": "double",
}
"""Types of values.  A bool is ``i1`` in a register and ``i8`` in memory."""

BITS = {dtype: 8 * np.dtype(dtype).itemsize for dtype in SCALAR_TYPES}
BYTES = {dtype: np.dtype(dtype).itemsize for dtype in SCALAR_TYPES}

_FLOAT_BINARY = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv", "mod": "frem"}
"""Never ``contract``: a product that overflows is infinite before the next operator adds to it.  ``fma`` is said."""
_INT_BINARY = {op: op for op in ("add", "sub", "mul", "and", "or", "xor", "shl")}
_SIGNED_BINARY = {**_INT_BINARY, "div": "sdiv", "mod": "srem", "shr": "ashr"}
_UNSIGNED_BINARY = {**_INT_BINARY, "div": "udiv", "mod": "urem", "shr": "lshr"}

FLOAT_COMPARE = {"eq": "fcmp oeq", "ne": "fcmp une", "lt": "fcmp olt", "le": "fcmp ole"}
SIGNED_COMPARE = {"eq": "icmp eq", "ne": "icmp ne", "lt": "icmp slt", "le": "icmp sle"}
UNSIGNED_COMPARE = {"eq": "icmp eq", "ne": "icmp ne", "lt": "icmp ult", "le": "icmp ule"}

FLOAT_INTRINSICS = {
    "abs": "fabs",
    "round": "roundeven",
    "fma": "fmuladd",  # rounded once or twice, as the target is faster: without an instruction, "fma" is a library call
}
"""Functions whose LLVM intrinsic has another name (some become calls of the C library)."""

LIBM = {"log1p", "expm1", "erf", "asinh", "acosh", "atanh"}
"""Functions that only the C library has: ``erf`` for double, ``erff`` for float."""

SPELLINGS = CHEAP
"""Functions that become vector instructions; ``legalize`` turns what it can of the others into polynomials."""


AS_WRITTEN = '"minitvm-as-written"'
"""Attribute of a long function whose loops are as they shall be: LLVM's own pipeline would find little to do in it."""


def is_float(dtype: str) -> bool:
    return dtype.startswith("float")


def is_unsigned(dtype: str) -> bool:
    return dtype.startswith("u") or dtype == "bool"


def instruction(op: str, dtype: str) -> str:
    """The instruction of an operator; :class:`CompilerError` where the dtype has none."""
    known = _FLOAT_BINARY if is_float(dtype) else _UNSIGNED_BINARY if is_unsigned(dtype) else _SIGNED_BINARY
    if op not in known:
        raise CompilerError(f"{op} is not defined for {dtype}", hint="cast to an integer first")
    return known[op]


def binary_function(op: str, dtype: str) -> str | None:
    """The LLVM intrinsic of an operator that has no instruction."""
    if op in ("min", "max"):
        return f"{op}imum" if is_float(dtype) else f"{'u' if is_unsigned(dtype) else 's'}{op}"
    return "pow" if op == "pow" else None


@cache
def type_text(dtype: str, lanes: int = 0) -> str:
    """The LLVM type of a value: ``float``, ``<8 x float>``; ``lanes`` 0 is a scalar."""
    scalar = SCALAR_TYPES[dtype]
    return f"<{lanes} x {scalar}>" if lanes else scalar


@cache
def memory_text(dtype: str, lanes: int = 0) -> str:
    """The LLVM type in memory."""
    return type_text("uint8" if dtype == "bool" else dtype, lanes)


@cache
def mangled(dtype: str, lanes: int = 0) -> str:
    """The suffix of an overloaded intrinsic: ``f32``, ``v8f32``, ``v4i64``."""
    scalar = f"{'f' if is_float(dtype) else 'i'}{1 if dtype == 'bool' else BITS[dtype]}"
    return f"v{lanes}{scalar}" if lanes else scalar


def constant(value: bool | int | float, dtype: str) -> str:
    """A scalar literal, rounded to the dtype; integers wrap around."""
    if dtype == "bool":
        return "true" if value else "false"
    if not is_float(dtype):
        return str(_wrap(int(value), BITS[dtype]))
    if dtype == "float16":
        return f"0xH{np.float16(value).view(np.uint16):04X}"
    rounded = _to_float32(float(value)) if dtype == "float32" else float(value)
    return f"0x{struct.unpack('<Q', struct.pack('<d', rounded))[0]:016X}"


def _to_float32(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def _wrap(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def quoted(name: str) -> str:
    """A symbol's name as LLVM text wants it."""
    return '"' + "".join(c if c.isascii() and (c.isalnum() or c in "_.$-") else f"\\{ord(c):02X}" for c in name) + '"'


def barrier_text(features: frozenset[str]) -> str:
    """The team's barrier as an internal function, with what it declares; ``features`` as a machine model has them."""
    return spinning_text("codegen/llvm/barrier.ll", features)
