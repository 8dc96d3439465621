"""Every choice of every template, on every machine, number of threads and dtype, around the edges of its tiles.

A sample here.  What is taken of every problem (half an hour a core), or of some templates every choice of every n-th:

    python tests/codegen/test_template_matrix.py
    python tests/codegen/test_template_matrix.py choices Matmul BlockedConv 50

What is taken stores every element once, is no longer than a bound, and has work for the threads while there are tiles.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
from operator_cases.norms import quantized_recurrence
from operator_cases.products import few_bits_operands

from minitvm.codegen.coverage import Verdict, check_coverage
from minitvm.codegen.problem import TEMPLATES, Choice, Problem, Template, Tile
from minitvm.codegen.simplify import simplify
from minitvm.codegen.templates.attention import Attention
from minitvm.codegen.templates.conv_blocked import BlockedConv, BlockedDepthwise
from minitvm.codegen.templates.conv_pixels import PixelConv, TransposedConv
from minitvm.codegen.templates.dense_blocks import DenseBlocks
from minitvm.codegen.templates.matmul import DensePack, Matmul
from minitvm.codegen.templates.recurrent import Gru, Lstm, Recurrent, Rnn
from minitvm.codegen.templates.recurrent_quantized import QuantizedLstm
from minitvm.codegen.templates.running_sum import RunningSum
from minitvm.codegen.templates.tensor_scatter import CacheUpdate
from minitvm.codegen.templates.winograd import Winograd
from minitvm.ir.builder import call_op, var
from minitvm.ir.expr import Call, Constant
from minitvm.ir.loop import (
    Alloc,
    Barrier,
    Buffer,
    Const,
    For,
    If,
    Kernel,
    Load,
    LoopKind,
    Prefetch,
    Seq,
    Stmt,
    Store,
    const,
    map_stmt,
    nest,
    seq,
    walk_stmts,
)
from minitvm.ir.loop.affine import loads
from minitvm.ir.loop.interp import run_kernel
from minitvm.ir.loop.verify import verify_kernel
from minitvm.target import MachineModel

MACHINES = {"SSE": (16, 16), "AVX2": (32, 16), "AVX-512": (64, 32), "NEON": (16, 32)}
THREADS = (1, 2, 3, 16, 64)
DTYPES = ("float32", "float16", "float64")
MOST_STATEMENTS = 700
"""Tiles are written out once for each size, at edges once for each tap, and squares of registers by their steps."""
INTERPRETED = 40_000
"""Operations, of the samples that run in the interpreter."""


OF_WORDS = (QuantizedLstm, DenseBlocks)
"""Templates whose operands are no random numbers; their own tests compare what they compute."""


@dataclass(frozen=True)
class Subject:
    """A template, and calls whose register tiles have so many rows and lanes."""

    template: type[Template]
    call: Callable[[int, int, int, str], Call]
    """From (rows, columns, lanes of a vector, dtype)."""
    most_columns: int = 10_000

    def __str__(self) -> str:
        return self.template.__name__


def made(name: str, shapes: list[tuple[int, ...]], dtype: str, **attributes: object) -> Call:
    """A call of operands of a dtype; of int32, of words of bytes."""
    name = f"q{name}" if dtype == "int32" else name
    call = call_op(name, *(var(f"p{i}", shape=s, dtype=dtype) for i, s in enumerate(shapes)), **attributes)
    assert isinstance(call, Call)
    return call


def matmul(rows: int, columns: int, lanes: int, dtype: str) -> Call:
    """However the operands lie."""
    flags = {"transpose_a": rows % 3 == 0, "transpose_b": columns % 2 == 0}
    shapes = [(9, rows) if flags["transpose_a"] else (rows, 9), (columns, 9) if flags["transpose_b"] else (9, columns)]
    return made("nn.matmul", shapes, dtype, **flags)


def dense_pack(rows: int, columns: int, lanes: int, dtype: str) -> Call:
    shapes = [(rows, 5), (-(-columns // lanes), 5, lanes)]
    return made("nn.contrib_dense_pack", shapes, dtype, weight_layout=f"NC{lanes}n", units=columns)


def blocked(rows: int, columns: int, lanes: int, dtype: str) -> Call:
    """An image of few rows, pointwise or not; blocks of results as its channels allow."""
    size = 1 if columns % 2 else 3
    layouts = {"data_layout": "NCHW2c", "kernel_layout": f"OIHW2i{lanes}o"}
    out = {"out_layout": f"NCHW{math.gcd(columns, lanes)}c", "channels": columns, "padding": (size // 2,) * 4}
    shapes = [(1, 2, 2, rows, 2), (-(-columns // lanes), 2, size, size, 2, lanes)]
    return made("nn.contrib_conv2d_NCHWc", shapes, dtype, **layouts, **out)


def winograd(rows: int, columns: int, lanes: int, dtype: str, inner: int = 2) -> Call:
    """A row of so many tiles, the last one not whole; blocks of results as their channels allow."""
    tile = 2 + columns % 2 * 2
    layouts = {"data_layout": f"NCHW{inner}c", "kernel_layout": f"OHWI{inner}i{lanes}o", "tile_size": tile}
    out = {"out_layout": f"NCHW{math.gcd(columns, lanes)}c", "channels": columns, "padding": (0, 1, 1, 0)}
    shapes = [(1, 2, 2, rows * tile, inner), (-(-columns // lanes), tile + 2, tile + 2, 2, inner, lanes)]
    return made("nn.contrib_conv2d_winograd_NCHWc", shapes, dtype, **layouts, **out)


def depthwise(rows: int, columns: int, lanes: int, dtype: str) -> Call:
    blocks = -(-columns // lanes)
    layouts = {"data_layout": f"NCHW{lanes}c", "kernel_layout": f"OIHW1i{lanes}o", "out_layout": f"NCHW{lanes}c"}
    channels = {"channels": blocks * lanes, "groups": blocks * lanes, "padding": (0, 1, 0, 1)}
    shapes = [(1, blocks, 2, rows, lanes), (blocks, 1, 1, 3, 1, lanes)]
    return made("nn.contrib_depthwise_conv2d_NCHWc", shapes, dtype, **layouts, **channels)


def pixels(rows: int, columns: int, lanes: int, dtype: str) -> Call:
    """One row of pixels, or several with padding between them, or pixels as they are."""
    height, size = ((1, 3), (3, 3), (1, 1))[columns % 3]
    width = max(1, columns // height)
    return made("nn.conv2d", [(1, 3, height, width), (rows, 3, size, size)], dtype, padding=(size // 2,) * 4)


def rows_of_pixels(rows: int, columns: int, lanes: int, dtype: str) -> Call:
    """One channel a group: windows next to each other, some apart, with holes, padded or not."""
    stride, dilation, pad = ((1, 1, 1), (2, 1, 1), (1, 2, 2), (1, 1, 0))[(rows + columns) % 4]
    before = 2 * dilation - 2 * pad + 1
    shapes = [(2, 2, (rows - 1) * stride + before, (columns - 1) * stride + before), (2, 1, 3, 3)]
    steps = {"strides": (stride,) * 2, "dilation": (dilation,) * 2, "padding": (pad,) * 4}
    return made("nn.conv2d", shapes, dtype, groups=2, **steps)


def transposed(rows: int, columns: int, lanes: int, dtype: str) -> Call:
    return made("nn.conv1d_transpose", [(1, 2, columns), (2, rows, 3)], dtype, strides=(1 + columns % 2,))


def recurrent(name: str, gates: int) -> Callable[[int, int, int, str], Call]:
    def call(rows: int, columns: int, lanes: int, dtype: str) -> Call:
        shapes = [(2, rows, gates * columns), (gates * columns, columns)]
        shapes += [(gates * columns,)] if gates == 3 else []
        shapes += [(rows, columns)] * (2 if gates == 4 else 1)
        return made(name, shapes, dtype, **({"linear_before_reset": rows % 2 == 1} if gates == 3 else {}))

    return call


def quantized_lstm(rows: int, columns: int, lanes: int, dtype: str) -> Call:
    """Whatever the dtype, floats and words; sequences share a range, so that one thread has them all."""
    weight = quantized_recurrence(columns, rows % 2 == 1, 0)
    shapes = [(2, rows, 4 * columns), *((rows, columns),) * 2]
    xw, h, c = (var(f"p{i}", shape=shape) for i, shape in enumerate(shapes))
    call = call_op("qnn.lstm", xw, *map(Constant, weight), h, c)
    assert isinstance(call, Call)
    return call


def dense_blocks(rows: int, columns: int, lanes: int, dtype: str) -> Call:
    """Of float32 wherever a scale has another dtype than a half."""
    scales = dtype if dtype == "float16" else "float32"
    operands = few_bits_operands(
        np.random.default_rng(0), (rows, 2, columns), 16, 2 << rows % 3, bool(columns % 2), scales
    )
    variables = [var(f"p{i}", shape=a.shape, dtype=str(a.dtype)) for i, a in enumerate(operands)]
    call = call_op("qnn.dense_blocks", *variables, units=columns, block=16, bits=2 << rows % 3)
    assert isinstance(call, Call)
    return call


def cumsum(rows: int, columns: int, lanes: int, dtype: str) -> Call:
    return made("cumsum", [(rows, 3, columns)], dtype, axis=1)


def attention(rows: int, columns: int, lanes: int, dtype: str) -> Call:
    """Rows of tiles are places, queries their lanes; masks of all places, of some, or none."""
    heads = 1 + rows % 2
    shapes = [(1, columns, heads, 3), (1, rows, heads, 3), (1, rows, heads, 1 + columns % 5)]
    masks = [[], [(rows,)], [(columns, rows)]]
    return made("nn.attention", [*shapes, *masks[rows % 3]], dtype, scale=0.5)


SUBJECTS = [
    Subject(Matmul, matmul),
    Subject(Attention, attention, 70),
    Subject(DensePack, dense_pack),
    Subject(DenseBlocks, dense_blocks),
    Subject(BlockedConv, blocked),
    Subject(BlockedDepthwise, depthwise, 64),
    Subject(PixelConv, pixels),
    Subject(Winograd, winograd),
    Subject(TransposedConv, transposed),
    Subject(Lstm, recurrent("nn.lstm", 4), 70),
    Subject(QuantizedLstm, quantized_lstm, 70),
    Subject(Gru, recurrent("nn.gru", 3), 70),
    Subject(Rnn, recurrent("nn.rnn", 1), 70),
    Subject(RunningSum, cumsum),
    Subject(PixelConv, rows_of_pixels, 70),
]


def test_every_template_is_a_subject() -> None:
    """Those of processors; of GPUs, ``test_cuda_schedules.py`` asks.  A cache's update has neither tiles nor sums."""
    known = {template for (kind, _), templates in TEMPLATES.table.items() if kind == "llvm" for template in templates}
    assert known == {CacheUpdate, *(subject.template for subject in SUBJECTS)}


