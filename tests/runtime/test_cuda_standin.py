"""The runtime of a GPU, unmodified, on a stand-in for the driver: allocation, modules, capture, graphs, copies."""

from __future__ import annotations

import ctypes
import pathlib
import re
import subprocess
import sys

import onnx
import pytest
from nvrtc import needs_nvrtc

from benchmarks import scale
from benchmarks.launches import python_seconds
from simulated_gpu.standin import environment
from tests.compilers import needs_compiler


def _has_driver() -> bool:
    try:
        return bool(ctypes.CDLL("libcuda.so.1"))
    except OSError:
        return False


TESTS = pathlib.Path(__file__).parents[1]
pytestmark = [needs_compiler, pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is made for Linux")]
pytest.importorskip("cuda.bindings", reason="pip install cuda-bindings nvidia-cuda-nvrtc")


def python(*arguments: str, **says: object) -> subprocess.CompletedProcess[str]:
    """A process on the stand-in."""
    env = environment(**says)
    env["PYTHONPATH"] = f"{TESTS}:{env.get('PYTHONPATH', '')}"
    return subprocess.run([sys.executable, *arguments], env=env, capture_output=True, text=True, cwd=TESTS.parent)


@pytest.mark.parametrize(
    "file",
    [
        *("test_cuda_device.py", "test_cuda_errors.py", "test_cuda_streams.py", "test_cuda_vendors.py"),
        pytest.param("test_cuda_tuning.py", marks=needs_nvrtc),
    ],
)
def test_what_is_tested_on_a_gpu(file: str) -> None:
    """Everything, and nothing is skipped."""
    options = ("-m", "pytest", "-q", "-x", "-p", "on_standin", "-p", "no:cacheprovider", "-p", "no:xdist")
    done = python(*options, str(TESTS / "runtime" / file), arch=80)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert not re.search(r"skipped|warning", done.stdout), done.stdout


def test_the_tutorial_of_vendors_libraries(tmp_path: pathlib.Path) -> None:
    """What it does where there is a GPU."""
    runs = f"""
import os, pathlib, on_standin, test_docs
os.chdir({str(tmp_path)!r})
assert not test_docs.run_page(test_docs.ROOT / "docs/tutorials/1-external-libraries.md")
"""
    done = python("-c", runs, arch=90)
    assert done.stdout.endswith("cuDNN, cuBLAS and our kernels agree\n"), done.stdout[-2000:] + done.stderr[-4000:]


ASKED = """
import numpy, minitvm
try:
    minitvm.nd.array(numpy.zeros(3), minitvm.cuda(0))
except minitvm.MiniTVMError as error:
    print(error)
print(minitvm.cuda(0).exist)
"""


def test_a_driver_that_lacks_a_function() -> None:
    text = python("-c", ASKED, lacks="cuMemPoolCreate").stdout
    assert text.startswith("NVIDIA's driver is too old: it has no cuMemPoolCreate\n") and text.endswith("\nFalse\n")


@pytest.mark.skipif(_has_driver(), reason="there is a driver on this machine")
def test_no_driver() -> None:
    done = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, check=True)
    first, *_, hint, exists = done.stdout.splitlines()
    assert first == "there is no NVIDIA driver on this machine, so no GPU can be used"
    assert hint == (
        "  = hint: install NVIDIA's driver (it brings libcuda.so.1); libraries are built and saved without one"
    )
    assert exists == "False"


RUNS = """
import numpy, minitvm
from minitvm import relay
from minitvm.runtime.executor import GraphModule
from simulated_gpu.standin import use_host_code
from steps import steps

use_host_code(idle=True)
for layers in (1, 30):
    x = y = relay.var("x", shape=(4, 4))
    for n in range(layers):
        y = relay.nn.softmax(y, axis=n % 2)
    library = minitvm.build(minitvm.Module.from_expr(y), "cuda -arch=sm_90")
    module = GraphModule(library["default"]())
    module.run(x=numpy.zeros((4, 4), "float32"))
    print(sum(node.is_kernel for node in library.graph.nodes), steps(module.run))
"""


def test_what_python_does_for_a_run() -> None:
    """Some lines, however many kernels: one graph is launched."""
    done = python("-c", RUNS, idle=1)
    (few, lines), (many, of_many) = (map(int, line.split()) for line in done.stdout.splitlines())
    assert (few, many) == (1, 30) and lines == of_many < 200, (done.stdout, done.stderr)


def test_what_python_takes_for_a_run(tmp_path: pathlib.Path) -> None:
    onnx.save(scale.mlp(), tmp_path / "mlp.onnx")
    assert python_seconds(str(tmp_path / "mlp.onnx"))["run()"] > 0
