# Written by `python -m tests.stubs`, for type checkers and editors; Python reads the module itself.
from collections.abc import Mapping
from typing import Any
import numpy as np
from minitvm import driver as driver
from minitvm.driver import create_executor as create_executor
from minitvm.driver.compile import optimize_for as optimize_for
from minitvm.errors import ConfigError as ConfigError
from minitvm.ir.expr import Function as Function
from minitvm.ir.expr import Module as Module
from minitvm.passes import FoldScaleAxis as FoldScaleAxis
from minitvm.passes import bind_params as bind_params
from minitvm.passes.manager import PASSES as PASSES
from minitvm.passes.manager import PassContext as PassContext
from minitvm.runtime.library import Library as Library
from minitvm.target import Target as Target
from minitvm.tvm.relay.backend import Executor as Executor
from minitvm.tvm.relay.backend import Runtime as Runtime
from minitvm.tvm.relay.backend import check as check
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
class GraphExecutor:
    """``create_executor("graph", mod, device, target)``."""

    def __new__(cls, mod: Module, device: Any=None, target: Any=None) -> Any:
        ...
