"""Scalar functions as arithmetic that vectorizes, which :mod:`minitvm.codegen.legalize` puts in place of calls.

A range reduction (Cody and Waite 1980) brings the argument near zero, where a minimax polynomial computes the function.
Each takes and returns a float32 expression and works for every float32: signed zeros, subnormal numbers, infinities,
NaN.  Nothing relies on a fused multiply-add or is hurt by one.  Coefficients are minimax fits (least squares,
reweighted until the relative error was level), rounded to float32 one after the other with the rest fitted again.

Largest error over the whole range, in units of the last place of the correctly rounded result (tests hold these):

    exp 1   expm1 2   log 1   log2 1.5   log1p 1.5   tanh 2.5   sigmoid 2.5   erf 1.5   pow 1   sin, cos 1.5   tan 3.5
"""

import math
from collections.abc import Sequence
from itertools import pairwise

from minitvm.ir.loop import Binary, Const, LoopExpr, const, intrin, maximum, minimum, select

LOG2_E = 1 / math.log(2)
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4  # the first has few bits: its products with small integers are exact
ROUND = 12582912.0  # 1.5 * 2**23: adding it leaves the nearest integer in the low bits of a float32
_ROUND_BITS = 0x4B400000
ROUND_TO_EXPONENT = ROUND + 127
"""The same, with an exponent's bias: 23 bits further up they are a power of two."""
LITTLE = 40.0

_EXP = (0.49999994, 0.1666652, 0.04166826, 0.008368855, 0.0013821729)
_EXPM1 = (0.5, 0.16666548, 0.041666858, 0.008366154, 0.0013898046)
_LOG = (0.3333333, -0.25000837, 0.20001285, -0.16622774, 0.14199834, -0.13164231, 0.12778337, -0.0764511)
_EXP2 = (0.693147, 0.24022247, 0.05550711, 0.009671294, 0.0013269568)
_ERF_SMALL = (0.12837915, -0.376125, 0.11281877, -0.02676858, 0.0049958536, -0.00060038007)
_ERF_LARGE = (-1.6281021, -0.9171477, -0.15186068, 0.0330232, -0.004638191, 0.00030871457)
_SIN = (-0.16666655, 0.008332187, -0.00019517895)
_COS = (0.041666646, -0.001388731, 2.4432331e-05)
_LOG2_64 = (0.9617966940585265, 0.5770779529003671, 0.41220843567771276, 0.3199332524728488, 0.28256298817312125)
_EXP2_64 = (
    0.6931471805416537,
    0.2402265107585798,
    0.05550410962572872,
    0.009618036910093624,
    0.0013333430786709845,
    0.00015467110603887128,
    1.531494674649262e-05,
)


def polynomial(x: LoopExpr, coefficients: Sequence[float]) -> LoopExpr:
    """``c0 + c1 x + c2 x**2 + ...`` by Horner's rule."""
    result: LoopExpr = const(coefficients[-1], x.dtype)
    for c in reversed(coefficients[:-1]):
        result = result * x + c
    return result


def multiply_add(node: LoopExpr) -> LoopExpr:
    """``a * b + c``, also subtracted, as one multiply-add; any other node as it is."""
    if not isinstance(node, Binary) or not node.dtype.startswith("float"):
        return node
    match node.op, node.lhs, node.rhs:
        case ("add", Binary("mul", a, b), c) | ("add", c, Binary("mul", a, b)):
            return intrin("fma", a, b, c)
        case "sub", Binary("mul", a, b), c:
            return intrin("fma", a, b, _negated(c))
        case "sub", c, Binary("mul", a, b):
            return intrin("fma", a, _negated(b), c)
    return node


def _negated(x: LoopExpr) -> LoopExpr:
    return const(-x.value, x.dtype) if isinstance(x, Const) else -x


def with_sign_of(magnitude: LoopExpr, sign: LoopExpr) -> LoopExpr:
    """``magnitude`` (not negative) with the other's sign bit."""
    bit = intrin("bitcast_int", sign) & const(-(2**31), "int32")
    return intrin("bitcast_float", intrin("bitcast_int", magnitude) | bit)


