"""Everything that a compiled model needs to run.  What TVM's ``runtime`` offers is here by its names."""

import importlib
from typing import Any

from minitvm.runtime.library import load_module

__all__ = ["load_module"]

_TVM = {
    "Module": "library.Library",
    "NDArray": "ndarray.NDArray",
    "load_param_dict": "param_dict.load_param_dict",
    "save_param_dict": "param_dict.save_param_dict",
    **{name: f"devices.{name}" for name in ("Device", "cpu", "cuda", "device")},
}


def __getattr__(name: str) -> Any:
    if name not in _TVM:
        raise AttributeError(f"minitvm.runtime has no attribute {name!r}")
    home, _, there = _TVM[name].rpartition(".")
    return getattr(importlib.import_module(f"minitvm.runtime.{home}"), there)
