"""Every operator on generated calls: the reference, the interpreter, and machine code on 1, 2, 3 and 16 threads for
every width of vectors that this machine can run, and AArch64's under an emulator.

A few examples of each operator, always the same, each for one width in turn; ``pytest --hypothesis-profile=long`` looks
at new ones for long, each for all of them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from functools import cache

import dressed
import emulated
import numpy as np
import pytest
from dressed import Group
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from native_kernel import run_native
from operator_cases import GENERATORS, Case, Draw, HypothesisDraw, RandomDraw, accepted_dtypes, random_case
from operator_cases.accuracy import FUNCTION
from operator_cases.case import case
from test_lower import as_function
from test_ops import WITHOUT_COMPUTE, WITHOUT_SAMPLE

from minitvm.codegen.coverage import check_coverage
from minitvm.codegen.legalize import legalize
from minitvm.codegen.llvm.arith import SPELLINGS
from minitvm.codegen.llvm.compile import Cpu, cpu_of, host, machine_model
from minitvm.codegen.lower import lowering
from minitvm.codegen.problem import TEMPLATES
from minitvm.codegen.simplify import simplify
from minitvm.errors import MiniTVMError
from minitvm.ir.evaluate import fits
from minitvm.ir.loop import Barrier, Kernel, walk_stmts
from minitvm.ir.loop.interp import run_kernel
from minitvm.ir.loop.verify import verify_kernel
from minitvm.ir.op import OPS
from minitvm.ir.types import TupleType, type_of
from minitvm.target import MachineModel, Target

LONG = settings.get_current_profile_name() == "long"
EXAMPLES = settings().max_examples if LONG else 6
PHASES = (Phase.generate, Phase.shrink) if LONG else (Phase.generate,)
INTERPRETED = 1 << 17  # multiplications; calls that take more run as machine code only
EMULATED = 1 << 22
THREADS = (1, 2, 3, 16)

DECLINES = {
    r"registers hold sums of floats; here .*int.*": "sums of integers have compute rules only",
    r"registers hold sums of floats; here bool": "not a number",
    r"more than one output channel per input channel": "blocks of filters would not be blocks of channels",
    r"elements share bytes": "numbers of 2 and 4 bits have a compute rule",
    r"the weight's blocks of \d+ are not whole vectors of \d+": "packed for another machine",
}
"""Why a template may decline, and why that is right."""


@cache
def cpus() -> tuple[Cpu, ...]:
    """This machine, and older ones that it can pretend to be: one for each width of vectors."""
    older = ("haswell", "x86-64") if host().arch == "x86" else ()
    known = [host(), *(cpu_of(Target("llvm", {"mcpu": name})) for name in older)]
    return tuple({c.vector_bytes: c for c in reversed(known) if c.vector_bytes <= host().vector_bytes}.values())


def test_every_operator_has_a_generator() -> None:
    assert set(OPS) - set(GENERATORS) == {n for n in WITHOUT_SAMPLE if n != "annotation.stop_fusion"}
    assert [name for name in GENERATORS if not accepted_dtypes(name)] == []


def lowered(group: Group, what: str, machine: MachineModel) -> Kernel:
    """The group's kernel; where there is a template for its operator it was taken, or had a reason not to be."""
    found = lowering(group.function, "kernel", machine)
    for refusal in (d for d in found.decisions if d.by.startswith("template") and not d.taken):
        assert any(re.fullmatch(known, refusal.reason) for known in DECLINES), f"{what}: {refusal}"
    kernel = simplify(found.kernel)
    verify_kernel(kernel)
    check_coverage(kernel)
    return kernel


def compare(group: Group, results: tuple[np.ndarray, ...], what: str) -> None:
    for position, (have, want) in enumerate(zip(results, group.expected, strict=True)):
        assert have.dtype == want.dtype, what
        wrong = group.accuracy.differences(have.reshape(want.shape), want)
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            pair = f"{have.reshape(want.shape)[at]!r}, not {want[at]!r}"
            raise AssertionError(f"{what}: {wrong.sum()} of {wrong.size} wrong, result {position} at {at}: {pair}")


def check_types(call: Case) -> None:
    results, inferred = call.reference(), call.op.infer(*call.types)
    value = results if isinstance(inferred, TupleType) else results[0]
    assert fits(value, inferred), f"{call}: {inferred}, not {', '.join(str(type_of(r)) for r in results)}"


