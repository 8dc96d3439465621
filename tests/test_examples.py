"""Every program in ``examples`` runs, and prints what it says."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from collections.abc import Callable

import pytest

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"

PRINTED = {
    "classify_image.py": ("tiger cat", "Egyptian cat"),
    "compare_with_onnxruntime.py": ("largest difference", "onnxruntime  median", "minitvm      median"),
    "fit_cost_model.py": ("predicted", "fitted"),
    "inspect_kernels.py": (
        "=== after FuseOps",
        "=== group\nfn (",
        "=== loops\nkernel fused_",
        'define void @"fused_',
        "=== asm",
        "__global__ void",
    ),
    "rewrite_with_egglog.py": ("5 operators before, 3 after", "add(%0, %c)"),
    "train_mlp.py": ("mlp, minitvm", "convolution, minitvm", "accuracy"),
    "write_a_pass.py": ("exp(%0)", "DropReluOfMagnitude"),
}


def check_classes(lines: list[str]) -> None:
    assert [line.split("  ")[-1] for line in lines[:2]] == ["tiger cat", "Egyptian cat"]


def check_difference(lines: list[str]) -> None:
    words = lines[0].split()
    assert float(words[2]) <= 1e-4 * float(words[4])


def check_accuracy(lines: list[str]) -> None:
    found = [float(line.split()[1]) for line in lines if line.startswith("accuracy")]
    assert len(found) == 2 and min(found) >= 0.9, lines


def check_fit(lines: list[str]) -> None:
    predicted, fitted = (float(line.split()[6].rstrip(",")) for line in lines)
    assert 1 <= fitted <= predicted * 1.001, lines


CHECKS: dict[str, Callable[[list[str]], None]] = {
    "classify_image.py": check_classes,
    "compare_with_onnxruntime.py": check_difference,
    "fit_cost_model.py": check_fit,
    "train_mlp.py": check_accuracy,
}


def run_example(name: str) -> str:
    for package in ("onnxruntime", "egglog"):
        if package in name:
            pytest.importorskip(package)
    done = subprocess.run([sys.executable, EXAMPLES / name], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def test_every_example_is_listed_here() -> None:
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == sorted(PRINTED)


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_runs(name: str) -> None:
    text = run_example(name)
    assert [part for part in PRINTED[name] if part not in text] == []
    CHECKS.get(name, lambda _: None)(text.splitlines())
