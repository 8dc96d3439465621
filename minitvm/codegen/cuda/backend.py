"""The back end of NVIDIA's GPUs: prints every kernel as CUDA C.  Nothing runs it yet."""

from __future__ import annotations

from minitvm.codegen.backend import Backend, Launches, register
from minitvm.codegen.cuda.bind import bind_plain
from minitvm.codegen.cuda.emit import emit_cuda
from minitvm.codegen.cuda.nvrtc import compile_cubin
from minitvm.ir.loop import Kernel
from minitvm.runtime.cpu_tag import CpuTag
from minitvm.target import MachineModel, Target

_ARCH = "sm_90"


@register
class CudaBackend(Backend):
    kind = "cuda"

    def __init__(self, target: Target, threads: int) -> None:
        arch = target.options.get("arch", _ARCH)
        super().__init__(target, MachineModel(32, 16, threads=threads), CpuTag("nvptx64-nvidia-cuda", arch, ()))

    @classmethod
    def of(cls, target: Target, threads: int) -> CudaBackend:
        return cls(target, threads)

    def legalize(self, kernel: Kernel) -> Kernel:
        """CUDA C has all functions."""
        return kernel

    def bind(self, kernel: Kernel) -> Launches:
        return Launches(kernel.params, bind_plain(kernel))

    def source(self, launches: Launches) -> str:
        return "\n".join(map(emit_cuda, launches.kernels))

    def image(self, source: str) -> bytes:
        return compile_cubin(source, self.made_for.name).image

    stages = {"cuda": source}
