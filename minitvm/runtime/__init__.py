"""Everything that a compiled model needs to run.  ``load_module`` is here too, as in TVM."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minitvm.runtime.library import load_module

__all__ = ["load_module"]


def __getattr__(name: str) -> Any:
    """``load_module``, imported on first use: the modules in here import each other."""
    if name == "load_module":
        return importlib.import_module("minitvm.runtime.library").load_module
    raise AttributeError(f"minitvm.runtime has no attribute {name!r}")