def _reduced(
    x: LoopExpr, magic: LoopExpr | float = ROUND_TO_EXPONENT, ln2: Sequence[float] = (LN2_HIGH, LN2_LOW)
) -> tuple[LoopExpr, LoopExpr]:
    """``r`` within half of ln 2, and ``2**n`` of ``x == r + n ln 2``, times ``2**k`` where ``magic`` is larger by k: it
    has to be a normal number.  Without the exponent's bias in ``magic`` it is what adds ``n + k`` to an exponent."""
    r, shifted = _less_whole(x, magic, ln2)
    return r, _last_bits_as_exponent(shifted)


def _less_whole(
    x: LoopExpr, magic: LoopExpr | float, ln2: Sequence[float] = (LN2_HIGH, LN2_LOW)
) -> tuple[LoopExpr, LoopExpr]:
    """``r`` of :func:`_reduced`, and ``n`` in the last bits of a float."""
    shifted = x * (1 / sum(ln2)) + magic
    n = shifted - magic
    for part in ln2:
        x = x - n * part
    return x, shifted


def _reduced_2(x: LoopExpr) -> tuple[LoopExpr, LoopExpr]:
    """``r`` within 1/2, and ``2**n``, of ``x == r + n``."""
    shifted = x + ROUND_TO_EXPONENT
    return x - (shifted - ROUND_TO_EXPONENT), _last_bits_as_exponent(shifted)


def _last_bits_as_exponent(shifted: LoopExpr) -> LoopExpr:
    """Of NaN anything: what it is multiplied with has to be NaN, too."""
    return intrin("bitcast_float", Binary("shl", intrin("bitcast_int", shifted), const(23, "int32")))


def _exp_reduced(r: LoopExpr, scale: LoopExpr) -> LoopExpr:
    """``exp(r) scale`` of a power of two."""
    return scale * r * polynomial(r, (1.0, *_EXP)) + scale


def exp(x: LoopExpr) -> LoopExpr:
    """The exponential, scaled in two steps, as ``2**128`` and ``2**-150`` are no numbers."""
    x = minimum(maximum(x, -104.0), 89.0)
    negative = intrin("bitcast_int", x) < 0
    r, scale = _reduced(x, select(negative, const(ROUND_TO_EXPONENT + 64, "float32"), ROUND_TO_EXPONENT - 64))
    return _exp_reduced(r, scale) * select(negative, const(2.0**-64, "float32"), 2.0**64)


def exp_scaled(x: LoopExpr) -> LoopExpr:
    """:func:`exp` where one instruction multiplies with any power of two."""
    r, shifted = _less_whole(minimum(maximum(x, -104.0), 89.0), ROUND)
    n = intrin("bitcast_int", shifted) - _ROUND_BITS
    return intrin("ldexp", polynomial(r, (1.0, 1.0, *_EXP)), n)


def exp_below(x: LoopExpr) -> LoopExpr:
    """:func:`exp` of what is less than :data:`LITTLE`, or NaN.  A power of two is added to the exponent, which takes a
    multiplication less than :func:`_exp_reduced`, but makes a number of NaN."""
    r, scale = _reduced(maximum(x, -104.0), ROUND + 64)
    value = intrin("bitcast_int", polynomial(r, (1.0, 1.0, *_EXP))) + intrin("bitcast_int", scale)
    return intrin("bitcast_float", value) * 2.0**-64 + (r - r)


def _expm1_reduced(r: LoopExpr) -> LoopExpr:
    """By Estrin's rule: about as many multiply-adds as by Horner's, half of them one after the other."""
    square = r * r
    return square * ((polynomial(r, _EXPM1[3:]) * square + polynomial(r, _EXPM1[1:3])) * r + _EXPM1[0]) + r


