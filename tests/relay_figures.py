"""``python -m tests.relay_figures [word ...]``: behaviours of Relay's tests as our own tests have them, row by row.

A row is a line of a file in ``tests/tvm/figures``: its place in the table, what it is, how many tests v0.14 has of it,
and the files of ours, as ``20 | FoldScaleAxis | 18 | tvm/test_a.py tvm/test_b.py``; words choose rows that have them.
A case whose name has *adapted* in it differs from Relay's in form; a file's ``LEFT_OUT`` says what is not the same.
"""

from __future__ import annotations

import contextlib
import io
import pathlib
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).parent


@dataclass(frozen=True, order=True)
class Row:
    """One line of the table."""

    place: int
    title: str
    theirs: int
    files: tuple[str, ...]


def rows() -> list[Row]:
    """All rows, in the table's order."""
    found = []
    for path in sorted(ROOT.glob("tvm/figures/*.txt")):
        for line in path.read_text().splitlines():
            if line and not line.startswith("#"):
                place, title, theirs, files = (part.strip() for part in line.split("|"))
                found.append(Row(int(place), title, int(theirs), tuple(files.split())))
    return sorted(found)


class Count:
    """A plugin of pytest's that counts outcomes, by the modules that the cases are in."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.left_out: dict[str, int] = {}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        self.left_out = {str(item.path): len(getattr(item.module, "LEFT_OUT", ())) for item in items}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            form = "adapted" if "adapted" in report.nodeid else "as it is"
            self.outcomes[form if report.outcome == "passed" else "differs"] += 1


def counted(row: Row) -> tuple[int, int, int]:
    """Behaviours tried, those that are as Relay's, and those that are so or but for form."""
    count = Count()
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main(["-q", "-p", "no:cacheprovider", *(str(ROOT / file) for file in row.files)], plugins=[count])
    same, adapted = count.outcomes["as it is"], count.outcomes["adapted"]
    return sum(count.outcomes.values()) + sum(count.left_out.values()), same, same + adapted


def main(words: list[str]) -> None:
    """Prints the table."""
    print("| tests of v0.14 | of theirs | behaviours tried | as they are | adapted |\n|---|---|---|---|---|")
    totals = [0, 0, 0, 0]
    for row in rows():
        if not words or any(word in row.title for word in words):
            figures = (row.theirs, *counted(row))
            totals = [total + figure for total, figure in zip(totals, figures, strict=True)]
            print("| {} | {} | {} | {} | {} |".format(row.title, *figures), flush=True)
    print("| in all | {} | {} | {} | {} |".format(*totals))


if __name__ == "__main__":
    main(sys.argv[1:])
