"""Timing: one runtime's repeated runs, as TVM's ``benchmark`` has them, and several runtimes side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from minitvm.errors import ConfigError

MOST_MS = 24 * 3600 * 1000
"""The longest time asked of one figure: a day."""
PAUSE = 0.1
"""Seconds between two runtimes.  Worker threads spin for a while after a run (ONNX Runtime's for 40 milliseconds);
without the pause they would take a core from whoever comes next."""
SECONDS_OF_A_TURN = 0.04
MOST_RUNS_OF_A_TURN = 20

Run = Callable[[], object]
K = TypeVar("K")


def timed(run: Run, runs: int = 1) -> list[float]:
    """Seconds of each of so many runs."""
    found = []
    for _ in range(runs):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return found


# --- one runtime --------------------------------------------------------------------------------------------------


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


# --- several ------------------------------------------------------------------------------------------------------


def in_rotation(names: Iterable[K], number: int) -> list[K]:
    """All of them in the order of a round: each begins with another one."""
    order = [*names]
    first = number % max(1, len(order))
    return order[first:] + order[:first]


def side_by_side(
    runs: Mapping[str, Run],
    rounds: int,
    pause: float = PAUSE,
    on_round: Callable[[int], None] | None = None,
    most: int = MOST_RUNS_OF_A_TURN,
    turn: float = SECONDS_OF_A_TURN,
) -> dict[str, BenchmarkResult]:
    """Time all of ``runs`` interleaved: every round each a few times, with a pause in between, and the order changes.

    The first run of every turn warms caches and threads and is not counted.  A ``turn`` is about so many seconds long,
    and ``most`` runs at most.
    """
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    repeats = {name: _repeats(run, most, turn) for name, run in runs.items()}
    for number in range(rounds):
        for name in in_rotation(runs, number):
            time.sleep(pause)
            seconds[name] += timed(runs[name], repeats[name] + 1)[1:]
        if on_round is not None:
            on_round(number)
    return {name: BenchmarkResult(found) for name, found in seconds.items()}


def _repeats(run: Run, most: int, turn: float) -> int:
    """Runs of one turn, so that short models fill it as long ones do."""
    seconds = min(timed(run, 4)[1:])  # one alone may be ten times as long while others use the machine
    return int(min(most, max(2, turn / seconds)))
