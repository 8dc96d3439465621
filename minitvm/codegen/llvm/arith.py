"""Scalar operations on registers, lane by lane alike: arithmetic, comparisons, casts, functions.

Nothing here can trap; docs/loop-ir.md says what division by zero, wide shifts and casts out of range give instead.
"""

from __future__ import annotations

from collections.abc import Callable

from minitvm.codegen.llvm import spell
from minitvm.codegen.llvm.spell import BITS, is_float, is_unsigned, mangled, type_text
from minitvm.codegen.llvm.values import Val
from minitvm.codegen.llvm.writer import Writer
from minitvm.errors import CompilerError


def literal(value: bool | float, dtype: str, lanes: int = 0) -> Val:
    text = spell.constant(value, dtype)
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
    lanes = max(v.lanes for v in values)
    return tuple(splat(w, v, lanes) for v in values) if lanes else values


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
    return Val(w.pure(f"{op} {typed(a)}, {b.text}"), "bool", a.lanes)


def compare(w: Writer, op: str, a: Val, b: Val) -> Val:
    a, b = aligned(w, a, b)
    return Val(w.pure(f"{_comparison(op, a.dtype)} {typed(a)}, {b.text}"), "bool", a.lanes)


def _comparison(op: str, dtype: str) -> str:
    if is_float(dtype):
        return spell.FLOAT_COMPARE[op]
    return (spell.UNSIGNED_COMPARE if is_unsigned(dtype) else spell.SIGNED_COMPARE)[op]


def binary(w: Writer, op: str, a: Val, b: Val) -> Val:
    """``Binary`` of the loop IR on registers of one dtype."""
    if op in ("eq", "ne", "lt", "le"):
        return compare(w, op, a, b)
    if a.dtype == "bool":
        return _bool(w, op, a, b)
    a, b = aligned(w, a, b)
    if is_float(a.dtype):
        return _float(w, op, a, b)
    return _int(w, op, a, b)


_BOOL = {"add": "or", "max": "or", "mul": "and", "min": "and", "sub": "xor", "and": "and", "or": "or", "xor": "xor"}


def _bool(w: Writer, op: str, a: Val, b: Val) -> Val:
    """numpy's: sum is or, product is and."""
    if op not in _BOOL:
        raise CompilerError(f"{op} is not defined for bool", hint="cast to an integer first")
    return logic(w, _BOOL[op], a, b)


def _plain(w: Writer, instruction: str, a: Val, b: Val) -> Val:
    return Val(w.pure(f"{instruction} {typed(a)}, {b.text}"), a.dtype, a.lanes)


def call(w: Writer, function: str, *args: Val, flags: str = "") -> Val:
    """An LLVM intrinsic whose operands and result have one type."""
    first = args[0]
    kind = type_text(first.dtype, first.lanes)
    symbol = f"@llvm.{function}.{mangled(first.dtype, first.lanes)}"
    w.declare(symbol, f"declare {kind} {symbol}({', '.join([kind] * len(args))})")
    return Val(w.pure(f"call {flags}{kind} {symbol}({', '.join(typed(a) for a in args)})"), first.dtype, first.lanes)


def _float(w: Writer, op: str, a: Val, b: Val) -> Val:
    if op in ("min", "max"):
        return call(w, f"{op}imum", a, b, flags="nsz ")  # the sign of a zero is free: one instruction with a constant
    if op == "pow":
        return call(w, "pow", a, b)
    if op == "floordiv":
        return call(w, "floor", _plain(w, "fdiv", a, b))
    if op == "floormod":
        return _float_floormod(w, a, b)
    if op not in spell.FLOAT_BINARY:
        raise CompilerError(f"{op} is not defined for {a.dtype}", hint="cast to an integer first")
    return _plain(w, spell.FLOAT_BINARY[op], a, b)


def _float_floormod(w: Writer, a: Val, b: Val) -> Val:
    zero = literal(0, a.dtype, a.lanes)
    rest = _plain(w, "frem", a, b)
    negative = logic(w, "xor", compare(w, "lt", rest, zero), compare(w, "lt", b, zero))
    wrong = logic(w, "and", compare(w, "ne", rest, zero), negative)
    return select(w, wrong, _plain(w, "fadd", rest, b), rest)


def _int(w: Writer, op: str, a: Val, b: Val) -> Val:
    if op in spell.INT_BINARY:
        return _plain(w, spell.INT_BINARY[op], a, b)
    if op in ("min", "max"):
        return call(w, f"{'u' if is_unsigned(a.dtype) else 's'}{op}", a, b)
    if op in ("shl", "shr"):
        return _shift(w, op, a, b)
    if op == "pow":
        return _int_pow(w, a, b)
    if is_unsigned(a.dtype):
        return _unsigned_division(w, op, a, b)
    return _signed_division(w, op, a, b)


