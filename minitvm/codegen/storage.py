"""Dtypes that are only stored, as bytes: what machines have of bfloat16, float8, 4- and 2-bit numbers.

A buffer of such a dtype becomes one of its codes (uint8, of bfloat16 uint16); a cast from it decodes, a cast to it
encodes, in arithmetic on int32 and float32 that every target has.  After this step no emitter meets such a dtype.

The formats: IEEE 754 with fewer bits; Micikevicius et al., "FP8 formats for deep learning", 2022 (``fn``: no
infinities, one NaN); Noune et al., "8-bit numerical formats for deep neural networks", 2022 (``fnuz``: one zero, and
NaN where the other one would be); Open Compute Project, "Microscaling formats", 2023 (``float8_e8m0fnu``: a power of
two; ``float4_e2m1fn``).
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from minitvm.ir.dtypes import STORED, bits_of
from minitvm.ir.loop import (
    Alloc,
    Binary,
    Buffer,
    Cast,
    Const,
    Kernel,
    Load,
    LoopExpr,
    Stmt,
    Store,
    allocated,
    const,
    dependency_order,
    intrin,
    map_stmt,
    rebuild_expr,
    select,
)
from minitvm.ir.loop.scalar import convert


@dataclass(frozen=True)
class Format:
    """A float of sign, exponent and ``digits`` bits; 2 to the ``-bias`` has exponent 0.  Codes, without their sign:"""

    digits: int
    bias: int
    largest: int
    beyond: int
    """What numbers that are too large become: infinity, NaN, or the largest one."""
    nan: int
    one_zero: bool = False
    """Zero and NaN have no sign."""


FORMATS = {
    "bfloat16": Format(7, 127, 0x7F7F, 0x7F80, 0x7FC0),
    "float8_e4m3fn": Format(3, 7, 0x7E, 0x7F, 0x7F),
    "float8_e4m3fnuz": Format(3, 8, 0x7F, 0x80, 0x80, one_zero=True),
    "float8_e5m2": Format(2, 15, 0x7B, 0x7C, 0x7E),
    "float8_e5m2fnuz": Format(2, 16, 0x7F, 0x80, 0x80, one_zero=True),
    "float4_e2m1fn": Format(1, 1, 0x7, 0x7, 0x8),
}
_EXPONENT = 127
"""The bias of float32, which has 23 digits."""


def spell_stored(kernel: Kernel) -> Kernel:
    """The kernel over codes."""
    buffers = (*kernel.params, *allocated(kernel.body))
    codes = {b: replace(b, dtype=code_dtype(b.dtype)) for b in buffers if b.dtype in STORED}

    def expression(expr: LoopExpr) -> LoopExpr:
        done: dict[LoopExpr, LoopExpr] = {}
        for node in dependency_order([expr]):
            done[node] = _coded(node, [done[operand] for operand in node.operands], codes)
        return done[expr]

    def statement(stmt: Stmt) -> Stmt:
        if isinstance(stmt, (Store, Alloc)) and stmt.buffer in codes:
            return replace(stmt, buffer=codes[stmt.buffer])
        return stmt

    params = tuple(codes.get(b, b) for b in kernel.params)
    return replace(kernel, params=params, body=map_stmt(kernel.body, expression, statement))


def code_dtype(dtype: str) -> str:
    return f"uint{8 * np.dtype(dtype).itemsize}"


def _coded(node: LoopExpr, operands: list[LoopExpr], codes: dict[Buffer, Buffer]) -> LoopExpr:
    """A node over operands that are codes where they were of stored dtypes."""
    match node:
        case Load(buffer, _) if buffer in codes:
            return Load(codes[buffer], tuple(operands))
        case Const(value, dtype) if dtype in STORED:
            code = convert(np.array([value]), dtype).view(code_dtype(dtype))
            return const(int(code[0]), code_dtype(dtype))
        case Cast(value, dtype) if value.dtype != dtype:
            number = decoded(operands[0], value.dtype) if value.dtype in STORED else operands[0]
            return encoded(number, dtype) if dtype in STORED else number.astype(dtype)
    return rebuild_expr(node, operands)


# --- from codes to numbers ------------------------------------------------------------------------------------


def decoded(code: LoopExpr, dtype: str) -> LoopExpr:
    """The number of a code, in the dtype's carrier."""
    bits = code.astype("int32")
    if dtype in FORMATS:
        return _decoded_float(bits, dtype, FORMATS[dtype])
    if dtype == "float8_e8m0fnu":
        power = intrin("bitcast_float", _shl(bits, 23))
        power = select(bits.equal(0), 2.0**-_EXPONENT, power)
        return select(bits.equal(0xFF), math.nan, power)
    unused = 32 - bits_of(dtype)
    if dtype.startswith("u"):
        return _and(bits, (1 << bits_of(dtype)) - 1).astype("uint8")
    return _shr(_shl(bits, unused), unused).astype("int8")


