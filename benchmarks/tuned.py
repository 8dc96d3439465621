"""The tuning records that ship: common networks on common GPUs, strict float32 and TF32."""

from __future__ import annotations

import pathlib

from benchmarks.onnx_models import WORKLOADS
from minitvm.codegen.cuda.machine import GpuModel
from minitvm.codegen.records import best, read
from minitvm.driver.tune import Tuned
from minitvm.models import tune
from minitvm.passes.manager import PassContext

NETWORKS = ("resnet50", "resnet18", "mobilenet_v2", "bert_base_4layers_s128")
ARCHS = ("sm_90", "sm_80")
OPTIONS: tuple[dict[str, bool], ...] = ({}, {"cuda.allow_tf32": True})


def try_all(trials: pathlib.Path, budget: float, most: int, archs: tuple[str, ...] = ARCHS) -> list[Tuned]:
    """Every network on every GPU, ``budget`` seconds each, to a file of trials; what it has already is kept."""
    found = []
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
