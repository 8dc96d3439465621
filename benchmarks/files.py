"""Which files a convolution with batch norm and rectifier goes through: those whose functions a profiler sees run."""

from __future__ import annotations

import importlib
import pathlib
import pkgutil
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
import onnx
from rich.console import Console

import minitvm
from benchmarks.graph import Graph

ROOT = pathlib.Path(minitvm.__file__).parent

STAGES = ("import", "passes", "code", "build and run")


def conv_norm_relu(channels: int = 16, size: int = 14) -> onnx.ModelProto:
    """3x3 convolution to channels in no blocks, batch norm, rectifier: one kernel after fusion."""
    g = Graph()
    x = g.node("Relu", [g.norm(g.conv("data", channels, channels + 2, 3), channels + 2)])
    return g.model(x, (1, channels, size, size))


@contextmanager
def entered(files: Counter[str]) -> Iterator[None]:
    """Counts, on every thread, the functions of minitvm that are called, by file."""

    def see(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            path = pathlib.Path(frame.f_code.co_filename)
            if path.is_relative_to(ROOT):
                files[path.relative_to(ROOT).as_posix()] += 1

    threading.setprofile(see)
    sys.setprofile(see)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # the stubs do not know that it may be


def files_by_stage() -> dict[str, Counter[str]]:
    """Calls by file for each of :data:`STAGES`; every module is imported before, and nothing comes from a cache."""
    for module in pkgutil.walk_packages(minitvm.__path__, "minitvm."):
        if "__main__" not in module.name and not module.name.startswith("minitvm.torch."):  # which need PyTorch
            importlib.import_module(module.name)
    found: dict[str, Counter[str]] = {stage: Counter() for stage in STAGES}
    for stage, act in zip(STAGES, _acts(conv_norm_relu()), strict=True):
        with entered(found[stage]):
            act()
    return found


def _acts(model: onnx.ModelProto) -> Iterator[Callable[[], object]]:
    """What the compiler does at each stage, with what the one before it has made."""
    from minitvm.driver import backend_for, build, optimize
    from minitvm.driver.kernels import KernelCompiler
    from minitvm.driver.program import read_program
    from minitvm.frontend import from_onnx
    from minitvm.runtime.cache import KernelCache

    made: list[Any] = []
    yield lambda: made.extend(from_onnx(model))
    module, params = made
    backend = backend_for("llvm", 1)
    yield lambda: made.append(optimize(module, backend.machine, dict(params), 3))
    compiler = KernelCompiler(backend, KernelCache(None))
    yield lambda: [compiler.text(s, group, "llvm") for s, group in read_program(made[-1].main).groups.items()]
    image = np.zeros((1, 16, 14, 14), "float32")
    yield lambda: minitvm.GraphModule(build(module, "llvm", params, 3, num_threads=1)["default"]()).run(data=image)


def show(found: dict[str, Counter[str]], console: Console) -> None:
    """Files in the order of how little of them is used, and how many there are."""
    for stage, files in found.items():
        console.print(f"{stage}: {len(files)} files")
        for name, count in sorted(files.items(), key=lambda item: item[1]):
            console.print(f"    {count:7,}  {name}")
    graph_to_text = set(found["passes"]) | set(found["code"])
    console.print(f"from graph to LLVM text: {len(graph_to_text)} files; in all {len(set().union(*found.values()))}")
