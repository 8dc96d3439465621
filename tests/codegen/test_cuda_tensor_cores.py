"""Products on tensor cores: fragments as the PTX manual has them, errors within their bounds, whole warps only."""

from __future__ import annotations

import re

import numpy as np
import pytest
from nvrtc import needs_nvrtc
from test_cuda_copies import template_of
from test_cuda_templates import MACHINE, kernel_of, made, simulated

from benchmarks.nvrtc import ptx
from minitvm.codegen.cuda.backend import compile_cubin
from minitvm.codegen.cuda.bind import bind_plain, launch_of
from minitvm.codegen.cuda.emit import emit_cuda
from minitvm.codegen.cuda.machine import gpu_model
from minitvm.codegen.cuda.templates.tile import BlockTile, MmaTile
from minitvm.codegen.lower import lowering
from minitvm.codegen.problem import Choice, Template
from minitvm.codegen.simplify import simplify
from minitvm.driver.compile import build
from minitvm.errors import CompilerError
from minitvm.ir.builder import call_op, function, var
from minitvm.ir.expr import Function, Module
from minitvm.ir.loop import (
    Alloc,
    Barrier,
    Buffer,
    If,
    Kernel,
    Ldmatrix,
    Load,
    LoopExpr,
    LoopKind,
    Mma,
    Stmt,
    Store,
    const,
    loop,
    seq,
)
from minitvm.ir.loop.interp import run_kernel
from minitvm.ir.loop.verify import verify_kernel
from minitvm.passes.manager import PassContext
from simulated_gpu import ORDERS, HostKernels, host_image
from tests.compilers import ON_GPU, PARTS, needs_compiler
from tests.gathered import Gathered

PRODUCTS = [0, 2, 6, 8, 16]
"""Cases of every template, neither depthwise."""
LIMITS = {"cuda.allow_tf32": 2e-3, "cuda.split_tf32": 1e-6}
"""Of the largest element: 2 ** -10 for each factor and chance, 2 ** -20."""


def products(option: str, case: int, dtype: str = "float32") -> tuple[Template, list[np.ndarray], np.ndarray]:
    """A case with its ways on tensor cores, worth it or not."""
    with PassContext(config={option: True}):
        template, arrays, expected = made(case, dtype)
        wanted = 1 if option == "cuda.allow_tf32" else 3
        able = [c for c in template.candidates if isinstance(c.tile, MmaTile) and c.tile.products == wanted]
        vars(template)["candidates"] = tuple(able)
        return template, arrays, expected


def dense(rows: int, columns: int, depth: int) -> Template:
    shapes = {"x": (rows, depth), "w": (columns, depth)}
    return template_of(call_op("nn.dense", *(var(n, shape=s, dtype="float32") for n, s in shapes.items())), MACHINE)


def test_factors_are_rounded_where_that_is_predicted_to_save_enough() -> None:
    """A small product is bound by launches and latency; of a large one tensor cores do the arithmetic."""
    with PassContext(config={"cuda.allow_tf32": True}):
        small, (large, *_) = dense(64, 64, 64).candidates, dense(2048, 2048, 2048).candidates
    assert isinstance(large.tile, MmaTile) and large.tile.products == 1
    assert getattr(small[0].tile, "products", 0) != 1
    (reason,) = {c.why_not for c in small if isinstance(c.tile, MmaTile) and c.tile.products == 1}
    assert re.fullmatch(r"[\d,]+ cycles predicted, [\d,]+ without rounding factors: too few are saved", reason)


def test_a_small_product_in_float32_takes_what_is_predicted_to_be_faster() -> None:
    with PassContext(config={"cuda.allow_tf32": True}):
        found = dense(64, 64, 64).candidates
    exact = [c for c in found if getattr(c.tile, "products", 0) != 1 and not c.why_not]
    assert {getattr(c.tile, "products", 0) for c in exact} == {0, 3}
    assert round(found[0].cycles, 6) == round(min(c.cycles for c in exact), 6)


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


HALF_PRODUCTS = [*range(11), 14, 15, 16, 17, 18, 19]
"""All cases but depthwise ones."""
FEW = (1, 2, 8, 16)
"""Of them, that the host's compiler gets."""


