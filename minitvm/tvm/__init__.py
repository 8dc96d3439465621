"""TVM's names for what lives elsewhere, for programs that say ``import tvm``: ``import minitvm.tvm as tvm``.

Re-exports only: ``tvm.relay``, ``tvm.contrib``, ``tvm.transform``, and what ``minitvm`` itself calls as TVM does.
"""

import importlib
from typing import Any

_HERE = ("contrib", "relay", "transform")
_NAMES = ("IRModule", "build", "context", "cpu", "cuda", "device", "ir", "nd", "runtime", "target", "testing")

__all__ = [*_HERE, *_NAMES]


def __getattr__(name: str) -> Any:
    if name in _HERE:
        return importlib.import_module(f"minitvm.tvm.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module("minitvm"), name)
    raise AttributeError(f"minitvm.tvm has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
