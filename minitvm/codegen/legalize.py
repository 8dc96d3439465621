"""What targets cannot spell.  Functions, or what would be a call for every element, become polynomials; and one table
for all emitters says what scalar operations mean (docs/loop-ir.md) in terms of what every machine does.

What is left for an emitter: sums and products that wrap around; quotients and remainders towards zero, of what can be
divided; shifts by less than the width; ``pow`` of integers with exponents that are not negative; logic of bools;
conversions of numbers that fit; functions of floats.

The conditions of a formula's selects are made of all that their sides load, so that nothing is loaded conditionally.
"""

import math
from collections.abc import Callable, Set
from dataclasses import replace
from functools import cache, partial

import numpy as np

from minitvm.codegen import polynomials
from minitvm.doors import door, left_out
from minitvm.ir.dtypes import STORED
from minitvm.ir.loop import (
    Binary,
    Buffer,
    Cast,
    Const,
    Intrin,
    Kernel,
    Load,
    LoopExpr,
    allocated,
    const,
    intrin,
    map_expr,
    map_nodes,
    minimum,
    select,
    walk_exprs,
)
from minitvm.ir.loop.affine import Ranges, bounds

_FLOAT32: dict[str, Callable[[LoopExpr], LoopExpr]] = {
    "exp": polynomials.exp,
    "expm1": polynomials.expm1,
    "log": polynomials.log,
    "log2": polynomials.log2,
    "log1p": polynomials.log1p,
    "tanh": polynomials.tanh,
    "sigmoid": polynomials.sigmoid,
    "erf": polynomials.erf,
    "sin": polynomials.sin,
    "cos": polynomials.cos,
    "tan": polynomials.tan,
}


def is_long(value: LoopExpr) -> bool:
    """True if what becomes a polynomial is in it: a chain of operations of which each waits for the one before."""
    nodes = (node for node in walk_exprs(value) if isinstance(node, (Intrin, Binary)) and node.dtype != "float64")
    return any(
        node.name in _FLOAT32 if isinstance(node, Intrin) else node.op == "pow" and node.dtype.startswith("float")
        for node in nodes
    )


def legalize(kernel: Kernel, native: Set[str]) -> Kernel:
    """The kernel with every function that is not ``native`` and has a polynomial replaced by it.

    float16 is computed in float32.  float64, and functions without a polynomial here, stay: every target can call
    its mathematics library for them.  ``pow`` with small whole exponents becomes multiplications on every target.
    """

    def visit(expr: LoopExpr) -> LoopExpr:
        if isinstance(expr, Intrin) and expr.name not in native and expr.name in _FLOAT32:
            return in_float32(expr, _formula(expr, native), expr.args)
        if isinstance(expr, Binary) and expr.op == "pow" and expr.dtype.startswith("float"):
            return _float_power(expr, native)
        return expr

    body = map_nodes(kernel.body, visit)
    if body is kernel.body:
        return kernel
    return replace(kernel, body=body)


def _formula(expr: Intrin, native: Set[str]) -> Callable[..., LoopExpr]:
    if _is_exp_of_little(expr):
        return polynomials.exp_below
    return polynomials.exp_scaled if expr.name == "exp" and "ldexp" in native else _FLOAT32[expr.name]


def _is_exp_of_little(expr: Intrin) -> bool:
    """True if it is an exponential of ``min(x, c)`` that cannot overflow."""
    match expr:
        case Intrin("exp", (Binary("min", _, Const(most, _)) | Binary("min", Const(most, _), _),)):
            return bool(most < polynomials.LITTLE)
    return False


def in_float32(expr: LoopExpr, formula: Callable[..., LoopExpr], operands: tuple[LoopExpr, ...]) -> LoopExpr:
    """The formula in float32, for float32 and float16; ``expr`` itself for float64."""
    if expr.dtype == "float64":
        return expr
    given, value = _fused(formula, len(operands))
    singles = {load: operand.astype("float32") for load, operand in zip(given, operands, strict=True)}
    found = map_expr(value, lambda node: singles.get(node, node) if isinstance(node, Load) else node)
    return found.astype(expr.dtype)


