"""``minitvm compile``, ``run`` and ``bench``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import click
import numpy as np
from rich.table import Table

from minitvm.cli import building, common
from minitvm.cli.common import say, stdout, table
from minitvm.cli.generate import generate
from minitvm.cli.options import AS_JSON, LIBRARY, PATH, SUFFIX, as_json, command, option
from minitvm.cli.workers import executor, workers
from minitvm.driver import backend_for
from minitvm.driver.roofline import rates_of, roofline_of
from minitvm.errors import ConfigError
from minitvm.models import tune as tune_model
from minitvm.runtime.debug import GraphModuleDebug
from minitvm.runtime.executor import GraphModule
from minitvm.runtime.library import Library
from minitvm.runtime.measured import Measured, again, doubts
from minitvm.runtime.roofline import Roofline, cost_of
from minitvm.runtime.rounds import side_by_side
from minitvm.runtime.signing import sign as signature
from minitvm.runtime.timing import timed
from minitvm.target import Rates


@command("compile")
@building.model
@option("-o", "--output", type=PATH, help="File to write; MODEL with .mtvm by default.")
@building.compiles(threads=building.threads(LIBRARY), shapes=building.several_shapes)
@option("--sign", type=PATH, help="Private Ed25519 key (PEM) to sign the library with.")
@option("--strict", is_flag=True, excludes=(LIBRARY,), help="Refuse models with operators that would run in Python.")
def compile_command(model: Path, output: Path | None, chosen: building.Chosen, sign: Path | None, strict: bool) -> None:
    """Compile MODEL (.onnx) to a library: one file with object code, graph and parameters.

    The library loads in milliseconds, on any machine with this CPU or a newer one of its kind, and needs no compiler.

    \b
    Examples:
      minitvm compile resnet18.onnx
      minitvm compile detector.onnx -o detector.mtvm --shape image:1x3x480x640
      minitvm compile detector.onnx --shape image:1x3x480x640 --shape image:8x3x480x640
      minitvm compile resnet18.onnx --sign key.pem
    """
    start = time.perf_counter()
    path = common.output(output or common.beside(model, SUFFIX), model, sign)
    if sign is not None:
        signature(b"", sign)  # says what is wrong with a key before anything is compiled
    library = chosen.save(model, path, sign, strict)
    seconds = time.perf_counter() - start
    kernels = len(library.function_metadata)
    say(f"{path}: {kernels} kernels, {size(path.stat().st_size)}, {seconds:.1f} s")
    for call in library.host_calls:
        say(f"  in Python: {call}")


@command()
@building.onnx_model
@option("-o", "--output", type=PATH, help="File of records to go on with; MODEL with .jsonl by default.")
@option("--budget", default=600.0, help="Seconds to spend.")
@option("-n", "--trials", type=click.IntRange(1), default=8, help="Ways to try for a kernel.")
@workers
@building.compiles()
def tune(
    model: Path,
    output: Path | None,
    budget: float,
    trials: int,
    workers: int | None,
    scheduler: str | None,
    chosen: building.Chosen,
) -> None:
    """Try ways to make the kernels of MODEL (.onnx), and write down how each did, one JSON object a line.

    Ways are measured where the target's machine is there, else compiled, and judged by the registers and the memory
    that they need. What the file has already is not tried again: a tuning that was interrupted goes on. With --workers
    or --scheduler several are tried at a time, on machines of one kind; lines are in the same order.

    \b
    Examples:
      minitvm tune resnet18.onnx --threads 1 --budget 300
      minitvm tune resnet18.onnx --target 'cuda -arch=sm_80' --config cuda.allow_tf32=true
      minitvm tune resnet18.onnx --threads 1 --scheduler tcp://node1:8786
      minitvm compile resnet18.onnx --threads 1 --config minitvm.records=resnet18.jsonl
    """
    path = common.output(output or common.beside(model, ".jsonl"), model)
    how = {**chosen.of(model), "opt_level": chosen.opt_level, "budget": budget, "most": trials}
    with executor(workers, scheduler) as made, common.compiling(f"tuning {model.name}") as progress:
        found = tune_model(model, path, on_progress=progress, executor=made, **how)
    say(f"{path}: {found.now} of {found.total} ways tried, {found.known} known before")
    if found.not_measured:
        say(f"  not measured, judged by their code: {found.not_measured}")
    if not found.is_whole:
        say("  the budget is spent: the same command goes on")


def size(nbytes: int) -> str:
    return f"{nbytes / 1e6:.1f} MB" if nbytes >= 1e6 else f"{nbytes / 1e3:.0f} kB"


_TEXT = ("--generate",)
"""Beside which what describes one run does nothing."""


@command()
@building.model
@building.inputs
@option("-o", "--outputs", type=PATH, excludes=_TEXT, help="An .npz to write the results to.")
@building.seed(", and of what --generate draws")
@option("--top", type=click.IntRange(1), excludes=_TEXT, help="Print the N largest values of each result, and where.")
@option("--json", "as_json", is_flag=True, excludes=(*_TEXT, "--profile"), help=AS_JSON)
@option("--profile", is_flag=True, excludes=_TEXT, help="Run kernel by kernel and print a table of their times.")
@option("--trace", type=PATH, needs="--profile", help="Folder for graph.json and trace.json.")
@option("--generate", "prompt", metavar="TEXT", help="Write what a decoder says after TEXT.")
@option("--tokenizer", type=PATH, needs="--generate", help="tokenizer.json; MODEL's neighbour by default.")
@option("--max-tokens", type=click.IntRange(0), default=64, needs="--generate", help="New tokens at most.")
@option("--temperature", default=0.0, needs="--generate", help="Of draws; 0 takes the likeliest token.")
@option("--top-k", type=click.IntRange(1), needs="--generate", help="Draw from the K likeliest tokens.")
@option("--top-p", default=1.0, needs="--generate", help="Draw from the likeliest tokens of this share in all.")
@building.device
@building.compiles()
@building.trusted_keys
def run(
    model: Path,
    inputs: Path | None,
    outputs: Path | None,
    seed: int,
    top: int | None,
    as_json: bool,
    profile: bool,
    trace: Path | None,
    device: int,
    chosen: building.Chosen,
    prompt: str | None,
    tokenizer: Path | None,
    **sampling: Any,
) -> None:
    """Run MODEL (.onnx, or a library made by 'minitvm compile') once and describe the results; or let a decoder go on
    with a text, token by token.

    \b
    Examples:
      minitvm run resnet18.onnx --top 5
      minitvm run resnet18.mtvm -i inputs.npz -o outputs.npz
      minitvm run bert.onnx --shape ids:1x128 --profile
      minitvm run smollm/model.onnx --generate 'Once upon a time' --temperature 0.8 --top-p 0.95
    """
    if prompt is not None:
        generate(model, chosen, prompt, tokenizer or model.with_name("tokenizer.json"), seed=seed, **sampling)
        return
    common.output_folder(trace)
    if outputs is not None:
        common.output(outputs, model, inputs)
    library, feeds = chosen.opened(model, inputs)
    module, feeds = chosen.executor(library, feeds, seed, device)
    if profile:
        module = GraphModuleDebug(module.instance, graph_json=library.graph_json, dump_root=trace)
    [seconds] = timed(lambda: module.run(feeds))
    results = _results(module, library)
    _say(results, seconds, top or 0, model if as_json else None)
    if outputs is not None:
        common.write_npz(outputs, results)


def _results(module: GraphModule, library: Library) -> dict[str, Any]:
    named = zip(library.output_names, module.outputs(), strict=True)
    return dict(pair for name, value in named for pair in _named(name, value))


def _named(name: str, value: Any) -> Iterator[tuple[str, np.ndarray]]:
    """The arrays of a result: of a sequence ``name[0]``, ``name[1]``, ..., of a map those of its keys, of an
    optional without a value none."""
    if isinstance(value, (list, dict)):
        for i, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _named(f"{name}[{i}]", one)
    elif value is not None:
        array = np.asarray(value)  # what a map holds are Python's numbers
        yield name, array.astype(str) if array.dtype == object else array


_FIGURES: Mapping[str, Callable[[np.ndarray], Any]] = {"smallest": np.min, "mean": np.mean, "largest": np.max}


def _form_of(array: np.ndarray, top: int) -> dict[str, Any]:
    known = array.size and array.dtype.kind != "U"
    figures = {name: f(array) if known else None for name, f in _FIGURES.items()}
    most = [{"index": where, "value": value} for where, value in _largest(array, top)] if known else []
    return {"shape": array.shape, "dtype": str(array.dtype), **figures, **({"top": most} if top else {})}


def _largest(array: np.ndarray, top: int) -> list[tuple[list[int], Any]]:
    flat = array.ravel()
    order = np.argsort(-flat, kind="stable")[:top]
    return [([int(n) for n in np.unravel_index(i, array.shape)], flat[i]) for i in order]


def _say(results: Mapping[str, np.ndarray], seconds: float, top: int, of: Path | None) -> None:
    """In a table; as JSON ``of`` a model, where there is one."""
    if of is not None:
        common.say_json({"results": {n: _form_of(a, top) for n, a in results.items()}, "seconds": seconds}, of)
        return
    rows = table("result", "shape", "dtype", *_FIGURES)
    for name, array in results.items():
        form = _form_of(array, 0)
        figures = ("-" if form[figure] is None else f"{form[figure]:.6g}" for figure in _FIGURES)
        rows.add_row(name, str(array.shape), str(array.dtype), *figures)
    stdout.print(rows)
    for name, array in results.items():
        for where, value in _largest(array, top) if array.dtype.kind != "U" else ():
            stdout.print(f"  {name}{where} = {value:.6g}")
    stdout.print(f"first run: {seconds * 1e3:.2f} ms")


Run = Callable[[], object]


@command()
@building.model
@option("--roofline", is_flag=True, help="Time kernel by kernel, and say what bounds each.")
@as_json
@option(
    "--against",
    type=click.Choice(["onnxruntime"]),
    excludes=("--roofline", LIBRARY),
    help="A runtime to time side by side (installed apart).",
)
@option("-n", "--rounds", type=click.IntRange(1), default=10, help="Turns of each runtime.")
@building.seed()
@building.device
@building.compiles()
@building.trusted_keys
def bench(
    model: Path,
    roofline: bool,
    as_json: bool,
    against: str | None,
    rounds: int,
    seed: int,
    device: int,
    chosen: building.Chosen,
) -> None:
    """Time MODEL (.onnx, or a compiled library) on random inputs; runtimes take turns of a few runs, with a pause
    between them, since idle threads spin for a while. Spread is the interquartile range over the median.

    --roofline prints a row for each kernel, the slowest first: the nodes of the model that it computes, its
    floating-point operations, the bytes of its operands and results, and four figures. "floor": its operations at the
    machine's peak, or its bytes at the rate of the level of memory that holds them, whichever takes longer.
    "predicted": the same with the operations in the cycles that its template counts, and the cost of a call; this is
    what templates and layouts are chosen by. "measured": the median of --rounds runs; behind "~" stands what is
    predicted instead, where times are below the floor or spread too widely, three times in a row. "of peak": its
    operations a second, over the machine's. "bound by": compute, memory, a cache (L1, L2, L3), or launch. The machine
    is measured for a second; the kernel cache keeps the best figures of all times. Builds never depend on them.

    \b
    Examples:
      minitvm bench resnet18.onnx --threads 2 --against onnxruntime
      minitvm bench resnet18.onnx --threads 1 --roofline
      minitvm bench resnet18.mtvm --roofline --json > resnet18.json
    """
    start = time.perf_counter()
    library = chosen.library(model)
    seconds = time.perf_counter() - start
    module, feeds = chosen.executor(library, None, seed, device)
    if roofline:
        _show_roofline(model, _roofline(library, module, feeds, rounds), as_json)
        return
    runs: dict[str, Run] = {"minitvm": lambda: _run(module, feeds)}
    runs |= {against: _onnxruntime(model, feeds, chosen.threads or 0)} if against else {}
    times, rows = _timed(library, module.instance.num_threads, runs, rounds)
    _show_times(model, times, rows, seconds, as_json)


def _show_times(model: Path, times: _Times, rows: Table, opened: float, as_json: bool) -> None:
    title = f"{model.name}: {'loaded' if model.suffix == SUFFIX else 'compiled'} in {opened:.2f} s"
    notes = doubts([t for t, _ in times.values()], "runtime")
    _show(model, {"runtimes": _form(times), "opened": opened}, as_json, rows, "\n".join([title, *notes]))


def _show_roofline(model: Path, found: Roofline, as_json: bool) -> None:
    _show(model, found.form, as_json, _rows(found), "\n".join([f"{model.name}: {_machine(found.rates)}", *found.notes]))


def _show(model: Path, form: dict[str, Any], as_json: bool, rows: Table, title: str) -> None:
    if as_json:
        common.say_json(form, model)
    else:
        stdout.print(title)
        stdout.print(rows)


def _roofline(library: Library, module: GraphModule, feeds: dict[str, np.ndarray], rounds: int) -> Roofline:
    instance = module.instance
    alone = GraphModuleDebug(library["default"](instance.device, instance.num_threads))
    alone.set_input(feeds)

    def runs() -> Sequence[float]:
        return module.benchmark(None, rounds, 1, feeds=feeds).results

    with common.compiling("measuring") as progress:
        return roofline_of(alone, runs, backend_for(library.target, instance.num_threads), rounds, progress)


def _machine(rates: Rates) -> str:
    """What it does at most."""
    levels = ", ".join(f"{level.name} {level.rate / 1e9:.0f}" for level in rates.levels)
    threads = f"{rates.threads} thread{'s' if rates.threads > 1 else ''}"
    return f"the machine at {threads}: {rates.flops / 1e9:.0f} GFLOP/s; GB/s of {levels}"


def _rows(found: Roofline) -> Table:
    rows = table("nodes", "MFLOP", "MB", "floor us", "predicted us", "measured us", "of peak", "bound by")
    for row in (*found.rows, found.total):
        nodes = f"{row.nodes[0]}{f' +{len(row.nodes) - 1}' if row.nodes[1:] else ''}" if row.nodes else "all kernels"
        times = (f"{row.floor * 1e6:.1f}", f"{row.predicted * 1e6:.1f}", row.measured.text(row.predicted, 1e6, 1))
        sizes = (f"{size / 1e6:.2f}" for size in (row.flops, row.nbytes))
        rows.add_row(nodes, *sizes, *times, f"{found.share(row):.0%}", row.bound)
    rows.add_row("a run", "", "", "", "", found.run.text(found.total.predicted, 1e6, 1), "", "")
    return rows


def _run(module: GraphModule, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    module.run(feeds)
    return module.outputs()


_Times: TypeAlias = dict[str, tuple[Measured, float]]
"""By runtime, the time of a run, and the best of all."""

OTHERS_SAVE = 10
"""Another runtime may need so many times fewer operations: by Winograd's algorithm at most 5.1 (F(6x6, 3x3))."""


