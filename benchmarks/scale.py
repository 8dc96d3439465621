"""What does not depend on kernels: a graph of thousands of calls, the import of the package, the cost of a run."""

from __future__ import annotations

import pathlib
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import onnx

from benchmarks.graph import Graph

CALLS = 5000


def mesh(calls: int = CALLS, channels: int = 16, size: int = 8) -> onnx.ModelProto:
    """About ``calls`` nodes: units of convolution, normalization, rectifier, branch, concatenation and sum."""
    g = Graph()
    x = "data"
    while len(g.nodes) < calls - 1:
        left = g.node("Relu", [g.norm(g.conv(x, channels, channels, 1), channels)])
        right = g.node("Sigmoid", [g.node("Mul", [x, g.normal((1, channels, 1, 1), 0.5)])])
        both = g.node("Concat", [left, right], axis=1)
        halves = g.conv(both, 2 * channels, channels, 1)
        x = g.node("Tanh", [g.node("Add", [x, halves])])
    return g.model(x, (1, channels, size, size))


@dataclass(frozen=True)
class GraphCost:
    """Seconds of each stage before kernels are compiled, and what became of the calls."""

    calls: int
    kernels: int
    import_s: float
    passes_s: float
    plan_s: float

    @property
    def total_s(self) -> float:
        return self.import_s + self.passes_s + self.plan_s

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "total_s": self.total_s}


def graph_cost(calls: int = CALLS) -> GraphCost:
    """Import, passes at level 3, and memory plan for :func:`mesh`; kernels are not compiled."""
    from minitvm.codegen.llvm.compile import host, machine_model
    from minitvm.driver import optimize
    from minitvm.driver.program import read_program
    from minitvm.frontend import from_onnx
    from minitvm.runtime.memory import plan_memory

    model = mesh(calls)
    start = time.perf_counter()
    module, params = from_onnx(model)
    imported = time.perf_counter()
    optimized = optimize(module, machine_model(host(), 1), params, opt_level=3)
    passed = time.perf_counter()
    graph = read_program(optimized.main).graph
    plan_memory(graph, {})
    planned = time.perf_counter()
    kernels = sum(node.is_kernel for node in graph.nodes)
    return GraphCost(len(model.graph.node), kernels, imported - start, passed - imported, planned - passed)


def import_seconds(what: str, tries: int = 3) -> float:
    """The median time of ``import what`` in a fresh interpreter, beyond the interpreter and numpy."""
    code = f"import numpy, time; t = time.perf_counter(); import {what}; print(time.perf_counter() - t)"
    found = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(tries)
    ]
    return statistics.median(float(done.stdout) for done in found)


_LOAD = """
import sys, time
start = time.thread_time()
import minitvm.runtime
imported = time.thread_time()
minitvm.runtime.load_module(sys.argv[1])
print(imported - start, time.thread_time() - imported)
"""


def load_seconds(path: pathlib.Path, tries: int = 10) -> tuple[float, float]:
    """CPU time to import ``minitvm.runtime``, and to load a saved library (numpy and LLVM come with it): of the thread
    that waits for it, for numpy's OpenBLAS starts others that spin; the least of fresh processes, for other work on the
    machine only adds."""
    command = [sys.executable, "-c", _LOAD, str(path)]
    done = [subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() for _ in range(tries)]
    imported, loaded = min(([float(word) for word in words] for words in done), key=sum)
    return imported, loaded


def mlp() -> onnx.ModelProto:
    """Three small dense layers: what a run costs beyond its kernels."""
    g = Graph()
    x = g.node("Relu", [g.linear("data", 16, 32)])
    x = g.node("Relu", [g.linear(x, 32, 32)])
    return g.model(g.linear(x, 32, 8), (1, 16))


def microseconds(run: Any, repeats: int = 2000) -> float:
    """The median over ten groups of runs, by run."""
    groups = []
    for _ in range(10):
        start = time.perf_counter()
        for _ in range(repeats // 10):
            run()
        groups.append((time.perf_counter() - start) / (repeats // 10))
    return 1e6 * statistics.median(groups)


def mlp_feeds() -> dict[str, np.ndarray]:
    return {"data": np.random.default_rng(0).normal(size=(1, 16)).astype(np.float32)}
