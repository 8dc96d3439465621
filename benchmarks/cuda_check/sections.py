"""What the check consists of, in sections, and the calls that a short loan of a GPU is divided into."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from benchmarks.cuda_check.jobs import Job
from benchmarks.cuda_check.networks import FLOAT16, FLOAT32, SMALL, TF32
from benchmarks.cuda_check.peers import LIBRARIES

TRIAL_PARTS = 4
"""Processes that compile a network's trials."""


@dataclass(frozen=True)
class Section:
    """``share``: of the seconds for all; what one does not need, the next may have."""

    share: float
    jobs: Callable[[Sequence[str], Sequence[str]], list[Job]]
    """Of the networks' names and the stored models'."""
    at_once: bool = False
    """Several processes beside each other: nothing is timed."""
    least: float = 20.0
    """Seconds that a job may take whatever the share is."""
    most: float = 0.5
    """Of the section's time that a job may take."""


def _numbers(made: Sequence[str], kept: Sequence[str]) -> list[Job]:
    plain = [Job("correct", name) for name in (*made, *kept)]
    others = [Job("correct", name, 1, precision) for name in made for precision in (TF32, FLOAT16)]
    return plain + others + [Job("correct", name, 32, kind) for kind in (FLOAT16, TF32, FLOAT32) for name in made]


def _batches(made: Sequence[str], _: Sequence[str]) -> list[Job]:
    return [Job("build", name, 32, precision) for precision in (FLOAT16, TF32, FLOAT32) for name in made]


def _sanitized(*_: Sequence[str]) -> list[Job]:
    return [Job("sanitize", name, tool=tool) for tool in ("memcheck", "racecheck") for name in SMALL]


_ORDER = ((1, FLOAT32), (32, FLOAT16), (32, TF32), (1, TF32), (1, FLOAT16), (32, FLOAT32))
"""What is asked for first, comes first."""


def _speeds(made: Sequence[str], _: Sequence[str]) -> list[Job]:
    return [Job("speed", name, batch, kind, (LIBRARIES,)) for batch, kind in _ORDER for name in made]


_PEERS = (
    (1, FLOAT32, ("eager", "reduce-overhead")),
    (32, FLOAT16, ("eager", "max-autotune")),
    (32, TF32, ("eager", "max-autotune")),
)


def _torch(made: Sequence[str], _: Sequence[str]) -> list[Job]:
    return [Job("speed", name, batch, kind, beside) for batch, kind, beside in _PEERS for name in made]


def _warmed(made: Sequence[str], _: Sequence[str]) -> list[Job]:
    """Into PyTorch's cache where nothing is measured that others could disturb; and ours."""
    return [*(Job("warm", name, peers=_PEERS[0][2]) for name in made), *_batches(made, _)]


def _rooflines(made: Sequence[str], _: Sequence[str]) -> list[Job]:
    return [Job("roofline", name, batch, kind) for batch, kind in _ORDER[:3] for name in made]


def _counted(made: Sequence[str], _: Sequence[str]) -> list[Job]:
    first = sorted(made, key=lambda name: name not in ("resnet50", "bert_base_s128"))[:2]
    return [Job("counters", name, batch, kind) for batch, kind in _ORDER[:2] for name in first]


def _compiles(made: Sequence[str], _: Sequence[str]) -> list[Job]:
    first = sorted(made, key=lambda name: name != "resnet50")[:1]
    return [Job("build", name) for name in first for _ in ("cold", "cached")]


def _tunes(made: Sequence[str], _: Sequence[str]) -> list[Job]:
    return [Job("tune", name, batch, kind) for batch, kind in _ORDER[:3] for name in made]


def _trials(made: Sequence[str], kept: Sequence[str]) -> list[Job]:
    every = [replace(job, kind="trials") for job in _tunes(made, kept)]
    return [replace(job, part=part, parts=TRIAL_PARTS) for job in every for part in range(TRIAL_PARTS)]


SECTIONS = {
    "calibrate": Section(0.06, lambda made, kept: [Job("calibrate")], least=60.0),
    "tests": Section(0.15, lambda made, kept: [Job("tests")], most=1.0),
    "sanitize": Section(0.1, _sanitized, at_once=True, least=60.0),
    "correct": Section(0.16, _numbers, at_once=True),
    "build": Section(0.11, _batches, at_once=True),
    "speed": Section(0.2, _speeds),
    "python": Section(0.03, lambda made, _: [Job("python", name) for name in made]),
    "compile": Section(0.11, _compiles),
    "roofline": Section(0.06, _rooflines),
    "counters": Section(0.15, _counted),
    "warm": Section(0.12, _warmed, at_once=True, most=1.0),
    "torch": Section(0.27, _torch, most=1.0),
    "trials": Section(0.4, _trials, at_once=True, most=1.0),
    "tune": Section(0.6, _tunes, most=1.0),
}
CALLS = {
    "contact": ("calibrate", "tests", "sanitize", "correct"),
    "speed": ("build", "speed", "python", "compile", "roofline", "counters"),
    "peers": ("warm", "torch"),
    "tuned": ("trials", "tune"),
}
"""Each is useful without the others."""
ALL = ("calibrate", "correct", "build", "speed", "python", "compile", "roofline", "torch")
"""Where there is one call only."""
