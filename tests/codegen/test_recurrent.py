"""Recurrent layers of awkward sizes: units that fill no vectors, one step or none, any batch on any threads."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from native_kernel import run_native
from operator_cases.norms import quantized_recurrence

import minitvm.codegen.templates  # noqa: F401  (registers the templates)
from minitvm.codegen.coverage import Verdict, check_coverage
from minitvm.codegen.legalize import legalize
from minitvm.codegen.llvm.arith import SPELLINGS
from minitvm.codegen.problem import TEMPLATES, Problem, Template
from minitvm.codegen.simplify import simplify
from minitvm.codegen.templates.recurrent import ALL_THREADS
from minitvm.ir.builder import call_op, var
from minitvm.ir.expr import Call
from minitvm.ir.loop import Kernel
from minitvm.ir.loop.interp import run_kernel
from minitvm.ir.loop.verify import verify_kernel
from minitvm.ir.op import Op
from minitvm.target import MachineModel

GATES = {"nn.lstm": 4, "nn.gru": 3, "nn.rnn": 1}
WIDTHS = ((64, 32), (32, 16), (16, 16))


def arrays_of(name: str, steps: int, batch: int, hidden: int, seed: int, peephole: bool = False) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    wide = GATES[name] * hidden
    shapes: list[tuple[int, ...]] = [(steps, batch, wide), (wide, hidden)]
    shapes += [(wide,)] if name == "nn.gru" else []
    shapes += [(batch, hidden)] * (2 if name == "nn.lstm" else 1)
    shapes += [(3 * hidden,)] if peephole else []
    return [(rng.normal(size=s) / np.sqrt(hidden)).astype("float32") for s in shapes]


def template_of(name: str, arrays: list[np.ndarray], machine: MachineModel, **attributes: Any) -> Template:
    call = call_op(name, *(var(f"p{i}", shape=a.shape) for i, a in enumerate(arrays)), **attributes)
    assert isinstance(call, Call) and isinstance(call.op, Op)
    (template,) = TEMPLATES.find("llvm", call.op)
    return template(Problem.of(call), machine)


def check(name: str, arrays: list[np.ndarray], machine: MachineModel, **attributes: Any) -> Kernel:
    template = template_of(name, arrays, machine, **attributes)
    made = template.kernel()
    assert isinstance(made, Kernel), made
    return compare(simplify(made), template.problem.op, arrays, machine)


def compare(kernel: Kernel, op: Op, arrays: list[np.ndarray], machine: MachineModel) -> Kernel:
    verify_kernel(kernel)
    native = run_native(legalize(kernel, SPELLINGS), *arrays, threads=machine.threads, machine=machine)
    for results in (native, run_kernel(kernel, *arrays, check_races=True)):
        found = op.reference(*arrays)
        for have, want in zip(results, found if isinstance(found, tuple) else (found,), strict=True):
            np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-6)
    return kernel


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", GATES)
def test_awkward_sizes(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    steps, batch, hidden = (
        int(rng.choice([1, 1, 2, 5])),
        int(rng.integers(1, 8)),
        int(rng.choice([1, 3, 8, 15, 17, 33])),
    )
    machine = MachineModel(*WIDTHS[seed % 3], threads=int(rng.choice([1, 2, 3, 16])))
    arrays = arrays_of(name, steps, batch, hidden, seed, peephole=name == "nn.lstm" and seed % 2 == 1)
    attributes = {"linear_before_reset": seed % 2 == 1} if name == "nn.gru" else {}
    check(name, arrays, machine, reverse=seed % 4 > 1, **attributes)


@pytest.mark.parametrize("name", GATES)
def test_no_steps_return_the_states(name: str) -> None:
    check(name, arrays_of(name, 0, 3, 5, 0), MachineModel(32, 16, threads=2))


def test_seven_steps_of_64_units_on_one_thread() -> None:
    """Found wrong: the dense before it left columns unwritten, so states were NaN."""
    check("nn.lstm", arrays_of("nn.lstm", 7, 1, 64, 7), MachineModel(64, 32))


@pytest.mark.parametrize("seed", range(6))
def test_a_state_of_bytes(seed: int) -> None:
    """Of one step to the last digit; later ones may have a level that is one off, where a state lies between two."""
    rng = np.random.default_rng(seed)
    steps, batch, hidden = ((1, 4)[seed % 2], int(rng.integers(1, 6)), int(rng.choice([1, 4, 10, 17, 33])))
    wide, states = rng.normal(size=(steps, batch, 4 * hidden)), rng.normal(size=(2, batch, hidden))
    arrays = [wide.astype("float32"), *quantized_recurrence(hidden, seed % 3 == 1, seed), *states.astype("float32")]
    arrays += [rng.normal(size=3 * hidden).astype("float32")] if seed > 3 else []
    params = [var(f"p{i}", shape=a.shape, dtype=a.dtype.name) for i, a in enumerate(arrays)]
    call = call_op("qnn.lstm", *params, reverse=seed % 4 > 1)
    assert isinstance(call, Call) and isinstance(call.op, Op)
    machine = MachineModel(*WIDTHS[seed % 3], threads=1 + seed % 3)
    (template,) = TEMPLATES.find("llvm", call.op)
    made = template(Problem.of(call), machine).kernel()
    assert isinstance(made, Kernel), made
    kernel = simplify(made)
    verify_kernel(kernel)
    native = run_native(legalize(kernel, SPELLINGS), *arrays, threads=machine.threads, machine=machine)
    for results in (native, run_kernel(kernel, *arrays, check_races=True)):
        for have, want in zip(results, call.op.reference(*arrays), strict=True):
            np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-6 if steps == 1 else 0.05)
            assert np.median(np.abs(have - want)) < 1e-6


@pytest.mark.parametrize(("steps", "hidden", "panels"), [(100, 40, True), (1, 200, False)])
def test_many_steps_pay_for_panels_of_the_weight(steps: int, hidden: int, panels: bool) -> None:
    arrays = arrays_of("nn.rnn", steps, 2, hidden, 1)
    kernel = check("nn.rnn", arrays, MachineModel(64, 32, threads=2))
    assert ("packed" in str(kernel)) is panels
    assert not re.search(r"for \w*tail", str(kernel))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", GATES)
def test_steps_by_all_threads(name: str, seed: int) -> None:
    """Every way of it, on the machine that the seed says; a single step is no loop any more, states stay two."""
    steps, batch, hidden, threads = ((3, 1, 33, 2), (2, 2, 40, 3), (4, 1, 17, 16), (1, 1, 33, 2))[seed]
    arrays = arrays_of(name, steps, batch, hidden, seed, peephole=name == "nn.lstm")
    attributes = {"linear_before_reset": seed == 1} if name == "nn.gru" else {}
    template = template_of(name, arrays, MachineModel(*WIDTHS[seed % len(WIDTHS)], threads=threads), **attributes)
    schemes = {c.scheme: c for c in template.candidates if c.scheme.endswith(ALL_THREADS)}
    assert len(schemes) == 2
    for choice in schemes.values():
        kernel = template.kernel(choice)
        assert isinstance(kernel, Kernel)
        simplified = simplify(kernel)
        assert all(found.verdict is not Verdict.UNDECIDED for found in check_coverage(simplified))
        compare(simplified, template.problem.op, arrays, template.machine)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", GATES)
def test_all_threads_share_steps_that_are_long_beside_a_barrier(name: str, width: tuple[int, int]) -> None:
    cases = ((1, 512, 2, True), (1, 16, 2, False), (1, 512, 1, False), (4, 512, 4, False))
    for batch, hidden, threads, shared in cases:
        arrays = arrays_of(name, 50, batch, hidden, 0)
        choice = template_of(name, arrays, MachineModel(*width, threads=threads)).choice
        assert choice.scheme.endswith(ALL_THREADS) is shared, (batch, hidden, threads, str(choice))


def test_every_second_step_goes_through_the_weight_backwards() -> None:
    """Of 1 MB of weights a second level of 1 MB keeps most that way, and nothing where each step begins anew."""
    template = template_of("nn.lstm", arrays_of("nn.lstm", 50, 1, 256, 0), MachineModel(64, 32))
    kernel = template.kernel()
    assert isinstance(kernel, Kernel)
    inner = re.split(r"for group\w* in", str(simplify(kernel)))[1]
    assert re.search(r"packed\[.*% 2", inner), inner


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("shape", "exclusive"), [((5, 9001), False), ((2, 3, 3, 3001), True)])
def test_running_sums_of_long_slices(shape: tuple[int, ...], exclusive: bool, threads: int) -> None:
    """More columns than have their sums on the stack, or in the second-level cache at a time."""
    data = np.random.default_rng(0).integers(-9, 9, shape).astype("float32")
    machine = MachineModel(32, 16, l2_bytes=64 * 1024, threads=threads)
    check("cumsum", [data], machine, axis=0 if len(shape) == 2 else 1, exclusive=exclusive)
