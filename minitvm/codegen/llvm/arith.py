"""Machine operations on registers, lane by lane alike, and how LLVM spells them: arithmetic, comparisons, conversions,
functions.

Nothing here is asked for what would trap: :mod:`minitvm.codegen.legalize` was there before.
"""

import struct
from collections.abc import Callable, Mapping
from functools import cache

import numpy as np

from minitvm.codegen.llvm.writer import Val, Writer
from minitvm.errors import CompilerError
from minitvm.ir.dtypes import COMPUTED, bits_of, is_float
from minitvm.ir.loop import CHEAP, COMPARISONS, DOT_OPERANDS, Dot

_FLOATS = {"float16": "half", "float32": "float", "float64": "double"}
SCALAR_TYPES = {dtype: f"i{bits_of(dtype)}" for dtype in COMPUTED} | {"bool": "i1"} | _FLOATS
"""Types of values.  A bool is ``i1`` in a register and ``i8`` in memory."""

BYTES = {dtype: bits_of(dtype) // 8 for dtype in COMPUTED}

_INSTRUCTIONS = {
    "add": ("fadd", "add", "add"), "sub": ("fsub", "sub", "sub"), "mul": ("fmul", "mul", "mul"),
    "div": ("fdiv", "sdiv", "udiv"), "mod": ("frem", "srem", "urem"),
    "and": ("", "and", "and"), "or": ("", "or", "or"), "xor": ("", "xor", "xor"),
    "shl": ("", "shl", "shl"), "shr": ("", "ashr", "lshr"),
    "eq": ("fcmp oeq", "icmp eq", "icmp eq"), "ne": ("fcmp une", "icmp ne", "icmp ne"),
    "lt": ("fcmp olt", "icmp slt", "icmp ult"), "le": ("fcmp ole", "icmp sle", "icmp ule"),
}  # fmt: skip
"""Of floats, signed and unsigned integers.  Never ``contract``: a product that overflows is infinite before the next
operator adds to it.  ``fma`` is said."""
_FUNCTIONS = {"min": ("minimum", "smin", "umin"), "max": ("maximum", "smax", "umax"), "pow": ("pow", "", "")}
"""Operators that are LLVM intrinsics."""

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


DOTS = '"minitvm-dots"'
"""Attribute of a function with dot products of bytes: it may use instructions that LLVM is kept from elsewhere."""

WIDTH = '"prefer-vector-width"'
"""Attribute of every kernel, before which the processor is named that it is put in order for."""


def is_unsigned(dtype: str) -> bool:
    return dtype.startswith("u") or dtype == "bool"


def spelled(table: Mapping[str, tuple[str, ...]], op: str, dtype: str) -> str:
    """An operator of a dtype; :class:`CompilerError` where the dtype has none."""
    found = table.get(op, ("", "", ""))[0 if is_float(dtype) else 2 if is_unsigned(dtype) else 1]
    if not found:
        raise CompilerError(f"{op} is not defined for {dtype}", hint="cast to an integer first")
    return found


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
    scalar = f"{'f' if is_float(dtype) else 'i'}{1 if dtype == 'bool' else bits_of(dtype)}"
    return f"v{lanes}{scalar}" if lanes else scalar


def constant(value: bool | int | float, dtype: str) -> str:
    """A scalar literal, rounded to the dtype; integers wrap around."""
    if dtype == "int64" and -(2**63) <= value < 2**63:
        return str(int(value))
    if dtype == "bool":
        return "true" if value else "false"
    if not is_float(dtype):
        return str(_wrap(int(value), bits_of(dtype)))
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


# --- instructions ---------------------------------------------------------------------------------------------


def literal(value: bool | float, dtype: str, lanes: int = 0) -> Val:
    text = constant(value, dtype)
    return Val(f"splat ({type_text(dtype)} {text})" if lanes else text, dtype, lanes)


def typed(value: Val) -> str:
    return f"{type_text(value.dtype, value.lanes)} {value.text}"


def splat(w: Writer, value: Val, lanes: int) -> Val:
    """The scalar in all lanes; itself where nothing is to be done."""
    if value.lanes == lanes:
        return value
    if not value.text.startswith("%"):
        return Val(f"splat ({typed(value)})", value.dtype, lanes)
    wide = type_text(value.dtype, lanes)
    first = w.pure(f"insertelement {wide} poison, {typed(value)}, i64 0")
    return Val(
        w.pure(f"shufflevector {wide} {first}, {wide} poison, <{lanes} x i32> zeroinitializer"), value.dtype, lanes
    )


def aligned(w: Writer, *values: Val) -> tuple[Val, ...]:
    """All with the same number of lanes."""
    lanes = max([v.lanes for v in values])
    return tuple([splat(w, v, lanes) for v in values]) if lanes else values


def lane(w: Writer, value: Val, number: int) -> Val:
    """One lane of a vector; a scalar is every lane of itself."""
    if not value.lanes:
        return value
    return Val(w.pure(f"extractelement {typed(value)}, i64 {number}"), value.dtype)


def gather_lanes(w: Writer, values: list[Val]) -> Val:
    """A vector from its lanes."""
    lanes, dtype = len(values), values[0].dtype
    text, wide = "poison", type_text(dtype, lanes)
    for number, value in enumerate(values):
        text = w.pure(f"insertelement {wide} {text}, {typed(value)}, i64 {number}")
    return Val(text, dtype, lanes)


def select(w: Writer, condition: Val, then: Val, orelse: Val) -> Val:
    if condition.lanes or then.lanes or orelse.lanes:
        lanes = max(condition.lanes, then.lanes, orelse.lanes)
        then, orelse = splat(w, then, lanes), splat(w, orelse, lanes)
    if condition.text in ("true", "false"):
        return then if condition.text == "true" else orelse
    text = w.pure(f"select {typed(condition)}, {typed(then)}, {typed(orelse)}")
    return Val(text, then.dtype, then.lanes)


def logic(w: Writer, op: str, a: Val, b: Val) -> Val:
    """``and``, ``or``, ``xor`` of bools; literals are folded, so that decided guards vanish."""
    for known, other in ((a, b), (b, a)):
        if known.text in ("true", "false") and op != "xor":
            return other if (known.text == "true") == (op == "and") else known
    a, b = aligned(w, a, b)
    return plain(w, op, a, b)


def compare(w: Writer, op: str, a: Val, b: Val) -> Val:
    a, b = aligned(w, a, b)
    return Val(w.pure(f"{spelled(_INSTRUCTIONS, op, a.dtype)} {typed(a)}, {b.text}"), "bool", a.lanes)


def binary(w: Writer, op: str, a: Val, b: Val) -> Val:
    """``Binary`` of the loop IR on registers of one dtype."""
    if op in COMPARISONS:
        return compare(w, op, a, b)
    if a.dtype == "bool":
        return logic(w, op, a, b)
    a, b = aligned(w, a, b)
    if op in ("floordiv", "floormod"):
        return _index_division(w, op, a, b)
    if op == "pow" and not is_float(a.dtype):
        return _int_pow(w, a, b)
    if op in ("min", "max") and is_float(a.dtype):
        return _extreme(w, op, a, b)
    if op in _FUNCTIONS:
        return call(w, spelled(_FUNCTIONS, op, a.dtype), a, b)
    return plain(w, spelled(_INSTRUCTIONS, op, a.dtype), a, b)


def _extreme(w: Writer, op: str, a: Val, b: Val) -> Val:
    """NaN where either is, the first of two zeros: one instruction where the second is a literal number."""
    bits = _magnitude(b)
    if bits:  # no zero meets another
        return call(w, spelled(_FUNCTIONS, op, a.dtype), a, b, flags="nsz ")
    found = select(w, compare(w, "lt", *((b, a) if op == "min" else (a, b))), b, a)
    if bits is not None:
        return found
    apart = Val(w.pure(f"freeze {typed(found)}"), a.dtype, a.lanes)  # LLVM would merge both choices into three steps
    return select(w, compare(w, "ne", b, b), b, apart)


def _magnitude(value: Val) -> int | None:
    """The bits but the sign of a literal float, the same in all lanes; ``None`` of NaN and of what is computed."""
    digits = value.text.rstrip(")").rpartition("0x")[2].removeprefix("H")
    if value.text.startswith("%") or not digits.isalnum():
        return None
    infinity, sign = (0x7C00, 1 << 15) if len(digits) == 4 else (0x7FF << 52, 1 << 63)
    bits = int(digits, 16) & (sign - 1)
    return bits if bits <= infinity else None


def plain(w: Writer, instruction: str, a: Val, b: Val) -> Val:
    """An instruction on two registers of one type."""
    return Val(w.pure(f"{instruction} {typed(a)}, {b.text}"), a.dtype, a.lanes)


def call(w: Writer, function: str, *args: Val, flags: str = "") -> Val:
    """An LLVM intrinsic whose first operand and result have one type; it is named after all types that there are.
    ``flags`` are what LLVM may take for granted of floats."""
    first = args[0]
    kinds = [type_text(a.dtype, a.lanes) for a in args]
    kind, names = kinds[0], dict.fromkeys(mangled(a.dtype, a.lanes) for a in args)
    symbol = f"@llvm.{function}.{'.'.join(names)}"
    w.declare(symbol, f"declare {kind} {symbol}({', '.join(kinds)})")
    return Val(w.pure(f"call {flags}{kind} {symbol}({', '.join(typed(a) for a in args)})"), first.dtype, first.lanes)


def _index_division(w: Writer, op: str, a: Val, divisor: Val) -> Val:
    """Rounded down, by a positive literal: one step below truncation where the remainder is negative."""
    rest = plain(w, "srem", a, divisor)
    negative = compare(w, "lt", rest, literal(0, a.dtype, a.lanes))
    if op == "floormod":
        return select(w, negative, plain(w, "add", rest, divisor), rest)
    quotient = plain(w, "sdiv", a, divisor)
    return select(w, negative, plain(w, "add", quotient, literal(-1, a.dtype, a.lanes)), quotient)


_POW = """define internal {t} @{name}({t} %base, {t} %exponent) nounwind memory(none) {{
start:
  br label %loop
loop:
  %b = phi {t} [ %base, %start ], [ %b2, %loop ]
  %e = phi {t} [ %exponent, %start ], [ %e2, %loop ]
  %r = phi {t} [ 1, %start ], [ %r2, %loop ]
  %bit = trunc {t} %e to i1
  %times = mul {t} %r, %b
  %r2 = select i1 %bit, {t} %times, {t} %r
  %b2 = mul {t} %b, %b
  %e2 = lshr {t} %e, 1
  %done = icmp eq {t} %e2, 0
  br i1 %done, label %end, label %loop
end:
  ret {t} %r2
}}"""


def _int_pow(w: Writer, a: Val, b: Val) -> Val:
    """By squaring."""
    kind, symbol = type_text(a.dtype), f"@minitvm.pow.{a.dtype}"
    w.declare(symbol, _POW.format(t=kind, name=symbol[1:]))
    return per_lane(w, [a, b], lambda x, y: Val(w.pure(f"call {kind} {symbol}({typed(x)}, {typed(y)})"), a.dtype))


def per_lane(w: Writer, args: list[Val], function: Callable[..., Val]) -> Val:
    """Apply a scalar function lane by lane."""
    lanes = args[0].lanes
    if not lanes:
        return function(*args)
    return gather_lanes(w, [function(*(lane(w, a, i) for a in args)) for i in range(lanes)])


# --- conversions and functions ----------------------------------------------------------------------------------


def _convert(w: Writer, instruction: str, value: Val, dtype: str) -> Val:
    text = w.pure(f"{instruction} {typed(value)} to {type_text(dtype, value.lanes)}")
    return Val(text, dtype, value.lanes)


def cast(w: Writer, value: Val, dtype: str) -> Val:
    """``Cast`` of the loop IR on a register: to anything but bool, of a number that fits."""
    source = value.dtype
    if source == dtype:
        return value
    if is_float(source) and is_float(dtype):
        return _convert(w, "fpext" if bits_of(dtype) > bits_of(source) else "fptrunc", value, dtype)
    if is_float(source):
        return _convert(w, "fptoui" if is_unsigned(dtype) else "fptosi", value, dtype)
    if is_float(dtype):
        return _convert(w, "uitofp" if is_unsigned(source) else "sitofp", value, dtype)
    return _int_to_int(w, value, dtype)


def rounded(w: Writer, value: Val, dtype: str) -> Val:
    """Rounds float32 to the nearest integer, which fits."""
    whole, of = type_text("int32", value.lanes), type_text("float32", value.lanes)
    symbol = f"@llvm.lrint.{mangled('int32', value.lanes)}.{mangled('float32', value.lanes)}"
    w.declare(symbol, f"declare {whole} {symbol}({of})")
    found = Val(w.pure(f"call {whole} {symbol}({typed(value)})"), "int32", value.lanes)
    return found if dtype == "int32" else _convert(w, f"trunc {'nuw' if is_unsigned(dtype) else 'nsw'}", found, dtype)


def _int_to_int(w: Writer, value: Val, dtype: str) -> Val:
    before = 1 if value.dtype == "bool" else bits_of(value.dtype)
    if before == bits_of(dtype):
        return Val(value.text, dtype, value.lanes)
    if before > bits_of(dtype):
        return _convert(w, "trunc", value, dtype)
    return _convert(w, "zext" if is_unsigned(value.dtype) else "sext", value, dtype)


def intrinsic(w: Writer, name: str, args: tuple[Val, ...]) -> Val:
    """``Intrin`` of the loop IR on registers, but for products of words (:mod:`minitvm.codegen.llvm.dots`)."""
    args = aligned(w, *args)
    value = args[0]
    if name in _SPECIAL:
        return _SPECIAL[name](w, value)
    if not is_float(value.dtype):
        raise CompilerError(f"{name} is not defined for {value.dtype}", hint="cast to a float first")
    if value.dtype == "float16" and name not in _HALF:
        return cast(w, intrinsic(w, name, tuple(cast(w, a, "float32") for a in args)), "float16")
    if name in LIBM:
        return _library(w, name, value)
    return call(w, FLOAT_INTRINSICS.get(name, name), *args)


_HALF = {"abs", "floor", "ceil", "round", "trunc", "sqrt"}
"""Functions that LLVM does in float16, or in float32 with the same result."""


def _library(w: Writer, name: str, value: Val) -> Val:
    kind = type_text(value.dtype)
    symbol = f"@{name}f" if value.dtype == "float32" else f"@{name}"
    w.declare(symbol, f"declare {kind} {symbol}({kind}) nounwind memory(none)")
    return per_lane(w, [value], lambda x: Val(w.pure(f"call {kind} {symbol}({typed(x)})"), x.dtype))


def _not(w: Writer, value: Val) -> Val:
    if value.text in ("true", "false"):
        return literal(value.text == "false", "bool")
    return plain(w, "xor", value, literal(-1, value.dtype, value.lanes))


_SPECIAL: dict[str, Callable[[Writer, Val], Val]] = {
    "neg": lambda w, x: Val(w.pure(f"fneg {typed(x)}"), x.dtype, x.lanes),
    "not": _not,
    "unlikely": lambda _, x: x,
    "bitcast_int": lambda w, x: _convert(w, "bitcast", x, x.dtype.replace("float", "int")),
    "bitcast_float": lambda w, x: _convert(w, "bitcast", x, x.dtype.replace("int", "float")),
}


def part_by_part(w: Writer, name: Dot, a: Val, b: Val, total: Val) -> Val:
    """Products of words part by part, added to ``total``: each part shifted to the word's end."""
    bits = bits_of(DOT_OPERANDS[name][0])
    for up in range(0, 32, bits):
        apart = (plain(w, "shl", x, literal(up, "int32", a.lanes)) for x in (a, b))
        down = literal(32 - bits, "int32", a.lanes)
        signs = ("lshr" if is_unsigned(part) else "ashr" for part in DOT_OPERANDS[name])
        first, second = (plain(w, shift, x, down) for shift, x in zip(signs, apart, strict=True))
        total = plain(w, "add", total, plain(w, "mul", first, second))
    return total
