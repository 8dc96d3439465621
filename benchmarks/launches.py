"""The time that Python takes for a run on a GPU: on a stand-in for its driver, kernels that do nothing.

``python -m benchmarks launches`` starts this file as a process that finds the stand-in.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

import minitvm
from benchmarks.onnx_models import NETWORKS
from minitvm.runtime.executor import GraphModule
from simulated_gpu.standin import environment, use_host_code

_RUNS, _ROUNDS = 500, 9


def python_seconds(name: str) -> dict[str, float]:
    """Processor seconds of each way to run a model, the least of some rounds, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.launches", name]
    done = subprocess.run(command, env=environment(idle=1), capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _measured(name: str) -> dict[str, float]:
    use_host_code(idle=True)
    library = minitvm.compile(NETWORKS[name].build() if name in NETWORKS else name, "cuda -arch=sm_90")
    module = GraphModule(library["default"]())
    types = module.input_types()
    feeds = {n: np.zeros([1 if d is None else d for d in t.sizes], t.dtype) for n, t in types.items()}
    there = {n: minitvm.nd.array(array, minitvm.cuda(0)) for n, array in feeds.items()}
    module.run(feeds)

    def bound() -> None:
        for n, array in there.items():
            module.set_input_zero_copy(n, array)
        module.run()

    ways: dict[str, Callable[[], object]] = {"run()": module.run, "inputs bound, then run()": bound}
    return {"kernels": len(library.function_metadata)} | {way: _least(run, module) for way, run in ways.items()}


def _least(run: Callable[[], object], module: GraphModule) -> float:
    rounds = []
    for _ in range(_ROUNDS):
        start = time.process_time()
        for _ in range(_RUNS):
            run()
        rounds.append((time.process_time() - start) / _RUNS)
        module.instance.memory.wait()
    return min(rounds)


if __name__ == "__main__":
    print(json.dumps(_measured(sys.argv[1])))
