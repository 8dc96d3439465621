"""The simulated GPU itself: what it computes, and the faults planted in CUDA C that it has to catch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from minitvm.errors import CompilerError
from minitvm.testing.cuda import ORDERS, DeviceFault, HostKernels, host_compiler, host_image

pytestmark = pytest.mark.skipif(host_compiler() is None, reason="no C++ compiler on this machine")

SOURCES = {
    "reverse": """
    __shared__ float t[64];
    t[threadIdx.x] = x[blockIdx.x * 64 + threadIdx.x];
    __syncthreads();
    y[blockIdx.x * 64 + threadIdx.x] = t[63 - threadIdx.x];""",
    "no_barrier": """
    __shared__ float t[64];
    t[threadIdx.x] = x[blockIdx.x * 64 + threadIdx.x];
    y[blockIdx.x * 64 + threadIdx.x] = t[63 - threadIdx.x];""",
    "one_way_race": """
    __shared__ float t[65];
    t[threadIdx.x] = x[threadIdx.x];
    y[threadIdx.x] = threadIdx.x ? t[threadIdx.x - 1] : 0.0f;""",
    "half_a_barrier": """
    if (threadIdx.x < 40) {
        __syncthreads();
    }
    y[threadIdx.x] = x[threadIdx.x];""",
    "two_barriers": """
    if (threadIdx.x < 32) {
        __syncthreads();
    } else {
        __syncthreads();
    }
    y[threadIdx.x] = x[threadIdx.x];""",
    "unwritten": """
    __shared__ float t[64];
    if (threadIdx.x != 5) t[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = t[threadIdx.x];""",
    "reads_far": "\n    y[threadIdx.x] = x[threadIdx.x + 65];",
    "writes_far": "\n    y[threadIdx.x + (threadIdx.x == 7 ? 64 : 0)] = x[threadIdx.x];",
    "writes_before": "\n    y[(int)threadIdx.x - 1] = x[threadIdx.x];",
    "past_shared": """
    __shared__ float t[64];
    t[threadIdx.x + 1] = x[threadIdx.x];
    y[threadIdx.x] = 0.0f;""",
    "past_local": """
    float t[4];
    t[threadIdx.x / 8] = x[threadIdx.x];
    y[threadIdx.x] = t[0];""",
    "misaligned": "\n    *(float4 *)&y[threadIdx.x] = *(const float4 *)&x[0];",
    "sums": """
    float total = x[threadIdx.x];
    for (int by = 16; by; by >>= 1) total += __shfl_xor_sync(0xffffffffu, total, by);
    y[threadIdx.x] = total + __shfl_down_sync(0xffffffffu, x[threadIdx.x], 1) * 0.5f;""",
    "half_a_warp": """
    if (threadIdx.x < 40) y[threadIdx.x] = __shfl_xor_sync(0xffffffffu, x[threadIdx.x], 1);""",
    "copies": """
    __shared__ __align__(16) float t[2][64];
    if (threadIdx.x < 16) cp_async<16>(&t[0][threadIdx.x * 4], &x[threadIdx.x * 4]);
    cp_async_commit();
    if (threadIdx.x < 16) cp_async_zfill<16>(&t[1][threadIdx.x * 4], &x[threadIdx.x * 4], threadIdx.x < 8);
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();
    float first = t[0][63 - threadIdx.x];
    cp_async_wait<0>();
    __syncthreads();
    y[threadIdx.x] = first + t[1][63 - threadIdx.x];""",
    "no_wait": """
    __shared__ __align__(16) float t[64];
    if (threadIdx.x < 16) cp_async<16>(&t[threadIdx.x * 4], &x[threadIdx.x * 4]);
    cp_async_commit();
    __syncthreads();
    y[threadIdx.x] = t[63 - threadIdx.x];""",
    "dynamic": """
    extern __shared__ __align__(16) unsigned char memory[];
    float *t = (float *)memory;
    t[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = t[63 - threadIdx.x];""",
}
HEAD = 'extern "C" __global__ void __launch_bounds__(64)\n{}(const float *__restrict__ x, float *__restrict__ y)\n'
X = np.random.default_rng(0).normal(size=64).astype("float32")


@pytest.fixture(scope="module")
def kernels() -> HostKernels:
    return HostKernels(host_image("\n".join(f"{HEAD.format(n)}{{{body}\n}}\n" for n, body in SOURCES.items())))


def launch(kernels: HostKernels, name: str, order: str = "forward", seed: int = 0, x: np.ndarray = X) -> np.ndarray:
    y = np.full_like(x, 77)
    kernels.launch(name, (x.size // 64, 1, 1), (64, 1, 1), [x, y], order, seed, 256 if name == "dynamic" else 0)
    return y


@pytest.mark.parametrize("order", ORDERS)
def test_what_is_right_gives_the_same_in_every_order(kernels: HostKernels, order: str) -> None:
    many = np.random.default_rng(1).normal(size=(5, 64)).astype("float32")
    np.testing.assert_array_equal(launch(kernels, "reverse", order, 3, many), many[:, ::-1])
    np.testing.assert_array_equal(launch(kernels, "dynamic", order), X[::-1])
    kept = np.where(np.arange(64) < 32, X, 0)
    np.testing.assert_array_equal(launch(kernels, "copies", order), X[::-1] + kept[::-1])
    warps = X.reshape(2, 32)
    after = np.append(warps[:, 1:], warps[:, -1:], axis=1)
    wanted = warps.sum(1, keepdims=True) + after * np.float32(0.5)
    np.testing.assert_allclose(launch(kernels, "sums", order).reshape(2, 32), wanted, rtol=1e-5)


def is_wrong(kernels: HostKernels, name: str, wanted: np.ndarray, order: str) -> bool:
    return not np.array_equal(launch(kernels, name, order, seed=1), wanted)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("name", "wanted"), [("no_barrier", X[::-1]), ("unwritten", X), ("no_wait", X[::-1])])
def test_what_is_not_waited_for_or_not_written_is_nan(
    kernels: HostKernels, name: str, wanted: np.ndarray, order: str
) -> None:
    found = launch(kernels, name, order, seed=1)
    right = (found == wanted) | np.isnan(found)
    assert np.isnan(found).any() and right.all()


def test_some_races_only_show_in_another_order(kernels: HostKernels) -> None:
    wanted = np.append(np.float32(0), X[:-1])
    assert not is_wrong(kernels, "one_way_race", wanted, "forward")
    assert is_wrong(kernels, "one_way_race", wanted, "reverse") and is_wrong(kernels, "one_way_race", wanted, "random")


AT = {name: f"{name}: block (0, 0, 0), thread" for name in SOURCES}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("half_a_barrier", "(0, 0, 0): waits at __syncthreads (line LINE) for thread (40, 0, 0), which has ended"),
        ("two_barriers", "(0, 0, 0): waits at __syncthreads (line LINE) for thread (32, 0, 0), which waits at "),
        ("half_a_warp", "(32, 0, 0): waits at __shfl_xor_sync (line LINE) for thread (40, 0, 0), which has ended"),
        ("reads_far", "(0, 0, 0): illegal address"),
        ("writes_far", "(7, 0, 0): illegal address"),
        ("past_shared", "(63, 0, 0): index 64 outside of 'float [64]'"),
        ("past_local", "(32, 0, 0): index 4 outside of 'float [4]'"),
        ("misaligned", "(1, 0, 0): misaligned address"),
    ],
)
def test_faults_are_named(kernels: HostKernels, name: str, message: str) -> None:
    with pytest.raises(DeviceFault) as error:
        launch(kernels, name)
    pattern, text = f"{AT[name]} {message}".split("LINE"), str(error.value)
    assert text.startswith(pattern[0]) and pattern[-1] in text
    launch(kernels, "reverse")  # the next one runs


def test_the_line_and_the_argument_are_shown(kernels: HostKernels) -> None:
    with pytest.raises(DeviceFault) as error:
        launch(kernels, "half_a_barrier")
    assert str(error.value).endswith(": __syncthreads();")
    with pytest.raises(DeviceFault) as error:
        launch(kernels, "writes_far")
    assert "byte 284 of argument 1, which has 256" in str(error.value)


def test_memory_before_an_array_is_guarded_too(kernels: HostKernels) -> None:
    with pytest.raises(DeviceFault, match="stored outside of argument 1"):
        launch(kernels, "writes_before")
    with pytest.raises(DeviceFault, match="byte -4 of argument 1"):
        launch(kernels, "writes_before", "reverse")


@pytest.mark.parametrize(
    ("grid", "block", "dynamic", "message"),
    [
        ((1, 1, 1), (65, 1, 1), 0, "reverse: 65 threads a block, at most 64"),
        ((1, 1, 1), (0, 1, 1), 0, "reverse: 0 threads a block, at most 64"),
        ((1, 65536, 1), (64, 1, 1), 0, "reverse: a grid of (1, 65536, 1) blocks"),
        ((1, 1, 1), (64, 1, 1), 232200, "reverse: 256 + 232200 bytes of shared memory"),
    ],
)
def test_launches_that_a_gpu_refuses(
    kernels: HostKernels, grid: Sequence[int], block: Sequence[int], dynamic: int, message: str
) -> None:
    with pytest.raises(DeviceFault) as error:
        kernels.launch("reverse", grid, block, [X, X.copy()], dynamic=dynamic)
    assert str(error.value) == message


def test_unknown_kernel_and_text_that_is_no_c(kernels: HostKernels) -> None:
    with pytest.raises(DeviceFault, match="no kernel nothing"):
        kernels.launch("nothing", (1, 1, 1), (1, 1, 1), [])
    with pytest.raises(CompilerError) as error:
        host_image(f"{HEAD.format('k')}{{\n    y[0] = z;\n}}\n")
    assert "kernels.cpp:4:12: error: 'z' was not declared" in str(error.value)


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CompilerError) as error:
        host_image("")
    assert str(error.value) == (
        "no C++ compiler is installed, which simulated CUDA needs\n  = hint: install g++ or clang++"
    )
