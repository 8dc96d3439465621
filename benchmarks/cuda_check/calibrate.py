"""What a GPU does in a cycle, measured by the kernels of ``micro.cu``: the figures that ``machine.py`` counts with.

Every figure is measured for itself; one that fails says why, and those behind it are measured all the same unless the
GPU's context is gone.
"""

from __future__ import annotations

import ctypes
import itertools
import pathlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from minitvm.codegen.backend import backend_class
from minitvm.codegen.cuda import spell
from minitvm.codegen.cuda.machine import gpu_model
from minitvm.runtime.nvidia.driver import gpu
from minitvm.runtime.nvidia.image import unpack
from minitvm.target import Target

SOURCE = pathlib.Path(__file__).with_name("micro.cu")
_HELPERS = {
    "mma": ("to_tf32", "mma_f16", "mma_tf32", "ldmatrix_x4"),
    "cluster": ("cluster_barrier",),
    "wgmma": ("wgmma_f16<256>", "wgmma_shared", "wgmma_sums", "wgmma_commit", "wgmma_wait"),
}
"""Functions of emitted kernels that show what a feature of an architecture does."""
_WARP, _VECTOR = 32, 16
Figures = dict[str, float]


def source(arch: str) -> str:
    """The kernels that an architecture can run, with the helpers that they call."""
    found = [feature for feature in _HELPERS if feature in gpu_model(arch).features]
    parts = [text for name in found for text in (f"#define {name.upper()}", *map(spell.helper, _HELPERS[name]))]
    return "\n".join([*parts, SOURCE.read_text(encoding="utf-8")])


def machine_code(text: str, arch: str) -> bytes:
    """By NVRTC, or by the host's compiler on the stand-in."""
    backend = backend_class("cuda")(Target.parse(f"cuda -arch={arch}"), 1)
    return unpack(backend.image(text))[1]


class Lab:
    """The kernels on the first GPU, ``small``: so few rounds that the stand-in does them in no time."""

    def __init__(self, arch: str, small: bool) -> None:
        self.gpu, self.small, self.features = gpu(0), small, gpu_model(arch).features
        self.sms = 2 if small else self.gpu.sms
        self.stream = self.gpu.stream()
        self._functions: dict[str, Any] = {}
        with self.gpu:
            self._module = self.gpu.call("cuModuleLoadData", machine_code(source(arch), arch))
            self.cycles, self.times = (self.gpu.call("cuMemAlloc", 8 * 4096) for _ in range(2))
            self.out = self.gpu.call("cuMemAlloc", 16 << 20)

    def times_of(self, many: int, few: int = 2) -> int:
        return few if self.small else many

    # --- launches ---

    def launch(self, name: str, grid: int, block: int, *args: Any) -> None:
        """All arguments are of 64 bits."""
        if name not in self._functions:
            self._functions[name] = self.gpu.call("cuModuleGetFunction", self._module, name.encode())
        values = (ctypes.c_uint64 * max(1, len(args)))(*map(int, args))
        start = ctypes.addressof(values)
        addresses = (ctypes.c_void_p * max(1, len(args)))(*(start + 8 * n for n in range(len(args))))
        what = (self._functions[name], grid, 1, 1, block, 1, 1, 0, self.stream, ctypes.addressof(addresses), 0)
        self.gpu.call("cuLaunchKernel", *what, where=[f"kernel {name}"])

    def seconds(self, run: Callable[[], None], repeats: int = 5) -> float:
        """The median of some runs by events, behind one that is not counted."""
        call = self.gpu.call
        events = [call("cuEventCreate", 0) for _ in range(repeats + 1)]
        run()
        call("cuEventRecord", events[0], self.stream)
        for event in events[1:]:
            run()
            call("cuEventRecord", event, self.stream)
        call("cuStreamSynchronize", self.stream)
        found = [call("cuEventElapsedTime", *pair) / 1e3 for pair in itertools.pairwise(events)]
        for event in events:
            call("cuEventDestroy", event)
        return float(np.median(found))

    def counted(self, name: str, grid: int, block: int, *args: Any, address: Any = None) -> tuple[float, float]:
        """Cycles of a block (median), and seconds of a launch, of a kernel that counts."""
        run = partial(self.launch, name, grid, block, self.cycles, *args)
        seconds = self.seconds(run)
        return float(np.median(self.read(address or self.cycles, grid))), seconds

    def read(self, address: Any, count: int) -> np.ndarray:
        found = np.empty(count, np.int64)
        self.gpu.call("cuMemcpyDtoHAsync", found.ctypes.data, address, found.nbytes, self.stream)
        self.gpu.call("cuStreamSynchronize", self.stream)
        return found

    def graph(self, launches: Callable[[], None]) -> Callable[[], None]:
        """What some launches are as a graph; it is kept until the process ends."""
        call, driver = self.gpu.call, self.gpu.driver
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        call("cuStreamBeginCapture", self.stream, mode)
        try:
            launches()
        finally:
            captured = call("cuStreamEndCapture", self.stream)
        made = call("cuGraphInstantiate", captured, 0)
        return lambda: call("cuGraphLaunch", made, self.stream)


