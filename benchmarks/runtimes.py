"""minitvm and its peers behind one calling convention.  Peers are optional: those not installed are left out."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import narrow

if TYPE_CHECKING:
    from minitvm.runtime.timing import BenchmarkResult

Feeds = Mapping[str, np.ndarray]
Opener = Callable[..., Callable[[Feeds], list[np.ndarray]]]
"""(path of a model, threads, target="llvm") -> a function of the inputs."""


def _minitvm(path: str, threads: int, target: str = "llvm") -> Callable[[Feeds], list[np.ndarray]]:
    import minitvm

    session = minitvm.InferenceSession(path, target=target, num_threads=threads)
    return lambda feeds: session.run(None, feeds)


def onnxruntime_session(path: str, threads: int, target: str = "llvm") -> Any:
    """Threads of its own pool, one graph at a time."""
    ort = narrow.peer("onnxruntime", target)
    settings = ort.SessionOptions()
    settings.log_severity_level = 3  # it warns in every run where it computes another shape than the model declares
    settings.intra_op_num_threads, settings.inter_op_num_threads = threads, 1
    return ort.InferenceSession(path, settings, providers=["CPUExecutionProvider"])


def _onnxruntime(path: str, threads: int, target: str = "llvm") -> Callable[[Feeds], list[np.ndarray]]:
    session = onnxruntime_session(path, threads, target)
    return lambda feeds: list(session.run(None, dict(feeds)))


def _openvino(path: str, threads: int, target: str = "llvm") -> Callable[[Feeds], list[np.ndarray]]:
    ov = narrow.peer("openvino", target)
    settings: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,  # else products with 8-bit weights are wrong by 2e-2
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
    }
    compiled = ov.Core().compile_model(path, "CPU", settings)
    request = compiled.create_infer_request()

    def run(feeds: Feeds) -> list[np.ndarray]:
        found = request.infer(dict(feeds))
        return [np.array(found[output]) for output in compiled.outputs]

    return run


def _torch(
    path: str, threads: int, target: str = "llvm", compiled: bool = False
) -> Callable[[Feeds], list[np.ndarray]]:
    """PyTorch, the model converted by onnx2torch."""
    torch: Any = importlib.import_module("torch")
    module = importlib.import_module("onnx2torch").convert(path).eval()
    module = torch.compile(module) if compiled else module
    names = _inputs(path)

    def run(feeds: Feeds) -> list[np.ndarray]:
        _agree("torch", torch.set_num_threads, threads)
        with torch.inference_mode():
            found = module(*(torch.from_numpy(feeds[name]) for name in names))
        return [one.numpy() for one in (found if isinstance(found, (tuple, list)) else (found,))]

    return run


def _tvm(path: str, threads: int, target: str = "llvm") -> Callable[[Feeds], list[np.ndarray]]:
    """Relax with its default pipeline, untuned."""
    from minitvm.codegen.llvm.compile import cpu_of
    from minitvm.target import Target

    os.environ["TVM_BIND_THREADS"] = "0"  # else it leaves the process one CPU, and whoever is opened later
    tvm: Any = importlib.import_module("tvm")
    use_threads = partial(tvm.get_global_func("runtime.config_threadpool"), 1)
    module = importlib.import_module("tvm.relax.frontend.onnx").from_onnx(importlib.import_module("onnx").load(path))
    kind = {"kind": "llvm", "mcpu": cpu_of(Target.parse(target)).name, "num-cores": threads}
    made = tvm.compile(module, target=tvm.target.Target(kind))
    machine = importlib.import_module("tvm.relax").VirtualMachine(made, tvm.cpu())
    names = _inputs(path)

    def run(feeds: Feeds) -> list[np.ndarray]:
        _agree("tvm", use_threads, threads)
        found = machine["main"](*(tvm.runtime.tensor(np.array(feeds[name])) for name in names))
        return [one.numpy() for one in (found if isinstance(found, (tuple, list)) else (found,))]

    return run


_AGREED: dict[str, int] = {}


def _agree(runtime: str, use: Callable[[int], object], threads: int) -> None:
    """Tell a runtime, which has one number of threads in a process, where it is to be another one."""
    if _AGREED.get(runtime) != threads:
        use(threads)
        _AGREED[runtime] = threads


def _inputs(path: str) -> list[str]:
    from minitvm.frontend import describe_onnx

    return [value.name for value in describe_onnx(path).inputs]


OPENERS: dict[str, Opener] = {
    "minitvm": _minitvm,
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "torch": _torch,
    "torch.compile": partial(_torch, compiled=True),
    "tvm": _tvm,
}

MODULES = {"torch": ("torch", "onnx2torch"), "torch.compile": ("torch", "onnx2torch")}
"""What a runtime needs, where that is not what it is called."""

DISTRIBUTIONS = {"torch.compile": "torch", "tvm": "apache-tvm"}


def absent() -> dict[str, str]:
    """Runtimes that cannot be measured here, and why."""
    missing = {name: [m for m in MODULES.get(name, (name,)) if not _there(m)] for name in OPENERS}
    return {name: f"not installed: {', '.join(modules)}" for name, modules in missing.items() if modules}


def _there(module: str) -> bool:
    """Whether it can be imported; a folder of that name, which Python takes for a package, is none."""
    found = importlib.util.find_spec(module)
    return found is not None and found.origin is not None


def installed() -> list[str]:
    """Names of the runtimes that can be measured here; minitvm comes first."""
    return [name for name in OPENERS if name not in absent()]


def versions(names: list[str]) -> dict[str, str]:
    return {name: version(DISTRIBUTIONS.get(name, name)) for name in names}


def limits(target: str) -> dict[str, str]:
    """Variables that keep PyTorch to a target's vectors; :mod:`benchmarks.narrow` keeps others to it."""
    return {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"} if "AVX-512" in narrow.hidden(target) else {}


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


def relative_error(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """The largest difference over all outputs, relative to the largest magnitude of its output; infinite where shapes
    differ."""
    if [a.shape for a in found] != [b.shape for b in expected]:
        return float("inf")
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
