"""minitvm: a small deep-learning compiler.  ONNX in, Relay-style passes, native kernels out.

minitvm.InferenceSession("model.onnx").run(None, {"input": array})
minitvm.compile("model.onnx").save("model.mtvm")
minitvm.build(module, target="llvm", params=params)
"""

from __future__ import annotations

import gc
import importlib
from types import ModuleType
from typing import Any

from minitvm import rooms as rooms
from minitvm.doors import is_there

HAS_TVM = is_there("tvm")
"""Whether the room of TVM's names is there."""
if HAS_TVM:
    from minitvm.tvm import paths

    paths.install()

_OFFERED = {
    "driver": "HostCallWarning build",
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
    "tvm.relay.build_module": "create_executor",
}
"""Where public names live, TVM's among them; what is used is imported, so that ``import minitvm`` is quick.

``__init__.pyi`` says the same to type checkers (``python -m tests.stubs`` writes it)."""
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
    return [*__all__, "__version__"]
