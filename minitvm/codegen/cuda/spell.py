"""How CUDA C spells dtypes, constants and scalar operations: tables.  No header is needed for any of it.

float16 is kept in memory as its bits and computed in float; rounding to it happens where a value is stored or cast.
"""

from __future__ import annotations

import math
import struct

import numpy as np

STORAGE = {
    "bool": "unsigned char",
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "int64": "long long",
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "uint32": "unsigned int",
    "uint64": "unsigned long long",
    "float16": "unsigned short",
    "float32": "float",
    "float64": "double",
}
"""Types in memory."""

VALUE = {**STORAGE, "bool": "bool", "float16": "float"}
"""Types of values."""

UNSIGNED = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}

INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<", "le": "<="}
BITWISE = {"and": "&", "or": "|", "xor": "^"}
BOOL = {"add": "||", "or": "||", "max": "||", "mul": "&&", "and": "&&", "min": "&&", "sub": "!=", "xor": "!="}

FLOAT_BINARY = {"mod": "fmod{f}({0}, {1})", "pow": "pow{f}({0}, {1})", "floordiv": "floor{f}(({0}) / ({1}))"}

_SAME_NAME = (
    ("floor", "ceil", "trunc", "sqrt", "exp", "log", "log2", "log1p", "expm1", "tanh", "erf", "sin", "cos", "tan")
    + ("asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh")
)  # fmt: skip

INTRINSIC = {
    **{name: name + "{f}({0})" for name in _SAME_NAME},
    "neg": "-{0}",
    "abs": "fabs{f}({0})",
    "round": "rint{f}({0})",
    "rsqrt": "1.0{f} / sqrt{f}({0})",
    "sigmoid": "1.0{f} / (1.0{f} + exp{f}(-{0}))",
    "sign": "sign_of({0})",
    "isnan": "{0} != {0}",
    "isinf": "fabs{f}({0}) == {inf}",
    "fma": "fma{f}({0}, {1}, {2})",
}
"""Functions of floats: ``{f}`` is ``f`` for float and nothing for double.  Operands come in brackets where needed."""

INT_INTRINSIC = {
    "neg": "{0} * -1",
    "abs": "{0} < 0 ? {0} * -1 : {0}",
    "not": "~{0}",
    "sign": "({0} > 0) - ({0} < 0)",
    "fma": "{0} * {1} + {2}",
    "isnan": "false",
    "isinf": "false",
    **dict.fromkeys(("floor", "ceil", "round", "trunc"), "{0}"),
}

INFINITY = {"float16": "__int_as_float(0x7f800000)", "float32": "__int_as_float(0x7f800000)"} | {
    "float64": "__longlong_as_double(0x7ff0000000000000ll)"
}

