"""The measurements of one benchmark, gathered as the plain data that ``report`` shows."""

from __future__ import annotations

import datetime
import os
import pathlib
import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import onnx

from benchmarks import scale, worker
from benchmarks.machine import cpu_model
from benchmarks.machine import measure as measure_peak
from benchmarks.onnx_models import WORKLOADS
from benchmarks.runtimes import OPENERS, Feeds, installed, random_feeds, relative_error, statistics, versions
from minitvm.runtime.timing import PAUSE, side_by_side

Say = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """``models``: names of :data:`WORKLOADS` or paths of model files.  ``runtimes``: minitvm first."""

    models: Sequence[str]
    threads: Sequence[int] = (1, 2)
    rounds: int = 15
    pause: float = PAUSE
    runtimes: Sequence[str] = ()
    processes: bool = True
    """Measure opening and memory, each in a process of its own."""
    graph: bool = True
    """Measure what does not depend on kernels."""


@dataclass(frozen=True)
class Model:
    name: str
    path: pathlib.Path
    gflop: float | None
    feeds: Feeds


def benchmark(settings: Settings, say: Say = print) -> dict[str, Any]:
    """Run everything; the result is what ``benchmark.json`` holds."""
    names = list(settings.runtimes or installed())
    say("measuring the machine")
    before = [measure_peak(threads) for threads in settings.threads]
    with tempfile.TemporaryDirectory() as folder:
        models = [_model(name, pathlib.Path(folder), say) for name in settings.models]
        measured = [_measure(model, names, settings, say) for model in models]
        graph = _graph(names, settings, say)
    peaks = [peak.better_of(measure_peak(peak.threads)) for peak in before]
    return {
        "date": datetime.date.today().isoformat(),
        "machine": {"cpu": cpu_model(), "cores": os.cpu_count(), "system": f"{platform.system()} {platform.machine()}"},
        "versions": versions(names),
        "rounds": settings.rounds,
        "pause_s": settings.pause,
        "peaks": [asdict(peak) for peak in peaks],
        "models": [with_rates(model, {peak.threads: peak.gflops for peak in peaks}) for model in measured],
        **graph,
    }


def _model(name: str, folder: pathlib.Path, say: Say) -> Model:
    """A model file in ``folder`` with its inputs beside it, built here or given by its path."""
    path = folder / f"{pathlib.Path(name).stem}.onnx"
    if name in WORKLOADS:
        say(f"{name}: building the model")
        onnx.save(WORKLOADS[name].build(), path)
    else:
        path = folder / pathlib.Path(name).name
        path.symlink_to(pathlib.Path(name).resolve())
    feeds = random_feeds(path)
    worker.save_feeds(path, feeds)
    return Model(path.stem, path, WORKLOADS[name].gflop if name in WORKLOADS else None, feeds)


def _measure(model: Model, names: Sequence[str], settings: Settings, say: Say) -> dict[str, Any]:
    processes = _processes(model, names, say) if settings.processes else {}
    runs = [_timed(model, names, threads, settings, say) for threads in settings.threads]
    return {"name": model.name, "gflop": model.gflop, "runs": runs, "processes": processes}


def _timed(model: Model, names: Sequence[str], threads: int, settings: Settings, say: Say) -> dict[str, Any]:
    """All runtimes side by side in this process."""
    say(f"{model.name}: {threads} thread(s), {settings.rounds} rounds of {', '.join(names)}")
    opened = {name: OPENERS[name](str(model.path), threads) for name in names}
    outputs = {name: run(model.feeds) for name, run in opened.items()}
    runs = {name: (lambda run=run: run(model.feeds)) for name, run in opened.items()}
    times = side_by_side(runs, settings.rounds, settings.pause)
    return {
        "threads": threads,
        "times": {name: statistics(found) for name, found in times.items()},
        "errors": {name: relative_error(outputs[names[0]], outputs[name]) for name in names[1:]},
    }


def with_rates(model: dict[str, Any], peaks: Mapping[int, float]) -> dict[str, Any]:
    """A model's result with GFLOP/s, their share of the peak, and the time at peak; ``peaks`` by threads."""
    gflop = model["gflop"]
    if gflop is None:
        return {**model, "runs": [{**run, "floor_ms": None} for run in model["runs"]]}
    runs = []
    for run in model["runs"]:
        peak, times = peaks[run["threads"]], {}
        for name, found in run["times"].items():
            gflops = 1e3 * gflop / found["median"]
            times[name] = {**found, "gflops": gflops, "of_peak": gflops / peak}
        runs.append({**run, "times": times, "floor_ms": 1e3 * gflop / peak})
    return {**model, "runs": runs}


def _processes(model: Model, names: Sequence[str], say: Say) -> dict[str, Any]:
    """Opening and memory on one thread: minitvm with an empty kernel cache, with a full one, and a saved library."""
    import minitvm

    say(f"{model.name}: opening in fresh processes")
    with tempfile.TemporaryDirectory() as cache:
        found = {
            state: worker.measure("minitvm", model.path, 1, pathlib.Path(cache))
            for state in ("minitvm, cold", "minitvm, cached")
        }
    saved = model.path.with_suffix(".mtvm")
    minitvm.compile(str(model.path), num_threads=1).save(saved)
    found["minitvm, saved"] = worker.measure(worker.LIBRARY, saved, 1)
    return found | {name: worker.measure(name, model.path, 1) for name in names[1:]}


def _graph(names: Sequence[str], settings: Settings, say: Say) -> dict[str, Any]:
    if not settings.graph:
        return {"graph": None, "imports": {}, "small_mlp_us": {}}
    say(f"a graph of {scale.CALLS} calls")
    return {
        "graph": scale.graph_cost().as_json(),
        "imports": {name: scale.import_seconds(name) for name in ("minitvm.session", *names[1:])},
        "small_mlp_us": _overhead(names),
    }


def _overhead(names: Sequence[str]) -> dict[str, float]:
    feeds = scale.mlp_feeds()
    with tempfile.TemporaryDirectory() as folder:
        path = str(pathlib.Path(folder) / "mlp.onnx")
        onnx.save(scale.mlp(), path)
        opened = {name: OPENERS[name](path, 1) for name in names}
        return {name: scale.microseconds(lambda run=run: run(feeds)) for name, run in opened.items()}
