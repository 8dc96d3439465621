"""English and workflows are checked by rule, and what the rules are for is found."""

from __future__ import annotations

import pathlib
import shutil
import subprocess

import pytest

import check
from tests import prose


def test_pages_docstrings_and_helps_are_in_order() -> None:
    for tool in prose.TOOLS:
        pytest.importorskip(tool, reason="English is not checked: pip install codespell proselint")
    assert prose.findings() == []


def test_what_is_checked_is_prose(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for tool in prose.TOOLS:
        pytest.importorskip(tool, reason="English is not checked: pip install codespell proselint")
    (tmp_path / "docs").mkdir()
    (tmp_path / "minitvm").mkdir()
    (tmp_path / "docs" / "page.md").write_text("# A page\n\nIt is teh teh end.\n\n```python\nteh = 1\n```\n\n`teh`\n")
    code = '"""Says the the wrong word."""\n\nteh = 1\n\n\n@option("--x", help="A recieved one.")\ndef f(): ...\n'
    (tmp_path / "minitvm" / "some.py").write_text(code)
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    found = sorted(line.partition(": ")[0] for line in prose.findings())
    assert found == ["docs/page.md:3", "docs/page.md:3", "docs/page.md:3", "minitvm/some.py:1", "minitvm/some.py:6"]


@pytest.mark.parametrize("tool", ["check_jsonschema", "zizmor"])
def test_the_workflow_is_well_formed_and_safe(tool: str) -> None:
    (words,) = (words for words in check.CHECKS if words[0] == tool)
    command = check.command(*words)
    if shutil.which(command[0]) is None:
        pytest.skip("the workflow is not checked: pip install check-jsonschema zizmor")
    done = subprocess.run(command, cwd=prose.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
