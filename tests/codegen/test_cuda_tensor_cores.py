"""Products on tensor cores: fragments as the PTX manual has them, errors within their bounds, whole warps only."""

from __future__ import annotations

import numpy as np
import pytest
from nvrtc import needs_nvrtc
from test_cuda_templates import kernel_of, made, simulated

from minitvm.codegen.cuda.backend import compile_cubin
from minitvm.codegen.cuda.bind import bind_plain
from minitvm.codegen.cuda.emit import emit_cuda
from minitvm.codegen.cuda.templates.tile import MmaTile
from minitvm.codegen.problem import Template
from minitvm.driver.compile import build
from minitvm.errors import CompilerError
from minitvm.ir.builder import call_op, function, var
from minitvm.ir.expr import Module
from minitvm.ir.loop import Alloc, Buffer, If, Kernel, LoopExpr, LoopKind, Mma, Stmt, Store, const, loop, seq
from minitvm.ir.loop.interp import run_kernel
from minitvm.ir.loop.verify import verify_kernel
from minitvm.passes.manager import PassContext
from minitvm.testing.cuda import HostKernels, host_compiler, host_image

PRODUCTS = [0, 2, 6, 8, 16]
"""Cases of every template, neither depthwise."""
LIMITS = {"cuda.allow_tf32": 2e-3, "cuda.split_tf32": 1e-6}
"""Of the largest element: 2 ** -10 for each factor and chance, 2 ** -20."""


def products(option: str, case: int, dtype: str = "float32") -> tuple[Template, list[np.ndarray], np.ndarray]:
    with PassContext(config={option: True}):
        template, arrays, expected = made(case, dtype)
        assert isinstance(template.choice.tile, MmaTile)
        return template, arrays, expected


@pytest.mark.parametrize("option", LIMITS)
@pytest.mark.parametrize("case", PRODUCTS)
def test_errors_stay_within_their_bounds(option: str, case: int) -> None:
    template, arrays, expected = products(option, case)
    another = np.random.default_rng(case).integers(0, len(template.candidates))
    for choice in (template.choice, template.candidates[another]):
        (result,) = run_kernel(kernel_of(template, choice), *arrays, check_races=True)
        assert np.abs(result - expected).max() < LIMITS[option] * np.abs(expected).max(), choice


def test_three_products_are_as_good_as_float32() -> None:
    """Per element, by the sum of absolute products, as the error of a sum is bounded: float64 decides."""
    template, (a, b), expected = products("cuda.split_tf32", 0)
    (result,) = run_kernel(kernel_of(template, template.choice), a, b)
    scale = np.abs(a).astype("float64") @ np.abs(b)
    assert (np.abs(result - expected) / scale).max() < 2**-20


def test_float16_needs_no_permission() -> None:
    template, arrays, expected = made(2, "float16")
    assert isinstance(template.choice.tile, MmaTile)
    (result,) = run_kernel(kernel_of(template, template.choice), *arrays)
    assert np.abs(result - expected).max() < 1e-3 * np.abs(expected).max()


def test_strict_float32_stays_off_tensor_cores() -> None:
    assert not isinstance(made(0)[0].choice.tile, MmaTile)


@pytest.mark.skipif(host_compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("option", LIMITS)
def test_the_cuda_c_gives_the_right_numbers(option: str) -> None:
    found = [(kernel_of(t, t.choice), a, e) for t, a, e in (products(option, case) for case in PRODUCTS)]
    kernels = HostKernels(host_image(*(emit_cuda(*bind_plain(kernel)) for kernel, _, _ in found)))
    for number, (kernel, arrays, expected) in enumerate(found):
        result = simulated(kernels, number, kernel, arrays, "reverse")
        assert np.abs(result - expected).max() < LIMITS[option] * np.abs(expected).max()


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_no_register_is_spilled(arch: str) -> None:
    for option in LIMITS:
        template, _, _ = products(option, 2)
        source = emit_cuda(*bind_plain(kernel_of(template, template.choice)))
        assert "mma.sync.aligned.m16n8k8" in source
        assert compile_cubin(source, arch).spills == 0


def test_options_reach_the_kernels_and_their_cache() -> None:
    x, w = var("x", shape=(64, 64), dtype="float32"), var("w", shape=(64, 64), dtype="float32")
    module = Module({"main": function(call_op("nn.matmul", x, w), [x, w])})
    texts = []
    for config in ({}, {"cuda.allow_tf32": True}, {}):
        with PassContext(config=config):
            library = build(module, "cuda")
        texts.append(library.report.kernel(next(iter(library.report.groups))).text("cuda"))
    assert ["mma_tf32" in text for text in texts] == [False, True, False]


# --- what is no product of a warp -----------------------------------------------------------------------------------


def warp(threads: int, sums: Buffer, condition: bool = False) -> Kernel:
    out = Buffer("out", (threads,), "float32")

    def thread(t: LoopExpr) -> Stmt:
        one = const(1.0, "float32")
        product: Stmt = Mma(sums, (), (one,) * 4, (one,) * 2)
        zero = loop(4, lambda n: Store(sums, (n,), const(0.0, "float32")))
        body = seq(zero, If(t < 16, product) if condition else product, Store(out, (t,), sums[0]))
        return Alloc(sums, body)

    return Kernel("k", (out,), loop(threads, thread, LoopKind.THREAD_X))


def test_a_product_of_ones_is_the_depth() -> None:
    kernel = warp(64, Buffer("sums", (4,), "float32", "local"))
    verify_kernel(kernel)
    assert "mma sums[] += (1f, 1f, 1f, 1f) x (1f, 1f)" in str(kernel)
    assert (run_kernel(kernel)[0] == 8).all()


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (warp(48, Buffer("sums", (4,), "float32", "local")), "a product outside of whole warps"),
        (warp(64, Buffer("sums", (4,), "float32", "local"), True), "a product under a condition that tells threads"),
        (warp(64, Buffer("sums", (4,), "float32", "shared")), "adds to local memory of float32"),
    ],
)
def test_what_is_refused(kernel: Kernel, message: str) -> None:
    with pytest.raises(CompilerError, match=message):
        verify_kernel(kernel)
