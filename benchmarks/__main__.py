"""``python -m benchmarks``: minitvm beside onnxruntime and, where installed, openvino."""

from __future__ import annotations

import pathlib

import click
from rich.console import Console

from benchmarks import report
from benchmarks.measure import Settings, benchmark
from benchmarks.onnx_models import WORKLOADS
from benchmarks.runtimes import installed


def _words(context: click.Context, parameter: click.Parameter, value: str) -> list[str]:
    return [word.strip() for word in value.split(",") if word.strip()]


def _models(context: click.Context, parameter: click.Parameter, value: str) -> list[str]:
    names = _words(context, parameter, value)
    for name in names:
        if name not in WORKLOADS and not pathlib.Path(name).is_file():
            raise click.BadParameter(f"{name!r} is neither a file nor one of {', '.join(WORKLOADS)}")
    return names


def _threads(context: click.Context, parameter: click.Parameter, value: str) -> list[int]:
    words = _words(context, parameter, value)
    if not words or not all(word.isdigit() and int(word) for word in words):
        raise click.BadParameter(f"{value!r} is not a list of positive numbers, such as 1,2")
    return [int(word) for word in words]


def _runtimes(context: click.Context, parameter: click.Parameter, value: str) -> list[str]:
    peers, here = _words(context, parameter, value), installed()
    for name in peers:
        if name not in here:
            raise click.BadParameter(f"{name!r} is not installed; here are {', '.join(here)}")
    return ["minitvm", *(name for name in peers if name != "minitvm")]


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--models", default=",".join(WORKLOADS), callback=_models, help="Names, or paths of .onnx files.")
@click.option("--threads", default="1,2", callback=_threads, help="Numbers of threads.")
@click.option("--peers", default=",".join(installed()[1:]), callback=_runtimes, help="Runtimes beside minitvm.")
@click.option("--rounds", default=15, type=click.IntRange(1), help="Turns of each runtime.")
@click.option("--output", default="benchmark.json", type=click.Path(path_type=pathlib.Path), help="Where figures go.")
@click.option("--plot", type=click.Path(path_type=pathlib.Path), help="Where a picture goes.")
@click.option("--processes/--no-processes", default=True, help="Opening times and memory, in fresh processes.")
@click.option("--graph/--no-graph", default=True, help="The graph of thousands of calls, imports, a small model.")
def main(
    models: list[str],
    threads: list[int],
    peers: list[str],
    rounds: int,
    output: pathlib.Path,
    plot: pathlib.Path | None,
    processes: bool,
    graph: bool,
) -> None:
    """Time models with minitvm and its peers, side by side; print tables, write JSON and a plot.

    \b
    Examples:
      python -m benchmarks
      python -m benchmarks --models resnet18,model.onnx --threads 1 --no-graph
    """
    settings = Settings(models, threads, rounds, runtimes=peers, processes=processes, graph=graph)
    result = benchmark(settings, Console(stderr=True, highlight=False).print)
    report.show(result, Console(width=None if Console().is_terminal else 140, highlight=False))
    report.write_json(result, output)
    if plot is not None:
        report.plot(result, plot)


if __name__ == "__main__":
    main()