def _limits(library: Library, threads: int) -> tuple[Callable[[str], float], float]:
    """What a run of a runtime takes at least, and the seconds predicted of minitvm's own."""
    artifact, rates = library.artifact, rates_of(backend_for(library.target, threads))
    costs = [cost_of(artifact, node) for node in artifact.graph.nodes if node.is_kernel]
    own, flops = sum(cost.floor(rates) for cost in costs), sum(cost.flops for cost in costs)
    predicted = sum(cost.seconds(rates) for cost in costs)
    return lambda name: own if name == "minitvm" else flops / rates.flops / OTHERS_SAVE, predicted


def _timed(library: Library, threads: int, runs: dict[str, Run], rounds: int) -> tuple[_Times, Table]:
    """The most reliable times of some attempts, and their table."""
    floor, predicted = _limits(library, threads)

    def attempt() -> _Times:
        found = side_by_side(runs, rounds)
        return {name: (Measured.of(times.results, floor(name)), times.min) for name, times in found.items()}

    times = again(attempt, lambda found: sum(not t.is_reliable for t, _ in found.values()))
    return times, _table(times, predicted)


def _form(times: _Times) -> dict[str, Any]:
    """``best`` is a figure only where the time is reliable."""
    return {name: {**t.form, "best": best if t.is_reliable else None} for name, (t, best) in times.items()}


def _table(times: _Times, predicted: float) -> Table:
    rows = table("runtime", "median ms", "best ms", "spread", "")
    own, _ = times["minitvm"]
    for name, (found, best) in times.items():
        both = found.is_reliable and own.is_reliable
        speed = f"minitvm is {found.seconds / own.seconds:.2f} x as fast" if both and name != "minitvm" else ""
        middle = found.text(predicted if name == "minitvm" else 0.0, 1e3, 3)
        least = f"{best * 1e3:.3f}" if found.is_reliable else "-"
        rows.add_row(name, middle, least, f"{found.spread:.0%}", speed or ("" if both else found.verdict))
    return rows


def _onnxruntime(model: Path, feeds: dict[str, np.ndarray], threads: int) -> Run:
    try:
        import onnxruntime as ort
    except ImportError:
        raise ConfigError("onnxruntime is not installed", hint="pip install onnxruntime") from None
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = threads
    session = ort.InferenceSession(str(model), settings, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, feeds)
