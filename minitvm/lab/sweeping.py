"""Sweeps: the same experiment on many models, orders or schedules, by any executor, going on where it was interrupted.

found = sweep(predicted, {"a": ("a.onnx",), "b": ("b.onnx",)}, executor=client.get_executor(), path="found.jsonl")
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from minitvm.errors import ConfigError, MiniTVMError
from minitvm.lab.ordering import OnProgress


def sweep(
    experiment: Callable[..., Any],
    ways: Mapping[str, Sequence[Any]],
    executor: Executor | None = None,
    path: str | os.PathLike[str] | None = None,
    on_progress: OnProgress | None = None,
) -> dict[str, Any]:
    """What ``experiment(*arguments)`` returns, by the names of ``ways``, in their order.

    An ``executor`` of ``concurrent.futures``, or a cluster's, runs several at a time; for processes the experiment is a
    function of a module.  With a ``path`` each result is a line of JSON there, and what has one already is not run
    again.  What minitvm refuses is ``{"refused": why}``.  :class:`ConfigError` where the file holds something else.
    """
    file = None if path is None else Path(path)
    known = _read(file) if file is not None and file.exists() else {}
    left = {name: arguments for name, arguments in ways.items() if name not in known}
    sent = {n: executor.submit(_refusing, experiment, *a) for n, a in left.items()} if executor is not None else {}
    try:
        for done, (name, arguments) in enumerate(left.items(), 1):
            known[name] = sent[name].result() if name in sent else _refusing(experiment, *arguments)
            if file is not None:
                with file.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps({"way": name, "result": known[name]}) + "\n")
            if on_progress is not None:
                on_progress(done, len(left), name)
    finally:
        for future in sent.values():
            future.cancel()
    return {name: known[name] for name in ways}


def _refusing(experiment: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return experiment(*arguments)
    except MiniTVMError as error:
        return {"refused": error.message}


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            form = json.loads(line)
            found[form["way"]] = form["result"]
        except (ValueError, KeyError, TypeError):
            raise ConfigError(f"{path}, line {number}, is no result of a sweep", hint="name another file") from None
    return found
