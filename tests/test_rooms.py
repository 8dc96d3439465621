"""The core stands alone: each room is taken out of a copy of the package, then all of them; and budgets that shrink."""

from __future__ import annotations

import ast
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from minitvm.ir.op import OPS
from tests import rooms
from tests.rooms import CORE_LINES, CORE_TOKENS, ROOMS, ROOT, TOKENS_A_LINE

MOST_FUNCTIONS, MOST_FILES, MOST_NESTED = 0, 26, 81

MAKERS = ("emit", "emit_many", "call_op")
"""What makes a call of the operator that its first argument names."""


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """One of kernels for all copies, and the place of them: what Python compiled of one is right for the next."""
    return tmp_path_factory.mktemp("kernels")


def copy_without(taken: set[str], place: pathlib.Path) -> pathlib.Path:
    """The package as links, without these rooms' files; what Python compiled is taken along."""
    for folder, _, names in os.walk(ROOT):
        inside = pathlib.Path(folder).relative_to(ROOT)
        kept = [n for n in names if rooms.room_of((inside / n).as_posix()) not in taken and "__pycache__" not in folder]
        if kept:
            there = place / "minitvm" / inside
            there.mkdir(parents=True)
            for name in kept:
                (there / name).symlink_to(pathlib.Path(folder) / name)
            if (pathlib.Path(folder) / "__pycache__").is_dir():
                (there / "__pycache__").symlink_to(pathlib.Path(folder) / "__pycache__")
    return place


@pytest.mark.parametrize("taken", [*ROOMS, "all"])
def test_without_a_room_networks_compile_and_run(taken: str, caches: pathlib.Path) -> None:
    place = caches / "copy"
    shutil.rmtree(place, ignore_errors=True)
    copy_without(set(ROOMS) if taken == "all" else rooms.taken_with(taken), place)
    paths = os.pathsep.join((str(place), str(ROOT.parent)))
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MINITVM_")}
    how = {**plain, "PYTHONPATH": paths, "MINITVM_CACHE_DIR": str(caches)}
    script = [sys.executable, str(ROOT.parent / "tests" / "core_networks.py"), *["--all"] * (taken == "all")]
    done = subprocess.run(script, env=how, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(place / "minitvm" / "__init__.py")


def test_every_room_has_files() -> None:
    held = {rooms.room_of(file) for file in rooms.python_files()}
    assert held == {*ROOMS, "core"}


def test_the_core_names_no_file_of_a_room() -> None:
    assert [pair for pair in rooms.crossings() if rooms.room_of(pair[0]) == "core"] == []


def test_the_core_calls_operators_of_its_own_only() -> None:
    """By name, as its builders and passes do: a room that is taken out takes its operators along."""
    wrong = []
    for file in rooms.python_files():
        for name in called_operators(ROOT / file) if rooms.room_of(file) == "core" else ():
            home = OPS[name].__module__.removeprefix("minitvm.").replace(".", "/") + ".py"
            if rooms.room_of(home) != "core":
                wrong.append(f"{file} calls {name}, of {home}")
    assert not wrong


def called_operators(path: pathlib.Path) -> set[str]:
    """Names that are given to ``emit`` and the like."""
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    made = [c for c in calls if isinstance(c.func, ast.Name) and c.func.id in MAKERS]
    return {str(one.value) for c in made for one in c.args[:1] if isinstance(one, ast.Constant)} & OPS.keys()


def test_budgets_only_shrink() -> None:
    """A number that is far below its budget becomes the budget."""
    held = rooms.sizes()
    most = {name: room.most for name, room in ROOMS.items()} | {"core": CORE_LINES}
    over = {name: lines for name, (lines, _) in held.items() if lines > most[name]}
    assert not over, {name: (lines, most[name]) for name, lines in over.items()}
    loose = {name: lines for name, (lines, _) in held.items() if lines < 0.95 * most[name] - 50}
    assert not loose, "budgets to lower"
    lines, tokens = held["core"]
    assert tokens <= CORE_TOKENS and tokens <= TOKENS_A_LINE * lines


def test_what_is_long_only_gets_less() -> None:
    """Functions of more than 40 lines, files of more than 400, functions and lambdas two or more deep in others."""
    texts = {file: (ROOT / file).read_text(encoding="utf-8") for file in rooms.python_files()}
    nodes = ((file, node) for file, text in texts.items() for node in ast.walk(ast.parse(text)))
    long = [
        f"{f}: {n.name}" for f, n in nodes if isinstance(n, ast.FunctionDef) and (n.end_lineno or 0) - n.lineno >= 40
    ]
    files = [file for file, text in texts.items() if len(text.splitlines()) > 400]
    assert len(long) <= MOST_FUNCTIONS, long
    assert len(files) <= MOST_FILES, files
    nested = {file: deep for file in rooms.python_files() if (deep := rooms.nested_deep(file))}
    assert sum(nested.values()) <= MOST_NESTED, nested
