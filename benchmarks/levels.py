"""The ladder of levels: the same model at optimization levels 0 to 3, side by side."""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

import onnx
from rich.console import Console

import minitvm
from benchmarks.onnx_models import NETWORKS
from benchmarks.report import table_of
from benchmarks.runtimes import random_feeds, relative_error, statistics
from minitvm.runtime.rounds import PAUSE, side_by_side

LEVELS = (0, 1, 2, 3)


def measure_levels(names: Sequence[str], threads: int, rounds: int, pause: float = PAUSE) -> list[dict[str, Any]]:
    """By model: kernels, times by level in ms, and the largest difference from level 0, relative."""
    with tempfile.TemporaryDirectory() as folder:
        return [_measure(name, pathlib.Path(folder), threads, rounds, pause) for name in names]


def _measure(name: str, folder: pathlib.Path, threads: int, rounds: int, pause: float) -> dict[str, Any]:
    path = pathlib.Path(name)
    if name in NETWORKS:
        path = folder / f"{name}.onnx"
        onnx.save(NETWORKS[name].build(), path)
    feeds = random_feeds(path)
    sessions = {n: minitvm.InferenceSession(path, num_threads=threads, opt_level=n) for n in LEVELS}
    outputs = {n: session.run(None, feeds) for n, session in sessions.items()}
    times = side_by_side({str(n): lambda s=s: s.run(None, feeds) for n, s in sessions.items()}, rounds, pause)
    return {
        "name": path.stem,
        "threads": threads,
        "times": {level: statistics(found) for level, found in times.items()},
        "errors": {str(n): relative_error(outputs[n], outputs[LEVELS[0]]) for n in LEVELS},
    }


def show_levels(result: Sequence[dict[str, Any]], console: Console) -> None:
    """A line for each model and level."""
    table = table_of("model | | level | median ms | best ms | times level 3's | differs from level 0")
    for model in result:
        last = model["times"][str(LEVELS[-1])]["median"]
        for level, found in model["times"].items():
            figures = (f"{found['median']:.2f}", f"{found['best']:.2f}", f"{found['median'] / last:.2f}")
            table.add_row(model["name"], "", level, *figures, f"{model['errors'][level]:.0e}")
    console.print(table)
