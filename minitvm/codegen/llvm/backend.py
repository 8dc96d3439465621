"""The back end of CPUs: LLVM IR, and object code by LLVM."""

import time
from collections.abc import Mapping
from typing import Any

import llvmlite

from minitvm.codegen.backend import Backend, Compile, Launches, register
from minitvm.codegen.listing import Listing, loop_lines
from minitvm.codegen.llvm.arith import SPELLINGS
from minitvm.codegen.llvm.compile import Cpu, assembly, caches_of, compile_object, cpu_of, host, machine_model
from minitvm.codegen.llvm.emit import emit
from minitvm.codegen.llvm.entry import clocked_text, constant_text, entry_text, needed
from minitvm.doors import door, left_out
from minitvm.ir.dims import Dim
from minitvm.ir.expr import Call, Function
from minitvm.ir.loop import Kernel
from minitvm.runtime.code import seal_of
from minitvm.runtime.graph import Artifact, CpuTag, Segment
from minitvm.runtime.native import NativeArtifact, check_cpu, openblas
from minitvm.target import MachineModel, Rates, Target

SHORT = 100_000
"""Steps of a millisecond: less is interrupted where the machine is busy."""


@door
def gemm_of(call: Call) -> Any:
    """The product that OpenBLAS is asked for in place of a call; ``None`` for what is no product."""
    return None


@door
def gemm_text(gemm: Any, symbol: str) -> str:
    """The LLVM IR of a function that asks OpenBLAS for a product."""
    raise left_out("-libs=cblas")


@door
def measure(cpu: Cpu, machine: MachineModel, threads: int) -> Rates:
    """What the machine that is here does at most; usual figures where nothing measures it."""
    return machine.rates(threads)


@door
def vector_sums(cpu: Cpu, threads: int, tries: int, steps: int) -> float | None:
    """Multiply-adds of vectors a second, of each thread; ``None`` where nothing measures them."""
    return None


@door
def listings(readable: Kernel, legal: Kernel, machine: MachineModel, cpu: Cpu) -> tuple[Listing, ...]:
    """A kernel's loops; its LLVM IR and assembly where something tells which line comes from which."""
    return (loop_lines([legal], [readable]).listing,)


@register
class LlvmBackend(Backend):
    kind = "llvm"
    libraries = {"cblas": gemm_of}
    code = NativeArtifact

    def __init__(self, target: Target, threads: int) -> None:
        super().__init__(target, threads)
        if target.libs:
            openblas()  # which says what is missing
        self.cpu = cpu_of(target)
        caches = caches_of(target)
        self.machine = machine_model(self.cpu, threads, caches)
        self.native = SPELLINGS | ({"ldexp"} if self.cpu.scales else set())
        self.made_for = CpuTag(self.cpu.triple, self.cpu.name, self.cpu.instruction_sets, caches)
        self.version = f"{self.cpu} {llvmlite.__version__}"

    def measured(self) -> Rates:
        if self.cpu.arch != host().arch:
            return super().measured()
        check_cpu(self.made_for, str(self.target))
        return measure(self.cpu, self.machine, self.machine.threads)

    def measured_flops(self, tries: int) -> float:
        found = vector_sums(self.cpu, 1, tries, SHORT) if self.cpu.arch == host().arch else None
        return super().measured_flops(tries) if found is None else 2 * self.machine.lanes("float32") * found

    def library_call(self, group: Function, symbol: str) -> bytes | None:
        """Object code with a kernel's arguments, so that threads, barriers and files are the kernels'."""
        return self.image(self.library_text(group, symbol)) if "library" in group.attrs else None

    def library_text(self, group: Function, symbol: str) -> str:
        return gemm_text(self.asked(group), symbol)

    def source(self, launches: Launches) -> str:
        (kernel,) = launches.kernels
        return emit(kernel, self.machine)

    def listings(self, readable: Kernel, legal: Kernel) -> tuple[Listing, ...]:
        return listings(readable, legal, self.machine, self.cpu)

    def assembly(self, launches: Launches) -> str:
        return assembly(self.source(launches), self.cpu)

    def image(self, source: str) -> bytes:
        return compile_object(source, self.cpu)

    def entry(self, artifact: Artifact, workspaces: Mapping[int, Dim], compile: Compile) -> bytes:
        text = entry_text(artifact.graph, artifact.plan, workspaces, self.machine.features)
        text = needed(text, artifact.objects.values())
        image: bytes = compile(text + constant_text("minitvm.seal", seal_of(artifact)))
        return image

    def clocked(self, artifact: Artifact, segment: Segment, table: int) -> str | None:
        clock = getattr(time, "CLOCK_MONOTONIC", None)
        if clock is None:
            return None
        text = clocked_text(artifact, segment, table, clock, self.machine.features)
        return f'target triple = "{self.cpu.triple}"\n{text}'

    stages = {"llvm": source, "asm": assembly}
