"""minitvm: a small deep-learning compiler.  ONNX in, Relay-style passes, native kernels out.

minitvm.InferenceSession("model.onnx").run(None, {"input": array})
minitvm.compile("model.onnx").save("model.mtvm")
minitvm.build(module, target="llvm", params=params)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minitvm import frontend, ir, runtime, target, testing
    from minitvm.config import version
    from minitvm.driver import HostCallWarning, build, create_executor
    from minitvm.driver.cache import CacheWarning
    from minitvm.errors import MiniTVMError
    from minitvm.frontend import from_onnx
    from minitvm.ir.expr import Function, Module
    from minitvm.ir.expr import Module as IRModule
    from minitvm.passes.manager import PassContext
    from minitvm.runtime import debug as debug_executor
    from minitvm.runtime import executor as graph_executor
    from minitvm.runtime import ndarray as nd
    from minitvm.runtime.executor import GraphModule
    from minitvm.runtime.library import Library, load, load_module
    from minitvm.runtime.ndarray import cpu, cuda, device
    from minitvm.runtime.ndarray import device as context
    from minitvm.session import InferenceSession, compile
    from minitvm.target import Target
    from minitvm.tvm import contrib, relay, transform

    __version__ = version()

__all__ = [
    "CacheWarning",
    "Function",
    "GraphModule",
    "HostCallWarning",
    "IRModule",
    "InferenceSession",
    "Library",
    "MiniTVMError",
    "Module",
    "PassContext",
    "Target",
    "build",
    "compile",
    "context",
    "contrib",
    "cpu",
    "create_executor",
    "cuda",
    "debug_executor",
    "device",
    "from_onnx",
    "frontend",
    "graph_executor",
    "ir",
    "load",
    "load_module",
    "nd",
    "relay",
    "runtime",
    "target",
    "testing",
    "transform",
]

_HOME = {
    "CacheWarning": "driver.cache",
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
    "cuda": "runtime.ndarray",
    "create_executor": "driver",
    "device": "runtime.ndarray",
    "from_onnx": "frontend",
    "load": "runtime.library",
    "load_module": "runtime.library",
}
"""Where a public name lives; it is imported on first use, so that ``import minitvm`` is quick."""

_RENAMED = {"IRModule": ("ir.expr", "Module"), "context": ("runtime.ndarray", "device")}
"""TVM's names for what has another one at home."""

_MODULES = {
    "contrib": "tvm.contrib",
    "debug_executor": "runtime.debug",
    "frontend": "frontend",
    "graph_executor": "runtime.executor",
    "ir": "ir",
    "nd": "runtime.ndarray",
    "relay": "tvm.relay",
    "runtime": "runtime",
    "target": "target",
    "testing": "testing",
    "transform": "tvm.transform",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"minitvm.{_HOME[name]}"), name)
    if name in _RENAMED:
        home, there = _RENAMED[name]
        return getattr(importlib.import_module(f"minitvm.{home}"), there)
    if name in _MODULES:
        return importlib.import_module(f"minitvm.{_MODULES[name]}")
    if name == "__version__":
        return importlib.import_module("minitvm.config").version()
    raise AttributeError(f"minitvm has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
