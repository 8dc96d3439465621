"""docs/reading.md: the stops of a convolution are few, and are where it really passes; its figures are the code's."""

from __future__ import annotations

import ast
import pathlib
import re
import sys
from collections import Counter

import pytest

import minitvm
from benchmarks.files import files_of, functions_by_stage, lines_of
from minitvm.ir import expr, structural
from minitvm.tvm.paths import TVMPaths
from tests import rooms

PAGE = pathlib.Path(minitvm.__file__).parents[1] / "docs" / "reading.md"
MOST_STOPS = 12
LARGE = 1100
"""Lines of code of a room that the page does not leave out."""
MOST_FILES, MOST_LINES = 76, 6_895
"""From graph to LLVM text: what has nothing to do with a convolution is asked for before it is entered."""
MOST_FILES_IN_ALL, MOST_LINES_IN_ALL = 121, 9_820
"""From the model to its result, lines of functions.  They only shrink."""


def stops() -> list[str]:
    section = PAGE.read_text(encoding="utf-8").partition("\n## A convolution in")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([\w/]+\.py)` \| ", section, re.MULTILINE)


def test_a_convolution_has_few_stops_each_opened_once() -> None:
    assert 0 < len(stops()) == len(set(stops())) <= MOST_STOPS


def test_functions_of_every_stop_run_for_a_convolution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINITVM_CACHE_DIR", "")
    for name in ("MINITVM_POISON", "MINITVM_VERIFY"):
        monkeypatch.delenv(name, raising=False)
    others = [finder for finder in sys.meta_path if not isinstance(finder, TVMPaths)]
    monkeypatch.setattr(sys, "meta_path", others)  # imports that nobody made before ask all of them
    monkeypatch.setattr(expr, "unscoped", [])  # no node with scopes has been made
    for kind in [*structural.FACTS]:  # what fills it first meanwhile fills it for good
        monkeypatch.delitem(structural.FACTS, kind)
    found = functions_by_stage()
    middle, whole = found["passes"] + found["code"], sum(found.values(), Counter())
    assert set(stops()) <= files_of(whole).keys()
    assert len(files_of(middle)) <= MOST_FILES, sorted(files_of(middle))
    assert len(files_of(whole)) <= MOST_FILES_IN_ALL, sorted(files_of(whole))
    assert lines_of(middle) <= MOST_LINES and lines_of(whole) <= MOST_LINES_IN_ALL, (lines_of(middle), lines_of(whole))


def near(said: int, found: int) -> bool:
    """Within a tenth, or a hundred: as the page rounds, with room for changes that nobody has to tell it of."""
    return abs(said - found) <= max(100, found // 10)


def test_the_page_says_how_much_code_there_is() -> None:
    said = re.findall(r"^\| (\w+) \| ([\d,]+) \| ", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    found = {name: lines for name, (lines, _) in rooms.sizes().items()}
    assert {name for name, lines in found.items() if lines > LARGE} <= {name for name, _ in said} <= {*found}
    assert [name for name, lines in said if not near(int(lines.replace(",", "")), found[name])] == [], found


def test_the_page_says_what_the_stops_import() -> None:
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    pattern = r"stops have ([\d,]+) lines with their docstrings, and import (\d+) names from (\d+) files"
    said = [int(number.replace(",", "")) for number in next(iter(re.findall(pattern, text)))]
    sources = [(PAGE.parents[1] / "minitvm" / stop).read_text(encoding="utf-8") for stop in stops()]
    nodes = [node for source in sources for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    names = {(n.module, alias.name) for n in nodes if (n.module or "").startswith("minitvm") for alias in n.names}
    found = [sum(source.count("\n") for source in sources), len(names), len({module for module, _ in names})]
    assert [abs(a - b) <= b // 10 for a, b in zip(said, found, strict=True)] == [True] * 3, found
