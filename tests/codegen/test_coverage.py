"""Which elements a kernel's stores reach: by hand, against counting one by one, and for every operator's kernel."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from op_samples import Sample
from operator_cases import GENERATORS, RandomDraw, random_case
from small_workloads import small
from store_counts import store_counts
from test_lower import LOWERED, as_function

from minitvm.codegen.coverage import MOST_ELEMENTS, MOST_POINTS, Coverage, Verdict, check_coverage
from minitvm.codegen.lower import lower
from minitvm.codegen.problem import TEMPLATES
from minitvm.codegen.simplify import simplify
from minitvm.driver import build, optimize
from minitvm.driver.kernels import KernelCompiler
from minitvm.errors import CompilerError
from minitvm.ir.builder import call_op, function, var
from minitvm.ir.expr import Function
from minitvm.ir.loop import (
    Alloc,
    Buffer,
    Const,
    If,
    Index,
    Kernel,
    LoopExpr,
    LoopKind,
    LoopVar,
    Stmt,
    Store,
    const,
    loop,
    minimum,
    nest,
    seq,
)
from minitvm.ir.op import Op
from minitvm.ir.visitor import calls
from minitvm.target import MachineModel

PROVED, ENUMERATED, UNDECIDED = Verdict.PROVED, Verdict.ENUMERATED, Verdict.UNDECIDED
MACHINES = {
    "AVX-512": MachineModel(64, 32, threads=1),
    "AVX2": MachineModel(32, 16, threads=3),
    "SSE": MachineModel(16, 16, threads=2),
    "NEON": MachineModel(16, 32, threads=16),
}


def out(*shape: int) -> Buffer:
    return Buffer("out", shape, "float32")


def put(buffer: Buffer, *index: Index) -> Store:
    return Store(buffer, tuple(i if isinstance(i, LoopExpr) else Const(i) for i in index), const(1, buffer.dtype))


def verdict(buffer: Buffer, *stmts: Stmt, inputs: tuple[Buffer, ...] = ()) -> Coverage:
    (found,) = check_coverage(Kernel("kernel", (*inputs, buffer), seq(*stmts)))
    return found


def rejected(how: str, buffer: Buffer, *stmts: Stmt) -> None:
    with pytest.raises(CompilerError, match=re.escape(how)):
        verdict(buffer, *stmts)


# --- by hand --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 3, 4), (0, 3), (4, 0)])
def test_a_plain_nest_is_proved(shape: tuple[int, ...]) -> None:
    o = out(*shape)
    assert verdict(o, nest(shape, lambda *i: put(o, *i))) == Coverage(o, PROVED)


def test_no_stores_at_all() -> None:
    rejected("kernel never stores out[0, 0], of float32[2, 3]", out(2, 3))


def test_the_first_missing_and_the_first_doubled_element_are_named() -> None:
    o = out(3, 5)
    rejected("never stores out[0, 4]", o, nest((3, 4), lambda i, j: put(o, i, j)))
    rejected("never stores out[2, 0]", o, nest((2, 5), lambda i, j: put(o, i, j)))
    again = loop(5, lambda j: put(o, 1, j))
    rejected("stores more than once out[1, 0]", o, nest((3, 5), lambda i, j: put(o, i, j)), again)
    rejected("stores more than once out[0, 0]", o, nest((3, 5, 2), lambda i, j, k: put(o, i, j)))


def test_the_model_s_nodes_are_named() -> None:
    o = out(3)
    kernel = Kernel("kernel", (o,), loop(2, lambda i: put(o, i)), spans=("/net/Add_7",))
    with pytest.raises(CompilerError, match=re.escape('  | from ONNX node "/net/Add_7"')):
        check_coverage(kernel)


def test_two_parallel_iterations_on_one_element() -> None:
    o = out(8)
    body = loop(4, lambda p: loop(4, lambda i: put(o, minimum(p * 3, 4) + i)), LoopKind.PARALLEL)
    rejected("stores more than once out[3]", o, body)


@pytest.mark.parametrize("rest", [0, 1, 5])
def test_tails_of_their_own_are_proved(rest: int) -> None:
    o = out(6, 8 * 3 + rest)
    main = nest((6, 3, 8), lambda i, j, v: put(o, i, j * 8 + v))
    assert verdict(o, main, nest((6, rest), lambda i, j: put(o, i, j + 24))).verdict is PROVED


def test_guarded_tails_are_enumerated() -> None:
    o = out(6, 21)
    body = nest((6, 3, 8), lambda i, j, v: If(j * 8 + v < Const(21), put(o, i, j * 8 + v)))
    assert verdict(o, body).verdict is ENUMERATED
    short = nest((6, 3, 8), lambda i, j, v: If(j * 8 + v < Const(20), put(o, i, j * 8 + v)))
    rejected("never stores out[0, 20]", o, short)


def test_both_sides_of_a_branch() -> None:
    o = out(9)
    assert verdict(o, loop(9, lambda i: If(i < Const(4), put(o, i), put(o, i)))).verdict is ENUMERATED
    rejected("stores more than once out[0]", o, loop(9, lambda i: If(i < Const(4), put(o, i), put(o, i - 4))))


def test_a_store_in_the_last_round_of_a_loop_that_it_does_not_mention() -> None:
    o = out(5)
    assert verdict(o, nest((5, 7), lambda i, k: If(k.equal(6), put(o, i)))).verdict is ENUMERATED
    rejected("stores more than once out[0]", o, nest((5, 7), lambda i, k: If(k < Const(2), put(o, i))))


def test_a_flat_loop_over_several_dimensions() -> None:
    o = out(6, 4, 5)
    assert verdict(o, loop(120, lambda f: put(o, f // 20, (f // 5) % 4, f % 5))).verdict is ENUMERATED
    rejected("never stores out[5, 3, 4]", o, loop(119, lambda f: put(o, f // 20, (f // 5) % 4, f % 5)))
    pairs = out(6, 5)
    assert verdict(pairs, loop(30, lambda f: put(pairs, f // 5, f % 5))).verdict is PROVED


def test_a_loop_whose_extent_varies() -> None:
    o = out(4, 4)
    lower_half = loop(4, lambda i: loop(i + 1, lambda j: put(o, i, j)))
    upper_half = loop(4, lambda i: loop(3 - i, lambda j: put(o, i, i + 1 + j)))
    assert verdict(o, lower_half, upper_half).verdict is ENUMERATED
    rejected("never stores out[0, 1]", o, lower_half)


def test_large_results_are_proved_without_counting() -> None:
    o = out(1 << 20, 1 << 20)
    assert verdict(o, nest((1 << 16, 1 << 20, 1 << 4), lambda i, j, v: put(o, i * 16 + v, j))).verdict is PROVED


def test_what_is_too_large_says_so() -> None:
    o = out(2 * MOST_POINTS)
    found = verdict(o, loop(2 * MOST_POINTS, lambda i: If(i < Const(2 * MOST_POINTS), put(o, i))))
    assert found == Coverage(o, UNDECIDED, f"i have more than {MOST_POINTS:,} iterations")
    wide = out(2 * MOST_ELEMENTS)
    halves = [loop(MOST_ELEMENTS, lambda i, s=s: put(wide, i + s)) for s in (0, MOST_ELEMENTS)]  # type: ignore[misc]
    assert verdict(wide, *halves).reason == f"out has more than {MOST_ELEMENTS:,} elements"


def test_what_depends_on_data_says_so() -> None:
    o, where = out(5), Buffer("where", (5,), "int64")
    scattered = verdict(o, loop(5, lambda i: put(o, where[i])), inputs=(where,))
    assert scattered == Coverage(o, UNDECIDED, "where[i] depends on data")
    chosen = verdict(o, loop(5, lambda i: If(where[i] < Const(3), put(o, i))), inputs=(where,))
    assert chosen == Coverage(o, UNDECIDED, "where[i] < 3 depends on data")
    assert verdict(o, loop(where[0], lambda i: put(o, i)), inputs=(where,)).verdict is UNDECIDED


def test_memory_that_threads_share_is_stored_whole_too() -> None:
    o, shared = out(5), Buffer("packed", (4, 8), "float32")
    fill = nest((4, 7), lambda i, j: put(shared, i, j))
    kernel = Kernel("kernel", (o,), Alloc(shared, seq(fill, loop(5, lambda i: put(o, i)))))
    with pytest.raises(CompilerError, match=re.escape("kernel never stores packed[0, 7], of float32[4, 8]")):
        check_coverage(kernel)


def test_a_vector_that_begins_inside_and_ends_in_the_next_row() -> None:
    """An attention whose rows of 20 results were 7 vectors of 3: each element was stored, the first ones twice."""
    o = out(4, 20)
    body = nest((4, 8, 3), lambda i, t, lane: If(t * 3 < Const(20), put(o, i, t * 3 + lane)))
    rejected("kernel stores outside of its memory out[0, 20], of float32[4, 20]", o, body)
    rejected("kernel stores outside of its memory out[-1, 0]", o, nest((4, 20), lambda i, j: put(o, i - 1, j)))
    never = nest((4, 20), lambda i, j: If(i > Const(7), put(o, i - 9, j)))
    assert verdict(o, nest((4, 20), lambda i, j: put(o, i, j)), never).verdict is PROVED


def test_the_product_that_left_columns_out() -> None:
    """7 x 64 x 256 on one thread before its cure: two chunks of rows claimed of a loop that ran for one."""
    o = out(7, 256)

    def work(flat: LoopVar) -> Stmt:
        chunk, group = flat // 8, flat % 8
        return nest((7, 16), lambda t, lane: put(o, t, (chunk + group // 2 * 2) * 16 + lane))

    rejected("stores more than once out[0, 0]", o, loop(8, work, LoopKind.PARALLEL))


# --- against counting one by one ------------------------------------------------------------------------------


def random_nest(rng: np.random.Generator, buffer: Buffer) -> Stmt:
    """Loops that divide the dimensions anyhow, peeled, guarded or flattened; every other one may forget or repeat."""
    wrong = rng.random() < 0.5
    stmts = []
    for low, high in pieces(rng, buffer.shape[0]):
        low = max(0, low + int(rng.integers(-1, 2))) if wrong and rng.random() < 0.5 else low
        stmts.append(one_piece(rng, buffer, low, max(high, low)))
    return seq(*stmts)


def pieces(rng: np.random.Generator, extent: int) -> list[tuple[int, int]]:
    cuts = sorted({0, extent, *(int(c) for c in rng.integers(0, extent + 1, rng.integers(0, 3)))})
    return list(pairwise(cuts)) or [(0, 0)]


def one_piece(rng: np.random.Generator, buffer: Buffer, low: int, high: int) -> Stmt:
    rows, columns = high - low, buffer.shape[1]
    factor = int(rng.integers(1, 5))
    kinds: dict[int, Callable[[], Stmt]] = {
        0: lambda: nest((rows, columns), lambda i, j: put(buffer, i + low, j)),
        1: lambda: loop(rows * columns, lambda f: put(buffer, f // columns + low, f % columns)),
        2: lambda: nest(
            (rows, -(-columns // factor), factor),
            lambda i, j, v: If(j * factor + v < Const(columns), put(buffer, i + low, j * factor + v)),
        ),
        3: lambda: nest(
            (rows, columns // factor, factor), lambda i, j, v: put(buffer, i + low, v * (columns // factor) + j)
        ),
        4: lambda: nest((columns, rows), lambda j, i: put(buffer, low + (rows - 1) - i, j)),
    }
    return kinds[int(rng.integers(len(kinds)))]()


@pytest.mark.parametrize("seed", range(3))
def test_the_verdict_is_that_of_counting(seed: int) -> None:
    rng = np.random.default_rng(seed)
    seen: Counter[str] = Counter()
    for _ in range(120):
        o = out(*(int(n) for n in rng.integers(1, 12, 2)))
        body = random_nest(rng, o)
        try:
            counts = store_counts(body, o)
        except IndexError:
            rejected("kernel stores outside of its memory out[", o, body)
            seen["outside"] += 1
            continue
        try:
            seen[verdict(o, body).verdict.value] += 1
            assert (counts == 1).all()
        except CompilerError as error:
            first = [int(i) for i in np.argwhere(counts != 1)[0]]
            assert str(first) in error.message and ("never" in error.message) == (counts[tuple(first)] == 0)
            seen["wrong"] += 1
    assert min(seen["proved"], seen["enumerated"], seen["wrong"]) > 10, seen


# --- every kernel ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", ["AVX-512", "NEON"])
def test_every_operator_s_kernel_is_decided(machine: str) -> None:
    seen: Counter[Verdict] = Counter()
    for sample in LOWERED:
        kernel = simplify(lower(as_function(sample)[0], str(sample), MACHINES[machine]))
        for found in check_coverage(kernel):
            seen[found.verdict] += 1
            assert found.verdict is not UNDECIDED or by_data(sample.op, found), f"{sample}: {found.reason}"
    assert seen[PROVED] > 0.9 * seen.total(), seen


def test_random_calls_of_every_operator_are_decided() -> None:
    rng = np.random.default_rng(7)
    for name in sorted(GENERATORS):
        case = random_case(name, RandomDraw(rng))
        function_, _ = as_function(Sample(case.op, case.args))
        machine = replace(MACHINES[str(rng.choice(list(MACHINES)))], threads=int(rng.choice([1, 2, 3, 16, 64])))
        if not lowers(function_):
            continue
        for found in check_coverage(simplify(lower(function_, name, machine))):
            assert found.verdict is not UNDECIDED or by_data(case.op, found), f"{name}: {found.reason}"


def by_data(op: Op, found: Coverage) -> bool:
    """Whether the operator writes where its operands say."""
    return (op.has_statements() or op.in_place is not None) and "depends on data" in found.reason


def lowers(function_: Function) -> bool:
    (call,) = calls(function_.body)
    assert isinstance(call.op, Op)
    return function_.ret_type.is_static and (call.op.has_compute() or bool(TEMPLATES.find("llvm", call.op)))


@pytest.mark.parametrize("level", [0, 2, 3])
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "squeezenet", "transformer"])
def test_every_workload_s_kernels_are_decided(name: str, level: int) -> None:
    machine = MACHINES["AVX-512"]
    module, params = small(name)
    found = dict.fromkeys(c.op for c in calls(optimize(module, machine, params, level).main.body))
    for group in [g for g in found if isinstance(g, Function) and not g.attrs.get("reshape_only")]:
        for found in check_coverage(simplify(lower(group, str(group.attrs["name"]), machine))):
            assert found.verdict is not UNDECIDED, f"{group.attrs['name']}: {found.reason}"


def test_a_build_refuses_a_kernel_that_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    right = KernelCompiler.legalized

    def without_last(self: KernelCompiler, lowered: Kernel) -> Kernel:
        kernel = right(self, lowered)
        (o,) = kernel.outputs
        return Kernel(kernel.name, kernel.params, loop(o.shape[0] - 1, lambda i: put(o, i)))

    monkeypatch.setattr(KernelCompiler, "legalized", without_last)
    x = var("x", shape=(13,))
    monkeypatch.setenv("MINITVM_CACHE_DIR", "")
    with pytest.raises(CompilerError, match=re.escape("never stores out0[12]")):
        build(function(call_op("sinh", x)))


def test_what_a_build_could_not_decide_is_counted_and_survives_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setattr("minitvm.codegen.coverage.MOST_POINTS", 0)
    monkeypatch.setattr("minitvm.codegen.coverage._radix", lambda place, group: None)
    monkeypatch.setenv("MINITVM_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    x = var("x", shape=(13,))
    for hits in (0, 1):
        report = build(function(call_op("sinh", x))).report
        assert bool(report.cache_hits) == bool(hits)
        ((reason,),) = report.undecided.values()
        assert re.fullmatch(r"out0: i_(outer|inner|tail).* have more than 0 iterations", reason)


def test_what_could_not_be_decided_of_a_branch_stands_beside_the_main_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minitvm.codegen.coverage.MOST_POINTS", 0)
    monkeypatch.setattr("minitvm.codegen.coverage._radix", lambda place, group: None)
    monkeypatch.setenv("MINITVM_CACHE_DIR", "")
    c, x, inner = var("c", shape=(), dtype="bool"), var("x", shape=(13,)), var("a", shape=(13,))
    branch = function(call_op("sinh", inner))
    chosen = call_op("control.if", c, x, then_branch=branch, else_branch=branch)
    report = build(function(call_op("sinh", x) + chosen)).report
    assert report.undecided.keys() == report.groups.keys() and len(report.groups) > 2
