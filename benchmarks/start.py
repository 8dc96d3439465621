"""How soon a process has its first result: the first that opens a model, and those after it, beside onnxruntime's.

Processes of both take turns, so that what else the machine does falls on both; CPU seconds are counted, Python's start
and numpy's import among them.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.cases import make
from benchmarks.decoders import Decoder
from benchmarks.worker import process, save_feeds

RUNTIMES = ("minitvm", "onnxruntime")
DECODER = "decoder"
"""The name of a decoder of twelve layers, with a cache of 200 tokens."""
PAST, CLOSE = 200, 1e-3


@dataclass(frozen=True)
class Start:
    """CPU seconds to the first result: of a process with an empty cache, and of those that follow, least and median."""

    model: str
    threads: int
    cold: float
    least: dict[str, float]
    median: dict[str, float]
    before: float
    """Of them, what Python and numpy take."""

    def __str__(self) -> str:
        who = f"{self.model:16} {self.threads} thread{'s' * (self.threads > 1)}"
        times = ", ".join(f"{name} {self.least[name]:.2f} (median {self.median[name]:.2f})" for name in self.least)
        ratio = self.least["minitvm"] / self.least["onnxruntime"]
        return f"{who}: {times}: {ratio:.2f} x; Python and numpy {self.before:.2f}, first process {self.cold:.2f}"


def starts(models: Sequence[str], threads: Sequence[int] = (1,), tries: int = 5) -> Iterator[Start]:
    """Raises ``RuntimeError`` where a process fails, ``ValueError`` where results differ."""
    for name in models:
        with tempfile.TemporaryDirectory() as folder:
            path = _decoder(Path(folder)) if name == DECODER else make(name, Path(folder)).path
            for count in threads:
                yield _start(path, count, tries)


def _start(path: Path, threads: int, tries: int) -> Start:
    with tempfile.TemporaryDirectory() as cache:
        variables = {"MINITVM_CACHE_DIR": cache}
        cold = _first("minitvm", path, threads, variables)
        found: dict[str, list[Any]] = {runtime: [] for runtime in RUNTIMES}
        for _ in range(tries):
            for runtime, results in found.items():
                results.append(_first(runtime, path, threads, variables))
    for mine, theirs in zip(cold["sums"], found["onnxruntime"][0]["sums"], strict=True):
        if abs(mine - theirs) > CLOSE * max(1.0, abs(theirs)):
            raise ValueError(f"{path.name}: results add up to {mine}, onnxruntime's to {theirs}")
    seconds = {name: [one["seconds"] for one in results] for name, results in found.items()}
    return Start(
        path.stem,
        threads,
        cold["seconds"],
        {name: min(each) for name, each in seconds.items()},
        {name: statistics.median(each) for name, each in seconds.items()},
        min(one["before"] for one in found["minitvm"]),
    )


def _first(runtime: str, path: Path, threads: int, variables: dict[str, str]) -> dict[str, Any]:
    found = process("benchmarks.first", [runtime, str(path), str(threads)], variables)
    if "problem" in found:
        raise RuntimeError(f"{runtime} could not run {path.name}:\n{found['problem']}")
    return found


def _decoder(folder: Path) -> Path:
    """A step behind :data:`PAST` tokens."""
    decoder, path, rng = Decoder(), folder / f"{DECODER}.onnx", np.random.default_rng(0)
    onnx.save(decoder.model(), path)
    past = {name: rng.normal(size=(1, *of.shape[1:2], PAST, of.shape[3])) for name, of in decoder.empty().items()}
    kept = {name: value.astype(np.float32) for name, value in past.items()}
    save_feeds(path, decoder.feeds(np.ones((1, 1), np.int64), kept))
    return path
