"""The sections of the check, each with its share of the time; everything found is in the file at once."""

from __future__ import annotations

import datetime
import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.cuda_check.jobs import MARK, Found, Job
from benchmarks.cuda_check.networks import NETWORKS, SMALL, stored, workers
from benchmarks.cuda_check.sections import ALL, SECTIONS, Section
from minitvm.errors import TargetError

Say = Callable[[str], None]
SECONDS = 455
RESULT = "check.json"
"""The file of what was found, in the folder of all files."""
_NO_TIME = ("no time was left", "ended after")
_BUDGET = 60.0
"""Seconds for what a job tries, which it may be told."""
_WALKED = 2
"""Wrong models that are looked into node by node."""


@dataclass(frozen=True)
class Settings:
    models: Sequence[str] = ()
    """All where none is named: the networks and the stored models, or the small networks of the stand-in."""
    sections: Sequence[str] = ALL
    seconds: float = SECONDS
    batch: int = 32
    """The large one."""
    rounds: int = 12
    stand_in: bool = False


class Check:
    """One run; ``result`` is what the file holds."""

    def __init__(self, settings: Settings, out: pathlib.Path, say: Say) -> None:
        """``out``: the folder for ``check.json``, ``log.txt``, and the files of a wrong kernel."""
        self.settings, self.out, self.say = settings, out.resolve(), say
        self.result: Found = {"date": datetime.date.today().isoformat(), "stand_in": settings.stand_in}
        self._environment = _environment(settings.stand_in)
        self._lock = threading.Lock()
        self._walked = 0
        self._start = time.monotonic()

    def run(self) -> Found:
        """Raises :class:`TargetError` where there is no GPU."""
        found, log = self._job(Job("device"), 120, self._environment)
        if "failed" in found:
            raise TargetError(found["failed"], hint="--stand-in shows without a GPU how the check works")
        self.result |= {"device": found, "sections": {}}
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / "log.txt").write_text(log, encoding="utf-8")
        with tempfile.TemporaryDirectory(prefix="minitvm-cuda-check-") as folder:
            cache = pathlib.Path(folder)
            chosen = {name: section for name, section in SECTIONS.items() if name in self.settings.sections}
            share, whole = 0.0, sum(section.share for section in chosen.values())
            for name, section in chosen.items():
                share += section.share / whole
                self._section(name, section, self._start + share * self.settings.seconds, cache)
        return self.result

    def _section(self, name: str, section: Section, end: float, cache: pathlib.Path) -> None:
        rows: list[Found] = self.result["sections"].setdefault(name, [])
        jobs, start = [self._fitted(job) for job in section.jobs(*self._models())], time.monotonic()

        def one(job: Job, number: int) -> None:
            folder = cache / ("of_compile" if name == "compile" else "cache")
            long = max(section.least, section.most * (end - start))
            limit = min(end - time.monotonic(), long)
            found, log = self._job(replace(job, seconds=min(_BUDGET, 0.7 * limit)), limit, self._cached(folder))
            row = {"model": job.model, "batch": job.batch, "precision": job.precision, "number": number, **found}
            self._keep("nodes" if job.kind == "nodes" else name, row, log)
            if job.kind == "correct" and self._is_to_be_walked(row):
                one(replace(job, kind="nodes"), number)

        with ThreadPoolExecutor(workers() if section.at_once else 1) as pool:
            list(pool.map(one, jobs, itertools.count()))
        rows.sort(key=lambda row: int(row["number"]))
        self._write()

    def _cached(self, folder: pathlib.Path) -> dict[str, str]:
        own = {"MINITVM_CACHE_DIR": folder, "TRITON_CACHE_DIR": folder / "triton"}
        own["TORCHINDUCTOR_CACHE_DIR"] = folder / "torch"
        return {**self._environment, **{name: str(path) for name, path in own.items()}}

    def _keep(self, section: str, row: Found, log: str) -> None:
        what = f"{section} {row['model']} {row['batch']} {row['precision']}: {row.get('failed') or 'done'}"
        with self._lock:
            self.result["sections"].setdefault(section, []).append(row)
            self._write()
            if log:
                with (self.out / "log.txt").open("a", encoding="utf-8") as file:
                    file.write(f"=== {what}\n{log}\n")
        self.say(what)

    def _is_to_be_walked(self, row: Found) -> bool:
        """True of the first models that are wrong, or fail on the GPU."""
        with self._lock:
            fails = row.get("right") is False or ("failed" in row and not row["failed"].startswith(_NO_TIME))
            self._walked += fails
            return fails and self._walked <= _WALKED

    def _models(self) -> tuple[list[str], list[str]]:
        """The networks, and the stored models, that are asked for."""
        wanted = self.settings.models or [*SMALL] if self.settings.stand_in else self.settings.models
        made = NETWORKS if not wanted else {**NETWORKS, **SMALL}
        kept = stored()
        return [n for n in made if not wanted or n in wanted], [n for n in kept if not wanted or n in wanted]

    def _fitted(self, job: Job) -> Job:
        settings, arch = self.settings, self.result["device"]["arch"]
        batch = settings.batch if job.batch > 1 else 1
        return replace(
            job, arch=arch, batch=batch, rounds=settings.rounds, stand_in=settings.stand_in, out=str(self.out)
        )

    def _job(self, job: Job, seconds: float, environment: dict[str, str]) -> tuple[Found, str]:
        """What a process found until its time was up, where ``failed`` says why it found no more; and its log."""
        if seconds <= 0:
            return {"failed": _NO_TIME[0]}, ""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as problems:
            command = [sys.executable, "-X", "faulthandler", "-m", "benchmarks.cuda_check.jobs", job.text()]
            process = subprocess.Popen(
                command, env=environment, stdout=out, stderr=problems, text=True, start_new_session=True
            )
            why = _end_of(process, seconds)
            out.seek(0)
            problems.seek(0)
            lines = [line for line in out.read().splitlines() if line.startswith(MARK)]
            found: Found = json.loads(lines[-1][len(MARK) :]) if lines else {}
            log = problems.read()
            if process.returncode:
                found["failed"] = why or found.get("failed") or _reason(log, process.returncode)
        return found, log if process.returncode else ""

    def _write(self) -> None:
        self.result["seconds"] = time.monotonic() - self._start
        half = self.out / "check.part"
        half.write_text(json.dumps(self.result, indent=1) + "\n", encoding="utf-8")
        half.replace(self.out / RESULT)


def _environment(stand_in: bool) -> dict[str, str]:
    found = dict(os.environ)
    if stand_in:
        from simulated_gpu.standin import environment

        found = environment(arch=90)
    root = str(pathlib.Path(__file__).resolve().parents[2])
    found["PYTHONPATH"] = os.pathsep.join(filter(None, (root, found.get("PYTHONPATH"))))
    return found


def _end_of(process: subprocess.Popen[Any], seconds: float) -> str:
    """Wait for a process, so long and no longer; why it was ended, with all that it had started."""
    try:
        process.wait(seconds)
        return ""
    except subprocess.TimeoutExpired:
        return f"ended after {seconds:.0f} s"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _reason(problems: str, code: int) -> str:
    """What a process said last; an error of ours in full."""
    lines = [line for line in problems.splitlines() if line.strip()]
    if code < 0:
        return f"ended by signal {-code}: {lines[-1] if lines else ''}"
    own = [line for line in lines if "Warning" not in line]
    return (lines[-1] if "Traceback" in problems else "\n".join(own))[-600:] or f"ended with {code}"
