"""What the package offers is what type checkers and ``dir`` see."""

from __future__ import annotations

import importlib
import inspect
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

import minitvm
from minitvm import relay
from tests import stubs

OFFERING = ("minitvm", "minitvm.frontend", "minitvm.lab", "minitvm.relay", "minitvm.tvm")
"""Modules whose ``dir`` is what they offer."""
PLAIN = (
    "minitvm.ir.expr",
    "minitvm.passes",
    "minitvm.testing",
    "minitvm.ir.loop",
    "minitvm.driver",
    "minitvm.transform",
)

PROGRAM = """
import numpy as np

import minitvm
import minitvm.relay.testing
from minitvm import IRModule, relay
from minitvm.contrib import graph_executor
from minitvm.contrib.debugger import debug_executor
from minitvm.relay import transform
from minitvm.relay.expr_functor import ExprMutator
from minitvm.relay.frontend import from_onnx


class Doubles(ExprMutator):
    def visit_var(self, var: relay.Var) -> relay.Expr:
        return relay.multiply(var, 2.0)


x = relay.var("x", shape=(1, 3, 8, 8))
w = relay.const(np.ones((4, 3, 3, 3), "float32"))
y = relay.nn.relu(relay.nn.conv2d(x, w, padding=(1, 1), kernel_size=(3, 3)))
y = relay.reshape(relay.If(relay.const(True), y, y), (1, -1))
function: relay.Function = relay.Function([x], y)
module = IRModule.from_expr(function)
module = transform.FoldConstant()(module)
library: minitvm.Library = relay.build(module, target="llvm")
runner = graph_executor.GraphModule(library["default"](minitvm.cpu()))
session = minitvm.InferenceSession("model.onnx")
answers: list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]] = session.run(None, {})
"""
WRONG = {
    "relay.no_such_thing": "has no attribute",
    "minitvm.copmile": "has no attribute",
    "relay.nn.conv2d(x, w, pading=(1, 1))": 'Unexpected keyword argument "pading"',
    "relay.add(x)": 'Missing positional argument "rhs"',
    "minitvm.InferenceSession()": "Missing positional argument",
    "minitvm.frontend.from_onx": "has no attribute",
}


def test_stubs_are_current() -> None:
    """`python -m tests.stubs` writes them anew."""
    held = {p.relative_to(stubs.ROOT).as_posix(): p.read_text(encoding="utf-8") for p in stubs.ROOT.rglob("*.pyi")}
    wanted = stubs.all_stubs()
    assert held.keys() == wanted.keys()
    assert [name for name in held if held[name] != wanted[name]] == []


def names_of(module: str) -> list[str]:
    return [name for name in dir(importlib.import_module(module)) if not name.startswith("_")]


@pytest.mark.parametrize("module", OFFERING)
def test_what_dir_shows_is_there(module: str) -> None:
    found = importlib.import_module(module)
    for name in names_of(module):
        assert getattr(found, name) is not None, name


def test_dir_shows_what_is_offered_and_nothing_else() -> None:
    assert {"InferenceSession", "build", "compile", "relay", "__version__"} <= {*dir(minitvm)}
    assert {"nn", "add", "var", "Function", "transform", "frontend", "testing", "If"} <= {*dir(relay)}
    inside = {"gc", "importlib", "annotations", "lacking", "HOMES", "is_there", "TYPE_CHECKING"}
    assert not inside & {*dir(minitvm), *dir(relay), *dir(minitvm.frontend), *dir(minitvm.tvm)}


def checked(text: str, folder: pathlib.Path) -> list[str]:
    """What ``mypy --strict`` says of a program, as of someone who has installed the package."""
    pytest.importorskip("mypy")
    (folder / "program.py").write_text(text, encoding="utf-8")
    how = {**os.environ, "MYPYPATH": str(stubs.ROOT.parent)}
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", str(folder), "program.py"]
    done = subprocess.run(command, cwd=folder, env=how, capture_output=True, text=True, check=False)
    assert done.returncode < 2, done.stderr
    return done.stdout.splitlines()


def every_name() -> Iterator[str]:
    for module in OFFERING:
        yield from (f"{module}.{name}" for name in names_of(module))
    for module in PLAIN:
        found = importlib.import_module(module)
        offered = getattr(found, "__all__", [n for n in names_of(module) if not inspect.ismodule(getattr(found, n))])
        home = importlib.import_module(module)
        yield from (f"{module}.{n}" for n in offered if "minitvm" in getattr(getattr(home, n), "__module__", ""))


def test_mypy_sees_every_public_name_and_what_is_wrong(tmp_path: pathlib.Path) -> None:
    """One run: a program in TVM's words, every name, of which none is ``Any``, and mistakes."""
    names = sorted({*every_name()} - {"minitvm.relay.Any"})
    shown = [f"reveal_type({name})" for name in names]
    imports = [f"import {module}" for module in (*OFFERING, *PLAIN)]
    body = [*PROGRAM.splitlines(), *imports, *shown]
    said = checked("\n".join([*body, *WRONG]) + "\n", tmp_path)
    errors = [line for line in said if ": error: " in line and line.startswith("program.py")]
    told: dict[int, str] = {}
    for m in filter(None, (re.match(r"program\.py:(\d+): (?:note|error): (.*)", line) for line in said)):
        told[int(m[1])] = f"{told.get(int(m[1]), '')}{m[2]}\n"
    first = len(body) + 1
    assert [line for line in errors if int(line.split(":")[1]) < first] == []
    assert [name for n, name in enumerate(names, len(body) - len(names) + 1) if 'type is "Any"' in told[n]] == []
    for n, (wrong, message) in enumerate(WRONG.items(), first):
        assert message in told[n], (wrong, told[n])
