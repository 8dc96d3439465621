"""Attention's templates, of processors and of GPUs: sizes and dtypes at random, masks, rows without probabilities."""

from __future__ import annotations

import numpy as np
import pytest
from native_kernel import run_native
from nvrtc import needs_nvrtc
from test_cuda_templates import simulated

from minitvm.codegen.backend import Backend
from minitvm.codegen.cuda.backend import compile_cubin
from minitvm.codegen.cuda.bind import bind_plain
from minitvm.codegen.cuda.emit import emit_cuda
from minitvm.codegen.cuda.machine import gpu_model
from minitvm.codegen.cuda.templates.attention import GpuAttention
from minitvm.codegen.cuda.templates.attention_tensor import TensorTile
from minitvm.codegen.llvm.compile import host, machine_model
from minitvm.codegen.lower import lower
from minitvm.codegen.problem import Problem
from minitvm.codegen.simplify import simplify
from minitvm.driver.compile import backend_for
from minitvm.ir.builder import call_op, function
from minitvm.ir.dims import symbol
from minitvm.ir.expr import Call, Var
from minitvm.ir.loop import Kernel
from minitvm.ir.loop.interp import run_kernel
from minitvm.ir.loop.sizes import bound
from minitvm.ir.types import TensorType
from minitvm.passes import PassContext
from minitvm.target import MachineModel
from simulated_gpu import ORDERS, HostKernels, host_image
from tests.compilers import needs_compiler

BOUNDS = {"float64": 1e-12, "float32": 2e-5, "float16": 4e-3}
SMALL_CACHE = MachineModel(32, 16, l2_bytes=4096)
"""Its blocks are of a few places."""


def attention(shapes: list[tuple[object, ...]], dtype: str = "float32", **attributes: object) -> Call:
    """Of operands of these shapes; the fourth is a mask."""
    types = [TensorType(shape, dtype) for shape in shapes]  # type: ignore[arg-type]
    call = call_op("nn.attention", *(Var(f"p{i}", t) for i, t in enumerate(types)), **attributes)
    assert isinstance(call, Call)
    return call


def drawn(seed: int, dtype: str) -> tuple[Call, list[np.ndarray]]:
    """Lengths, sizes of heads and masks; some places are not looked at, and some rows look at none."""
    rng = np.random.default_rng(seed)
    batch, heads = (int(n) for n in rng.integers(1, 3, 2))
    length, places = (int(n) for n in rng.choice([1, 2, 7, 16, 33, 64, 130], 2))
    size, width = (int(n) for n in rng.choice([1, 7, 32, 64, 80], 2))
    shapes = [(batch, length, heads, size), (batch, places, heads, size), (batch, places, heads, width)]
    shapes += [[], [(batch, 1, 1, places)], [(heads, length, places)]][seed % 3]  # type: ignore[operator, arg-type]
    arrays = [rng.normal(size=shape).astype(dtype) for shape in shapes]
    for mask in arrays[3:]:
        mask[rng.random(mask.shape) < 0.4] = -np.inf
        mask[..., rng.random(mask.shape[-2]) < 0.3, :] = -np.inf
    rows = ("nan", "zero")[seed % 2]
    return attention(shapes, dtype, scale=size**-0.5, empty_rows=rows), arrays


def check(kernel: Kernel, call: Call, arrays: list[np.ndarray], native: bool = False) -> None:
    expected = call.op.reference(*(a.astype("float64") for a in arrays))  # type: ignore[union-attr]
    (found,) = run_native(kernel, *arrays) if native else run_kernel(kernel, *arrays, check_races=True)
    np.testing.assert_allclose(found, expected, rtol=0, atol=BOUNDS[str(found.dtype)])


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("seed", range(6))
def test_machine_code(seed: int, dtype: str) -> None:
    call, arrays = drawn(seed, dtype)
    kernel = simplify(lower(function(call), "attention", machine_model(host(), 1)))
    check(legal(kernel, "llvm"), call, arrays, native=True)