@cache
def _fused(formula: Callable[..., LoopExpr], count: int) -> tuple[tuple[LoopExpr, ...], LoopExpr]:
    """Stand-ins for operands, and a formula of them, its products fused with its sums and with nobody else's."""
    given = tuple(Buffer(f"x{i}", (), "float32")[()] for i in range(count))
    return given, map_expr(formula(*given), polynomials.multiply_add)


def _float_power(expr: Binary, native: Set[str]) -> LoopExpr:
    exponent = expr.rhs
    if isinstance(exponent, Const) and math.isfinite(exponent.value):
        simple = polynomials.constant_power(expr.lhs, float(exponent.value))
        if simple is not None:
            return simple
    if "pow" in native:
        return expr
    return in_float32(expr, polynomials.power, (expr.lhs, expr.rhs))


# --- what scalar operations mean -------------------------------------------------------------------------------


def spell_scalars(kernel: Kernel, fuses: bool = False) -> Kernel:
    """The kernel in machine operations; divisions of indices (``i // 3``) stay.

    ``fuses``: whether the machine rounds ``fma`` once.
    """
    kernel = spell_stored(kernel) if _holds_stored(kernel) else kernel
    return replace(kernel, body=map_nodes(kernel.body, partial(machine_form, fuses=fuses)))


def _holds_stored(kernel: Kernel) -> bool:
    buffers = (*kernel.params, *allocated(kernel.body))
    casts = (node.dtype for node in walk_exprs(kernel.body) if isinstance(node, Cast))
    return not STORED.keys().isdisjoint((*casts, *(buffer.dtype for buffer in buffers)))


def machine_form(node: LoopExpr, ranges: Ranges | None = None, fuses: bool = False) -> LoopExpr:
    """One operation whose operands have this form already.

    Without ``ranges``, divisions of ``int64`` by positive constants stay: an emitter that knows more can do better.
    """
    match node:
        case Binary("floordiv" | "floormod" as op, a, Const(c, "int64") as b) if c > 0:
            return node if ranges is None else _index_division(op, a, b, ranges)
        case Binary(op, a, b):
            formula = _BINARY.get((op, _kind(a.dtype)))
            return node if formula is None else formula(op, a, b)
        case Intrin(name, (x,)):
            function = _UNARY.get((name, _kind(x.dtype)))
            return node if function is None else function(x)
        case Intrin("fma", (a, b, c)) if _kind(a.dtype) != "float":
            return a * b + c
        case Cast(value, dtype):
            found = quantized(value, dtype) if fuses and _kind(dtype) != "float" else None
            return _cast(value, dtype) if found is None else Cast(found, dtype)
    return node


def _index_division(op: str, a: LoopExpr, b: LoopExpr, ranges: Ranges) -> LoopExpr:
    """Towards zero where ``a`` is not negative."""
    low = bounds(a, ranges).low
    return _division(op.removeprefix("floor") if low is not None and low >= 0 else op, a, b)


def _kind(dtype: str) -> str:
    return dtype.rstrip("0123456789")


# --- integers -------------------------------------------------------------------------------------------------


def _division(op: str, a: LoopExpr, b: LoopExpr) -> LoopExpr:
    """``a`` divided by 0 is ``a``, what is left 0; by -1 it is ``-a``, which wraps around."""
    signed = a.dtype.startswith("int")
    minus = b.equal(-1)
    safe = b
    if not isinstance(b, Const) or b.value in (0, -1):
        safe = select(b.equal(0) | minus if signed else b.equal(0), 1, b)
    quotient: LoopExpr = Binary("div", a, safe)
    rest = Binary("mod", a, safe)
    beyond = rest < 0  # of a quotient rounded down
    if not isinstance(b, Const) or b.value < 0:
        beyond = rest.not_equal(0) & (Binary("xor", rest, safe) < 0)
    if op in ("mod", "floormod"):
        return rest + select(beyond, safe, 0) if signed and op == "floormod" else rest
    if signed and op == "floordiv":
        quotient = quotient - beyond.astype(a.dtype)
    if not signed or safe is b:
        return quotient
    flip = 0 - minus.astype(a.dtype)
    return Binary("xor", quotient, flip) - flip


