"""What holds for the kernel of any layer on any machine, shown on random shapes without compiling anything.

Every element is stored once and no index leaves its buffer; a template takes what it was written for; threads have work
while there is work; and the code does not grow with the shape or the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from minitvm.codegen.coverage import Verdict, check_coverage
from minitvm.codegen.lower import lower
from minitvm.codegen.problem import TEMPLATES, Problem
from minitvm.codegen.simplify import simplify
from minitvm.driver.program import call_flops
from minitvm.ir.builder import call_op, function, var
from minitvm.ir.expr import Call
from minitvm.ir.loop import Alloc, Barrier, Const, For, Kernel, LoopKind, Seq, Stmt, walk_stmts
from minitvm.ir.loop.verify import verify_kernel
from minitvm.ir.op import Op
from minitvm.target import MachineModel

MACHINES = {"SSE": (16, 16), "AVX2": (32, 16), "AVX-512": (64, 32), "NEON": (16, 32)}
THREADS = (1, 2, 3, 16, 64)
SHAPES = 4
"""Of each layer in each test; every one on two numbers of threads of each machine."""

WORTH_A_THREAD = 200_000
"""Operations that are worth an iteration of their own."""
MOST_STATEMENTS = 400
"""A product that packs its right-hand side through squares of registers writes these out: 280 to 310."""
VECTORS_OF_A_TILE = 128
"""A tile has 31 accumulators at most, of blocks of 16 where the machine may have vectors of 4."""

Layer = tuple[str, list[tuple[int, ...]], dict[str, Any]]
Draw = Callable[[int, int], int]


def matmul(draw: Draw) -> Layer:
    rows, depth, columns = draw(4, 200), draw(1, 70), draw(16, 1100)
    return "nn.matmul", [(rows, depth), (depth, columns)], {}


def dense(draw: Draw) -> Layer:
    rows, depth, columns = draw(4, 200), draw(1, 70), draw(16, 1100)
    return "nn.dense", [(rows, depth), (columns, depth)], {}


def batch_matmul(draw: Draw) -> Layer:
    batch, rows, depth, columns = draw(1, 13), draw(4, 50), draw(1, 70), draw(16, 300)
    return "nn.batch_matmul", [(batch, rows, depth), (batch, depth, columns)], {"transpose_b": False}


def dense_pack(draw: Draw) -> Layer:
    rows, depth, blocks = draw(1, 200), draw(1, 70), draw(1, 40)
    return "nn.contrib_dense_pack", [(rows, depth), (blocks, depth, 16)], {"weight_layout": "NC16n"}


def window(draw: Draw) -> dict[str, Any]:
    size = (1, 3, 5)[draw(0, 3)]
    return {"kernel_size": (size, size), "padding": (size // 2,) * 4, "strides": (draw(1, 3),) * 2}


def blocked(inner: str) -> dict[str, str]:
    return {"data_layout": "NCHW16c", "kernel_layout": f"OIHW{inner}16o", "out_layout": "NCHW16c"}


def conv2d_blocked(draw: Draw) -> Layer:
    batch, inputs, outputs, height, width = draw(1, 3), draw(1, 5), draw(1, 9), draw(5, 40), draw(5, 40)
    found = window(draw)
    shapes = [(batch, inputs, height, width, 16), (outputs, inputs, *found["kernel_size"], 16, 16)]
    return "nn.contrib_conv2d_NCHWc", shapes, {"channels": 16 * outputs, **found, **blocked("16i")}


def depthwise(draw: Draw) -> Layer:
    batch, blocks, height, width = draw(1, 3), draw(1, 9), draw(5, 40), draw(5, 40)
    found, channels = window(draw), {"channels": 16 * blocks, "groups": 16 * blocks}
    shapes = [(batch, blocks, height, width, 16), (blocks, 1, *found["kernel_size"], 1, 16)]
    return "nn.contrib_depthwise_conv2d_NCHWc", shapes, {**channels, **found, **blocked("1i")}


def conv2d(draw: Draw) -> Layer:
    groups = (1, 1, 2)[draw(0, 3)]
    batch, inputs, outputs = draw(1, 3), draw(1, 20), groups * draw(4, 70)
    found = window(draw)
    shapes = [(batch, groups * inputs, draw(5, 40), draw(5, 40)), (outputs, inputs, *found["kernel_size"])]
    return "nn.conv2d", shapes, {"channels": outputs, "groups": groups, **found}


def broadcast(draw: Draw) -> Layer:
    rows, columns = draw(1, 200), draw(1, 3000)
    return "add", [(rows, columns), (rows, 1)], {}


def reduction(draw: Draw) -> Layer:
    return "sum", [(draw(1, 200), draw(1, 3000))], {"axis": (draw(0, 2),)}


def softmax(draw: Draw) -> Layer:
    return "nn.softmax", [(draw(1, 200), draw(1, 3000))], {"axis": draw(0, 2)}


def pool(draw: Draw) -> Layer:
    found = window(draw)
    found["pool_size"] = found.pop("kernel_size")
    return "nn.max_pool2d", [(draw(1, 3), draw(1, 70), draw(5, 40), draw(5, 40))], found


def transpose(draw: Draw) -> Layer:
    axes = [(0, 2, 1), (2, 1, 0), (1, 0, 2)][draw(0, 3)]
    return "transpose", [(draw(1, 40), draw(1, 40), draw(1, 200))], {"axes": axes}


WITH_TEMPLATE = (matmul, dense, batch_matmul, dense_pack, conv2d_blocked, depthwise, conv2d)
WITHOUT = (broadcast, reduction, softmax, pool, transpose)


def layers(kind: Callable[[Draw], Layer], dtype: str) -> list[Call]:
    rng = np.random.default_rng(len(kind.__name__))
    found = []
    for _ in range(SHAPES):
        name, shapes, attributes = kind(lambda low, high: int(rng.integers(low, high)))
        call = call_op(name, *(var(f"p{i}", shape=s, dtype=dtype) for i, s in enumerate(shapes)), **attributes)
        assert isinstance(call, Call)
        found.append(call)
    return found


def kernel_of(call: Call, machine: MachineModel) -> Kernel:
    return simplify(lower(function(call, list(call.args)), "kernel", machine))  # type: ignore[arg-type]


def parallel_iterations(stmt: Stmt) -> list[int]:
    """Iterations that threads can share, of each stretch between two barriers."""
    match stmt:
        case Seq(stmts):
            found = [0]
            for part in stmts:
                first, *rest = parallel_iterations(part)
                found[-1] += first
                found += rest
            return found
        case Alloc(_, body):
            return parallel_iterations(body)
        case Barrier():
            return [0, 0]
        case For(_, Const(extent, _), body, LoopKind.PARALLEL):
            inside = isinstance(body, For) and body.kind is LoopKind.PARALLEL
            return [int(extent) * (parallel_iterations(body)[0] if inside else 1)]
    return [0]


def wanted_iterations(call: Call, machine: MachineModel) -> int:
    """As many as there are threads, work for them, and vectors to store."""
    vectors = call.tensor_type.nbytes // machine.vector_bytes
    return min(machine.threads, int(call_flops(call) // WORTH_A_THREAD), vectors // VECTORS_OF_A_TILE)


def drawn(kind: Callable[[Draw], Layer], dtype: str) -> Iterator[tuple[Call, MachineModel]]:
    rng = np.random.default_rng(len(dtype))
    for call in layers(kind, dtype):
        for size, registers in MACHINES.values():
            for threads in rng.choice(THREADS, 2, replace=False):
                yield call, MachineModel(size, registers, threads=int(threads))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("kind", [*WITH_TEMPLATE, *WITHOUT], ids=lambda kind: kind.__name__)
def test_a_kernel_is_whole_and_short(kind: Callable[[Draw], Layer], dtype: str) -> None:
    for call, machine in drawn(kind, dtype):
        kernel = kernel_of(call, machine)
        verify_kernel(kernel)
        assert all(found.verdict is not Verdict.UNDECIDED for found in check_coverage(kernel))
        statements = sum(1 for _ in walk_stmts(kernel.body))
        assert statements <= MOST_STATEMENTS, f"{statements} statements on {machine}"


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("kind", [*WITH_TEMPLATE, *WITHOUT], ids=lambda kind: kind.__name__)
def test_threads_have_work_while_there_is_work(kind: Callable[[Draw], Layer], dtype: str) -> None:
    for call, machine in drawn(kind, dtype):
        shared = parallel_iterations(kernel_of(call, machine).body)[-1]
        assert shared >= wanted_iterations(call, machine), f"{shared} parallel iterations on {machine}"


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("kind", WITH_TEMPLATE, ids=lambda kind: kind.__name__)
def test_a_template_takes_it(kind: Callable[[Draw], Layer], dtype: str) -> None:
    for call in layers(kind, dtype):
        assert isinstance(call.op, Op)
        (template,) = TEMPLATES.find("llvm", call.op)
        for size, registers in MACHINES.values():
            found = template(Problem.of(call), MachineModel(size, registers, threads=2)).kernel()
            assert isinstance(found, Kernel), f"{[str(a.type) for a in call.args]}: {found}"
