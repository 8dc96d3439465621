"""How work grows, counted and not timed: the same on every machine, however busy it is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

ROOM = 1.25


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
    """``make(4 * size)()`` takes four times the steps of ``make(size)()``; a quadratic part would take sixteen times.

    A run before them is not counted: it imports modules and fills caches.
    """
    make(size)()
    few, many = steps(make(size)), steps(make(4 * size))
    assert many < ROOM * 4 * few, f"{few:,} steps for {size:,}, {many:,} for {4 * size:,}: {many / few:.1f} times"
