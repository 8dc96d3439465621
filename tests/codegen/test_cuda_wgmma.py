"""Products of warpgroups: sums, swizzled rows, what is late, and what has to be said before."""

from __future__ import annotations

import re

import numpy as np
import pytest
from nvrtc import needs_nvrtc
from test_cuda_copies import template_of
from test_cuda_templates import kernel_of, simulated

from minitvm.codegen.cuda.backend import compile_cubin
from minitvm.codegen.cuda.bind import bind_plain, launch_of
from minitvm.codegen.cuda.emit import emit_cuda, function_name
from minitvm.codegen.cuda.machine import gpu_model
from minitvm.codegen.cuda.templates.tile import WgmmaTile
from minitvm.codegen.problem import Choice, Template
from minitvm.errors import CompilerError
from minitvm.ir.builder import call_op, var
from minitvm.ir.loop import Alloc, Buffer, Const, Kernel, LoopKind, Stmt, Store, Wgmma, WgmmaSync, loop, nest, seq
from minitvm.ir.loop.interp import run_kernel
from minitvm.ir.loop.verify import verify_kernel
from simulated_gpu import ORDERS, DeviceFault, HostKernels, host_image
from tests.compilers import ON_GPU, needs_compiler
from tests.gathered import Gathered

MACHINE = gpu_model("sm_90")
SHAPES = [(64, 64, 64, True), (70, 200, 136, True), (129, 72, 64, False), (33, 264, 200, False)]
"""Rows, columns, depth; whether columns have their depth side by side."""


def dense(rows: int, columns: int, depth: int, along: bool, dtype: str = "float16") -> Template:
    shapes = ((rows, depth), (columns, depth) if along else (depth, columns))
    a, b = (var(name, shape=shape, dtype=dtype) for name, shape in zip("ab", shapes, strict=True))
    return template_of(call_op("nn.matmul", a, b, transpose_b=along), MACHINE)


def groups(template: Template) -> list[Choice]:
    """Its ways by warpgroups, one of each tile."""
    found = {
        (c.tile.rows, c.tile.blocks, c.tile.split): c for c in template.candidates if isinstance(c.tile, WgmmaTile)
    }
    return list(found.values())


def operands(template: Template, seed: int = 0) -> tuple[list[np.ndarray], np.ndarray]:
    rng = np.random.default_rng(seed)
    a, b = (rng.normal(size=buffer.shape).astype("float16") for buffer in template.problem.inputs)
    wide = b.astype("float64")
    return [a, b], a.astype("float64") @ (wide.T if b.shape[-1] == a.shape[-1] else wide)


