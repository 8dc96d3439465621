"""Targets that tests run for, and marks and parameters of tests by TVM's names.

Parameters are answered by the plugin of pytest's that :mod:`minitvm.testing.plugin` is; ``main()`` runs a script so.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import skipIf

from minitvm.runtime.devices import Device, cpu, cuda

_GROUPS = itertools.count()


def enabled_targets() -> list[tuple[str, Device]]:
    """Targets that this machine runs, each with its device."""
    return [("llvm", cpu(0)), *([("cuda", cuda(0))] if cuda(0).exist else [])]


ctx_list = enabled_targets


def device_enabled(target: Any) -> bool:
    """True if code for the target runs on this machine."""
    kind = str(target).split()[0]
    return any(kind == enabled for enabled, _ in enabled_targets())


def _kept(*test: Any, **_: Any) -> Any:
    """A mark that changes nothing, with and without parentheses."""
    return test[0] if test and callable(test[0]) else lambda marked: marked


uses_gpu = requires_llvm = slow = skip_if_32bit = skip_if_wheel_test = _kept


def _requires_gpu(*test: Any, **_: Any) -> Any:
    """Skips a test where there is no GPU."""
    skipped = skipIf(not device_enabled("cuda"), "there is no GPU")
    return skipped(test[0]) if test and callable(test[0]) else skipped


requires_gpu = requires_cuda = requires_cudagraph = requires_tensorcore = _requires_gpu


def _noted(name: str, *targets: Any) -> Callable[[Any], Any]:
    def marked(test: Any) -> Any:
        setattr(test, name, tuple(str(target) for target in targets))
        return test

    return marked


exclude_targets, known_failing_targets = partial(_noted, "_excluded"), partial(_noted, "_failing")


def parametrize_targets(*targets: Any) -> Any:
    """Runs a test for these targets, or for all that are enabled."""
    if len(targets) == 1 and callable(targets[0]):
        return targets[0]
    return _noted("_targets", *targets)


@dataclass(frozen=True)
class Parameter:
    """A value of several, each of which tests of that name are run with; those of a group change together."""

    values: tuple[Any, ...]
    ids: Sequence[str] | None
    group: int


def parameter(*values: Any, ids: Sequence[str] | None = None, by_dict: dict[str, Any] | None = None) -> Parameter:
    """Values that tests with an argument of the name given to this are run for."""
    named = by_dict or {}
    return Parameter(values or tuple(named.values()), ids or ([*named] or None), next(_GROUPS))


def parameters(*rows: Sequence[Any], ids: Sequence[str] | None = None) -> list[Parameter]:
    """Gives one parameter for each column of rows; they change together."""
    group = next(_GROUPS)
    return [Parameter(tuple(column), ids, group) for column in zip(*rows, strict=True)]


def fixture(test: Any = None, *, cache_return_value: bool = False, **options: Any) -> Any:
    """A fixture of pytest's, made anew for each test."""
    import pytest

    made = pytest.fixture(**options)
    return made if test is None else made(test)


def groups_of(arguments: Sequence[str], scopes: Sequence[Any]) -> Iterator[dict[str, Parameter]]:
    """The parameters among a test's arguments by groups, as its class and its module (``scopes``) name them."""
    found: dict[int, dict[str, Parameter]] = {}
    for name in arguments:
        value = next((vars_[name] for vars_ in map(_all_of, scopes) if name in vars_), None)
        if isinstance(value, Parameter):
            found.setdefault(value.group, {})[name] = value
    yield from found.values()


def _all_of(scope: Any) -> dict[str, Any]:
    return {name: value for one in reversed(getattr(scope, "__mro__", (scope,))) for name, value in vars(one).items()}


def main() -> None:
    """Runs the tests of the script that calls this, and ends it."""
    import pytest

    sys.exit(pytest.main([sys.argv[0], "-p", "minitvm.testing.plugin", "-p", "no:cacheprovider", *sys.argv[1:]]))
