"""Sorting, running sums, scattering and selecting on GPUs: in parallel, with numpy's numbers to the last tie.

Sizes lie around warps, blocks and tiles; elements are often equal, some are NaN, infinite, or -0.0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pytest
from nvrtc import needs_nvrtc
from operator_cases import Accuracy
from test_cuda_schedules import BACKEND, LARGE, SMALL, check, expected_of, interpreted, lowered

from minitvm.codegen.cuda.backend import compile_cubin
from minitvm.codegen.cuda.emit import emit_cuda
from minitvm.codegen.cuda.schedules.sorting import TILE
from minitvm.ir.builder import call_op, var
from minitvm.ir.expr import Function
from minitvm.ir.loop import Kernel, seq
from minitvm.testing.cuda import ORDERS, host_compiler
from minitvm.testing.cuda.device import HostGroups

EXACT, SUMS = Accuracy(), Accuracy(ulps=64, scale=256)
EDGES = (1, 2, 3, 31, 32, 33, 255, 257, 1023, 1025, TILE, TILE + 1, 2 * TILE + 500)


@dataclass(frozen=True)
class Case:
    """A call, what writes it, and how close it comes to numpy."""

    name: str
    arrays: tuple[np.ndarray, ...]
    attributes: dict[str, object]
    near: Accuracy = EXACT

    @cached_property
    def function(self) -> Function:
        params = [var(f"p{i}", shape=a.shape, dtype=str(a.dtype)) for i, a in enumerate(self.arrays)]
        return Function(params, call_op(self.name, *params, **self.attributes))


def ties(*shape: int, dtype: str = "float32") -> np.ndarray:
    """Few different numbers, and what else floats can be."""
    values = np.random.default_rng(math.prod(shape)).integers(-5 if dtype[0] != "u" else 0, 6, size=shape)
    found = values.astype(dtype)
    if dtype.startswith("float"):
        for step, special in ((7, np.nan), (11, -0.0), (13, np.inf), (17, -np.inf)):
            found.reshape(-1)[step - 5 :: step] = special
    return found


def normal(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(math.prod(shape)).normal(size=shape).astype(dtype)


def case(name: str, *arrays: np.ndarray, near: Accuracy = EXACT, **attributes: object) -> Case:
    return Case(name, arrays, attributes, near)


SORTS = [
    *(case("argsort", ties(2, n), is_ascend=n % 2 == 0) for n in EDGES),
    *(case("sort", ties(4, 40, 3, dtype=d), axis=1) for d in ("float16", "float64", "int64", "uint8", "bool")),
    case("argsort", ties(70, 5), dtype="int64"),
    case("topk", ties(2, 300), k=7),
    case("topk", ties(1, 4 * TILE + 9), k=50, is_ascend=True),
    case("topk", ties(2, TILE + 40, dtype="int32"), k=TILE // 2 + 30, ret_type="indices"),
    case("topk", ties(5, 64, 3), k=3, axis=1, ret_type="values"),
    case("topk", ties(3, 20), k=0),
]
SCANS = [
    *(case("cumsum", normal(3, n), axis=1, near=SUMS) for n in (*EDGES, 1024, 9001)),
    case("cumsum", ties(5, 60, dtype="int64"), axis=1, exclusive=True),
    case("cumsum", ties(6, 1028, dtype="int8"), axis=1),
    case("cumprod", normal(2, 500, 3), axis=1, near=SUMS),
    case("cumsum", normal(300, 70, dtype="float16"), axis=0, near=SUMS, exclusive=True),
    case("cumsum", ties(9, 50), axis=1),
]
CASES = {f"{i} {c.name} {[a.shape for a in c.arrays]}": c for i, c in enumerate([*SORTS, *SCANS])}


@pytest.mark.parametrize("name", CASES)
def test_rows_give_the_right_numbers(name: str) -> None:
    case, met = CASES[name], set[str]()
    for machine in (SMALL, LARGE):
        found, kernel, bound = lowered(case.function, machine)
        if str(kernel) in met:
            continue
        met.add(str(kernel))
        results = interpreted(kernel, bound, [*case.arrays])
        check(kernel, results, expected_of(case.function, [*case.arrays]), case.near)
        assert found.chosen.rpartition(".")[2].startswith("Gpu"), found.chosen
        assert not any(d.by == "bind" for d in found.decisions)


@pytest.mark.skipif(host_compiler() is None, reason="no C++ compiler on this machine")
def test_the_cuda_c_of_rows_gives_the_right_numbers() -> None:
    """Of every case, on the simulated GPU, in every order of blocks and threads."""
    cases = [c for c in CASES.values() if all(a.size for a in c.arrays)]
    kernels = [lowered(c.function, SMALL if i % 2 else LARGE)[1] for i, c in enumerate(cases)]
    launches = [BACKEND.bind(kernel) for kernel in kernels]
    groups = HostGroups([BACKEND.source(found) for found in launches])
    for number, (case, kernel, found) in enumerate(zip(cases, kernels, launches, strict=True)):
        expected = expected_of(case.function, [*case.arrays])
        for order in ORDERS:
            results = [np.full(b.shape, 77).astype(b.dtype) for b in kernel.outputs]
            memory = np.full(int(BACKEND.workspace(found).nbytes), 77, np.uint8)  # type: ignore[arg-type]
            groups.run(number, [*case.arrays, *results], memory, order, seed=number)
            check(kernel, results, expected, case.near)


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_rows_need_few_registers_and_spill_nothing(arch: str) -> None:
    parts: list[Kernel] = []
    for number, case in enumerate([*CASES.values()][1 if arch == "sm_80" else 0 :: 2]):
        bound = [part for part in lowered(case.function, LARGE)[2] if part.body != seq()]
        parts += [replace(part, name=f"k{number}_{i}") for i, part in enumerate(bound)]
    cubin = compile_cubin(emit_cuda(*parts), arch)
    assert cubin.spills == 0 and cubin.registers <= 48 and cubin.shared_bytes <= 48 * 1024


def launches_of(case: Case) -> int:
    return len(lowered(case.function, LARGE)[2])


@pytest.mark.parametrize(
    ("made", "launches"),
    [
        (lambda: case("argsort", ties(3, TILE)), 1),
        (lambda: case("argsort", ties(3, TILE * 8)), 4),
        (lambda: case("topk", ties(1, TILE * 8), k=10), 2),
        (lambda: case("cumsum", normal(2000, 5000), axis=1), 1),
        (lambda: case("cumsum", normal(2, 50000), axis=1), 3),
    ],
)
def test_rows_take_few_launches(made: Callable[[], Case], launches: int) -> None:
    assert launches_of(made()) == launches
