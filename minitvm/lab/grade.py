"""Grading a chapter of the course: ``minitvm lab grade chapter3 mine.py``, ``grade("chapter3", globals())`` in a cell.

A file runs in a process of its own, so that what never ends, or ends the process, is a check that fails and no more.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minitvm.errors import InputError, no_file
from minitvm.lab.course import chapter_of
from minitvm.lab.course.check import Chapter, Exercise, Outcome

LOADING = 30.0
"""Seconds until a file's own statements have to be done, minitvm's imports among them."""


@dataclass(frozen=True)
class Grade:
    """The outcome of a chapter, check by check."""

    chapter: Chapter
    outcomes: tuple[Outcome, ...]
    problem: str = ""
    """Why nothing could be checked at all."""

    @property
    def earned(self) -> int:
        return sum(o.points for o in self.outcomes if o.passed)

    @property
    def points(self) -> int:
        return sum(c.points for e in self.chapter.exercises for c in e.checks)

    @property
    def complete(self) -> bool:
        return self.earned == self.points

    def points_of(self, exercise: str) -> int:
        """The points of one exercise; the last line of a cell that nbgrader grades, which takes a number as points."""
        return sum(o.points for o in self.outcomes if o.passed and o.exercise == exercise)

    def form(self) -> dict[str, Any]:
        """Everything as JSON has it."""
        checks = [o.form() for o in self.outcomes]
        head = {"chapter": self.chapter.name, "title": self.chapter.title, "problem": self.problem}
        return {**head, "earned": self.earned, "points": self.points, "complete": self.complete, "checks": checks}

    def gradescope(self) -> dict[str, Any]:
        """What Gradescope reads from ``results.json``: one test for each check."""
        if self.problem:
            return {"score": 0, "output": self.problem, "tests": []}
        numbers = {e.name: e.number for e in self.chapter.exercises}
        tests = [
            {
                "name": f"{o.exercise}: {o.check}",
                "number": numbers[o.exercise],
                "score": o.points if o.passed else 0,
                "max_score": o.points,
                "status": "passed" if o.passed else "failed",
                "output": "\n".join(filter(None, (o.message, o.hint and f"hint: {o.hint}"))),
            }
            for o in self.outcomes
        ]
        return {"score": self.earned, "tests": tests}

    def __str__(self) -> str:
        lines = [f"{self.chapter.name}: {self.chapter.title}"]
        lines += [self.problem] if self.problem else []
        for exercise in self.chapter.exercises:
            lines += _lines(exercise, [o for o in self.outcomes if o.exercise == exercise.name])
        return "\n".join([*lines, "", f"{self.earned} of {self.points} points"])

    __repr__ = __str__


def _lines(exercise: Exercise, outcomes: list[Outcome]) -> Iterator[str]:
    earned, points = (sum(o.points for o in group) for group in ([o for o in outcomes if o.passed], outcomes))
    yield ""
    yield f"{exercise.number} {exercise.name}: " + (f"{earned} of {points} points" if outcomes else "not checked")
    last = ""
    for outcome in outcomes:
        yield f"  [{'x' if outcome.passed else ' '}] {outcome.check}"
        said = "\n".join(filter(None, (outcome.message, outcome.hint and f"hint: {outcome.hint}")))
        if said and said != last:  # five checks that fail for one reason say it once
            yield from (f"      {line}" for line in said.splitlines())
        last = said


def grade(chapter: str, work: str | Path | Mapping[str, Any]) -> Grade:
    """Grades a file, or what a notebook has defined: ``grade("chapter1", globals())``.

    A notebook's functions run in its own process: what never ends is interrupted there as any cell is.
    :class:`InputError` where there is no such chapter or no such file.
    """
    found = chapter_of(str(chapter))
    if isinstance(work, Mapping):
        return Grade(found, tuple(o for e in found.exercises for o in e.outcomes(work, _file_of(work, e))))
    path = Path(work)
    if not path.is_file():
        hint = f"minitvm lab start {found.name} writes a file to begin with"
        raise InputError(no_file(path), hint=hint)
    return _graded_apart(found, path)


def submissions(folder: Path) -> dict[str, Path]:
    """The Python files of a folder of submissions by student: ``ada.py``, or the only file of a folder ``ada``.

    :class:`InputError` where there are none, or several in one student's folder.
    """
    found: dict[str, Path] = {}
    for entry in sorted(folder.iterdir()):
        files = [entry] if entry.is_file() and entry.suffix == ".py" else []
        files += sorted(entry.rglob("*.py")) if entry.is_dir() and not entry.name.startswith((".", "_")) else []
        if len(files) > 1:
            raise InputError(f"{entry} has {len(files)} Python files", hint="one of them is the submission: keep that")
        found.update({entry.stem if entry.is_file() else entry.name: file for file in files})
    if not found:
        raise InputError(f"there are no submissions in {folder}", hint="ada.py, or a folder ada with one Python file")
    return found


def _file_of(work: Mapping[str, Any], exercise: Exercise) -> str:
    """The place where a notebook's function comes from: each cell is a file of its own."""
    made = work.get(exercise.name)
    code = getattr(getattr(made, "apply", made), "__code__", None)
    return str(code.co_filename) if code is not None else str(work.get("__file__", ""))


