"""The process that a student's code runs in: ``python -m minitvm.lab.course.student mine.py``.

It answers the grader's calls on standard input and output, and holds nothing of the grader: no check, no verdict.  What
it must not read it cannot by the ways of Python; a sandbox is what keeps out more (docs/course/README.md).
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import minitvm
import minitvm.relay
import minitvm.testing
from minitvm.ir.op import OPS
from minitvm.lab.course import native
from minitvm.lab.course.check import explained, found_in, place_of, watched
from minitvm.lab.course.remote import Peer, Wrong
from minitvm.lab.course.texts import Noise

COURSE = Path(__file__).parent
_REFUSED = ("os.kill", "os.killpg", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "pty.spawn")


def load(path: Path) -> tuple[dict[str, Any], str]:
    """What a file defines, and what is wrong with it where it cannot be loaded."""
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    sys.modules.setdefault(path.stem, module)  # dataclasses look there
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), vars(module))
    except SyntaxError as error:
        return {}, "".join(traceback.format_exception_only(error)).strip() + "\nhint: Python cannot read the file yet"
    except BaseException as error:
        message, hint = explained(error, str(path))
        return {}, f"the file cannot be loaded: {message}" + (f"\nhint: {hint}" if hint else "")
    return vars(module), ""


class Student:
    """What the grader may call: :meth:`load` once, then :meth:`find`."""

    def __init__(self, peer: Peer, file: str) -> None:
        self.peer, self.file = peer, file
        self.work: dict[str, Any] = {}
        peer.around, peer.place = self._around, lambda error: place_of(error, file)
        self.forbids: tuple[str, ...] = ()
        self.answer = ""

    def load(self) -> str:
        self.work, problem = load(Path(self.file))
        return problem

    def find(self, name: str, is_rule: bool, forbids: tuple[str, ...]) -> Any:
        self.forbids = forbids
        return found_in(self.work, name, is_rule)

    @contextlib.contextmanager
    def _around(self) -> Iterator[None]:
        with watched(self.forbids, self.file) as entered:
            try:
                yield
            finally:
                self._refuse(entered)

    def _refuse(self, entered: set[str]) -> None:
        self.answer = sorted(entered)[0] if entered else self.answer
        if self.answer:
            raise Wrong(
                f"your code runs minitvm/{self.answer}, which is the answer",
                "the exercise is to write it; read that file afterwards and compare",
            )


def guard(file: str, course: Path = COURSE) -> None:
    """Refuses, from here on, to read graders and solutions, and to start, end or look into other processes."""
    hidden = (str(course) + os.sep, str(Path(minitvm.__file__).parents[1] / "docs" / "course" / "solutions"))
    own, mine = (f"/proc/{os.getpid()}/", "/proc/self/"), os.path.realpath(file)

    def hook(event: str, given: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(given[0], (str, bytes, os.PathLike)):
            path = os.path.realpath(os.fsdecode(given[0]))
            if path == mine:
                return
            if path.startswith(hidden) or (path.startswith("/proc/") and not path.startswith(own)):
                raise PermissionError(f"{path} is not read while it is graded")
        elif event == "import" and str(given[0]).startswith("minitvm.lab.course.chapter"):
            raise PermissionError(f"{given[0]} is not imported while it is graded")
        elif event in _REFUSED or event == "subprocess.Popen":
            raise PermissionError(f"{event}: no other processes while it is graded")

    sys.addaudithook(hook)


def main(file: str) -> None:
    source, target = (os.fdopen(os.dup(n), mode, closefd=True) for n, mode in ((0, "rb"), (1, "wb")))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what is printed, native code's too
    sys.stdout = sys.stderr
    OPS[Noise.name] = Noise  # of this process alone
    peer = Peer(source, target)
    student = Student(peer, file)
    for function in (student.load, student.find, native.run):
        peer.handle(function)
    guard(file)
    peer.serve()
    os._exit(0)  # whatever threads the student left


if __name__ == "__main__":
    main(*sys.argv[1:])
