"""Schedules of GPUs for what no template writes: the right numbers without races, what was taken, the CUDA C, cubins.

Sizes lie around the edges of vectors, warps, blocks and tiles.  A GPU of one SM is busy with little, so that what large
problems get is met in small ones.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from cuda_kernels import group
from dressed import group as dressed_group
from nvrtc import needs_nvrtc
from operator_cases import GENERATORS, Accuracy, RandomDraw, random_case
from test_cuda_templates import CASES as TEMPLATE_CASES
from test_cuda_templates import made as template_of
from test_ops import WITHOUT_COMPUTE, WITHOUT_SAMPLE
from test_recurrent import GATES
from test_recurrent import arrays_of as recurrent_arrays

import minitvm
from benchmarks.nvrtc import ptx
from minitvm import relay
from minitvm.codegen.backend import backend_of
from minitvm.codegen.coverage import check_coverage
from minitvm.codegen.cuda import spell
from minitvm.codegen.cuda.backend import compile_cubin
from minitvm.codegen.cuda.bind import bind_plain
from minitvm.codegen.cuda.emit import emit_cuda
from minitvm.codegen.cuda.machine import GpuModel, gpu_model
from minitvm.codegen.cuda.schedules.recurrent import GpuGru, GpuLstm, GpuRnn
from minitvm.codegen.cuda.schedules.scans import GpuRunningSum
from minitvm.codegen.cuda.schedules.scatter import GpuScatterElements, GpuScatterNd
from minitvm.codegen.cuda.schedules.selection import GpuNonZero, GpuUnique
from minitvm.codegen.cuda.schedules.sorting import GpuSort
from minitvm.codegen.cuda.schedules.suppression import GpuSuppression
from minitvm.codegen.lower import Lowering, lowering
from minitvm.codegen.problem import TEMPLATES
from minitvm.codegen.simplify import simplify
from minitvm.errors import CompilerError
from minitvm.ir.builder import call_op, var
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Expr, Function
from minitvm.ir.loop import Buffer, If, Kernel, LoopExpr, LoopKind, Shuffle, Stmt, Store, loop, select, seq
from minitvm.ir.loop.interp import run_kernel, run_sequence
from minitvm.ir.loop.verify import verify_kernel
from minitvm.target import Target
from simulated_gpu import ORDERS
from simulated_gpu.device import HostGroups, simulated_target
from tests.compilers import PARTS, needs_compiler
from tests.gathered import Gathered

BACKEND = backend_of(Target("cuda"), 1)
LARGE = gpu_model("sm_90")
SMALL = replace(LARGE, sms=1)
EDGES = (1, 2, 31, 32, 33, 255, 257, 1021)
NEAR = Accuracy(ulps=16, scale=64)


@dataclass(frozen=True)
class Case:
    """A group, and a word of what is decided about it on one of the GPUs."""

    function: Function
    taken: str


def _case(taken: str, build: Callable[..., Expr], *shapes: tuple[int, ...], dtype: str = "float32") -> Case:
    return Case(group(build, *shapes, dtype=dtype), taken)


def _op(name: str, **attributes: object) -> Callable[..., Expr]:
    return lambda *operands: call_op(name, *operands, **attributes)


CASES = {
    **{f"add {n}": _case("a thread for each of", _op("add"), (n,), (n,)) for n in EDGES},
    **{f"add {n}": _case("a thread for 4 of", _op("add"), (n,), (n,)) for n in (4097, 4100)},
    "add none": _case("", _op("add"), (0, 3), (0, 3)),
    "bias": _case("a thread for 4 of", _op("add"), (37, 36), (36,)),
    "bias of odd rows": _case("a thread for each of", _op("add"), (37, 37), (37,)),
    "half": _case("a thread for 8 of", _op("multiply"), (2, 1031), (2, 1031), dtype="float16"),
    "bytes": _case("a thread for 8 of", _op("maximum"), (2063,), (2063,), dtype="uint8"),
    "doubles": _case("a thread for 2 of", _op("add"), (1031,), (1031,), dtype="float64"),
    "split": _case("a thread for 4 of 1036", _op("split", indices_or_sections=2, axis=0), (14, 148)),
    **{
        f"transpose {m} {n}": _case("tiles of 32 x 32", _op("transpose", axes=(0, 2, 1)), (2, m, n))
        for m, n in ((4, 33), (32, 32), (31, 65), (37, 5))
    },
    **{f"sum {n}": _case("reduced by", _op("sum", axis=(1,)), (5, n)) for n in EDGES if n > 16},
    **{f"max {n}": _case("reduced by", _op("max", axis=(1,)), (3, n), dtype="int32") for n in (33, 128, 1024)},
    "sum 2": _case("a thread reduces for each result", _op("sum", axis=(1,)), (5, 2)),
    "sum of all": _case("reduced in", _op("sum"), (3, 9001)),
    "mean of halves": _case("reduced by", _op("mean", axis=(1,)), (9, 520), dtype="float16"),
    "prod of none": _case("", _op("prod", axis=(1,)), (4, 0)),
    **{f"columns {n}": _case("a thread of 32 for each result", _op("sum", axis=(0,)), (70, n)) for n in (31, 33)},
    "rows in parts of several lengths": _case("reduced in 4 parts", _op("max", axis=(1,)), (1, 20011)),
    "columns in parts": _case("reduced in", _op("max", axis=(0,)), (9001, 3)),
    "argmax": _case("row by row", _op("argmax", axis=(1,)), (5, 257)),
    "argmin down": _case("row by row", _op("argmin", axis=(0,)), (33, 7)),
    **{f"softmax {n}": _case("row by row", _op("nn.softmax"), (3, n)) for n in EDGES},
    "softmax of a long row": _case("row by row", _op("nn.softmax"), (1, 5000)),
    "softmax down": _case("row by row", _op("nn.softmax", axis=1), (2, 19, 33)),
    "log softmax": _case("row by row", _op("nn.log_softmax"), (70, 40)),
    "layer norm": _case("row by row", _op("nn.layer_norm"), (9, 260), (260,), (260,)),
    "instance norm": _case("row by row", _op("nn.instance_norm"), (2, 3, 17, 19), (3,), (3,)),
    "logsumexp": _case("row by row", _op("logsumexp", axis=(1,)), (5, 300)),
    "pool": _case(
        "a thread reduces for each result", _op("nn.max_pool2d", pool_size=(3, 3), padding=(1,) * 4), (2, 3, 9, 11)
    ),
    "pool and scale": _case(
        "row by row, a thread for a row",
        lambda x, s: call_op("nn.relu", call_op("nn.max_pool2d", x, pool_size=(3, 3), padding=(1,) * 4) * s),
        (1, 3, 9, 11),
        (3, 1, 1),
    ),
    "mean of pixels": _case("reduced by", _op("nn.global_avg_pool2d"), (2, 33, 7, 7)),
}


def lowered(function: Function, machine: GpuModel) -> tuple[Lowering, Kernel, tuple[Kernel, ...]]:
    found = lowering(function, "kernel", machine, "cuda")
    kernel = simplify(found.kernel)
    check_coverage(kernel)
    bound = bind_plain(kernel) if kernel.body != seq() else ()
    for part in bound:
        verify_kernel(part)
    return found, kernel, bound


def arrays_of(function: Function) -> list[np.ndarray]:
    rng = np.random.default_rng(len(function.params))
    found = []
    for param in function.params:
        values = rng.normal(size=param.type.shape) * 4  # type: ignore[union-attr]
        found.append(values.astype(param.type.dtype))  # type: ignore[union-attr]
    return found


def expected_of(function: Function, arrays: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    value = evaluate(function, *arrays)
    return value if isinstance(value, tuple) else (value,)  # type: ignore[return-value]


def check(kernel: Kernel, results: list[np.ndarray], expected: tuple[np.ndarray, ...], near: Accuracy) -> None:
    for buffer, result, want in zip(kernel.outputs, results, expected, strict=True):
        wrong = near.differences(result.reshape(want.shape), want)
        assert not wrong.any(), f"{buffer.name}: {result.reshape(want.shape)[wrong][:3]}, not {want[wrong][:3]}"


def interpreted(kernel: Kernel, bound: tuple[Kernel, ...], arrays: list[np.ndarray]) -> list[np.ndarray]:
    given = {b: np.reshape(a, b.shape) for b, a in zip(kernel.inputs, arrays, strict=True)}
    found = run_sequence(bound, given, check_races=True)
    return [found.get(b, np.zeros(b.shape, b.dtype)) for b in kernel.outputs]


@pytest.mark.parametrize("name", CASES)
def test_schedules_give_the_right_numbers(name: str) -> None:
    case, reasons = CASES[name], list[str]()
    arrays = arrays_of(case.function)
    for machine in (SMALL, LARGE):
        found, kernel, bound = lowered(case.function, machine)
        check(kernel, interpreted(kernel, bound, arrays), expected_of(case.function, arrays), NEAR)
        reasons += [d.reason for d in found.decisions if d.taken and d.by == "schedule"]
    assert any(case.taken in reason for reason in reasons) or not case.taken, reasons


@pytest.mark.parametrize("machine", [SMALL, LARGE], ids=["one SM", "many"])
def test_every_operator_gives_the_right_numbers(machine: GpuModel) -> None:
    """Random calls of every operator, of any dtype it accepts, alone and in groups."""
    for name in GENERATORS:
        draw = RandomDraw(zlib.crc32(f"{name} {machine.sms}".encode()))
        call = random_case(name, draw)
        if call.op.name not in WITHOUT_COMPUTE | WITHOUT_SAMPLE:
            found = dressed_group(call, draw)
            _, kernel, bound = lowered(found.function, machine)
            check(kernel, interpreted(kernel, bound, found.arrays), found.expected, found.accuracy)


@needs_compiler
@pytest.mark.parametrize("part", range(PARTS))
def test_the_cuda_c_gives_the_right_numbers(part: int) -> None:
    """Of every case, on the simulated GPU, in every order of blocks and threads."""
    able = {n: c for n, c in CASES.items() if all(0 not in p.type.shape for p in c.function.params)}  # type: ignore[union-attr]
    cases = [*able.items()][part::PARTS]
    made = [(name, c.function, lowered(c.function, SMALL)[1]) for name, c in cases]
    launches = [BACKEND.bind(kernel) for _, _, kernel in made]
    groups, each = HostGroups([BACKEND.source(found) for found in launches]), Gathered()
    for number, ((name, function, kernel), found) in enumerate(zip(made, launches, strict=True)):
        arrays = arrays_of(function)
        for order in ORDERS:
            results = [np.full(b.shape, 77).astype(b.dtype) for b in kernel.outputs]
            memory = np.full(int(BACKEND.workspace(found).nbytes), 77, np.uint8)  # type: ignore[arg-type]
            with each.case(f"{name}, {order}"):
                groups.run(number, [*arrays, *results], memory, order, seed=number)
                check(kernel, results, expected_of(function, arrays), NEAR)
    each.end()


@needs_nvrtc
def test_cubins_need_few_registers_and_spill_nothing() -> None:
    """All kernels in one text, as one compilation costs more than a kernel does."""
    parts: list[Kernel] = []
    for number, case in enumerate(CASES.values()):
        found = lowered(case.function, LARGE)[2] + lowered(case.function, SMALL)[2]
        parts += [replace(part, name=f"k{number}_{i}") for i, part in enumerate(found) if part.body != seq()]
    cubin = compile_cubin(emit_cuda(*parts))
    assert cubin.spills == 0 and cubin.registers <= 64 and cubin.shared_bytes <= 48 * 1024


@needs_nvrtc
def test_large_elements_move_by_16_bytes() -> None:
    for name, dtype, count in (("add", "float32", 4), ("maximum", "float16", 8)):
        (part,) = lowered(group(_op(name), (1 << 20,), (1 << 20,), dtype=dtype), LARGE)[2]
        assert f"Pack<{spell.STORAGE[dtype]}, {count}>" in emit_cuda(part)
        text = ptx(emit_cuda(part), "sm_90")
        assert len(re.findall(r"ld\.global(\.nc)?\.v4\.", text)) == 2 and text.count("st.global.v4.") == 1


def test_what_a_row_hands_on_stays_in_registers() -> None:
    """Of softmax with 128 elements a row: exponentials, which the sum and the result read at the same places."""
    (part,) = lowered(group(_op("nn.softmax"), (4000, 128)), LARGE)[2]
    assert "alloc exponentials: float32[1, 4] local" in str(part) and "shared" not in str(part)


# --- shuffles -------------------------------------------------------------------------------------------------------


def shuffled(threads: int, wrap: Callable[[LoopExpr, Stmt], Stmt] = lambda lane, stmt: stmt, mask: int = 5) -> Kernel:
    """``y[i] = x[i xor 5]`` in blocks of threads."""
    x, y = Buffer("x", (2 * threads,), "int32"), Buffer("y", (2 * threads,), "int32")

    def thread(block: LoopExpr, lane: LoopExpr) -> Stmt:
        at = block * threads + lane
        return wrap(lane, Store(y, (at,), Shuffle(x[at], mask)))

    def in_block(block: LoopExpr) -> Stmt:
        return loop(threads, lambda lane: thread(block, lane), LoopKind.THREAD_X, "lane")

    return Kernel("k", (x, y), loop(2, in_block, LoopKind.BLOCK_X, "block"))


def test_a_shuffle_takes_another_threads_value() -> None:
    kernel, x = shuffled(64), np.arange(128, dtype="int32")
    verify_kernel(kernel)
    np.testing.assert_array_equal(run_kernel(kernel, x)[0], x ^ 5)
    assert "y[block * 64 + lane] = shuffle_xor(x[block * 64 + lane], 5)" in str(kernel)
    assert "= __shfl_xor_sync(0xffffffffu, x[" in emit_cuda(kernel)


def test_threads_behind_each_other_make_up_warps() -> None:
    """Rows of 8 threads: four of them are a warp."""
    x, y = Buffer("x", (4, 8), "int32"), Buffer("y", (4, 8), "int32")

    def row(i: LoopExpr) -> Stmt:
        return loop(8, lambda j: Store(y, (i, j), Shuffle(x[i, j], 9)), LoopKind.THREAD_X, "j")

    kernel = Kernel("k", (x, y), loop(4, row, LoopKind.THREAD_Y, "i"))
    verify_kernel(kernel)
    given = np.arange(32, dtype="int32")
    np.testing.assert_array_equal(run_kernel(kernel, given.reshape(4, 8))[0].ravel(), given ^ 9)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (shuffled(48), "a shuffle outside of whole warps: in loops over threads z, y and x, 32 or more"),
        (shuffled(64, lambda lane, stmt: If(lane < 32, stmt)), "a shuffle under a condition that tells threads apart"),
        (shuffled(64, mask=32), "a shuffle of int32 by 32"),
    ],
    ids=["half a warp", "condition", "mask"],
)
def test_a_shuffle_that_threads_miss_is_refused(kernel: Kernel, message: str) -> None:
    with pytest.raises(CompilerError, match=message):
        verify_kernel(kernel)


def test_a_shuffle_on_one_side_is_refused() -> None:
    x, y = Buffer("x", (32,), "int32"), Buffer("y", (32,), "int32")
    body = loop(32, lambda i: Store(y, (i,), select(x[i] < 0, Shuffle(x[i], 1), 0)), LoopKind.THREAD_X, "i")
    with pytest.raises(CompilerError, match="a shuffle on one side of a select"):
        verify_kernel(Kernel("k", (x, y), body))
    with pytest.raises(CompilerError, match="a shuffle that not all threads of a warp reach"):
        run_kernel(Kernel("k", (x, y), body), np.arange(-3, 29, dtype="int32"))


# --- recurrences ----------------------------------------------------------------------------------------------------


def test_every_template_of_gpus_is_met() -> None:
    """By the cases of ``test_cuda_templates.py`` and ``test_cuda_rows.py``, or here; those of processors, which are
    bound, by their own tests."""
    met = {type(template_of(case)[0]) for case in range(len(TEMPLATE_CASES))} | {GpuLstm, GpuGru, GpuRnn}
    met |= {GpuSort, GpuRunningSum, GpuNonZero, GpuUnique, GpuScatterElements, GpuScatterNd, GpuSuppression}
    of_gpus = {t for (kind, _), found in TEMPLATES.table.items() if kind == "cuda" for t in found}
    of_processors = {t for (kind, _), found in TEMPLATES.table.items() if kind == "llvm" for t in found}
    assert of_gpus - of_processors <= met


def recurrent(name: str, seed: int) -> tuple[Function, list[np.ndarray], tuple[np.ndarray, ...]]:
    """A layer, what it is given and what it must give."""
    steps, batch, hidden = ((5, 2, 33), (1, 3, 8), (3, 1, 150))[seed]
    arrays = recurrent_arrays(name, steps, batch, hidden, seed, peephole=name == "nn.lstm" and seed == 0)
    attributes = {"linear_before_reset": seed == 1} if name == "nn.gru" else {}
    call = call_op(name, *(var(f"p{i}", shape=a.shape) for i, a in enumerate(arrays)), reverse=seed == 2, **attributes)
    return Function(list(call.args), call), arrays, call.op.reference(*arrays)  # type: ignore[attr-defined, arg-type]


RECURRENT = Accuracy(ulps=8, scale=8)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", GATES)
def test_recurrent_layers_walk_by_blocks(name: str, seed: int) -> None:
    function, arrays, expected = recurrent(name, seed)
    found, kernel, bound = lowered(function, LARGE)
    assert found.chosen.startswith("template recurrent.Gpu") and len(bound) == 1
    check(kernel, interpreted(kernel, bound, arrays), expected, RECURRENT)


@needs_compiler
@pytest.mark.parametrize("name", GATES)
def test_the_cuda_c_of_recurrent_layers(name: str) -> None:
    cases = [(*recurrent(name, seed)[1:], lowered(recurrent(name, seed)[0], LARGE)[1]) for seed in range(3)]
    groups = HostGroups([BACKEND.source(BACKEND.bind(kernel)) for _, _, kernel in cases])
    for number, (arrays, expected, kernel) in enumerate(cases):
        results = [np.full(b.shape, 77).astype(b.dtype) for b in kernel.outputs]
        groups.run(number, [*arrays, *results], np.zeros(0, np.uint8), "random")
        check(kernel, results, expected, RECURRENT)


@needs_nvrtc
def test_recurrent_layers_spill_nothing() -> None:
    arrays = recurrent_arrays("nn.lstm", 9, 2, 256, 0)
    call = call_op("nn.lstm", *(var(f"p{i}", shape=a.shape) for i, a in enumerate(arrays)))
    bound = lowered(Function(list(call.args), call), LARGE)[2]  # type: ignore[attr-defined, arg-type]
    cubin = compile_cubin(emit_cuda(*bound))
    assert cubin.spills == 0 and cubin.registers <= 64


def test_what_no_schedule_bound_is_said() -> None:
    """Slices are sorted one after the other."""
    x = relay.var("x", shape=(40, 30))
    module = relay.Module(relay.Function([x], relay.TupleGetItem(relay.unique(x, axis=0), 1)))
    with simulated_target():
        library = minitvm.build(module, "simulated")
    (symbol,) = library.report.groups
    (said,) = (d for d in library.report.kernel(symbol).decisions if d.by == "bind")
    assert not said.taken and said.about == symbol and "no schedule of GPUs" in said.reason
    assert "threadIdx.x" in library.report.kernel(symbol).text("cuda")
