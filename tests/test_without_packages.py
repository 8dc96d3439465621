"""Graphs, passes, loops, the interpreter and the course without llvmlite and onnx, as where nothing can be installed;
what needs one of them says which."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

import minitvm

ROOT = pathlib.Path(minitvm.__file__).parents[1]
HIDDEN = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("llvmlite", "onnx", "onnxruntime", "google"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
"""
"""In ``sitecustomize``, so that the processes that a process starts are without them as well."""
WORKS = """
import numpy as np
import minitvm
from minitvm import relay, transform
from minitvm.ir.loop import interp
from minitvm.testing import assert_allclose, check_rewrite, resnet
from minitvm.lab import explain, mutate, verify_rule

x = relay.var("x", shape=(2, 3))
module = minitvm.IRModule(relay.Function([x], relay.nn.relu(relay.add(x, relay.const(1.0)))))
for name in transform.__all__:
    assert getattr(transform, name)
module = transform.Sequential([transform.FoldConstant(), transform.FuseOps()])(module)
assert minitvm.parser.parse(str(module)) is not None
library = minitvm.build(module, target="interp", trace=True)
runner = minitvm.GraphModule(library["default"](minitvm.cpu()))
runner.run(x=np.full((2, 3), -3, "float32"))
assert not runner.get_output(0).numpy().any()
assert "fused_add_nn_relu" in str(explain(library, kernel="fused*"))
print(resnet.get_workload(num_layers=18)[0]["main"].params[0].name)
assert not {"llvmlite", "onnx"} & set(sys.modules)
"""
NEEDS = {
    "minitvm.build(minitvm.IRModule.from_expr(minitvm.relay.const(1.0)))": "target 'llvm' needs the package llvmlite",
    "minitvm.load('m.mtvm')": "machine code needs the package llvmlite",
    "minitvm.from_onnx(MODEL)": "reading ONNX models needs the package onnx",
    "minitvm.compile(MODEL, target='interp')": "reading ONNX models needs the package onnx",
    "minitvm.InferenceSession(MODEL)": "needs the package llvmlite",
    "minitvm.lab.check(MODEL)": "reading ONNX models needs the package onnx",
    "minitvm.lab.profile(MODEL)": "reading ONNX models needs the package onnx",
}
CHAPTERS = [f"chapter{n}" for n in range(1, 7)]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a Python without the packages."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "sitecustomize.py").write_text(HIDDEN)
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))}


def ran(bare: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], env=bare, capture_output=True, text=True, check=False)


def test_graphs_passes_and_the_interpreter_run(bare: dict[str, str]) -> None:
    done = ran(bare, "-c", f"import sys\n{WORKS}")
    assert (done.returncode, done.stdout) == (0, "data\n"), done.stderr


def test_what_needs_a_package_says_which(bare: dict[str, str], tmp_path: pathlib.Path) -> None:
    model = ROOT / "minitvm" / "demo_data" / "efficientnet_lite0.onnx"
    x = minitvm.relay.var("x", shape=(2,))
    minitvm.build(minitvm.relay.Function([x], minitvm.relay.nn.relu(x))).save(tmp_path / "m.mtvm")
    code = f"""
import minitvm, os, sys
MODEL = {str(model)!r}
os.chdir({str(tmp_path)!r})
for call in {list(NEEDS)}:
    try:
        eval(call)
        print("works")
    except minitvm.MiniTVMError as error:
        print(str(error).replace("\\n", " "))
"""
    done = ran(bare, "-c", code)
    for line, (call, said) in zip(done.stdout.splitlines(), NEEDS.items(), strict=True):
        assert said in line and f"hint: pip install {said.rpartition(' ')[2]}" in line, (call, line)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_is_graded(chapter: str, bare: dict[str, str]) -> None:
    """By the command line: all points for the solution."""
    solution = ROOT / "docs" / "course" / "solutions" / f"{chapter}.py"
    done = ran(bare, "-m", "minitvm", "lab", "grade", chapter, str(solution))
    assert done.returncode == 0 and "[ ]" not in done.stdout, done.stdout + done.stderr


def test_a_chapter_is_begun(bare: dict[str, str], tmp_path: pathlib.Path) -> None:
    """What one begins with has few points, and a hint for what fails."""
    begun = tmp_path / "chapter1.py"
    assert ran(bare, "-m", "minitvm", "lab", "start", "chapter1", "-o", str(begun)).returncode == 0
    done = ran(bare, "-m", "minitvm", "lab", "grade", "chapter1", str(begun))
    assert done.returncode == 1 and "[ ]" in done.stdout and done.stderr == ""