def halves(case: int) -> tuple[Template, list[Choice], list[np.ndarray], np.ndarray]:
    """A case in float16, what is taken and one way of each number of stages."""
    template, arrays, expected = made(case, "float16")
    rng = np.random.default_rng(case)
    by_stages: dict[int, list[Choice]] = {}
    for choice in template.candidates:
        assert isinstance(choice.tile, MmaTile) and choice.tile.kind == "float16"
        by_stages.setdefault(choice.tile.copied, []).append(choice)
    others = [ways[rng.integers(len(ways))] for ways in by_stages.values()]
    return template, [template.choice, *others], arrays, expected


@pytest.mark.parametrize("case", HALF_PRODUCTS)
def test_float16_needs_no_permission(case: int) -> None:
    """Products are exact, sums float32: the result's own rounding is all that is to be seen."""
    template, choices, arrays, expected = halves(case)
    for choice in choices:
        (result,) = run_kernel(kernel_of(template, choice), *arrays, check_races=True)
        assert np.abs(result - expected).max() < 2**-11 * np.abs(expected).max(), choice


@needs_compiler
@pytest.mark.parametrize("part", range(PARTS))
def test_float16_in_every_order_of_threads(part: int) -> None:
    made = [(t, choice, a, e) for t, ways, a, e in map(halves, HALF_PRODUCTS if ON_GPU else FEW) for choice in ways[1:]]
    found = [(kernel_of(t, choice), a, e) for t, choice, a, e in made[part::PARTS]]
    kernels = HostKernels(host_image(*(emit_cuda(*bind_plain(kernel)) for kernel, _, _ in found)))
    each = Gathered()
    for number, (kernel, arrays, expected) in enumerate(found):
        for order in ORDERS:
            with each.case(f"{number} {kernel.name}, {order}"):
                error = np.abs(simulated(kernels, number, kernel, arrays, order) - expected).max()
                assert error < 2**-11 * np.abs(expected).max(), error / np.abs(expected).max()
    each.end()


@pytest.mark.parametrize(
    ("rows", "columns", "depth"), [(1, 1, 1), (15, 17, 31), (16, 16, 64), (33, 63, 65), (129, 8, 8)]
)
def test_float16_around_the_edges_of_tiles(rows: int, columns: int, depth: int) -> None:
    rng = np.random.default_rng(rows)
    a, b = (rng.normal(size=(n, depth)).astype("float16") for n in (rows, columns))
    call = call_op("nn.dense", *(var(n, shape=x.shape, dtype="float16") for n, x in (("a", a), ("b", b))))
    template = template_of(call, MACHINE)
    expected = a.astype("float64") @ b.T.astype("float64")
    for number in rng.integers(0, len(template.candidates), 4):
        (result,) = run_kernel(kernel_of(template, template.candidates[number]), a, b, check_races=True)
        limit = 2**-11 * np.abs(expected) + 2**-22 * (np.abs(a.astype("float64")) @ np.abs(b.T))
        assert (np.abs(result - expected) <= limit).all(), template.candidates[number]


def narrow_dense(dtype: str, relu: bool = False) -> Function:
    """A product of float32 whose factors are cast from a shorter dtype, and so rounded to it."""
    x, w = (var(name, shape=(40, 48), dtype=dtype) for name in "xw")
    wide = [call_op("cast", v, dtype="float32") for v in (x, w)]
    if relu:
        wide[0] = call_op("cast", call_op("cast", call_op("nn.relu", wide[0]), dtype=dtype), dtype="float32")
    return function(call_op("cast", call_op("nn.dense", *wide), dtype=dtype), [x, w])


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_is_cast_from_short_floats_is_multiplied_as_such(dtype: str, relu: bool) -> None:
    """By copies where nothing but the cast stands before the product."""
    group, rng = narrow_dense(dtype, relu), np.random.default_rng(4)
    kernel = simplify(lowering(group, "kernel", MACHINE, "cuda").kernel)
    verify_kernel(kernel)
    text = str(kernel)
    assert f"mma {dtype} sums" in text and ("commit copies" in text) != relu
    a, b = (rng.normal(size=(40, 48)).astype(np.dtype(dtype)) for _ in range(2))
    (result,) = run_kernel(kernel, a, b, check_races=True)
    expected = np.maximum(a.astype("float64"), 0 if relu else -np.inf) @ b.astype("float64").T
    step = 2.0 ** (-11 if dtype == "float16" else -8)
    assert np.abs(result.astype("float64") - expected).max() <= step * np.abs(expected).max()


