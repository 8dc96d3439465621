"""The runtime of a GPU, unmodified, on a stand-in for the driver: allocation, modules, capture, graphs, copies."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

from minitvm.testing.cuda import host_compiler
from minitvm.testing.cuda.standin import environment

TESTS = pathlib.Path(__file__).parents[1]
pytestmark = [
    pytest.mark.skipif(host_compiler() is None, reason="no C++ compiler is installed: install g++ or clang++"),
    pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is made for Linux"),
]
pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed: pip install 'minitvm[cuda]'")


def test_what_is_tested_on_a_gpu() -> None:
    """Everything in ``test_cuda_device.py``, and nothing of it is skipped."""
    env = environment()
    env["PYTHONPATH"] = f"{TESTS}:{env.get('PYTHONPATH', '')}"
    arguments = ("-m", "pytest", "-q", "-x", "-p", "on_standin", "-p", "no:cacheprovider", "-p", "no:xdist")
    command = [sys.executable, *arguments, str(TESTS / "runtime" / "test_cuda_device.py")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, cwd=TESTS.parent)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert not re.search(r"skipped|warning", done.stdout), done.stdout
