"""Options of commands that can try several things at a time: in processes here, or on a cluster."""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from minitvm.cli.options import option
from minitvm.errors import ConfigError

Function = TypeVar("Function", bound=Callable[..., Any])


def workers(command: Function) -> Function:
    """Adds ``--workers`` and ``--scheduler``."""
    add = option(
        "--workers", type=click.IntRange(1), excludes=("--scheduler",), help="Processes that try several at a time."
    )
    here: Function = add(command)
    elsewhere = option("--scheduler", metavar="ADDRESS", help="A Dask cluster's scheduler, whose workers try them.")
    found: Function = elsewhere(here)
    return found


@contextmanager
def executor(count: int | None, scheduler: str | None) -> Iterator[Executor | None]:
    """What the options name; ``None`` for neither.  :class:`ConfigError` for a scheduler that is not there."""
    if scheduler is not None:
        with _client(scheduler) as client:
            yield client.get_executor()
    elif count is not None:
        with ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn")) as pool:
            yield pool
    else:
        yield None


def _client(scheduler: str) -> Any:
    if importlib.util.find_spec("distributed") is None:
        raise ConfigError("--scheduler needs Dask, which is not installed", hint="pip install distributed")
    try:
        return importlib.import_module("distributed").Client(scheduler, timeout=10)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"there is no scheduler at {scheduler}: {error}", hint="tcp://HOST:8786") from None
