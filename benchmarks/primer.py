"""The primer (``minitvm/primer.py``) beside the real compiler: turn by turn, on one thread, in CPU seconds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from typing import TypeVar

import numpy as np
import onnx

import minitvm
from benchmarks.onnx_models import resnet
from minitvm import primer

T = TypeVar("T")

MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "EfficientNet-Lite0": lambda: onnx.load(str(resources.files("minitvm") / "demo_data" / "efficientnet_lite0.onnx")),
    "ResNet-18": lambda: resnet(18),
}


@dataclass(frozen=True)
class Beside:
    """CPU seconds of a run with each, their ratio turn by turn, and CPU seconds to compile with the primer."""

    network: str
    primer: float
    real: float
    ratio: float
    compiling: float

    def __str__(self) -> str:
        times = f"{self.primer * 1e3:.1f} ms | {self.real * 1e3:.1f} ms | {self.ratio:.2f}"
        return f"| {self.network} | {times} | {self.compiling:.1f} s |"


def rows(rounds: int) -> Iterator[Beside]:
    """One for each of :data:`MODELS`.  Outputs that differ by 1e-4 of the largest are an ``AssertionError``."""
    for network, build in MODELS.items():
        yield _beside(network, build(), rounds)


def _beside(network: str, model: onnx.ModelProto, rounds: int) -> Beside:
    compiling, compiled = _seconds(lambda: primer.Executable(primer.from_onnx(model)))
    session = minitvm.InferenceSession(model.SerializeToString(), num_threads=1)
    image = np.random.default_rng(0).normal(size=compiled.function.params[0].shape).astype(np.float32)
    feeds = {compiled.function.params[0].name: image}
    (expected,), (found,) = session.run(None, feeds), compiled(image)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
    pairs = [
        (_seconds(lambda: compiled(image))[0], _seconds(lambda: session.run(None, feeds))[0]) for _ in range(rounds)
    ]
    ours, real = (statistics.median(times) for times in zip(*pairs, strict=True))
    return Beside(network, ours, real, statistics.median(a / b for a, b in pairs), compiling)


def _seconds(act: Callable[[], T]) -> tuple[float, T]:
    """CPU seconds of this thread, and the result."""
    start = time.thread_time()
    result = act()
    return time.thread_time() - start, result
