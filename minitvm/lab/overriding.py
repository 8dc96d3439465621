"""Templates, their ways and schedules chosen for single kernels, and what that changes, measured.

print(measure_override("model.onnx", override("fused_nn_dense*", config={"rows": 4})))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minitvm import config
from minitvm.codegen.overrides import Override, override
from minitvm.codegen.problem import asking
from minitvm.driver.compile import alone
from minitvm.driver.kernels import KernelCompiler
from minitvm.driver.report import BuildReport, KernelReport
from minitvm.ir.expr import Function
from minitvm.lab.subject import Subject
from minitvm.passes.compare import close, difference
from minitvm.runtime.cache import KernelCache
from minitvm.runtime.executor import GraphModule
from minitvm.runtime.rounds import side_by_side
from minitvm.runtime.timing import BenchmarkResult

__all__ = ["Changed", "Override", "measure_override", "override"]


@dataclass(frozen=True)
class Changed:
    """One kernel as it would be, and as it was asked for: what makes it, and the time of each."""

    kernel: str
    usual: str
    asked: str
    usual_time: BenchmarkResult
    asked_time: BenchmarkResult
    results: str

    @property
    def ratio(self) -> float:
        """Below 1: what was asked for is faster."""
        return self.asked_time.median / self.usual_time.median

    def __str__(self) -> str:
        times = f"{self.usual_time.median * 1e6:.1f} us -> {self.asked_time.median * 1e6:.1f} us"
        return f"{self.kernel}: {times} ({self.ratio:.2f} x), results {self.results}\n  {self.usual}\n  {self.asked}"


def measure_override(
    model: Any, *overrides: Override, rounds: int = 9, opt_level: int = 3, **subject: Any
) -> tuple[Changed, ...]:
    """Every kernel that overrides are for, by itself, both ways, interleaved, on the same random inputs.

    ``subject`` are the arguments of :meth:`Subject.of`.  Raises what a build with these overrides raises.
    """
    given = Subject.of(model, **subject)
    with asking(()):
        report = given.build(opt_level).report
    assert report is not None
    for one in overrides:
        one.require_used(report.groups)
    with asking(overrides):
        other = KernelCompiler(report.compiler.backend, KernelCache(config.cache_dir()))
    chosen = {s: g for s, g in report.groups.items() if any(o.is_for(s, g) for o in overrides)}
    return tuple(_changed(symbol, group, report, other, rounds) for symbol, group in chosen.items())


def _changed(symbol: str, group: Function, report: BuildReport, other: KernelCompiler, rounds: int) -> Changed:
    modules = {name: _module(symbol, group, c) for name, c in (("usual", report.compiler), ("asked", other))}
    times = side_by_side({name: module.run for name, module in modules.items()}, rounds, pause=0.0)
    usual, asked = (_made_by(symbol, group, compiler) for compiler in (report.compiler, other))
    results = _beside(*(module.outputs() for module in modules.values()))
    return Changed(symbol, usual, asked, times["usual"], times["asked"], results)


def _module(symbol: str, group: Function, compiler: KernelCompiler) -> GraphModule:
    return Subject.runner(alone(symbol, group, compiler.compile(symbol, group), compiler))


def _made_by(symbol: str, group: Function, compiler: KernelCompiler) -> str:
    report = KernelReport(symbol, group, compiler)
    return f"{report.template}: {report.candidates[0]}" if report.candidates else report.template


def _beside(usual: Sequence[Any], asked: Sequence[Any]) -> str:
    for want, have in zip(usual, asked, strict=True):
        if not close(np.asarray(have), np.asarray(want)):
            return f"differ: {difference(np.asarray(have), np.asarray(want))}"
    return "equal"
