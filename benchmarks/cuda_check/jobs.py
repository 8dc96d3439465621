"""One job in a process of its own: ``python -m benchmarks.cuda_check.jobs '{"kind": "speed", ...}'``.

It prints what it has found so far as lines of JSON, each of which replaces the one before: who started it keeps the
last one, however the process ends.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from benchmarks.cuda_check import calibrate as calibration
from benchmarks.cuda_check.networks import (
    FLOAT16,
    FLOAT32,
    TF32,
    allowed,
    cost_of_half,
    model_of,
    random_feed,
    sample,
    stored,
)
from benchmarks.cuda_check.nodes import walked
from benchmarks.cuda_check.peers import OWN, Own, Runner, compiled, peer, taken_in_turns
from benchmarks.cuda_check.tools import counted, sanitized, tested
from benchmarks.cuda_check.tuning import TRIALS, compiled_trials, measured_trials
from benchmarks.cuda_sim import error
from minitvm import GraphModule, cuda
from minitvm.codegen.cuda.machine import GpuModel, gpu_model
from minitvm.errors import MiniTVMError
from minitvm.runtime.nvidia.driver import gpu
from minitvm.runtime.nvidia.image import unpack

MARK = "found "
"""What a line begins with that counts."""
Found = dict[str, Any]


@dataclass(frozen=True)
class Job:
    kind: str
    model: str = ""
    batch: int = 1
    precision: str = FLOAT32
    peers: tuple[str, ...] = ()
    arch: str = ""
    """Of the GPU, which a job that only compiles does not ask for."""
    rounds: int = 12
    turn: float = 0.02
    """Seconds."""
    stand_in: bool = False
    """The process was started on the stand-in for NVIDIA's driver."""
    out: str = ""
    """The folder for files."""
    seconds: float = 60.0
    """For what is tried."""
    tool: str = ""
    nodes: tuple[str, ...] = ()
    part: int = 0
    parts: int = 1

    @staticmethod
    def of(text: str) -> Job:
        form = json.loads(text)
        return Job(**{**form, "peers": tuple(form["peers"]), "nodes": tuple(form["nodes"])})

    def text(self) -> str:
        return json.dumps(asdict(self))

    @property
    def what(self) -> tuple[str, int, str, str]:
        return self.model, self.batch, self.precision, self.arch

    def file(self, what: str) -> pathlib.Path:
        """Of this job, in the folder."""
        return pathlib.Path(self.out) / "-".join(filter(None, (what, self.model, str(self.batch), self.precision)))


# --- what is there ------------------------------------------------------------------------------------------------

_PACKAGES = ("minitvm", "cuda-bindings", "nvidia-cuda-nvrtc", "torch", "triton", "onnxruntime", "numpy")


def device(job: Job) -> Iterator[Found]:
    """The GPU and the software; :class:`TargetError` where there is none."""
    there = gpu(0)
    driver = there.call("cuDriverGetVersion")
    with there:
        _, memory = there.call("cuMemGetInfo")
    found = {"name": there.name, "arch": there.arch, "memory": int(memory), "cores": os.cpu_count()}
    found |= {"sms": there.sms, "memory_bytes": there.memory_bytes}
    yield {**found, "driver": f"{driver // 1000}.{driver % 1000 // 10}", "versions": dict(_versions())}


def _versions() -> Iterator[tuple[str, str]]:
    for name in _PACKAGES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue


def tests(job: Job) -> Iterator[Found]:
    yield from tested(job.stand_in)


def sanitize(job: Job) -> Iterator[Found]:
    """A small network under ``compute-sanitizer``."""
    yield from sanitized(job.tool, replace(job, kind="correct").text())


def calibrate(job: Job) -> Iterator[Found]:
    """What the GPU does in a cycle."""
    yield from calibration.measured(job.arch, job.stand_in)


# --- numbers ------------------------------------------------------------------------------------------------------


def correct(job: Job) -> Iterator[Found]:
    """The largest difference of a model's results from those on the CPU."""
    given = sample(job.model, job.batch)
    start = time.perf_counter()
    library = compiled(*job.what)
    seconds = time.perf_counter() - start
    found = Own(library, given.in_precision(job.precision)).outputs()
    largest = max(error(have, want) for have, want in zip(found, given.expected, strict=True))
    calls = sorted({call.op for call in library.host_calls})
    against = {"against": given.source, "host_calls": calls, "compile_s": seconds}
    half = cost_of_half(job.model, job.precision) if largest > given.allowed(job.precision) else 0.0
    right, most = given.is_right(found, largest, job.precision, half), given.allowed(job.precision, half)
    yield {"error": largest, "allowed": most, "right": right, "half_costs": half, **against}


