"""``module_pass`` and ``function_pass`` of TVM: decorators, or makers of a pass of a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minitvm import passes


def _decorated(decorator: Callable[..., Any], pass_func: Any, opt_level: Any, more: dict[str, Any]) -> Any:
    """A pass of ``pass_func``, or a decorator without one; a number in its place is the level."""
    if isinstance(pass_func, int):
        pass_func, opt_level = None, pass_func
    decorate = decorator(opt_level or 0, **more)
    return decorate if pass_func is None else decorate(pass_func)


def module_pass(pass_func: Any = None, opt_level: Any = 0, **more: Any) -> Any:
    """Makes a pass of ``f(module, context) -> Module``, or of a class with ``transform_module``; ``more`` is its
    ``name`` and what it has ``required``."""
    return _decorated(passes.module_pass, pass_func, opt_level, more)


def function_pass(pass_func: Any = None, opt_level: Any = 0, **more: Any) -> Any:
    """The same of ``f(function, module, context) -> Function``, or of a class with ``transform_function``."""
    return _decorated(passes.function_pass, pass_func, opt_level, more)
