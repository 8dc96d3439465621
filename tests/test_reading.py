"""docs/reading.md: the stops of a convolution are few, and are where it really passes."""

from __future__ import annotations

import pathlib
import re

import pytest

import minitvm
from benchmarks.files import files_by_stage

PAGE = pathlib.Path(minitvm.__file__).parents[1] / "docs" / "reading.md"
MOST_STOPS = 12
MOST_FILES = 63
"""From graph to LLVM text: what has nothing to do with a convolution is asked for before it is entered."""


def stops() -> list[str]:
    section = PAGE.read_text(encoding="utf-8").partition("\n## A convolution in")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([\w/]+\.py)` \| ", section, re.MULTILINE)


def test_a_convolution_has_few_stops_each_opened_once() -> None:
    assert 0 < len(stops()) == len(set(stops())) <= MOST_STOPS


def test_functions_of_every_stop_run_for_a_convolution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINITVM_CACHE_DIR", "")
    found = files_by_stage()
    assert set(stops()) <= set().union(*found.values())
    compiling = set(found["passes"]) | set(found["code"])
    assert len(compiling) <= MOST_FILES, sorted(compiling)
