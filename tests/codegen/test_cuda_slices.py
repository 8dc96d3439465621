"""Products whose blocks multiply slices of every piece's depth: right in every order of threads, without bank
conflicts, more warps for the same work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_cuda_copies import template_of
from test_cuda_templates import CASES, MACHINE, NHWC, kernel_of, made, simulated

from benchmarks.cuda_static import accesses
from minitvm.codegen.cuda.bind import bind_plain
from minitvm.codegen.cuda.emit import emit_cuda
from minitvm.codegen.cuda.templates.dense import GpuTemplate
from minitvm.codegen.cuda.templates.extent import Extent, choices
from minitvm.codegen.cuda.templates.tile import SLICED, BlockTile
from minitvm.ir.builder import call_op, var
from minitvm.ir.loop import Kernel
from minitvm.ir.loop.interp import run_kernel
from simulated_gpu import ORDERS, HostKernels, host_image
from tests.compilers import needs_compiler

TILES = {
    1: BlockTile(64, 32, 16, 8, 4, slices=4),  # both factors by lines, through registers
    3: BlockTile(24, 32, 16, 3, 4, slices=2, copied=2),
    8: BlockTile(56, 32, 32, 7, 4, slices=4, copied=3),
    9: BlockTile(40, 64, 32, 5, 8, slices=2, copied=3, split=2),
    16: BlockTile(16, 32, 16, 2, 8, slices=4, copied=2),
}
"""Of cases: products, convolutions, one that is several side by side; more rows and columns than there are."""


def sliced(case: int) -> tuple[Kernel, list[np.ndarray], np.ndarray]:
    template, arrays, expected = made(case)
    assert isinstance(template, GpuTemplate)
    return kernel_of(template, replace(template.candidates[0], tile=TILES[case])), arrays, expected


@needs_compiler
def test_slices_are_added_right_in_every_order_of_threads() -> None:
    found = [(case, *sliced(case)) for case in TILES]
    kernels = HostKernels(host_image(*(emit_cuda(*bind_plain(kernel)) for _, kernel, _, _ in found)))
    for number, (case, kernel, arrays, expected) in enumerate(found):
        limit = 1e-6 * np.abs(expected).max()
        (interpreted,) = run_kernel(kernel, *arrays, check_races=True)
        assert np.abs(interpreted - expected).max() < limit, CASES[case]
        first, *others = [simulated(kernels, number, kernel, arrays, order) for order in ORDERS]
        assert all(np.array_equal(first, other) for other in others), CASES[case]
        assert np.abs(first - expected).max() < limit, CASES[case]


@pytest.mark.parametrize("tile", TILES.values(), ids=str)
def test_sums_meet_in_shared_memory_without_bank_conflicts(tile: BlockTile) -> None:
    x, w = var("x", shape=(1, 14, 14, 64), dtype="float32"), var("w", shape=(3, 3, 64, 128), dtype="float32")
    template = template_of(call_op("nn.conv2d", x, w, padding=(1, 1, 1, 1), **NHWC), MACHINE)
    kernel = kernel_of(template, replace(template.candidates[0], tile=tile))
    found = [a for part in bind_plain(kernel) for a in accesses(part) if a.is_shared]
    meeting = [a for a in found if a.buffer.name == "slices"]
    assert {a.what for a in meeting} == {"load", "store"} and all(a.width == 16 for a in meeting)
    assert not [a for a in found if a.has_conflicts]


def test_a_product_of_few_tiles_is_taken_in_slices() -> None:
    """Convolutions of images of 7, 14 and 56 pixels: a block's groups stand in for blocks that are not there."""
    for rows, columns, depth in ((49, 512, 4608), (196, 256, 2304), (3136, 64, 576)):
        extent = Extent(1, rows, columns, depth, 4, 4 * depth * (rows + columns))
        best = min((c for c in choices(extent, MACHINE, SLICED) if not c.why_not), key=lambda c: c.cycles)
        alone = [replace(tile, slices=1) for tile in SLICED]
        others = min((c for c in choices(extent, MACHINE, alone) if not c.why_not), key=lambda c: c.cycles)
        assert isinstance(best.tile, BlockTile) and best.tile.slices > 1 and best.cycles < others.cycles


def test_no_block_needs_more_registers_than_there_are() -> None:
    for tile in SLICED:
        assert MACHINE.occupancy(tile.threads, tile.registers, 0), tile
        down, across = tile.warp
        assert down * across == 32 and tile.down % down == tile.across % across == 0, tile
