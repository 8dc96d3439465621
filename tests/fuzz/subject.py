"""minitvm under test, in a process of its own."""

import contextlib
import os
import pathlib
import tempfile
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import minitvm
from minitvm.errors import MiniTVMError, StageError
from minitvm.frontend import from_onnx
from minitvm.ir.evaluate import evaluate
from minitvm.runtime import instance
from minitvm.runtime.executor import GraphModule
from minitvm.runtime.library import Library
from simulated_gpu.device import simulated_target
from tests.fuzz.case import Arrays, Config

Results = list[np.ndarray]


@dataclass(frozen=True)
class Task:
    """``reference`` asks for minitvm's own reference in place of compiled code."""

    model: bytes
    feeds: list[Arrays]
    config: Config
    reference: bool = False

    @property
    def is_simulated(self) -> bool:
        return self.config.target.startswith("simulated")


@dataclass(frozen=True)
class Refused:
    """A :class:`MiniTVMError`: its class, message and all of its text."""

    kind: str
    message: str
    text: str


@dataclass(frozen=True)
class Raised:
    """Any other exception, or what became of one at the boundary: a defect."""

    kind: str
    message: str
    trace: str


def perform(task: Task) -> list[Any]:
    """For each feed the results, :class:`Refused` or :class:`Raised`."""
    instance.WORTH_A_TEAM = 0.0  # small models use as many threads as they are given
    os.environ["MINITVM_CACHE_DIR"] = ""
    os.environ["MINITVM_POISON"] = str(int(task.config.poison))
    os.environ["MINITVM_VERIFY"] = str(int(task.config.verify))
    with warnings.catch_warnings(), simulated_target() if task.is_simulated else contextlib.nullcontext():
        warnings.simplefilter("ignore")
        try:
            run = _reference(task) if task.reference else _WAYS[task.config.way](task)
        except Exception as error:
            return [_failure(error)] * len(task.feeds)
        return [_attempt(run, feeds) for feeds in task.feeds]


def _attempt(run: Callable[[Arrays], Results], feeds: Arrays) -> Any:
    try:
        return run(feeds)
    except Exception as error:
        return _failure(error)


def _failure(error: Exception) -> Refused | Raised:
    kind = type(error).__name__
    if isinstance(error, MiniTVMError) and not isinstance(error, StageError):
        return Refused(kind, error.message, str(error))
    return Raised(kind, str(error), traceback.format_exc()[-3000:])


def _session(task: Task) -> Callable[[Arrays], Results]:
    config = task.config
    session = minitvm.InferenceSession(
        task.model, target=config.target, num_threads=config.threads, opt_level=config.level
    )
    return lambda feeds: session.run(None, feeds)


def _library(task: Task) -> Library:
    config = task.config
    return minitvm.compile(task.model, config.target, config.level, num_threads=config.threads)


def _runner(library: Library, threads: int) -> Callable[[Arrays], Results]:
    module = GraphModule(library["default"](None, threads))

    def run(feeds: Arrays) -> Results:
        for name, array in feeds.items():
            module.set_input(name, array)
        module.run()
        return module.outputs()

    return run


def _module(task: Task) -> Callable[[Arrays], Results]:
    return _runner(_library(task), task.config.threads)


def _saved(task: Task) -> Callable[[Arrays], Results]:
    with tempfile.TemporaryDirectory(prefix="minitvm-fuzz-") as folder:
        path = pathlib.Path(folder) / "case.mtvm"
        _library(task).save(path)
        return _runner(minitvm.load(path), task.config.threads)


def _reference(task: Task) -> Callable[[Arrays], Results]:
    """``ir.evaluate`` of the imported graph."""

    def run(feeds: Arrays) -> Results:
        module, params = from_onnx(task.model, {n: a.shape for n, a in feeds.items()})
        found = evaluate(module, *feeds.values(), *params.values())
        return list(found) if isinstance(found, tuple) else [found]

    return run


_WAYS: dict[str, Callable[[Task], Callable[[Arrays], Results]]] = {
    "session": _session,
    "module": _module,
    "saved": _saved,
}
