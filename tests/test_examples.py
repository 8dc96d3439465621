"""Every program in ``examples`` runs, and prints what it says."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"

PRINTED = {
    "classify_image.py": ("tiger cat", "Egyptian cat"),
    "compare_with_onnxruntime.py": ("largest difference", "onnxruntime  median", "minitvm      median"),
    "inspect_kernels.py": (
        "=== after FuseOps",
        "=== group\nfn (",
        "=== loops\nkernel fused_",
        'define void @"fused_',
        "=== assembly",
        "__global__ void",
    ),
    "write_a_pass.py": ("exp(%0)", "DropReluOfMagnitude"),
}


def run_example(name: str) -> str:
    if "onnxruntime" in name:
        pytest.importorskip("onnxruntime")
    done = subprocess.run([sys.executable, EXAMPLES / name], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def test_every_example_is_listed_here() -> None:
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == sorted(PRINTED)


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_runs(name: str) -> None:
    text = run_example(name)
    assert [part for part in PRINTED[name] if part not in text] == []


def test_the_photograph_is_a_tiger_cat_first() -> None:
    first, second = run_example("classify_image.py").splitlines()[:2]
    assert first.endswith("tiger cat") and second.endswith("Egyptian cat")


def test_the_runtimes_agree() -> None:
    words = run_example("compare_with_onnxruntime.py").splitlines()[0].split()
    assert float(words[2]) <= 1e-4 * float(words[4])
