"""minitvm: a small deep-learning compiler.  ONNX in, Relay-style passes, native kernels out.

minitvm.InferenceSession("model.onnx").run(None, {"input": array})
minitvm.compile("model.onnx").save("model.mtvm")
minitvm.build(module, target="llvm", params=params)
"""

from __future__ import annotations

import gc
import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minitvm import frontend, ir, lab, runtime, target, testing
    from minitvm.config import version
    from minitvm.driver import HostCallWarning, build, create_executor
    from minitvm.errors import MiniTVMError
    from minitvm.frontend import from_onnx
    from minitvm.ir.expr import Function, Module
    from minitvm.ir.expr import Module as IRModule
    from minitvm.models import compile
    from minitvm.passes.manager import PassContext
    from minitvm.runtime import debug as debug_executor
    from minitvm.runtime import executor as graph_executor
    from minitvm.runtime import ndarray as nd
    from minitvm.runtime.cache import CacheWarning
    from minitvm.runtime.device import cpu, cuda, device
    from minitvm.runtime.device import device as context
    from minitvm.runtime.executor import GraphModule
    from minitvm.runtime.library import Library, load, load_module
    from minitvm.session import InferenceSession
    from minitvm.target import Target
    from minitvm.tvm import contrib, relay, transform

    __version__ = version()

_OFFERED = {
    "driver": "HostCallWarning build create_executor",
    "runtime.cache": "CacheWarning",
    "errors": "MiniTVMError",
    "frontend": "from_onnx",
    "ir.expr": "Function Module IRModule=Module",
    "models": "compile",
    "passes.manager": "PassContext",
    "runtime.executor": "GraphModule",
    "runtime.library": "Library load load_module",
    "runtime.device": "cpu cuda device context=device",
    "session": "InferenceSession",
    "target": "Target",
}
"""Where public names live, TVM's among them; what is used is imported, so that ``import minitvm`` is quick."""
_MODULES = """contrib=tvm.contrib debug_executor=runtime.debug frontend ir graph_executor=runtime.executor
 lab nd=runtime.ndarray relay=tvm.relay runtime target testing transform=tvm.transform"""

_PLACES: dict[str, tuple[str, str]] = {}
"""By name: the module, and what it is called there; nothing for a module itself."""
for _home, _names in (*_OFFERED.items(), ("", _MODULES)):
    for _name, _, _there in (entry.partition("=") for entry in _names.split()):
        _PLACES[_name] = (_home, _there or _name) if _home else (_there or _name, "")

__all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("minitvm.config").version()
    if name not in _PLACES:
        raise AttributeError(f"minitvm has no attribute {name!r}")
    home, there = _PLACES[name]
    module = _imported(f"minitvm.{home}")
    return getattr(module, there) if there else module


def _imported(name: str) -> ModuleType:
    """A module.  What a module defines stays, so garbage is looked for afterwards only."""
    wanted = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        if wanted:
            gc.enable()


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
