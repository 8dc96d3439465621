"""Threads in company: several against one where another process keeps a core busy, and right after a run of ONNX
Runtime in the same process, whose threads spin for a while."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks import worker
from benchmarks.asked import OWN
from benchmarks.cases import make
from benchmarks.runtimes import OPENERS
from minitvm.runtime.rounds import in_rotation

BUSY, SPINNING = "busy neighbour", "after onnxruntime"
SITUATIONS = (BUSY, SPINNING)
THREADS = (1, 2, 4, 64)
MODELS = ("mobilenet_v2", "resnet18")

Call = Callable[[], object]


@dataclass(frozen=True)
class Job:
    """``seconds``: that a turn of one number of threads takes; ONNX Runtime's threads spin for some 40 ms."""

    path: str
    situation: str
    threads: Sequence[int] = THREADS
    turns: int = 25
    seconds: float = 0.04


def work(job: Job) -> dict[str, float]:
    """By number of threads: ms of a run, the median of the turns' means, in which a late thread counts."""
    feeds = worker.read_feeds(job.path)
    runs = {threads: partial(OPENERS[OWN](job.path, threads), feeds) for threads in job.threads}
    before: Call = partial(OPENERS["onnxruntime"](job.path, 2), feeds) if job.situation == SPINNING else _nothing
    for run in (before, *runs.values()):
        run()
    found: dict[int, list[float]] = {threads: [] for threads in runs}
    with _neighbour() if job.situation == BUSY else _nobody():
        for number in range(job.turns):
            for threads in in_rotation(runs, number):
                found[threads].append(_turn(before, runs[threads], job.seconds))
    return {str(threads): 1e3 * float(np.median(means)) for threads, means in found.items()}


def _turn(before: Call, run: Call, seconds: float) -> float:
    """The mean of runs, one after the other."""
    before()
    start, taken, count = time.perf_counter(), 0.0, 0
    while count == 0 or taken < seconds:
        run()
        taken, count = time.perf_counter() - start, count + 1
    return taken / count


def _nothing() -> None:
    pass


@contextmanager
def _nobody() -> Iterator[None]:
    yield


@contextmanager
def _neighbour() -> Iterator[None]:
    """A process that keeps a core busy."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            time.sleep(0.2)
            yield
        finally:
            busy.kill()


def measure(job: Job) -> dict[str, float]:
    """:func:`work` in a process of its own."""
    return worker.process("benchmarks.company", [json.dumps(asdict(job))], {})


def measure_company(say: Callable[[str], None], models: Sequence[str] = MODELS) -> dict[str, dict[str, Any]]:
    """By situation and model, of one thread's time: what several threads take."""
    found: dict[str, dict[str, Any]] = {situation: {} for situation in SITUATIONS}
    with tempfile.TemporaryDirectory() as folder:
        for model in models:
            path = str(make(model, pathlib.Path(folder)).path)
            for situation in SITUATIONS:
                say(f"company: {model}, {situation}")
                times = measure(Job(path, situation))
                if "problem" in times:
                    raise RuntimeError(f"{model} could not be measured, {situation}:\n{times['problem']}")
                found[situation][model] = {n: ms / times["1"] for n, ms in times.items() if n != "1"}
    return found


if __name__ == "__main__":
    print(json.dumps(work(Job(**json.loads(sys.argv[1])))))
