"""How close a result must be to the reference, from the operation's condition: listed once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from minitvm.ir.dtypes import carrier
from tests.compilers import ON_GPU

Magnitude = Callable[[], np.ndarray]


@dataclass(frozen=True)
class Accuracy:
    """What an element may differ by; integers and bools never differ.

    ``ulps`` of the element itself (in the result's dtype); ``terms`` roundings of a sum, each relative to
    ``magnitude``, the sum of the terms' absolute values (in single precision where the result is in half);
    ``scale`` roundings relative to the largest element.  All 0: the same bits, but for the sign of a zero,
    which counts too with ``signs``.
    """

    ulps: float = 0
    terms: float = 0
    magnitude: Magnitude | None = None
    scale: float = 0
    signs: bool = False

    def differences(self, have: np.ndarray, want: np.ndarray) -> np.ndarray:
        """Where two arrays of one shape and dtype differ by more; NaN and infinities must agree."""
        have, want = (a.astype(carrier(a.dtype.name)) for a in (have, want))
        if want.dtype.kind != "f":
            return np.asarray(have != want)
        same = (have == want) | (np.isnan(have) & np.isnan(want))
        if self.signs:
            same &= np.isnan(want) | (np.signbit(have) == np.signbit(want))
        if not (self.ulps or self.terms or self.scale):
            return np.asarray(~same)
        with np.errstate(all="ignore"):
            gap = np.abs(have.astype("float64") - want.astype("float64"))
            return np.asarray(~(same | (gap <= self._bound(want))) | (np.isfinite(want) != np.isfinite(have)))

    def _bound(self, want: np.ndarray) -> np.ndarray:
        info = np.finfo(want.dtype)
        inner = np.finfo("float32") if want.dtype == np.float16 else info
        exact = np.abs(want.astype("float64"))
        bound = info.eps * self.ulps * exact + float(info.smallest_subnormal) * max(1, self.ulps)
        if self.scale:
            bound += info.eps * self.scale * float(exact[np.isfinite(exact)].max(initial=0))
        if self.magnitude is not None:
            sizes = np.abs(self.magnitude().astype("float64").reshape(want.shape))
            bound += inner.eps * self.terms * np.where(np.isfinite(sizes), sizes, 0)
        return np.asarray(bound)


EXACT = Accuracy()
BITS = Accuracy(signs=True)
"""Elements only move, or one exact operation makes them."""

FUNCTION = Accuracy(ulps=5 if ON_GPU else 4)
"""A function of floats, together with numpy's, which has one.  docs/cuda.md tells of a GPU's own."""
