"""Relay's ``build_module``: ``build`` and ``create_executor`` with Relay's arguments in Relay's order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from minitvm import driver
from minitvm.driver.compile import optimize_for
from minitvm.errors import ConfigError, InputError, IRError, listing, stage, warn
from minitvm.ir.expr import Expr, Function, Module, as_graph
from minitvm.ir.types import TensorType, TupleType, Type
from minitvm.passes import FoldScaleAxis, bind_params
from minitvm.passes.manager import PASSES, PassContext
from minitvm.runtime.devices import Device, cpu
from minitvm.runtime.executor import GraphModule
from minitvm.runtime.library import Library
from minitvm.scopes.nodes import Global, free_vars, is_plain_module
from minitvm.scopes.passes import InferType
from minitvm.target import Target
from minitvm.tvm.relay.backend import Executor, Runtime, check
from minitvm.tvm.relay.expr import bind

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
    if params and isinstance(given, (Module, Function)):
        names = {p.name for p in (given if isinstance(given, Function) else given.main).params}
        if names.isdisjoint(params):
            warn(f"@main has none of the parameters that are given, which are left out: {listing(params)}")
            params = None
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
    given = as_graph(mod)
    backend = driver.backend_for(_target(target), None)
    return optimize_for(backend, given, dict(params or {})), {}


KINDS = ("graph", "vm", "debug", "aot")


class FunctionExecutor:
    """``create_executor("graph", mod, device, target).evaluate()``: a module as a Python function."""

    def __init__(
        self, module: Module, device: Device, target: Target | None, params: Mapping[str, Any], kind: str = "graph"
    ) -> None:
        self.mod, self.device, self.target, self.params, self.kind = module, device, target, params, kind

    def evaluate(self, expr: Any = None, binds: Mapping[Any, Any] | None = None) -> Any:
        """A function of the parameters of ``main`` (of ``expr``, a function or a function's name, where given), by
        position, then by name; of any other expression its value.  ``binds`` are values of variables.

        Results are NDArrays, in a list for a tuple.  :class:`IRError` where variables are left open.
        """
        chosen = self.mod.main if expr is None else expr.main if isinstance(expr, Module) else expr
        if isinstance(chosen, (str, Global)):
            chosen = self.mod[str(getattr(chosen, "name_hint", chosen))]
        if not isinstance(chosen, Expr):
            raise ConfigError(f"a {type(chosen).__name__} cannot be evaluated", hint="an expression, or nothing: main")
        chosen = bind(chosen, binds) if binds else chosen
        if isinstance(chosen, Function):
            return self._callable(chosen)
        if free := free_vars(chosen):
            hint = "evaluate(expr, binds={variable: value}), or evaluate(relay.Function(variables, expr))(*values)"
            raise IRError(f"the expression has free variables: {listing(f'%{v.name}' for v in free)}", hint=hint)
        return self._callable(Function([], chosen))()

    def _callable(self, function: Function) -> Callable[..., Any]:
        known = {p.name for p in function.params}
        bound = bind_params(function, {name: value for name, value in self.params.items() if name in known})
        module = InferType()(self.mod.with_function("main", bound))
        names, result = [p.name for p in module.main.params], module.main.ret_type
        wanted = {p.name: p.checked_type for p in module.main.params}
        knows_inputs = self.kind == "debug" and not is_plain_module(module)  # then recursion over numbers ends
        executor = None if knows_inputs else self._executor(module)

        @stage("running the model")
        def call(*args: Any, **kwargs: Any) -> Any:
            if len(args) > len(names):
                raise InputError(f"{len(args)} inputs given, the function takes {len(names)}: {listing(names)}")
            by_position = dict(zip(names, args, strict=False))
            for name in by_position.keys() & kwargs:
                raise InputError(f"input {name!r} is given twice, by position and by name")
            inputs = {**by_position, **kwargs}
            running = executor
            if running is None:
                main = bind_params(module.main, {name: np.asarray(value) for name, value in inputs.items()})
                running, inputs = self._executor(module.with_function("main", main)), {}
            running.run({name: _as_wanted(value, wanted.get(name)) for name, value in inputs.items()})
            return nested(result, iter(running.get_output(i) for i in range(running.get_num_outputs())))

        return call

    def _executor(self, module: Module) -> GraphModule:
        return GraphModule(driver.build(module, self.target)["default"](self.device))


def _as_wanted(value: Any, type_: Type | None) -> Any:
    """Floats in the width that the function takes, as TVM's executor copies them; all else as it is."""
    given = getattr(value, "dtype", None)
    if not isinstance(type_, TensorType) or given is None or str(given) == type_.dtype:
        return value
    floats = all(str(dtype) in ("float16", "float32", "float64") for dtype in (given, type_.dtype))
    return np.asarray(value).astype(type_.dtype) if floats else value


def nested(type_: Type, outputs: Iterator[Any]) -> Any:
    """The next outputs in lists as the type has tuples."""
    return [nested(field, outputs) for field in type_.fields] if isinstance(type_, TupleType) else next(outputs)


@stage("compiling the model")
def create_executor(
    kind: str = "debug",
    mod: Module | Function | None = None,
    device: Any = None,
    target: Any = None,
    params: Mapping[str, Any] | None = None,
) -> FunctionExecutor:
    """An executor of one of Relay's kinds (:data:`KINDS`), which are one here: what is compiled for the target.

    Without a module, it evaluates functions that it is given.  :class:`ConfigError` for another kind.
    """
    if kind not in KINDS:
        raise ConfigError(f"there is no executor {kind!r}", hint=f"the kinds are {listing(map(repr, KINDS))}")
    if isinstance(mod, str):
        raise ConfigError(f"create_executor needs a module, not {mod!r}", hint='create_executor("graph", mod)')
    [where, *_] = device if isinstance(device, (list, tuple)) and device else [device or cpu()]
    [what, *_] = target if isinstance(target, (list, tuple)) and target else [target]
    module = Module() if mod is None else Module(mod) if isinstance(mod, Function) else mod
    return FunctionExecutor(module, where, _target(what), dict(params or {}), kind)


class GraphExecutor:
    """``GraphExecutor(mod, device, target)``: ``create_executor("graph", mod, device, target)``."""

    def __new__(cls, mod: Module, device: Any = None, target: Any = None) -> Any:
        return create_executor("graph", mod, device, target)
