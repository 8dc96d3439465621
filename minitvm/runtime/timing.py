"""Timing: repeated runs, as TVM's ``benchmark`` has them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from minitvm.errors import ConfigError

MOST_MS = 24 * 3600 * 1000
"""The longest time asked of one figure: a day."""

Run = Callable[[], object]


def timed(run: Run, runs: int = 1) -> list[float]:
    """Seconds of each of so many runs."""
    found = []
    for _ in range(runs):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return found


@dataclass(frozen=True)
class BenchmarkResult:
    """Seconds per run, one figure per repetition."""

    results: Sequence[float]

    @property
    def mean(self) -> float:
        return float(np.mean(self.results))

    @property
    def median(self) -> float:
        return float(np.median(self.results))

    @property
    def min(self) -> float:
        return min(self.results)

    @property
    def max(self) -> float:
        return max(self.results)

    @property
    def std(self) -> float:
        return float(np.std(self.results))

    @property
    def spread(self) -> float:
        """The interquartile range as a share of the median."""
        low, high = np.quantile(self.results, (0.25, 0.75))
        return float(high - low) / self.median

    def __str__(self) -> str:
        names = ("mean", "median", "max", "min", "std")
        heading = "".join(f"{f'{name} (ms)':^14}" for name in names)
        figures = "".join(f"{1e3 * getattr(self, name):^14.4f}" for name in names)
        return f"Execution time summary:\n{heading}\n{figures}"


def measure(
    run: Run, repeat: int = 5, number: int = 5, min_repeat_ms: float = 0.0, wait: Run = lambda: None
) -> BenchmarkResult:
    """Time ``run``: ``repeat`` figures, each the mean of ``number`` runs (more, until ``min_repeat_ms`` have passed).

    One run before the first figure is discarded.  ``wait`` waits for runs that have only begun.
    """
    for name, value in (("repeat", repeat), ("number", number)):
        if not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name} is {value!r}, but at least 1 run is needed")
    if not isinstance(min_repeat_ms, (int, float)) or not 0 <= min_repeat_ms <= MOST_MS:
        raise ConfigError(f"min_repeat_ms is {min_repeat_ms!r}, not a number of milliseconds from 0 to {MOST_MS:,}")
    run()
    wait()
    return BenchmarkResult([_mean(run, number, min_repeat_ms / 1e3, wait) for _ in range(repeat)])


def _mean(run: Run, number: int, least: float, wait: Run) -> float:
    """Seconds of a run, the clock read once for ``number`` of them."""
    runs, seconds = 0, 0.0

    def together() -> None:
        for _ in range(number):
            run()
        wait()

    while runs == 0 or seconds < least:
        seconds += timed(together)[0]
        runs += number
    return seconds / runs
