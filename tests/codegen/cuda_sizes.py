"""Every template and schedule of GPUs over all sizes of each axis, by values.

    python tests/codegen/cuda_sizes.py
    python tests/codegen/cuda_sizes.py product attention --every 16 --seed 3

The CUDA C of what is taken, and of other ways that the cost model, a tuner or an override might take, runs on simulated
threads and is compared with float64.  Its loops are verified, their stores counted; of every fourth kernel they run in
the interpreter too, which looks for races and reads of what nobody wrote.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).parent))

from cuda_size_cases import CONFIG, SIZES, SUBJECTS, Problem

from minitvm.codegen.backend import backend_of
from minitvm.codegen.coverage import Verdict, check_coverage
from minitvm.codegen.cuda.machine import GpuModel, gpu_model
from minitvm.codegen.lower import Lowering, lowering
from minitvm.codegen.problem import Choice
from minitvm.codegen.records import Record, key_of, trying
from minitvm.codegen.simplify import simplify
from minitvm.errors import MiniTVMError
from minitvm.ir.loop import Kernel
from minitvm.ir.loop.interp import run_kernel
from minitvm.ir.loop.verify import verify_kernel
from minitvm.passes.manager import PassContext
from minitvm.target import Target
from simulated_gpu import ORDERS
from simulated_gpu.device import HostGroups

BACKEND = backend_of(Target("cuda"), 1)
LARGE = gpu_model("sm_90")
MACHINES = (LARGE, LARGE, replace(LARGE, sms=1))
"""One of a single SM is busy with little: what large problems get is met in small ones."""
AT_ONCE = 64
"""Kernels that the host's compiler gets at a time."""
INTERPRETED = 4


@dataclass(frozen=True)
class Made:
    """A problem's kernel by one way."""

    axis: str
    problem: Problem
    way: str
    kernel: Kernel

    def __str__(self) -> str:
        return f"{self.problem}: {self.way}"


@dataclass
class Tally:
    """Of a subject: problems by axis, kernels, distinct ways, and what was wrong."""

    problems: Counter[str] = field(default_factory=Counter)
    kernels: Counter[str] = field(default_factory=Counter)
    ways: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    wrong: list[tuple[str, str]] = field(default_factory=list)
    said: int = 0
    """Of ``wrong``."""


def ways(found: Lowering, seen: Counter[str], extra: bool) -> list[Choice]:
    """Beside what is taken: the way met least often so far, and perhaps one that something speaks against."""
    others = found.template.candidates[1:] if found.template is not None else ()
    able, refused = ([c for c in others if bool(c.why_not) is bad] for bad in (False, True))
    return [min(some, key=lambda c: seen[str(c)]) for some in (able, refused if extra else []) if some]


def kernels(axis: str, problem: Problem, machine: GpuModel, tally: Tally) -> Iterator[Made]:
    """By what is taken, and by some other ways."""
    seen = tally.ways[problem.mode]
    with PassContext(config=CONFIG.get(problem.mode, {})):
        taken = lowering(problem.group, "kernel", machine, "cuda", BACKEND.templates)
        way = f"{taken.chosen}, {taken.template.choice}" if taken.template is not None else taken.chosen
        seen[str(taken.template.choice) if taken.template is not None else taken.chosen] += 1
        yield Made(axis, problem, way, checked(taken.kernel))
        for choice in ways(taken, seen, extra=sum(tally.problems.values()) % 4 == 0):
            seen[str(choice)] += 1
            assert taken.template is not None
            with trying(Record(**asdict(key_of(taken.template)), choice=str(choice), cycles=choice.cycles)):
                found = lowering(problem.group, "kernel", machine, "cuda", BACKEND.templates)
            assert found.template is not None and str(found.template.choice) == str(choice)
            yield Made(axis, problem, f"{found.chosen}, {choice}", checked(found.kernel))


def checked(kernel: Kernel) -> Kernel:
    """Well formed, every element of its results stored once; what depends on data aside."""
    verify_kernel(kernel)
    found = simplify(kernel)
    for coverage in check_coverage(found):
        assert coverage.verdict is not Verdict.UNDECIDED or "depends on data" in coverage.reason, coverage.reason
    return found


