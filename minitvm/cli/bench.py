"""``minitvm bench``."""

from __future__ import annotations

import pathlib
import statistics
import time
from collections.abc import Callable

import click
import numpy as np
from rich.table import Table

from minitvm.cli import options
from minitvm.cli.console import stdout
from minitvm.errors import ConfigError
from minitvm.runtime.executor import GraphModule
from minitvm.runtime.ndarray import cpu

Run = Callable[[], object]


@click.command()
@options.model
@click.option("--against", type=click.Choice(["onnxruntime"]), help="A runtime to time side by side (installed apart).")
@click.option("-n", "--rounds", type=click.IntRange(1), default=30, show_default=True, help="Timed runs of each.")
@click.option("--seed", default=0, show_default=True, help="Seed of the random inputs.")
@options.target
@options.opt_level
@options.threads
@options.shapes
def bench(
    model: pathlib.Path,
    against: str | None,
    rounds: int,
    seed: int,
    target: str,
    opt_level: int,
    threads: int,
    shapes: tuple[tuple[str, list[int]], ...],
) -> None:
    """Time MODEL (.onnx, or a compiled library) on random inputs; runs of the peers alternate.

    \b
    Examples:
      minitvm bench resnet18.onnx --threads 1
      minitvm bench resnet18.onnx --threads 2 --against onnxruntime
    """
    if against and model.suffix == options.SUFFIX:
        raise ConfigError(f"{against} cannot run {model}", hint="give the .onnx file that it was compiled from")
    start = time.perf_counter()
    library = options.library_of(model, target, opt_level, threads, shapes)
    seconds = time.perf_counter() - start
    module = GraphModule(library["default"](cpu(0), threads or None))
    feeds = options.random_inputs(module, seed)
    runs: dict[str, Run] = {"minitvm": lambda: _run(module, feeds)}
    if against:
        runs[against] = _onnxruntime(model, feeds, threads)
    stdout.print(f"{model.name}: {'loaded' if model.suffix == options.SUFFIX else 'compiled'} in {seconds:.2f} s")
    stdout.print(_table(interleaved(runs, rounds)))


def _run(module: GraphModule, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    module.run(**feeds)
    return module.outputs()


def interleaved(runs: dict[str, Run], rounds: int) -> dict[str, list[float]]:
    """Seconds of every run, the runtimes taking turns; two rounds before are not counted."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 2):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if turn >= 2:
                times[name].append(time.perf_counter() - start)
    return times


def _table(times: dict[str, list[float]]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("runtime")
    for heading in ("median ms", "best ms", "90 % ms"):
        table.add_column(heading, justify="right")
    table.add_column("")
    own = statistics.median(times["minitvm"])
    for name, seconds in times.items():
        figures = (statistics.median(seconds), min(seconds), float(np.quantile(seconds, 0.9)))
        speed = "" if name == "minitvm" else f"minitvm is {figures[0] / own:.2f} x as fast"
        table.add_row(name, *(f"{1e3 * f:.3f}" for f in figures), speed)
    return table


def _onnxruntime(model: pathlib.Path, feeds: dict[str, np.ndarray], threads: int) -> Run:
    try:
        import onnxruntime as ort
    except ImportError:
        raise ConfigError("onnxruntime is not installed", hint="pip install onnxruntime") from None
    settings = ort.SessionOptions()  # type: ignore[attr-defined]
    settings.intra_op_num_threads = threads
    session = ort.InferenceSession(  # type: ignore[attr-defined]
        str(model), settings, providers=["CPUExecutionProvider"]
    )
    return lambda: session.run(None, feeds)
