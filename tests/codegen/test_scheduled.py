"""Templates that are schedules: the list that is printed, replayed on the plain loops; any prefix computes the same."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import minitvm
from minitvm.codegen.lower import plain
from minitvm.codegen.problem import Problem
from minitvm.codegen.schedule import replay
from minitvm.codegen.scheduled import Scheduled
from minitvm.codegen.templates import running_sum
from minitvm.codegen.templates.running_sum import RunningSum
from minitvm.codegen.templates.tensor_scatter import CacheUpdate
from minitvm.errors import CompilerError, ScheduleError
from minitvm.ir.builder import call_op, function, var
from minitvm.ir.dims import symbol
from minitvm.ir.expr import Call
from minitvm.ir.loop import Kernel
from minitvm.ir.loop.interp import run_kernel
from minitvm.ir.loop.sizes import bound
from minitvm.ir.loop.text import print_kernel
from minitvm.ir.loop.verify import verify_kernel
from minitvm.target import MachineModel

SHAPES = [((2, 3, 5, 7), 2, 2), ((3, 5, 8), 1, 1), ((1, 6, 4), 1, 3), ((2, 4), 1, 2), ((2, 3, 2, 4, 3), 3, 1)]


def update(shape: tuple[int, ...], axis: int, length: int, **options: Any) -> Call:
    updates = (*shape[:axis], length, *shape[axis + 1 :])
    given = var("data", shape=shape), var("updates", shape=updates), var("start", shape=shape[:1], dtype="int64")
    call = call_op("tensor_scatter", *given, axis=axis, **options)
    assert isinstance(call, Call)
    return call


def made(call: Call) -> Scheduled:
    return CacheUpdate(Problem.of(call), MachineModel(32, 16, threads=4))


@pytest.mark.parametrize(("shape", "axis", "length"), SHAPES)
@pytest.mark.parametrize("option", ["", "circular", "clears"])
def test_any_prefix_of_a_cache_update_computes_it(shape: tuple[int, ...], axis: int, length: int, option: str) -> None:
    options = {option: True} if option else {}
    call, rng = update(shape, axis, length, **options), np.random.default_rng(5)
    steps = made(call).steps()
    arrays = [rng.normal(size=t.type.shape).astype(t.type.dtype) for t in call.args[:2]]  # type: ignore[union-attr]
    arrays.append(rng.integers(-2, shape[axis] + 2, shape[:1]))
    expected = call.op.reference(*arrays)  # type: ignore[union-attr]
    for count in range(len(steps.steps) + 1):
        kernel = replay(steps.plain, steps.steps[:count]).kernel
        verify_kernel(kernel)
        (found,) = run_kernel(kernel, *arrays, check_races=True)
        np.testing.assert_array_equal(found, expected)


def test_the_steps_of_a_cache_update() -> None:
    steps = made(update((2, 3, 5, 7), 2, 2)).steps()
    assert str(steps).splitlines() == ["i_j = parallel(i, j)", "vectorize(l)", "vectorize(l_1)"]
    again = replay(steps.plain, str(steps).splitlines())
    assert print_kernel(again.kernel) == print_kernel(steps.kernel)


def test_open_sizes_take_the_same_steps() -> None:
    b, n = symbol("b"), symbol("n")
    steps = made(update((b, 3, n, 7), 2, 1)).steps()  # type: ignore[arg-type]
    assert [step.name for step in steps.steps] == ["parallel", "vectorize", "vectorize"]
    kernel = bound(replace(steps.kernel, sizes=("b", "n")), {"b": 2, "n": 5})
    data, new, start = np.zeros((2, 3, 5, 7), "float32"), np.ones((2, 3, 1, 7), "float32"), np.array([1, 4])
    (found,) = run_kernel(kernel, data, new, start, check_races=True)
    assert [np.flatnonzero(sequence[0, :, 0]).tolist() for sequence in found] == [[1], [4]]


# --- running sums -----------------------------------------------------------------------------------------------


def running(shape: tuple[object, ...], axis: int, threads: int = 1, **options: Any) -> RunningSum:
    call = call_op("cumsum", var("x", shape=shape), axis=axis, **options)  # type: ignore[arg-type]
    assert isinstance(call, Call)
    return RunningSum(Problem.of(call), MachineModel(32, 16, threads=threads))


OPEN = {"b": 2, "n": 6, "m": 7}
B, N, M = map(symbol, OPEN)
RUNNING = [
    ((4, 3, 130), 1, 3),  # strips, and columns that are left over
    ((2, 3, 5, 7), 1, 16),  # axes in front and behind, strips across the rows of the last one
    ((2, 3, 4, 9), 2, 1),
    ((7,), 0, 1),
    ((1, 9, 3), 1, 1),  # a long sum, in blocks
    ((B, N, 5, M), 1, 2),
    ((3, M), 0, 2),
]


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize(("shape", "axis", "threads"), RUNNING)
def test_any_prefix_of_a_running_sum_computes_it(
    shape: tuple[object, ...], axis: int, threads: int, exclusive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_sum, "LONGEST", 8 if shape[0] == 1 else 4)
    steps = running(shape, axis, threads, exclusive=exclusive).steps()
    assert print_kernel(replay(steps.plain, str(steps).splitlines()).kernel) == print_kernel(steps.kernel)
    x = np.random.default_rng(3).normal(size=[d if isinstance(d, int) else OPEN[str(d)] for d in shape])
    x = x.astype("float32")
    expected = np.cumsum(x.astype("float64"), axis) - x * exclusive
    for count in range(len(steps.steps) + 1):
        kernel = bound(replace(replay(steps.plain, steps.steps[:count]).kernel, sizes=tuple(OPEN)), OPEN)
        verify_kernel(kernel)
        (found,) = run_kernel(kernel, x, check_races=True)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


def test_the_steps_of_a_running_sum() -> None:
    assert str(running((6, 10, 32), 1).steps()).splitlines() == [
        "j_outer, j_inner = split(j, 32, 'peel')",
        "i_j_outer = parallel(i, j_outer)",
        "j_inner, j_inner_1, acc = distribute(j_inner, 'local')",
        "j_inner_outer, j_inner_inner = vectorize(j_inner, 32)",
        "j_inner_1_outer, j_inner_1_inner, j_inner_1_inner_1 = vectorize(j_inner_1, 32)",
    ]


def product_of(rows: object) -> Kernel:
    """A product of rows as many as only a run says."""
    x, w = var("x", shape=(rows, 9)), var("w", shape=(5, 9))  # type: ignore[arg-type]
    return replace(plain(function(call_op("nn.dense", x, w), [x, w]), "product"), sizes=("m",))


@pytest.mark.parametrize("tail", ["guard", "shorter", "peel"])
def test_open_extents_are_split(tail: str) -> None:
    """Rows in fours, what is left of them in twos and ones, as templates cut them."""
    steps = replay(product_of(symbol("m")), [f"split(i, 4, {tail!r})"])
    if tail == "peel":
        steps = steps.replay(
            ["split(i_tail, 2, 'peel')", "jam(i_inner)", "jam(i_tail_inner)", "parallel(i_tail_outer)"]
        )
    steps = steps.replay(["parallel(i_outer)"])
    for taken in range(len(steps.steps) + 1):
        for m in range(10):
            kernel = bound(replay(steps.plain, steps.steps[:taken]).kernel, {"m": m})
            verify_kernel(kernel)
            rng = np.random.default_rng(m)
            x, w = (rng.normal(size=shape).astype("float32") for shape in ((m, 9), (5, 9)))
            (found,) = run_kernel(kernel, x, w, check_races=True)
            np.testing.assert_allclose(found, x @ w.T, rtol=1e-5, atol=1e-5)


def test_open_extents_are_divisible_where_they_say_so() -> None:
    m = symbol("m")
    assert "for i_outer in m:" in print_kernel(replay(product_of(m * 4), ["split(i, 4, 'exact')"]).kernel)
    with pytest.raises(ScheduleError, match=re.escape("product: the m iterations of loop i are not divisible by 4")):
        replay(product_of(m), ["split(i, 4, 'exact')"])


def test_the_report_prints_them() -> None:
    call = update((2, 3, 5, 7), 2, 2)
    library = minitvm.build(minitvm.Module(function(call, list(call.args))))  # type: ignore[arg-type]
    (name,) = library.report.groups
    steps = library.report.kernel(name).steps
    assert str(steps) == str(made(call).steps())
    assert print_kernel(replay(steps.plain, steps.steps).kernel) == print_kernel(steps.kernel)
    x = var("x", shape=(4, 4))
    other = minitvm.build(minitvm.Module(function(call_op("nn.relu", x), [x])))
    (name,) = other.report.groups
    with pytest.raises(CompilerError, match=re.escape(f"the loops of {name} are no list of steps: default nests")):
        _ = other.report.kernel(name).steps
