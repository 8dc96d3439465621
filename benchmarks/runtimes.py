"""minitvm and its peers behind one calling convention.  Peers are optional: those not installed are left out."""

from __future__ import annotations

import importlib
import importlib.util
import pathlib
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from minitvm.runtime.timing import BenchmarkResult

Feeds = Mapping[str, np.ndarray]
Run = Callable[[], list[np.ndarray]]
Opener = Callable[[str, int], Callable[[Feeds], list[np.ndarray]]]
"""(path of a model, threads) -> a function of the inputs."""


def _minitvm(path: str, threads: int) -> Callable[[Feeds], list[np.ndarray]]:
    import minitvm

    session = minitvm.InferenceSession(path, num_threads=threads)
    return lambda feeds: session.run(None, feeds)


def _onnxruntime(path: str, threads: int) -> Callable[[Feeds], list[np.ndarray]]:
    ort: Any = importlib.import_module("onnxruntime")

    settings = ort.SessionOptions()
    settings.intra_op_num_threads, settings.inter_op_num_threads = threads, 1
    session = ort.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    return lambda feeds: list(session.run(None, dict(feeds)))


def _openvino(path: str, threads: int) -> Callable[[Feeds], list[np.ndarray]]:
    ov: Any = importlib.import_module("openvino")

    settings: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
    }
    compiled = ov.Core().compile_model(path, "CPU", settings)
    request = compiled.create_infer_request()

    def run(feeds: Feeds) -> list[np.ndarray]:
        found = request.infer(dict(feeds))
        return [np.array(found[output]) for output in compiled.outputs]

    return run


OPENERS: dict[str, Opener] = {"minitvm": _minitvm, "onnxruntime": _onnxruntime, "openvino": _openvino}


def installed() -> list[str]:
    """Names of the runtimes that can be measured here; minitvm comes first."""
    return [name for name in OPENERS if importlib.util.find_spec(name) is not None]


def versions(names: list[str]) -> dict[str, str]:
    return {name: version(name) for name in names}


def random_feeds(path: pathlib.Path, seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs of a model file: normal floats, small integers; open dimensions are 1."""
    from minitvm.frontend import describe_onnx

    rng = np.random.default_rng(seed)
    feeds: dict[str, np.ndarray] = {}
    for value in describe_onnx(str(path)).inputs:
        shape = [d if isinstance(d, int) else 1 for d in value.shape]
        floating = np.dtype(value.dtype).kind == "f"
        drawn = rng.normal(size=shape) if floating else rng.integers(0, 2, shape)
        feeds[value.name] = np.asarray(drawn, value.dtype)
    return feeds


def relative_error(found: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """The largest difference over all outputs, relative to the largest magnitude of its output."""
    worst = 0.0
    for a, b in zip(found, expected, strict=True):
        scale = float(np.max(np.abs(b), initial=0.0)) or 1.0
        worst = max(worst, float(np.max(np.abs(a.astype(np.float64) - b), initial=0.0)) / scale)
    return worst


def statistics(found: BenchmarkResult) -> dict[str, float]:
    """Of one runtime's runs, in milliseconds; a quarter of them is below ``low``, one above ``high``."""
    ms = 1e3 * np.asarray(found.results)
    low, median, high = (float(q) for q in np.quantile(ms, (0.25, 0.5, 0.75)))
    best = float(ms.min())
    return {"median": median, "best": best, "low": low, "high": high, "runs": len(ms), "spread": found.spread}
