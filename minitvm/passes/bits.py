"""Results that have the same bits: what exact rules and passes are held to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minitvm.ir.dtypes import carrier
from minitvm.ir.expr import Function
from minitvm.ir.ops.elemwise import Maximum, Minimum, Relu
from minitvm.ir.visitor import calls
from minitvm.passes.compare import Explain, difference
from minitvm.passes.roundings import Results


def first_other_bits(_inputs: Sequence[Any], have: Results, want: Results) -> str:
    """The first result that has not the same bits."""
    for position, (h, w) in enumerate(zip(have, want, strict=True)):
        if not same_bits(h, w):
            return f"result {position}: {_words(h, w)}"
    return ""


def first_change(before: Function, after: Function) -> Explain:
    """A judge of two functions that have to agree to the bit, but for which of two zeros a maximum is: IEEE 754 leaves
    that open."""
    chosen = any(isinstance(c.op, (Maximum, Minimum, Relu)) for f in (before, after) for c in calls(f))

    def judge(inputs: Sequence[Any], have: Results, want: Results) -> str:
        positive = [[leaf + leaf.dtype.type(0) if leaf.dtype.kind == "f" else leaf for leaf in r] for r in (have, want)]
        return first_other_bits(inputs, *positive) if chosen else first_other_bits(inputs, have, want)

    return judge


def same_bits(have: np.ndarray, want: np.ndarray) -> bool:
    """Same shape, dtype and elements; 0.0 is not -0.0, and any NaN is one."""
    if have.shape != want.shape or have.dtype != want.dtype:
        return False
    wide = np.dtype(carrier(want.dtype.name))
    with np.errstate(all="ignore"):
        h, w = have.astype(wide), want.astype(wide)
        if wide.kind != "f":
            return bool(np.array_equal(h, w))
        return bool((((h == w) & (np.signbit(h) == np.signbit(w))) | (np.isnan(h) & np.isnan(w))).all())


def _words(have: np.ndarray, want: np.ndarray) -> str:
    if have.shape == want.shape and have.dtype == want.dtype:
        wide = np.dtype(carrier(want.dtype.name))
        if np.array_equal(have.astype(wide), want.astype(wide), equal_nan=wide.kind == "f"):
            return "the sign of a zero"
    return difference(have, want)
