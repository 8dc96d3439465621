"""The depth of a product in parts, one launch: blocks of a cluster, or the last one to arrive, add them in order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_cuda_templates import CASES, MACHINE, kernel_of, made, simulated

from minitvm.codegen.cuda.bind import bind_plain, launch_of
from minitvm.codegen.cuda.emit import emit_cuda
from minitvm.codegen.cuda.machine import gpu_model
from minitvm.codegen.cuda.templates.dense import GpuTemplate
from minitvm.codegen.cuda.templates.extent import even_parts
from minitvm.codegen.cuda.templates.tile import BlockTile, MmaTile
from minitvm.ir.loop import Kernel
from minitvm.ir.loop.interp import run_kernel
from minitvm.passes.manager import PassContext
from simulated_gpu import ORDERS, HostKernels, host_image
from simulated_gpu.host import DeviceFault
from tests.compilers import needs_compiler, only_simulated

IN_PARTS = [0, 4, 8, 16]
"""Cases: a product, a batch of short ones, a convolution, one that is several products side by side."""


def kernel_in_parts(case: int, tensor: bool, clusters: bool) -> tuple[Kernel, list[np.ndarray], np.ndarray]:
    """A case with its depth in up to four parts, on tensor cores or not."""
    with PassContext(config={"cuda.split_tf32": True} if tensor else {}):
        template, arrays, expected = made(case)
        able = [c for c in template.candidates if isinstance(c.tile, MmaTile) == tensor]
    assert isinstance(template, GpuTemplate)
    for choice in able:
        assert isinstance(choice.tile, BlockTile)
        parts = even_parts(template.product.extent.whole_pieces(choice.tile), 4)
        if parts > 1:
            vars(template)["machine"] = MACHINE if clusters else OLD
            return kernel_of(template, replace(choice, tile=replace(choice.tile, split=parts))), arrays, expected
    raise AssertionError(f"nothing of {CASES[case]} can be in parts")


OLD = gpu_model("sm_80")
"""Without clusters."""


def test_no_cluster_is_launched_where_there_are_none() -> None:
    for clusters in (True, False):
        kernel, _, _ = kernel_in_parts(0, False, clusters)
        assert ("__cluster_dims__" in emit_cuda(*bind_plain(kernel))) == clusters
    tile = BlockTile(64, 64, split=4)
    assert tile.is_cluster(MACHINE, 8) and not tile.is_cluster(OLD, 8)


@needs_compiler
@pytest.mark.parametrize(("tensor", "clusters"), [(False, True), (True, True), (False, False), (True, False)])
def test_every_order_of_blocks_gives_the_same_bits(tensor: bool, clusters: bool) -> None:
    found = [(kernel_in_parts(case, tensor, clusters), case) for case in IN_PARTS]
    kernels = HostKernels(host_image(*(emit_cuda(*bind_plain(kernel)) for (kernel, _, _), _ in found)))
    for number, ((kernel, arrays, expected), case) in enumerate(found):
        (launch,) = map(launch_of, bind_plain(kernel))
        assert bool(launch.counters) != clusters
        first, *others = [simulated(kernels, number, kernel, arrays, order) for order in ORDERS]
        assert all(np.array_equal(first, other) for other in others), CASES[case]
        assert np.abs(first - expected).max() < 1e-6 * np.abs(expected).max()
        (interpreted,) = run_kernel(kernel, *arrays, check_races=True)
        assert np.abs(first - interpreted).max() < 1e-6 * np.abs(expected).max()


FAULTS = {
    "no fence before": ("        __threadfence();\n        last", "        last", "has met no __threadfence since"),
    "no fence behind": (
        "        __threadfence();  //",
        "        //",
        "no __threadfence behind it before __syncthreads_or",
    ),
    "no barrier": ("    __syncthreads();  //", "    //", "threads of the block store after one of them has said"),
    "not reset": ("if (last) *counter = 0;", "", "counters of arrivals are not 0 again"),
    "one too few": ("== parts - 1", "== parts - 2", "counters of arrivals are not 0 again"),
}


@needs_compiler
@only_simulated
@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_gpu_does_not_promise_is_a_fault(fault: str) -> None:
    was, now, message = FAULTS[fault]
    kernel, arrays, _ = kernel_in_parts(4, False, False)
    source = emit_cuda(*bind_plain(kernel))
    assert source.count(was) == 1
    with pytest.raises(DeviceFault, match=message):
        simulated(HostKernels(host_image("", source.replace(was, now))), 1, kernel, arrays, "forward")


@needs_compiler
@only_simulated
def test_parts_that_a_cluster_does_not_wait_for_are_missing() -> None:
    kernel, arrays, expected = kernel_in_parts(4, False, True)
    source = emit_cuda(*bind_plain(kernel))
    at, call = source.index("__global__"), "    cluster_barrier();\n"
    assert source[at:].count(call) == 1
    image = host_image("", source[:at] + source[at:].replace(call, ""))
    found = simulated(HostKernels(image), 1, kernel, arrays, "forward")
    assert np.abs(found - expected).max() > np.abs(expected).max()
    half = source[at:].replace(call, "    if (blockIdx.x % 2) cluster_barrier();\n")
    with pytest.raises(DeviceFault, match=r"waits at cluster_barrier .* for thread .*, which has ended"):
        simulated(HostKernels(host_image("", source[:at] + half)), 1, kernel, arrays, "forward")


def test_clusters_run_where_they_leave_none_over() -> None:
    """Of 5 an H200 runs 23 at a time with one block on each SM, of 8 it runs 15: a 24th, a 16th takes as long again."""
    h200 = gpu_model("sm_90")
    assert [h200.runs_clusters(count, 5) for count in (23, 24, 26, 46, 52)] == [True, False, False, True, False]
    assert [h200.runs_clusters(count, 8) for count in (15, 16, 30, 32)] == [True, False, True, False]
    assert h200.runs_clusters(66, 2) and not gpu_model("sm_80").runs_clusters(1, 2)
