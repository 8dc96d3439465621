"""TVM's import paths: ``import minitvm.relay``, ``from minitvm.contrib import graph_executor``, ``import minitvm.te``.

What TVM calls ``tvm.PATH`` is ``minitvm.tvm.PATH`` here, and by a finder ``minitvm.PATH`` as well: the same
module, never a second one.  The finder also knows where modules live that have another home, and what is not offered.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from minitvm.tvm.instead import why

_PARTITION = "passes.partition"  # a room, which may have been taken out

HOMES = {
    "context": "minitvm.runtime.devices",
    "contrib.debugger": "minitvm.tvm.contrib",
    "contrib.debugger.debug_executor": "minitvm.runtime.debug",
    "contrib.debugger.debug_runtime": "minitvm.runtime.debug",
    "contrib.graph_executor": "minitvm.runtime.executor",
    "contrib.graph_runtime": "minitvm.runtime.executor",
    "contrib.util": "minitvm.tvm.contrib.utils",
    **{name: f"minitvm.{name}" for name in ("ir", "runtime", "target", "testing")},
    "ir.instrument": "minitvm.tvm.instrument",
    "ir.transform": "minitvm.tvm.transform",
    "module": "minitvm.runtime.library",
    "nd": "minitvm.runtime.ndarray",
    "relay.function": "minitvm.tvm.relay.expr",
    "relay.ir_pass": "minitvm.tvm.relay.analysis",
    "relay.op.contrib": f"minitvm.{_PARTITION}",
    "relay.op.contrib.register": f"minitvm.{_PARTITION}.composite",
    "relay.op.op": "minitvm.tvm.relay.op",
    "relay.param_dict": "minitvm.runtime.param_dict",
    "relay.parser": "minitvm.tvm.parser",
    "relay.quantize": "minitvm.quantize",
    "relay.testing": "minitvm.testing",
    "relay.transform": "minitvm.tvm.transform",
    "relay.testing.temp_op_attr": "minitvm.tvm.relay.registered",
    "relay.ty": "minitvm.tvm.relay.forms",
    "runtime.module": "minitvm.runtime.library",
}
"""Modules with a home outside of ``minitvm.tvm``, or a second name."""
OWN = ("contrib", "error", "instrument", "parser", "relay", "transform")
"""Modules of ``minitvm.tvm`` that are found at ``minitvm`` too."""


def home_of(path: str) -> str | None:
    """The module behind TVM's path, whose last part may lie in a package with another home; ``None``: it has none."""
    if path in HOMES:
        return HOMES[path]
    outer, _, last = path.rpartition(".")
    if not outer:
        return f"minitvm.tvm.{path}" if path in OWN else None
    above = home_of(outer)
    return above and f"{above}.{last}"


class TVMPaths:
    """Finds modules by TVM's paths, with and without ``tvm.`` behind ``minitvm.``.

    It and the loaders are what ``importlib.abc`` describes, which takes long to import.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, rest = fullname.partition(".")
        if package != "minitvm" or not rest or rest == "tvm":
            return None
        theirs = rest.removeprefix("tvm.")
        home = home_of(theirs)
        if home not in (None, fullname) and _exists(home):
            return ModuleSpec(fullname, _loaded_by(_SameModule(str(home))))
        return None if why(theirs) is None else _lacking(fullname, theirs)


def _loaded_by(loader: Any) -> Any:
    """A loader that is one by its methods alone."""
    return loader


def _exists(home: str | None) -> bool:
    try:
        return home is not None and importlib.util.find_spec(home) is not None
    except ModuleNotFoundError:  # what it would lie in is no package
        return False


def _lacking(fullname: str, theirs: str) -> ModuleSpec:
    """What TVM has there and minitvm does not: a module that says so when it is used."""
    from minitvm.tvm import lacking  # needs the errors, which are no part of ``import minitvm``

    return ModuleSpec(fullname, _loaded_by(lacking.LackingLoader(theirs)), is_package=True)


class _SameModule:
    """Gives a module that is there already, or is imported under its own name, a second one."""

    def __init__(self, home: str) -> None:
        self.home = home

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self.home)
        self.own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It has run; the import system has written a second spec to it."""
        module.__spec__ = self.own_spec


def same_module(home: str) -> Any:
    """A loader that gives the module ``home`` a second name."""
    return _loaded_by(_SameModule(home))


def install() -> None:
    """Installs the finder before others: they would load a file of ``minitvm/tvm`` a second time."""
    if not any(isinstance(finder, TVMPaths) for finder in sys.meta_path):
        finder: Any = TVMPaths()
        sys.meta_path.insert(0, finder)
