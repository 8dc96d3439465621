"""Intervals of integers, and what they decide."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Range:
    """``low <= value <= high``; ``None`` where there is no bound."""

    low: int | None
    high: int | None

    def scaled(self, factor: int) -> Range:
        low, high = (None if end is None else end * factor for end in (self.low, self.high))
        return Range(low, high) if factor >= 0 else Range(high, low)

    def plus(self, other: Range) -> Range:
        low = None if self.low is None or other.low is None else self.low + other.low
        high = None if self.high is None or other.high is None else self.high + other.high
        return Range(low, high)

    def times(self, other: Range) -> Range:
        """Products; nothing is known of those that may wrap around."""
        if self.low is None or self.high is None or other.low is None or other.high is None:
            return ANYTHING
        corners = [x * y for x in (self.low, self.high) for y in (other.low, other.high)]
        found = Range(min(corners), max(corners))
        return found if found.fits else ANYTHING

    def divided(self, op: str, c: int) -> Range:
        """``floordiv`` or ``floormod`` by ``c > 0``."""
        low, high = (None if end is None else end // c for end in (self.low, self.high))
        if op == "floordiv":
            return Range(low, high)
        return self.plus(Range(-low * c, -low * c)) if low is not None and low == high else Range(0, c - 1)

    def least(self, other: Range) -> Range:
        """The smaller of a value of each."""
        highs = [high for high in (self.high, other.high) if high is not None]
        low = None if self.low is None or other.low is None else min(self.low, other.low)
        return Range(low, min(highs, default=None))

    def greatest(self, other: Range) -> Range:
        return self.scaled(-1).least(other.scaled(-1)).scaled(-1)

    def hull(self, other: Range) -> Range:
        """A value of either."""
        return Range(self.least(other).low, self.greatest(other).high)

    def within(self, low: int, high: int) -> bool:
        """Whether it is known to lie there."""
        return self.low is not None and self.high is not None and low <= self.low and self.high <= high

    @property
    def fits(self) -> bool:
        """Whether it is known to be what ``int64`` holds, so that no wrap around can happen."""
        return self.within(-(2**63), 2**63 - 1)

    @property
    def is_empty(self) -> bool:
        return self.high is not None and self.low is not None and self.high < self.low

    @property
    def counter(self) -> Range:
        """What counts from 0 to below such a value."""
        return Range(0, None if self.high is None else self.high - 1)

    def decides(self, op: str) -> bool | None:
        """What ``value op 0`` is for every value; ``None`` where both happen."""
        low, high = self.low, self.high
        if op in ("lt", "le"):
            limit = 0 if op == "le" else -1
            return True if high is not None and high <= limit else False if low is not None and low > limit else None
        apart = (low is not None and low > 0) or (high is not None and high < 0)
        return apart == (op == "ne") if apart or low == high == 0 else None


ANYTHING = Range(None, None)
INT64 = Range(-(2**63), 2**63 - 1)
