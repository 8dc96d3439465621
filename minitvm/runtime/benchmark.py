"""Timing: repeated runs, and the table that ``benchmark`` prints."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minitvm.errors import ConfigError

MOST_MS = 24 * 3600 * 1000
"""The longest time asked of one figure: a day."""


@dataclass(frozen=True)
class BenchmarkResult:
    """Seconds per run, one figure per repetition."""

    results: Sequence[float]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.results)

    @property
    def median(self) -> float:
        return statistics.median(self.results)

    @property
    def min(self) -> float:
        return min(self.results)

    @property
    def max(self) -> float:
        return max(self.results)

    @property
    def std(self) -> float:
        return statistics.pstdev(self.results)

    def __str__(self) -> str:
        names = ("mean", "median", "max", "min", "std")
        heading = "".join(f"{f'{name} (ms)':^14}" for name in names)
        figures = "".join(f"{1e3 * getattr(self, name):^14.4f}" for name in names)
        return f"Execution time summary:\n{heading}\n{figures}"


def measure(run: Callable[[], object], repeat: int = 5, number: int = 5, min_repeat_ms: float = 0.0) -> BenchmarkResult:
    """Time ``run``: ``repeat`` figures, each the mean of ``number`` runs (more, until ``min_repeat_ms`` have passed).

    One run before the first figure is discarded.
    """
    for name, value in (("repeat", repeat), ("number", number)):
        if not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name} is {value!r}, but at least 1 run is needed")
    if not isinstance(min_repeat_ms, (int, float)) or not 0 <= min_repeat_ms <= MOST_MS:
        raise ConfigError(f"min_repeat_ms is {min_repeat_ms!r}, not a number of milliseconds from 0 to {MOST_MS:,}")
    run()
    return BenchmarkResult([_one(run, number, min_repeat_ms / 1e3) for _ in range(repeat)])


def _one(run: Callable[[], object], number: int, least: float) -> float:
    runs, start = 0, time.perf_counter()
    while True:
        for _ in range(number):
            run()
        runs += number
        elapsed = time.perf_counter() - start
        if elapsed >= least:
            return elapsed / runs