def _shift(w: Writer, op: str, a: Val, b: Val) -> Val:
    width = literal(BITS[a.dtype], a.dtype, a.lanes)
    if op == "shr" and not is_unsigned(a.dtype):
        return _plain(w, "ashr", a, call(w, "umin", b, literal(BITS[a.dtype] - 1, a.dtype, a.lanes)))
    inside = Val(w.pure(f"icmp ult {typed(b)}, {width.text}"), "bool", a.lanes)
    return select(w, inside, _plain(w, "shl" if op == "shl" else "lshr", a, b), literal(0, a.dtype, a.lanes))


def _nonzero(w: Writer, b: Val) -> Val:
    """The divisor, or 1 for 0."""
    if _known_divisor(b):
        return b
    return select(w, compare(w, "eq", b, literal(0, b.dtype, b.lanes)), literal(1, b.dtype, b.lanes), b)


def _known_divisor(b: Val) -> bool:
    """A literal that is safe to divide by."""
    return not b.text.startswith("%") and b.text.rstrip(")").split()[-1] not in ("0", "-1")


def _unsigned_division(w: Writer, op: str, a: Val, b: Val) -> Val:
    return _plain(w, "udiv" if op in ("div", "floordiv") else "urem", a, _nonzero(w, b))


def _signed_division(w: Writer, op: str, a: Val, b: Val) -> Val:
    if _known_divisor(b):
        divisor, wraps = b, None
    else:
        minus_one = literal(-1, b.dtype, b.lanes)
        wraps = compare(w, "eq", b, minus_one)
        divisor = select(w, wraps, literal(1, b.dtype, b.lanes), _nonzero(w, b))
    quotient, rest = _plain(w, "sdiv", a, divisor), _plain(w, "srem", a, divisor)
    found = (quotient if op == "div" else rest) if op in ("div", "mod") else _floor(w, op, quotient, rest, divisor)
    if wraps is None or op in ("mod", "floormod"):
        return found
    return select(w, wraps, _plain(w, "sub", literal(0, a.dtype, a.lanes), a), found)


def _floor(w: Writer, op: str, quotient: Val, rest: Val, divisor: Val) -> Val:
    """From truncation to rounding down: one step where the remainder's sign is not the divisor's."""
    zero = literal(0, rest.dtype, rest.lanes)
    signs = compare(w, "lt", _plain(w, "xor", rest, divisor), zero)
    wrong = logic(w, "and", compare(w, "ne", rest, zero), signs)
    if op == "floormod":
        return select(w, wrong, _plain(w, "add", rest, divisor), rest)
    return select(w, wrong, _plain(w, "add", quotient, literal(-1, rest.dtype, rest.lanes)), quotient)


_POW = """define internal {t} @{name}({t} %base, {t} %exponent) nounwind memory(none) {{
start:
  %negative = icmp slt {t} %exponent, {below}
  br i1 %negative, label %reciprocal, label %loop
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
reciprocal:
  %odd = trunc {t} %exponent to i1
  %sign = select i1 %odd, {t} -1, {t} 1
  %is_minus = icmp eq {t} %base, -1
  %is_one = icmp eq {t} %base, 1
  %one = select i1 %is_one, {t} 1, {t} 0
  %found = select i1 %is_minus, {t} %sign, {t} %one
  ret {t} %found
}}"""


def _int_pow(w: Writer, a: Val, b: Val) -> Val:
    """By squaring."""
    kind, unsigned = type_text(a.dtype), is_unsigned(a.dtype)
    symbol = f"@minitvm.pow.{a.dtype}"
    below = str(-(2 ** (BITS[a.dtype] - 1))) if unsigned else "0"  # nothing is below the smallest integer
    w.declare(symbol, _POW.format(t=kind, name=symbol[1:], below=below))
    return per_lane(w, [a, b], lambda x, y: Val(w.pure(f"call {kind} {symbol}({typed(x)}, {typed(y)})"), a.dtype))


def per_lane(w: Writer, args: list[Val], function: Callable[..., Val]) -> Val:
    """Apply a scalar function lane by lane."""
    lanes = args[0].lanes
    if not lanes:
        return function(*args)
    return gather_lanes(w, [function(*(lane(w, a, i) for a in args)) for i in range(lanes)])