# --- what is drawn ----------------------------------------------------------------------------------------------------


def machines() -> Iterator[MachineModel]:
    for (size, registers), threads in itertools.product(MACHINES.values(), THREADS):
        yield MachineModel(size, registers, threads=threads)


def template_of(subject: Subject, call: Call, machine: MachineModel) -> Template:
    return subject.template(Problem.of(call), machine)


def extents(subject: Subject, machine: MachineModel, dtype: str) -> list[tuple[int, int]]:
    """Rows and columns around one and two tiles of every size in the search space."""
    lanes = machine.lanes("float32" if dtype == "float16" else dtype)
    wide = template_of(subject, subject.call(60, min(subject.most_columns, 17 * lanes), lanes, dtype), machine)
    found = {
        (k * tile.rows + i, min(subject.most_columns, k * tile.blocks * lanes + j))
        for tile in {choice.tile for choice in wide.candidates}
        for k, i, j in itertools.product((1, 2), (-1, 0, 1), (-1, 0, 1))
    }
    return sorted((rows, columns) for rows, columns in found if rows and columns)


@dataclass(frozen=True)
class Drawn:
    subject: Subject
    machine: MachineModel
    dtype: str
    rows: int
    columns: int

    @property
    def template(self) -> Template:
        lanes = self.machine.lanes("float32" if self.dtype == "float16" else self.dtype)
        return template_of(self.subject, self.subject.call(self.rows, self.columns, lanes, self.dtype), self.machine)


