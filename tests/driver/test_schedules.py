"""``minitvm.schedules``: kernels of a build made by one's own schedules."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from minitvm.codegen import schedule
from minitvm.driver import build
from minitvm.errors import CompilerError, ConfigError, ScheduleError, UserCodeError
from minitvm.ir.builder import call_op, function, var
from minitvm.ir.loop import Kernel, LoopKind
from minitvm.ir.loop.interp import run_kernel
from minitvm.passes.manager import PassContext
from minitvm.runtime.executor import GraphModule
from minitvm.runtime.library import Library


def softmax_build(given: Callable[[Kernel], Kernel], name: str = "fused_nn_softmax") -> Library:
    with PassContext(config={"minitvm.schedules": {name: given}}):
        return build(function(call_op("nn.softmax", var("x", shape=(7, 33)))), num_threads=3)


def rows_in_parallel(kernel: Kernel) -> Kernel:
    for loop in [f for f in schedule.loops(kernel) if f.var.name == "i"]:
        kernel = schedule.parallel(kernel, loop.var)
    return kernel


def test_a_kernel_runs_as_its_schedule_says() -> None:
    library = softmax_build(rows_in_parallel)
    report = library.report.kernel("fused_nn_softmax")
    assert report.template == "schedule rows_in_parallel"
    assert [f.kind for f in schedule.loops(report.loops)].count(LoopKind.PARALLEL) > 1
    assert "barrier" in str(report.plain) and "parallel" not in str(report.plain)
    x = np.random.default_rng(0).normal(size=(7, 33)).astype("float32")
    module = GraphModule(library["default"]())
    module.run(x=x)
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(module.get_output(0).numpy(), e / e.sum(1, keepdims=True), rtol=1e-5)


def row_by_row(kernel: Kernel) -> Kernel:
    """Consumers first: what each one reads is then read in the row's loop alone."""
    row = schedule.loops(kernel)[-2].var
    for stage in ("reciprocal", "exponentials", "row_max"):
        kernel = schedule.compute_at(kernel, stage, row)
    return schedule.parallel(kernel, row)


def test_stages_with_reductions_move_into_the_row_that_reads_them() -> None:
    plain = softmax_build(rows_in_parallel).report.kernel("fused_nn_softmax").plain
    moved = row_by_row(plain)
    assert (
        "barrier" not in str(moved)
        and "global" not in str(moved)
        and "exponentials: float32[1, 33] local" in str(moved)
    )
    x = np.random.default_rng(0).normal(size=(7, 33)).astype("float32")
    np.testing.assert_array_equal(run_kernel(moved, x, check_races=True), run_kernel(plain, x))
    with pytest.raises(ScheduleError, match="exponentials is not read in loop i alone"):
        schedule.compute_at(plain, "exponentials", schedule.loops(plain)[-2].var)
    with pytest.raises(ScheduleError, match="has no buffer sum"):
        schedule.compute_at(plain, "sum", schedule.loops(plain)[-2].var)


def test_an_edited_schedule_is_never_answered_with_an_old_kernel(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("MINITVM_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    made: list[Kernel] = []
    for _ in range(2):
        softmax_build(lambda kernel: made.append(kernel) or kernel)  # type: ignore[func-returns-value]
    assert len(made) == 2


def test_refusals_name_the_schedule_and_the_kernel() -> None:
    with pytest.raises(ConfigError, match=r"there is no kernel 'softmax'\n.*did you mean 'fused_nn_softmax'"):
        softmax_build(rows_in_parallel, "softmax")
    with pytest.raises(ScheduleError, match="has no loop z"):
        softmax_build(lambda kernel: schedule.unroll(kernel, "z"))
    with pytest.raises(UserCodeError, match="schedule broken raised KeyError: 'no'"):
        softmax_build(broken)
    with pytest.raises(UserCodeError, match="schedule <lambda> returned None"):
        softmax_build(lambda kernel: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(CompilerError, match="bound to blockIdx"):
        softmax_build(lambda kernel: schedule.bind(kernel, schedule.loops(kernel)[0].var, LoopKind.BLOCK_X))


def broken(kernel: Kernel) -> Kernel:
    raise KeyError("no")
