"""All runtimes take turns with one model, in a process of its own: times steady and in bursts, and errors."""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks import worker
from benchmarks.asked import OWN
from benchmarks.runtimes import OPENERS, Feeds, relative_error, statistics
from minitvm.errors import MiniTVMError
from minitvm.runtime.timing import BenchmarkResult, timed

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


@dataclass(frozen=True)
class Job:
    """``seconds``: for all numbers of threads together, as far as rounds can be left out."""

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
    """``runs``: by threads and runtime; ``errors``: of one thread's outputs, or of what comes first; ``problems``."""
    start = time.perf_counter()
    feeds = worker.read_feeds(job.path)
    found: dict[str, Any] = {"runs": [], "errors": {}, "problems": {}, "where": ""}
    right = worker.read_arrays(job.reference) if job.reference else None
    for i, threads in enumerate(job.threads):
        seconds = (job.seconds - (time.perf_counter() - start)) / (len(job.threads) - i)
        times = _times(job, feeds, threads, seconds, found, right)
        found["runs"].append({"threads": threads, "times": times})
        gc.collect()
    if job.threads[0] == 1 and OWN in found["runs"][0]["times"]:
        found["where"] = _where(job, feeds)
    return found


def _times(
    job: Job, feeds: Feeds, threads: int, seconds: float, found: dict[str, Any], right: Sequence[np.ndarray] | None
) -> dict[str, Any]:
    """What cannot run a model is left out, and says why in ``found``."""
    start = time.perf_counter()
    runs: dict[str, Callable[[], object]] = {}
    times: dict[str, Any] = {}
    for name in job.runtimes:
        try:
            opened = OPENERS[name](job.path, threads, job.target)
            outputs, first = _first(opened, feeds, job.seconds / LONG)
        except Exception as error:
            found["problems"][name] = _said(error)
            continue
        if right is not None:
            found["errors"].setdefault(name, relative_error(outputs, right))
        if first > job.seconds / LONG:
            times[name] = {kind: statistics(BenchmarkResult([first])) for kind in ("steady", "burst")}
        else:
            runs[name] = lambda opened=opened: opened(feeds)  # type: ignore[misc]
    return times | take_turns(runs, job.rounds, start + seconds, job.pause)


def _first(run: Callable[[Feeds], list[np.ndarray]], feeds: Feeds, most: float) -> tuple[list[np.ndarray], float]:
    """Outputs, and seconds of a run: another one where the first, to which much happens once, takes longer than
    ``most``."""
    start = time.perf_counter()
    outputs = run(feeds)
    first = time.perf_counter() - start
    return outputs, first if first <= most else min(first, *timed(lambda: run(feeds)))


def take_turns(
    runs: Mapping[str, Callable[[], object]], rounds: int, until: float, pause: float = PAUSE
) -> dict[str, dict[str, dict[str, float]]]:
    """Statistics ``steady`` and of the ``burst`` by runtime; each round begins with another one.

    Ends after ``rounds``, or when the clock says ``until`` (at least :data:`LEAST_ROUNDS` are taken).
    """
    seconds: dict[str, dict[str, list[float]]] = {name: {"steady": [], "burst": []} for name in runs}
    order = list(runs)
    for number in range(rounds):
        if number >= min(rounds, LEAST_ROUNDS) and time.perf_counter() > until:
            break
        for name in order[number % len(order) :] + order[: number % len(order)] if order else ():
            burst, steady = turn(runs[name], pause)
            seconds[name]["burst"] += burst
            seconds[name]["steady"] += steady
    return {
        name: {kind: statistics(BenchmarkResult(found)) for kind, found in kinds.items()}
        for name, kinds in seconds.items()
    }


def turn(run: Callable[[], object], pause: float = PAUSE) -> tuple[list[float], list[float]]:
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
