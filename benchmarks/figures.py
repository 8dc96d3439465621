"""Every speed that is asked for, by one command: what at least, what we aim for, what was found."""

from __future__ import annotations

import ctypes
import io
import json
import math
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from rich.console import Console

import minitvm
from benchmarks import layers, worker
from benchmarks.asked import AGAINST_ONE, OF_A_MODEL, OF_ALL, OF_LAYERS, OWN, Asked, over, ratio
from benchmarks.cases import EIGHTEEN, found, make
from benchmarks.company import BUSY, SPINNING, measure_company
from benchmarks.graph import Graph
from benchmarks.layers_report import PEER_OVER_OURS, figures_of, kind_table
from benchmarks.measure import Settings, benchmark
from benchmarks.report import machine_line, mean_ratio, measured, plot, show_tables, table_of, write_json
from benchmarks.turns import Job, run_job
from minitvm.codegen.llvm.compile import compile_object, host
from minitvm.codegen.llvm.peak import read_text
from minitvm.ir.arrays import aligned
from minitvm.runtime.debug import GraphModuleDebug
from minitvm.runtime.native import NativeCode
from minitvm.runtime.timing import timed

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "benchmark.md"
BEGIN, END = "<!-- tables -->", "<!-- end -->"

Found = Mapping[str, Any]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """``count``: of layers; ``processes``: fresh ones in which threads are compared."""

    targets: Sequence[str] = ("llvm",)
    minutes: float = 15.0
    models: Sequence[str] = (*EIGHTEEN, "efficientnet_lite0_int8_qdq")
    count: int = 300
    processes: int = 8
    bursts: int = 25
    rounds: int = 15


# --- what is measured -------------------------------------------------------------------------------------------------


def _networks(plan: Plan, say: Say) -> dict[str, Any]:
    models = [path for name in plan.models if (path := found(name)) is not None]
    return benchmark(Settings(models, targets=plan.targets, rounds=plan.rounds, minutes=plan.minutes), say)


def _layers(plan: Plan, say: Say) -> dict[str, Any]:
    """By target."""
    made: dict[str, Any] = {}
    for target in plan.targets:
        say(f"{plan.count} layers, {target}")
        made[target] = layers.drawn(plan.count, 0, layers.Settings((3,), target=target))
        if "problem" in made[target]:
            raise RuntimeError(f"the layers of {target!r} could not be measured:\n{made[target]['problem']}")
    return made


def _dense(plan: Plan, say: Say) -> dict[str, float]:
    """1000 x 2048 at batch 1: bytes a second, over what a loop reads that only reads as many, in turns with it."""
    say("dense 1000 x 2048")
    g = Graph()
    model = g.model(g.gemm("data", 2048, 1000), (1, 2048))
    return {target: _share_of_bandwidth(model, target) for target in plan.targets}