def nodes(job: Job) -> Iterator[Found]:
    """The kernels of a wrong model, each over what it gets on the GPU."""
    given, library = sample(job.model, job.batch), compiled(*job.what)
    module = GraphModule(library["default"](cuda(0)))
    for name, value in given.in_precision(job.precision).items():
        module.set_input(name, value)
    yield from walked(module.instance, library, given.allowed(job.precision), job.file("nodes"))


def build(job: Job) -> Iterator[Found]:
    """Into the cache, without a GPU; seconds, but for imports."""
    start = time.perf_counter()
    library = compiled(*job.what)
    seconds, misses = time.perf_counter() - start, library.report.cache_misses
    yield {"seconds": seconds, "kernels": len(library.function_metadata), "misses": misses}


# --- times --------------------------------------------------------------------------------------------------------


def feed_of(job: Job) -> dict[str, np.ndarray]:
    if job.model in stored():
        return dict(sample(job.model).feed)
    model: Any = model_of(job.model, job.batch, FLOAT32)
    dtype = np.float16 if job.precision == FLOAT16 else np.float32
    return {name: array.astype(dtype) for name, array in random_feed(model).items()}


def speed(job: Job) -> Iterator[Found]:
    """Milliseconds of minitvm alone, then of it and of all peers so far, as each of them comes."""
    feed = feed_of(job)
    runners: dict[str, Runner] = {OWN: Own(compiled(*job.what), feed)}
    own, missing, differ = runners[OWN].outputs(), dict[str, str](), dict[str, float]()
    times = turns(runners, job)
    yield {"times": times}
    for kind in job.peers:
        try:
            runners[kind] = peer(kind, *job.what, feed)
            differ[kind] = max(error(a, b) for a, b in zip(own, runners[kind].outputs(), strict=True))
            times = turns(runners, job)
        except Exception as problem:  # a peer's; others run
            runners.pop(kind, None)
            missing[kind] = _first_line(problem)
        yield {"times": times, "missing": missing, "differ": differ}
    if far := too_far(job, differ):
        yield {"times": times, "missing": missing, "differ": differ, "wrong": far}


def too_far(job: Job, differ: Mapping[str, float]) -> dict[str, float]:
    """Peers whose results are further from ours than two that are right can be: such times say nothing."""
    most = max(differ.values(), default=0.0)
    half = cost_of_half(job.model, job.precision) if not most <= 2 * allowed(job.precision, 0.0) else 0.0
    return {kind: found for kind, found in differ.items() if not found <= 2 * allowed(job.precision, half)}


def turns(runners: Mapping[str, Runner], job: Job) -> dict[str, dict[str, float]]:
    """By runner, in milliseconds."""
    seconds = defaultdict[str, list[float]](list)
    for name, found in taken_in_turns(runners, job.rounds, job.turn):
        seconds[name] += found
    return {name: statistics(found) for name, found in seconds.items()}


def statistics(seconds: list[float]) -> dict[str, float]:
    low, median, high = (1e3 * float(q) for q in np.quantile(seconds, (0.25, 0.5, 0.75)))
    return {"median": median, "low": low, "high": high, "best": 1e3 * min(seconds), "runs": len(seconds)}


def python(job: Job) -> Iterator[Found]:
    """Microseconds of the thread that calls ``run()`` of a captured model: the least of some rounds, which wait."""
    module = Own(compiled(*job.what), feed_of(job)).module
    rounds = []
    for _ in range(job.rounds):
        start = time.perf_counter()
        for _ in range(20):
            module.run()
        rounds.append((time.perf_counter() - start) / 20)
        module.instance.memory.wait()
    yield {"microseconds": 1e6 * min(rounds), "median": 1e6 * float(np.median(rounds))}


# --- every kernel -------------------------------------------------------------------------------------------------

REPEATS = 20
"""Of a kernel for one of ``rounds`` times: so many are in the graph that is timed."""
LAUNCH_SECONDS = 1.5e-6
REACHED_FLOAT32, REACHED_TENSOR, REACHED_BYTES = 50 / 67, 0.62, 4.3 / 4.8
"""Shares of a card's data sheet that kernels reach at best, as seen on an H200."""


def floor(model: GpuModel, precision: str, flops: float, nbytes: float, launches: int) -> float:
    """Seconds that a kernel takes at least; products of TF32 run at half of float16's speed."""
    tensor = model.tensor_flops * REACHED_TENSOR
    rate = {FLOAT32: model.flops * REACHED_FLOAT32, TF32: tensor / 2, FLOAT16: tensor}[precision]
    return max(flops / rate, nbytes / (model.memory_bytes * REACHED_BYTES), launches * LAUNCH_SECONDS)


def of_device(arch: str) -> GpuModel:
    """The GPU that is there: cards of an architecture differ in memory (H100 3.35, H200 4.8 TB/s) and in SMs."""
    there = gpu(0)
    model = gpu_model(arch)
    flops = model.flops * there.sms / model.sms
    tensor = model.tensor_flops * there.sms / model.sms
    return replace(model, sms=there.sms, memory_bytes=there.memory_bytes, flops=flops, tensor_flops=tensor)


