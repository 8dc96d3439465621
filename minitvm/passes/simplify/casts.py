"""Rules of SimplifyExpr about dtypes: casts, clips that a dtype makes needless, argmax of quantized values."""

from __future__ import annotations

from typing import Any

import numpy as np

from minitvm.ir import builder as ir
from minitvm.ir.decision import Declined
from minitvm.ir.expr import Call, Constant, Expr
from minitvm.ir.ops.elemwise import CastTo, Clip
from minitvm.ir.ops.quantize import Dequantize
from minitvm.ir.ops.reduce import ArgMax, ArgMin
from minitvm.ir.ops.tensor import ArgSort
from minitvm.ir.pattern import call, scalar, value
from minitvm.passes.rule import Replacement, rule


def is_lossless(source: str, target: str) -> bool:
    """Whether every value of ``source`` is one of ``target``: a wider dtype is not enough.

    int8 to uint8 and int32 to float32 lose values though no byte; int64 to float64 loses too.
    """
    lossy = source in ("int64", "uint64") and target == "float64"  # numpy calls that safe
    return bool(np.can_cast(source, target)) and not lossy


def _range(dtype: str) -> tuple[int, int]:
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


def _is_integer(expr: Expr) -> bool:
    return np.dtype(expr.dtype).kind in "iu"


@rule(call(CastTo, value("x"), name="cast_"))
def drop_cast_to_same(cast_: Call, x: Expr) -> Replacement:
    return x if x.dtype == cast_.dtype else Declined(f"{x.dtype} becomes {cast_.dtype}")


@rule(call(CastTo, call(CastTo, value("x"), name="inner"), name="outer"))
def merge_casts(outer: Call, inner: Call, x: Expr) -> Replacement:
    """The first of two casts goes where it keeps every value, and the second then means the same."""
    first, middle, last = x.dtype, inner.dtype, outer.dtype
    if not is_lossless(first, middle):
        return Declined(f"{first} to {middle} does not keep every value")
    integers = all(np.dtype(d).kind in "iu" for d in (first, middle, last))
    if not (integers or last == "bool" or last.startswith("float") or is_lossless(first, last)):
        return Declined(f"{middle} to {last} and {first} to {last} differ outside of {last}'s range")
    return x if first == last else ir.cast(x, dtype=last)


@rule(call(Clip, value("x"), name="clip"))
def drop_clip_of_everything(clip: Call, x: Expr) -> Replacement:
    op = clip.op
    assert isinstance(op, Clip)
    low, high = _range(x.dtype) if _is_integer(x) else (-np.inf, np.inf)
    whole = op.a_min <= low and op.a_max >= high
    return x if whole else Declined(f"[{op.a_min:g}, {op.a_max:g}] is less than {x.dtype} holds")


@rule(call(CastTo, call(CastTo, call(Clip, name="clip", where=_is_integer), name="inner"), name="outer"))
def drop_cast_within_clip(outer: Call, inner: Call, clip: Call) -> Replacement:
    """``cast(cast(clip(x)))``: the first cast changes nothing where the clip's range fits its dtype."""
    op, middle = clip.op, inner.dtype
    assert isinstance(op, Clip)
    if np.dtype(middle).kind not in "iu":
        return Declined(f"{middle} is not an integer dtype")
    low, high = _range(middle)
    if not low <= op.a_min <= op.a_max <= high:
        return Declined(f"[{op.a_min:g}, {op.a_max:g}] does not fit {middle}")
    return clip if outer.dtype == clip.dtype else ir.cast(clip, dtype=outer.dtype)


_DEQUANTIZED = call(Dequantize, value("x"), scalar("scale"), scalar("zero"), name="dequantize")


@rule(call((ArgMax, ArgMin, ArgSort), _DEQUANTIZED, name="arg"))
def drop_dequantize_before_argmax(arg: Call, x: Expr, scale: Constant, zero: Constant, dequantize: Call) -> Replacement:
    """A positive scale keeps the order."""
    if not scale.value > 0:
        return Declined(f"a scale of {scale.value} does not keep the order")
    if not _is_injective(x, scale, zero, dequantize):
        return Declined("different values dequantize to the same")
    return Call(arg.op, (x,))


def _is_injective(x: Expr, scale: Constant, zero: Constant, dequantize: Call) -> bool:
    """Whether no two integers become the same float: differences of 1 survive the scale."""
    if np.dtype(x.dtype).itemsize > 2:
        return False
    low, high = _range(x.dtype)
    every: Any = np.arange(low, high + 1).astype(x.dtype)
    assert isinstance(dequantize.op, Dequantize)
    found = dequantize.op.reference(every, scale.value, zero.value)
    return bool((np.diff(found) > 0).all() and np.isfinite(found).all())
