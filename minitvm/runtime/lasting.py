"""Arrays that runs read and write again and again, as those of an ``IOBinding``: kernels that were pointed at them find
them there, so that a run costs what was bound anew."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

import numpy as np

from minitvm.ir.arrays import address_of
from minitvm.runtime.direct import is_readable, span_of


class Lasting:
    """``feeds`` are all inputs, and ``into`` the arrays of some results, by position."""

    def __init__(self, feeds: Mapping[str, np.ndarray], into: Mapping[int, np.ndarray]) -> None:
        self.feeds, self.into = feeds, into
        self.token = object()
        """What whoever has pointed kernels there remembers: it keeps no array alive."""
        self.results: list[np.ndarray | None] = []
        """By position, the arrays of ``into``, once kernels write to all of them."""
        self.rest: Sequence[tuple[int, int]] = ()
        """Position and owner of what gets new memory."""
        spans = sorted(map(span_of, into.values()))
        self._starts, self._ends = [first for first, _ in spans], [last for _, last in spans]

    def allows(self, array: np.ndarray) -> bool:
        """True if kernels can read an input where it is, and it has no bytes in common with what is written."""
        first = address_of(array)
        after = bisect_right(self._starts, first)
        is_behind = not after or self._ends[after - 1] <= first
        is_before = after == len(self._starts) or first + array.nbytes <= self._starts[after]
        return is_behind and is_before and is_readable(array)