def expm1(x: LoopExpr) -> LoopExpr:
    """``2**n (e**r - 1) + (2**n - 1)``, half of it, doubled: ``2**128`` is too large."""
    r, scale = _reduced(minimum(maximum(x, -20.0), 89.0), ROUND_TO_EXPONENT - 1)
    found = (scale * _expm1_reduced(r) + (scale - 0.5)) * 2.0
    return select(intrin("abs", x) < 2.0**-25, x, found)  # keeps -0.0 and subnormal numbers


def _log_parts(x: LoopExpr) -> tuple[LoopExpr, LoopExpr]:
    """``(f, k)``: ``x == (1 + f) 2**k`` for positive, finite x; ``1 + f`` between the square roots of 1/2 and 2."""
    tiny = x < 2.0**-126
    bits = intrin("bitcast_int", select(tiny, x * 2.0**23, x)) - 0x3F3504F3
    exponent = Binary("shr", bits, const(23, "int32")).astype("float32")
    mantissa = intrin("bitcast_float", (bits & 0x7FFFFF) + 0x3F3504F3)
    return mantissa - 1.0, exponent - select(tiny, const(23.0, "float32"), const(0.0, "float32"))


def _log_tail(f: LoopExpr) -> LoopExpr:
    """``log(1 + f) - f``."""
    square = f * f
    return square * f * polynomial(f, _LOG) - square * 0.5


def _log_domain(x: LoopExpr, inside: LoopExpr) -> LoopExpr:
    """Minus infinity at 0, NaN below, infinity and NaN themselves."""
    edge = select(x.equal(0.0), float("-inf"), select(x < 0.0, float("nan"), x))
    return select((x > 0.0) & (x < float("inf")), inside, edge)


def log(x: LoopExpr) -> LoopExpr:
    f, k = _log_parts(x)
    return _log_domain(x, ((k * LN2_LOW + _log_tail(f)) + f) + k * LN2_HIGH)


def log2(x: LoopExpr) -> LoopExpr:
    f, k = _log_parts(x)
    high = intrin("bitcast_float", intrin("bitcast_int", f) & -4096)  # 12 bits: the product with 1.4375 is exact
    low = (f - high) + _log_tail(f)
    rest = LOG2_E - 1.4375
    return _log_domain(x, ((low * LOG2_E + high * rest) + high * 1.4375) + k)


def log1p(x: LoopExpr) -> LoopExpr:
    """``log(u)`` of the rounded ``u = 1 + x``, and what the rounding lost."""
    u = x + 1.0
    lost = select(x < 1.0, x - (u - 1.0), 1.0 - (u - x))
    found = log(u) + lost / u
    return select((u > 0.0) & (u < float("inf")), select(intrin("abs", x) < 1e-8, x, found), log(u))


def tanh(x: LoopExpr) -> LoopExpr:
    """``m / (m + 2)`` of ``m = expm1(2 x)``, for either sign: -0.0 meets no zero that it would not outlast.

    One number is enough for ln 2: what its ``n``-fold is off by is nothing beside an ``m`` as large as ``2**n``.
    """
    r, scale = _reduced(minimum(maximum(x, -10.0), 10.0), ln2=(math.log(2) / 2,))
    square, (c, *rest) = r * r, [c * 2.0 ** (i + 2) for i, c in enumerate(_EXPM1)]
    above = r * (square * (polynomial(r, rest[2:]) * square + polynomial(r, rest[:2])) + r * c) + (r + r)
    m = scale * above - (1.0 - scale)
    return m / (m + 2.0)


def sigmoid(x: LoopExpr) -> LoopExpr:
    """``1 / (1 + exp(-x))``, both times 2**-64, which keeps the exponential a number; the division rounds to subnormal
    numbers."""
    r, scale = _reduced(-minimum(maximum(x, -104.0), LITTLE), ROUND_TO_EXPONENT - 64)
    return 2.0**-64 / (_exp_reduced(r, scale) + 2.0**-64)


