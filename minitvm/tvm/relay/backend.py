"""Relay's ``backend``: which executor and runtime a build is for.  There is one of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minitvm.errors import ConfigError
from minitvm.tvm import lacking


@dataclass(frozen=True)
class Executor:
    """``Executor("graph")``; :class:`ConfigError` for any other."""

    name: str
    options: Any = None

    def __post_init__(self) -> None:
        _require("executor", self.name, "graph", self.options)


@dataclass(frozen=True)
class Runtime:
    """``Runtime("cpp")``; :class:`ConfigError` for any other."""

    name: str
    options: Any = None

    def __post_init__(self) -> None:
        _require("runtime", self.name, "cpp", self.options)


def _require(what: str, name: object, only: str, options: Any = None) -> None:
    if name != only or options:
        shown = f"{name!r} with options {dict(options)}" if options else repr(name)
        raise ConfigError(f"there is no {what} {shown}", hint=f"the one {what} is {only!r}, without options")


def check(executor: Executor | str | None, runtime: Runtime | str | None) -> None:
    """:class:`ConfigError` where a build is asked for another executor or runtime."""
    _require("executor", getattr(executor, "name", executor) or "graph", "graph")
    _require("runtime", getattr(runtime, "name", runtime) or "cpp", "cpp")


def __getattr__(name: str) -> Any:
    return lacking.attribute("relay.backend", name)