HELPERS = {
    "floor_div": """\
template <class T> __device__ __forceinline__ T floor_div(T a, T b) {  // rounds down; by zero: a
    if (b == 0) return a;
    if ((T)-1 < (T)0 && b == (T)-1) return (T)(0ull - (unsigned long long)a);  // wraps around
    T q = a / b;
    return (a % b != 0 && (a < 0) != (b < 0)) ? q - 1 : q;
}""",
    "floor_mod": """\
template <class T> __device__ __forceinline__ T floor_mod(T a, T b) {  // the sign of b; by zero: 0
    if (b == 0 || ((T)-1 < (T)0 && b == (T)-1)) return 0;
    T r = a % b;
    return (r != 0 && (r < 0) != (b < 0)) ? r + b : r;
}""",
    "float_mod": """\
template <class T> __device__ __forceinline__ T float_mod(T a, T b) {  // the sign of b
    T r = fmod(a, b);
    return (r != 0 && (r < 0) != (b < 0)) ? r + b : r;
}""",
    "trunc_div": """\
template <class T> __device__ __forceinline__ T trunc_div(T a, T b) {  // by zero: a
    if ((T)-1 < (T)0 && b == (T)-1) return (T)(0ull - (unsigned long long)a);  // wraps around
    return b == 0 ? a : a / b;
}""",
    "trunc_mod": """\
template <class T> __device__ __forceinline__ T trunc_mod(T a, T b) {  // the sign of a; by zero: 0
    return b == 0 || ((T)-1 < (T)0 && b == (T)-1) ? (T)0 : a % b;
}""",
    "saturate": """\
template <class T, class F> __device__ __forceinline__ T saturate(F x, F low, F limit, T least, T most) {  // of NaN: 0
    return x >= limit ? most : x < low ? least : x == x ? (T)x : (T)0;
}""",
    "minimum": """\
template <class T> __device__ __forceinline__ T minimum(T a, T b) { return (a < b || a != a) ? a : b; }""",
    "maximum": """\
template <class T> __device__ __forceinline__ T maximum(T a, T b) { return (a > b || a != a) ? a : b; }""",
    "int_pow": """\
template <class T> __device__ __forceinline__ T int_pow(T a, T b) {  // wraps around
    if (b < 0) return a == 1 || a == (T)-1 ? (b % 2 ? a : (T)1) : (T)0;  // the reciprocal, truncated
    unsigned long long base = a, result = 1;
    for (; b > 0; b >>= 1, base *= base)
        if (b & 1) result *= base;
    return (T)result;
}""",
    "shift_left": """\
template <class T> __device__ __forceinline__ T shift_left(T a, T b) {
    return (unsigned long long)b < sizeof(T) * 8 ? (T)((unsigned long long)a << b) : (T)0;
}""",
    "shift_right": """\
template <class T> __device__ __forceinline__ T shift_right(T a, T b) {
    return (unsigned long long)b < sizeof(T) * 8 ? (T)(a >> b) : (T)(a < 0 ? -1 : 0);
}""",
    "sign_of": """\
template <class T> __device__ __forceinline__ T sign_of(T x) { return x > 0 ? (T)1 : x < 0 ? (T)-1 : x; }""",
    "half_to_float": """\
__device__ __forceinline__ float half_to_float(unsigned short bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}""",
    "float_to_half": """\
__device__ __forceinline__ unsigned short float_to_half(float value) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}""",
}
"""Device functions, written into a kernel's source where it uses them."""


def is_float(dtype: str) -> bool:
    return dtype.startswith("float")


def bits_of(dtype: str) -> int:
    return 8 * np.dtype(dtype).itemsize


def suffix(dtype: str) -> str:
    """Of a function's name and of a literal."""
    return "" if dtype == "float64" else "f"


def limits(source: str, to: str) -> tuple[str, str, str, str]:
    """The range of integer dtype ``to``: from and below in a float dtype, least and most in its own."""
    info = np.iinfo(to)
    wide = "float32" if source == "float16" else source  # 2 ** 16 and more is no float16
    ends = constant(info.min, wide), constant(info.max + 1, wide)
    return (*ends, constant(info.min, to), constant(info.max, to))


def constant(value: bool | int | float, dtype: str) -> str:
    if dtype == "bool":
        return "true" if value else "false"
    return _float(float(value), dtype) if is_float(dtype) else _integer(int(value), dtype)


def _float(value: float, dtype: str) -> str:
    with np.errstate(over="ignore"):
        number = np.dtype(dtype).type(value)
    rounded = float(number)
    if math.isfinite(rounded):
        text = str(number if dtype != "float16" else rounded)
        return (text if any(c in text for c in ".e") else f"{text}.0") + suffix(dtype)
    if dtype == "float64":
        return f"__longlong_as_double(0x{struct.unpack('<Q', struct.pack('<d', rounded))[0]:016x}ll)"
    return f"__int_as_float(0x{struct.unpack('<I', struct.pack('<f', rounded))[0]:08x})"


def _integer(value: int, dtype: str) -> str:
    bits, signed = bits_of(dtype), dtype.startswith("int")
    wrapped = value & ((1 << bits) - 1)
    if not signed:
        return f"{wrapped}{'u' if bits <= 32 else 'ull'}"
    value = wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped
    end = "ll" if bits == 64 and abs(value) >= 1 << 31 else ""
    if value == -(1 << (bits - 1)) and bits >= 32:
        return f"({value + 1}{end} - 1)"
    return f"{value}{end}"
