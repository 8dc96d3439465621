"""``int64`` arithmetic, kept symbolic: see :mod:`minitvm.codegen.llvm.values`."""

from __future__ import annotations

from minitvm.codegen.llvm import arith
from minitvm.codegen.llvm.context import Context
from minitvm.codegen.llvm.values import Affine, Lanes, Val, Value, as_lanes
from minitvm.ir.loop import COMPARISONS


def scalar(c: Context, value: Affine) -> str:
    """The register or literal of a value that is the same in all lanes."""
    if value.is_const:
        return arith.literal(value.const, "int64").text
    exact = " nsw" if value.lo > -(2**62) and value.hi < 2**62 and len(value.terms) == 1 else ""
    text = ""
    for atom, factor in value.terms:
        part = (
            atom.text if factor == 1 else c.w.pure(f"mul{exact} i64 {atom.text}, {arith.literal(factor, 'int64').text}")
        )
        text = c.w.pure(f"add i64 {text}, {part}") if text else part
    if value.const:
        text = c.w.pure(f"add{exact} i64 {text}, {arith.literal(value.const, 'int64').text}")
    return text


def ramp(value: Affine, lanes: int, dtype: str) -> Val:
    """``0, step, 2 * step, ...`` as a literal."""
    kind = "i32" if dtype == "int32" else "i64"
    return Val("<" + ", ".join(f"{kind} {value.step * i}" for i in range(lanes)) + ">", dtype, lanes)


def register(c: Context, value: Value) -> Val:
    """Any value as a register."""
    if isinstance(value, Val):
        return value
    if isinstance(value, list):
        return arith.gather_lanes(c.w, [Val(scalar(c, v), "int64") for v in value])
    if not value.step:
        return Val(scalar(c, value), "int64")
    first = arith.splat(c.w, Val(scalar(c, value.lane(0)), "int64"), c.lanes)
    return arith.binary(c.w, "add", first, ramp(value, c.lanes, "int64"))


def lane_values(c: Context, value: Value) -> Lanes:
    """One symbolic scalar per lane."""
    if not isinstance(value, Val):
        return as_lanes(value, c.lanes)
    found = [c.symbolic(arith.lane(c.w, value, i)) for i in range(c.lanes)]
    return [v for v in found if isinstance(v, Affine)]


def binary(c: Context, op: str, a: Affine | Lanes, b: Affine | Lanes) -> Value:
    """``Binary`` over ``int64`` operands of which neither is a vector register."""
    if isinstance(a, Affine) and isinstance(b, Affine):
        if op in COMPARISONS:
            return _compare(c, op, a, b)
        found = _linear(c, op, a, b)
        if found is not None:
            return found
        if not a.step and not b.step:
            return _scalar_op(c, op, a, b)
        if op not in _PER_LANE:
            return arith.binary(c.w, op, register(c, a), register(c, b))
    pairs = list(zip(as_lanes(a, c.lanes), as_lanes(b, c.lanes), strict=True))
    results = [binary(c, op, x, y) for x, y in pairs]
    if op in COMPARISONS:
        return arith.gather_lanes(c.w, [register(c, r) for r in results])
    return [r for r in results if isinstance(r, Affine)]


_PER_LANE = frozenset({"mul", "floordiv", "floormod", "min", "max"})
"""What indices are made of; other operators on lane-dependent integers are data, in vector registers."""


def _linear(c: Context, op: str, a: Affine, b: Affine) -> Affine | None:
    """The result where it is a linear combination, else ``None``."""
    if op in ("add", "sub"):
        return a.plus(b, 1 if op == "add" else -1)
    if op == "mul" and (a.is_const or b.is_const):
        return a.times(b.const) if b.is_const else b.times(a.const)
    if op in ("min", "max") and a.fits and b.fits:
        gap = a.plus(b, -1)
        if gap.hi <= 0 or gap.lo >= 0:
            return a if (gap.hi <= 0) == (op == "min") else b
    if op in ("floordiv", "floormod") and b.is_const and b.const > 0 and a.fits:
        quotient, rest = a.split(b.const)
        if not (quotient.fits and rest.fits):
            return None
        if rest.lo >= 0 and rest.hi < b.const:
            return quotient if op == "floordiv" else rest
        if quotient.terms and not rest.step:
            found = binary(c, op, rest, b)
            assert isinstance(found, Affine)
            return found if op == "floormod" else quotient.plus(found)
    return None


