"""Exceptions that come where nobody raises them: memory that runs out, threads and files that the system refuses."""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

_SPARED = ("errors.py",)
"""What makes errors: there is nothing behind the boundary that could turn what is raised in it."""


class Counter:
    """Counts, and raises at one number."""

    def __init__(self, error: BaseException | None = None, at: int = 0) -> None:
        self.error, self.at, self.count = error, at, 0

    def __call__(self) -> None:
        self.count += 1
        if self.count == self.at and self.error is not None:
            raise self.error


@contextmanager
def at_lines(counter: Counter) -> Iterator[None]:
    """Counts every line of minitvm's that any thread runs."""

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_globals.get("__name__", "").partition(".")[0] != "minitvm":
            return None
        if frame.f_code.co_filename.endswith(_SPARED):
            return None
        if event == "line" and not _leaves_a_with(frame):
            counter()
        return trace

    before = sys.gettrace()
    threading.settrace(trace)
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
        threading.settrace(before)  # type: ignore[arg-type]


def _leaves_a_with(frame: FrameType) -> bool:
    """True where a ``with`` block is left, whose line then comes again: there ``__exit__`` is about to get three
    ``None``.  Only a tracer can raise there, and then the block has no end: locks would stay taken."""
    code, at = frame.f_code.co_code, frame.f_lasti
    names = [dis.opname[op] for op in code[at : at + 6 : 2]]
    return names in (["LOAD_CONST"] * 3, ["LOAD_CONST", "DUP_TOP", "DUP_TOP"])


@contextmanager
def at_calls(counter: Counter, owner: Any, name: str) -> Iterator[None]:
    """Counts the calls of a function that the system, or numpy, may refuse."""
    function: Callable[..., Any] = getattr(owner, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        counter()
        return function(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, counted)
        yield