def _shift(op: str, a: LoopExpr, b: LoopExpr) -> LoopExpr:
    """Everything is shifted out by the width or more, and by less than nothing."""
    most = 8 * np.dtype(a.dtype).itemsize - 1
    match b:
        case Const(by, _) | Binary("and", _, Const(by, _)) if 0 <= by <= most:
            return Binary(op, a, b)
    bits = b.astype(f"u{a.dtype.removeprefix('u')}")
    if op == "shr" and a.dtype.startswith("int"):
        return Binary(op, a, minimum(bits, most).astype(a.dtype))
    inside = bits <= most
    return Binary("and", Binary(op, a, select(inside, b, 0)), 0 - inside.astype(a.dtype))


def _power(op: str, a: LoopExpr, b: LoopExpr) -> LoopExpr:
    """A negative exponent truncates the reciprocal: that of 1 and -1 is the base itself, all others' is 0."""
    if isinstance(b, Const) and b.value >= 0:
        return Binary(op, a, b)
    vanishes = (b < 0) & a.not_equal(1) & a.not_equal(-1)
    parity = Binary("and", b, const(1, b.dtype))
    return Binary(op, select(vanishes, 0, a), select(vanishes, 1, select(b < 0, parity, b)))


def _saturated(value: LoopExpr, dtype: str) -> LoopExpr:
    """Towards zero; beyond the range its nearest end; NaN is 0."""
    if value.dtype == "float16":
        value = value.astype("float32")
    reach, source = np.iinfo(dtype), np.dtype(value.dtype).type
    low, high = source(reach.min), source(reach.max)
    if int(high) > reach.max:
        high = np.nextafter(high, source(0))
    least, most = (const(float(end), value.dtype) for end in (low, high))
    inside = select(least < value, value, least)  # NaN becomes the least
    inside = select(inside < most, inside, most)
    found: LoopExpr = Cast(inside, dtype)
    if int(high) < reach.max:
        found = select(most < value, const(reach.max, dtype), found)
    return found if dtype.startswith("u") else select(value.equal(value), found, 0)


# --- floats ---------------------------------------------------------------------------------------------------


def _float_floormod(op: str, a: LoopExpr, b: LoopExpr) -> LoopExpr:
    """The remainder with the sign of ``b``."""
    rest = Binary("mod", a, b)
    beyond = rest.not_equal(0) & Binary("xor", rest < 0, b < 0)
    return select(beyond, rest + b, rest)


def _larger(op: str, a: LoopExpr, b: LoopExpr) -> LoopExpr:
    return select(a < b, b, a)


def _float_sign(x: LoopExpr) -> LoopExpr:
    """NaN stays, -0.0 becomes 0.0."""
    return select(x > 0, 1, select(x < 0, -1, x + 0))


def _sigmoid(x: LoopExpr) -> LoopExpr:
    """By the exponential of what is negative, which does not overflow."""
    small = intrin("exp", -intrin("abs", x))
    return select(x < 0, small, 1) / (1 + small)


def _in_float32(function: Callable[[LoopExpr], LoopExpr]) -> Callable[[LoopExpr], LoopExpr]:
    """Of float16, rounded once."""
    return lambda x: function(x.astype("float32")).astype("float16") if x.dtype == "float16" else function(x)


# --- conversions ----------------------------------------------------------------------------------------------

_HOLD_BYTES = ("int16", "int32", "int64", "float32")


