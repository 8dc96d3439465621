"""Several runtimes timed side by side: in rounds, in each of which every one has a turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from minitvm.runtime.timing import BenchmarkResult, Run, timed

PAUSE = 0.1
"""Seconds between two runtimes.  Worker threads spin for a while after a run (ONNX Runtime's for 40 milliseconds);
without the pause they would take a core from whoever comes next."""
SECONDS_OF_A_TURN = 0.04
MOST_RUNS_OF_A_TURN = 20

K = TypeVar("K")


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