def _scalar_op(c: Context, op: str, a: Affine, b: Affine) -> Value:
    x, y = Val(scalar(c, a), "int64"), Val(scalar(c, b), "int64")
    if op in ("floordiv", "floormod") and a.fits and a.lo >= 0 and b.is_const and b.const > 0:
        text = c.w.pure(f"{'udiv' if op == 'floordiv' else 'urem'} i64 {x.text}, {b.const}")
        return c.symbolic(Val(text, "int64"), *_division_range(op, a, b.const))
    lo, hi = _range(op, a, b)
    return c.symbolic(arith.binary(c.w, op, x, y), lo, hi)


def _range(op: str, a: Affine, b: Affine) -> tuple[int, int]:
    if op == "min":
        return min(a.lo, b.lo), min(a.hi, b.hi)
    if op == "max":
        return max(a.lo, b.lo), max(a.hi, b.hi)
    if op in ("floordiv", "floormod") and b.is_const and b.const > 0 and a.fits:
        return _division_range(op, a, b.const)
    if op == "mul":
        corners = [x * y for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
        low, high = min(corners), max(corners)
        if low >= -(2**63) and high < 2**63:
            return low, high
    return -(2**63), 2**63 - 1


def _division_range(op: str, a: Affine, divisor: int) -> tuple[int, int]:
    return (a.lo // divisor, a.hi // divisor) if op == "floordiv" else (0, divisor - 1)


def _compare(c: Context, op: str, a: Affine, b: Affine) -> Val:
    gap = a.plus(b, -1)
    if a.fits and b.fits:
        decided = _decide(op, gap.lo, gap.hi)
        if decided is not None:
            return arith.literal(decided, "bool")
    if not a.step and not b.step:
        return arith.compare(c.w, op, Val(scalar(c, a), "int64"), Val(scalar(c, b), "int64"))
    if a.fits and b.fits and gap.step and max(abs(gap.lo), abs(gap.hi)) + abs(gap.step) * c.lanes < 2**31:
        return _compare_ramp(c, op, gap)
    return arith.compare(c.w, op, register(c, a), register(c, b))


def _compare_ramp(c: Context, op: str, gap: Affine) -> Val:
    """``gap < 0`` lane by lane, in 32 bits: the literal ramp against minus the value of lane 0."""
    base = Val(scalar(c, gap.lane(0).times(-1)), "int64")
    if base.text.startswith("%"):
        base = Val(c.w.pure(f"trunc i64 {base.text} to i32"), "int32")
    return arith.compare(c.w, op, ramp(gap, c.lanes, "int32"), Val(base.text, "int32"))


def _decide(op: str, lo: int, hi: int) -> bool | None:
    """What ``gap op 0`` is for all gaps in the range, ``None`` where both happen."""
    if op == "lt":
        return True if hi < 0 else False if lo >= 0 else None
    if op == "le":
        return True if hi <= 0 else False if lo > 0 else None
    apart = lo > 0 or hi < 0
    if not apart and not lo == hi == 0:
        return None
    return apart == (op == "ne")


def choose(c: Context, condition: Val, a: Affine, b: Affine) -> Value:
    """``select`` of two indices under a scalar condition; the lane's stride survives where both have it."""
    gap = a.plus(b, -1)
    if gap.step or not gap.fits:
        return c.symbolic(arith.select(c.w, condition, register(c, a), register(c, b)))
    if not a.step:
        found = arith.select(c.w, condition, Val(scalar(c, a), "int64"), Val(scalar(c, b), "int64"))
        return c.symbolic(found, min(a.lo, b.lo), max(a.hi, b.hi))
    moved = arith.select(c.w, condition, Val(scalar(c, gap), "int64"), arith.literal(0, "int64"))
    shift = c.symbolic(moved, min(gap.lo, 0), max(gap.hi, 0))
    assert isinstance(shift, Affine)
    return b.plus(shift)
