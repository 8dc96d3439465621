"""Tuning on a lent GPU: all cores compile what will be tried, then one process measures it; records as they ship."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

from benchmarks.cuda_check.networks import CONFIG, model_of
from benchmarks.tuned import shipped_with
from minitvm import config
from minitvm.codegen.records import read
from minitvm.driver import backend_for
from minitvm.driver.kernels import KernelCompiler
from minitvm.driver.tune import Task, tasks, tune
from minitvm.frontend import from_onnx
from minitvm.passes.manager import PassContext
from minitvm.runtime.cache import KernelCache

MOST = 8
"""Ways to try for a kernel."""
TRIALS, RECORDS = "trials.jsonl", "records.jsonl"


def _found(what: tuple[str, int, str, str]) -> tuple[list[Task], KernelCompiler]:
    name, batch, precision, arch = what
    compiler = KernelCompiler(backend_for(f"cuda -arch={arch}", None), KernelCache(config.cache_dir()))
    return tasks(*from_onnx(model_of(name, batch, precision)), compiler, opt_level=3), compiler


def _predicted(what: tuple[str, int, str, str], part: int | str) -> pathlib.Path:
    folder = config.cache_dir()
    assert folder is not None, "a check has one"
    return folder / f"trials-{'-'.join(map(str, what))}-{part}.jsonl"


def compiled_trials(what: tuple[str, int, str, str], part: int, parts: int, seconds: float) -> Iterator[dict[str, Any]]:
    """A part of a network's kernels: what they could be is compiled into the cache."""
    with PassContext(config=CONFIG[what[2]]):
        (found, compiler), path = _found(what), _predicted(what, part)
        path.parent.mkdir(parents=True, exist_ok=True)
        state = tune(found[part::parts], compiler, path, seconds, MOST, measures=False)
    yield {"tried": state.now, "of": state.total}


def measured_trials(what: tuple[str, int, str, str], seconds: float, out: pathlib.Path) -> Iterator[dict[str, Any]]:
    """What was compiled is measured, and what ships is written anew with what did best."""
    trials = out / TRIALS
    parts = sorted(_predicted(what, "0").parent.glob(_predicted(what, "*").name))
    with trials.open("a", encoding="utf-8") as file:
        file.writelines(part.read_text(encoding="utf-8") for part in parts)
    with PassContext(config=CONFIG[what[2]]):
        found, compiler = _found(what)
        state = tune(found, compiler, trials, seconds, MOST)
    taken = shipped_with(read(trials))
    (out / RECORDS).write_text("".join(f"{line}\n" for line in taken), encoding="utf-8")
    yield {"tried": state.now, "of": state.total, "not_measured": state.not_measured}
