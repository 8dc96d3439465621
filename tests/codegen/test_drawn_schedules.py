"""Schedules drawn at random: each step computes the same numbers or says why not, and replays from its line.

A sample here.  More, by seeds from 0 on:

    python tests/codegen/test_drawn_schedules.py 2000
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from small_kernels import X, matmul, padded, prefix_sum, scale, shifted, sums, triangle, wavefront

from minitvm.codegen import schedule
from minitvm.codegen.simplify import simplify
from minitvm.errors import ScheduleError
from minitvm.ir.loop import Kernel, allocated
from minitvm.ir.loop.interp import run_kernel
from minitvm.ir.loop.text import print_kernel
from minitvm.ir.loop.verify import verify_kernel

KERNELS: list[Callable[[], Kernel]] = [
    matmul, scale, prefix_sum, shifted, triangle, padded, wavefront, lambda: sums(lambda z, i, k: z + X[i, k]),
]  # fmt: skip
MOST_STEPS = 7
LAYOUTS = ("", "BA", "AB3b", "BA4b", "A2aB", "AB4b2a")


def draw(rng: np.random.Generator, kernel: Kernel) -> str:
    """A line of a step that may apply or not."""
    variables = [f.var.name for f in schedule.loops(kernel)]
    buffers = [b.name for b in (*kernel.params, *allocated(kernel.body))]

    def one(*things: object) -> str:
        return str(things[rng.integers(len(things))])

    loop, buffer, number = one(*variables), one(*buffers), int(rng.integers(1, 6))
    return one(
        f"split({loop}, {number}, {one('guard', 'shorter', 'peel', 'exact')!r})",
        f"tile({loop}, {one(*variables)}, {number}, {int(rng.integers(1, 5))}, 'peel')",
        f"fuse({loop}, {one(*variables)})",
        f"reorder({loop}, {one(*variables)})",
        f"unroll({loop})",
        f"vectorize({loop})",
        f"jam({loop})",
        f"rfactor({loop}, {number})",
        f"parallel({loop})",
        f"partition({loop})",
        f"partition({loop}, ({number},))",
        f"fission({loop})",
        f"distribute({loop})",
        f"predicate({loop})",
        f"cache_read({buffer}, {loop})",
        f"cache_write({buffer}, {loop})",
        f"compute_at({buffer}, {loop})",
        f"stage({buffer}, {loop}, {one(*LAYOUTS)!r})",
        f"stage({buffer}, None, {one(*LAYOUTS)!r})",
        f"prefetch({buffer}, {loop}, {one(None, *variables)})",
    )


def drawn(seed: int, taken: Counter[str] | None = None) -> schedule.Steps:
    """A schedule whose every prefix has been held beside the plain loops."""
    rng = np.random.default_rng(seed)
    plain = KERNELS[seed % len(KERNELS)]()
    arrays = [rng.normal(size=b.shape).astype(b.dtype) for b in plain.inputs]
    expected = run_kernel(plain, *arrays)
    made = schedule.Steps(plain)
    for _ in range(40):
        line = draw(rng, made.kernel)
        before = print_kernel(made.kernel)
        try:
            made.replay([line])
        except ScheduleError:
            assert print_kernel(made.kernel) == before
            continue
        for kernel in (made.kernel, simplify(made.kernel)):
            verify_kernel(kernel)
            results = run_kernel(kernel, *arrays, check_races=True)
            for have, want in zip(results, expected, strict=True):
                np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5, err_msg=str(made))
        if taken is not None:
            taken[made.steps[-1].name] += 1
        if len(made.steps) == MOST_STEPS:
            break
    return made


@pytest.mark.parametrize("seed", range(48))
def test_a_drawn_schedule_computes_the_same_and_replays(seed: int) -> None:
    made = drawn(seed)
    plain = made.plain
    again = schedule.replay(plain, str(made).splitlines())
    assert print_kernel(again.kernel) == print_kernel(made.kernel)
    assert str(again) == str(made)


def main(count: int) -> None:
    taken: Counter[str] = Counter()
    wrong = 0
    for seed in range(count):
        try:
            drawn(seed, taken)
        except Exception as error:
            wrong += 1
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:1500]}\n")
    print(f"{count} schedules, {wrong} wrong; steps taken: {dict(taken.most_common())}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