def _share_of_bandwidth(model: onnx.ModelProto, target: str, rounds: int = 9) -> float:
    module = GraphModuleDebug(minitvm.compile(model, target, num_threads=1)["default"](None, 1))
    module.set_input("data", np.ones((1, 2048), np.float32))
    cpu, weights = host(), aligned(np.ones(1000 * 2048, np.float32))
    code = NativeCode([compile_object(read_text(cpu), cpu)], ["peak_read"])
    read = code.function("peak_read", None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    shares = []
    for _ in range(rounds):
        kernel = max(float(np.median(seconds)) for _, seconds in module.seconds_of_kernels(20))
        reading = timed(lambda: read(weights.ctypes.data, weights.nbytes // cpu.vector_bytes, 1), 20)
        shares.append(float(np.median(reading)) / kernel)
    return float(np.median(shares))


def _threads(plan: Plan, say: Say) -> list[dict[str, float]]:
    """MobileNetV2 in fresh processes: two threads' time over one's, steady and in bursts after 0.3 s."""
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        job = Job(
            str(make("mobilenet_v2", pathlib.Path(folder)).path), (1, 2), "llvm", [OWN], plan.bursts, 1e9, None, 0.3
        )
        for i in range(plan.processes):
            say(f"threads: process {i}")
            one, two = (run["times"][OWN] for run in run_job(job, {}, 600)["runs"])
            ratios.append({kind: over(two[kind], one[kind]) for kind in one})
    return ratios


def _company(plan: Plan, say: Say) -> dict[str, dict[str, dict[str, float]]]:
    return measure_company(say)


def _compile(plan: Plan, say: Say) -> dict[str, float]:
    """Seconds to open a model in a fresh process with an empty cache, on two threads: the better of two."""
    seconds = {}
    for name in ("resnet50", "densenet121"):
        say(f"{name}: cold")
        with tempfile.TemporaryDirectory() as folder:
            path = make(name, pathlib.Path(folder)).path
            tries = [worker.measure(OWN, path, 2, pathlib.Path(folder) / str(i)) for i in range(2)]
            seconds[name] = min(found["open_s"] for found in tries)
    return seconds


def _memory(plan: Plan, say: Say) -> dict[str, float]:
    """MB that are resident at most while MobileNetV2 runs, its kernels cached, or loaded as a library."""
    say("memory")
    with tempfile.TemporaryDirectory() as folder:
        path = make("mobilenet_v2", pathlib.Path(folder)).path
        saved = path.with_suffix(".mtvm")
        minitvm.compile(str(path), num_threads=1).save(saved)
        session = [worker.measure(OWN, path, 1) for _ in range(2)][-1]
        library, peer = worker.measure(worker.LIBRARY, saved, 1), worker.measure("onnxruntime", path, 1)
    return {"session": session["running_mb"], "library": library["running_mb"], "onnxruntime": peer["running_mb"]}


SECTIONS: dict[str, Callable[[Plan, Say], Any]] = {
    "networks": _networks,
    "layers": _layers,
    "dense": _dense,
    "threads": _threads,
    "company": _company,
    "compile": _compile,
    "memory": _memory,
}


def measure_figures(plan: Plan, sections: Sequence[str], output: pathlib.Path, say: Say) -> dict[str, Any]:
    """The sections; those measured before and kept in the file stay.  Written after each."""
    result: dict[str, Any] = json.loads(output.read_text(encoding="utf-8")) if output.exists() else {}
    for name in sections:
        result[name] = SECTIONS[name](plan, say)
        result["targets"] = list(plan.targets)
        write_json(result, output)
    return result


# --- what is asked ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """``find``: the figure of a target from a section's result; not a number where it was not measured."""

    what: str
    asked: Asked
    section: str
    find: Callable[[Any, str], float] = field(repr=False)


def _least(names: Sequence[str]) -> Callable[[Found, str], float]:
    """The worst ratio of these networks on one thread."""

    def find(result: Found, target: str) -> float:
        of = {
            model["name"]: ratio(times, peer=AGAINST_ONE.get(model["name"]))
            for model, times in measured(result, target, 0)
        }
        return min((of[name] for name in names if name in of), default=math.nan)

    return find


def _scaling(name: str) -> Callable[[Found, str], float]:
    def find(result: Found, target: str) -> float:
        both = [{model["name"]: times for model, times in measured(result, target, i)}.get(name) for i in (0, 1)]
        one, two = (times[OWN]["steady"] if times else {"median": math.nan} for times in both)
        return over(one, two)

    return find


def _native(find: Callable[[Any], float]) -> Callable[[Any, str], float]:
    return lambda result, target: find(result) if target == "llvm" else math.nan


def _groups() -> Iterator[Row]:
    for asked in dict.fromkeys(OF_A_MODEL.values()):
        names = [name for name, one in OF_A_MODEL.items() if one is asked]
        against = f" against {AGAINST_ONE[names[0]]}" if names[0] in AGAINST_ONE else ""
        yield Row(f"{', '.join(names)}{against}, 1 thread", asked, "networks", _least(names))


ROWS = (
    Row("every network against the faster peer, 1 thread", Asked(1.0), "networks", _least(EIGHTEEN)),
    *(
        Row(
            f"geometric mean of the 18, {threads} thread{'s' * (threads > 1)}, {kind}",
            asked,
            "networks",
            lambda result, target, threads=threads, kind=kind: mean_ratio(result, target, threads - 1, kind),
        )
        for (threads, kind), asked in OF_ALL.items()
    ),
    *_groups(),
    *(
        Row(
            f"random layers, {name}",
            asked,
            "layers",
            lambda r, target, name=name: figures_of(r[target], "level 3")[name],
        )
        for name, asked in OF_LAYERS.items()
    ),
    Row("dense 1000 x 2048 at batch 1: share of bandwidth", Asked(0.7, 0.9), "dense", lambda r, target: r[target]),
    Row("2 threads over 1: resnet50", Asked(1.8, 1.95), "networks", _scaling("resnet50")),
    Row("2 threads over 1: mobilenet_v2", Asked(1.6, 1.8), "networks", _scaling("mobilenet_v2")),
    *(
        Row(
            f"mobilenet_v2, 2 threads' time over 1 thread's, worst process, {kind}",
            asked,
            "threads",
            _native(lambda ratios, kind=kind: max(one[kind] for one in ratios)),
        )
        for kind, asked in (("steady", Asked(0.7, 0.55)), ("burst", Asked(0.85, 0.65)))
    ),
    *(
        Row(
            f"2 to 64 threads' time over 1 thread's, worst, {situation}",
            asked,
            "company",
            _native(lambda found, situation=situation: max(max(of.values()) for of in found[situation].values())),
        )
        for situation, asked in ((BUSY, Asked(1.1, 1.0)), (SPINNING, Asked(1.05, 1.0)))
    ),
    Row("cold compile of resnet50, s", Asked(4, 2), "compile", _native(lambda seconds: seconds["resnet50"])),
    Row("cold compile of densenet121, s", Asked(6, 3), "compile", _native(lambda seconds: seconds["densenet121"])),
    *(
        Row(
            f"memory while mobilenet_v2 runs over onnxruntime's: {what}",
            Asked(1.2, 0.9),
            "memory",
            _native(lambda megabytes, what=what: megabytes[what] / megabytes["onnxruntime"]),
        )
        for what in ("session", "library")
    ),
)


def figure(row: Row, result: Found, target: str) -> float:
    """What was found, or not a number."""
    try:
        return row.find(result[row.section], target)
    except KeyError:
        return math.nan


def show_figures(result: Found, console: Console) -> None:
    """A line for each figure: at least / we aim for, and what was found on every target."""
    targets = result.get("targets", ["llvm"])
    table = table_of(" | ".join(["what", "at least / aim", *targets]))
    for row in ROWS:
        numbers = [figure(row, result, target) for target in targets]
        table.add_row(row.what, str(row.asked), *(_cell(row.asked, number) for number in numbers))
    console.print(table)


def show_all(result: Found, console: Console) -> None:
    """What is asked for; then networks, and layers by kind."""
    if "networks" in result:
        console.print(machine_line(result["networks"]))
    show_figures(result, console)
    if "networks" in result:
        console.print()
        show_tables(result["networks"], console)
    for target, sweep in result.get("layers", {}).items():
        console.print(f"\n{target}, single layers: {PEER_OVER_OURS}", kind_table(sweep, "level 3"), sep="\n")


def write(result: Found) -> None:
    """Puts tables, JSON and a plot of the networks into the docs."""
    shown = io.StringIO()
    console = Console(width=160, highlight=False, file=shown)
    show_all(result, console)
    lines = (line.rstrip() for line in shown.getvalue().splitlines())
    text = PAGE.read_text(encoding="utf-8")
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    block = "\n".join(("", "```text", *lines, "```", ""))
    PAGE.write_text(text[:begin] + block + text[end:], encoding="utf-8")
    write_json(result["networks"], PAGE.with_suffix(".json"))
    plot(result["networks"], PAGE.with_suffix(".png"))


def _cell(asked: Asked, number: float) -> str:
    return "" if math.isnan(number) else f"{asked.met(number)} {number:.2f}".strip()