def erf(x: LoopExpr) -> LoopExpr:
    """Near 0 an odd polynomial, elsewhere 1 minus the exponential of a fit of log2(erfc)."""
    small = x * polynomial(x * x, _ERF_SMALL) + x
    t = minimum(intrin("abs", x), 4.0)
    r, scale = _reduced_2(t * polynomial(t, _ERF_LARGE))
    large = with_sign_of(1.0 - polynomial(r, (1.0, *_EXP2)) * scale, x)
    return select(intrin("abs", x) < 0.92, small, large)


# --- in float64 -----------------------------------------------------------------------------------------------

_ROUND_64 = 6755399441055744.0  # 1.5 * 2**52
_ROUND_64_BITS = 0x4338000000000000
_HALF_PI = (1.5707963109016418, 1.5893254712295857e-08, 6.123233995736766e-17)
"""The first two have 25 bits: their products with integers below 2**28 are exact."""


def _quadrant(x: LoopExpr) -> tuple[LoopExpr, LoopExpr]:
    """``(r, q)``: ``x == r + q pi/2``, ``r`` a float32 within a quarter of pi, ``q`` an int32 modulo 4."""
    size = intrin("abs", x)
    near, far = _quadrant_near(size), _quadrant_far(size)
    small = size < 2.0**28
    r, q = (select(small, a, b) for a, b in zip(near, far, strict=True))
    r = select(size < float("inf"), r, float("nan"))
    return select(x < 0.0, -r, r), select(x < 0.0, -q, q)


def _quadrant_near(x: LoopExpr) -> tuple[LoopExpr, LoopExpr]:
    """Below 2**28, where ``q`` times each part of pi/2 is exact."""
    wide = x.astype("float64")
    shifted = wide * (2 / math.pi) + _ROUND_64
    n = shifted - _ROUND_64
    r = wide
    for part in _HALF_PI:
        r = r - n * part
    return r.astype("float32"), intrin("bitcast_int", shifted).astype("int32")


_TWO_OVER_PI = (0xA2F9836E4E441529, 0xFC2757D1F534DDC0, 0xDB6295993C439041, 0xFE5163ABDEBBC561)
"""The first 256 bits after the point."""


def _quadrant_far(x: LoopExpr) -> tuple[LoopExpr, LoopExpr]:
    """Payne and Hanek's reduction: multiply by those 96 bits of 2/pi that matter modulo 4 for this exponent."""
    bits = intrin("bitcast_int", x)
    mantissa = ((bits & 0x7FFFFF) | 0x800000).astype("uint64")
    start = (Binary("shr", bits, const(23, "int32")) - 152).astype("uint64")  # x == mantissa * 2**(start + 2)
    later = start & 64
    shift, back = start & 63, const(64, "uint64") - (start & 63)
    first, second, third = (
        select(later.equal(0), const(a, "uint64"), const(b, "uint64")) for a, b in pairwise(_TWO_OVER_PI)
    )
    high = Binary("shl", first, shift) | Binary("shr", second, back)
    low = Binary("shl", second, shift) | Binary("shr", third, back)
    half, word = const(32, "uint64"), 0xFFFFFFFF
    product = Binary("shl", mantissa * Binary("shr", high, half), half) + mantissa * (high & word)
    product = product + Binary("shr", mantissa * Binary("shr", low, half), half)  # in units of 2**-62, modulo 4
    q = Binary("shr", product + (1 << 61), const(62, "uint64"))
    rest = (product - Binary("shl", q, const(62, "uint64"))).astype("int64").astype("float64")
    return (rest * (math.pi / 2 / 2.0**62)).astype("float32"), q.astype("int32")


def _sin_cos(r: LoopExpr) -> tuple[LoopExpr, LoopExpr]:
    square = r * r
    sine = square * r * polynomial(square, _SIN) + r
    cosine = (square * square * polynomial(square, _COS) - square * 0.5) + 1.0
    return sine, cosine


def _circular(x: LoopExpr, turn: int) -> LoopExpr:
    r, q = _quadrant(x)
    sine, cosine = _sin_cos(r)
    quarter = q + turn if turn else q
    value = select((quarter & 1).equal(0), sine, cosine)
    return select((quarter & 2).equal(0), value, -value)


