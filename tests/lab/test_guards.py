"""No guard of a solution or a pass is there for nothing: all chapters with ``python -m tests.lab.guards``, all passes
with ``python -m tests.lab.guards passes``."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.lab import own_guards, typed_guards
from tests.lab.guards import ROOT, survivors


@pytest.mark.parametrize("chapter", ["chapter2", "chapter6"])
def test_a_guard_that_is_gone_is_missed_by_a_check(chapter: str) -> None:
    count, left = survivors(chapter)
    assert count >= 4 and left == []


def test_a_guard_of_a_pass_is_missed_by_its_tests() -> None:
    command = [sys.executable, "-m", "tests.lab.guards", "passes", "share_rows.py", "--tests"]
    run = subprocess.run([*command, "tests/passes/test_share_rows.py"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0 and "1 files: 13 of 13 guards are missed when they are gone, or spared" in run.stdout, (
        run.stdout
    )


def test_guards_that_are_spared_exist_and_say_why() -> None:
    files = own_guards.files_of([])
    guards = {own_guards.name((path, i)) for path in files for i in range(len(own_guards._guards(path)))}
    assert own_guards.spared().keys() - guards == set()
    assert all(len(reason.split()) >= 5 for reason in own_guards.spared().values())


def test_a_guard_is_taken_from_the_text() -> None:
    source = "def f(x):  # noqa\n    if x is None or (\n        x < 0\n    ):\n        return None\n    return x\n"
    assert typed_guards.removed(source, 0) == source.replace("x is None", "(False)")
    assert typed_guards.removed(source, 1) == source.replace("x < 0", "(False)")