# --- launches -----------------------------------------------------------------------------------------------------


def clock(lab: Lab) -> Figures:
    """Cycles a second of an SM that does nothing but wait."""
    lab.seconds(lambda: lab.launch("spin", lab.sms, 32, lab.cycles, lab.times, lab.times_of(20_000_000, 3)), 2)
    cycles, times = lab.read(lab.cycles, lab.sms), lab.read(lab.times, lab.sms)
    return {"clock_hz": float(np.median(cycles / (times * 1e-9)))}


def launches(lab: Lab) -> Figures:
    """Seconds from one kernel of a graph to the next: those that do nothing, and the end of one to another's work."""
    count, long = lab.times_of(400), lab.times_of(8000, 3)

    def many(name: str, grid: int, *args: Any) -> None:
        for _ in range(count):
            lab.launch(name, grid, 256, *args)

    def of(name: str, grid: int, *args: Any) -> float:
        return lab.seconds(lab.graph(lambda: many(name, grid, *args)), 20) / count

    found = {"empty_kernel_s": of("empty", 1), "empty_kernel_all_sms_s": of("empty", 2 * lab.sms)}
    of("spin", lab.sms, lab.cycles, lab.times, long)
    spun = float(np.median(lab.read(lab.times, lab.sms))) * 1e-9
    gap = of("spin", lab.sms, lab.cycles, lab.times, long) - spun
    return {**found, "launch_gap_s": gap, "spun_s": spun}


def overlapped(lab: Lab) -> Figures:
    """A kernel that waits for so many cycles, after another one: as always, and by programmatic dependent launch."""
    count, long = 200, 8000
    if lab.small or "cluster" not in lab.features:
        raise NotImplementedError("programmatic dependent launches are of GPUs from sm_90 on")

    def by(launch: Callable[[], None]) -> float:
        def all_of_them() -> None:
            for _ in range(count):
                launch()

        return lab.seconds(lab.graph(all_of_them), 20) / count

    plain = by(lambda: lab.launch("spin_after", lab.sms, 256, long))
    return {"after_another_s": plain, "after_another_programmatic_s": by(partial(_programmatic, lab, long))}


def _programmatic(lab: Lab, long: int) -> None:
    driver = lab.gpu.driver
    config, attribute = driver.CUlaunchConfig(), driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    config.gridDimX, config.gridDimY, config.gridDimZ = lab.sms, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = 256, 1, 1
    config.hStream, config.attrs, config.numAttrs = lab.stream, [attribute], 1
    value = (ctypes.c_uint64 * 1)(long)
    addresses = (ctypes.c_void_p * 1)(ctypes.addressof(value))
    function = lab._functions["spin_after"]
    lab.gpu.call("cuLaunchKernelEx", config, function, ctypes.addressof(addresses), 0)


# --- an SM --------------------------------------------------------------------------------------------------------

_SHARED = {
    "shared_16_bytes": ("shared_vectors", 1, 1),
    "shared_16_bytes_pairs": ("shared_vectors", 2, 1),
    "shared_16_bytes_fours": ("shared_vectors", 4, 1),
    "shared_16_bytes_2_way": ("shared_vectors", 1, 2),
    "shared_16_bytes_8_way": ("shared_vectors", 1, 8),
    "shared_4_bytes": ("shared_words", 1, 1),
    "shared_4_bytes_one": ("shared_words", 32, 1),
    "shared_4_bytes_2_way": ("shared_words", 1, 2),
}
"""Kernel, lanes that read one address, and the distance from one address to the next."""


def shared(lab: Lab) -> Figures:
    """Cycles of an SM for a warp's load."""
    rounds = lab.times_of(2000)
    found = Figures()
    for name, (kernel, share, stride) in _SHARED.items():
        cycles, _ = lab.counted(kernel, lab.sms, 1024, lab.out, rounds, share, stride)
        found[f"{name}_cycles"] = cycles / (_WARP * rounds * 16)
    if "mma" in lab.features:
        cycles, _ = lab.counted("shared_matrices", lab.sms, 1024, lab.out, rounds)
        found["ldmatrix_x4_cycles"] = cycles / (_WARP * rounds * 16)
    return found


