"""What is read in another order than it is stored: squares of vectors at sizes that do and do not divide."""

from __future__ import annotations

import re

import numpy as np
import pytest
from native_kernel import run_native
from test_nests import agree, drawn, kernel_of, scalar_stores

from minitvm.codegen.llvm.emit import emit
from minitvm.codegen.stages import Output
from minitvm.codegen.walks import Walk, in_bands, walks
from minitvm.ir.builder import call_op, var
from minitvm.ir.decision import decisions
from minitvm.ir.expr import Tuple
from minitvm.ir.loop import Alloc, Buffer, Const, For, Kernel, LoopKind, LoopVar, Reduce, walk_stmts
from minitvm.ir.loop.interp import run_kernel
from minitvm.ir.ops.transform import Transpose
from minitvm.target import MachineModel

AVX512 = MachineModel(64, 32)


def in_squares(kernel: Kernel) -> bool:
    return any(isinstance(s, Alloc) and s.buffer.name.startswith("square") for s in walk_stmts(kernel.body))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "int64", "bool"])
@pytest.mark.parametrize("shape", [(4, 4), (16, 16), (15, 17), (5, 64), (33, 31), (129, 15), (7, 130), (256, 6)])
def test_matrices_are_transposed_in_squares(shape: tuple[int, int], dtype: str) -> None:
    x, a = var("x", shape=shape, dtype=dtype), (9 * drawn(*shape)).astype(dtype)
    kernel = agree(call_op("transpose", x, axes=(1, 0)), [x], [a], a.T)
    assert in_squares(kernel) and not scalar_stores(kernel)


@pytest.mark.parametrize("order", [(0, 2, 3, 1), (0, 3, 1, 2), (3, 2, 1, 0), (2, 0, 1, 3), (1, 3, 0, 2)])
@pytest.mark.parametrize("shape", [(2, 5, 7, 9), (1, 16, 8, 17), (3, 4, 1, 33)])
def test_any_order_of_axes(shape: tuple[int, ...], order: tuple[int, ...]) -> None:
    x, a = var("x", shape=shape), drawn(*shape)
    agree(call_op("transpose", x, axes=order), [x], [a], Transpose(order).reference(a))


def test_what_is_fused_around_a_transpose_runs_in_its_vectors() -> None:
    x, row, column = var("x", shape=(37, 21)), var("row", shape=(37,)), var("column", shape=(21, 1))
    a, b, c = drawn(37, 21), drawn(37, seed=1), drawn(21, 1, seed=2)
    call = call_op("tanh", call_op("transpose", x * x, axes=(1, 0)) + row) * column
    kernel = agree(call, [x, row, column], [a, b, c], np.tanh((a * a).T + b) * c)
    assert in_squares(kernel) and not scalar_stores(kernel)