def check(call: Case, draw: Draw, widths: Sequence[Cpu], emulate: bool) -> None:
    check_types(call)
    if (call.op.name in WITHOUT_COMPUTE and not TEMPLATES.find("llvm", call.op)) or call.op.name in WITHOUT_SAMPLE:
        return
    group = dressed.group(call, draw)
    work = call.accuracy.terms * sum(want.size for want in group.expected)
    interpreted = draw.integer(0, len(widths) - 1) if work <= INTERPRETED else None
    for number, cpu in enumerate(widths):
        planned = draw.choice(THREADS)
        threads = planned if draw.flag() else draw.choice(THREADS)  # a library may run on others than it was made for
        machine = machine_model(cpu, planned)
        what = f"{call} in {group.function} for {cpu.name} and {planned} threads, on {threads}"
        kernel = lowered(group, what, machine)
        if number == interpreted:
            arrays = [a.reshape(p.shape) for a, p in zip(group.arrays, kernel.inputs, strict=True)]
            compare(group, run_kernel(kernel, *arrays, check_races=True), f"the interpreter: {what}")
        native = legalize(kernel, SPELLINGS)
        compare(group, run_native(native, *group.arrays, threads=threads, machine=machine, cpu=cpu), what)
    if emulated.INSTALLED and work <= EMULATED and emulate:
        check_emulated(group, call, draw.choice(THREADS))


def check_emulated(group: Group, call: Case, threads: int) -> None:
    """AArch64's object code; one thread after the other, and so one alone where they wait for each other."""
    what = f"{call} in {group.function} for AArch64 and {threads} threads"
    kernel = legalize(lowered(group, what, emulated.machine(threads)), SPELLINGS)
    waits = any(isinstance(s, Barrier) for s in walk_stmts(kernel.body))
    compare(group, emulated.run_emulated(kernel, *group.arrays, threads=1 if waits else threads), what)


@pytest.mark.skipif(not emulated.INSTALLED, reason="no emulator: pip install unicorn pyelftools")
@pytest.mark.parametrize("name", ["nn.conv2d", "nn.dense", "nn.softmax", "cumsum", "tanh"])
def test_object_code_for_aarch64(name: str) -> None:
    """Where an emulator is installed; generated calls of every operator run in it, too."""
    calls = (made for n in range(100) if is_float(made := random_case(name, RandomDraw(n))))
    small = (c for c in calls if c.accuracy.terms * c.reference()[0].size <= EMULATED)
    for seed, drawn in enumerate(itertools.islice(small, 3)):
        draw = RandomDraw(seed)
        check_emulated(dressed.group(drawn, draw), drawn, draw.choice(THREADS))


@pytest.mark.parametrize("name", [name for name, op in OPS.items() if TEMPLATES.find("llvm", op)])  # type: ignore[arg-type]
def test_templates_are_taken(name: str) -> None:
    """Not only compute rules are tested: calls with floats or words are lowered by the templates, on every machine."""
    words = name.startswith("qnn.")
    for machine in (MachineModel(16, 16, threads=1), MachineModel(32, 16, threads=3), MachineModel(64, 32, threads=16)):
        cases = (made for n in range(300) if is_float(made := random_case(name, RandomDraw(n)), words))
        chosen = (lowering(as_function(made)[0], "kernel", machine).chosen for made in cases)
        assert next((c for c in chosen if c.startswith("template")), None), f"not once on {machine}"


def is_float(call: Case, or_words: bool = False) -> bool:
    return (call.args[0].dtype.kind == "f" or or_words) and 0 not in call.reference()[0].shape


@pytest.mark.parametrize("name", GENERATORS)
def test_generated_calls(name: str) -> None:
    numbers = itertools.count()

    @settings(
        max_examples=EXAMPLES, derandomize=not LONG, deadline=None, database=None, print_blob=False,
        suppress_health_check=list(HealthCheck), phases=PHASES,
    )  # fmt: skip
    @given(st.data())
    def examples(data: st.DataObject) -> None:
        draw = HypothesisDraw(data)
        drawn, number = random_case(name, draw), next(numbers)
        widths = cpus() if LONG else cpus()[number % len(cpus()) :][:1]
        try:
            check(drawn, draw, widths, emulate=LONG or number == 1)
        except MiniTVMError as error:
            raise AssertionError(f"{drawn}: {error}") from error

    examples()


KNOWN = [
    case("sigmoid", np.array([-26.8831, -700.0, -718.0, 40.0, 800.0, -1e300]), accuracy=FUNCTION),
    case("cumsum", np.array([1, np.inf, 2, 3], "float32"), exclusive=True),
    case("qnn.dequantize", np.array([-(2**31), 2**31 - 1], "int32"), np.array(1.5, "float32"), np.array(-7, "int32")),
    case("take", np.arange(5), np.array([2**63 - 1, -(2**63)]), axis=0, mode="wrap"),
    case("clip", np.arange(-3, 3, dtype="int8"), a_min=2.0**40, a_max=float("-inf")),
    case("nn.contrib_dense_pack", np.ones((2, 0), "float32"), np.ones((3, 0, 4), "float32"), weight_layout="NC4n"),
    case("add", np.array([0.1, 6e4, 1e-7], "float16"), np.array([0.2, 1.0, 1e-7], "float16")),
]
"""Found by generated calls."""


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.op.name)
@pytest.mark.parametrize("seed", range(2))
def test_known_calls(known: Case, seed: int) -> None:
    check(known, RandomDraw(seed), cpus(), emulate=seed == 0)
