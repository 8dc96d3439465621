"""Convolutions of any shape: a template takes each, stores every element once, and gives numpy's numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from native_kernel import run_native
from store_counts import store_counts

import minitvm.codegen.templates  # noqa: F401  (registers the templates)
from minitvm.codegen.legalize import legalize
from minitvm.codegen.llvm.arith import SPELLINGS
from minitvm.codegen.llvm.emit import emit
from minitvm.codegen.problem import TEMPLATES, Choice, Problem
from minitvm.codegen.simplify import simplify
from minitvm.codegen.templates.conv_blocked import BlockedConv
from minitvm.codegen.templates.conv_pixels import TransposedConv
from minitvm.codegen.templates.window import PhasedAxis
from minitvm.ir.builder import call_op, var
from minitvm.ir.expr import Call
from minitvm.ir.loop import Alloc, Const, For, Kernel, LoopKind, walk_stmts
from minitvm.ir.loop.interp import run_kernel
from minitvm.ir.loop.verify import verify_kernel
from minitvm.ir.op import Op
from minitvm.target import MachineModel

WIDTHS = ((64, 32), (32, 16), (16, 16))  # bytes of a vector register, and their number
INTERPRETED = 20_000  # multiply-adds


@dataclass(frozen=True)
class Case:
    """A convolution: an operator, the shapes of its operands, its attributes."""

    name: str
    data: tuple[int, ...]
    weight: tuple[int, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    dtype: str = "float32"
    by_rows: bool = False

    @property
    def call(self) -> Call:
        params = (var("x", shape=self.data, dtype=self.dtype), var("w", shape=self.weight, dtype=self.dtype))
        found = call_op(self.name, *params, **self.attributes)
        assert isinstance(found, Call)
        return found

    def kernel(self, machine: MachineModel, choice: Choice | None = None) -> Kernel:
        """What the template makes of it, by default as it chooses; that it declines is a failure."""
        call = self.call
        assert isinstance(call.op, Op)
        (template,) = TEMPLATES.find("llvm", call.op)
        kernel = template(replace(Problem.of(call), by_rows=self.by_rows), machine).kernel(choice)
        assert isinstance(kernel, Kernel), kernel
        return kernel


def drawn_case(rng: np.random.Generator) -> Case:
    """Extents around one another's and the vectors' sizes; what does not fit is drawn again."""
    rank = int(rng.choice([1, 2, 2, 2, 3]))
    groups, inputs, outputs = drawn_channels(rng)
    image, kernel, strides, dilation = (
        tuple(int(rng.choice(options)) for _ in range(rank))
        for options in ([1, 2, 3, 5, 7, 8, 9, 16, 17, 33], [1, 1, 2, 3, 5], [1, 1, 2, 3, 7], [1, 1, 2, 3])
    )
    padding = tuple(int(rng.choice([0, 0, 1, 2, 3])) for _ in range(2 * rank))
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    data, weight = (int(rng.integers(1, 4)), groups * inputs, *image), (groups * outputs, inputs, *kernel)
    fits = all(i + padding[d] + padding[d + rank] >= spans[d] for d, i in enumerate(image))
    if not fits or math.prod(data) * math.prod(kernel) * outputs > 3_000_000:
        return drawn_case(rng)
    attributes = {"strides": strides, "dilation": dilation, "padding": padding, "groups": groups}
    dtype = str(rng.choice(["float32", "float32", "float32", "float64", "float16"]))
    return Case(f"nn.conv{rank}d", data, weight, attributes, dtype)


def drawn_transposed(rng: np.random.Generator) -> Case:
    """The same for transposed convolutions, with kernels smaller and larger than the strides."""
    rank = int(rng.choice([1, 2, 2, 3]))
    groups, inputs, outputs = int(rng.integers(1, 4)), int(rng.integers(1, 9)), int(rng.integers(1, 14))
    image, kernel, strides, dilation = (
        tuple(int(rng.choice(options)) for _ in range(rank))
        for options in ([1, 2, 3, 7, 8, 9], [1, 2, 3, 4, 5, 7], [1, 2, 2, 3, 7], [1, 1, 1, 2, 3])
    )
    extra = tuple(int(rng.integers(0, s)) for s in strides)
    padding = tuple(int(rng.choice([0, 0, 1, 2])) for _ in range(2 * rank))
    full = [
        (i - 1) * s + (k - 1) * d + 1 + e for i, s, k, d, e in zip(image, strides, kernel, dilation, extra, strict=True)
    ]
    data, weight = (int(rng.integers(1, 3)), groups * inputs, *image), (groups * inputs, outputs, *kernel)
    fits = all(f > padding[d] + padding[d + rank] for d, f in enumerate(full))
    if not fits or math.prod(data) * math.prod(kernel) * outputs > 1_000_000:
        return drawn_transposed(rng)
    attributes = {"strides": strides, "dilation": dilation, "padding": padding, "groups": groups}
    return Case(f"nn.conv{rank}d_transpose", data, weight, {**attributes, "output_padding": extra})


def drawn_blocked(rng: np.random.Generator) -> Case:
    """In blocks: weights in whole vectors, results in blocks that divide their channels, which vectors need not."""
    lanes, inner = int(rng.choice([4, 8, 16])), int(rng.choice([2, 4, 8]))
    block = int(rng.choice([b for b in (1, 2, 4, 8, 16) if b <= lanes]))
    groups, inputs = int(rng.choice([1, 1, 2, 3])), int(rng.integers(1, 4))
    channels = block * int(rng.integers(1, 3 * lanes // block + 2))
    image, kernel, strides = (
        tuple(int(rng.choice(options)) for _ in range(2))
        for options in ([1, 2, 3, 6, 7, 17], [1, 1, 2, 3], [1, 1, 2, 3])
    )
    padding = tuple(int(rng.choice([0, 0, 1, 2])) for _ in range(4))
    if any(i + padding[d] + padding[d + 2] < k for d, (i, k) in enumerate(zip(image, kernel, strict=True))):
        return drawn_blocked(rng)
    data, held = (int(rng.integers(1, 3)), groups * inputs, *image, inner), groups * -(-channels // lanes)
    layouts = {"data_layout": f"NCHW{inner}c", "kernel_layout": f"OIHW{inner}i{lanes}o", "out_layout": f"NCHW{block}c"}
    attributes = {"strides": strides, "padding": padding, "groups": groups, "channels": groups * channels, **layouts}
    return Case("nn.contrib_conv2d_NCHWc", data, (held, inputs, *kernel, inner, lanes), attributes)


def drawn_channels(rng: np.random.Generator) -> tuple[int, int, int]:
    """Groups, and the input and output channels of one: direct, grouped, depthwise."""
    kind = rng.integers(3)
    if kind == 0:
        return 1, int(rng.integers(1, 20)), int(rng.integers(1, 40))
    if kind == 1:
        return int(rng.choice([2, 3, 5])), int(rng.integers(1, 7)), int(rng.integers(1, 9))
    return int(rng.integers(1, 35)), 1, int(rng.choice([1, 1, 1, 2]))


def drawn_machine(rng: np.random.Generator) -> MachineModel:
    width, registers = WIDTHS[rng.integers(len(WIDTHS))]
    return MachineModel(width, registers, threads=int(rng.choice([1, 2, 3, 16])))


def check_numbers(case: Case, machine: MachineModel, seed: int, choice: Choice | None = None) -> None:
    rng = np.random.default_rng(seed)
    arrays = [rng.normal(size=s).astype(case.dtype) for s in (case.data, case.weight)]
    assert isinstance(case.call.op, Op)
    expected = case.call.op.reference(*arrays)
    kernel = simplify(case.kernel(machine, choice))
    verify_kernel(kernel)
    (native,) = run_native(legalize(kernel, SPELLINGS), *arrays, threads=machine.threads, machine=machine)
    results = [native]
    if math.prod(case.weight) * math.prod(case.data) < INTERPRETED:
        results += run_kernel(kernel, *arrays, check_races=True)
    for have in results:
        assert_close(have, np.asarray(expected), math.prod(case.weight[1:]))


def assert_close(have: np.ndarray, want: np.ndarray, terms: int) -> None:
    """Within what ``terms`` additions in the accumulator may differ by; float16 is rounded once."""
    scale = float(np.abs(want).max(initial=0))
    rounded = 1 if want.dtype == np.float16 else 8 + terms**0.5
    np.testing.assert_allclose(have, want, rtol=0, atol=scale * float(np.finfo(want.dtype).eps) * rounded)


def parallel_iterations(kernel: Kernel) -> int:
    loops = [s for s in walk_stmts(kernel.body) if isinstance(s, For) and s.kind is LoopKind.PARALLEL]
    return sum(int(s.extent.value) for s in loops)  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", range(12))
def test_any_convolution_is_taken_and_right(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for draw in (drawn_case, drawn_case, drawn_case, drawn_transposed, drawn_transposed, drawn_blocked, drawn_blocked):
        check_numbers(draw(rng), drawn_machine(rng), seed)


@pytest.mark.parametrize("seed", range(6))
def test_every_element_is_stored_exactly_once(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    for draw in (drawn_case, drawn_transposed, drawn_blocked) * 4:
        case, machine = draw(rng), drawn_machine(rng)
        kernel = case.kernel(machine)
        assert (store_counts(kernel.body, kernel.outputs[0]) == 1).all(), f"{case} on {machine}"


@pytest.mark.parametrize("layouts", [("NHWC", "HWIO"), ("NHWC", "OHWI"), ("NCHW", "HWIO"), ("NCHW4c", "OIHW4i4o")])
def test_layouts(layouts: Sequence[str]) -> None:
    shapes = {
        "NHWC": (2, 5, 7, 8), "NCHW": (2, 8, 5, 7), "NCHW4c": (2, 2, 5, 7, 4),
        "HWIO": (3, 2, 8, 12), "OHWI": (12, 3, 2, 8), "OIHW4i4o": (3, 2, 3, 2, 4, 4),
    }  # fmt: skip
    attributes = {"data_layout": layouts[0], "kernel_layout": layouts[1], "padding": (1, 0, 0, 1), "strides": (2, 1)}
    case = Case("nn.conv2d", shapes[layouts[0]], shapes[layouts[1]], attributes)
    for width, registers in WIDTHS:
        check_numbers(case, MachineModel(width, registers, threads=2), 0)


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
@pytest.mark.parametrize("channels", [7, 10, 21, 255])
def test_ragged_channels_run_in_vectors_on_all_threads(channels: int, threads: int) -> None:
    """Heads of detectors and segmenters: no block divides their channels."""
    for image, kernel in ((17, 1), (17, 3), (7, 3)):
        pads = (kernel // 2,) * 4
        case = Case("nn.conv2d", (1, 6, image, image), (channels, 6, kernel, kernel), {"padding": pads})
        machine = MachineModel(64, 32, threads=threads)
        check_numbers(case, machine, threads)
        assert parallel_iterations(case.kernel(machine)) >= min(threads, channels // 14)
        assert "vectorized" in str(simplify(case.kernel(machine)))


def test_rows_that_end_inside_a_vector_are_still_loaded_and_stored_whole() -> None:
    """The lanes of a pointwise convolution run over ``p // 9, p % 9``: neighbours in memory."""
    machine = MachineModel(32, 16)
    text = emit(simplify(Case("nn.conv2d", (1, 3, 9, 9), (5, 3, 1, 1)).kernel(machine)), machine)
    assert "extractelement" not in text and "insertelement <8 x i64>" not in text
    assert "store <8 x float>" in text


