"""All runtimes, with every number of threads, take turns with one model, in a process of its own: times steady and in
bursts, and errors."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from benchmarks import worker
from benchmarks.asked import OWN
from benchmarks.runtimes import OPENERS, Feeds, relative_error, statistics
from minitvm.errors import MiniTVMError
from minitvm.runtime.rounds import in_rotation
from minitvm.runtime.timing import BenchmarkResult, Run, timed

PAUSE = 0.12
"""Seconds of sleep before a turn: a service that gets a request now and then; and other runtimes' worker threads, which
spin for a while after a run (ONNX Runtime's for 40 milliseconds), are off the cores."""
BURST = 5
"""Runs after the pause that are a burst."""
WARM, TURN = 0.05, 0.09
"""Seconds after the pause: runs that begin after the first are steady; after the second a turn ends."""
LEAST_ROUNDS = 3
LONG = 10
"""A runtime whose run takes more than this part of the time that a model has gets no turns: its first runs count."""

Who = tuple[int, str]
"""Threads, and the runtime."""
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Job:
    """``seconds``: as far as rounds can be left out."""

    path: str
    threads: Sequence[int]
    target: str
    runtimes: Sequence[str]
    rounds: int
    seconds: float
    reference: str | None = None
    """A file of the outputs that are right."""
    pause: float = PAUSE


def work(job: Job) -> dict[str, Any]:
    """``runs``: by threads and runtime; ``errors``: of one thread's outputs, or of what comes first; ``problems``: why
    a runtime is left out."""
    until = time.perf_counter() + job.seconds
    feeds = worker.read_feeds(job.path)
    right = worker.read_arrays(job.reference) if job.reference else None
    found: dict[str, Any] = {"errors": {}, "problems": {}, "where": ""}
    runs: dict[Who, Run] = {}
    times: dict[Who, Any] = {}
    for threads, name in itertools.product(job.threads, job.runtimes):
        try:
            opened = OPENERS[name](job.path, threads, job.target)
            outputs, first = _first(opened, feeds, job.seconds / LONG)
        except Exception as error:
            found["problems"][name] = _said(error)
            continue
        if right is not None:
            found["errors"].setdefault(name, relative_error(outputs, right))
        if first > job.seconds / LONG:
            times[threads, name] = {kind: statistics(BenchmarkResult([first])) for kind in ("steady", "burst")}
        else:
            runs[threads, name] = partial(opened, feeds)
    times |= take_turns(runs, job.rounds, until, job.pause)
    found["runs"] = [
        {"threads": n, "times": {name: times[n, name] for name in job.runtimes if (n, name) in times}}
        for n in job.threads
    ]
    if (1, OWN) in times:
        found["where"] = _where(job, feeds)
    return found


def _first(run: Callable[[Feeds], list[np.ndarray]], feeds: Feeds, most: float) -> tuple[list[np.ndarray], float]:
    """Outputs, and seconds of a run: another one where the first, to which much happens once, takes longer than
    ``most``."""
    start = time.perf_counter()
    outputs = run(feeds)
    first = time.perf_counter() - start
    return outputs, first if first <= most else min(first, *timed(lambda: run(feeds)))


def take_turns(
    runs: Mapping[K, Run], rounds: int, until: float, pause: float = PAUSE
) -> dict[K, dict[str, dict[str, Any]]]:
    """Statistics ``steady`` and of the ``burst`` of each, with the medians of its ``turns`` in ms; each round begins
    with another one.

    Ends after ``rounds``, or when the clock says ``until`` (at least :data:`LEAST_ROUNDS` are taken).
    """
    taken: dict[K, list[tuple[list[float], list[float]]]] = {who: [] for who in runs}
    for number in range(rounds):
        if number >= min(rounds, LEAST_ROUNDS) and time.perf_counter() > until:
            break
        for who in in_rotation(runs, number):
            taken[who].append(turn(runs[who], pause))
    return {
        who: {kind: _of_turns(found) for kind, found in zip(("burst", "steady"), zip(*turns, strict=True), strict=True)}
        for who, turns in taken.items()
    }


def _of_turns(turns: Sequence[Sequence[float]]) -> dict[str, Any]:
    medians = [float(f"{1e3 * np.median(seconds):.5g}") for seconds in turns]
    return {**statistics(BenchmarkResult([*itertools.chain(*turns)])), "turns": medians}


def turn(run: Run, pause: float = PAUSE) -> tuple[list[float], list[float]]:
    """Seconds of the runs right after a pause, and of those that find everything awake."""
    time.sleep(pause)
    start = begun = time.perf_counter()
    burst: list[float] = []
    steady: list[float] = []
    while len(burst) < BURST or not steady or begun < start + TURN:
        begun = time.perf_counter()
        run()
        taken = time.perf_counter() - begun
        if len(burst) < BURST:
            burst.append(taken)
        if begun > start + WARM:
            steady.append(taken)
    return burst, steady


def _where(job: Job, feeds: Feeds) -> str:
    from benchmarks.where import where_time_goes

    try:
        return where_time_goes(job.path, feeds, job.target)
    except MiniTVMError as error:  # a model in parts has no one library; the benchmark goes on
        return _said(error)


def _said(error: Exception) -> str:
    """In one line; OpenVINO's begin with where it was."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("Exception from")]
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}"


def run_job(job: Job, variables: Mapping[str, str], timeout: float) -> dict[str, Any]:
    """:func:`work` in a process of its own; where that fails, ``problem`` says why."""
    return worker.process("benchmarks.turns", [json.dumps(asdict(job))], variables, timeout)


if __name__ == "__main__":
    print(json.dumps(work(Job(**json.loads(sys.argv[1])))))
