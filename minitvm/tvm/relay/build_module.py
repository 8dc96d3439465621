"""Relay's ``build_module``: ``build`` and ``create_executor`` with Relay's arguments in Relay's order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minitvm import driver
from minitvm.driver import create_executor
from minitvm.driver.compile import optimize_for
from minitvm.errors import ConfigError
from minitvm.ir.expr import Function, Module
from minitvm.passes import FoldScaleAxis, bind_params
from minitvm.passes.manager import PASSES, PassContext
from minitvm.runtime.library import Library
from minitvm.target import Target
from minitvm.tvm.relay.backend import Executor, Runtime, check

bind_params_by_name = bind_params
build_config = PassContext

_SEVEN = ("SimplifyInference", "FoldConstant", "CombineParallelConv2D", "AlterOpLayout", "CanonicalizeOps")
OPT_PASS_LEVEL = {
    **{name: PASSES[name].info.opt_level for name in _SEVEN},
    "OpFusion": 1,
    "FoldScaleAxis": FoldScaleAxis().info.opt_level,
}
"""The lowest level that runs a pass, by the name that Relay's first table has for it.  ``FuseOps`` (OpFusion) runs at
all levels, and from 1 on makes groups."""


def build(
    ir_mod: Module | Function | None = None,
    target: str | Target | Mapping[str, str] | None = None,
    target_host: str | Target | Mapping[str, Any] | None = None,
    executor: Executor | str | None = None,
    runtime: Runtime | str | None = None,
    *,
    mod: Module | Function | None = None,
    params: Mapping[str, Any] | None = None,
    mod_name: str = Library.libmod_name,
    **options: Any,
) -> Library:
    """:func:`minitvm.build` with Relay's arguments; ``options`` are its own.

    ``target_host`` may be ``llvm``; ``executor`` is ``graph``, ``runtime`` ``cpp``, ``mod_name`` ``default``:
    :class:`ConfigError`, or :class:`TargetError`, for anything else.  A dictionary of arrays in the third place is
    ``params``, as in :func:`minitvm.build`.
    """
    check(executor, runtime)
    if isinstance(target_host, Mapping):
        params, target_host = {**target_host, **(params or {})}, None
    if mod_name != Library.libmod_name:
        raise ConfigError(f"a library's entry is {Library.libmod_name!r}, not {mod_name!r}")
    given: Any = ir_mod if mod is None else mod
    return driver.build(given, _target(target, target_host), params, **options)


def _target(target: str | Target | Mapping[str, str] | None, host: str | Target | None = None) -> Target | None:
    if isinstance(target, Mapping) and "kind" not in target and len(target) == 1:
        [target] = target.values()  # {device: target}
    parsed = None if target is None else Target.parse(target)
    return Target(parsed.kind, parsed.options, host) if parsed else None


def optimize(
    mod: Module | Function, target: str | Target | None = None, params: Mapping[str, Any] | None = None
) -> tuple[Module, dict[str, np.ndarray]]:
    """The module after all passes that ``build`` would run, with ``params`` bound, so that none are left of them."""
    given = Module(mod) if isinstance(mod, Function) else mod
    backend = driver.backend_for(_target(target), None)
    return optimize_for(backend, given, dict(params or {})), {}


class GraphExecutor:
    """``create_executor("graph", mod, device, target)``."""

    def __new__(cls, mod: Module, device: Any = None, target: Any = None) -> Any:
        return create_executor("graph", mod, device, target)