def sin(x: LoopExpr) -> LoopExpr:
    return _odd(x, _circular(x, 0))


def cos(x: LoopExpr) -> LoopExpr:
    return _circular(x, 1)


def tan(x: LoopExpr) -> LoopExpr:
    r, q = _quadrant(x)
    sine, cosine = _sin_cos(r)
    even = (q & 1).equal(0)
    return _odd(x, select(even, sine, -cosine) / select(even, cosine, sine))


def _odd(x: LoopExpr, value: LoopExpr) -> LoopExpr:
    """``x`` itself where it is so small that the function is; keeps -0.0."""
    return select(intrin("abs", x) < 2.0**-13, x, value)


def _log2_wide(x: LoopExpr) -> LoopExpr:
    """log2 of a positive, finite, normal float64, to 13 digits."""
    offset = 0x3FE6A09E00000000  # the square root of 1/2, its upper half
    bits = intrin("bitcast_int", x) - offset
    exponent = Binary("shr", bits, const(52, "int64"))
    mantissa = intrin("bitcast_float", (bits & ((1 << 52) - 1)) + offset)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    square = s * s
    fraction = s * (square * polynomial(square, _LOG2_64) + 2 * LOG2_E)
    return exponent.astype("int32").astype("float64") + fraction


def _exp2_wide(t: LoopExpr) -> LoopExpr:
    """2**t of a float64 in -1000..1000, to 10 digits."""
    shifted = t + _ROUND_64
    f = t - (shifted - _ROUND_64)
    value = f * polynomial(f, _EXP2_64) + 1.0
    exponent = intrin("bitcast_int", shifted) - (_ROUND_64_BITS - 1023)
    return value * intrin("bitcast_float", Binary("shl", exponent, const(52, "int64")))


def power(x: LoopExpr, y: LoopExpr) -> LoopExpr:
    """``2 ** (y log2 |x|)`` in float64, with C's rules for signs, zeros and infinities."""
    size = intrin("abs", x)
    finite = (size > 0.0) & (size < float("inf"))
    usual = _log2_wide(select(finite, size, 1.0).astype("float64"))
    edge = select(size.equal(0.0), float("-inf"), size).astype("float64")  # 0, infinity, NaN
    exponent = y.astype("float64") * select(finite, usual, edge)
    exponent = select(size.equal(1.0), 0.0, exponent)
    found = _exp2_wide(minimum(maximum(exponent, -160.0), 130.0)).astype("float32")
    return select(y.equal(0.0) | x.equal(1.0), 1.0, _power_sign(x, y, found))


def _power_sign(x: LoopExpr, y: LoopExpr, size: LoopExpr) -> LoopExpr:
    """Odd exponents keep the base's sign; other powers of finite negative numbers are not real."""
    whole = intrin("floor", y).equal(y)
    half = y * 0.5
    odd = whole & intrin("floor", half).not_equal(half)
    negative = intrin("bitcast_int", x) < 0
    signed = select(odd & negative, -size, size)
    unreal = (x < 0.0) & (x > float("-inf")) & intrin("not", whole)
    return select(unreal | intrin("isnan", y) | intrin("isnan", x), float("nan"), signed)


def constant_power(x: LoopExpr, exponent: float) -> LoopExpr | None:
    """Small whole and half exponents by multiplications and a square root; ``None`` for others."""
    if exponent == 0.5:
        return intrin("sqrt", x)
    if exponent == int(exponent) and abs(exponent) <= 4:
        found = _repeated(x, abs(int(exponent)))
        return found if exponent >= 0 else const(1.0, x.dtype) / found
    return None


def _repeated(x: LoopExpr, count: int) -> LoopExpr:
    if count == 0:
        return const(1.0, x.dtype)
    if count == 1:
        return x
    root = _repeated(x, count // 2)
    return root * root * x if count % 2 else root * root