def _cast(value: LoopExpr, dtype: str) -> LoopExpr:
    match value:
        case Cast(steps, "int8" | "uint8") if dtype in _HOLD_BYTES and is_whole(steps):
            return steps if dtype == steps.dtype else Cast(steps, dtype)
    source = value.dtype
    if dtype == "bool":
        return value if source == "bool" else value.not_equal(0)
    if _kind(source) == "float" and _kind(dtype) != "float":
        return _saturated(value, dtype)
    if dtype == "float16" and source == "float64":
        return Cast(round_to_odd(value), dtype)
    if dtype == "float16":
        return value.astype("float32").astype(dtype)  # of integers: what rounding twice could change is beyond float16
    return value.astype(dtype)


# --- the table ------------------------------------------------------------------------------------------------


def _same(x: LoopExpr) -> LoopExpr:
    return x


def _logic(op: str) -> Callable[[str, LoopExpr, LoopExpr], LoopExpr]:
    return lambda _, a, b: Binary(op, a, b)


_WHOLE: dict[str, Callable[[LoopExpr], LoopExpr]] = {
    **dict.fromkeys(("floor", "ceil", "round", "trunc"), _same),
    **dict.fromkeys(("isnan", "isinf"), lambda x: Const(False, "bool")),
}
"""Functions of numbers without a fraction."""

_FUNCTIONS: dict[str, dict[str, Callable[[LoopExpr], LoopExpr]]] = {
    "int": {
        **_WHOLE,
        "neg": lambda x: 0 - x,
        "abs": lambda x: select(x < 0, 0 - x, x),
        "sign": lambda x: (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype),
    },
    "uint": {**_WHOLE, "neg": lambda x: 0 - x, "abs": _same, "sign": lambda x: x.not_equal(0).astype(x.dtype)},
    "bool": {**_WHOLE, "neg": _same, "abs": _same, "sign": _same},
    "float": {
        "sign": _float_sign,
        "isnan": lambda x: x.not_equal(x),
        "isinf": lambda x: intrin("abs", x).equal(math.inf),
        "rsqrt": _in_float32(lambda x: 1 / intrin("sqrt", x)),
        "sigmoid": _in_float32(_sigmoid),
    },
}

_DIVISIONS = dict.fromkeys(("div", "mod", "floordiv", "floormod"), _division)
_OPERATORS: dict[str, dict[str, Callable[[str, LoopExpr, LoopExpr], LoopExpr]]] = {
    "int": {**_DIVISIONS, "shl": _shift, "shr": _shift, "pow": _power, "larger": _larger},
    "uint": {**_DIVISIONS, "shl": _shift, "shr": _shift, "larger": _larger},
    "bool": {
        **dict.fromkeys(("add", "max", "larger"), _logic("or")),
        **dict.fromkeys(("mul", "min"), _logic("and")),
        "sub": _logic("xor"),
    },
    "float": {"floordiv": lambda _, a, b: intrin("floor", a / b), "floormod": _float_floormod, "larger": _larger},
}

_UNARY = {(name, kind): f for kind, functions in _FUNCTIONS.items() for name, f in functions.items()}
_BINARY = {(op, kind): f for kind, operators in _OPERATORS.items() for op, f in operators.items()}


# --- what other rooms spell ---------------------------------------------------------------------------------------


@door
def quantized(value: LoopExpr, dtype: str) -> LoopExpr | None:
    """A rounded quotient as a product; ``None``: it is divided."""
    return None


@door
def is_whole(value: LoopExpr) -> bool:
    """True if it is known to be a whole number already."""
    return False


@door
def spell_stored(kernel: Kernel) -> Kernel:
    """The kernel with nothing in it of dtypes that are only stored."""
    raise left_out("computing on dtypes that are only stored")


@door
def round_to_odd(value: LoopExpr) -> LoopExpr:
    """A float64 in float32, so that rounding it once more is as if it were rounded once."""
    raise left_out("float64 as float16")
