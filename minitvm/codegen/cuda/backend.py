"""The back end of NVIDIA's GPUs: kernels as CUDA C, machine code by NVRTC.  Needs neither a GPU nor a driver."""

from __future__ import annotations

import functools
import importlib.metadata
import re
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import minitvm.codegen.cuda.schedules
import minitvm.codegen.cuda.templates  # noqa: F401  (registers the templates)
from minitvm.codegen.backend import Backend, Launches, Workspace, register
from minitvm.codegen.cuda.bind import bind_plain, launch_of
from minitvm.codegen.cuda.emit import emit_cuda, function_name
from minitvm.codegen.cuda.libraries import convolution_of, product_of
from minitvm.codegen.cuda.machine import GpuModel, gpu_model
from minitvm.codegen.cuda.origins import listings
from minitvm.codegen.cuda.resources import needs
from minitvm.codegen.cuda.templates.dense import GpuTemplate
from minitvm.codegen.listing import Listing
from minitvm.codegen.problem import Choice, Template
from minitvm.errors import CompilerError
from minitvm.ir.dims import Dim
from minitvm.ir.expr import Function
from minitvm.ir.loop import Buffer, Kernel
from minitvm.runtime.graph import CpuTag
from minitvm.runtime.nvidia import CudaArtifact, image, present_arch
from minitvm.runtime.nvidia.libraries import call_bytes
from minitvm.target import Target

_ALIGN = 256
_ARCH = "sm_90"
"""What is compiled for where nobody says, and no GPU is there."""