@pytest.mark.parametrize("pixels", [(1, 1), (3, 5), (7, 7), (4, 16)])
@pytest.mark.parametrize(("channels", "block"), [(16, 8), (48, 16), (24, 8), (16, 4)])
def test_blocks_of_channels_are_made_and_undone(channels: int, block: int, pixels: tuple[int, int]) -> None:
    shape = (2, channels, *pixels)
    x, a = var("x", shape=shape), drawn(*shape)
    blocked = a.reshape(2, channels // block, block, *pixels).transpose(0, 1, 3, 4, 2)
    make = call_op("layout_transform", x, src_layout="NCHW", dst_layout=f"NCHW{block}c")
    kernel = agree(make, [x], [a], np.ascontiguousarray(blocked))
    y = var("y", shape=blocked.shape)
    undo = call_op("layout_transform", y, src_layout=f"NCHW{block}c", dst_layout="NCHW")
    back = agree(undo, [y], [np.ascontiguousarray(blocked)], a)
    assert pixels < (2, 2) or (in_squares(kernel) and in_squares(back))


@pytest.mark.parametrize("channels", [(40, 16), (21, 8), (7, 4)])
def test_an_axis_that_does_not_divide_has_a_walk_for_its_rest(channels: tuple[int, int]) -> None:
    """The last channels of a padded block are left out."""
    count, block = channels
    shape = (1, -(-count // block), 6, 6, block)
    x, a = var("x", shape=shape), drawn(*shape)
    plain = call_op("layout_transform", x, src_layout=f"NCHW{block}c", dst_layout="NCHW")
    first = call_op("strided_slice", plain, begin=(0, 0, 0, 0), end=(1, count, 6, 6))
    expected = a.transpose(0, 1, 4, 2, 3).reshape(1, -1, 6, 6)[:, :count]
    assert in_squares(agree(first, [x], [a], expected))


def test_a_few_elements_across_are_not_worth_a_square() -> None:
    x = var("x", shape=(3, 64))
    assert not in_squares(kernel_of(call_op("transpose", x, axes=(1, 0)), [x], AVX512))


@pytest.mark.parametrize("order", [(1, 0, 2), (0, 2, 1, 3), (2, 0, 1, 3)])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_short_rows_are_moved_in_the_order_in_which_they_are_read(count: int, order: tuple[int, ...]) -> None:
    shape = (*(21, 35, 4)[: len(order) - 1], count)
    x, a = var("x", shape=shape), drawn(*shape)
    with decisions() as log:
        agree(call_op("transpose", x, axes=order), [x], [a], Transpose(order).reference(a))
    assert f"rows of {count} in the order in which they are read" in {d.reason for d in log}


def test_rows_of_more_than_a_quarter_of_a_line_stay_in_the_order_of_the_result() -> None:
    x = var("x", shape=(21, 35, 5))
    with decisions() as log:
        kernel_of(call_op("transpose", x, axes=(1, 0, 2)), [x], AVX512)
    assert not any("in which they are read" in str(d.reason) for d in log)


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5, 8, 9, -1])
@pytest.mark.parametrize("columns", [2, 7, 8, 9, 16, 17, 31, 70])
def test_elements_a_few_apart_are_read_in_vectors(step: int, columns: int) -> None:
    length = (columns - 1) * abs(step) + 1
    x, a = var("x", shape=(3, length)), drawn(3, length)
    begin, end = (0, length) if step > 0 else (length - 1, -length - 1)
    call = call_op("strided_slice", x, begin=(begin,), end=(end,), strides=(step,), axes=(1,))
    kernel = agree(call, [x], [a], a[:, ::step])
    assert step == 9 or not scalar_stores(kernel)


@pytest.mark.parametrize(
    ("shape", "rows", "lanes"), [((10240, 40), 128, 8), ((1024, 1024), 128, 16), ((1000, 1000), 16, 16)]
)
def test_rows_that_share_places_of_the_cache_are_few_and_written_far(
    shape: tuple[int, int], rows: int, lanes: int
) -> None:
    """Of a result whose rows are multiples of 4 KB apart: many elements of eight rows before the next ones.  Where it
    is so on both sides, cache lines are read whole."""
    x = var("x", shape=shape)
    kernel = kernel_of(call_op("transpose", x, axes=(1, 0)), [x], AVX512)
    strip, *inner = [s for s in walk_stmts(kernel.body) if isinstance(s, For)]
    assert (strip.var.name, strip.extent) == ("strip", Const(shape[0] // rows))
    assert next(s.extent for s in inner if s.kind is LoopKind.VECTORIZED) == Const(lanes)


@pytest.mark.parametrize(("shape", "count"), [((1000, 64), 4), ((1000, 63), 3), ((1000, 32), 2), ((1000, 31), 0)])
def test_lines_of_the_result_are_written_whole(shape: tuple[int, int], count: int) -> None:
    """All of a short row where rows do not end with a line."""
    x = var("x", shape=shape[::-1])
    kernel = kernel_of(call_op("transpose", x, axes=(1, 0)), [x], MachineModel(32, 16))
    strips = [s.extent for s in walk_stmts(kernel.body) if isinstance(s, For) and s.var.name == "strip"]
    assert strips == [Const(count)] * bool(count)


@pytest.mark.parametrize("rows", [5, 13, 31])
def test_rows_that_are_no_vectors_are_stored_without_masks_with_avx2(rows: int) -> None:
    x, machine = var("x", shape=(rows, 40)), MachineModel(32, 16)
    kernel = kernel_of(call_op("transpose", x, axes=(1, 0)), [x], machine)
    assert in_squares(kernel) and "masked.store" not in emit(kernel, machine)


@pytest.mark.parametrize("lanes", [8, 16])
def test_a_square_stays_in_registers(lanes: int) -> None:
    """Vectors of a square are read as they were written; others, which overlap, would keep it in memory."""
    x, a, machine = var("x", shape=(64, 64)), drawn(64, 64), MachineModel(4 * lanes, 2 * lanes)
    kernel = kernel_of(call_op("transpose", x, axes=(1, 0)), [x], machine)
    text = emit(kernel, machine)
    aligned = re.findall(rf"load <{lanes} x float>, ptr %\w+, align (\d+)", text)
    assert aligned.count("4") == lanes, "the rows of the input"
    assert set(aligned) <= {"4", "32", "64"}
    assert "insertelement" not in text
    np.testing.assert_array_equal(run_native(kernel, a, machine=machine)[0], a.T)


@pytest.mark.parametrize("rows", [(8, 6), (16, 3), (5, 33)])
def test_what_is_transposed_under_a_condition_is_a_walk_of_its_own(rows: tuple[int, int]) -> None:
    """A concatenation reads one operand or the other; a square over both would read outside of them."""
    x, y = var("x", shape=(20, rows[0])), var("y", shape=(rows[1], 20))
    a, b = drawn(20, rows[0]), drawn(rows[1], 20, seed=1)
    both = call_op("concatenate", Tuple((call_op("transpose", x, axes=(1, 0)), y)), axis=0)
    kernel = agree(both, [x, y], [a, b], np.concatenate([a.T, b]))
    assert in_squares(kernel) and not scalar_stores(kernel)


def test_a_padded_transpose_is_in_squares_but_for_its_edges() -> None:
    x, a = var("x", shape=(40, 35)), drawn(40, 35)
    call = call_op("nn.pad", call_op("transpose", x, axes=(1, 0)), pad_width=((2, 1), (3, 0)))
    assert in_squares(agree(call, [x], [a], np.pad(a.T, ((2, 1), (3, 0)))))


@pytest.mark.parametrize("repeats", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("columns", [2, 7, 16, 33])
@pytest.mark.parametrize("dtype", ["float32", "uint8", "bool", "float64"])
def test_repeated_elements_are_spread_by_shuffles(columns: int, repeats: int, dtype: str) -> None:
    x, a = var("x", shape=(3, columns), dtype=dtype), (9 * drawn(3, columns)).astype(dtype)
    call = call_op("repeat", x, repeats=repeats, axis=1)
    agree(call, [x], [a], a.repeat(repeats, 1))
    for machine in (AVX512, MachineModel(32, 16)):
        assert machine.lanes(dtype) < repeats or not scalar_stores(kernel_of(call, [x], machine))
    kernel = kernel_of(call, [x], AVX512)
    lanes = [s.extent.value for s in walk_stmts(kernel.body) if isinstance(s, For) and s.kind is LoopKind.VECTORIZED]  # type: ignore[union-attr]
    assert repeats > 4 or max(lanes) >= min(AVX512.lanes(dtype), columns * repeats)


def test_a_single_element_of_a_row_may_divide_the_row() -> None:
    """What a row reads is divided by variables around the walk, which has no loops of its own."""
    row, x, out = LoopVar("row"), Buffer("x", (7, 5), "float32"), Buffer("out", (), "float32")
    (found,) = walks(Walk.over(Output(out, (), x[row // 5, row % 5])))
    assert found.loops == ()


# --- threads share rows ---------------------------------------------------------------------------------------


def windows(channels: int, rows: int, columns: int) -> Walk:
    """Sums over windows of 3 rows."""
    x, out = Buffer("x", (channels, rows + 2, columns), "float32"), Buffer("out", (channels, rows, columns), "float32")
    c, y, i, k = (LoopVar(name) for name in "cyik")
    return Walk.over(Output(out, (c, y, i), Reduce("sum", ((k, 3),), x[c, y + k, i])))


@pytest.mark.parametrize(("rows", "threads", "bands"), [(8, 2, 2), (55, 2, 5), (15, 3, 3), (56, 4, 4), (39, 4, 0)])
def test_rows_of_windows_go_in_bands_for_the_threads(rows: int, threads: int, bands: int) -> None:
    """All of one size, each before all channels."""
    walk = windows(5, rows, 6)
    extents = [extent for _, extent in in_bands(walk, threads).loops]
    assert extents == ([bands, 5, rows // bands, 6] if bands else [5, rows, 6])


@pytest.mark.parametrize(
    ("walk", "threads"),
    [(windows(5, 56, 6), 1), (windows(5, 6, 6), 2), (windows(1, 56, 6).without_ones(), 2)],
    ids=["one thread", "few rows", "one channel"],
)
def test_rows_stay_together(walk: Walk, threads: int) -> None:
    assert in_bands(walk, threads) == walk


@pytest.mark.parametrize("pixels", [(8, 8), (15, 9), (12, 21), (17, 5)])
@pytest.mark.parametrize("batch", [1, 2])
def test_pooled_bands_of_rows_make_the_image(batch: int, pixels: tuple[int, int]) -> None:
    x, a = var("x", shape=(batch, 3, *pixels, 8)), drawn(batch, 3, *pixels, 8)
    around = np.pad(a, ((0, 0), (0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    seen = np.lib.stride_tricks.sliding_window_view(around, (3, 3), axis=(2, 3)).max((-1, -2))
    call = call_op("nn.max_pool2d", x, pool_size=(3, 3), padding=(1, 1), layout="NCHW8c")
    agree(call, [x], [a], seen)
    kernel = kernel_of(call, [x], MachineModel(32, 16, threads=3))
    (given,), (out,) = kernel.inputs, kernel.outputs
    found = run_kernel(kernel, a.reshape(given.shape), check_races=True)[0]
    np.testing.assert_array_equal(found, seen.reshape(out.shape))
