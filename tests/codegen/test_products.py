"""Matrix products of any size on any number of threads: every element is stored once, by enough parallel work."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from native_kernel import run_native
from store_counts import store_counts

from minitvm.codegen.llvm.compile import assembly, cpu_of, machine_model
from minitvm.codegen.llvm.emit import emit
from minitvm.codegen.problem import TEMPLATES, Problem
from minitvm.codegen.simplify import simplify
from minitvm.codegen.templates.product import Gemm, Matrix, Product
from minitvm.codegen.templates.tile import best_tile
from minitvm.ir.builder import call_op, var
from minitvm.ir.expr import Call
from minitvm.ir.loop import Buffer, For, Kernel, LoopKind, Seq, Stmt, walk_stmts
from minitvm.ir.loop.builder import LoopBuilder
from minitvm.ir.loop.interp import run_kernel
from minitvm.ir.loop.verify import verify_kernel
from minitvm.ir.op import Op
from minitvm.target import MachineModel, Target

THREADS = (1, 2, 3, 4, 8, 16)
WIDTHS = ((64, 32), (32, 16), (16, 16))  # bytes of a vector register, and their number


def product_nest(batch: int, rows: int, columns: int, machine: MachineModel) -> tuple[Stmt, Buffer]:
    """The loops of a product of depth 1, and its result."""
    left, right, out = (
        Buffer(name, (batch, *shape), "float32")
        for name, shape in (("left", (rows, 1)), ("right", (1, columns)), ("out", (rows, columns)))
    )
    lanes = machine.lanes("float32")
    product = Product(Matrix.of(left), Matrix.of(right), Matrix.of(out), "float32")
    code = LoopBuilder()
    Gemm(product, best_tile(rows, -(-columns // lanes), machine), lanes).nest(code, machine)
    return code.stmt, out


def parallel_iterations(stmt: Stmt) -> int:
    match stmt:
        case Seq(stmts):
            return sum(parallel_iterations(part) for part in stmts)
        case For(_, extent, _, LoopKind.PARALLEL):
            return int(extent.value)  # type: ignore[attr-defined]
    return 0


@pytest.mark.parametrize("seed", range(4))
def test_every_element_is_stored_exactly_once(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(80):
        batch, rows, columns = (int(rng.integers(1, most)) for most in (4, 201, 1101))
        width, registers = WIDTHS[rng.integers(len(WIDTHS))]
        machine = MachineModel(width, registers, threads=int(rng.choice(THREADS)))
        counts = store_counts(*product_nest(batch, rows, columns, machine))
        assert (counts == 1).all(), f"{batch} x {rows} x {columns} on {machine}"


@pytest.mark.parametrize("seed", range(2))
def test_every_thread_has_work_while_there_are_tiles(seed: int) -> None:
    """Tiles are as tall as registers allow, so a product of few rows has few."""
    rng = np.random.default_rng(seed)
    for _ in range(200):
        rows, columns = int(rng.integers(1, 201)), int(rng.integers(1, 1101))
        width, registers = WIDTHS[rng.integers(len(WIDTHS))]
        machine = MachineModel(width, registers, threads=int(rng.choice(THREADS)))
        nest, _ = product_nest(1, rows, columns, machine)
        tiles = math.ceil(rows * columns / (registers * machine.lanes("float32")))
        assert parallel_iterations(nest) >= min(machine.threads, tiles)


def product_kernel(name: str, shapes: list[tuple[int, ...]], machine: MachineModel, **attributes: Any) -> Kernel:
    call = call_op(name, *(var(f"p{i}", shape=s) for i, s in enumerate(shapes)), **attributes)
    assert isinstance(call, Call) and isinstance(call.op, Op)
    (template,) = TEMPLATES.find("llvm", call.op)
    kernel = template(Problem.of(call), machine).kernel()
    assert isinstance(kernel, Kernel), kernel
    return simplify(kernel)


# Found wrong: columns, or whole batches, were left out where the rows did not divide into the wanted chunks.
LEFT_OUT = [(7, 64, 256, 1), (19, 64, 192, 1), (13, 120, 240, 2), (50, 64, 64, 2), (25, 240, 96, 4), (197, 64, 64, 8)]


@pytest.mark.parametrize(("rows", "depth", "columns", "threads"), LEFT_OUT)
def test_products_that_were_left_incomplete(rows: int, depth: int, columns: int, threads: int) -> None:
    check_product(rows, depth, columns, MachineModel(64, 32, threads=threads))


@pytest.mark.parametrize("threads", THREADS)
def test_products_of_random_sizes_as_machine_code(threads: int) -> None:
    rng = np.random.default_rng(threads)
    for width, registers in WIDTHS:
        rows, columns, depth = (int(rng.integers(low, high)) for low, high in ((4, 100), (16, 400), (1, 70)))
        check_product(rows, depth, columns, MachineModel(width, registers, threads=threads))


def check_product(rows: int, depth: int, columns: int, machine: MachineModel) -> None:
    rng = np.random.default_rng(rows)
    a, b = (rng.normal(size=s).astype("float32") for s in ((rows, depth), (depth, columns)))
    kernel = product_kernel("nn.matmul", [a.shape, b.shape], machine)
    (result,) = run_native(kernel, a, b, threads=machine.threads, machine=machine)
    np.testing.assert_allclose(result, a @ b, rtol=1e-5, atol=1e-5)


def test_batches_of_a_product_that_were_left_incomplete() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=s).astype("float32") for s in ((3, 7, 16), (3, 16, 40)))
    machine = MachineModel(32, 16, threads=3)
    kernel = product_kernel("nn.batch_matmul", [a.shape, b.shape], machine, transpose_b=False)
    (result,) = run_native(kernel, a, b, threads=3, machine=machine)
    np.testing.assert_allclose(result, a @ b, rtol=1e-5, atol=1e-5)


# --- every way to read the right-hand side ----------------------------------------------------------------------------

AWKWARD = (1, 2, 3, 4, 5, 7, 8, 9, 13, 15, 16, 17, 31, 33, 40)


def check_everywhere(name: str, arrays: list[np.ndarray], machine: MachineModel, **attributes: Any) -> Kernel:
    """Stores counted, the interpreter's numbers, the machine code's numbers."""
    kernel = product_kernel(name, [a.shape for a in arrays], machine, **attributes)
    verify_kernel(kernel)
    assert (store_counts(kernel.body, kernel.outputs[0]) == 1).all()
    call = call_op(name, *(var(f"p{i}", shape=a.shape) for i, a in enumerate(arrays)), **attributes)
    assert isinstance(call, Call) and isinstance(call.op, Op)
    wanted = call.op.reference(*arrays)
    bound = {"rtol": 1e-5, "atol": 1e-5 * np.abs(wanted).max()}
    np.testing.assert_allclose(run_kernel(kernel, *arrays, check_races=True)[0], wanted, **bound)
    (result,) = run_native(kernel, *arrays, threads=machine.threads, machine=machine)
    np.testing.assert_allclose(result, wanted, **bound)
    return kernel


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", ["nn.dense", "nn.matmul", "nn.batch_matmul"])
def test_awkward_sizes_however_the_operands_lie(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, columns, depth = (int(rng.choice(AWKWARD)) for _ in range(3))
    width, registers = WIDTHS[seed % len(WIDTHS)]
    transpose_a, transpose_b = name != "nn.dense" and seed % 2 == 1, name == "nn.dense" or seed % 4 > 1
    batch = [(int(b),) for b in ((1, 1), (3, 3), (1, 4), (5, 1))[int(rng.integers(4))]]
    sides = [(depth, rows) if transpose_a else (rows, depth), (columns, depth) if transpose_b else (depth, columns)]
    shapes = [b + s for b, s in zip(batch, sides, strict=True)] if name == "nn.batch_matmul" else sides
    arrays = [rng.normal(size=s).astype("float32") for s in shapes]
    flags = {} if name == "nn.dense" else {"transpose_a": transpose_a, "transpose_b": transpose_b}
    check_everywhere(name, arrays, MachineModel(width, registers, threads=int(rng.choice(THREADS))), **flags)


@pytest.mark.parametrize("seed", range(3))
def test_in_pieces_of_the_depth_where_rows_are_far_apart(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, depth, columns = (int(rng.integers(*bounds)) for bounds in ((2, 9), (17, 60), (2048, 2200)))
    width, registers = WIDTHS[seed % len(WIDTHS)]
    machine = MachineModel(width, registers, l2_bytes=1024, threads=int(rng.choice(THREADS)))
    arrays = [rng.normal(size=s).astype("float32") for s in ((rows, depth), (depth, columns))]
    kernel = check_everywhere("nn.matmul", arrays, machine)
    assert "alloc sums" in str(kernel)


@pytest.mark.parametrize(("rows", "units", "depth"), [(1, 10, 9), (3, 7, 33), (17, 21, 12), (5, 255, 3), (2, 33, 4)])
def test_packed_units_that_fill_no_whole_panels(rows: int, units: int, depth: int) -> None:
    rng = np.random.default_rng(units)
    for width, registers in WIDTHS:
        lanes = width // 4
        x = rng.normal(size=(rows, depth)).astype("float32")
        weight = rng.normal(size=(-(-units // lanes), depth, lanes)).astype("float32")
        layout = {"weight_layout": f"NC{lanes}n", "units": units}
        kernel = check_everywhere(
            "nn.contrib_dense_pack", [x, weight], MachineModel(width, registers, threads=2), **layout
        )
        assert "tail" not in str(kernel)


SCHEMES = [
    ((2, 64), (40, 64), {"transpose_b": True}, "totals"),
    ((2, 64), (64, 40), {}, ""),
    ((200, 64), (64, 40), {}, ""),
    ((13, 400), (400, 6400), {}, "sums"),
    ((30, 100), (100, 6400), {}, "sums"),
    ((13, 40), (40, 6400), {}, ""),
    ((130, 400), (400, 6400), {}, "packed"),
    ((300, 64), (64, 1100), {}, "packed"),
    ((13, 5000), (5000, 500), {}, ""),
    ((200, 2000), (2000, 40), {}, "packed"),
    ((200, 8), (40, 8), {"transpose_b": True}, "packed"),
    ((50, 64), (64, 1), {}, "totals"),
    ((64, 50), (64, 1), {"transpose_a": True}, ""),
    ((50, 300), (3, 300), {"transpose_b": True}, "totals"),
]


@pytest.mark.parametrize(("left", "right", "flags", "buffer"), SCHEMES)
def test_how_the_right_hand_side_is_read(
    left: tuple[int, int], right: tuple[int, int], flags: dict[str, Any], buffer: str
) -> None:
    """As dot products, in place, there in pieces of the depth, or in panels: what costs least; never one by one."""
    text = str(product_kernel("nn.matmul", [left, right], MachineModel(64, 32), **flags))
    assert [b for b in ("totals", "packed", "sums") if f"alloc {b}" in text] == [b for b in (buffer,) if b]
    assert "vectorized" in text


@pytest.mark.parametrize(("depth", "scheme"), [(200, "in place"), (251, "packed")])
def test_rows_of_the_left_hand_side_need_room_in_the_first_level_too(depth: int, scheme: str) -> None:
    """128 bytes of each row of the right-hand side, and 6 rows of the other: 26 + 5 and 32 + 6 KB."""
    call = call_op("nn.matmul", var("x", shape=(251, depth)), var("w", shape=(depth, 257)))
    assert isinstance(call, Call) and isinstance(call.op, Op)
    (template,) = TEMPLATES.find("llvm", call.op)
    assert template(Problem.of(call), MachineModel(32, 16)).choice.scheme == scheme


def test_a_processor_without_fused_multiply_adds_calls_no_library_for_them() -> None:
    cpu = cpu_of(Target.parse("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=x86-64"))
    machine = machine_model(cpu)
    kernel = product_kernel("nn.matmul", [(4, 8), (8, 16)], machine)
    text = assembly(emit(kernel, machine), cpu)
    called = set(re.findall(r"^\s*call\w*\s+([\w.]+)", text, re.MULTILINE))
    assert "mulps" in text and called == {"minitvm.take"}


@pytest.mark.parametrize(
    ("columns", "threads", "whole"), [(512, 1, True), (512, 8, True), (512, 999, False), (8192, 1, False)]
)
def test_rows_are_written_whole_where_the_first_level_keeps_the_right_hand_side(
    columns: int, threads: int, whole: bool
) -> None:
    """Groups of columns one after the other store to a few lines of many rows, which push each other out."""
    nest, _ = product_nest(1, 1600, columns, MachineModel(64, 32, threads=threads))
    assert any(isinstance(s, For) and s.var.name == "group" for s in walk_stmts(nest)) == whole


@pytest.mark.parametrize(("depth", "most"), [(1000, 28), (512, 16), (1024, 8), (4096, 8)])
def test_rows_of_a_tile_do_not_push_each_other_out_of_the_cache(depth: int, most: int) -> None:
    """Rows of 4096 bytes share one of the places of a first-level cache of 32768, which has 8 ways."""
    call = call_op("nn.dense", var("x", shape=(56, depth)), var("w", shape=(10, depth)))
    assert isinstance(call, Call) and isinstance(call.op, Op)
    (template,) = TEMPLATES.find("llvm", call.op)
    rows = template(Problem.of(call), MachineModel(64, 32)).choice.tile.rows
    assert rows <= most
    assert depth != 1000 or rows > 8


@pytest.mark.parametrize(
    ("rows", "columns", "depth"), [(128, 768, 3072), (128, 3072, 768), (64, 8192, 768), (197, 768, 192)]
)
@pytest.mark.parametrize(("width", "registers"), WIDTHS)
def test_tiles_have_rows_enough_to_wait_for_the_second_level(
    rows: int, columns: int, depth: int, width: int, registers: int
) -> None:
    """A vector of a panel that the first level does not hold takes 1.25 cycles, in which 2.5 rows are multiplied."""
    machine = MachineModel(width, registers)
    call = call_op("nn.matmul", var("x", shape=(rows, depth)), var("w", shape=(depth, columns)))
    assert isinstance(call, Call) and isinstance(call.op, Op)
    (template,) = TEMPLATES.find("llvm", call.op)
    tile = template(Problem.of(call), machine).choice.tile
    assert tile.rows >= 3 or depth * tile.blocks * width <= machine.l1_bytes
