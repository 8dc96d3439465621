"""Recurrent layers of awkward sizes: units that fill no vectors, one step or none, any batch on any threads."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from native_kernel import run_native

import minitvm.codegen.templates  # noqa: F401  (registers the templates)
from minitvm.codegen.legalize import legalize
from minitvm.codegen.llvm.arith import SPELLINGS
from minitvm.codegen.problem import TEMPLATES, Problem
from minitvm.codegen.simplify import simplify
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


def kernel_of(call: Call, machine: MachineModel) -> Kernel:
    assert isinstance(call.op, Op)
    (template,) = TEMPLATES.find("llvm", call.op)
    kernel = template(Problem.of(call), machine).kernel()
    assert isinstance(kernel, Kernel), kernel
    verify_kernel(kernel := simplify(kernel))
    return kernel


def check(name: str, arrays: list[np.ndarray], machine: MachineModel, **attributes: Any) -> Kernel:
    call = call_op(name, *(var(f"p{i}", shape=a.shape) for i, a in enumerate(arrays)), **attributes)
    assert isinstance(call, Call) and isinstance(call.op, Op)
    kernel = kernel_of(call, machine)
    native = run_native(legalize(kernel, SPELLINGS), *arrays, threads=machine.threads, machine=machine)
    for results in (native, run_kernel(kernel, *arrays, check_races=True)):
        for have, want in zip(results, call.op.reference(*arrays), strict=True):
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


@pytest.mark.parametrize(("steps", "hidden", "panels"), [(100, 40, True), (1, 200, False)])
def test_many_steps_pay_for_panels_of_the_weight(steps: int, hidden: int, panels: bool) -> None:
    arrays = arrays_of("nn.rnn", steps, 2, hidden, 1)
    kernel = check("nn.rnn", arrays, MachineModel(64, 32, threads=2))
    assert ("packed" in str(kernel)) is panels
    assert not re.search(r"for \w*tail", str(kernel))