def off(result: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(result - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("shape", SHAPES)
def test_every_tile_gives_the_right_numbers(shape: tuple[int, int, int, bool]) -> None:
    template = dense(*shape)
    arrays, expected = operands(template)
    found = groups(template)
    assert {c.tile.split for c in found} >= {1} and len(found) >= 5
    for choice in found:
        (result,) = run_kernel(kernel_of(template, choice), *arrays, check_races=True)
        assert off(result, expected) < 2**-11, choice


@needs_compiler
def test_every_tile_in_every_order_of_threads() -> None:
    made = [(t, choice) for t in (dense(*shape) for shape in SHAPES[1:3]) for choice in groups(t)[::2]]
    kernels = [kernel_of(template, choice) for template, choice in made]
    image, each = HostKernels(host_image(*(emit_cuda(*bind_plain(kernel)) for kernel in kernels))), Gathered()
    for number, ((template, choice), kernel) in enumerate(zip(made, kernels, strict=True)):
        arrays, expected = operands(template)
        for order in ORDERS:
            with each.case(f"{choice}, {order}"):
                found = off(simulated(image, number, kernel, arrays, order), expected)
                assert found < 2**-11, found
    each.end()


@needs_nvrtc
def test_no_register_is_spilled_and_nothing_is_serialised() -> None:
    """ptxas waits after every product where it cannot tell that sums stay alone, and says so."""
    for along in (True, False):
        template = dense(4096, 3072, 768, along)
        for choice in groups(template)[along::4]:
            code = compile_cubin(emit_cuda(*bind_plain(kernel_of(template, choice))))
            assert code.spills == 0 and "wgmma" not in code.log, (choice, code.log)


def test_other_gpus_have_none() -> None:
    for arch in ("sm_80", "sm_89", "sm_100"):
        template = template_of(
            call_op("nn.dense", *(var(n, shape=(64, 64), dtype="float16") for n in "ab")), gpu_model(arch)
        )
        assert not any(isinstance(choice.tile, WgmmaTile) for choice in template.candidates)


# --- what is wrong ----------------------------------------------------------------------------------------------------

PLANTED = [
    (r"wgmma_shared\(\);", "", "without fence.proxy.async since"),
    (r"wgmma_wait<1>\(\);", "", "wrong"),
    (r"wgmma_wait<0>\(\);", "", "nan"),
    (r"&left\[swizzled<64>\((.*?)\)\], &", r"&left[\1], &", "wrong"),
    (r"cp_async_wait<1>\(\);", "cp_async_wait<2>();", "without fence.proxy.async since|nan"),
    (r"&left\[(.*?)thread >> 7", r"&left[\1thread >> 6", "differ in a warpgroup"),
]


@needs_compiler
@pytest.mark.skipif(ON_GPU, reason="a GPU does not say what is wrong")
@pytest.mark.parametrize(("pattern", "instead", "said"), PLANTED)
def test_planted_mistakes_are_seen(pattern: str, instead: str, said: str) -> None:
    template = dense(256, 64, 320, True)
    choice = next(c for c in groups(template) if c.tile.rows == 128 and c.tile.split == 1)
    kernel = kernel_of(template, Choice(choice.scheme, type(choice.tile)(**{**vars(choice.tile), "copied": 4}), 0.0))
    arrays, expected = operands(template)
    source = emit_cuda(*bind_plain(kernel))
    broken = re.sub(pattern, instead, source)
    assert broken != source
    try:
        found = off(simulated_alone(broken, kernel, arrays), expected)
    except DeviceFault as fault:
        assert re.search(said, str(fault)), fault
    else:
        assert re.search(said, "nan" if np.isnan(found) else "wrong" if found > 0.1 else "right"), found


def simulated_alone(source: str, kernel: Kernel, arrays: list[np.ndarray]) -> np.ndarray:
    (part,), out = bind_plain(kernel), np.full(kernel.outputs[0].shape, 77, "float16")
    launch = launch_of(part)
    image = HostKernels(host_image(source))
    image.launch(
        function_name(part), launch.grid, launch.block, [*arrays, out], "random", 0, launch.shared, launch.counters
    )
    return out


def around(body: Stmt, threads: int, memory: Buffer, sums: Buffer) -> Kernel:
    out = Buffer("out", (1,), "float32")
    zero = nest(sums.shape, lambda *at: Store(sums, at, Const(0.0, "float32")), LoopKind.UNROLLED)
    first = Store(memory, (Const(0),) * 2, Const(0.0, memory.dtype))
    inner = Alloc(sums, seq(zero, first, body, Store(out, (Const(0),), Const(0.0, "float32"))))
    return Kernel("wrong", (out,), Alloc(memory, loop(threads, lambda t: inner, LoopKind.THREAD_X)), results=1)


def refused(memory: Buffer, sums: Buffer, threads: int = 128) -> str:
    first = memory[0, 0]
    with pytest.raises(CompilerError) as raised:
        verify_kernel(around(Wgmma(sums, (Const(0),), first, first), threads, memory, sums))
    return raised.value.message


def test_what_the_verifier_refuses() -> None:
    memory = Buffer("memory", (64, 64), "float16", "shared", swizzled=True)
    sums = Buffer("sums", (1, 8, 4), "float32", "local")
    verify_kernel(around(WgmmaSync("wait"), 128, memory, sums))
    assert "128 or more" in refused(memory, sums, 96)
    assert "swizzled shared memory" in refused(Buffer("memory", (64, 64), "float16", "shared"), sums)
    assert "rows of 128 bytes" in refused(Buffer("memory", (64, 32), "float16", "shared", swizzled=True), sums)
    assert "at most 32 pieces" in refused(memory, Buffer("sums", (1, 33, 4), "float32", "local"))