def legal(kernel: Kernel, target: str) -> Kernel:
    backend: Backend = backend_for(target, 1)
    return backend.legalize(kernel)


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("seed", [7, 9, 11, 12])
def test_loops_of_gpus(seed: int, dtype: str) -> None:
    call, arrays = drawn(seed, dtype)
    check(simplify(lower(function(call), "attention", gpu_model("sm_90"), "cuda")), call, arrays)


TF32 = 4e-3
"""Scores of a few tens are off by 2 ** -11 of each factor, powers by that, values too."""


def on_tensor_cores(seed: int) -> tuple[Call, list[np.ndarray], list[Kernel]]:
    """Two ways that are not multiply-adds of threads."""
    call, arrays = drawn(seed, "float32")
    with PassContext(config={"cuda.allow_tf32": True}):
        template = GpuAttention(Problem.of(call), gpu_model("sm_90"))
        able = [choice for choice in template.candidates if isinstance(choice.tile, TensorTile)]
        made = [template.kernel(choice) for choice in (able[0], able[seed % len(able)])]
    return call, arrays, [simplify(kernel) for kernel in made if isinstance(kernel, Kernel)]


@pytest.mark.parametrize("seed", [7, 9, 11, 12])
def test_tensor_cores(seed: int) -> None:
    call, arrays, kernels = on_tensor_cores(seed)
    expected = call.op.reference(*(a.astype("float64") for a in arrays))  # type: ignore[union-attr]
    for kernel in kernels:
        (found,) = run_kernel(kernel, *arrays, check_races=True)
        np.testing.assert_allclose(found, expected, rtol=0, atol=TF32)


@needs_compiler
def test_tensor_cores_in_every_order_of_threads() -> None:
    call, arrays, made = on_tensor_cores(9)
    kernels = HostKernels(host_image(*(emit_cuda(*bind_plain(kernel)) for kernel in made)))
    expected = call.op.reference(*(a.astype("float64") for a in arrays))  # type: ignore[union-attr]
    for number, order in enumerate(ORDERS):
        found = simulated(kernels, number % 2, made[number % 2], arrays, order)
        np.testing.assert_allclose(found, expected, rtol=0, atol=TF32)


@needs_nvrtc
@pytest.mark.parametrize("config", [{}, {"cuda.allow_tf32": True}], ids=["strict", "TF32"])
@pytest.mark.parametrize("shape", [(1, 128, 12, 64), (8, 197, 12, 64), (1, 512, 8, 128)])
def test_no_register_is_spilled(shape: tuple[int, ...], config: dict[str, bool]) -> None:
    with PassContext(config=config):
        call = attention([shape] * 3, scale=0.125)
        kernel = simplify(lower(function(call), "attention", gpu_model("sm_90"), "cuda"))
    backend = backend_for("cuda -arch=sm_90", 1)
    found = compile_cubin(str(backend.source(backend.bind(backend.legalize(kernel)))))
    assert not found.spills


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("machine", [SMALL_CACHE, MachineModel(64, 32, threads=3)], ids=["small cache", "wide"])
def test_lengths_that_only_a_run_knows(machine: MachineModel, masked: bool) -> None:
    b, m, n = map(symbol, "bmn")
    call = attention([(b, m, 2, 5), (b, n, 2, 5), (b, n, 2, 18), *[(b, 1, m, n)] * masked], scale=0.3)
    kernel, rng = lower(function(call), "attention", machine), np.random.default_rng(2)
    for sizes in ((1, 1, 1), (2, 5, 9), (1, 33, 70), (1, 3, 0)):
        batch, length, places = sizes
        shapes = [(batch, length, 2, 5), (batch, places, 2, 5), (batch, places, 2, 18)]
        arrays = [rng.normal(size=s).astype("float32") for s in [*shapes, *[(batch, 1, length, places)] * masked]]
        check(simplify(bound(kernel, dict(zip("bmn", sizes, strict=True)))), call, arrays)


