"""A time that was measured, with what says whether it can be believed.

A kernel cannot take less than its floor, and runs that differ as much as they take tell nothing of the kernel.  Such a
measurement is made again; what stays so is shown as unreliable, and its prediction stands in its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import numpy as np

RELIABLE, BELOW, SPREAD, MISSING = "reliable", "below its floor", "spread too widely", "not measured"
MOST_SPREAD = 0.5
"""Of the interquartile range over the median."""
ATTEMPTS = 3
MARK = "~"
"""Stands before a figure that was predicted because its measurement is unreliable."""

T = TypeVar("T")


@dataclass(frozen=True)
class Measured:
    """``seconds``: the median of ``runs``, but of tuning, which takes the least; ``spread``: their interquartile range
    over it; ``verdict``: ``reliable``, ``below its floor``, ``spread too widely``, or ``not measured``, where no run
    got so far."""

    seconds: float
    spread: float = 0.0
    runs: int = 1
    verdict: str = RELIABLE

    @staticmethod
    def of(runs: Sequence[float], floor: float = 0.0) -> Measured:
        """What runs say of something that takes ``floor`` seconds at least; what is no time is none."""
        found = [seconds for seconds in runs if math.isfinite(seconds)]
        if not found:
            return Measured(0.0, 0.0, 0, MISSING)
        low, middle, high = (float(at) for at in np.quantile(found, (0.25, 0.5, 0.75)))
        return Measured(middle, (high - low) / middle if middle > 0 else 0.0, len(found)).judged(floor)

    def judged(self, floor: float) -> Measured:
        """The same of something with another floor."""
        if self.runs == 0 or self.seconds <= 0:
            return replace(self, verdict=MISSING)
        verdict = BELOW if self.seconds < floor else SPREAD if self.spread > MOST_SPREAD else RELIABLE
        return replace(self, verdict=verdict)

    def less(self, seconds: float, floor: float) -> Measured:
        """The same without the seconds that the measuring itself takes."""
        left = max(0.0, self.seconds - seconds)
        spread = self.spread * self.seconds / left if left else 0.0
        return Measured(left, spread, self.runs).judged(floor)

    @property
    def is_reliable(self) -> bool:
        return self.verdict == RELIABLE

    def best(self, predicted: float) -> float:
        """The seconds to reckon with: those predicted, if any, where the measurement is unreliable."""
        return self.seconds if self.is_reliable or not predicted > 0 else predicted

    def text(self, predicted: float, scale: float, digits: int) -> str:
        """:meth:`best`, marked where it is no measurement that can be believed."""
        return f"{'' if self.is_reliable else MARK}{self.best(predicted) * scale:.{digits}f}"

    @property
    def form(self) -> dict[str, Any]:
        """The measurement for JSON."""
        return asdict(self)


def doubts(found: Sequence[Measured], what: str = "kernel") -> list[str]:
    """A sentence on what of these is unreliable, for people; none where all can be believed."""
    counts = {verdict: sum(one.verdict == verdict for one in found) for verdict in (BELOW, SPREAD, MISSING)}
    if not any(counts.values()):
        return []
    parts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    many = f"{sum(counts.values())} of {len(found)} {what}s" if len(found) > 1 else f"the {what}"
    return [f"unreliable: times of {many} ({parts}); {MARK} marks what is predicted in their place"]


def again(measure: Callable[[], T], unreliable: Callable[[T], int], attempts: int | None = None) -> T:
    """The most reliable of some attempts; the first without anything unreliable is the last."""
    best = measure()
    for _ in range((ATTEMPTS if attempts is None else attempts) - 1):
        if not unreliable(best):
            break
        best = min(best, measure(), key=unreliable)
    return best
