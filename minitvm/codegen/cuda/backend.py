"""The back end of NVIDIA's GPUs: prints every kernel as CUDA C.  Nothing runs it yet."""

from __future__ import annotations

from minitvm.codegen.backend import Backend, Launches, register
from minitvm.codegen.cuda.bind import bind_plain
from minitvm.codegen.cuda.emit import emit_cuda
from minitvm.codegen.cuda.nvrtc import compile_cubin
from minitvm.ir.loop import Kernel
from minitvm.runtime.graph import CpuTag
from minitvm.target import MachineModel, Target


@register
class CudaBackend(Backend):
    kind = "cuda"
    instead = (
        "use target 'llvm'; the CUDA C of every kernel can be printed with `minitvm show --stage cuda` "
        "or library.report.kernel(NAME).text('cuda')"
    )

    def __init__(self, target: Target, threads: int) -> None:
        super().__init__(target, threads)
        self.machine = MachineModel(vector_bytes=32, vector_registers=16, threads=threads)
        self.made_for = CpuTag("nvptx64-nvidia-cuda", target.options.get("arch", "sm_90"), ())

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
