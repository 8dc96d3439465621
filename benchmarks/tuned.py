"""The tuning records that ship: common networks on common GPUs, strict float32 and TF32."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Iterable

from benchmarks.cuda_estimate import bound, machine_code
from benchmarks.onnx_models import WORKLOADS
from minitvm import config
from minitvm.codegen.backend import BACKENDS, backend_class
from minitvm.codegen.cuda.backend import CudaBackend, compile_cubin
from minitvm.codegen.cuda.machine import GpuModel
from minitvm.codegen.problem import Choice, Template
from minitvm.codegen.records import Record, best, read
from minitvm.codegen.simplify import simplify
from minitvm.driver import backend_for
from minitvm.driver.kernels import KernelCompiler
from minitvm.driver.tune import Tuned, tasks, tune
from minitvm.frontend import from_onnx
from minitvm.ir.loop import Kernel
from minitvm.passes.manager import PassContext
from minitvm.runtime.cache import KernelCache

NETWORKS = ("resnet50", "resnet18", "mobilenet_v2", "bert_base_4layers_s128")
ARCHS = ("sm_90", "sm_80")
OPTIONS: tuple[dict[str, bool], ...] = ({}, {"cuda.allow_tf32": True})


class ByMachineCode(CudaBackend):
    """Predicts what a choice costs as ``cuda-estimate`` does, from the instructions that NVRTC makes of it."""

    def judged(self, template: Template, choice: Choice, source: str) -> tuple[float, str]:
        cycles, why_not = super().judged(template, choice, source)
        if why_not:
            return cycles, why_not
        kernel = template.kernel(choice)
        assert isinstance(kernel, Kernel) and isinstance(self.machine, GpuModel)
        code = list(machine_code(compile_cubin(source, self.made_for.name).image).items())
        launches = zip(self.bind(simplify(kernel)).kernels, sorted(code), strict=True)
        return sum(bound(k, c, self.machine, sum(b.nbytes for b in k.params)).total for k, (_, c) in launches), ""


def try_all(trials: pathlib.Path, budget: float, most: int, missing: bool = False) -> list[Tuned]:
    """Every network on every GPU, ``budget`` seconds each, to a file of trials; what it has already is kept.

    ``missing``: only kernels for which no record that ships names a way.
    """
    backend_class("cuda")
    found, BACKENDS["cuda"] = [], ByMachineCode
    for options, arch, name in itertools.product(OPTIONS, ARCHS, NETWORKS):
        with PassContext(config=options):
            compiler = KernelCompiler(backend_for(f"cuda -arch={arch}", None), KernelCache(config.cache_dir()))
            wanted = tasks(*from_onnx(WORKLOADS[name].build()), compiler, opt_level=3)
            wanted = [task for task in wanted if not (missing and _is_recorded(task.template))]
            found.append(tune(wanted, compiler, trials, budget, most))
        print(f"{name}, {arch}, {options}: {found[-1]}", flush=True)
    return found


def _is_recorded(template: Template) -> bool:
    return template.record is not None and template.record.choice == str(template.choice)


def ship(trials: pathlib.Path, missing: bool = False) -> int:
    """Write what did best to the package, beside what is there if that is ``missing`` only; how many records it has."""
    assert GpuModel.records is not None
    taken = shipped_with(read(trials)) if missing else sorted(map(str, best(read(trials)).values()))
    GpuModel.records.write_text("".join(f"{line}\n" for line in taken), encoding="utf-8")
    return len(taken)


def shipped_with(trials: Iterable[Record]) -> list[str]:
    """The lines of the records that ship, with what did best of some trials in the place of theirs."""
    assert GpuModel.records is not None
    return sorted(map(str, {**best(read(GpuModel.records)), **best(trials)}.values()))