def test_factors_of_two_dtypes_stay_float32() -> None:
    x, w = var("x", shape=(40, 48), dtype="float32"), var("w", shape=(40, 48), dtype="float16")
    group = function(call_op("nn.dense", x, call_op("cast", w, dtype="float32")), [x, w])
    assert "mma" not in str(lowering(group, "kernel", MACHINE, "cuda").kernel)


def test_older_gpus_multiply_float16_in_float32() -> None:
    x, w = (var(name, shape=(40, 48), dtype="float16") for name in "xw")
    template = template_of(call_op("nn.dense", x, w), gpu_model("sm_75"))
    assert not isinstance(template.choice.tile, MmaTile)


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_instructions_of_float16(arch: str) -> None:
    """HMMA, LDSM and LDGSTS of 16 bytes; nothing is spilled, whichever tile is taken."""
    x, w = (var(name, shape=(512, 512), dtype="float16") for name in "xw")
    for op in ("nn.dense", "nn.matmul"):
        template = template_of(call_op(op, x, w), gpu_model(arch))
        largest = max(template.candidates, key=lambda c: c.tile.rows * c.tile.blocks * isinstance(c.tile, MmaTile))
        for choice in (template.choice, largest):
            source = emit_cuda(*bind_plain(kernel_of(template, choice)))
            assert compile_cubin(source, arch).spills == 0
        warps = min(
            (c for c in template.candidates if type(c.tile) is MmaTile and not c.why_not), key=lambda c: c.cycles
        )
        text = ptx(emit_cuda(*bind_plain(kernel_of(template, warps))), arch)
        assert "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" in text
        assert ("ldmatrix.sync.aligned.m8n8.x4.trans" in text) == (op == "nn.matmul")
        assert "cp.async.cg.shared.global" in text and "cvt.f32.f16" not in text


# --- more shared memory than a function has by itself ---------------------------------------------------------------


def large(template: Template) -> Choice:
    """The choice with the most bytes of shared memory."""
    return max(template.candidates, key=lambda c: shared_of(template, c))


def shared_of(template: Template, choice: Choice) -> int:
    assert isinstance(choice.tile, BlockTile)
    return choice.tile.shared_bytes(2 if "float16" in choice.scheme else 4)


@needs_compiler
@pytest.mark.parametrize(("dtype", "option"), [("float16", "none"), ("float32", "cuda.allow_tf32")])
def test_tiles_may_need_all_the_shared_memory_that_a_block_may_have(dtype: str, option: str) -> None:
    with PassContext(config={} if option == "none" else {option: True}):
        template, arrays, expected = made(2, dtype)
        choice = large(template)
        kernel = kernel_of(template, choice)
    (launch,) = map(launch_of, bind_plain(kernel))
    assert 48 * 1024 < launch.shared <= shared_of(template, choice) <= MACHINE.block_shared
    source = emit_cuda(*bind_plain(kernel))
    assert "extern __shared__ __align__(16) unsigned char dynamic[];" in source
    kernels = HostKernels(host_image(source, source))
    result = simulated(kernels, 0, kernel, arrays, "reverse")
    assert np.abs(result - expected).max() < 2e-3 * np.abs(expected).max()


def test_no_gpu_is_given_more_than_it_has() -> None:
    x, w = (var(name, shape=(512, 512), dtype="float16") for name in "xw")
    for arch in ("sm_80", "sm_86", "sm_90"):
        gpu = gpu_model(arch)
        template = template_of(call_op("nn.dense", x, w), gpu)
        assert 48 * 1024 < shared_of(template, large(template)) <= gpu.block_shared


def test_strict_float32_stays_off_tensor_cores() -> None:
    assert not isinstance(made(0)[0].choice.tile, MmaTile)