def compared(made: Made, results: Sequence[np.ndarray]) -> str:
    """What is wrong with results, or nothing."""
    for have, want in zip(results, made.problem.expected, strict=True):
        have = have.reshape(want.shape)
        if want.dtype.kind != "f":
            wrong = have != want
        else:
            scale = float(np.nanmax(np.abs(want[np.isfinite(want)]), initial=1.0))
            with np.errstate(invalid="ignore"):
                allowed = max(made.problem.limit * scale, 4 * made.problem.moved)
                wrong = ~(np.abs(have.astype("float64") - want) <= allowed)
            wrong &= ~((have == want) | (np.isnan(have) & np.isnan(want)))
        if wrong.any():
            first = tuple(int(i) for i in np.argwhere(wrong)[0])
            return f"{int(wrong.sum())} of {wrong.size} wrong, first {list(first)}: {have[first]}, not {want[first]}"
    return ""


def run(made: Sequence[Made], tally: Tally) -> None:
    """Those kernels, compiled together."""
    launches = [BACKEND.bind(one.kernel) for one in made]
    host = HostGroups([BACKEND.source(each) for each in launches], "-O0")
    for number, (one, each) in enumerate(zip(made, launches, strict=True)):
        results = [np.full(b.shape, 77).astype(b.dtype) for b in one.kernel.outputs]
        given = [a.reshape(b.shape) for a, b in zip(one.problem.arrays, one.kernel.inputs, strict=True)]
        values = [np.ascontiguousarray(a) for a in (*given, *results)]
        nbytes = BACKEND.workspace(each).nbytes
        assert isinstance(nbytes, int)
        tally.kernels[one.axis] += 1
        with noted(tally, str(one)):
            host.run(number, values, np.full(nbytes, 77, np.uint8), ORDERS[number % len(ORDERS)], seed=number)
            if wrong := compared(one, values[len(given) :]):
                tally.wrong.append((str(one), wrong))
            elif number % INTERPRETED == 0:
                run_kernel(one.kernel, *given, check_races=True)


class noted:
    """What fails inside is noted down, and the next one goes on."""

    def __init__(self, tally: Tally, what: str) -> None:
        self.tally, self.what = tally, what

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type | None, error: BaseException | None, _: object) -> bool:
        if isinstance(error, (MiniTVMError, AssertionError)):
            self.tally.wrong.append((self.what, " ".join(str(error).split())[:300]))
            return True
        return False


def check(problems: Iterable[tuple[str, Problem]], say: Callable[[str], None] = lambda _: None) -> Tally:
    """Each with the axis that it is counted under."""
    tally, waiting = Tally(), list[Made]()

    def flush(least: int) -> None:
        if len(waiting) >= least:
            run(waiting, tally)
            waiting.clear()
        while tally.said < len(tally.wrong):
            say("WRONG {}\n    {}".format(*tally.wrong[tally.said]))
            tally.said += 1

    for number, (axis, problem) in enumerate(problems):
        tally.problems[axis] += 1
        with noted(tally, str(problem)):
            waiting.extend(kernels(axis, problem, MACHINES[number % len(MACHINES)], tally))
        flush(AT_ONCE)
    flush(1)
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subjects", nargs="*", help=", ".join(s.name for s in SUBJECTS))
    parser.add_argument("--every", type=int, default=1, help="n: each n-th size")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    bad = 0
    print(f"{'subject':24} {'sizes of each axis':>19} {'problems':>9} {'kernels':>8} {'ways':>6} {'wrong':>6} {'s':>6}")
    for subject in SUBJECTS:
        if given.subjects and subject.name not in given.subjects:
            continue
        start = time.perf_counter()
        tally = check(subject.problems(given.every, given.seed), partial(print, flush=True))
        axes, distinct = len(subject.axes), sum(len(seen) for seen in tally.ways.values())
        counts = f"{sum(tally.problems.values()):9} {sum(tally.kernels.values()):8} {distinct:6} {len(tally.wrong):6}"
        sizes = f"{len(SIZES[given.seed % given.every :: given.every])} of {axes} axes"
        print(f"{subject.name:24} {sizes:>19} {counts} {time.perf_counter() - start:6.0f}", flush=True)
        bad += len(tally.wrong)
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
