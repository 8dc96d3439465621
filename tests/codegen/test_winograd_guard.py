"""Winograd's convolutions of images with numbers out of scale: a result is as its own window says."""

from __future__ import annotations

import numpy as np
import pytest
from native_kernel import run_native
from test_winograd import MACHINES, drawn, network, operands, operators

import minitvm
from minitvm.codegen.coverage import Verdict, check_coverage
from minitvm.codegen.legalize import legalize
from minitvm.codegen.llvm.arith import SPELLINGS
from minitvm.codegen.lower import lower
from minitvm.codegen.simplify import simplify
from minitvm.driver.compile import build
from minitvm.ir.builder import call_op, const, function
from minitvm.ir.expr import Module
from minitvm.ir.layout import Layout
from minitvm.ir.loop import Buffer, Const, If, Kernel, Stmt, Store, loop
from minitvm.ir.loop.interp import run_kernel
from minitvm.ir.ops.nn_conv import Conv2d
from minitvm.ir.ops.nn_winograd import SIZES, Transforms
from minitvm.ir.visitor import calls
from minitvm.target import MachineModel

VALUES = (np.nan, np.inf, -np.inf, 1e3, -1e8, 1e30, 3e38, -0.0, 1e-42)
THREADS = {"SSE": (1,), "AVX2": (2, 16), "AVX-512": (16,), "NEON": (1, 2)}
ROUNDING = 3e-6
"""Of the largest result, for each row of a tile: what is usual."""


