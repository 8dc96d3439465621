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

from minitvm import rooms as rooms
from minitvm.doors import is_there

if TYPE_CHECKING:
    from minitvm import capi, frontend, ir, lab, runtime, target, testing
    from minitvm.config import version
    from minitvm.driver import HostCallWarning, build, create_executor
    from minitvm.errors import MiniTVMError
    from minitvm.errors import MiniTVMError as TVMError
    from minitvm.frontend import from_onnx
    from minitvm.generation import generate, stream
    from minitvm.ir.expr import Function, Module
    from minitvm.ir.expr import Module as IRModule
    from minitvm.models import compile
    from minitvm.ort.binding import IOBinding
    from minitvm.ort.environment import (
        disable_telemetry_events,
        enable_telemetry_events,
        get_all_providers,
        get_available_providers,
        get_build_info,
        get_device,
        get_version_string,
        has_collective_ops,
        preload_dlls,
        set_default_logger_callback,
        set_default_logger_severity,
        set_default_logger_verbosity,
        set_global_thread_pool_sizes,
        set_seed,
    )
    from minitvm.ort.options import (
        ExecutionMode,
        ExecutionOrder,
        GraphOptimizationLevel,
        OptionWarning,
        RunOptions,
        SessionOptions,
    )
    from minitvm.ort.session import InferenceSession, ModelMetadata, NodeArg
    from minitvm.ort.values import OrtDevice, OrtValue, copy_tensors
    from minitvm.passes.manager import PassContext
    from minitvm.runtime import debug as debug_executor
    from minitvm.runtime import executor as graph_executor
    from minitvm.runtime import library as module
    from minitvm.runtime import ndarray as nd
    from minitvm.runtime.cache import CacheWarning
    from minitvm.runtime.devices import cpu, cuda, device
    from minitvm.runtime.devices import cuda as gpu
    from minitvm.runtime.devices import device as context
    from minitvm.runtime.executor import GraphModule
    from minitvm.runtime.library import Library, load, load_module
    from minitvm.target import Target
    from minitvm.torch import from_torch
    from minitvm.tvm import contrib, error, instrument, parser, relay, transform

    __version__ = version()

HAS_TVM = is_there("tvm")
"""Whether the room of TVM's names is there."""
if HAS_TVM:
    from minitvm.tvm import paths

    paths.install()

_OFFERED = {
    "driver": "HostCallWarning build create_executor",
    "runtime.cache": "CacheWarning",
    "errors": "MiniTVMError TVMError=MiniTVMError",
    "frontend": "from_onnx",
    "generation": "generate stream",
    "ir.expr": "Function Module IRModule=Module",
    "models": "compile",
    "passes.manager": "PassContext",
    "runtime.executor": "GraphModule",
    "runtime.library": "Library load load_module",
    "runtime.devices": "cpu cuda device context=device gpu=cuda",
    "ort.binding": "IOBinding",
    "ort.environment": """disable_telemetry_events enable_telemetry_events get_all_providers get_available_providers
 get_build_info get_device get_version_string has_collective_ops preload_dlls set_default_logger_callback
 set_default_logger_severity set_default_logger_verbosity set_global_thread_pool_sizes set_seed""",
    "ort.options": "ExecutionMode ExecutionOrder GraphOptimizationLevel OptionWarning RunOptions SessionOptions",
    "ort.session": "InferenceSession ModelMetadata NodeArg",
    "ort.values": "OrtDevice OrtValue copy_tensors",
    "target": "Target",
    "torch": "from_torch",
}
"""Where public names live, TVM's among them; what is used is imported, so that ``import minitvm`` is quick."""
_MODULES = """capi contrib=tvm.contrib debug_executor=runtime.debug frontend ir graph_executor=runtime.executor
 error=tvm.error instrument=tvm.instrument lab module=runtime.library nd=runtime.ndarray parser=tvm.parser
 relay=tvm.relay runtime target testing transform=tvm.transform"""

_PLACES: dict[str, tuple[str, str]] = {}
"""By name: the module, and what it is called there; nothing for a module itself."""
for _home, _names in (*_OFFERED.items(), ("", _MODULES)):
    for _name, _, _there in (entry.partition("=") for entry in _names.split()):
        _PLACES[_name] = (_home, _there or _name) if _home else (_there or _name, "")

_NOT_OFFERED = {
    "AdapterFormat": "adapters are not loaded: merge them into the model before it is exported",
    "LoraAdapter": "adapters are not loaded: merge them into the model before it is exported",
    "ModelCompiler": "minitvm.compile(model).save(path) writes a compiled model",
    "OrtAllocatorType": "memory is planned when a model is compiled; there are no allocators",
    "OrtArenaCfg": "memory is planned when a model is compiled; there are no arenas",
    "OrtEpDevice": "there are no plug-in providers: minitvm.Target names what to compile for",
    "OrtHardwareDevice": "there are no plug-in providers: minitvm.Target names what to compile for",
    "OrtMemType": "memory is planned when a model is compiled; there are no allocators",
    "OrtMemoryInfo": "memory is planned when a model is compiled; OrtValue.device_name() says where a value is",
    "OrtSyncStream": "a run has ended when it returns",
    "SparseTensor": "tensors of inputs and results are dense; sparse weights of a model are read",
    "create_and_register_allocator": "memory is planned when a model is compiled; there are no allocators",
    "create_and_register_allocator_v2": "memory is planned when a model is compiled; there are no allocators",
    "get_ep_devices": "there are no plug-in providers; get_available_providers() says what is there",
    "quantization": "quantize the model with onnxruntime.quantization; minitvm runs what comes out",
    "register_execution_provider_library": "there are no plug-in providers: docs/write-a-backend.md",
    "tools": "use onnxruntime.tools to change the model; minitvm runs what comes out",
    "training": "minitvm does not train",
    "transformers": "minitvm fuses the operators of transformers by itself when it compiles",
    "unregister_execution_provider_library": "there are no plug-in providers: docs/write-a-backend.md",
}
"""Names of ONNX Runtime that are not here, and what to do instead."""

__all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("minitvm.config").version()
    if name not in _PLACES:
        return _not_offered(name)
    home, there = _PLACES[name]
    module = _imported(f"minitvm.{home}")
    return getattr(module, there) if there else module


def _not_offered(name: str) -> Any:
    """What stands for a name of TVM's that is not offered; ``AttributeError`` for all others."""
    if HAS_TVM and importlib.import_module("minitvm.tvm.instead").why(name) is not None:
        return importlib.import_module("minitvm.tvm.lacking").attribute("", name)
    reason = _NOT_OFFERED.get(name)
    raise AttributeError(f"minitvm has no attribute {name!r}{f': {reason}' if reason else ''}")


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
