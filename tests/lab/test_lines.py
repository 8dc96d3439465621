"""The table of how much one writes, in docs/experiments.md, is what the pages have."""

from __future__ import annotations

import pathlib
import re

import pytest
from test_docs import blocks

DOCS = pathlib.Path(__file__).parents[2] / "docs"
PARTS = {
    "a rule": ("write-a-pass.md", ["_EXP = call("]),
    "a pass": ("write-a-pass.md", ["@function_pass("]),
    "an operator, its importer function and its row among the tests": (
        "add-an-operator.md",
        ["class Snake(", "row(", '@onnx_op("Snake"'],
    ),
    "a template": ("write-a-template.md", ['@TEMPLATES.register("llvm", "nn.taylor")']),
    "a schedule": ("write-a-schedule.md", ["def rows_of_four("]),
    "a back end that counts operations": ("write-a-backend.md", ["def flops(", "class Counter(", "@register"]),
    "a back end that prints C": ("write-c.md", ["TYPES = ", "def always(", "OPTIONS = "]),
}
"""By row: the page, and what the blocks begin with, imports aside."""


def code(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return [line for line in lines if not line.startswith(("import ", "from "))]


@pytest.mark.parametrize("what", PARTS)
def test_lines_that_a_newcomer_writes(what: str) -> None:
    page, starts = PARTS[what]
    found = [code(block.code) for block in blocks((DOCS / page).read_text(encoding="utf-8"))]
    chosen = [lines for lines in found if lines and lines[0].startswith(tuple(starts))]
    assert len(chosen) == len(starts)
    row = re.search(
        rf"^\| {what} \|.*\| (\d+) \|$", (DOCS / "experiments.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert row is not None and int(row[1]) == sum(map(len, chosen))
