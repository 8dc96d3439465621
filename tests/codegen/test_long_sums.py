"""How far sums are off, by their length: no more than blocks allow, whatever writes the loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx.parser
import pytest
from native_kernel import run_native

import minitvm
from minitvm.codegen.legalize import legalize
from minitvm.codegen.llvm.arith import SPELLINGS
from minitvm.codegen.long_sums import BLOCK, LONGEST, in_blocks
from minitvm.codegen.lower import lower
from minitvm.codegen.simplify import simplify
from minitvm.driver import backend_for, build_consuming, require_symbolic
from minitvm.ir.builder import call_op, function, var
from minitvm.ir.dims import assumptions
from minitvm.ir.expr import Expr, Function, Module
from minitvm.ir.loop import Alloc, Buffer, Const, If, Kernel, LoopExpr, Stmt, Store, loop, minimum, seq
from minitvm.ir.loop import const as literal
from minitvm.ir.loop.interp import run_kernel
from minitvm.ir.loop.verify import verify_kernel
from minitvm.passes.manager import PassContext
from minitvm.target import MachineModel
from simulated_gpu.device import simulated_target
from tests.compilers import needs_compiler

MACHINES = {"SSE": MachineModel(16, 16), "AVX2": MachineModel(32, 16, threads=2), "AVX-512": MachineModel(64, 32)}
ROUNDING = 2.0**-24
TENTH = np.float32(0.1)

Shapes = Callable[[Any], list[tuple[Any, ...]]]


def op(name: str, **attributes: object) -> Callable[..., Expr]:
    return lambda *args: call_op(name, *args, **attributes)


def whole_window(n: Any) -> Callable[..., Expr]:
    return op("nn.avg_pool2d", pool_size=(n // 8, 8))


SUMS: dict[str, tuple[Callable[..., Expr], Shapes, Callable[[int], float]]] = {
    "lanes": (op("sum"), lambda n: [(n,)], lambda n: n * 0.1),
    "columns": (op("mean", axis=(0,)), lambda n: [(n, 8)], lambda n: 0.1),
    "rows of columns": (op("mean", axis=(0,)), lambda n: [(n, 40)], lambda n: 0.1),
    "nothing in a row": (
        lambda x: call_op("sum", call_op("transpose", x, axes=(1, 0)), axis=(1,)),
        lambda n: [(n, 3)],
        lambda n: n * 0.1,
    ),
    "squares": (lambda x: call_op("sum", x * x, axis=(0,)), lambda n: [(n, 8)], lambda n: n * 0.01),
    "running": (op("cumsum", axis=0), lambda n: [(n, 2)], lambda n: n * 0.1),
    "running, in a row": (op("cumsum", axis=0), lambda n: [(n,)], lambda n: n * 0.1),
    "softmax": (op("nn.softmax", axis=-1), lambda n: [(2, n)], lambda n: 1 / n),
    "softmax of columns": (op("nn.softmax", axis=0), lambda n: [(n, 8)], lambda n: 1 / n),
    "dense": (op("nn.dense"), lambda n: [(3, n), (5, n)], lambda n: n * 0.01),
    "matmul": (op("nn.matmul"), lambda n: [(3, n), (n, 5)], lambda n: n * 0.01),
    "one row": (op("nn.matmul"), lambda n: [(1, n), (n, 24)], lambda n: n * 0.01),
    "norm": (op("nn.l2_normalize", axis=(0,)), lambda n: [(n, 8)], lambda n: n**-0.5),
    "attention": (op("nn.attention", scale=1.0), lambda n: [(1, 4, 2, 4), (1, n, 2, 4), (1, n, 2, 4)], lambda n: 0.1),
}
"""By name: the operator, the shapes of its arguments for a sum of n terms, and what the last result is of 0.1 each."""


def bound(terms: float) -> float:
    """What a sum of terms of one sign may be off by, relative to it: :data:`LONGEST` roundings on every level."""
    levels = 1
    while terms > LONGEST:
        terms, levels = terms / BLOCK, levels + 1
    return LONGEST * levels * ROUNDING


def group(name: str, n: Any) -> tuple[Function, float]:
    build, shapes, expected = SUMS[name]
    params = [var(f"p{i}", shape=s) for i, s in enumerate(shapes(n))]
    return function(build(*params), params), expected(n) if isinstance(n, int) else 0.0


def tenths(shape: tuple[int, ...]) -> np.ndarray:
    return np.full(shape, TENTH)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", SUMS)
def test_a_sum_is_as_near_as_its_blocks(name: str, machine: str) -> None:
    """Of equal numbers, whose roundings all go one way; a tenth of the bound, which none in a row keeps to."""
    for n in (10, 1000, 2 * LONGEST + 7, 400_000):
        function_, expected = group(name, n)
        kernel = simplify(lower(function_, "kernel", MACHINES[machine]))
        verify_kernel(kernel)
        arrays = [tenths(shape) for shape in SUMS[name][1](n)]
        (found,) = run_native(legalize(kernel, SPELLINGS), *arrays, machine=MACHINES[machine])
        assert abs(float(found.ravel()[-1]) / expected - 1) <= bound(n) / 4 + 2e-7, n


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_ones_beyond_what_a_float_counts(dtype: str) -> None:
    """One by one, float32 stays at 2^24."""
    n, threads = 2**24 + 2**21, 1
    x = var("x", shape=(1,), dtype=dtype)
    total = call_op("sum", call_op("cast", call_op("broadcast_to", x, shape=(n,)), dtype="float32"))
    kernel = simplify(lower(function(total, [x]), "kernel", MACHINES["AVX2"]))
    (found,) = run_native(legalize(kernel, SPELLINGS), np.ones(1, dtype), threads=threads, machine=MACHINES["AVX2"])
    assert found == n


@pytest.mark.parametrize("name", ["lanes", "columns", "nothing in a row", "softmax", "attention"])
def test_open_lengths(name: str) -> None:
    """One kernel for all lengths."""
    _, shapes, expected = SUMS[name]
    with assumptions(), PassContext(opt_level=3):
        graph, _ = group(name, "n")
        backend = backend_for("llvm", 1)
        require_symbolic(graph, backend)
        library = build_consuming(Module(graph), {}, backend, strict=True)
    for n in (1, 10, LONGEST + 1, 100_003):
        arrays = {f"p{i}": tenths(shape) for i, shape in enumerate(shapes(n))}
        executor = minitvm.GraphModule(library.for_shapes({k: a.shape for k, a in arrays.items()})["default"]())
        executor.run(**arrays)
        found = executor.get_output(0).numpy()
        assert abs(float(found.ravel()[-1]) / expected(n) - 1) <= bound(n) / 4 + 2e-7, n


@needs_compiler
@pytest.mark.parametrize("name", ["columns", "rows of columns", "nothing in a row", "running"])
def test_on_a_gpu(name: str) -> None:
    n = 60_000
    graph, expected = group(name, n)
    with simulated_target():
        library = minitvm.build(Module(graph), "simulated")
        executor = minitvm.GraphModule(library["default"]())
        executor.run(**{f"p{i}": tenths(shape) for i, shape in enumerate(SUMS[name][1](n))})
        found = executor.get_output(0).numpy()
    assert abs(float(found.ravel()[-1]) / expected - 1) <= bound(n) / 4


def filled(number: float, size: int, reduction: str) -> tuple[str, np.ndarray, float]:
    """A reduction of so many numbers that are nowhere in memory."""
    text = (
        f"(float[1] x) => (float y) <int64[2] s = {{{size // 3000}, 3000}}>"
        f"{{ e = ConstantOfShape <value: tensor = float[1] {{{number}}}> (s) f = Mul (e, x)"
        f" y = {reduction} <keepdims: int = 0> (f) }}"
    )
    return text, np.ones(1, "float32"), number * (size if reduction == "ReduceSum" else 1)


def columns(node: str, expected: float) -> tuple[str, np.ndarray, float]:
    """A node that adds up columns of 300,000 times 0.1."""
    return f"(float[300000, 3] x) => (float[3] y) {{ y = {node} }}", tenths((300_000, 3)), expected


MODELS = {
    "sum of a fill": filled(1, 18_000_000, "ReduceSum"),
    "mean of a fill": filled(0.1, 1_200_000, "ReduceMean"),
    "channels last, spatial mean": (
        "(float[1,4,400,400] x) => (float[1,4] y) { t = Transpose <perm: ints = [0,2,3,1]> (x)"
        "y = ReduceMean <axes: ints = [1,2], keepdims: int = 0> (t) }",
        tenths((1, 4, 400, 400)),
        0.1,
    ),
    "squares": columns("ReduceSumSquare <axes: ints = [0], keepdims: int = 0> (x)", 3000),
    "root of squares": columns("ReduceL2 <axes: ints = [0], keepdims: int = 0> (x)", 3000**0.5),
    "log of a sum": columns("ReduceLogSum <axes: ints = [0], keepdims: int = 0> (x)", np.log(30_000)),
    "einsum": columns('Einsum <equation: string = "ij,ij->j"> (x, x)', 3000),
    "a large window": (
        "(float[1,3,512,512] x) => (float[1,3,1,1] y) { y = AveragePool <kernel_shape: ints = [512, 512]> (x) }",
        tenths((1, 3, 512, 512)),
        0.1,
    ),
}


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("name", MODELS)
def test_models(name: str, level: int) -> None:
    text, x, expected = MODELS[name]
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 12]> g {text}')
    session = minitvm.InferenceSession(model.SerializeToString(), opt_level=level)
    (found,) = session.run(None, {"x": x})
    assert abs(float(np.ravel(found)[0]) / expected - 1) <= bound(1e6) / 8


# --- loops ------------------------------------------------------------------------------------------------------------


def summed(body: Callable[[Buffer, Buffer], Stmt], n: int = 5000) -> tuple[Kernel, Kernel]:
    """A kernel of a sum over ``x``, as it is written and in blocks."""
    x, out, acc = Buffer("x", (n,), "float32"), Buffer("out", (1,), "float32"), Buffer("acc", (), "float32", "local")
    start, finish = Store(acc, (), literal(0, "float32")), Store(out, (Const(0),), acc[()])
    whole = Alloc(acc, seq(start, body(acc, x), finish))
    kernel = Kernel("kernel", (x, out), whole)
    return kernel, Kernel("kernel", (x, out), in_blocks(whole))


def added(acc: Buffer, value: LoopExpr) -> Stmt:
    return Store(acc, (), acc[()] + value)


def by_fours(acc: Buffer, x: Buffer) -> Stmt:
    return loop(1250, lambda i: loop(4, lambda j: added(acc, x[i * 4 + j]), name="j"))


def ragged(acc: Buffer, x: Buffer) -> Stmt:
    return loop(50, lambda i: loop(minimum(100, i * 3 + 1), lambda j: added(acc, x[i * 100 + j]), name="j"))


def conditional(acc: Buffer, x: Buffer) -> Stmt:
    return loop(5000, lambda i: If((i % 3).equal(0), added(acc, x[i])))


def test_short_sums_stay_as_they_are() -> None:
    old, new = summed(lambda acc, x: loop(LONGEST, lambda i: added(acc, x[i])))
    assert new.body is old.body


@pytest.mark.parametrize("body", [by_fours, ragged, conditional])
def test_every_term_counts_once(body: Callable[[Buffer, Buffer], Stmt]) -> None:
    old, new = summed(body)
    assert new.body is not old.body and "acc_part" in str(new)
    verify_kernel(new)
    x = np.random.default_rng(0).integers(-8, 9, 5000).astype("float32")  # whose sums are exact in any order
    assert run_kernel(old, x)[0] == run_kernel(simplify(new), x)[0]


def test_what_is_read_on_the_way_is_no_sum() -> None:
    """A limit that depends on the sum so far."""
    old, new = summed(lambda acc, x: loop(5000, lambda i: added(acc, minimum(x[i], acc[()]))))
    assert new.body is old.body


def test_a_running_sum_in_memory_is_no_sum() -> None:
    old, new = summed(lambda acc, x: loop(5000, lambda i: seq(added(acc, x[i]), Store(x, (i,), acc[()]))))
    assert new.body is old.body
