"""``minitvm lab mutate``: preconditions are found, taken away one at a time in memory, and missed or not."""

from __future__ import annotations

import ast
import pathlib

import pytest
from click.testing import CliRunner

from minitvm.cli import cli
from minitvm.errors import ConfigError
from minitvm.lab.mutants import mutants, without
from minitvm.lab.mutation import mutate

SOURCE = """
class Declined:
    def __init__(self, why):
        self.why = why

def half(x):
    if x < 0 or x > 100:
        return Declined("out of range")
    assert x is not None and x == x
    whole = x % 2 == 0 and x != 4
    return x // 2 if whole else Declined("odd")
"""
TESTS = """
from mine import Declined, half

def test_half():
    assert half(2) == 1
    assert isinstance(half(3), Declined) and isinstance(half(-2), Declined)
"""


def test_preconditions_and_the_file_without_one() -> None:
    found = mutants(SOURCE)
    assert [m.removed for m in found] == ["x < 0", "x > 100", "x % 2 == 0", "x != 4", "whole"]
    texts = [ast.unparse(without(SOURCE, i)) for i in range(len(found))]
    assert "if False or x > 100" in texts[0] and "if x < 0 or False" in texts[1]
    assert "whole = True and x != 4" in texts[2] and "if True else Declined" in texts[4]


def test_what_no_test_misses_is_listed(tmp_path: pathlib.Path) -> None:
    (tmp_path / "mine.py").write_text(SOURCE)
    (tmp_path / "test_mine.py").write_text(TESTS)
    path = str(tmp_path / "mine.py")
    run = CliRunner().invoke(cli, ["lab", "mutate", path, "--tests", str(tmp_path / "test_mine.py")])
    assert run.exit_code == 1 and "2 of 5 preconditions are missed by no test" in run.output
    kept = [line.split()[-1] for line in run.output.splitlines() if "mine.py:" in line]
    assert kept == ["fails", "survives", "fails", "survives", "fails"]
    assert (tmp_path / "mine.py").read_text() == SOURCE


def test_what_cannot_be_mutated(tmp_path: pathlib.Path) -> None:
    (tmp_path / "mine.py").write_text(SOURCE)
    (tmp_path / "test_mine.py").write_text("import mine\n\n\ndef test_it():\n    assert mine is None\n")
    (tmp_path / "empty.py").write_text("")
    for what, wrong in (
        (str(tmp_path / "mine.py"), "the tests fail as it is"),
        (str(tmp_path / "empty.py"), "no tests name empty"),
        (str(tmp_path / "none.py"), "there is no file"),
        ("FuseOp", "there is no pass 'FuseOp'"),
    ):
        with pytest.raises(ConfigError, match=wrong):
            mutate(what)
    with pytest.raises(ConfigError, match="has no preconditions"):
        mutate(str(tmp_path / "empty.py"), tests=["x"])
