"""``int64`` arithmetic, kept symbolic: see :mod:`minitvm.codegen.llvm.values`."""

from __future__ import annotations

from minitvm.codegen.llvm import arith
from minitvm.codegen.llvm.context import Context
from minitvm.codegen.llvm.values import Index, Lanes, Val, Value, exact, reach
from minitvm.ir.loop import COMPARISONS
from minitvm.ir.loop.affine import INT64, Affine, Range


def scalar(c: Context, value: Index) -> str:
    """The register or literal of a value that is the same in all lanes."""
    if not value.terms:
        return arith.literal(value.constant, "int64").text
    exactly = " nsw" if len(value.terms) == 1 and exact(value).within(1 - 2**62, 2**62 - 1) else ""
    text = ""
    for atom, factor in c.in_order(value):
        times = arith.literal(factor, "int64").text
        part = atom.text if factor == 1 else c.w.pure(f"mul{exactly} i64 {atom.text}, {times}")
        text = c.w.pure(f"add i64 {text}, {part}") if text else part
    if value.constant:
        text = c.w.pure(f"add{exactly} i64 {text}, {arith.literal(value.constant, 'int64').text}")
    return text


def ramp(step: int, lanes: int, dtype: str) -> Val:
    """``0, step, 2 * step, ...`` as a literal."""
    kind = "i32" if dtype == "int32" else "i64"
    return Val("<" + ", ".join(f"{kind} {step * i}" for i in range(lanes)) + ">", dtype, lanes)


def register(c: Context, value: Value) -> Val:
    """Any value as a register."""
    if isinstance(value, Val):
        return value
    if isinstance(value, list):
        return arith.gather_lanes(c.w, [Val(scalar(c, v), "int64") for v in value])
    first, step = Val(scalar(c, c.in_lane(value, 0)), "int64"), c.step(value)
    return arith.binary(c.w, "add", arith.splat(c.w, first, c.lanes), ramp(step, c.lanes, "int64")) if step else first


def lane_values(c: Context, value: Value) -> Lanes:
    """One symbolic scalar per lane."""
    if isinstance(value, list):
        return value
    if isinstance(value, Affine):
        return [c.in_lane(value, i) for i in range(c.lanes)]
    found = [c.symbolic(arith.lane(c.w, value, i)) for i in range(c.lanes)]
    return [v for v in found if isinstance(v, Affine)]


def binary(c: Context, op: str, a: Index | Lanes, b: Index | Lanes) -> Value:
    """``Binary`` over ``int64`` operands of which neither is a vector register."""
    if isinstance(a, Affine) and isinstance(b, Affine):
        if op in COMPARISONS:
            return _compare(c, op, a, b)
        found = _linear(c, op, a, b)
        if found is not None:
            return found
        if not c.step(a) and not c.step(b):
            return _scalar_op(c, op, a, b)
        if op not in _PER_LANE:
            return arith.binary(c.w, op, register(c, a), register(c, b))
    results = [binary(c, op, x, y) for x, y in zip(lane_values(c, a), lane_values(c, b), strict=True)]
    if op in COMPARISONS:
        return arith.gather_lanes(c.w, [register(c, r) for r in results])
    return [r for r in results if isinstance(r, Affine)]


_PER_LANE = frozenset({"mul", "floordiv", "floormod", "min", "max"})
"""What indices are made of; other operators on lane-dependent integers are data, in vector registers."""


def _linear(c: Context, op: str, a: Index, b: Index) -> Index | None:
    """The result where it is a linear combination, else ``None``."""
    if op in ("add", "sub"):
        return a.plus(b, 1 if op == "add" else -1)
    if op == "mul" and not (a.terms and b.terms):
        return a.scaled(b.constant) if a.terms else b.scaled(a.constant)
    if op in ("min", "max") and exact(a).fits and exact(b).fits:
        for least, most in ((a, b), (b, a)):
            if exact(least.plus(most, -1)).decides("le"):
                return least if op == "min" else most
    return _divided(c, op, a, b) if _divides(op, b) and exact(a).fits else None


def _divides(op: str, divisor: Index) -> bool:
    return op in ("floordiv", "floormod") and not divisor.terms and divisor.constant > 0


def _divided(c: Context, op: str, a: Index, divisor: Index) -> Index | None:
    quotient, rest = a.split(divisor.constant)
    if not (exact(quotient).fits and exact(rest).fits):
        return None
    if exact(rest).within(0, divisor.constant - 1):
        return quotient if op == "floordiv" else rest
    if not quotient.terms or c.step(rest):
        return None
    found = binary(c, op, rest, divisor)
    assert isinstance(found, Affine)
    return found if op == "floormod" else quotient.plus(found)


def _scalar_op(c: Context, op: str, a: Index, b: Index) -> Value:
    x, y, where = Val(scalar(c, a), "int64"), Val(scalar(c, b), "int64"), exact(a)
    if _divides(op, b) and where.fits and where.decides("lt") is False:
        text = c.w.pure(f"{'udiv' if op == 'floordiv' else 'urem'} i64 {x.text}, {b.constant}")
        return c.symbolic(Val(text, "int64"), where.divided(op, b.constant))
    return c.symbolic(arith.binary(c.w, op, x, y), _reach(op, a, b))


def _reach(op: str, a: Index, b: Index) -> Range:
    x, y = reach(a), reach(b)
    if _divides(op, b):
        return x.divided(op, b.constant)
    return x.least(y) if op == "min" else x.greatest(y) if op == "max" else x.times(y) if op == "mul" else INT64


def _compare(c: Context, op: str, a: Index, b: Index) -> Val:
    gap, fit = a.plus(b, -1), exact(a).fits and exact(b).fits
    decided = exact(gap).decides(op) if fit else None
    if decided is not None:
        return arith.literal(decided, "bool")
    if not c.step(a) and not c.step(b):
        return arith.compare(c.w, op, Val(scalar(c, a), "int64"), Val(scalar(c, b), "int64"))
    room = 2**31 - 1 - abs(c.step(gap)) * c.lanes
    if fit and c.step(gap) and exact(gap).within(-room, room):
        return _compare_ramp(c, op, gap)
    return arith.compare(c.w, op, register(c, a), register(c, b))


def _compare_ramp(c: Context, op: str, gap: Index) -> Val:
    """``gap < 0`` lane by lane, in 32 bits: the literal ramp against minus the value of lane 0."""
    base = Val(scalar(c, c.in_lane(gap, 0).scaled(-1)), "int64")
    if base.text.startswith("%"):
        base = Val(c.w.pure(f"trunc i64 {base.text} to i32"), "int32")
    return arith.compare(c.w, op, ramp(c.step(gap), c.lanes, "int32"), Val(base.text, "int32"))


def choose(c: Context, condition: Val, a: Index, b: Index) -> Value:
    """``select`` of two indices under a scalar condition; the lane's stride survives where both have it."""
    gap = a.plus(b, -1)
    if c.step(gap) or not exact(gap).fits:
        return c.symbolic(arith.select(c.w, condition, register(c, a), register(c, b)))
    if not c.step(a):
        found = arith.select(c.w, condition, Val(scalar(c, a), "int64"), Val(scalar(c, b), "int64"))
        return c.symbolic(found, exact(a).hull(exact(b)))
    moved = arith.select(c.w, condition, Val(scalar(c, gap), "int64"), arith.literal(0, "int64"))
    shift = c.symbolic(moved, exact(gap).hull(Range(0, 0)))
    assert isinstance(shift, Affine)
    return b.plus(shift)
