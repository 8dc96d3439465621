"""Winograd's convolutions against the direct one in float64, however tiles fall; where they are chosen, and why."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from native_kernel import run_native

from minitvm import PassContext
from minitvm.codegen.coverage import Verdict, check_coverage
from minitvm.codegen.legalize import legalize
from minitvm.codegen.llvm.arith import SPELLINGS
from minitvm.codegen.lower import lower
from minitvm.codegen.simplify import simplify
from minitvm.driver.compile import build
from minitvm.ir.builder import call_op, const, function, var
from minitvm.ir.decision import decisions
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Function, Module
from minitvm.ir.layout import Layout
from minitvm.ir.loop.interp import run_kernel
from minitvm.ir.loop.verify import verify_kernel
from minitvm.ir.ops.nn_conv import Conv2d
from minitvm.ir.ops.nn_winograd import SIZES, Transforms, WinogradWeights
from minitvm.ir.visitor import calls
from minitvm.runtime.executor import GraphModule
from minitvm.target import MachineModel

MACHINES = {"SSE": (16, 16), "AVX2": (32, 16), "AVX-512": (64, 32), "NEON": (16, 32)}
INTERPRETED = 6_000  # products


def drawn(rng: np.random.Generator) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
    """An image, filters and padding, around the edges of tiles."""
    padding = tuple(int(rng.choice([0, 1, 1, 2])) for _ in range(4))
    height, width = (max(int(rng.integers(1, 21)), 3 - padding[d] - padding[d + 2]) for d in range(2))
    channels, filters = (int(rng.integers(1, 71)) for _ in range(2))
    return (int(rng.integers(1, 4)), channels, height, width), filters, padding


def packed(array: np.ndarray, layout: str, plain: str) -> np.ndarray:
    """In blocks, the last ones filled up with zeros."""
    target = Layout(layout)
    missing = [(0, -extent % target.factor(axis)) for axis, extent in zip(plain, array.shape, strict=True)]
    return target.convert(np.pad(array, missing), plain)


def operands(
    x: np.ndarray, weight: np.ndarray, padding: tuple[int, ...], size: int, lanes: int
) -> tuple[Function, list[np.ndarray]]:
    """A group of the convolution, an addition and a rectifier, in blocks, and its arrays."""
    filters = weight.shape[0]
    inner, result = min(lanes, 8), math.gcd(filters, lanes)
    layouts = {"data_layout": f"NCHW{inner}c", "kernel_layout": f"OHWI{inner}i{lanes}o", "out_layout": f"NCHW{result}c"}
    transformed = WinogradWeights(tile_size=size).reference(
        np.pad(weight, [(0, 0), (0, -x.shape[1] % inner), (0, 0), (0, 0)])
    )
    arrays = [packed(x, layouts["data_layout"], "NCHW"), packed(transformed, layouts["kernel_layout"], "OIHW")]
    a, b = (var(f"p{i}", shape=array.shape) for i, array in enumerate(arrays))
    call = call_op(
        "nn.contrib_conv2d_winograd_NCHWc", a, b, padding=padding, tile_size=size, channels=filters, **layouts
    )
    residual = var("p2", shape=call.shape)
    arrays.append(np.random.default_rng(3).normal(size=call.shape).astype("float32"))
    return function(call_op("nn.relu", call_op("add", call, residual)), [a, b, residual]), arrays


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("size", SIZES)
def test_shapes_around_the_edges_of_tiles(size: int, machine: str) -> None:
    """With what is fused behind, natively and in the interpreter, on one and on some threads."""
    rng = np.random.default_rng(size)
    for threads in (1, 2, 16):
        shape, filters, padding = drawn(rng)
        model = MachineModel(*MACHINES[machine], threads=threads)
        x, weight = (
            rng.normal(size=shape).astype("float32"),
            rng.normal(size=(filters, shape[1], 3, 3)).astype("float32"),
        )
        group, arrays = operands(x, weight, padding, size, model.lanes("float32"))
        kernel = simplify(lower(group, "kernel", model))
        verify_kernel(kernel)
        assert all(found.verdict is not Verdict.UNDECIDED for found in check_coverage(kernel))
        plain = Conv2d(padding=padding).reference(x.astype("float64"), weight.astype("float64"))
        out = Layout(str(calls(group.body)[0].op.layouts[2]))  # type: ignore[union-attr]
        expected = np.maximum(out.convert(plain, "NCHW") + arrays[2], 0)
        results = [run_native(legalize(kernel, SPELLINGS), *arrays, threads=threads, machine=model)]
        if plain.size * shape[1] <= INTERPRETED:
            results.append(run_kernel(kernel, *arrays, check_races=True))
        for (found,) in results:
            np.testing.assert_allclose(found, expected, rtol=0, atol=3e-6 * size * max(1, np.abs(plain).max()))


@pytest.mark.parametrize(
    ("pixels", "threads", "scheme"),
    [
        (56, 1, "some tiles for all channels"),
        (8, 1, "some tiles for all channels"),
        (56, 2, "some tiles for all channels"),
        (28, 2, "a band of tiles for each thread, all channels"),
        (13, 2, "a band of tiles for each thread, all channels"),
        (8, 4, "all tiles transformed, then some channels for all tiles"),
        (28, 64, "all tiles transformed, then some channels for all tiles"),
    ],
)
def test_how_threads_share_tiles(pixels: int, threads: int, scheme: str) -> None:
    """Each its own, as long as reading all weights takes less time than what others have transformed."""
    rng, model = np.random.default_rng(0), MachineModel(32, 16, l2_bytes=256 * 1024, threads=threads)
    x, weight = (rng.normal(size=s).astype("float32") for s in ((1, 64, pixels, pixels), (64, 64, 3, 3)))
    group, _ = operands(x, weight, (1, 1, 1, 1), 4, 8)
    with decisions() as log:
        lower(group, "kernel", model)
    (taken,) = (found.reason for found in log if found.taken)
    assert scheme in taken


@pytest.mark.parametrize("size", SIZES)
def test_the_bound_holds(size: int) -> None:
    """For images and filters of signs that add up; and what is usual is much less."""
    rng, transforms = np.random.default_rng(1), Transforms.of(size)
    model = MachineModel(32, 16)
    for _ in range(6):
        x, weight = (rng.choice([-1.0, 1.0], s).astype("float32") for s in ((1, 32, 8, 8), (8, 32, 3, 3)))
        weight *= rng.uniform(0.1, 1, weight.shape).astype("float32")
        group, arrays = operands(x, weight, (1, 1, 1, 1), size, 8)
        body = group.body.args[0].args[0]  # type: ignore[attr-defined]
        alone = function(body, list(group.params[:2]))
        (found,) = run_native(legalize(simplify(lower(alone, "kernel", model)), SPELLINGS), *arrays[:2], machine=model)
        exact = Layout("NCHW8c").convert(
            Conv2d(padding=(1, 1, 1, 1)).reference(x.astype("float64"), weight.astype("float64")), "NCHW"
        )
        unit = float(np.abs(x).max() * np.abs(weight).sum(axis=(1, 2, 3)).max())
        error = float(np.abs(found - exact).max()) / unit
        assert error <= transforms.bound(32, "float32") / 50
        assert error <= 2e-6


def test_transforms_are_those_of_convolution() -> None:
    rng = np.random.default_rng(0)
    for size in SIZES:
        t = Transforms.of(size)
        g, d = rng.normal(size=3), rng.normal(size=t.extent)
        np.testing.assert_allclose(t.A @ ((t.G @ g) * (t.B @ d)), np.correlate(d, g, "valid"), rtol=1e-12, atol=1e-12)


# --- where it is chosen -----------------------------------------------------------------------------------------------


def network(channels: int, pixels: int, filters: int, batch: Any = 1, layers: int = 2, **attributes: Any) -> Function:
    """Convolutions and rectifiers; two of them, so that blocks are chosen."""
    rng = np.random.default_rng(2)
    x = var("x", shape=(batch, channels, pixels, pixels))
    y: Any = x
    for before in (channels, filters)[:layers]:
        weight = const((rng.normal(size=(filters, before, 3, 3)) * (2 / 9 / before) ** 0.5).astype("float32"))
        y = call_op("nn.relu", call_op("nn.conv2d", y, weight, **({"padding": (1, 1)} | attributes)))
    return function(y, [x])


def operators(library: Any) -> set[str]:
    """Those of the kernels."""
    kernels = map(library.report.kernel, library.report.groups)
    return {call.op.name for kernel in kernels for call in calls(kernel.group.body)}


WINOGRAD = "nn.contrib_conv2d_winograd_NCHWc"


def test_it_is_chosen_by_predicted_time_and_says_its_error() -> None:
    library = build(Module(network(64, 28, 64)), "llvm", opt_level=3)
    assert WINOGRAD in operators(library)
    told = [str(d) for d in library.report.decisions if d.by == "Winograd" and d.taken]
    assert any("cycles predicted in tiles of 4 x 4" in line and "off by at most" in line for line in told), told


def test_few_channels_are_computed_directly() -> None:
    library = build(Module(network(4, 12, 4)), "llvm", opt_level=3)
    assert WINOGRAD not in operators(library)


@pytest.mark.parametrize(("channels", "pixels", "chosen"), [(64, 28, True), (4, 56, False)])
def test_one_alone_moves_its_image_where_that_is_worth_it(channels: int, pixels: int, chosen: bool) -> None:
    library = build(Module(network(channels, pixels, channels, layers=1)), "llvm", opt_level=3)
    assert (WINOGRAD in operators(library)) == chosen


@pytest.mark.parametrize("attributes", [{"strides": (2, 2)}, {"dilation": (2, 2), "padding": (2, 2)}])
def test_strides_and_dilation_are_computed_directly(attributes: dict[str, Any]) -> None:
    library = build(Module(network(64, 16, 64, **attributes)), "llvm", opt_level=3)
    assert WINOGRAD not in operators(library)
    declined = [d.reason for d in library.report.decisions if d.by == "Winograd" and not d.taken]
    assert "it has strides, dilation or groups" in declined


def test_nothing_is_said_of_what_is_no_convolution() -> None:
    x = var("x", shape=(2, 16))
    dense = call_op("nn.dense", x, const(np.ones((16, 16), "float32")))
    library = build(Module(Function([x], dense)), "llvm", opt_level=3)
    assert not any(d.by == "Winograd" for d in library.report.decisions)


def test_it_is_switched_off_by_name() -> None:
    with PassContext(opt_level=3, config={"minitvm.allow_approximate": ()}):
        library = build(Module(network(64, 28, 64)), "llvm")
    assert WINOGRAD not in operators(library)
    declined = [d.reason for d in library.report.decisions if d.by == "Winograd" and not d.taken]
    assert set(declined) == {"approximate, and minitvm.allow_approximate does not name Winograd"}


@pytest.mark.parametrize("level", [0, 1, 2])
def test_levels_below_layouts_keep_the_operator(level: int) -> None:
    library = build(Module(network(64, 28, 64)), "llvm", opt_level=level)
    assert WINOGRAD not in operators(library)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_network_gives_the_direct_numbers(batch: int) -> None:
    graph = network(64, 14, 48, batch)
    library = build(Module(graph), "llvm", opt_level=3)
    assert WINOGRAD in operators(library)
    data = np.random.default_rng(0).normal(size=graph.params[0].tensor_type.static_shape).astype("float32")
    executor = GraphModule(library["default"]())
    executor.run(x=data)
    expected = evaluate(graph, data)
    found = executor.get_output(0).numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max())