# --- in a process of its own ----------------------------------------------------------------------------------


class _Child:
    """A process that grades exercises from a place on and says so line by line, each with a word that only it knows."""

    def __init__(self, chapter: Chapter, path: Path, exercise: int, check: int) -> None:
        command = [sys.executable, "-m", "minitvm.lab.course.child", chapter.name, str(path), str(exercise), str(check)]
        pipe, own = subprocess.PIPE, os.name == "posix"
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, encoding="utf-8", start_new_session=own
        )
        self.key = secrets.token_hex(16)
        assert self.process.stdin is not None
        self.process.stdin.write(f"{self.key}\n")
        self.process.stdin.close()
        self.lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with contextlib.suppress(ValueError, AttributeError):  # somebody else's line
                found = json.loads(line)
                if found.pop("key", None) == self.key:
                    self.lines.put(found)
        self.lines.put(None)

    def says(self, seconds: float) -> dict[str, Any] | str:
        """The next thing that it says; why it says nothing any more."""
        try:
            found = self.lines.get(timeout=seconds)
        except queue.Empty:
            return "time"
        return f"status {self.process.wait()}" if found is None else found

    def end(self) -> None:
        """With what it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL) if os.name == "posix" else self.process.kill()
        self.process.wait()


def _graded_apart(chapter: Chapter, path: Path) -> Grade:
    outcomes: list[Outcome] = []
    todo = [(n, m) for n, exercise in enumerate(chapter.exercises) for m in range(len(exercise.checks))]
    while len(outcomes) < len(todo):
        child = _Child(chapter, path, *todo[len(outcomes)])
        try:
            problem = _heard(chapter, child, todo, outcomes)
        finally:
            child.end()
        if problem:
            return Grade(chapter, (), problem)
    return Grade(chapter, tuple(outcomes))


def _heard(chapter: Chapter, child: _Child, todo: list[tuple[int, int]], outcomes: list[Outcome]) -> str:
    """Takes down what a child says until it is done or silent; what is wrong with the file as a whole."""
    first = child.says(LOADING)
    if isinstance(first, str):
        return _unloaded(first)
    if first["problem"]:
        return str(first["problem"])
    while len(outcomes) < len(todo):
        exercise = chapter.exercises[todo[len(outcomes)][0]]
        check = exercise.checks[todo[len(outcomes)][1]]
        said = child.says(exercise.limit)
        if isinstance(said, str):
            outcomes.append(Outcome(exercise.name, check.title, check.points, False, *_silent(said, exercise)))
            break
        outcomes.append(Outcome(**said))
    return ""


def _unloaded(said: str) -> str:
    if said == "time":
        return (
            f"the file itself was still running after {LOADING:g} s\n"
            "hint: what stands outside of functions runs when it is loaded; is a loop there?"
        )
    return f"the file ended the process while it was loaded ({said})\nhint: leave out exit() and what starts programs"


def _silent(said: str, exercise: Exercise) -> tuple[str, str]:
    if said == "time":
        hint = "a loop that never ends, or work done again for every way through the graph: each node once is enough"
        return f"still running after {exercise.limit:g} s", hint
    return f"your code ended the process ({said})", "raise an exception or return; exit() ends the grader as well"


__all__ = ["Grade", "grade"]