def roofline(job: Job) -> Iterator[Found]:
    """Every kernel node: its time in a graph of nothing else (so its inputs are in the cache), and its floor."""
    library = compiled(*job.what)
    runner, model = Own(library, feed_of(job)), of_device(job.arch)
    instance, rows = runner.module.instance, list[Found]()
    for index, node in enumerate(instance.graph.nodes):
        if not node.is_kernel:
            continue
        timed = instance.code.timed(instance.node_step(index), REPEATS * job.rounds)
        seconds = float(np.median(timed))
        known = library.function_metadata[node.func]
        flops, nbytes = float(known["flops"]), float(known["bytes"])
        launches = len(unpack(library.artifact.objects[node.func])[0])
        least = floor(model, job.precision, flops, nbytes, launches)
        row = {"node": node.name, "kernel": node.func, "launches": launches, "flops": flops, "bytes": nbytes}
        row["predicted_us"] = 1e6 * known["cycles"] / model.clock
        rows.append({**row, "us": 1e6 * seconds, "floor_us": 1e6 * least})
    total = sum(row["us"] for row in rows) or 1.0
    yield {"kernels": [{**row, "share": row["us"] / total, "of_floor": row["floor_us"] / row["us"]} for row in rows]}


def counters(job: Job) -> Iterator[Found]:
    """What ``ncu`` counts in the kernels that take longest."""
    library, (found,) = compiled(*job.what), roofline(job)
    slowest = {row["kernel"]: row["node"] for row in sorted(found["kernels"], key=lambda row: float(row["us"]))}
    taken = dict([*slowest.items()][-SLOWEST:])
    functions = [launch.function for kernel in taken for launch in unpack(library.artifact.objects[kernel])[0]]
    asked = replace(job, kind="once", nodes=tuple(taken.values()))
    yield {"counters": counted(functions, asked.text(), job.file("counters").with_suffix(".csv"))}


SLOWEST = 10


def once(job: Job) -> Iterator[Found]:
    """Some nodes, each launched once for a profiler to see."""
    instance, there = Own(compiled(*job.what), feed_of(job)).module.instance, gpu(0)
    steps = [instance.node_step(n) for n, node in enumerate(instance.graph.nodes) if node.name in job.nodes]
    with there:
        there.call("cuProfilerStart")
    for step in steps:
        step()
    instance.memory.wait()
    with there:
        there.call("cuProfilerStop")
    yield {"launched": len(steps)}


# --- beside others, and better ------------------------------------------------------------------------------------


def warm(job: Job) -> Iterator[Found]:
    """What peers compile, into their cache."""
    missing = dict[str, str]()
    for kind in job.peers:
        try:
            peer(kind, *job.what, feed_of(job))
        except Exception as problem:  # a peer's
            missing[kind] = _first_line(problem)
        yield {"missing": missing}


def _first_line(problem: Exception) -> str:
    return (str(problem).splitlines() or [type(problem).__name__])[0][:300]


def trials(job: Job) -> Iterator[Found]:
    yield from compiled_trials(job.what, job.part, job.parts, job.seconds)


def tune(job: Job) -> Iterator[Found]:
    """What kernels could be is measured; then the network as it was and as it is by that."""
    (found,) = measured_trials(job.what, job.seconds, pathlib.Path(job.out))
    yield found
    records, feed = str(pathlib.Path(job.out) / TRIALS), feed_of(job)
    ways = {"shipped": Own(compiled(*job.what), feed), "tuned": Own(compiled(*job.what, records=records), feed)}
    first, second = (way.outputs() for way in ways.values())
    differ = {"shipped": max(error(a, b) for a, b in zip(first, second, strict=True))}
    yield {**found, "times": turns(ways, job), "differ": differ, "wrong": too_far(job, differ)}


ALL_KINDS = (device, tests, sanitize, calibrate, correct, nodes, build, speed, python, roofline, counters, once)
KINDS: Mapping[str, Callable[[Job], Iterator[Found]]] = {f.__name__: f for f in (*ALL_KINDS, warm, trials, tune)}


def main(text: str) -> None:
    job = Job.of(text)
    if job.stand_in:
        from simulated_gpu.standin import use_host_code

        use_host_code()
    found: Found = {}
    try:
        for found in KINDS[job.kind](job):
            print(MARK + json.dumps(found), flush=True)
    except Exception as problem:  # all of it goes to the log, and what was found stays
        traceback.print_exc()
        text = str(problem) if isinstance(problem, MiniTVMError) else f"{type(problem).__name__}: {problem}"
        print(MARK + json.dumps({**found, "failed": text}), flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1])
