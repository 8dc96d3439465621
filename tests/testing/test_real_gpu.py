"""What the simulated GPU is asked for, on the driver, with faults that are planted: by its stand-in, and on a GPU.

There: ``python -m pytest -p tests.on_gpu tests/codegen/test_cuda_*.py``.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from simulated_gpu import DeviceFault, real
from simulated_gpu.standin import environment
from tests.compilers import ON_GPU, needs_compiler, only_simulated

pytest.importorskip("cuda.bindings", reason="pip install cuda-bindings nvidia-cuda-nvrtc")
linux = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is made for Linux")
pytestmark = [needs_compiler, linux]

HEAD = 'extern "C" __global__ void __launch_bounds__(32)\n{}(const float *__restrict__ x, float *__restrict__ y)\n'
BODIES = {
    "right": "y[threadIdx.x] = x[threadIdx.x] * 2;",
    "before": "y[(int)threadIdx.x - 1] = x[threadIdx.x];",
    "behind": "y[threadIdx.x + 1] = x[threadIdx.x];",
    "far": "y[threadIdx.x + (1 << 28)] = x[threadIdx.x];",
    "reads": "y[threadIdx.x] = x[threadIdx.x + 32];",
    "endless": "while (*(volatile const float *)x == *(volatile const float *)x) y[0] = x[0];",
}
X = np.arange(32, dtype="float32")


def end() -> None:
    if real._process is not None:
        real._process.end()


@pytest.fixture(scope="module")
def kernels() -> Iterator[real.RealKernels]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in () if ON_GPU else environment(arch=90).items():
            patch.setenv(name, value)
        sources = (f"{HEAD.format(n)}{{\n    {body}\n}}\n" for n, body in BODIES.items())
        yield real.RealKernels(real.real_image(*sources))
        end()


def launch(kernels: real.RealKernels, name: str, counters: int = 0) -> np.ndarray:
    y = np.full_like(X, 77)
    kernels.launch(f"{[*BODIES].index(name)}/{name}", (1, 1, 1), (32, 1, 1), [X.copy(), y], counters=counters)
    return y


FAULTS = {
    "before": "before: stored outside of argument 1, 128 bytes, at byte -4",
    "behind": "behind: stored outside of argument 1, 128 bytes, at byte 128",
    "far": "far: a kernel failed on .*an illegal memory access was encountered",
    "endless": "endless: does not end within 2 seconds",
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=only_simulated) if n == "endless" else n for n in FAULTS])
def test_faults_are_named_and_the_next_kernel_runs(
    kernels: real.RealKernels, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.testing.assert_array_equal(launch(kernels, "right"), X * 2)
    if name == "endless":
        monkeypatch.setattr(real, "ENDS", 2)
    with pytest.raises(DeviceFault, match=FAULTS[name]):
        launch(kernels, name)
    monkeypatch.setattr(real, "ENDS", 60)
    np.testing.assert_array_equal(launch(kernels, "right"), X * 2)


def test_what_nobody_wrote_is_nan(kernels: real.RealKernels) -> None:
    assert np.isnan(launch(kernels, "reads")).all()


@only_simulated
def test_a_process_that_cannot_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU is there; nothing waits for it."""
    end()
    for name, value in environment(gpus=0).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(DeviceFault, match="the device is opened: NVIDIA's driver finds no GPU"):
        real.process()
    assert real._process is None


@only_simulated
def test_tests_run_so() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.on_gpu", "-p", "no:cacheprovider", "-p", "no:xdist"]
    name = "tests/codegen/test_cuda_chains.py::test_what_is_too_large_for_float16_is_infinite_within_a_kernel"
    env, root = environment(arch=90), pathlib.Path(__file__).parents[2]
    done = subprocess.run([*command, name], env=env, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith(". "), done.stdout + done.stderr