@register
class CudaBackend(Backend):
    kind = "cuda"
    code = CudaArtifact
    schedules = "cuda"
    templates = ("cuda", "llvm")
    libraries = {"cudnn": convolution_of, "cublas": product_of}

    def __init__(self, target: Target, threads: int) -> None:
        super().__init__(target, threads)
        arch = target.options.get("arch") or present_arch() or _ARCH
        self.machine = gpu_model(arch, threads)
        self.made_for = CpuTag("nvptx64-nvidia-cuda", arch, ())
        self.version = _version()

    def library_call(self, group: Function, symbol: str) -> bytes | None:
        found = self.asked(group)
        return None if found is None else call_bytes(found)

    def library_text(self, group: Function, symbol: str) -> str:
        return f"// {symbol} calls {group.attrs['library']}: {self.asked(group)}\n"

    def legalize(self, kernel: Kernel) -> Kernel:
        """CUDA C has all functions."""
        return kernel

    def bind(self, kernel: Kernel) -> Launches:
        if kernel.sizes:
            raise CompilerError(f"{kernel.name}: kernels of a GPU are made for numbers only, not for sizes with names")
        return Launches(kernel.params, bind_plain(kernel))

    def workspace(self, launches: Launches) -> Workspace:
        """What launches hand on to each other, in global memory."""
        offsets: dict[Buffer, Dim] = {}
        nbytes = 0
        for buffer in (b for kernel in launches.kernels for b in kernel.params if b not in launches.params):
            if buffer not in offsets:
                offsets[buffer] = nbytes
                nbytes += -(-buffer.nbytes // _ALIGN) * _ALIGN
        return Workspace(offsets, nbytes)

    def source(self, launches: Launches) -> str:
        """Launches as comments (:class:`minitvm.runtime.nvidia.image.Launch`), then their functions."""
        places: dict[Buffer, int] = {b: number for number, b in enumerate(launches.params)}
        places |= {b: -1 - at for b, at in self.workspace(launches).offsets.items() if isinstance(at, int)}
        records = []
        for kernel in launches.kernels:
            params, made = tuple(places[b] for b in kernel.params), launch_of(kernel)
            found = image.Launch(function_name(kernel), made.grid, made.block, made.shared, params, made.counters)
            if 0 not in (*made.grid, *made.block):  # no elements
                records.append(image.record(found))
        return "\n".join([*records, "", emit_cuda(*launches.kernels)])

    def listings(self, readable: Kernel, legal: Kernel) -> tuple[Listing, ...]:
        """Loops as they are bound to blocks and threads, and CUDA C."""
        return listings(self.bind(legal).kernels)

    def image(self, source: str) -> bytes:
        return image.pack(image.records(source), compile_cubin(source, self.made_for.name).image)

    def judged(self, template: Template, choice: Choice, source: str) -> tuple[float, str]:
        """A choice's cycles by NVRTC's log: the blocks that an SM really holds; spills are refused."""
        assert isinstance(self.machine, GpuModel)
        found = needs(source, compile_cubin(source, self.made_for.name).log, self.machine)
        why_not = next((launch.why_not for launch in found if launch.why_not), "")
        if why_not or not isinstance(template, GpuTemplate):
            return choice.cycles, why_not
        return template.cycles(choice, found[0].registers), ""

    stages = {"cuda": source}


# --- to machine code for one architecture, by NVRTC, which needs no GPU and no driver -----------------------------

_USED = re.compile(r"Used (\d+) registers")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_SHARED = re.compile(r"(\d+) bytes smem")
_ERROR_LINE = re.compile(r"\((\d+)\): (?:catastrophic )?error")
_HINT = "pip install cuda-bindings nvidia-cuda-nvrtc"
_CACHES = (12, 9)
"""The first version of NVRTC that keeps what it made, where there is a driver."""


@dataclass(frozen=True)
class Cubin:
    """Machine code, and what one thread and one block of it need."""

    image: bytes
    registers: int
    spills: int  # bytes stored and loaded because registers ran out
    shared_bytes: int
    log: str


_BLOCKS_AT_LEAST = re.compile(r"__launch_bounds__\((\d+), (?!1\))\d+\)")


@functools.lru_cache(maxsize=4)  # who judges a kernel wants to run it next
def compile_cubin(source: str, arch: str = "sm_90") -> Cubin:
    """Compile CUDA C; raises :class:`CompilerError` with the lines at fault, or where NVRTC is not installed.

    Where threads need more registers than an SM has for as many blocks as were predicted, there are fewer blocks.
    """
    found = _compiled(source, arch)
    if found.spills and _BLOCKS_AT_LEAST.search(source):
        return _compiled(_BLOCKS_AT_LEAST.sub(r"__launch_bounds__(\1, 1)", source), arch)
    return found


def _compiled(source: str, arch: str) -> Cubin:
    nvrtc = _load()
    if "wgmma_" in source and arch == "sm_90":  # only there, and on no later architecture
        arch += "a"
    program = _check(nvrtc, nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], []))
    try:
        options = [f"--gpu-architecture={arch}".encode(), b"--ptxas-options=-v", b"--std=c++17", b"--fmad=false"]
        options += [b"--no-cache"] * (nvrtc.nvrtcVersion()[1:] >= _CACHES)  # what is found there has no log
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        log = _text(nvrtc, program)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompilerError(f"NVRTC refuses the kernel for {arch}", where=_offending(log, source))
        image = bytes(_check(nvrtc, nvrtc.nvrtcGetCUBINSize(program)))
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


def _version() -> str | None:
    """NVRTC's; ``None`` where it is missing, as a kernel that has to be compiled says.  A package is asked first: what
    is in the cache needs no NVRTC, which takes longer to open than all of a model's images to read."""
    try:
        return f"nvrtc {importlib.metadata.version('nvidia-cuda-nvrtc')}"
    except importlib.metadata.PackageNotFoundError:
        pass
    try:
        nvrtc = _load()
    except CompilerError:
        return None
    return "nvrtc {}.{}".format(*nvrtc.nvrtcVersion()[1:])


def _check(nvrtc: Any, answer: tuple[Any, ...]) -> Any:
    status, *values = answer
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompilerError(f"NVRTC fails: {nvrtc.nvrtcGetErrorString(status)[1].decode()}")
    return values[0] if values else None


def _text(nvrtc: Any, program: Any) -> str:
    """NVRTC's log.  It is written to bytes that nobody else has: of one byte, Python has one object for all."""
    log = bytes(1 + _check(nvrtc, nvrtc.nvrtcGetProgramLogSize(program)))
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