def arithmetic(lab: Lab) -> Figures:
    """Cycles of an SM for a warp's instruction, rates of all SMs together, and the clock meanwhile."""
    found = Figures()
    for name, kernel, feature, threads, unrolled, flops in (
        ("ffma", "multiply_adds", "", 1024, 64, 64),
        ("mma_f16", "multiply_f16", "mma", 512, 16, 2 * 16 * 8 * 16),
        ("mma_tf32", "multiply_tf32", "mma", 512, 16, 2 * 16 * 8 * 8),
        ("wgmma_f16", "multiply_by_groups", "wgmma", 256, 4, 2 * 16 * 256 * 16),
        ("to_tf32", "roundings", "mma", 1024, 32, 0),
    ):
        if feature and feature not in lab.features:
            continue
        rounds = lab.times_of(10_000, 1)
        cycles, seconds = lab.counted(kernel, lab.sms, threads, lab.out, rounds)
        count = threads // _WARP * rounds * unrolled
        found |= {f"{name}_cycles": cycles / count, f"{name}_clock_hz": cycles / seconds}
        if flops:
            found[f"{name}_flops"] = lab.sms * count * flops / seconds
    return found


def barriers(lab: Lab) -> Figures:
    """Cycles of a barrier: of blocks of 256 and 1024 threads, and of clusters whose blocks have 256."""
    rounds = lab.times_of(2000)
    cases = {"barrier_256": ("barriers", 1, 256), "barrier_1024": ("barriers", 1, 1024)}
    if "cluster" in lab.features:
        cases |= {f"cluster_{size}": (f"cluster_of_{size}", size, 256) for size in (2, 4, 8)}
    return {f"{key}_cycles": lab.counted(*what, rounds)[0] / rounds for key, what in cases.items()}


# --- memory -------------------------------------------------------------------------------------------------------


def bandwidth(lab: Lab) -> Figures:
    """Bytes a second: read from the second-level cache, read from memory, and copied, both ways counted."""
    large, near = (1 << 16, 1 << 14) if lab.small else (2 << 30, 16 << 20)
    first, second = (lab.gpu.call("cuMemAlloc", large) for _ in range(2))
    grid, found = 4 * lab.sms, {}
    for name, nbytes, rounds in (("l2_read", near, lab.times_of(40)), ("memory_read", large, 1)):
        count = nbytes // _VECTOR
        seconds = lab.seconds(partial(lab.launch, "read_all", grid, 512, lab.out, first, count, rounds))
        found[f"{name}_bytes_s"] = nbytes * rounds / seconds
    copied = lab.seconds(partial(lab.launch, "copy_all", grid, 512, second, first, large // _VECTOR))
    for address in (first, second):
        lab.gpu.call("cuMemFree", address)
    return {**found, "memory_copy_bytes_s": 2 * large / copied}


def latency(lab: Lab) -> Figures:
    """Cycles of a load that waits for the one before: of memory, each of its lines read once, and of the caches."""
    words, rounds = (1 << 12, 8) if lab.small else (1 << 27, 800)
    memory, found = lab.gpu.call("cuMemAlloc", 4 * words), {}
    for name, count, stride in (
        ("memory", words, words // 1024 + 33),
        ("l2", words // 128, words // 128 // 1024 + 7),
        ("l1", min(words, 1024), 33),
    ):
        lab.launch("link", 2 * lab.sms, 256, memory, count, stride)
        lab.launch("chase", 1, 1, lab.cycles, lab.out, memory, rounds)
        found[f"latency_{name}_cycles"] = float(lab.read(lab.cycles, 1)[0]) / rounds
    lab.gpu.call("cuMemFree", memory)
    cycles, _ = lab.counted("chase_shared", 1, 1, lab.out, rounds)
    return {**found, "latency_shared_cycles": cycles / rounds}


PARTS = (clock, launches, shared, arithmetic, bandwidth, latency, barriers, overlapped)


def measured(arch: str, small: bool) -> Iterator[dict[str, Any]]:
    """``figures`` by name, and why others are missing; as each part is done."""
    lab, figures, missing = Lab(arch, small), Figures(), dict[str, str]()
    for part in PARTS:
        try:
            with lab.gpu:
                figures |= part(lab)
        except Exception as problem:  # of one part; others go on
            missing[part.__name__] = f"{type(problem).__name__}: {problem}"
        yield {"figures": figures, "missing": missing}