def everything(subject: Subject) -> Iterator[Drawn]:
    for machine, dtype in itertools.product(machines(), DTYPES):
        for rows, columns in extents(subject, machine, dtype):
            yield Drawn(subject, machine, dtype, rows, columns)


def sampled(subject: Subject, count: int, seed: int = 0) -> Iterator[Drawn]:
    rng = np.random.default_rng(seed)
    known = list(machines())
    for i in range(count):
        machine, dtype = known[rng.integers(len(known))], DTYPES[i % len(DTYPES)]
        sizes = extents(subject, machine, dtype)
        yield Drawn(subject, machine, dtype, *sizes[rng.integers(len(sizes))])


# --- what has to hold -------------------------------------------------------------------------------------------------


def check(drawn: Drawn, template: Template, choice: Choice) -> Kernel:
    what = f"{drawn}: {choice}"
    made = template.kernel(choice)
    assert isinstance(made, Kernel), f"{what}: {made}"
    kernel = simplify(made)
    verify_kernel(kernel)
    assert all(found.verdict is not Verdict.UNDECIDED for found in check_coverage(kernel)), what
    statements = sum(1 for _ in walk_stmts(kernel.body))
    assert statements <= MOST_STATEMENTS, f"{statements} statements, {what}"
    if not choice.why_not:
        iterations, tiles = parallel_iterations(kernel.body), tiles_of(template, choice)
        assert iterations >= min(drawn.machine.threads, tiles), f"{iterations} iterations, {tiles} tiles, {what}"
    return kernel


