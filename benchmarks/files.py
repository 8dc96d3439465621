"""Which files a convolution with batch norm and rectifier goes through, and how many lines of functions: those that a
profiler sees run."""

from __future__ import annotations

import ast
import functools
import importlib
import pathlib
import pkgutil
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeAlias

import numpy as np
import onnx
from rich.console import Console

import minitvm
from benchmarks.graph import Graph

ROOT = pathlib.Path(minitvm.__file__).parent

STAGES = ("import", "passes", "code", "build and run")

Entered: TypeAlias = "Counter[tuple[str, int]]"
"""Calls by function: its file, and its first line there."""


def conv_norm_relu(before: int = 16, after: int = 16, size: int = 14) -> onnx.ModelProto:
    """3x3 convolution in blocks of channels, as real networks have it, batch norm, rectifier: one kernel."""
    g = Graph()
    x = g.node("Relu", [g.norm(g.conv("data", before, after, 3), after)])
    return g.model(x, (1, before, size, size))


@contextmanager
def entered(functions: Entered) -> Iterator[None]:
    """Counts, on every thread, the functions of minitvm that are called."""

    def see(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(str(ROOT)):
            functions[pathlib.Path(code.co_filename).relative_to(ROOT).as_posix(), code.co_firstlineno] += 1

    threading.setprofile(see)
    sys.setprofile(see)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # the stubs do not know that it may be


def functions_by_stage() -> dict[str, Entered]:
    """Calls for each of :data:`STAGES`; every module is imported before, and nothing comes from a cache."""
    for module in pkgutil.walk_packages(minitvm.__path__, "minitvm."):
        if "__main__" not in module.name and not module.name.startswith("minitvm.torch."):  # which need PyTorch
            importlib.import_module(module.name)
    found: dict[str, Entered] = {stage: Counter() for stage in STAGES}
    for stage, act in zip(STAGES, _acts(conv_norm_relu()), strict=True):
        with entered(found[stage]):
            act()
    return found


def _acts(model: onnx.ModelProto) -> Iterator[Callable[[], object]]:
    """What the compiler does at each stage, with what the one before it has made."""
    from minitvm.driver import backend_for, build
    from minitvm.driver.compile import optimize_for
    from minitvm.driver.kernels import KernelCompiler
    from minitvm.driver.program import read_program
    from minitvm.frontend import from_onnx
    from minitvm.runtime.cache import KernelCache

    made: list[Any] = []
    yield lambda: made.extend(from_onnx(model))
    module, params = made
    backend = backend_for("llvm", 1)
    yield lambda: made.append(optimize_for(backend, module, dict(params), 3))
    compiler = KernelCompiler(backend, KernelCache(None))
    yield lambda: [compiler.text(s, group, "llvm") for s, group in read_program(made[-1].main).groups.items()]
    image = np.zeros((1, 16, 14, 14), "float32")
    yield lambda: minitvm.GraphModule(build(module, "llvm", params, 3, num_threads=1)["default"]()).run(data=image)


@functools.cache
def _last_lines(file: str) -> dict[int, int]:
    """Of each function of a file, by its first line, the last one."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    found: dict[int, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            found[first] = max(node.end_lineno or first, found.get(first, first))
    return found


def lines_of(functions: Iterable[tuple[str, int]]) -> int:
    """Lines of the functions, docstrings too; a function in another one is counted once."""
    return len({(file, n) for file, first in functions for n in range(first, _last_lines(file).get(first, first) + 1)})


def files_of(functions: Entered) -> Counter[str]:
    """Calls by file."""
    found: Counter[str] = Counter()
    for (file, _), count in functions.items():
        found[file] += count
    return found


def show(found: dict[str, Entered], console: Console) -> None:
    """Files in the order of how little of them is used, and how many files and lines there are."""
    for stage, functions in found.items():
        files = files_of(functions)
        console.print(f"{stage}: {len(files)} files, {lines_of(functions):,} lines of functions")
        for name, count in sorted(files.items(), key=lambda item: item[1]):
            console.print(f"    {count:7,}  {name}")
    middle, whole = found["passes"] + found["code"], sum(found.values(), Counter())
    for what, functions in (("from graph to LLVM text", middle), ("in all", whole)):
        console.print(f"{what}: {len(files_of(functions))} files, {lines_of(functions):,} lines of functions")
