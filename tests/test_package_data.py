"""Every file that the package reads is in its wheel."""

from __future__ import annotations

import fnmatch
import pathlib

import pytest

import minitvm

ROOT = pathlib.Path(minitvm.__file__).parent


def test_data_files_are_declared() -> None:
    tomllib = pytest.importorskip("tomllib")
    settings = tomllib.loads((ROOT.parent / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]
    data = [p for p in ROOT.rglob("*") if p.is_file() and p.suffix not in (".py", ".pyc")]
    assert {p.name for p in data} >= {"team.ll", "sharing.ll", "half.ll"}
    anywhere, of_package = patterns["*"], patterns["minitvm"]
    for path in data:
        declared = any(fnmatch.fnmatch(path.name, p) for p in anywhere)
        assert declared or any(fnmatch.fnmatch(path.relative_to(ROOT).as_posix(), p) for p in of_package), path


def test_nothing_of_the_package_needs_a_compiler_of_c() -> None:
    assert not [path for path in ROOT.rglob("*") if path.suffix in (".c", ".cc", ".cpp", ".h", ".hpp", ".cu")]
