"""Pages keep their form: a decision has four parts and a place in the index, prose has lines that fit a screen."""

from __future__ import annotations

import pathlib
import re

import pytest
from test_docs import PAGES, ROOT, name_of

DECISIONS = [page for page in PAGES if page.parent.name == "decisions" and page.name != "README.md"]
WIDEST = 160
MADE = ("benchmark", "coverage")
"""Pages that a command writes, errors of other programs among them."""
MOST_LINES = 80
"""Of the change log's: what a user reads in three minutes."""


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision_says_why_and_what_it_cost(page: pathlib.Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"^\*\*(\w+)\.\*\* \S", text, re.MULTILINE) == ["Context", "Choice", "Cost", "Measured"]
    title = text.partition("\n")[0].removeprefix("# ")
    assert f"[{title}]({page.name})" in (page.parent / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", [p for p in PAGES if p.stem not in MADE], ids=name_of)
def test_lines_of_prose_fit_a_screen(page: pathlib.Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert [line for line in text.splitlines() if len(line) > WIDEST and not line.startswith("|")] == []


def test_the_change_log_is_one_page() -> None:
    assert len((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()) <= MOST_LINES
