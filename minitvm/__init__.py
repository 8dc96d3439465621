"""minitvm: a small deep-learning compiler.  ONNX in, Relay-style passes, native kernels out.

minitvm.InferenceSession("model.onnx").run(None, {"input": array})
minitvm.compile("model.onnx").save("model.mtvm")
minitvm.build(module, target="llvm", params=params)
"""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minitvm import relay
    from minitvm.config import version
    from minitvm.driver import HostCallWarning, build, create_executor
    from minitvm.errors import MiniTVMError
    from minitvm.frontend import from_onnx
    from minitvm.ir.expr import Function, Module
    from minitvm.passes.manager import PassContext
    from minitvm.runtime import debug as debug_executor
    from minitvm.runtime import executor as graph_executor
    from minitvm.runtime import ndarray as nd
    from minitvm.runtime.cache import CacheWarning
    from minitvm.runtime.executor import GraphModule
    from minitvm.runtime.library import Library, load, load_module
    from minitvm.runtime.ndarray import cpu, device
    from minitvm.session import InferenceSession, compile
    from minitvm.target import Target

    __version__ = version()

__all__ = [
    "CacheWarning",
    "Function",
    "GraphModule",
    "HostCallWarning",
    "InferenceSession",
    "Library",
    "MiniTVMError",
    "Module",
    "PassContext",
    "Target",
    "build",
    "compile",
    "cpu",
    "create_executor",
    "debug_executor",
    "device",
    "from_onnx",
    "graph_executor",
    "load",
    "load_module",
    "nd",
    "relay",
]

_HOME = {
    "CacheWarning": "runtime.cache",
    "Function": "ir.expr",
    "GraphModule": "runtime.executor",
    "HostCallWarning": "driver",
    "InferenceSession": "session",
    "Library": "runtime.library",
    "MiniTVMError": "errors",
    "Module": "ir.expr",
    "PassContext": "passes.manager",
    "Target": "target",
    "build": "driver",
    "compile": "session",
    "cpu": "runtime.ndarray",
    "create_executor": "driver",
    "device": "runtime.ndarray",
    "from_onnx": "frontend",
    "load": "runtime.library",
    "load_module": "runtime.library",
}
"""Where a public name lives; it is imported on first use, so that ``import minitvm`` is quick."""

_MODULES = {
    "debug_executor": "runtime.debug",
    "graph_executor": "runtime.executor",
    "nd": "runtime.ndarray",
    "relay": "relay",
    "transform": "passes",
}


def _contrib() -> SimpleNamespace:
    """TVM's places of the executors: ``contrib.graph_executor``, ``contrib.debugger.debug_executor``."""
    graph, debug = (importlib.import_module(f"minitvm.runtime.{name}") for name in ("executor", "debug"))
    return SimpleNamespace(graph_executor=graph, debugger=SimpleNamespace(debug_executor=debug))


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"minitvm.{_HOME[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"minitvm.{_MODULES[name]}")
    if name == "contrib":
        return _contrib()
    if name == "__version__":
        return importlib.import_module("minitvm.config").version()
    raise AttributeError(f"minitvm has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "contrib", "transform", "__version__"})
