"""No bank conflicts and no scattered accesses in the main loops of networks' kernels, by their addresses alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import minitvm
from benchmarks.cuda_sim import PRECISIONS
from benchmarks.cuda_static import Access, accesses
from benchmarks.onnx_models import WORKLOADS
from minitvm.codegen.cuda.bind import bind_plain
from minitvm.codegen.cuda.machine import gpu_model
from minitvm.codegen.cuda.templates.tile import TILES
from minitvm.codegen.lower import lower
from minitvm.codegen.simplify import simplify
from minitvm.ir.builder import call_op, function, var
from minitvm.ir.loop import Buffer, Kernel, Load, LoopExpr, LoopKind, Stmt, Store, const, loop
from minitvm.passes import PassContext
from simulated_gpu.device import simulated_target

LANES = Buffer("lanes", (1024,), "float32", "shared")
FLOATS = Buffer("floats", (32 * 64,), "float32")


def access(scope: str, index: object, width: int = 1) -> Access:
    """Of a warp's loads from ``index(lane)`` on, ``width`` neighbours each."""
    buffer, kept = (LANES if scope == "shared" else FLOATS), Buffer("kept", (32, 4), "float32", "local")

    def lane(t: LoopExpr) -> Stmt:
        def one(n: LoopExpr) -> Stmt:
            return Store(kept, (t, n), Load(buffer, (index(t) + n,)))  # type: ignore[operator]

        return loop(width, one, LoopKind.VECTORIZED) if width > 1 else one(const(0, "int64"))

    kernel = Kernel("k", (FLOATS,), loop(32, lane, LoopKind.THREAD_X))
    (found,) = [a for a in accesses(kernel) if a.what == "load"]
    return found


@pytest.mark.parametrize(
    ("index", "width", "waves", "least"),
    [
        (lambda t: t, 1, 1, 1),
        (lambda t: t * 2, 1, 2, 1),
        (lambda t: t * 32, 1, 32, 1),
        (lambda t: t * 33, 1, 1, 1),
        (lambda t: t // 32, 1, 1, 1),  # one address
        (lambda t: t * 4, 4, 4, 4),
        (lambda t: t // 2 * 4, 4, 2, 2),  # neighbours agree
        (lambda t: (t // 4 * 2 + t % 2) * 4, 4, 2, 2),  # lanes two apart agree
        (lambda t: t // 4 * 20 + t % 4 * 4, 4, 8, 4),  # two lines of 16, 20 apart
        (lambda t: t % 8 * 20 + t // 8 * 4, 4, 4, 4),
        (lambda t: t * 2, 2, 2, 2),
    ],
)
def test_cycles_of_shared_memory(index: object, width: int, waves: int, least: int) -> None:
    found = access("shared", index, width)
    assert (found.waves, found.least, found.width) == (waves, least, 4 * width)


@pytest.mark.parametrize(
    ("index", "width", "waves", "least"),
    [(lambda t: t, 1, 4, 4), (lambda t: t * 8, 1, 32, 4), (lambda t: t * 4, 4, 16, 16), (lambda t: t * 0, 1, 1, 1)],
)
def test_sectors_of_global_memory(index: object, width: int, waves: int, least: int) -> None:
    found = access("global", index, width)
    assert (found.waves, found.least) == (waves, least)


def of_network(model: str, precision: str, arch: str) -> Iterator[Access]:
    with simulated_target(), PassContext(config=PRECISIONS[precision]):
        library = minitvm.compile(WORKLOADS[model].build(), f"simulated -arch={arch}")
    for symbol in library.artifact.objects:
        for kernel in library.report.compiler.backend.bind(library.report.kernel(symbol).legalized).kernels:
            yield from accesses(kernel)


NETWORKS = [
    *[("resnet18", "float32", "sm_90"), ("mobilenet_v2", "float32", "sm_80")],
    *[("bert_base_4layers_s128", precision, "sm_90") for precision in ("float32", "tf32", "float16")],
]
_SINGLE = 4
"""Bytes of windows' elements that are copied one by one, as of the three channels of an image."""


@pytest.mark.parametrize(("model", "precision", "arch"), NETWORKS)
def test_main_loops_of_networks(model: str, precision: str, arch: str) -> None:
    """Shared memory gives all that a warp asks for in as few cycles as its bytes take; of what comes from global
    memory, no more than half is left, but of an image's windows."""
    found = [a for a in of_network(model, precision, arch) if a.in_loop]
    shared = [a for a in found if a.is_shared]
    assert len(shared) > 10
    assert not [a for a in shared if a.has_conflicts]
    assert not [a for a in found if not a.is_shared and a.width > _SINGLE and a.waves > 2 * a.least]


NARROW = [
    ((224, 32, 9, 3), "float32", "none"),
    ((224, 32, 32, 3), "float16", "none"),
    ((55, 128, 16, 1), "float32", "cuda.split_tf32"),
]


@pytest.mark.parametrize(("sizes", "dtype", "option"), NARROW)
def test_convolutions_of_few_filters(sizes: tuple[int, int, int, int], dtype: str, option: str) -> None:
    """Lines of the left-hand factor that a thread reads along the depth; lines of the right-hand one that are half of
    the banks long, by copies."""
    size, channels, filters, taps = sizes
    x = var("x", shape=(1, size, size, channels), dtype=dtype)
    w = var("w", shape=(taps, taps, channels, filters), dtype=dtype)
    call = call_op("nn.conv2d", x, w, padding=(taps // 2,) * 4, data_layout="NHWC", kernel_layout="HWIO")
    with PassContext(config={} if option == "none" else {option: True}):
        kernel = simplify(lower(function(call, [x, w]), "kernel", gpu_model("sm_90"), "cuda"))
    found = [a for part in bind_plain(kernel) for a in accesses(part) if a.in_loop and a.is_shared]
    assert found and not [a for a in found if a.has_conflicts]


def test_pairs_of_lanes_agree_in_every_tile() -> None:
    """Both operands' vectors come in half of the cycles that 32 different ones take."""
    for tile in TILES:
        down, across = tile.warp
        assert tile.down * tile.across < 32 or (down > 1 and across > 1 and down * across == 32), tile
        assert tile.down % down == tile.across % across == 0
