"""Model files in sessions that meet one size after the other, beside ONNX Runtime; each in a process of its own."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import onnx

import minitvm
from benchmarks.measure import DIFFERS
from benchmarks.open_models import inputs
from benchmarks.runtimes import OPENERS, relative_error

SECONDS = 300.0
"""That one file may take."""
FREE, ROOM = 1.5, 0.02
"""A new size costs no more CPU time than so many medians of later runs of that size, and so many seconds."""


@dataclass
class Measured:
    """What came of one file.  CPU seconds: ``first`` run with its compilation, the run of a ``new`` size, and the
    ``median`` of later ones of the same, where they differ most."""

    name: str
    libraries: int = 0
    """Compiled by the session for all sizes or for some, none of them beside the runs."""
    own: int = 0
    """Of these, for one size alone."""
    guards: int = 0
    """Facts about sizes that libraries count on."""
    reason: str = ""
    """The first why it is not compiled once."""
    first: float = 0.0
    new: float = 0.0
    median: float = 0.0
    error: float = 0.0
    problems: list[str] = field(default_factory=list)
    """Runs that minitvm refused, or whose results differ, where ONNX Runtime has some."""
    peer: list[str] = field(default_factory=list)
    """Runs that ONNX Runtime refused."""

    @property
    def once(self) -> bool:
        return self.libraries == 1 and self.own == 0 and not self.reason

    @property
    def is_new_free(self) -> bool:
        return self.new <= FREE * self.median + ROOM


def measured(path: pathlib.Path) -> Measured:
    """Runs the sizes that the file names, each once new, then known."""
    named, sizes = inputs.read(onnx.load(path, load_external_data=False))
    found = Measured(path.stem)
    rows = [inputs.feeds(named, size) for size in inputs.runs(sizes)]
    session = minitvm.InferenceSession(str(path), num_threads=1, specialise_after=0)
    peer = OPENERS["onnxruntime"](str(path), 1)
    news: list[float] = []
    fitting = []
    for row, size in zip(rows, inputs.runs(sizes), strict=True):
        seconds, results = _timed(lambda row=row: session.run(None, row))
        _compare(found, size, results, _timed(lambda row=row: peer(row))[1])
        if not isinstance(results, Exception):  # what a model refuses has no time
            news.append(seconds)
            fitting.append(row)
    known = [float(np.median([_timed(lambda row=row: session.run(None, row))[0] for _ in range(3)])) for row in fitting]
    pairs = [*zip(news, known, strict=True)]
    found.first = news[0] if news else 0.0
    found.new, found.median = max(pairs[1:], key=lambda pair: pair[0] - FREE * pair[1], default=(0.0, 0.0))
    _describe(found, session)
    return found


def _timed(run: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds, and the results or what was raised."""
    start = time.process_time()
    try:
        results = run()
    except Exception as error:  # the peer's have no common class
        results = error
    return time.process_time() - start, results


def _compare(found: Measured, size: Mapping[str, int], results: Any, expected: Any) -> None:
    where = ", ".join(f"{name} {extent}" for name, extent in size.items())
    if isinstance(expected, Exception):
        found.peer.append(f"{where}: {_line(expected)}")
    elif isinstance(results, Exception):
        found.problems.append(f"{where}: refused: {_line(results)}")
    else:
        error = relative_error(results, expected)
        found.error = max(found.error, error)
        if not error <= DIFFERS:
            found.problems.append(f"{where}: off by {error:.1e}")


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def _describe(found: Measured, session: minitvm.InferenceSession) -> None:
    libraries = session.libraries
    found.libraries = len(libraries)
    found.own = sum(not library.artifact.is_open for library in libraries)
    found.guards = len({fact for library in libraries for fact in library.artifact.assumed})
    decision = session.symbolic
    if decision is not None and not decision.taken:
        found.reason = decision.reason
    elif found.own:
        found.reason = f"sizes that no library for all fits, values of {', '.join(session.inputs_by_value) or 'none'}"
    elif found.libraries > 1:
        found.reason = str(decision.reason if decision is not None else "")


# --- many files -------------------------------------------------------------------------------------------------------


def measure(folder: pathlib.Path, names: Sequence[str], say: Callable[[str], None]) -> list[Measured]:
    """All files of the folder, or those whose names begin with one of ``names``."""
    paths = sorted(folder.glob("*.onnx"))
    chosen = [path for path in paths if not names or any(path.name.startswith(name) for name in names)]
    found = []
    for path in chosen:
        found.append(apart(path))
        say(line(found[-1]))
    return found


def apart(path: pathlib.Path) -> Measured:
    """In a process of its own, so that a crash or a run without end is one file's."""
    command = [sys.executable, "-m", "benchmarks.open_models.measure", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return Measured(path.stem, problems=[f"no result after {SECONDS:.0f} s"])
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return Measured(path.stem, problems=[f"refused: {said[-1][:300]}"])
    return Measured(**json.loads(done.stdout))


def line(one: Measured) -> str:
    """One file's, as text of fixed columns."""
    verdict = "once" if one.once else f"{one.libraries} libraries" if one.libraries else "none"
    new = f"{1e3 * one.new:.1f}/{1e3 * one.median:.1f} ms"
    state = "; ".join([*one.problems[:1], *(f"onnxruntime: {said}" for said in one.peer[:1])]) or "right"
    figures = f"{one.guards:>3} {one.first:>6.1f} s {new:>16} {one.error:.0e}"
    return f"{one.name:<36} {verdict:<12} {figures} {state} | {one.reason}"


def summary(found: Iterable[Measured]) -> str:
    """How many are compiled once, and the reasons of the others, the most frequent first."""
    all_ = list(found)
    counts = {
        "files": len(all_),
        "compiled once": sum(one.once for one in all_),
        "new sizes free": sum(one.is_new_free for one in all_),
        "wrong or refused": sum(bool(one.problems) for one in all_),
        "refused by onnxruntime": sum(bool(one.peer) for one in all_),
    }
    reasons = Counter(_kind(one.reason) for one in all_ if not one.once)
    lines = [", ".join(f"{name} {count}" for name, count in counts.items()), ""]
    for reason, count in reasons.most_common():
        having = [one.name for one in all_ if not one.once and _kind(one.reason) == reason]
        lines.append(f"{count:>3}  {reason or 'refused'}\n     {', '.join(having)}")
    return "\n".join(lines)


def _kind(reason: str) -> str:
    """A reason without the names and numbers of one model."""
    return re.sub(r'"[^"]*"', '"..."', re.sub(r"\d+", "N", re.sub(r"\([^()]*\)|\[[^\[\]]*\]", "", reason)))


if __name__ == "__main__":
    print(json.dumps(asdict(measured(pathlib.Path(sys.argv[1])))))