def parallel_iterations(stmt: Stmt) -> int:
    """Of the last stretch between two barriers in which there are some."""
    match stmt:
        case Seq(stmts):
            stretches = itertools.groupby(stmts, lambda part: not isinstance(part, Barrier))
            found = [sum(map(parallel_iterations, parts)) for is_work, parts in stretches if is_work]
            return next(filter(None, reversed(found)), 0)
        case Alloc(_, body):
            return parallel_iterations(body)
        case For(_, Const(extent, _), _, LoopKind.PARALLEL):
            return int(extent)
    return 0


def tiles_of(template: Template, choice: Choice) -> int:
    """Register tiles of the result; of a recurrent layer the sequences, of attention queries side by side."""
    out, tile = template.problem.output.shape, choice.tile
    if isinstance(template, QuantizedLstm):
        return 1
    if isinstance(template, Recurrent):
        return out[1]
    if isinstance(template, Winograd):
        return template.tiles // tile.rows * (template.weight.shape[0] // tile.blocks)
    if isinstance(template, RunningSum):
        return out[0] * -(-out[2] // (4 * template.lanes))
    if isinstance(template, Attention):
        return out[0] * out[2] * -(-out[1] // (tile.blocks * template.lanes))
    largest = tile.rows * tile.blocks * (1 if "dot" in choice.scheme else template.lanes)
    return math.prod(out) // largest


@pytest.mark.parametrize("subject", SUBJECTS, ids=str)
def test_around_the_edges_of_tiles(subject: Subject) -> None:
    rng = np.random.default_rng(1)
    for drawn in sampled(subject, 15):
        template = drawn.template
        others = rng.integers(len(template.candidates), size=1)
        for number in {0, *map(int, others)}:
            check(drawn, template, template.candidates[number])


def test_pieces_of_an_image_that_were_fewer_than_threads() -> None:
    """Found wrong: 28 columns in 16 pieces of 2, which are 14."""
    drawn = Drawn(SUBJECTS[2], MachineModel(32, 16, threads=16), "float16", 14, 9)
    template = drawn.template
    for choice in template.candidates:
        check(drawn, template, choice)


@pytest.mark.parametrize("subject", [s for s in SUBJECTS if s.template in (Lstm, Gru, Rnn)], ids=str)
def test_sequences_that_were_fewer_walks_than_threads(subject: Subject) -> None:
    """Found wrong: 4 sequences on 3 threads as two pairs; 5 on 4 in two loops, of which one thread had three."""
    for sequences, threads in ((4, 3), (5, 4)):
        drawn = Drawn(subject, MachineModel(16, 16, threads=threads), "float32", sequences, 11)
        kernel = check(drawn, drawn.template, drawn.template.choice)
        walks = [s for s in walk_stmts(kernel.body) if isinstance(s, For) and s.var.name == "b"]
        assert [walk.extent for walk in walks] == [Const(threads)]


@pytest.mark.parametrize("subject", [s for s in SUBJECTS if s.template not in OF_WORDS], ids=str)
def test_every_choice_gives_the_same_numbers(subject: Subject) -> None:
    """The interpreter's, of small problems, against numpy's."""
    rng = np.random.default_rng(2)
    for drawn in sampled(subject, 12, seed=3):
        template = drawn.template
        problem = template.problem
        work = math.prod(problem.output.shape) * max(1, math.prod(problem.inputs[-1].shape[1:]))
        if work * (4 if isinstance(template, Recurrent) else 1) > INTERPRETED:
            continue
        arrays = [(rng.normal(size=b.shape) * 0.3).astype(b.dtype) for b in problem.inputs]
        expected = problem.op.reference(*(a.astype("float64") for a in arrays))
        kernel = template.kernel(template.candidates[int(rng.integers(len(template.candidates)))])
        assert isinstance(kernel, Kernel)
        results = run_kernel(simplify(kernel), *arrays, check_races=True)
        for have, want in zip(results, expected if isinstance(expected, tuple) else (expected,), strict=True):
            scale = max(1.0, float(np.abs(want).max()))
            bound = scale * float(np.finfo(have.dtype).eps) * 40
            np.testing.assert_allclose(have, want, rtol=0, atol=bound, err_msg=str(drawn))


@pytest.mark.parametrize("subject", [s for s in SUBJECTS if s.template in (DensePack, BlockedConv)], ids=str)
def test_products_of_words(subject: Subject) -> None:
    """Sums of integers are exact, and wrap around."""
    rng, known = np.random.default_rng(4), list(machines())
    for machine in (known[i] for i in rng.integers(len(known), size=12)):
        sizes = extents(subject, machine, "int32")
        drawn = Drawn(subject, machine, "int32", *sizes[rng.integers(len(sizes))])
        template = drawn.template
        kernel = check(drawn, template, template.choice)
        problem = template.problem
        if math.prod(problem.output.shape) * math.prod(problem.inputs[-1].shape[1:]) <= INTERPRETED:
            arrays = [rng.integers(-(2**31), 2**31, b.shape).astype("int32") for b in problem.inputs]
            (found,) = run_kernel(kernel, *arrays, check_races=True)
            np.testing.assert_array_equal(found, problem.op.reference(*arrays), err_msg=str(drawn))


def fetched(kernel: Kernel) -> np.ndarray:
    """1 where the kernel names an element of the weights in a prefetch, else 0."""
    weight = kernel.inputs[1]
    noticed = Buffer("noticed", weight.shape, "int32")

    def noted(stmt: Stmt) -> Stmt:
        match stmt:
            case Prefetch(Load(_, index)):
                return Store(noticed, index, const(1, "int32"))
            case Store():
                return Seq(())
            case If(condition) if loads(condition):  # what is stored decides, and nothing is here
                return Seq(())
        return stmt

    none = nest(weight.shape, lambda *i: Store(noticed, i, const(0, "int32")))
    traced = Kernel("k", (*kernel.inputs, noticed), seq(none, map_stmt(kernel.body, lambda e: e, noted)))
    (found,) = run_kernel(traced, *(np.zeros(b.shape, b.dtype) for b in kernel.inputs))
    return found


def test_tiles_fetch_all_of_the_weights_that_come_next() -> None:
    """Of products of words; of 5 blocks in sets of 2, 2 and 1 the first two are used by the time that one is named."""
    (subject,) = (s for s in SUBJECTS if s.template is BlockedConv)
    drawn = Drawn(subject, MachineModel(32, 16), "int32", 12, 33)
    template = drawn.template
    (choice,) = (c for c in template.candidates if str(c) == "some channels for all rows, tiles of 6 x 2 vectors")
    found = fetched(check(drawn, template, choice))
    lines = found[..., 0, 0]
    assert found.shape[4:] == (2, 8)  # a line
    assert lines[2:].all() and not lines[:2].any()
    for l1_bytes in (512, 1 << 20):  # floats only where weights leave the first level; two rows of 8 are a line
        floats = replace(drawn, dtype="float32", machine=MachineModel(32, 16, l1_bytes=l1_bytes))
        (choice,) = (c for c in floats.template.candidates if str(c).endswith("for all rows, tiles of 6 x 2 vectors"))
        lines = fetched(check(floats, floats.template, choice))[..., ::2, 0]
        assert (lines[2:].all() if l1_bytes == 512 else not lines[2:].any()) and not lines[:2].any()


@pytest.mark.parametrize(("rows", "depth"), [(12, 40), (17, 9), (200, 33), (9, 24)])
def test_tiles_fetch_all_of_the_next_panels_that_come_from_afar(rows: int, depth: int) -> None:
    """Of floats, where the first-level cache of so many bytes does not hold the panels: two rows of 8 are a line."""

    def call(rows: int, columns: int, lanes: int, dtype: str) -> Call:
        shapes = [(rows, depth), (-(-columns // lanes), depth, lanes)]
        return made("nn.contrib_dense_pack", shapes, dtype, weight_layout=f"NC{lanes}n", units=columns)

    def panels(l1_bytes: int, rows: int) -> np.ndarray:
        drawn = Drawn(Subject(DensePack, call), MachineModel(32, 16, l1_bytes=l1_bytes), "float32", rows, 49)
        template = drawn.template
        (choice,) = (c for c in template.candidates if str(c).endswith("tiles of 6 x 2 vectors"))
        return fetched(check(drawn, template, choice))

    found = panels(1024, rows)
    assert found.shape == (7, depth, 8)  # blocks in groups of 2, 2, 2 and 1
    assert found[2:, ::2, 0].all() and not found[:2].any()
    assert not panels(1 << 20, rows).any() and not panels(1024, 6).any()


@pytest.mark.parametrize(("rows", "columns", "threads"), [(3, 33, 1), (17, 33, 1), (14, 34, 2), (4, 35, 3)])
def test_winograds_tiles_fetch_all_of_the_next_weights(rows: int, columns: int, threads: int) -> None:
    """That come from afar, but those of the very first place; 2 channels of 8 lanes are a line, and 4 a turn."""

    def weights(l1_bytes: int) -> Iterator[np.ndarray]:
        machine = MachineModel(32, 16, l1_bytes=l1_bytes, threads=threads)
        drawn = Drawn(Subject(Winograd, partial(winograd, inner=4)), machine, "float32", rows, columns)
        template = drawn.template
        for choice in template.candidates:
            if choice.tile == Tile(3, 2):
                yield fetched(check(drawn, template, choice))

    for found in weights(1024):
        lines = found[..., ::2, 0].any(axis=(3, 4)), found[..., ::2, 0].all(axis=(3, 4))
        expected = np.ones(found.shape[:3], bool)
        expected[:2, 0, 0] = False
        for some in lines:
            np.testing.assert_array_equal(some, expected)
    assert not any(found.any() for found in weights(1 << 20))


def test_tiles_of_many_blocks_wait_for_weights_that_leave_the_first_level() -> None:
    """Of words: 6 blocks of 128 bytes leave 512 bytes, 2 do not."""
    (subject,) = (s for s in SUBJECTS if s.template is BlockedConv)

    def cycles(near: int, dtype: str, *tile: int) -> float:
        found = Drawn(subject, MachineModel(32, 16, l1_bytes=near), dtype, 12, 49).template.candidates
        wanted = f"some channels for all rows, tiles of {tile[0]} x {tile[1]} vectors"
        return next(c.cycles for c in found if str(c) == wanted)

    assert cycles(512, "int32", 2, 6) > cycles(32768, "int32", 2, 6)
    assert cycles(512, "int32", 6, 2) == cycles(32768, "int32", 6, 2)
    assert cycles(512, "float32", 2, 6) == cycles(32768, "float32", 2, 6)


def main(*arguments: str) -> None:
    """What is taken, or all ``choices``, of all templates or those named; of every n-th problem."""
    names = [a for a in arguments if a in map(str, SUBJECTS)]
    every = int(next((a for a in arguments if a.isdigit()), 1))
    for subject in SUBJECTS:
        if str(subject) in (names or str(subject)):
            problems = kernels = 0
            for drawn in itertools.islice(everything(subject), 0, None, every):
                template = drawn.template
                candidates = template.candidates if "choices" in arguments else template.candidates[:1]
                for choice in candidates:
                    check(drawn, template, choice)
                problems, kernels = problems + 1, kernels + len(candidates)
            print(f"{subject}: {problems:,} problems, {kernels:,} kernels", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