def _decoded_float(bits: LoopExpr, dtype: str, form: Format) -> LoopExpr:
    sign = 1 << (bits_of(dtype) - 1)
    if form.bias == _EXPONENT:
        return intrin("bitcast_float", _shl(bits, 23 - form.digits))
    size = _and(bits, sign - 1)
    normal = intrin("bitcast_float", _shl(size, 23 - form.digits) + ((_EXPONENT - form.bias) << 23))
    tiny = size.astype("float32") * 2.0 ** (1 - form.bias - form.digits)
    value = select(size < (1 << form.digits), tiny, normal)
    if form.largest < sign - 1:
        value = select(size > form.largest, math.nan, value)
    if form.beyond not in (form.largest, form.nan):
        value = select(size.equal(form.beyond), math.inf, value)
    if form.one_zero:
        value = select(bits.equal(form.nan), math.nan, value)
    return select(_and(bits, sign).equal(0), value, -value)


# --- from numbers to codes ------------------------------------------------------------------------------------


def encoded(number: LoopExpr, dtype: str) -> LoopExpr:
    """The code of a number of any dtype that is computed with (:func:`minitvm.ir.loop.scalar.convert`)."""
    if STORED[dtype] != "float32":
        whole = number if "int" in number.dtype else number.astype("int32")
        return _and(whole.astype("int32"), (1 << bits_of(dtype)) - 1).astype("uint8")
    wide = number.dtype == "float64" or number.dtype.endswith(("int32", "int64"))
    single = round_to_odd(number.astype("float64")) if wide else number.astype("float32")
    bits = intrin("bitcast_int", single)
    if dtype == "float8_e8m0fnu":
        code = select(Binary("and", bits > 0, bits < 0x7F800000), _shr(bits, 23), 0xFF)
        return select(single.equal(0), 0, code).astype("uint8")
    return _encoded_float(single, bits, dtype, FORMATS[dtype]).astype(code_dtype(dtype))


def _encoded_float(single: LoopExpr, bits: LoopExpr, dtype: str, form: Format) -> LoopExpr:
    """Rounded to the nearest code, halves to even ones.  Beside zero, where codes are equally far apart, the sum with
    a power of two whose last digit is that distance rounds."""
    drop, sign = 23 - form.digits, 1 << (bits_of(dtype) - 1)
    size = _and(bits, 0x7FFFFFFF)
    half = ((form.bias - _EXPONENT) << 23) + (1 << (drop - 1)) - 1
    code = _shr(size + _and(_shr(size, drop), 1) + half, drop)
    if form.bias != _EXPONENT:
        step = 2.0 ** (24 - form.bias - form.digits)
        base = int(np.float32(step).view(np.int32))
        near_zero = intrin("bitcast_int", intrin("abs", single) + step) - base
        code = select(size < ((_EXPONENT + 1 - form.bias) << 23), near_zero, code)
    code = select(code > form.largest, form.beyond, code)
    code = select(size > 0x7F800000, form.nan, code)
    signed = Binary("xor", code, _and(_shr(bits, 31), sign))
    return select(_and(code, sign - 1).equal(0), code, signed) if form.one_zero else signed


def round_to_odd(value: LoopExpr) -> LoopExpr:
    """Rounds float64 to float32 with the last bit sticky, so that rounding once more is right.

    Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to odd".
    """
    near = value.astype("float32")
    back = near.astype("float64")
    bits = intrin("bitcast_int", near)
    below = bits - (intrin("abs", value) < intrin("abs", back)).astype("int32")
    inexact = Binary("or", value < back, back < value)
    return intrin("bitcast_float", select(inexact, Binary("or", below, Const(1, "int32")), bits))


def _and(bits: LoopExpr, mask: int) -> LoopExpr:
    return Binary("and", bits, const(mask, bits.dtype))


def _shl(bits: LoopExpr, by: int) -> LoopExpr:
    return Binary("shl", bits, const(by, bits.dtype))


def _shr(bits: LoopExpr, by: int) -> LoopExpr:
    """With the sign's bit filled in."""
    return Binary("shr", bits, const(by, bits.dtype))
