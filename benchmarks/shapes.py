"""New shapes that one session meets: the slowest call of one thread, and of many at once; beside onnxruntime."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from benchmarks.memory import peak_megabytes
from benchmarks.runtimes import OPENERS, Feeds

FIRST = 4
"""What the second dimension is when the session is first run."""
SIZES = range(5, 45)
"""What it is then, each once."""
THREADS = 8


@dataclass(frozen=True)
class Calls:
    """Seconds of runs that each met a new shape, ``cpu`` those that the slowest one's thread computed itself."""

    model: str
    runtime: str
    threads: int
    first: float
    slowest: float
    cpu: float
    median: float
    peak: float
    """Megabytes that were resident at most."""

    def __str__(self) -> str:
        after = f"then slowest {self.slowest:.3f} s (CPU {self.cpu:.3f}), median {self.median:.3f} s"
        who = f"{self.model:24} {self.runtime:12} {self.threads} thread{'s' * (self.threads > 1)}"
        return f"{who:48} first call {self.first:.2f} s, {after}; peak {self.peak:.0f} MB"


def calls(model: str, runtimes: Sequence[str] = ("minitvm", "onnxruntime")) -> Iterator[Calls]:
    """Each runtime with one thread and with :data:`THREADS`, each in a process of its own."""
    for runtime in runtimes:
        for threads in (1, THREADS):
            command = [sys.executable, "-m", "benchmarks.shapes", runtime, model, str(threads)]
            found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            yield Calls(**json.loads(found.stdout))


def main(runtime: str, model: str, threads: int) -> None:
    """One process: a session over a model of token ids, run on one thread by each of its callers."""
    inputs = [(v.name, v.type.tensor_type.elem_type) for v in onnx.load(model, load_external_data=False).graph.input]
    types = {name: onnx.helper.tensor_dtype_to_np_dtype(kind) for name, kind in inputs}

    def feeds(size: int) -> Feeds:
        return {name: np.ones((1, size), dtype) for name, dtype in types.items()}

    start = time.perf_counter()
    run = OPENERS[runtime](model, 1)
    run(feeds(FIRST))
    first = time.perf_counter() - start
    left = iter(np.random.default_rng(0).permutation(SIZES).tolist())
    taken: list[tuple[float, float]] = []

    def meet() -> None:
        for size in left:  # each goes to one thread: nothing in Python stands between two of them
            given = feeds(size)
            start, cpu = time.perf_counter(), time.thread_time()
            run(given)
            taken.append((time.perf_counter() - start, time.thread_time() - cpu))

    callers = [threading.Thread(target=meet) for _ in range(threads)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(taken) == len(SIZES)
    slowest, cpu = max(taken)
    median = float(np.median([seconds for seconds, _ in taken]))
    name = model.rpartition("/")[2].removesuffix(".onnx")
    print(json.dumps(vars(Calls(name, runtime, threads, first, slowest, cpu, median, peak_megabytes()))))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
