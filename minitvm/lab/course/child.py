"""The process that grades a file: ``python -m minitvm.lab.course.child chapter3 mine.py 0 0``.

It runs the checks; what the student wrote runs in another process, which it calls.  Says one JSON object a line, with
the word that it was given on standard input: first what is wrong with the file (or nothing), then each check's outcome,
from the given exercise's given check on.  What is printed goes to standard error.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
from typing import Any, TextIO

import numpy as np

from minitvm.ir.op import OPS
from minitvm.lab.course import chapter_of, native, student
from minitvm.lab.course.check import Exercise
from minitvm.lab.course.remote import Gone, Peer, Wrong
from minitvm.lab.course.texts import Noise

LOAD, FIND, NATIVE = range(3)
_NOT_DUMPABLE = 4


class Apart:
    """A student's file in a process of its own; in a new one where that ended."""

    def __init__(self, file: str) -> None:
        self.file, self.problem = file, ""
        self.process: subprocess.Popen[bytes] | None = None
        self.peer: Peer | None = None

    def begin(self) -> Peer:
        if self.peer is None:
            command = [sys.executable, "-m", student.__name__, self.file]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            assert self.process.stdin is not None and self.process.stdout is not None
            self.peer = Peer(self.process.stdout, self.process.stdin)
        return self.peer

    def load(self) -> str:
        self.problem = str(self.begin().remote(LOAD)())
        return self.problem

    def __call__(self, exercise: Exercise) -> Any:
        if self.peer is None:
            self.load()
        return self.begin().remote(FIND)(exercise.name, exercise.is_rule, exercise.forbids)

    def ended(self) -> tuple[str, str]:
        """The way in which it ended, and a hint."""
        assert self.process is not None
        status = self.end()
        if status < 0 and -status in (signal.SIGSEGV, getattr(signal, "SIGBUS", -1), signal.SIGILL, signal.SIGABRT):
            name = signal.Signals(-status).name
            what = "a segmentation fault: native code read or wrote what is not its own" if name == "SIGSEGV" else name
            return f"your code crashed the process ({name})", what
        return (
            f"your code ended the process (status {status})",
            "raise an exception or return; exit() ends the grader as well",
        )

    def end(self) -> int:
        assert self.process is not None and self.process.stdin is not None
        process, self.process, self.peer = self.process, None, None
        try:
            status = process.wait(1.0)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        return status


def _native(text: str, name: str, arrays: list[np.ndarray], elements: int) -> np.ndarray:
    """In a process that nobody's code was loaded in."""
    fresh = Apart("")
    try:
        found: np.ndarray = fresh.begin().remote(NATIVE)(text, name, arrays, elements)
    except Gone:
        raise Wrong(*fresh.ended()) from None
    assert fresh.process is not None
    fresh.process.kill()
    fresh.end()
    return found


def main(chapter: str, file: str, exercise: str, check: str) -> None:
    key = sys.stdin.readline().strip()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_NOT_DUMPABLE, 0, 0, 0, 0)  # others do not look into this process
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    native.RUN.set(_native)
    OPS[Noise.name] = Noise  # of this process alone
    work = Apart(file)
    try:
        _say(out, key, {"problem": work.load()})
    except Gone:
        _say(
            out, key, {"problem": "the file ended the process while it was loaded: {}\nhint: {}".format(*work.ended())}
        )
    for number, found in enumerate(chapter_of(chapter).exercises[int(exercise) :]):
        if number == 0:
            found.checks = found.checks[int(check) :]
        for outcome in [] if work.problem else found.outcomes(work, file):
            _say(out, key, outcome.form())
    out.flush()
    if work.process is not None:
        work.process.kill()
    os._exit(0)


def _say(out: TextIO, key: str, form: dict[str, Any]) -> None:
    print(json.dumps({"key": key, **form}), file=out, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
