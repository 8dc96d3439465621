"""Doors: functions that a lower room calls and a higher one has, so that no lower room knows a higher one's name.

A door stands in the lower room as a function whose body says what happens where nobody is behind it.  ``rooms.py``, on
top of all, says which function is behind which door; its module is imported when the door is first opened.  A room
that has been taken out of the package is behind no door.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from importlib.util import find_spec
from types import ModuleType
from typing import Generic, ParamSpec, TypeVar, cast

from minitvm.errors import ConfigError

P = ParamSpec("P")
T = TypeVar("T")

BEHIND: dict[str, str] = {}
"""By the name of a door, as ``runtime.code.code_above``, that of the function behind it."""


class Door(Generic[P, T]):
    """Calls the function behind it, or where there is none the one that it was made of."""

    def __init__(self, alone: Callable[P, T]) -> None:
        functools.update_wrapper(self, alone)
        self.name = f"{alone.__module__}.{alone.__qualname__}".removeprefix("minitvm.")
        self._alone = alone

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        behind = self._alone if self._room is None else getattr(self._room, self._function)
        return cast("T", behind(*args, **kwargs))

    @functools.cached_property
    def _room(self) -> ModuleType | None:
        module = BEHIND.get(self.name, "").rpartition(".")[0]
        return importlib.import_module(f"minitvm.{module}") if is_there(module) else None

    @functools.cached_property
    def _function(self) -> str:
        return BEHIND[self.name].rpartition(".")[2]


def door(alone: Callable[P, T]) -> Door[P, T]:
    """Makes a door of a function; a decorator."""
    return Door(alone)


def is_there(module: str) -> bool:
    """True if the package has a module, named without ``minitvm.``; one that was taken out with its room it has not."""
    names = module.split(".") if module else []
    return bool(names) and all(find_spec(".".join(("minitvm", *names[:n]))) for n in range(1, len(names) + 1))


def left_out(what: str) -> ConfigError:
    """What to raise where a function needs a room that has been taken out of the package."""
    return ConfigError(f"{what} is not part of this minitvm", hint="its room was taken out: install all of minitvm")
