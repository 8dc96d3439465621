"""The measurements of one benchmark, gathered as the plain data that ``report`` shows."""

from __future__ import annotations

import datetime
import os
import pathlib
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks import exact, narrow, worker
from benchmarks.cases import Case, make
from benchmarks.machine import cpu_model
from benchmarks.machine import measure as measure_peak
from benchmarks.runtimes import absent, installed, limits, relative_error, versions
from benchmarks.turns import PAUSE, Job, run_job

Step = Callable[[str], None]
"""Called with what comes next."""

GRACE = 60.0
"""Seconds that a process may take beyond three times its share: what opens a model cannot be left out."""


@dataclass(frozen=True)
class Settings:
    """``models``: names, or paths of model files.  ``runtimes``: minitvm first."""

    models: Sequence[str]
    threads: Sequence[int] = (1, 2)
    targets: Sequence[str] = ("llvm",)
    rounds: int = 15
    minutes: float = 15.0
    runtimes: Sequence[str] = ()
    pause: float = PAUSE
    accuracy: bool = True
    """Work out what is right in float64."""


def benchmark(settings: Settings, on_step: Step = lambda text: None) -> dict[str, Any]:
    """Run everything; the result is what ``benchmark.json`` holds."""
    begun = time.perf_counter()
    names = list(settings.runtimes or installed())
    on_step("measuring the machine")
    before = [measure_peak(threads) for threads in settings.threads]
    clock = Clock(begun + 60 * settings.minutes, len(settings.models) * len(settings.targets))
    models = [_measured(name, names, settings, clock, on_step) for name in settings.models]
    peaks = [peak.better_of(measure_peak(peak.threads)) for peak in before]
    return {
        **about_here(names),
        "kept": {target: narrow.said(target) for target in settings.targets},
        "absent": {name: why for name, why in absent().items() if name not in names},
        "settings": {**asdict(settings), "runtimes": names},
        "seconds": time.perf_counter() - begun,
        "peaks": [asdict(peak) for peak in peaks],
        "models": models,
    }


def about_here(runtimes: Sequence[str]) -> dict[str, Any]:
    """When and where something was measured, and with what."""
    return {
        "date": datetime.date.today().isoformat(),
        "machine": {"cpu": cpu_model(), "cores": os.cpu_count(), "system": f"{platform.system()} {platform.machine()}"},
        "versions": versions(list(runtimes)),
    }


@dataclass
class Clock:
    """The time that is left, in equal shares; what one model does not need, the others have."""

    until: float
    shares: int

    @property
    def left(self) -> float:
        return self.until - time.perf_counter()

    def share(self) -> float:
        return max(0.0, self.left) / max(1, self.shares)


def _measured(name: str, names: Sequence[str], settings: Settings, clock: Clock, on_step: Step) -> dict[str, Any]:
    """One model: every target in a process of its own."""
    if clock.left <= 0:
        clock.shares -= len(settings.targets)
        return {"name": pathlib.Path(name).stem, "gflop": None, "targets": {}, "problem": "no time was left"}
    with tempfile.TemporaryDirectory() as folder:
        on_step(f"{pathlib.Path(name).stem}: building")
        case = make(name, pathlib.Path(folder))
        kind, reference = _reference(case, settings, clock, on_step)
        found = {}
        for target in settings.targets:
            on_step(f"{case.name}: {target}")
            seconds = clock.share()
            what = (str(case.path), settings.threads, target, names, settings.rounds, seconds)
            job = Job(*what, str(reference) if reference else None, settings.pause)
            found[target] = run_job(job, limits(target), 3 * seconds + GRACE)
            clock.shares -= 1
    return {"name": case.name, "gflop": case.gflop, "reference": kind, "targets": found}


def _reference(case: Case, settings: Settings, clock: Clock, on_step: Step) -> tuple[str, pathlib.Path | None]:
    """The outputs that errors are counted from, and what they are."""
    if settings.accuracy:
        on_step(f"{case.name}: float64")
        found = exact.kept(case.path, clock.share() + GRACE)
        if found is not None and not _contradicts(case, found):
            return "float64", found
    if case.expected is not None:
        path = case.path.with_suffix(".expected.npz")
        np.savez(path, *case.expected)
        return "expected", path
    return "", None


DIFFERS = 1e-3


def _contradicts(case: Case, found: pathlib.Path) -> bool:
    """Where numbers are rounded to integers, what float64 gives may not be what came with the model."""
    return case.expected is not None and relative_error(worker.read_arrays(str(found)), case.expected) > DIFFERS
