"""``minitvm bench``."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable

import click
import numpy as np
from rich.table import Table

from minitvm.cli import options
from minitvm.cli.console import stdout, table
from minitvm.errors import ConfigError
from minitvm.runtime.executor import GraphModule
from minitvm.runtime.ndarray import cpu
from minitvm.runtime.timing import BenchmarkResult, side_by_side

Run = Callable[[], object]


@click.command()
@options.model
@click.option("--against", type=click.Choice(["onnxruntime"]), help="A runtime to time side by side (installed apart).")
@click.option("-n", "--rounds", type=click.IntRange(1), default=10, show_default=True, help="Turns of each runtime.")
@click.option("--seed", default=0, show_default=True, help="Seed of the random inputs.")
@options.compiles
@options.trusted_keys
def bench(model: pathlib.Path, against: str | None, rounds: int, seed: int, chosen: options.Chosen) -> None:
    """Time MODEL (.onnx, or a compiled library) on random inputs; runtimes take turns of a few runs, with a pause
    between them, since idle threads spin for a while. Spread is the interquartile range over the median.

    \b
    Examples:
      minitvm bench resnet18.onnx --threads 1
      minitvm bench resnet18.onnx --threads 2 --against onnxruntime
    """
    if against and model.suffix == options.SUFFIX:
        raise ConfigError(f"{against} cannot run {model}", hint="give the .onnx file that it was compiled from")
    start = time.perf_counter()
    library = chosen.library(model)
    seconds = time.perf_counter() - start
    module = GraphModule(library["default"](cpu(0), chosen.threads))
    feeds = options.random_inputs(module, seed)
    runs: dict[str, Run] = {"minitvm": lambda: _run(module, feeds)}
    if against:
        runs[against] = _onnxruntime(model, feeds, chosen.threads or 0)
    stdout.print(f"{model.name}: {'loaded' if model.suffix == options.SUFFIX else 'compiled'} in {seconds:.2f} s")
    stdout.print(_table(side_by_side(runs, rounds)))


def _run(module: GraphModule, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    module.run(feeds)
    return module.outputs()


def _table(times: dict[str, BenchmarkResult]) -> Table:
    rows = table("runtime", "median ms", "best ms", "spread", "")
    own = times["minitvm"].median
    for name, found in times.items():
        speed = "" if name == "minitvm" else f"minitvm is {found.median / own:.2f} x as fast"
        rows.add_row(name, f"{found.median * 1e3:.3f}", f"{found.min * 1e3:.3f}", f"{found.spread:.0%}", speed)
    return rows


def _onnxruntime(model: pathlib.Path, feeds: dict[str, np.ndarray], threads: int) -> Run:
    try:
        import onnxruntime as ort
    except ImportError:
        raise ConfigError("onnxruntime is not installed", hint="pip install onnxruntime") from None
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = threads
    session = ort.InferenceSession(str(model), settings, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, feeds)
