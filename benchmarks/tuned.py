"""The tuning records that ship: common networks on common GPUs, strict float32 and TF32."""

from __future__ import annotations

import pathlib

from benchmarks.cuda_estimate import bound, machine_code
from benchmarks.onnx_models import WORKLOADS
from minitvm.codegen.backend import BACKENDS, backend_class
from minitvm.codegen.cuda.backend import CudaBackend, compile_cubin
from minitvm.codegen.cuda.machine import GpuModel
from minitvm.codegen.problem import Choice, Template
from minitvm.codegen.records import best, read
from minitvm.codegen.simplify import simplify
from minitvm.driver.tune import Tuned
from minitvm.ir.loop import Kernel
from minitvm.models import tune
from minitvm.passes.manager import PassContext

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


def try_all(trials: pathlib.Path, budget: float, most: int, archs: tuple[str, ...] = ARCHS) -> list[Tuned]:
    """Every network on every GPU, ``budget`` seconds each, to a file of trials; what it has already is kept."""
    backend_class("cuda")
    found, BACKENDS["cuda"] = [], ByMachineCode
    for options in OPTIONS:
        for arch in archs:
            for name in NETWORKS:
                with PassContext(config=options):
                    found.append(tune(WORKLOADS[name].build(), trials, f"cuda -arch={arch}", budget=budget, most=most))
                print(f"{name}, {arch}, {options}: {found[-1]}", flush=True)
    return found


def ship(trials: pathlib.Path) -> int:
    """Write what did best to the package; how many records that are."""
    assert GpuModel.records is not None
    taken = sorted(map(str, best(read(trials)).values()))
    GpuModel.records.write_text("".join(f"{line}\n" for line in taken), encoding="utf-8")
    return len(taken)
