"""Templates that are schedules: the list that is printed, replayed on the plain loops; any prefix computes the same."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import minitvm
from minitvm.codegen.problem import Problem
from minitvm.codegen.schedule import replay
from minitvm.codegen.scheduled import Scheduled
from minitvm.codegen.templates.tensor_scatter import CacheUpdate
from minitvm.errors import CompilerError
from minitvm.ir.builder import call_op, function, var
from minitvm.ir.dims import symbol
from minitvm.ir.expr import Call
from minitvm.ir.loop.interp import run_kernel
from minitvm.ir.loop.sizes import bound
from minitvm.ir.loop.text import print_kernel
from minitvm.ir.loop.verify import verify_kernel
from minitvm.target import MachineModel

SHAPES = [((2, 3, 5, 7), 2, 2), ((3, 5, 8), 1, 1), ((1, 6, 4), 1, 3), ((2, 4), 1, 2), ((2, 3, 2, 4, 3), 3, 1)]


def update(shape: tuple[int, ...], axis: int, length: int, **options: object) -> Call:
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
    assert str(steps).splitlines() == [
        "parallel(i)",
        "parallel(j)",
        "i_j = fuse(i, j)",
        "vectorize(l)",
        "vectorize(l_1)",
    ]
    again = replay(steps.plain, str(steps).splitlines())
    assert print_kernel(again.kernel) == print_kernel(steps.kernel)


def test_open_sizes_take_the_same_steps() -> None:
    b, n = symbol("b"), symbol("n")
    steps = made(update((b, 3, n, 7), 2, 1)).steps()  # type: ignore[arg-type]
    assert [step.name for step in steps.steps] == ["parallel", "parallel", "fuse", "vectorize", "vectorize"]
    kernel = bound(replace(steps.kernel, sizes=("b", "n")), {"b": 2, "n": 5})
    data, new, start = np.zeros((2, 3, 5, 7), "float32"), np.ones((2, 3, 1, 7), "float32"), np.array([1, 4])
    (found,) = run_kernel(kernel, data, new, start, check_races=True)
    assert [np.flatnonzero(sequence[0, :, 0]).tolist() for sequence in found] == [[1], [4]]


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
