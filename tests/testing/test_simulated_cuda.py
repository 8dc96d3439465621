"""The simulated GPU itself: what it computes, and the faults planted in CUDA C that it has to catch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from minitvm.errors import CompilerError
from simulated_gpu import ORDERS, DeviceFault, HostKernels, host_image
from tests.compilers import needs_compiler, only_simulated

pytestmark = [needs_compiler, only_simulated]

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
        __syncthreads();  // of 😀
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
    if (threadIdx.x < 16) cp_async<16>(&t[1][threadIdx.x * 4], &x[threadIdx.x * 4], threadIdx.x < 8);
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
    assert str(error.value).endswith(": __syncthreads();  // of 😀")
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


# --- tensor cores ---------------------------------------------------------------------------------------------------

TF32 = """\
extern "C" __global__ void __launch_bounds__(32)
product(const float *a, const float *b, const float *c, float *d)
{
    int g = threadIdx.x / 4, t = threadIdx.x % 4;
    const unsigned left[4] = {to_tf32(a[g * 8 + t]), to_tf32(a[(g + 8) * 8 + t]),
                              to_tf32(a[g * 8 + t + 4]), to_tf32(a[(g + 8) * 8 + t + 4])};
    const unsigned right[2] = {to_tf32(b[t * 8 + g]), to_tf32(b[(t + 4) * 8 + g])};
    float sum[4];
    for (int i = 0; i < 4; i++) sum[i] = c[(g + i / 2 * 8) * 8 + 2 * t + i % 2];
    mma_tf32(sum, left, right);
    for (int i = 0; i < 4; i++) d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sum[i];
}
"""
SIXTEEN = """\
extern "C" __global__ void __launch_bounds__(32)
product(const unsigned short *a, const unsigned short *b, const float *c, float *d)
{
    __shared__ __align__(16) unsigned short left[16 * 16], right[16 * 8];
    for (int i = threadIdx.x; i < 256; i += 32) left[i] = a[i];
    for (int i = threadIdx.x; i < 128; i += 32) right[i] = b[i];
    __syncthreads();
    int g = threadIdx.x / 4, t = threadIdx.x % 4, lane = threadIdx.x;
    unsigned of_a[4], of_b[2];
    ldmatrix_x4(of_a, &left[lane % 16 * 16 + lane / 16 * 8]);
    ldmatrix_x2_trans(of_b, &right[lane % 16 * 8]);
    float sum[4];
    for (int i = 0; i < 4; i++) sum[i] = c[(g + i / 2 * 8) * 8 + 2 * t + i % 2];
    mma_KIND(sum, of_a, of_b);
    for (int i = 0; i < 4; i++) d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sum[i];
}
"""


def bfloat16(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cut off, as their bits; and as float32."""
    bits = (values.view("uint32") >> 16).astype("uint16")
    return bits, (bits.astype("uint32") << 16).view("float32")


@pytest.mark.parametrize("kind", ["tf32", "f16", "bf16"])
def test_products_of_fragments(kind: str) -> None:
    rng, depth = np.random.default_rng(5), 8 if kind == "tf32" else 16
    a, b, c = (rng.normal(size=s).astype("float32") for s in ((16, depth), (depth, 8), (16, 8)))
    given, exact, source = [a, b], [a, b], TF32 if kind == "tf32" else SIXTEEN.replace("KIND", kind)
    if kind == "f16":
        given = exact = [v.astype("float16") for v in (a, b)]
    elif kind == "bf16":
        (left, a), (right, b) = bfloat16(a), bfloat16(b)
        given, exact = [left, right], [a, b]
    d = np.zeros_like(c)
    HostKernels(host_image(source)).launch("product", (1, 1, 1), (32, 1, 1), [*given, c, d], "random")
    wanted = exact[0].astype("float64") @ exact[1].astype("float64") + c
    assert np.abs(d - wanted).max() <= (4e-3 if kind == "tf32" else 1e-6) and (kind != "tf32" or (d != wanted).any())


def test_a_product_needs_a_whole_warp() -> None:
    source = TF32.replace("mma_tf32(sum", "if (threadIdx.x < 16) mma_tf32(sum")
    arrays = [np.zeros(n, "float32") for n in (128, 64, 128, 128)]
    with pytest.raises(DeviceFault, match=r"waits at mma_tf32 .line 10. for thread .16, 0, 0., which has ended"):
        HostKernels(host_image(source)).launch("product", (1, 1, 1), (32, 1, 1), arrays)
