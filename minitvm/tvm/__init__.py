"""TVM's names for what lives elsewhere: ``import minitvm as tvm``, or ``import minitvm.tvm as tvm``.

Every module is found by TVM's path below ``minitvm`` as well (``minitvm.tvm.paths``); what is not offered says so when
it is used (``minitvm.tvm.lacking``).  What else stands here is re-exports.
"""

import importlib
from typing import Any

from minitvm.tvm.instead import why

_HERE = ("contrib", "error", "instrument", "parser", "relay", "transform")
_NAMES = ("IRModule", "TVMError", "Target", "build", "context", "cpu", "cuda", "device", "gpu")
_ROOMS = ("ir", "nd", "runtime", "target", "testing")

__all__ = [*_HERE, *_NAMES, *_ROOMS]


def __getattr__(name: str) -> Any:
    if name in _HERE:
        return importlib.import_module(f"minitvm.tvm.{name}")
    if name in (*_NAMES, *_ROOMS, "__version__"):
        return getattr(importlib.import_module("minitvm"), name)
    if why(name) is not None:
        return importlib.import_module("minitvm.tvm.lacking").attribute("", name)
    raise AttributeError(f"minitvm.tvm has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
