"""Peers side by side: every round each runtime runs a few times, with a pause in between, and the order changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import numpy as np

PAUSE = 0.1
"""Seconds between two runtimes.  Worker threads spin for a while after a run (ONNX Runtime's for 40 milliseconds);
without the pause they would take a core from whoever comes next."""
SECONDS_OF_A_TURN = 0.04
MOST_RUNS_OF_A_TURN = 20


@dataclass(frozen=True)
class Stats:
    """Milliseconds of one runtime's runs."""

    median: float
    best: float
    low: float
    """A quarter of the runs is faster."""
    high: float
    """A quarter is slower."""
    runs: int

    @staticmethod
    def of(seconds: list[float]) -> Stats:
        ms = 1e3 * np.asarray(seconds)
        low, median, high = (float(q) for q in np.quantile(ms, (0.25, 0.5, 0.75)))
        return Stats(median, float(ms.min()), low, high, len(seconds))

    @property
    def spread(self) -> float:
        """The interquartile range as a share of the median."""
        return (self.high - self.low) / self.median

    def as_json(self) -> dict[str, float]:
        return {**asdict(self), "spread": self.spread}


def side_by_side(
    runs: Mapping[str, Callable[[], object]],
    rounds: int,
    pause: float = PAUSE,
    on_round: Callable[[int], None] | None = None,
    most: int = MOST_RUNS_OF_A_TURN,
) -> dict[str, Stats]:
    """Time all of ``runs`` interleaved.  The first run of every turn warms caches and threads and is not counted.
    A turn is about ``SECONDS_OF_A_TURN`` long, and ``most`` runs at most."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    order = list(runs)
    repeats = {name: _repeats(run, most) for name, run in runs.items()}
    for turn in range(rounds):
        for name in order[turn % len(order) :] + order[: turn % len(order)]:
            time.sleep(pause)
            seconds[name].extend(_turn(runs[name], repeats[name]))
        if on_round is not None:
            on_round(turn)
    return {name: Stats.of(found) for name, found in seconds.items()}


def _repeats(run: Callable[[], object], most: int) -> int:
    """Runs of one turn, so that short models fill it as long ones do."""
    seconds = min(_turn(run, 3))  # one alone may be ten times as long while others use the machine
    return int(min(most, max(2, SECONDS_OF_A_TURN / seconds)))


def _turn(run: Callable[[], object], repeats: int) -> list[float]:
    run()
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return found