@needs_compiler
@pytest.mark.parametrize("option", LIMITS)
def test_the_cuda_c_gives_the_right_numbers(option: str) -> None:
    found = [(kernel_of(t, t.choice), a, e) for t, a, e in (products(option, case) for case in PRODUCTS)]
    kernels = HostKernels(host_image(*(emit_cuda(*bind_plain(kernel)) for kernel, _, _ in found)))
    each = Gathered()
    for number, (kernel, arrays, expected) in enumerate(found):
        with each.case(f"{option} {PRODUCTS[number]}"):
            error = np.abs(simulated(kernels, number, kernel, arrays, "reverse") - expected).max()
            assert error < LIMITS[option] * np.abs(expected).max(), error / np.abs(expected).max()
    each.end()


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_no_register_is_spilled(arch: str) -> None:
    for option in LIMITS:
        template, _, _ = products(option, 2)
        source = emit_cuda(*bind_plain(kernel_of(template, template.choice)))
        assert "mma.sync.aligned.m16n8k8" in source
        assert compile_cubin(source, arch).spills == 0


@needs_nvrtc
def test_options_reach_the_kernels_and_their_cache() -> None:
    x, w = (var(name, shape=(1024, 1024), dtype="float32") for name in "xw")  # large enough to gain by it
    module = Module({"main": function(call_op("nn.matmul", x, w), [x, w])})
    texts = []
    for config in ({}, {"cuda.allow_tf32": True}, {}):
        with PassContext(config=config):
            library = build(module, "cuda")
        texts.append(library.report.kernel(next(iter(library.report.groups))).text("cuda"))
    assert ["mma_tf32" in text for text in texts] == [False, True, False]


# --- statements -----------------------------------------------------------------------------------------------------


def matrices(count: int, transposed: bool, start: int = 0) -> Kernel:
    """Words of a warp's matrices, which lie in 32 rows of 24 elements."""
    given, out = Buffer("x", (32, 24), "float16"), Buffer("out", (32, count), "uint32")
    rows, words = Buffer("rows", (32, 24), "float16", "shared"), Buffer("words", (count,), "uint32", "local")

    def thread(t: LoopExpr) -> Stmt:
        fill = loop(24, lambda c: Store(rows, (t, c), given[t, c]))
        get = Ldmatrix(words, (), Load(rows, (t, const(start, "int64"))), transposed)
        return Alloc(words, seq(fill, Barrier(), get, loop(count, lambda n: Store(out, (t, n), words[n]))))

    return Kernel("k", (given, out), Alloc(rows, loop(32, thread, LoopKind.THREAD_X)))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [2, 4])
def test_matrices_are_spread_as_the_ptx_manual_has_it(count: int, transposed: bool) -> None:
    kernel = matrices(count, transposed, 8)
    verify_kernel(kernel)
    assert f"matrices{' transposed' * transposed} words[] = rows[" in str(kernel)
    x = np.random.default_rng(count).normal(size=(32, 24)).astype("float16")
    (words,) = run_kernel(kernel, x)
    for t in range(32):
        for m in range(count):
            matrix = x[8 * m : 8 * m + 8, 8:16]
            pair = (matrix.T if transposed else matrix)[t // 4, t % 4 * 2 : t % 4 * 2 + 2]
            assert (words[t, m : m + 1].view("float16") == pair).all()


@needs_compiler
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [2, 4])
def test_the_cuda_c_spreads_them_alike(count: int, transposed: bool) -> None:
    kernel, x = matrices(count, transposed, 8), np.random.default_rng(count).normal(size=(32, 24)).astype("float16")
    kernels = HostKernels(host_image(emit_cuda(kernel), emit_cuda(kernel)))
    assert (simulated(kernels, 0, kernel, [x], "reverse") == run_kernel(kernel, x)[0]).all()


def test_rows_of_matrices_lie_on_16_bytes() -> None:
    kernel = matrices(4, False, 4)
    verify_kernel(kernel)
    with pytest.raises(CompilerError, match="a row of matrices in rows that is not on 16 bytes"):
        run_kernel(kernel, np.ones((32, 24), "float16"))


def test_rows_of_matrices_end_in_their_buffer() -> None:
    with pytest.raises(CompilerError, match="leaves dimension 1 of rows, 24 long"):
        verify_kernel(matrices(4, False, 17))


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
