"""``python -m benchmarks cuda-estimate``: machine code is read right, and loops are counted right."""

from __future__ import annotations

import math

import pytest
from nvrtc import needs_nvrtc

from benchmarks import cuda_estimate
from benchmarks.cuda_estimate import Code, bound, disassembler, estimate, machine_code, work
from minitvm.codegen.cuda.backend import compile_cubin
from minitvm.codegen.cuda.bind import bind_plain
from minitvm.codegen.cuda.emit import emit_cuda
from minitvm.codegen.cuda.machine import gpu_model
from minitvm.codegen.cuda.templates.launches import launches
from minitvm.codegen.cuda.templates.product import GpuProduct, Operand
from minitvm.codegen.cuda.templates.tile import BlockTile, MmaTile, WgmmaTile
from minitvm.errors import CompilerError
from minitvm.ir.loop import Buffer, Kernel, Store

needs_nvdisasm = pytest.mark.skipif(disassembler() is None, reason="nvdisasm is not installed")
SIZE = 256


def product(tile: BlockTile, dtype: str = "float32") -> Kernel:
    """256 x 256 by 256 x 256, in one launch."""
    a, b = (Buffer(name, (SIZE, SIZE), dtype) for name in ("x", "w"))
    out = Buffer("y", (SIZE, SIZE), "float32")
    made = GpuProduct(
        1,
        SIZE,
        Operand.of(a, False),
        Operand.of(b, True),
        "float32",
        lambda p, i, j, value: Store(out, (i, j), value),
        4,
    )
    (kernel,) = bind_plain(Kernel("k", (a, b, out), launches(tile, gpu_model("sm_90"), made)))
    return kernel


def test_loops_are_counted_as_a_warp_goes_through_them() -> None:
    """A thread of 8 x 8 sums multiplies 64 times an element of the depth, of which it gets 16 factors."""
    found = work(product(BlockTile(128, 128, 16, 8, 8, copied=3)))
    assert (found.fma, found.mma, found.ahead) == (64 * SIZE, 0, 2)
    assert found.pieces == SIZE // 16
    read = SIZE * 2 * 2 * 2  # two vectors of either factor, 2 cycles each as lanes agree
    stored = (SIZE // 16 + 2) * 2 * 2 * 4  # of either factor two vectors a piece; the first two pieces come before
    assert found.shared == read + stored


def test_products_of_tensor_cores_are_a_warps() -> None:
    found = work(product(MmaTile(64, 64, 16, 32, 32, products=1)))
    assert (found.fma, found.mma, found.depth) == (0, (32 // 16) * (32 // 8) * SIZE // 8, 8)


def test_a_warpgroups_product_has_pieces_of_eight_columns() -> None:
    """Each of its four warps has 16 of 64 rows, of all 64 columns, and begins them by one instruction."""
    tile = WgmmaTile(64, 64, 64, 64, 64, kind="float16", copied=3)
    found = work(product(tile, "float16"))
    assert (found.multiplies, found.mma, found.depth) == (SIZE // 16, 64 // 8 * SIZE // 16, 16)
    assert found.by_groups and not work(product(MmaTile(64, 64, 16, 32, 32))).by_groups
    code = Code(("LDS", "HGMMA.64x64x16.F32", "HGMMA.64x64x16.F32", "BRA"), ((0, 3),), 64)
    assert code.slots(4) == 4 + 4


def test_a_loop_is_issued_as_often_as_it_has_to_multiply() -> None:
    code = Code(("S2R", "LDS", "FFMA", "FFMA", "BRA", "STG"), ((1, 4),), 32)
    assert code.slots(2) == 6
    assert code.slots(20) == 6 + 9 * 4
    nested = Code(("S2R", "IADD3", "LDS", "FFMA", "BRA", "BRA"), ((1, 5), (2, 4)), 32)
    assert nested.slots(10) == 6 + 9 * 3


def test_more_of_an_sm_takes_longer_by_what_it_has_most_of() -> None:
    tile = BlockTile(32, 32, 16, 4, 4, copied=3)
    machine, kernel = gpu_model("sm_90"), product(tile)
    few, many = (bound(kernel, Code(("FFMA",) * n, (), 64), machine, 1e5) for n in (100, 1_000_000))
    assert few.by == "latency" and many.by == "issue" and many.seconds > few.seconds
    assert bound(kernel, Code(("FFMA",), (), 64), machine, 1e9).by == "memory"


@needs_nvrtc
@needs_nvdisasm
def test_machine_code_has_functions_loops_and_registers() -> None:
    source = """
    extern "C" __global__ void one(const float *x, float *y, int n) {
        float sum = 0;
        #pragma unroll 1
        for (int i = 0; i < n; ++i) sum = fmaf(x[i], x[i], sum);
        y[threadIdx.x] = sum;
    }
    extern "C" __global__ void two(float *y) { y[threadIdx.x] = 1; }
    """
    found = machine_code(compile_cubin(source).image)
    assert {*found} == {"one", "two"}
    ((first, last),) = found["one"].loops
    assert "FFMA" in found["one"].instructions[first : last + 1] and not found["two"].loops
    assert found["one"].slots(100) == len(found["one"].instructions) + 99 * (last + 1 - first)
    assert found["two"].instructions[-2:] == ("EXIT", "BRA") and 2 <= found["two"].registers <= 16


@needs_nvrtc
@needs_nvdisasm
def test_warpgroups_multiply_in_the_machine_code() -> None:
    """HGMMA as often as the loops say, which are written out here, and no other products."""
    kernel = product(WgmmaTile(64, 64, 64, 64, 64, kind="float16", copied=3), "float16")
    (code,) = machine_code(compile_cubin(emit_cuda(kernel)).image).values()
    found = [name for name in code.instructions if name.startswith("HGMMA.64x64x16.F32")]
    assert not code.loops and len(found) == work(kernel).multiplies == SIZE // 16
    assert not any(name.startswith(("HMMA", "FFMA")) for name in code.instructions)


@needs_nvrtc
@needs_nvdisasm
def test_slices_are_issued_by_more_warps() -> None:
    """The same product of few tiles: half of the multiply-adds a thread, twice the warps, and what they meet for."""
    machine = gpu_model("sm_90")
    alone, halves = (product(BlockTile(32, 32, 32, 4, 4, copied=3, slices=n)) for n in (1, 2))
    assert work(halves).fma * 2 == work(alone).fma
    codes = [next(iter(machine_code(compile_cubin(emit_cuda(k)).image).values())) for k in (alone, halves)]
    one, two = (bound(k, code, machine, 1e5).cycles for k, code in zip((alone, halves), codes, strict=True))
    assert two["issue"] < one["issue"] and two["latency"] > one["latency"]


@needs_nvrtc
@needs_nvdisasm
def test_a_network_has_an_estimate() -> None:
    found = estimate("small_residual", 1, "float32")
    assert found.launches == len(found.kernels) + found.second > 3
    assert math.isclose(found.seconds, sum(found.bounds.values()), rel_tol=1e-9)
    assert found.seconds > found.launches * 1.5e-6 and math.isnan(found.floor)
    assert found.row().startswith("| small_residual b1 float32 |")


def test_without_a_disassembler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_estimate, "disassembler", lambda: None)
    with pytest.raises(CompilerError, match="nvdisasm is not installed") as caught:
        machine_code(b"")
    assert caught.value.hint == "pip install nvidia-cuda-nvdisasm"