class Convolution:
    """One that is compiled once, and what it is of any image."""

    def __init__(self, x: np.ndarray, weight: np.ndarray, padding: tuple[int, ...], size: int, model: MachineModel):
        self.x, self.weight, self.model, self.op = x, weight, model, Conv2d(padding=padding)
        self.group, self.arrays = operands(x, weight, padding, size, model.lanes("float32"))
        body = self.group.body.args[0].args[0]  # type: ignore[attr-defined]
        alone = function(body, list(self.group.params[:2]))
        self.layouts = calls(body)[0].op.layouts  # type: ignore[union-attr]
        self.kernel = simplify(lower(alone, "kernel", model))
        self.legal = legalize(self.kernel, SPELLINGS)

    def blocked(self, x: np.ndarray) -> list[np.ndarray]:
        inner = self.arrays[0].shape[-1]
        filled = np.pad(x, [(0, 0), (0, -x.shape[1] % inner), (0, 0), (0, 0)])
        return [Layout(f"NCHW{inner}c").convert(filled, "NCHW"), self.arrays[1]]

    def native(self, x: np.ndarray) -> np.ndarray:
        threads = self.model.threads
        (found,) = run_native(self.legal, *self.blocked(x), threads=threads, machine=self.model)
        return Layout("NCHW").convert(found, str(self.layouts[2]))

    def direct(self, x: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return self.op.reference(x.astype("float64"), self.weight.astype("float64"))


def poisoned(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """With a value at one place of each image, or at a few of them."""
    found = x.copy()
    for image, value in zip(found, VALUES, strict=True):
        for _ in range(int(rng.integers(1, 4))):
            image[tuple(int(rng.integers(n)) for n in image.shape)] = value
    return found


def check(conv: Convolution, x: np.ndarray, near: float) -> None:
    """Against the direct convolution: results of windows without what is out of scale as near as ever, those of others
    to what is out of scale times a filter, infinite and no numbers where those are."""
    found, expected = conv.native(x), conv.direct(x)
    odd = ~(np.abs(x) <= 100)
    touched = conv.op.reference(odd.astype("float64"), np.ones_like(conv.weight, "float64")) > 0
    np.testing.assert_allclose(found[~touched], expected[~touched], rtol=0, atol=near)
    with np.errstate(all="ignore"):
        single = expected.astype("float32")
    filters = np.broadcast_to(np.abs(conv.weight).sum((2, 3), keepdims=True), conv.weight.shape)
    far = np.where(odd, np.minimum(np.nan_to_num(np.abs(x)), 3e38), 0).astype("float64")
    size = conv.op.reference(far, filters)
    settled = touched & ((size < 3e37) | ~np.isfinite(expected))  # others may overflow on their way
    assert (np.isnan(found) == np.isnan(single))[settled].all()
    finite = settled & np.isfinite(single)
    assert (np.abs(found[finite] - expected[finite]) <= 4e-7 * size[finite] + near).all()
    assert (found == single)[settled & np.isinf(expected)].all()


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("size", SIZES)
def test_anything_anywhere(size: int, machine: str) -> None:
    """However tiles fall, whatever is shared among how many threads."""
    rng = np.random.default_rng(10 + size)
    for threads in THREADS[machine]:
        (_, channels, *pixels), filters, padding = drawn(rng)
        model = MachineModel(*MACHINES[machine], threads=threads)
        shapes = (len(VALUES), channels, *pixels), (filters, channels, 3, 3)
        x, weight = (rng.normal(size=shape).astype("float32") for shape in shapes)
        conv = Convolution(x, weight, padding, size, model)
        check(conv, poisoned(x, rng), ROUNDING * size * max(1, float(np.abs(conv.direct(x)).max())))


@pytest.mark.parametrize("size", SIZES)
def test_every_place_of_a_tile(size: int) -> None:
    """An image for each place of one."""
    rng = np.random.default_rng(0)
    x, weight = (rng.normal(size=s).astype("float32") for s in ((81, 8, 9, 9), (8, 8, 3, 3)))
    conv = Convolution(x, weight, (1, 1, 1, 1), size, MachineModel(32, 16))
    for place in range(81):
        x[place, place % 8, place // 9, place % 9] = (np.nan, np.inf, 1e8, 2e3)[place % 4]
    check(conv, x, 1e-4)


def test_the_interpreter_and_lines_of_them() -> None:
    """Columns of one large number, whose transforms cancel."""
    rng = np.random.default_rng(0)
    x, weight = (rng.normal(size=s).astype("float32") for s in ((3, 8, 7, 9), (8, 8, 3, 3)))
    conv = Convolution(x, weight, (1, 1, 1, 1), 4, MachineModel(32, 16))
    for image, columns in zip(x, ([4], [0, 2, 4], [7, 8]), strict=True):
        image[..., columns] = -1e9
    check(conv, x, 1e-4)
    (found,) = run_kernel(conv.kernel, *conv.blocked(x), check_races=True)
    np.testing.assert_allclose(found, Layout("NCHW8c").convert(conv.native(x), "NCHW"), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("size", SIZES)
def test_large_numbers_everywhere_are_transformed(size: int) -> None:
    """To the bit, but for the scale; one among small ones is not."""
    rng = np.random.default_rng(0)
    x, weight = (rng.normal(size=s).astype("float32") for s in ((2, 16, 14, 14), (24, 16, 3, 3)))
    conv = Convolution(x, weight, (1, 1, 1, 1), size, MachineModel(32, 16))
    np.testing.assert_array_equal(conv.native(x * 2.0**20), conv.native(x) * 2.0**20)
    x[0, 3, 5, 5] = 2.0**20
    assert (conv.native(x * 2.0**-20) != conv.native(x) * 2.0**-20).any()


def test_a_weight_of_zero_stays_zero() -> None:
    """Infinity times it is no number, as in the direct convolution, and a large number nothing."""
    rng = np.random.default_rng(0)
    x, weight = (rng.normal(size=s).astype("float32") for s in ((1, 8, 12, 12), (8, 8, 3, 3)))
    weight[rng.random(weight.shape) < 0.5] = 0
    for size in SIZES:
        conv = Convolution(x, weight, (1, 1, 1, 1), size, MachineModel(32, 16))
        for value in (np.inf, 1e9):
            image = x.copy()
            image[0, 2, 5, 6] = value
            found, expected = conv.native(image), conv.direct(image)
            assert (np.isnan(found) == np.isnan(expected)).all()
            small = np.abs(expected) < 1e3
            np.testing.assert_allclose(found[small], expected[small], rtol=0, atol=1e-4)


def test_transforms_of_filters_are_taken_back() -> None:
    for size in SIZES:
        t = Transforms.of(size)
        np.testing.assert_allclose(t.inverse @ t.G, np.eye(3), atol=1e-15)


@pytest.mark.parametrize("value", [np.nan, np.inf, -1e8, 1e30])
def test_a_network_at_level_3(value: float) -> None:
    graph = network(64, 28, 64, layers=1)
    library = build(Module(graph), "llvm", opt_level=3)
    assert any("winograd" in name for name in operators(library))
    executor = minitvm.GraphModule(library["default"]())
    clean = np.random.default_rng(0).normal(size=(1, 64, 28, 28)).astype("float32")
    far = np.ones((28, 28), bool)
    far[10:13, 11:14] = False
    results = []
    for x in (clean, clean.copy()):
        x[0, 3, 11, 12] = value if results else x[0, 3, 11, 12]
        executor.run(x=x)
        results.append(executor.get_output(0).numpy()[0][:, far])
    np.testing.assert_allclose(results[1], results[0], rtol=0, atol=5e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e38])
def test_weights_out_of_range_are_computed_directly(value: float) -> None:
    graph = network(64, 28, 64, layers=1)
    weight = np.array(calls(graph.body)[0].args[1].value)  # type: ignore[attr-defined]
    weight[3, 2, 1, 0] = value
    x = graph.params[0]
    wild = function(call_op("nn.conv2d", x, const(weight), padding=(1, 1)), [x])
    library = build(Module(wild), "llvm", opt_level=3)
    assert not any("winograd" in name for name in operators(library))
    assert any("its weights are so large" in d.reason for d in library.report.decisions if d.by == "Winograd")


# --- coverage: branches that data decides on --------------------------------------------------------------------------


def branches(orelse: Stmt, out: Buffer, data: Buffer) -> Kernel:
    then = loop(4, lambda i: Store(out, (i,), data[i]))
    return Kernel("kernel", (data, out), If(data[0] <= 0.0, then, orelse))


def test_branches_that_store_the_same_count_once() -> None:
    data, out = Buffer("data", (4,), "float32"), Buffer("out", (4,), "float32")
    (found,) = check_coverage(branches(loop(4, lambda k: Store(out, (k,), data[k] + 1.0)), out, data))
    assert found.verdict is Verdict.PROVED


@pytest.mark.parametrize("count", [3, 4])
def test_branches_that_store_other_elements_are_undecided(count: int) -> None:
    data, out = Buffer("data", (4,), "float32"), Buffer("out", (4,), "float32")
    other = loop(count, lambda k: Store(out, (Const(3) - k,), data[k]))
    (found,) = check_coverage(branches(other, out, data))
    assert found.verdict is Verdict.UNDECIDED


@pytest.mark.parametrize("size", SIZES)
def test_the_operators_meaning_keeps_what_is_not_finite_in_its_windows(size: int) -> None:
    """As the kernel does: found where a NaN in a draw made a layout pass look wrong."""
    rng = np.random.default_rng(size)
    x, weight = rng.normal(size=(2, 3, 9, 11)).astype("float32"), rng.normal(size=(4, 3, 3, 3)).astype("float32")
    weight[1, :, 0] = 0
    convolution = Convolution(x, weight, (1, 0, 1, 2), size, MachineModel(*MACHINES["AVX2"]))
    for value in (np.nan, np.inf, -np.inf):
        y, row, column = x.copy(), int(rng.integers(9)), int(rng.integers(11))
        y[rng.integers(2), rng.integers(3), row, column] = value
        call = calls(convolution.group.body.args[0].args[0])[0]  # type: ignore[attr-defined]
        with np.errstate(all="ignore"):
            blocked = call.op.reference(*convolution.blocked(y))  # type: ignore[union-attr]
        found, want = Layout("NCHW").convert(blocked, str(convolution.layouts[2]))[:, :4], convolution.direct(y)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(want))
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", SIZES)
def test_the_operators_meaning_keeps_what_is_out_of_scale_in_its_windows(size: int) -> None:
    """As the kernel does: found where inputs of all magnitudes made a layout pass of SqueezeNet look wrong."""
    rng = np.random.default_rng(size)
    x, weight = rng.normal(size=(1, 3, 9, 11)).astype("float32"), rng.normal(size=(4, 3, 3, 3)).astype("float32")
    x[0, rng.integers(3), rng.integers(9), rng.integers(11)] = 1e7
    convolution = Convolution(x, weight, (1, 0, 1, 2), size, MachineModel(*MACHINES["AVX2"]))
    call = calls(convolution.group.body.args[0].args[0])[0]  # type: ignore[attr-defined]
    blocked = call.op.reference(*convolution.blocked(x))  # type: ignore[union-attr]
    found, want = Layout("NCHW").convert(blocked, str(convolution.layouts[2]))[:, :4], convolution.direct(x)
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4)
