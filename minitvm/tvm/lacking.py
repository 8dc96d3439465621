"""What TVM offers and minitvm does not: importable, so that a program gets as far as it can, and refused when used.

from minitvm import te          # goes well
te.placeholder((3,))            # NotOfferedError: minitvm has no tvm.te.placeholder ... use ...
"""

from __future__ import annotations

import importlib
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

from minitvm.doors import is_there
from minitvm.errors import did_you_mean
from minitvm.tvm.error import NotOfferedError
from minitvm.tvm.instead import why

_GRADIENT, _PARTITION = "passes.gradient", "passes.partition"

HELD = {
    "te.var": "tvm.symbols",
    "tir.Any": "tvm.symbols",
    "tir.IntImm": "tvm.symbols",
    "tir.FloatImm": "tvm.symbols",
    "tir.StringImm": "tvm.symbols",
    **{f"tir.{name}": "tvm.symbols" for name in ("Var", "SizeVar", "indexdiv", "indexmod", "floordiv", "floormod")},
    "te.size_var": "tvm.symbols",
    "register_func": _PARTITION,
    "relay.op.contrib": "passes:partition",
    "relay.op.register_gradient": _GRADIENT,
    **{
        f"relay.transform.{name}": _PARTITION
        for name in ("AnnotateTarget", "MergeComposite", "MergeCompilerRegions", "PartitionGraph")
    },
    **{
        f"relay.transform.{name}": "passes.on_request"
        for name in ("DefuseOps", "DynamicToStatic", "FastMath", "FoldExplicitPadding")
    },
    "relay.transform.FirstOrderGradient": _GRADIENT,
    "relay.transform.gradient": _GRADIENT,
}
"""By TVM's path, the module of what a room has that may have been taken out; behind a colon what it is called there."""


class Lacking:
    """Stands for a name of TVM's that is not offered.  Names below it are the same; all else raises."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return attribute(self._path, name) if f"{self._path}.{name}" in HELD else Lacking(f"{self._path}.{name}")

    def __repr__(self) -> str:
        return f"<tvm.{self._path}, which minitvm does not offer>"

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise NotOfferedError(f"minitvm has no tvm.{self._path}", hint=why(self._path))

    __call__ = __enter__ = __exit__ = __iter__ = __len__ = __getitem__ = __instancecheck__ = __mro_entries__ = _refuse


def attribute(home: str, name: str, of: str | None = None) -> Any:
    """What a room has of that name, or stands for ``name`` in a module of ``minitvm`` (``home``, TVM's path);
    ``AttributeError`` where TVM's is not known either."""
    path = f"{home}.{name}".lstrip(".")
    held, _, there = HELD.get(path, "").partition(":")
    if is_there(f"{held}.{there}".strip(".")):
        return getattr(importlib.import_module(f"minitvm.{held}"), there or name)
    if name.startswith("_") or why(path) is None:
        module = of or f"minitvm.{home}".rstrip(".")
        near = None if name.startswith("_") else did_you_mean(name, dir(importlib.import_module(module)), str)
        raise AttributeError(f"{module} has no attribute {name!r}{f': {near}' if near else ''}")
    return Lacking(path)


class LackingLoader:
    """Makes a module of which every name is :class:`Lacking`."""

    def __init__(self, path: str) -> None:
        self.path = path

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = ModuleType(spec.name, f"Not offered.  Instead: {why(self.path)}")
        vars(module)["__getattr__"] = Lacking(self.path).__getattr__
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass
