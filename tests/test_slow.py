"""The tests that ``-m "not slow"`` leaves out are there, and are few."""

from __future__ import annotations

import ast
import pathlib
from typing import Any

import pytest

from tests import durations

ROOT = durations.SLOW.parents[1]


def functions(file: pathlib.Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_what_is_slow_is_there() -> None:
    """A test that was renamed is taken off the list, or put on it anew (``python -m tests.durations``)."""
    named = [name.split("::") for name in sorted(durations.slow_ones())]
    assert [name for file, *_, name in named if name not in functions(ROOT / file)] == []


def test_most_tests_are_quick_and_every_room_has_some() -> None:
    """Of each folder most functions are left, so that what breaks shows in five minutes."""
    slow, by_folder = durations.slow_ones(), dict[str, list[bool]]()
    for file in (ROOT / "tests").rglob("test_*.py"):
        path = file.relative_to(ROOT).as_posix()
        for name in functions(file):
            if name.startswith("test_"):
                by_folder.setdefault(str(file.parent.name), []).append(f"{path}::{name}" in slow)
    assert len(by_folder) > 10 and all(sum(each) < len(each) for each in by_folder.values())
    assert sum(map(sum, by_folder.values())) < 0.3 * sum(map(len, by_folder.values()))


def test_costs() -> None:
    measured: Any = [("a.py::x", 5.0), ("a.py::y[1]", 3.0), ("a.py::y[2]", 1.0), ("a.py::y[3]", 1.0), ("a.py::z", 0.5)]
    found = durations.costs(measured, {"a.py::x": 1, "a.py::y": 9, "a.py::z": 1})
    assert found == {"a.py::x": 5.0, "a.py::y": 11.0, "a.py::z": 0.5}
    assert durations.chosen(found, 6.0) == ["a.py::y"] and durations.chosen(found, 1.0) == ["a.py::x", "a.py::y"]
    assert durations.chosen(found, 100.0) == []


def test_the_mark_is_set(request: pytest.FixtureRequest) -> None:
    assert any(marker.startswith("slow:") for marker in request.config.getini("markers"))
    for item in request.session.items:
        name = durations.function_of(item.nodeid)
        assert (item.get_closest_marker("slow") is not None) is (name in durations.slow_ones()), name
