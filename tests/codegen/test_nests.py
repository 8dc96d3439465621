"""Default nests at sizes that do and do not divide: right numbers, vectors throughout, code that does not grow."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from native_kernel import run_native

from minitvm.codegen.legalize import legalize
from minitvm.codegen.llvm.arith import SPELLINGS
from minitvm.codegen.llvm.compile import host, machine_model
from minitvm.codegen.llvm.emit import emit
from minitvm.codegen.lower import lower, lowering
from minitvm.codegen.simplify import simplify
from minitvm.ir.builder import call_op, function, var
from minitvm.ir.expr import Call, Expr
from minitvm.ir.loop import Alloc, Binary, Const, For, Kernel, LoopKind, Store, walk_exprs, walk_stmts
from minitvm.ir.loop.interp import run_kernel
from minitvm.target import MachineModel

WIDTHS = {"SSE": MachineModel(16, 16), "AVX2": MachineModel(32, 16), "AVX-512": MachineModel(64, 32)}
COLUMNS = (1, 3, 7, 8, 9, 16, 17, 31, 40, 131)


def kernel_of(call: Expr, params: list[Any], machine: MachineModel) -> Kernel:
    return legalize(simplify(lower(function(call, params), "kernel", machine)), SPELLINGS)


def agree(call: Expr, params: list[Any], arrays: list[np.ndarray], expected: np.ndarray, **tolerance: float) -> Kernel:
    """Machine code for this machine on 1 and 3 threads, and the interpreter for every vector width, give numpy's.

    Returns the kernel for the widest vectors: what a test says of it holds whatever this machine is.
    """
    kernel = kernel_of(call, params, machine_model(host(), 2))
    results = [run_native(kernel, *arrays, threads=threads)[0] for threads in (1, 3)]
    for machine in WIDTHS.values() if expected.size < 5_000 else ():
        other = kernel_of(call, params, machine)
        given = [a.reshape(p.shape) for a, p in zip(arrays, other.inputs, strict=True)]
        results.append(run_kernel(other, *given, check_races=True)[0])
    for found in results:
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(
                found.reshape(expected.shape), expected, **{"rtol": 1e-5, "atol": 1e-5, **tolerance}
            )
        else:
            np.testing.assert_array_equal(found.reshape(expected.shape), expected)
    return kernel_of(call, params, MachineModel(64, 32, threads=2))


def scalar_stores(kernel: Kernel) -> list[Store]:
    """Stores to results that run over a row one by one; a single element left over of a row is none."""
    found: list[Store] = []

    def visit(stmt: Any, looped: bool) -> None:
        one = isinstance(stmt, Store) and bool(stmt.index) and isinstance(stmt.index[-1], Const)
        if isinstance(stmt, Store) and stmt.buffer in kernel.outputs and looped and not one:
            found.append(stmt)
        if isinstance(stmt, For):
            if stmt.kind is not LoopKind.VECTORIZED:
                visit(stmt.body, True)
        else:
            for part in getattr(stmt, "stmts", ()) or filter(None, (getattr(stmt, "body", None),)):
                visit(part, looped)

    visit(kernel.body, False)
    return found


def drawn(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def loops_of(kernel: Kernel) -> list[For]:
    return [s for s in walk_stmts(kernel.body) if isinstance(s, For)]


# --- what is left over of a row -------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", COLUMNS)
def test_elementwise_rows_of_any_length_are_vectors(columns: int) -> None:
    x, row = var("x", shape=(5, columns)), var("row", shape=(5, 1))
    a, b = drawn(5, columns), drawn(5, 1, seed=1)
    kernel = agree(x * row + x, [x, row], [a, b], a * b + a)
    assert columns == 1 or not scalar_stores(kernel)


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_reductions_over_any_axis_of_any_length(columns: int, axis: int) -> None:
    shape = (4, columns, 11) if axis == 1 else (3, 6, columns)
    x, a = var("x", shape=shape), drawn(*shape)
    agree(call_op("sum", x, axis=axis), [x], [a], a.sum(axis), atol=1e-4)
    agree(call_op("max", x, axis=axis), [x], [a], a.max(axis))


@pytest.mark.parametrize(
    ("shape", "axis", "row_by_row"),
    [((16, 131), 0, True), ((3, 19, 1100), 1, True), ((3, 2, 14, 140), (0, 2), True)]
    + [((3, 2, 13, 140), (0, 2), False), ((15, 131), 0, False), ((40, 64), 0, False)],
)
def test_sums_down_long_rows_add_up_a_few_rows_at_a_time(
    shape: tuple[int, ...], axis: int | tuple[int, ...], row_by_row: bool
) -> None:
    """Of many rows, longer than what a few vectors hold; over two axes of what divides the inner one."""
    x, a = var("x", shape=shape), drawn(*shape)
    kernel = agree(call_op("sum", x, axis=axis), [x], [a], a.sum(axis), atol=1e-4)
    sums = {len(s.buffer.shape) for s in walk_stmts(kernel.body) if isinstance(s, Alloc)}
    assert (2 in sums) is row_by_row
    maxima = agree(call_op("max", x, axis=axis), [x], [a], a.max(axis))
    assert not any(len(s.buffer.shape) == 2 for s in walk_stmts(maxima.body) if isinstance(s, Alloc))


@pytest.mark.parametrize("columns", COLUMNS)
def test_softmax_of_rows_of_any_length(columns: int) -> None:
    x, a = var("x", shape=(6, columns)), 3 * drawn(6, columns)
    e = np.exp(a - a.max(-1, keepdims=True))
    kernel = agree(call_op("nn.softmax", x), [x], [a], e / e.sum(-1, keepdims=True))
    assert columns == 1 or not scalar_stores(kernel)


@pytest.mark.parametrize("op", ["nn.softmax", "nn.log_softmax"])
@pytest.mark.parametrize("shape", [(3, 5, 7), (67, 8), (2, 130, 1), (9, 7, 5, 2), (65, 3), (3, 4)])
def test_short_rows_are_lanes_side_by_side(op: str, shape: tuple[int, ...]) -> None:
    """A lane adds up a row of its own, of as many axes as are shared, but of a strip of less than four rows."""
    x, a = var("x", shape=shape), 3 * drawn(*shape)
    e = np.exp(a - a.max(-1, keepdims=True))
    share = e / e.sum(-1, keepdims=True)
    kernel = agree(call_op(op, x), [x], [a], share if op == "nn.softmax" else np.log(share))
    shapes = {s.buffer.shape for s in walk_stmts(kernel.body) if isinstance(s, Alloc) and s.buffer.name[:3] == "acc"}
    rows = int(np.prod(shape[:-1]))
    strips = (64, rows % 64) if rows > 64 else (rows,)
    assert shape[-1] == 1 or shapes - {()} == {(n,) for n in strips if n > 3}


@pytest.mark.parametrize("shape", [(4, 37, 1), (4, 37, 1, 1), (3, 2, 9, 1)])
def test_an_axis_before_dimensions_of_one_element_is_the_innermost(shape: tuple[int, ...]) -> None:
    axis = max(d for d, n in enumerate(shape) if n > 1)
    x, a = var("x", shape=shape), 3 * drawn(*shape)
    e = np.exp(a - a.max(axis, keepdims=True))
    kernel = agree(call_op("nn.softmax", x, axis=axis), [x], [a], e / e.sum(axis, keepdims=True))
    stores = [s for s in walk_stmts(kernel.body) if isinstance(s, Store) and s.buffer in kernel.outputs]
    lanes = [f for f in loops_of(kernel) if f.kind is LoopKind.VECTORIZED and f.body in stores]
    assert len(lanes) == len(stores)


@pytest.mark.parametrize(("shape", "axis"), [((3, 5, 40, 1), (2, 3)), ((3, 1, 33, 1), (1, 2, 3))])
def test_reduced_axes_of_one_element_take_no_loop(shape: tuple[int, ...], axis: tuple[int, ...]) -> None:
    x, a = var("x", shape=shape), drawn(*shape)
    kernel = agree(call_op("max", x, axis=axis), [x], [a], a.max(axis))
    squeezed = var("x", shape=a.squeeze().shape)
    plain = agree(call_op("max", squeezed, axis=-1), [squeezed], [a.squeeze()], a.max(axis))
    assert [(f.kind, f.extent) for f in loops_of(kernel)] == [(f.kind, f.extent) for f in loops_of(plain)]


def test_short_rows_read_with_what_is_broadcast_are_side_by_side_as_far_as_that_lets_them() -> None:
    x, bias = var("x", shape=(3, 21, 6)), var("bias", shape=(21, 6))
    a, b = drawn(3, 21, 6), drawn(21, 6, seed=1)
    e = np.exp(a + b)
    kernel = agree(call_op("nn.softmax", x + bias), [x, bias], [a, b], e / e.sum(-1, keepdims=True))
    shapes = {s.buffer.shape for s in walk_stmts(kernel.body) if isinstance(s, Alloc) and s.buffer.name[:3] == "acc"}
    assert shapes == {(21,)}


@pytest.mark.parametrize("op", ["nn.softmax", "nn.log_softmax"])
@pytest.mark.parametrize(("shape", "together"), [((60, 37), {6}), ((3, 61, 20), {16, 7}), ((30, 37), {1})])
def test_a_few_rows_are_made_together(op: str, shape: tuple[int, ...], together: set[int]) -> None:
    """Of two threads: as many as divide all rows, or those that are left over by themselves; fewer than four alone."""
    x, a = var("x", shape=shape), 3 * drawn(*shape)
    e = np.exp(a - a.max(-1, keepdims=True))
    share = e / e.sum(-1, keepdims=True)
    kernel = agree(call_op(op, x), [x], [a], share if op == "nn.softmax" else np.log(share))
    found = [s.buffer.shape for s in walk_stmts(kernel.body) if isinstance(s, Alloc) and s.buffer.name == "row_max"]
    assert {math.prod(shape) for shape in found} == together


@pytest.mark.parametrize(("rows", "together"), [(960, 8), (9600, 5)])
def test_fewer_rows_are_made_together_where_results_leave_the_second_cache(rows: int, together: int) -> None:
    x = var("x", shape=(rows, 149))
    kernel = kernel_of(call_op("nn.softmax", x), [x], MachineModel(64, 32, l1_bytes=32 << 10, l2_bytes=1 << 20))
    found = {s.buffer.shape for s in walk_stmts(kernel.body) if isinstance(s, Alloc) and s.buffer.name == "row_max"}
    assert found == {(together,)}


def test_softmax_divides_once_a_row() -> None:
    x = var("x", shape=(6, 300))
    kernel = lower(function(call_op("nn.softmax", x), [x]), "kernel", MachineModel(64, 32, threads=2))
    vectors = [s for s in loops_of(kernel) if s.kind is LoopKind.VECTORIZED]
    inside = {n.op for found in vectors for n in walk_exprs(found.body) if isinstance(n, Binary)}
    assert "larger" in inside and not inside & {"div", "max"}


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32"])
def test_casts_of_rows_of_any_length_saturate_in_vectors(columns: int, dtype: str) -> None:
    a = 100 * drawn(3, columns)
    a.flat[:: max(1, columns // 3)] = np.resize(
        [np.inf, -np.inf, np.nan, 3e9, -3e9, 300.5, -0.75], a[:, ::1].flat[:: max(1, columns // 3)].shape
    )
    reach = np.iinfo(dtype)
    expected = np.trunc(np.nan_to_num(a.astype("float64"), nan=0, posinf=1e18, neginf=-1e18))
    x = var("x", shape=a.shape)
    kernel = agree(call_op("cast", x, dtype=dtype), [x], [a], np.clip(expected, reach.min, reach.max).astype(dtype))
    assert columns == 1 or not scalar_stores(kernel)
    assert ".sat." not in emit(kernel, machine_model(host(), 2)) or columns == 1


@pytest.mark.parametrize(("stored", "dtype", "lanes"), [
    ("float32", "uint8", 64), ("uint8", "float32", 64), ("float32", "float16", 32), ("int64", "float32", 16),
    ("float32", "int64", 16), ("float64", "uint8", 32),
])  # fmt: skip
def test_lanes_are_whole_vectors_of_the_narrowest_element_up_to_four_of_the_widest(
    stored: str, dtype: str, lanes: int
) -> None:
    x = var("x", shape=(4, 256), dtype=stored)
    kernel = kernel_of(call_op("cast", x * x, dtype=dtype), [x], WIDTHS["AVX-512"])
    extents = {s.extent for s in walk_stmts(kernel.body) if isinstance(s, For) and s.kind is LoopKind.VECTORIZED}
    assert extents == {Const(lanes)}


@pytest.mark.parametrize(("op", "vectors"), [("tanh", 4), ("exp", 4), ("sqrt", 1)])
def test_long_functions_are_computed_for_several_vectors_at_once(op: str, vectors: int) -> None:
    x = var("x", shape=(3, 101))
    assert any(f.extent == Const(8 * vectors) for f in loops_of(kernel_of(call_op(op, x), [x], WIDTHS["AVX2"])))
    a = np.abs(drawn(3, 101))
    agree(call_op(op, x), [x], [a], getattr(np, op)(a))


# --- threads --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 8, 32])
def test_code_does_not_grow_with_threads(threads: int) -> None:
    x, column = var("x", shape=(100, 2003)), var("column", shape=(100, 1))
    machine = MachineModel(64, 32, threads=threads)
    text = emit(kernel_of(x + column, [x, column], machine), machine)
    assert len(text.splitlines()) < 160


@pytest.mark.parametrize("threads", [1, 2, 16])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1009), (2, 515), (3, 4099), (7, 65)])
def test_a_few_long_rows_are_divided_among_all_threads(rows: int, columns: int, threads: int) -> None:
    x, column = var("x", shape=(rows, columns)), var("column", shape=(rows, 1))
    a, b = drawn(rows, columns), drawn(rows, 1, seed=1)
    kernel = kernel_of(x + column, [x, column], MachineModel(32, 16, threads=threads))
    (result,) = run_kernel(
        kernel, *(v.reshape(p.shape) for v, p in zip((a, b), kernel.inputs, strict=True)), check_races=True
    )
    np.testing.assert_array_equal(result.reshape(a.shape), a + b)
    pieces = [s.extent.value for s in walk_stmts(kernel.body) if isinstance(s, For) and s.kind is LoopKind.PARALLEL]  # type: ignore[union-attr]
    assert sum(pieces) >= min(4 * threads, columns // 8)


# --- windows ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stride", [1, 2, 5])
@pytest.mark.parametrize(("size", "pad"), [(5, 0), (5, 2), (4, 1)])
def test_windows_go_down_the_rows_first(size: int, pad: int, stride: int) -> None:
    x, a = var("x", shape=(2, 3, 13, 21)), drawn(2, 3, 13, 21)
    call = call_op("nn.max_pool2d", x, pool_size=(size, size), strides=(stride, stride), padding=(pad,) * 4)
    assert isinstance(call, Call)
    kernel = agree(call, [x], [a], np.asarray(call.op.reference(a)))  # type: ignore[union-attr]
    assert [s.buffer.name for s in walk_stmts(kernel.body) if isinstance(s, Alloc)].count("down") in (1, 2)
    assert all(s.extent.value < size for s in loops_of(kernel) if s.kind is LoopKind.UNROLLED)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("rows", "threads", "together"), [(17, 1, [7]), (60, 1, [28]), (151, 1, [13, 9]), (17, 16, [1])]
)
def test_windows_go_down_some_rows_at_a_time(rows: int, threads: int, together: list[int]) -> None:
    """All that the nearest cache keeps, and that leave every thread some."""
    x, machine = var("x", shape=(1, 3, rows, rows)), MachineModel(32, 16, threads=threads)
    kernel = kernel_of(call_op("nn.max_pool2d", x, pool_size=(5, 5), strides=(2, 2)), [x], machine)
    found = [s.buffer.shape for s in walk_stmts(kernel.body) if isinstance(s, Alloc) and s.buffer.name == "down"]
    assert [shape[0] if len(shape) == 2 else 1 for shape in found] == together


@pytest.mark.parametrize("attributes", [{"pool_size": (2, 2)}, {"pool_size": (3, 3), "dilation": (1, 2)}])
def test_windows_that_share_nothing_stay_whole(attributes: dict[str, Any]) -> None:
    x, a = var("x", shape=(1, 4, 12, 14)), drawn(1, 4, 12, 14)
    call = call_op("nn.max_pool2d", x, **attributes)
    assert isinstance(call, Call)
    kernel = agree(call, [x], [a], np.asarray(call.op.reference(a)))  # type: ignore[union-attr]
    assert "down" not in str(kernel)


@pytest.mark.parametrize("size", [(4, 61), (9, 83)])
def test_a_short_row_that_jumps_is_written_out(size: tuple[int, int]) -> None:
    """Where it reads is known then, and needs no divisions."""
    x, a = var("x", shape=(1, 3, 7, 23)), drawn(1, 3, 7, 23)
    call = call_op("image.resize2d", x, size=size, method="nearest_neighbor", rounding_method="floor")
    assert isinstance(call, Call)
    kernel = agree(call, [x], [a], np.asarray(call.op.reference(a)))  # type: ignore[union-attr]
    around = [f.kind for f in loops_of(kernel) if isinstance(f.body, For) and f.body.kind is LoopKind.VECTORIZED]
    assert set(around) == {LoopKind.UNROLLED}


@pytest.mark.parametrize("method", ["linear", "cubic"])
@pytest.mark.parametrize("size", [(9, 31), (26, 7), (1, 1)])
def test_images_are_resized_row_by_row(method: str, size: tuple[int, int]) -> None:
    x, a = var("x", shape=(2, 3, 13, 21)), drawn(2, 3, 13, 21)
    call = call_op("image.resize2d", x, size=size, method=method)
    assert isinstance(call, Call)
    kernel = agree(call, [x], [a], np.asarray(call.op.reference(a)))  # type: ignore[union-attr]
    assert (21,) in [s.buffer.shape for s in walk_stmts(kernel.body) if isinstance(s, Alloc)]


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_positions_along_any_axis_are_found_in_vectors(name: str, axis: int) -> None:
    x, a = var("x", shape=(9, 20, 24)), drawn(9, 20, 24)
    kernel = agree(call_op(name, x, axis=axis), [x], [a], getattr(np, name)(a, axis).astype("int32"))
    assert any(s.kind is LoopKind.VECTORIZED for s in loops_of(kernel))


# --- running sums ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1,), (7, 1), (5, 3), (3, 4, 17), (2, 6, 3, 33), (4, 67), (2, 3, 4, 700)])
@pytest.mark.parametrize("exclusive", [False, True])
def test_running_sums_along_any_axis(shape: tuple[int, ...], exclusive: bool) -> None:
    for axis in range(-len(shape), len(shape)):
        x, a = var("x", shape=shape), drawn(*shape)
        call = call_op("cumsum", x, axis=axis, exclusive=exclusive)
        assert isinstance(call, Call)
        expected = np.cumsum(a, axis) - (a if exclusive else 0)
        agree(call, [x], [a], expected)
        assert lowering(function(call, [x]), "kernel", WIDTHS["AVX2"]).chosen == "template running_sum.RunningSum"


@pytest.mark.parametrize("axis", [0, 1])
def test_running_sums_move_through_memory_in_vectors(axis: int) -> None:
    """Not by the last axis, however short: what lies behind the summed one is contiguous."""
    x = var("x", shape=(4, 5, 7, 64))
    machine = MachineModel(32, 16)
    text = emit(kernel_of(call_op("cumsum", x, axis=axis), [x], machine), machine)
    assert "load float, ptr %p0" not in text and "insertelement" not in text
