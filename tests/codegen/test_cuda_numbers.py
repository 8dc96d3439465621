"""The CUDA C itself computes what the interpreter does: on the simulated GPU, in every order of blocks and threads."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from cuda_kernels import GROUPS, MACHINE, inputs_of, kernel_of
from dressed import group
from operator_cases import GENERATORS, Accuracy, RandomDraw, random_case
from test_cuda_nvrtc import every_operation
from test_ops import WITHOUT_COMPUTE, WITHOUT_SAMPLE

from minitvm.codegen.backend import backend_of
from minitvm.codegen.lower import lower
from minitvm.codegen.simplify import simplify
from minitvm.ir.loop import Buffer, Kernel
from minitvm.ir.loop.interp import run_kernel
from minitvm.target import Target
from simulated_gpu import ORDERS
from simulated_gpu.device import HostGroups
from tests.compilers import ON_GPU, PARTS, needs_compiler
from tests.gathered import Gathered

CALLS = 24 if ON_GPU else 4
"""Of each operator."""
pytestmark = needs_compiler
BACKEND = backend_of(Target("cuda"), 1)


class Compiled:
    """Kernels, each with what it is launched as, in one shared object."""

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        self.launches = [BACKEND.bind(kernel) for kernel in kernels]
        self.groups = HostGroups([BACKEND.source(launches) for launches in self.launches])

    def run(self, number: int, inputs: Sequence[np.ndarray], order: str) -> list[np.ndarray]:
        """The results of a kernel."""
        launches = self.launches[number]
        outputs = launches.params[len(inputs) :]
        results = [np.full(b.shape, 77).astype(b.dtype) for b in outputs]
        nbytes = BACKEND.workspace(launches).nbytes
        assert isinstance(nbytes, int)
        values = [np.ascontiguousarray(a) for a in (*inputs, *results)]
        self.groups.run(number, values, np.full(nbytes, 77, np.uint8), order, seed=number)
        return values[len(inputs) :]


@dataclass(frozen=True)
class Checked:
    """A kernel, its grids, what it is given and what it must give."""

    what: str
    kernel: Kernel
    arrays: list[np.ndarray]
    expected: tuple[np.ndarray, ...]
    accuracy: Accuracy

    def check(self, compiled: Compiled, number: int, order: str) -> None:
        results = compiled.run(number, self.arrays, order)
        for result, want in zip(results, self.expected, strict=True):
            have = result.reshape(want.shape)
            wrong = self.accuracy.differences(have, want)
            assert not wrong.any(), f"{self.what}: {have[wrong][:3]}, not {want[wrong][:3]}"


def groups(part: int) -> Iterator[Checked]:
    for name in [*GROUPS][part::PARTS]:
        kernel = kernel_of(name)
        arrays = inputs_of(kernel)
        yield Checked(name, kernel, arrays, run_kernel(kernel, *arrays), Accuracy(ulps=8, scale=8))


def generated(part: int) -> Iterator[Checked]:
    """Random calls of every operator, of any dtype it accepts, alone and in groups; each fourth by loops of a CPU."""
    for name, number in product([*GENERATORS][part::PARTS], range(CALLS)):
        draw = RandomDraw(zlib.crc32(f"{name} {number}".encode()))
        call = random_case(name, draw)
        if call.op.name not in WITHOUT_COMPUTE | WITHOUT_SAMPLE:
            found = group(call, draw)
            own = lower(found.function, "kernel", MACHINE) if number % 4 == 3 else None
            kernel = simplify(own or BACKEND.lower(found.function, "kernel").kernel)
            yield Checked(f"{call} ({name} {number})", kernel, found.arrays, found.expected, found.accuracy)


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("cases", [groups, generated])
def test_printed_kernels_give_the_right_numbers(cases: Callable[[int], Iterator[Checked]], part: int) -> None:
    found = [c for c in cases(part) if all(0 not in b.shape for b in c.kernel.params)]
    compiled = Compiled([c.kernel for c in found])
    each = Gathered()
    for (number, checked), order in product(enumerate(found), ORDERS):
        with each.case(f"{checked.what}, {order}"):
            checked.check(compiled, number, order)
    each.end()
    assert len(found) >= 12 // PARTS


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "int32", "int64", "uint8", "uint32", "bool"])
def test_every_operator_and_function(dtype: str) -> None:
    """On values that every function is defined for, and small enough for every cast."""
    kernel = every_operation(dtype)
    given = np.array([1, 2, 3, 0]).astype(dtype)
    results = Compiled([kernel]).run(0, [given], "forward")
    for buffer, have, (want, written) in zip(kernel.outputs, results, _written(kernel, given), strict=True):
        np.testing.assert_allclose(have[written], want[written], rtol=1e-6, err_msg=buffer.name)


def _written(kernel: Kernel, given: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Results, and which of their elements the kernel stores; each statement is run by itself."""
    from minitvm.ir.loop import Store, walk_stmts
    from minitvm.ir.loop.interp import run_sequence

    results = [(np.zeros(b.shape, b.dtype), np.zeros(b.shape, bool)) for b in kernel.outputs]
    for store in (s for s in walk_stmts(kernel.body) if isinstance(s, Store)):
        out = Buffer("out", (), store.buffer.dtype)
        single = Kernel("k", (kernel.inputs[0], out), Store(out, (), store.value))
        at = tuple(int(i.value) for i in store.index)  # type: ignore[attr-defined]
        value, written = results[kernel.outputs.index(store.buffer)]
        value[at] = run_sequence([single], {kernel.inputs[0]: given})[out]
        written[at] = True
    return results
