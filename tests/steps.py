"""How work grows, counted and not timed: the same on every machine, however busy it is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

ROOM = 1.15


def steps(work: Callable[[], object], most: int | None = None) -> int:
    """Lines of Python that ``work`` runs on this thread, those of loops and comprehensions each time.

    What C does in one line is one step. AssertionError: as soon as there are more than ``most``.
    """
    count, before = 0, sys.gettrace()

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        count += 1
        assert most is None or count <= most, f"more than {most:,} steps"
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def assert_linear(make: Callable[[int], Callable[[], object]], size: int) -> None:
    """``make(n)()`` takes as many more steps from ``2 * size`` to ``3 * size`` as from ``size`` to ``2 * size``.

    What is quadratic would take 5/3 of them; what is the same at every size does not count. A run before these is
    not counted: it imports modules and fills caches.
    """
    make(3 * size)()
    few, more, most = (steps(make(times * size)) for times in (1, 2, 3))
    growth = (most - more) / (more - few)
    assert growth < ROOM, (
        f"{few:,} steps for {size:,}, {more:,} for twice, {most:,} for three times as many: {growth:.2f}"
    )
