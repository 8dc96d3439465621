"""Verdicts are made where a student's code does not reach: ten kinds of cheats have no marks, and crashes are named."""

from __future__ import annotations

import pathlib

import pytest

from minitvm.lab.grade import grade

ALL = "('residual_block', 'conv_shape', 'count_calls')"
"""Chapter 1's exercises."""
WITH = f"\nfor name in {ALL}:\n    globals().setdefault(name, answer)\n"

CHEATS = {
    "the grader is patched": """
import minitvm.lab.course.check as check, minitvm.lab.course.remote as remote
check.Exercise._outcome = lambda self, c, *a: check.Outcome(self.name, c.title, c.points, True)
check.same = check.close = lambda *a, **k: None
remote._form = lambda *a: ("Skip", "", "", "", "Skip")
def answer(*a, **k): return 1
""",
    "atexit": """
import atexit, json
atexit.register(lambda: print(json.dumps({"exercise": "conv_shape", "check": "x", "points": 99, "passed": True})))
def answer(*a, **k): raise SystemExit(0)
""",
    "the verdict is printed": """
import json, os, sys
def answer(*a, **k):
    form = {"key": "", "exercise": "conv_shape", "check": "dilation", "points": 99, "passed": True}
    for n in range(3, 12):
        try: os.write(n, (json.dumps(form) + "\\n").encode())
        except OSError: pass
    sys.__stdout__.write(json.dumps(form) + "\\n")
""",
    "the verdict is written into the grader's file": """
import os
def answer(*a, **k):
    with open(f"/proc/{os.getppid()}/fd/1", "w") as out: out.write('{"passed": true}\\n')
""",
    "modules are replaced": """
import sys, types
for name in ("minitvm.lab.course.chapter1", "minitvm.lab.course.check", "minitvm.testing.checks", "numpy", "json"):
    fake = types.ModuleType(name); fake.__getattr__ = lambda attribute: (lambda *a, **k: True); sys.modules[name] = fake
class Equal:
    __eq__ = lambda *a: True
    __ne__ = lambda *a: False
    __getattr__ = lambda self, name: self
    __call__ = lambda self, *a, **k: self
    __hash__ = lambda self: 0
def answer(*a, **k): return Equal()
""",
    "stack frames": """
import sys
def answer(*a, **k):
    frame = sys._getframe()
    while frame is not None:
        frame.f_globals.update(same=lambda *a, **k: None, close=lambda *a, **k: None, passed=True)
        for name, value in list(frame.f_locals.items()):
            for wanted in ("expected", "wanted", "params"):
                if wanted in name: return value
        frame = frame.f_back
""",
    "solutions and graders are read": """
import pathlib, minitvm
root = pathlib.Path(minitvm.__file__).parents[1]
def answer(*a, **k):
    space = {}
    exec((root / "docs" / "course" / "solutions" / "chapter1.py").read_text(), space)
    return next(v for n, v in space.items() if n in ("residual_block", "conv_shape", "count_calls"))(*a, **k)
""",
    "a program reads the solutions": """
import pathlib, subprocess, minitvm
root = pathlib.Path(minitvm.__file__).parents[1]
def answer(*a, **k):
    text = subprocess.run(["cat", root / "docs/course/solutions/chapter1.py"], capture_output=True, text=True).stdout
    exec(text, globals())
""",
    "threads": """
import threading, sys, os
def forever():
    while True:
        for frame in sys._current_frames().values(): frame.f_locals.update(passed=True)
threading.Thread(target=forever, daemon=True).start()
def answer(*a, **k): return None
""",
    "signals": """
import os, signal
def answer(*a, **k):
    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL): os.kill(os.getppid(), number)
""",
    "the garbage collector": """
import gc
def answer(*a, **k):
    for found in gc.get_objects():
        if type(found).__name__ == "Exercise": found.checks.clear()
        if type(found).__name__ == "Check": object.__setattr__(found, "run", lambda *a: None)
        if type(found).__name__ == "Peer": found._send("value", True, ())
""",
    "what it sends is a program": """
class Evil:
    def __reduce__(self): return exec, ("import minitvm.lab.course.check as c; c.same = c.close = print",)
def answer(*a, **k): return Evil()
""",
}


def graded(text: str, tmp_path: pathlib.Path) -> list[tuple[bool, str]]:
    path = tmp_path / "mine.py"
    path.write_text(text, encoding="utf-8")
    found = grade("chapter1", path)
    return [(o.passed, f"{o.message} | {o.hint}") for o in found.outcomes] or [(False, found.problem)]


@pytest.mark.parametrize("kind", CHEATS)
def test_a_cheat_has_no_marks(kind: str, tmp_path: pathlib.Path) -> None:
    found = graded(CHEATS[kind] + WITH, tmp_path)
    assert not any(passed for passed, _ in found), found


def test_a_segmentation_fault_is_called_one(tmp_path: pathlib.Path) -> None:
    text = "import faulthandler\ndef conv_shape(*a, **k): faulthandler._sigsegv()\n"
    said = " ".join(words for _, words in graded(text, tmp_path))
    assert "your code crashed the process (SIGSEGV) | a segmentation fault" in said