@pytest.mark.parametrize("rows", ["nan", "zero"])
@pytest.mark.parametrize("kind", ["llvm", "cuda"])
def test_scores_that_are_no_numbers(kind: str, rows: str) -> None:
    """In the first block, in a later one, in all; infinite ones; a row that looks at nothing before its last block."""
    call = attention([(1, 6, 1, 2), (1, 90, 1, 2), (1, 90, 1, 3), (6, 90)], empty_rows=rows)
    arrays = [np.random.default_rng(3).normal(size=a.tensor_type.static_shape).astype("float32") for a in call.args]
    mask = arrays[3]
    mask[0, 2], mask[1, 80], mask[2], mask[3, 5], mask[4, :89] = np.nan, np.nan, -np.inf, np.inf, -np.inf
    machine = gpu_model("sm_90") if kind == "cuda" else SMALL_CACHE
    (found,) = run_kernel(simplify(lower(function(call), "attention", machine, kind)), *arrays)
    np.testing.assert_allclose(found, call.op.reference(*arrays), rtol=1e-5, atol=1e-6)  # type: ignore[union-attr]
    lost = np.full((4, 3), np.nan if rows == "nan" else 0)
    np.testing.assert_array_equal(found[0, :4, 0], lost)
    np.testing.assert_allclose(found[0, 4, 0], arrays[2][0, 89, 0], rtol=1e-6)


WIDTHS = [MachineModel(16, 16), SMALL_CACHE, MachineModel(64, 32, threads=3)]


@pytest.mark.parametrize("machine", WIDTHS, ids=["16 bytes", "32 bytes", "64 bytes"])
@pytest.mark.parametrize(("length", "places", "size", "width"), [(1, 1, 1, 1), (4, 19, 20, 33), (3, 40, 64, 7)])
def test_few_queries(machine: MachineModel, length: int, places: int, size: int, width: int) -> None:
    for dtype, rows in (("float32", "zero"), ("float16", "nan"), ("float64", "nan")):
        shapes = [(2, length, 2, size), (2, places, 2, size), (2, places, 2, width), (length, places)]
        call = attention(shapes, dtype, scale=0.3, empty_rows=rows)
        arrays = [np.random.default_rng(places).normal(size=shape).astype(dtype) for shape in shapes]
        arrays[3][:, places // 2 :] = -np.inf
        check(simplify(lower(function(call), "attention", machine)), call, arrays)


@pytest.mark.parametrize("places", [1, 2047, 2048, 2049, 4100])
def test_few_queries_in_machine_code(places: int) -> None:
    """As long as a block of places, and longer; the largest score comes last."""
    shapes = [(1, 2, 3, 64), (1, places, 3, 64), (1, places, 3, 80)]
    call, rng = attention(shapes, scale=0.125), np.random.default_rng(places)
    arrays = [rng.normal(size=shape).astype("float32") for shape in shapes]
    arrays[1][:, -1] *= 9
    kernel = simplify(lower(function(call), "attention", machine_model(host(), 1)))
    check(legal(kernel, "llvm"), call, arrays, native=True)


@pytest.mark.parametrize("rows", ["nan", "zero"])
def test_few_queries_with_scores_that_are_no_numbers(rows: str) -> None:
    """NaN in the first block of places and in the second; nothing looked at; infinity; a row that looks at its last."""
    places = 2100
    for kind in range(5):
        call = attention([(1, 1, 1, 2), (1, places, 1, 2), (1, places, 1, 3), (1, places)], empty_rows=rows)
        arrays = [np.random.default_rng(3).normal(size=a.tensor_type.static_shape).astype("float32") for a in call.args]
        mask = arrays[3][0]
        where = (slice(2, 3), slice(2080, 2081), slice(None), slice(5, 6), slice(0, places - 1))[kind]
        mask[where] = (np.nan, np.nan, -np.inf, np.inf, -np.inf)[kind]
        kernel = simplify(lower(function(call), "attention", machine_model(host(), 1)))
        (found,) = run_native(legal(kernel, "llvm"), *arrays)
        wanted = call.op.reference(*arrays)  # type: ignore[union-attr]
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5, err_msg=f"case {kind}")