@pytest.mark.parametrize(("batch", "groups"), [(1, 1), (1, 3), (2, 1), (2, 3)])
@pytest.mark.parametrize(("image", "kernel"), [((9, 9), 1), ((1, 1), 1), ((2, 2), 3), ((1, 3), 3), ((1, 1), 3)])
def test_pixels_and_few_positions(image: tuple[int, int], kernel: int, batch: int, groups: int) -> None:
    weight, attributes = (groups * 24, 40, kernel, kernel), {"groups": groups, "padding": (kernel // 2,) * 4}
    first = Case("nn.conv2d", (batch, groups * 40, *image), weight, attributes)
    last = Case("nn.conv2d", (batch, *image, groups * 40), weight, {**attributes, "data_layout": "NHWC"})
    for width, registers in WIDTHS:
        check_numbers(first, MachineModel(width, registers, threads=2), 0)
        check_numbers(last, MachineModel(width, registers, threads=2), 0)


@pytest.mark.parametrize(
    ("data", "kernel", "groups"),
    [
        ((2, 40, 9, 9), 1, 1),
        ((1, 120, 9, 9), 1, 3),
        ((2, 120, 1, 1), 3, 3),
        ((2, 120, 2, 2), 3, 3),
        ((1, 40, 1, 3), 3, 1),
    ],
)
def test_pixels_and_few_positions_are_products(data: tuple[int, ...], kernel: int, groups: int) -> None:
    """Nothing gathers, though the indices of tensors are quotients and remainders of those of matrices."""
    machine, attributes = MachineModel(64, 32), {"groups": groups, "padding": (kernel // 2,) * 4}
    made = Case("nn.conv2d", data, (groups * 24, 40, kernel, kernel), attributes).kernel(machine)
    buffers = {s.buffer.name for s in walk_stmts(made.body) if isinstance(s, Alloc)}
    assert "phases" not in buffers
    assert ("image" in buffers) == (data[3] in (2, 3))
    if data[3] > 1:
        assert not re.search(r"insertelement .*, i64 [1-9]", emit(simplify(made), machine))


@pytest.mark.parametrize(("batch", "groups"), [(1, 1), (1, 2), (2, 1)])
def test_pixels_some_apart_are_packed_not_copied_element_by_element(batch: int, groups: int) -> None:
    case = Case(
        "nn.conv2d", (batch, 512 * groups, 5, 7), (24 * groups, 512, 1, 1), {"strides": (2, 3), "groups": groups}
    )
    for width, registers in WIDTHS:
        machine = MachineModel(width, registers, threads=2)
        buffers = {s.buffer.name for s in walk_stmts(case.kernel(machine).body) if isinstance(s, Alloc)}
        assert "image" not in buffers
        check_numbers(case, machine, 0)


WINDOWS = [
    Case("nn.conv2d", (1, 9, 8, 8), (130, 9, 3, 3), {"padding": (2,) * 4, "dilation": (2, 2)}),
    Case("nn.conv2d", (2, 8, 6, 13), (800, 4, 1, 7), {"padding": (0, 3, 0, 3), "strides": (1, 2), "groups": 2}),
    Case("nn.conv3d", (1, 3, 4, 5, 5), (90, 3, 2, 3, 3), {"padding": (0, 1, 2, 0, 1, 0)}, "float16"),
]


@pytest.mark.parametrize("case", WINDOWS, ids=str)
def test_windows_are_copied_where_vectors_would_be_half_empty(case: Case) -> None:
    for width, registers in WIDTHS:
        machine = MachineModel(width, registers)
        buffers = {s.buffer.name for s in walk_stmts(case.kernel(machine).body) if isinstance(s, Alloc)}
        assert width < 64 or "windows" in buffers
        check_numbers(case, machine, 0)
        check_numbers(case, replace(machine, threads=3), 0)


@pytest.mark.parametrize("seed", range(4))
def test_strips_of_images_are_right_where_they_are_not_taken(seed: int) -> None:
    rng = np.random.default_rng(300 + seed)
    for n in range(12):
        case = (drawn_transposed if n % 2 else drawn_case)(rng)
        machine = replace(drawn_machine(rng), l1_bytes=int(rng.choice([8192, 32768])), l2_bytes=64 * 1024)
        found = strips(case, machine)
        if found:
            check_numbers(case, machine, n, found[rng.integers(len(found))])


def strips(case: Case, machine: MachineModel) -> list[Choice]:
    assert isinstance(case.call.op, Op)
    (template,) = TEMPLATES.find("llvm", case.call.op)
    made = template(Problem.of(case.call), machine)
    return made.strips.choices() if isinstance(made, TransposedConv) else []


@pytest.mark.parametrize("threads", [1, 2])
def test_strips_are_taken_of_deep_images(threads: int) -> None:
    """The next tile would find nothing of all channels' planes in the cache; a strip has an odd number of lines."""
    case = Case("nn.conv2d_transpose", (1, 127, 32, 32), (127, 31, 3, 3), {"strides": (2, 2), "padding": (1,) * 4})
    kernel = case.kernel(MachineModel(32, 16, threads=threads))
    [image] = [s.buffer for s in walk_stmts(kernel.body) if isinstance(s, Alloc) and s.buffer.name == "phases"]
    assert image.scope == "shared" and image.shape[-1] % 32 == 16
    assert parallel_iterations(kernel) >= threads


def test_images_of_few_channels_are_copied_at_once() -> None:
    case = Case("nn.conv2d_transpose", (1, 3, 6, 9), (3, 5, 3, 3), {"strides": (2, 2), "padding": (1,) * 4})
    assert "alloc phases" in (text := str(case.kernel(MachineModel(32, 16)))) and "shared" not in text


@pytest.mark.parametrize("seed", range(3))
def test_padding_between_rows_is_shared_where_every_plane_has_it(seed: int) -> None:
    """A row's zeros at the end are the next row's first ones, and no results of two rows meet."""
    rng = np.random.default_rng(seed)
    for _ in range(200):
        extent, outputs, taps, stride, dilation, before = (int(rng.integers(low, 9)) for low in (1, 1, 1, 1, 1, 0))
        axis = PhasedAxis(extent, outputs, taps, stride, dilation, before)
        kept = range(axis.pitch, axis.length)
        assert axis.outputs <= axis.pitch <= axis.length
        for plane in range(axis.planes):
            assert all(axis.element(plane, q) >= extent for q in kept)
            assert all(axis.element(plane, q - axis.pitch) < 0 for q in kept)


def test_few_channels_copy_no_windows() -> None:
    case = Case("nn.conv2d", (1, 9, 8, 8), (3, 9, 3, 3), {"padding": (2,) * 4, "dilation": (2, 2)})
    assert "windows" not in str(case.kernel(MachineModel(64, 32)))


@pytest.mark.parametrize("attributes", [{}, {"strides": (2, 2)}, {"dilation": (2, 2)}, {"padding": (1, 2, 3, 0)}])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_one_channel_a_group_shares_rows_of_the_image(attributes: dict[str, Any], dtype: str) -> None:
    case = Case("nn.conv2d", (2, 3, 21, 37), (3, 1, 5, 3), {**attributes, "groups": 3}, dtype)
    for width, registers in WIDTHS:
        for threads in (1, 3, 16):
            machine = MachineModel(width, registers, threads=threads)
            assert "strides" in attributes or "alloc sums" not in str(case.kernel(machine))
            check_numbers(case, machine, threads)


def test_taps_that_only_read_padding_are_left_out() -> None:
    assert PhasedAxis(1, 1, 7, 2, 1, 3).trimmed() == (PhasedAxis(1, 1, 1, 2, 1, 0), 3)
    assert PhasedAxis(2, 1, 7, 2, 1, 3).trimmed() == (PhasedAxis(2, 1, 2, 2, 1, 0), 3)
    case = Case("nn.conv2d", (1, 4, 1, 2), (5, 4, 7, 7), {"padding": (3, 3, 3, 3), "strides": (2, 2)})
    check_numbers(case, MachineModel(32, 16), 0)


@pytest.mark.parametrize("seed", range(3))
def test_every_thread_has_work_while_there_are_tiles(seed: int) -> None:
    """Half of the largest tile counts as one: rows end before tiles do."""
    rng = np.random.default_rng(200 + seed)
    for draw in (drawn_case, drawn_transposed, drawn_blocked) * 20:
        case, (width, registers) = draw(rng), WIDTHS[rng.integers(len(WIDTHS))]
        machine = MachineModel(width, registers, threads=int(rng.choice([2, 3, 16])))
        kernel = case.kernel(machine)
        largest = registers * machine.lanes("float32")
        tiles = math.prod(kernel.outputs[0].shape) // (2 * largest)
        assert parallel_iterations(kernel) >= min(machine.threads, tiles), f"{case} on {machine}"


def test_long_rows_of_a_blocked_convolution_are_divided_among_threads() -> None:
    layouts = {"data_layout": "NCHW8c", "kernel_layout": "OIHW8i16o", "out_layout": "NCHW16c"}
    case = Case("nn.contrib_conv2d_NCHWc", (1, 1, 1, 300, 8), (2, 1, 1, 5, 8, 16), {"padding": (0, 2, 0, 2), **layouts})
    machine = MachineModel(64, 32, threads=16)
    assert parallel_iterations(case.kernel(machine)) >= 16
    check_numbers(case, machine, 0)


@pytest.mark.parametrize("strides", [(1, 1), (2, 2)])
def test_sums_of_some_rows_stay_in_the_first_level_cache_where_weights_do_not(strides: tuple[int, int]) -> None:
    """Where a tile is small, it would wait for weights that come from further for every row."""
    layouts = {"data_layout": "NCHW8c", "kernel_layout": "OIHW8i8o", "out_layout": "NCHW8c"}
    attributes = {"padding": (1, 1, 1, 1), "strides": strides, **layouts}
    case = Case("nn.contrib_conv2d_NCHWc", (1, 12, 23, 17, 8), (16, 12, 3, 3, 8, 8), attributes)
    machine = MachineModel(32, 16, l1_bytes=16 * 1024, threads=2)
    kernel = case.kernel(machine)
    sums = [s.buffer for s in walk_stmts(kernel.body) if isinstance(s, Alloc) and s.buffer.name == "sums"]
    assert sums and all(1 < b.shape[0] < 12 and b.nbytes <= machine.l1_bytes // 2 for b in sums)
    assert parallel_iterations(kernel) >= 8
    check_numbers(case, machine, 0)
    wide = case.kernel(MachineModel(64, 32, l1_bytes=16 * 1024, threads=2))
    assert not any(isinstance(s, Alloc) and s.buffer.name == "sums" for s in walk_stmts(wide.body))


@pytest.mark.parametrize(("inputs", "outputs"), [(2, 12), (12, 72), (72, 12)])
def test_tiles_of_few_registers_load_few_weights(inputs: int, outputs: int) -> None:
    """Of those with equally many multiply-adds 4 x 3 vectors, not 2 x 6; where registers are many, larger ones."""
    layouts = {"data_layout": "NCHW8c", "kernel_layout": "OIHW8i8o", "out_layout": "NCHW8c"}
    call = Case("nn.contrib_conv2d_NCHWc", (1, inputs, 14, 14, 8), (outputs, inputs, 1, 1, 8, 8), layouts).call
    machines = MachineModel(32, 16), MachineModel(64, 32)
    few, many = (BlockedConv(Problem.of(call), machine).choice.tile for machine in machines)
    assert (few.rows, few.blocks) == (4, 3) and many.rows * many.blocks > 16


def test_channels_in_no_blocks_whose_planes_share_places_of_the_cache_take_longer() -> None:
    layouts = {"data_layout": "NCHW", "kernel_layout": "OIHW63i8o", "out_layout": "NCHW8c"}

    def cycles(columns: int) -> float:
        case = Case("nn.contrib_conv2d_NCHWc", (1, 63, 32, columns), (8, 1, 3, 3, 63, 8), layouts)
        return BlockedConv(Problem.of(case.call), MachineModel(32, 16)).choice.cycles

    assert cycles(32) > 1.5 * cycles(33)


# --- what threads share of a depthwise convolution ----------------------------------------------------------------


def depthwise(height: int, width: int, blocks: int, by_rows: bool, **attributes: Any) -> Case:
    layouts = {"data_layout": "NCHW8c", "kernel_layout": "OIHW1i8o", "out_layout": "NCHW8c"}
    given = {"groups": 8 * blocks, "channels": 8 * blocks, **layouts, **attributes}
    shapes = (1, blocks, height, width, 8), (blocks, 1, 3, 3, 1, 8)
    return Case("nn.contrib_depthwise_conv2d_NCHWc", *shapes, given, by_rows=by_rows)


def rows_of_the_first_half(kernel: Kernel) -> np.ndarray:
    """Which rows of the result are stored to by the first half of the iterations that threads share."""
    (work,) = (s for s in walk_stmts(kernel.body) if isinstance(s, For) and s.kind is LoopKind.PARALLEL)
    half = For(work.var, Const(int(work.extent.value) // 2), work.body)  # type: ignore[attr-defined]
    return store_counts(half, kernel.outputs[0]).any(axis=(0, 1, 3, 4))


@pytest.mark.parametrize("seed", range(4))
def test_depthwise_by_rows_is_right_on_any_image(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(3):
        height, width, blocks = (int(n) for n in rng.integers(3, 21, 3))
        pads, stride = tuple(int(n) for n in rng.integers(0, 3, 4)), int(rng.integers(1, 4))
        case = depthwise(height, width, blocks, True, padding=pads, strides=(stride, stride))
        machine = drawn_machine(rng)
        check_numbers(case, machine, seed)
        kernel = case.kernel(machine)
        assert (store_counts(kernel.body, kernel.outputs[0]) == 1).all()


def test_two_threads_share_rows_where_these_divide_and_otherwise_channels() -> None:
    for height, pads in ((14, (1, 1, 1, 1)), (8, (0, 0, 0, 0)), (20, (1, 1, 1, 1))):
        machine = MachineModel(32, 16, threads=2)
        found = rows_of_the_first_half(depthwise(height, 9, 4, True, padding=pads).kernel(machine))
        assert found[: len(found) // 2].all() and not found[len(found) // 2 :].any()
        assert rows_of_the_first_half(depthwise(height, 9, 4, False, padding=pads).kernel(machine)).all()
    for threads, height in ((2, 7), (2, 13), (1, 14), (16, 14)):  # too few rows, a prime, one thread, more than rows
        case, machine = depthwise(height, 9, 4, True, padding=(1, 1, 1, 1)), MachineModel(32, 16, threads=threads)
        assert rows_of_the_first_half(case.kernel(machine)).all()
