# Written by `python -m tests.stubs`, for type checkers and editors; Python reads the module itself.
from collections.abc import Callable, Iterator, Mapping
from typing import Any
import numpy as np
from minitvm import driver as driver
from minitvm.driver.compile import optimize_for as optimize_for
from minitvm.errors import ConfigError as ConfigError
from minitvm.errors import InputError as InputError
from minitvm.errors import IRError as IRError
from minitvm.errors import listing as listing
from minitvm.errors import stage as stage
from minitvm.errors import warn as warn
from minitvm.ir.expr import Expr as Expr
from minitvm.ir.expr import Function as Function
from minitvm.ir.expr import Module as Module
from minitvm.ir.expr import as_graph as as_graph
from minitvm.ir.types import TensorType as TensorType
from minitvm.ir.types import TupleType as TupleType
from minitvm.ir.types import Type as Type
from minitvm.passes import FoldScaleAxis as FoldScaleAxis
from minitvm.passes import bind_params as bind_params
from minitvm.passes.manager import PASSES as PASSES
from minitvm.passes.manager import PassContext as PassContext
from minitvm.runtime.devices import Device as Device
from minitvm.runtime.devices import cpu as cpu
from minitvm.runtime.executor import GraphModule as GraphModule
from minitvm.runtime.library import Library as Library
from minitvm.scopes.nodes import Global as Global
from minitvm.scopes.nodes import free_vars as free_vars
from minitvm.scopes.nodes import is_plain_module as is_plain_module
from minitvm.scopes.passes import InferType as InferType
from minitvm.target import Target as Target
from minitvm.tvm.relay.backend import Executor as Executor
from minitvm.tvm.relay.backend import Runtime as Runtime
from minitvm.tvm.relay.backend import check as check
from minitvm.tvm.relay.expr import bind as bind
bind_params_by_name = bind_params
build_config = PassContext
def build(ir_mod: Module | Function | None=None, target: str | Target | Mapping[str, str] | None=None, target_host: str | Target | Mapping[str, Any] | None=None, executor: Executor | str | None=None, runtime: Runtime | str | None=None, *, mod: Module | Function | None=None, params: Mapping[str, Any] | None=None, mod_name: str=Library.libmod_name, **options: Any) -> Library:
    """:func:`minitvm.build` with Relay's arguments; ``options`` are its own.

    ``target_host`` may be ``llvm``; ``executor`` is ``graph``, ``runtime`` ``cpp``, ``mod_name`` ``default``:
    :class:`ConfigError`, or :class:`TargetError`, for anything else.  A dictionary of arrays in the third place is
    ``params``, as in :func:`minitvm.build`.
    """
    ...
def optimize(mod: Module | Function, target: str | Target | None=None, params: Mapping[str, Any] | None=None) -> tuple[Module, dict[str, np.ndarray]]:
    """The module after all passes that ``build`` would run, with ``params`` bound, so that none are left of them."""
    ...
class FunctionExecutor:
    """``create_executor("graph", mod, device, target).evaluate()``: a module as a Python function."""

    def __init__(self, module: Module, device: Device, target: Target | None, params: Mapping[str, Any], kind: str='graph') -> None:
        ...

    def evaluate(self, expr: Any=None, binds: Mapping[Any, Any] | None=None) -> Any:
        """A function of the parameters of ``main`` (of ``expr``, a function or a function's name, where given), by
        position, then by name; of any other expression its value.  ``binds`` are values of variables.

        Results are NDArrays, in a list for a tuple.  :class:`IRError` where variables are left open.
        """
        ...

    def _callable(self, function: Function) -> Callable[..., Any]:
        ...

    def _executor(self, module: Module) -> GraphModule:
        ...
def nested(type_: Type, outputs: Iterator[Any]) -> Any:
    """The next outputs in lists as the type has tuples."""
    ...
@stage('compiling the model')
def create_executor(kind: str='debug', mod: Module | Function | None=None, device: Any=None, target: Any=None, params: Mapping[str, Any] | None=None) -> FunctionExecutor:
    """An executor of one of Relay's kinds (:data:`KINDS`), which are one here: what is compiled for the target.

    Without a module, it evaluates functions that it is given.  :class:`ConfigError` for another kind.
    """
    ...
class GraphExecutor:
    """``GraphExecutor(mod, device, target)``: ``create_executor("graph", mod, device, target)``."""

    def __new__(cls, mod: Module, device: Any=None, target: Any=None) -> Any:
        ...
