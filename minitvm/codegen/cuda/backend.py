"""The back end of NVIDIA's GPUs: prints every kernel as CUDA C.  Nothing runs it yet."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from minitvm.codegen.backend import Backend, Launches, register
from minitvm.codegen.cuda.bind import bind_plain
from minitvm.codegen.cuda.emit import emit_cuda
from minitvm.codegen.cuda.machine import gpu_model
from minitvm.errors import CompilerError
from minitvm.ir.loop import Kernel
from minitvm.runtime.graph import CpuTag
from minitvm.target import Target


@register
class CudaBackend(Backend):
    kind = "cuda"
    instead = (
        "use target 'llvm'; the CUDA C of every kernel can be printed with `minitvm show --stage cuda` "
        "or library.report.kernel(NAME).text('cuda')"
    )

    def __init__(self, target: Target, threads: int) -> None:
        super().__init__(target, threads)
        arch = target.options.get("arch", "sm_90")
        self.machine = gpu_model(arch, threads)
        self.made_for = CpuTag("nvptx64-nvidia-cuda", arch, ())

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


# --- to machine code for one architecture, by NVRTC, which needs no GPU and no driver -----------------------------

_USED = re.compile(r"Used (\d+) registers")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_SHARED = re.compile(r"(\d+) bytes smem")
_ERROR_LINE = re.compile(r"\((\d+)\): (?:catastrophic )?error")
_HINT = "pip install 'minitvm[cuda]'"


@dataclass(frozen=True)
class Cubin:
    """Machine code, and what one thread and one block of it need."""

    image: bytes
    registers: int
    spills: int  # bytes stored and loaded because registers ran out
    shared_bytes: int
    log: str


def compile_cubin(source: str, arch: str = "sm_90") -> Cubin:
    """Compile CUDA C; raises :class:`CompilerError` with the lines at fault, or where NVRTC is not installed."""
    nvrtc = _load()
    program = _check(nvrtc, nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], []))
    try:
        options = [f"--gpu-architecture={arch}".encode(), b"--ptxas-options=-v", b"--std=c++17", b"--fmad=false"]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        log = _text(nvrtc, program)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompilerError(f"NVRTC refuses the kernel for {arch}", where=_offending(log, source))
        image = b" " * _check(nvrtc, nvrtc.nvrtcGetCUBINSize(program))
        _check(nvrtc, nvrtc.nvrtcGetCUBIN(program, image))
        return _cubin(image, log)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _load() -> ModuleType:
    try:
        nvrtc = importlib.import_module("cuda.bindings.nvrtc")
        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:  # the bindings, or the library that they open
        raise CompilerError("NVRTC is not installed, so CUDA kernels cannot be compiled", hint=_HINT) from error
    return nvrtc


def _check(nvrtc: Any, answer: tuple[Any, ...]) -> Any:
    status, *values = answer
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompilerError(f"NVRTC fails: {nvrtc.nvrtcGetErrorString(status)[1].decode()}")
    return values[0] if values else None


def _text(nvrtc: Any, program: Any) -> str:
    log = b" " * _check(nvrtc, nvrtc.nvrtcGetProgramLogSize(program))
    _check(nvrtc, nvrtc.nvrtcGetProgramLog(program, log))
    return str(log.rstrip(b"\0 ").decode(errors="replace"))


def _offending(log: str, source: str) -> list[str]:
    """The log, each error with the line of source that it is about."""
    lines = source.splitlines()
    shown: list[str] = []
    for entry in log.splitlines():
        if not entry.strip():
            continue
        shown.append(entry.rstrip())
        found = _ERROR_LINE.search(entry)
        if found and int(found[1]) <= len(lines):
            shown.append(f"  line {found[1]}: {lines[int(found[1]) - 1].strip()}")
    return shown or ["(no log)"]


def _cubin(image: bytes, log: str) -> Cubin:
    used = [int(n) for n in _USED.findall(log)]
    spills = [int(a) + int(b) for a, b in _SPILLS.findall(log)]
    shared = [int(n) for n in _SHARED.findall(log)]
    return Cubin(image, max(used, default=0), sum(spills), max(shared, default=0), log)
