"""A module as a Python function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from minitvm.driver.compile import build
from minitvm.errors import ConfigError, InputError, listing
from minitvm.ir.expr import Function, Module
from minitvm.ir.types import TensorType
from minitvm.runtime.executor import GraphModule
from minitvm.runtime.ndarray import Device, NDArray, cpu
from minitvm.target import Target


@dataclass(frozen=True)
class FunctionExecutor:
    """``create_executor("graph", module, device, target).evaluate()``: a module as a Python function."""

    module: Module
    device: Device
    target: str | Target
    params: Mapping[str, Any] | None = None

    def evaluate(self, what: Module | Function | None = None) -> Callable[..., Any]:
        """A function of the parameters of ``main`` (of ``what``, where given), by position, then by name.

        It returns an NDArray, or a list of them for a tuple.
        """
        chosen = self.module if what is None else Module(what) if isinstance(what, Function) else what
        library = build(chosen, self.target, self.params)
        names = [p.name for p in chosen.main.params if p.name not in (self.params or {})]
        module = GraphModule(library["default"](self.device))

        def call(*arrays: Any, **named: Any) -> Any:
            if len(arrays) > len(names):
                raise InputError(f"{len(arrays)} inputs given, the function takes {len(names)}: {listing(names)}")
            by_position = dict(zip(names, arrays, strict=False))
            for name in by_position.keys() & named:
                raise InputError(f"input {name!r} is given twice, by position and by name")
            module.run({**by_position, **named})
            found: list[NDArray] = [module.get_output(i) for i in range(module.get_num_outputs())]
            return found[0] if isinstance(chosen.main.ret_type, TensorType) else found

        return call


def create_executor(
    kind: str = "graph",
    mod: Module | Function | None = None,
    device: Device | None = None,
    target: str | Target = "llvm",
    params: Mapping[str, Any] | None = None,
) -> FunctionExecutor:
    """TVM's function-style executor.  Only ``graph`` exists; :class:`ConfigError` names any other kind."""
    if kind != "graph":
        raise ConfigError(f"there is no executor {kind!r}", hint="the one executor is 'graph'")
    if mod is None:
        raise ConfigError("create_executor needs a module")
    return FunctionExecutor(Module(mod) if isinstance(mod, Function) else mod, device or cpu(), target, params)
