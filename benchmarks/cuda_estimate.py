"""What a network takes on a GPU as its machine code says: an estimate to compare kernels by, not a time.

A launch takes what its busiest SM has to do: issue instructions, move words of shared memory, multiply on tensor cores,
get bytes from the second-level cache; or the latency of its pieces, or the memory's bytes.  Instructions are those that
``nvdisasm`` finds in the cubin (``pip install nvidia-cuda-nvdisasm``), everything else follows from the loops.
"""

from __future__ import annotations

import math
import pathlib
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import minitvm
from benchmarks.cuda_check.networks import CONFIG, FLOAT16, FLOAT32, SMALL, TF32, model_of, network
from benchmarks.cuda_static import SECTOR, accesses, visits
from minitvm.codegen.cuda.arrival import Arrival, arrival_of
from minitvm.codegen.cuda.bind import launch_of
from minitvm.codegen.cuda.emit import function_name
from minitvm.codegen.cuda.machine import WARP, GpuModel, gpu_model
from minitvm.codegen.cuda.templates.tile import MMA
from minitvm.errors import CompilerError
from minitvm.ir.loop import Barrier, CopyWait, Intrin, Kernel, Mma, Seq, Stmt, Store, Wgmma, allocated
from minitvm.passes import PassContext
from minitvm.runtime.nvidia.image import unpack

ARCH = "sm_90"
CASES = (
    *[(name, 1, FLOAT32) for name in ("resnet18", "resnet50", "mobilenet_v2", "bert_base_s128")],
    *[(name, 32, kind) for name in ("resnet50", "bert_base_s128") for kind in (TF32, FLOAT16)],
)
_GPU = gpu_model(ARCH)
_CLOCK, _MEMORY = _GPU.clock, _GPU.memory_bytes * _GPU.seen.memory_use
"""Cycles and bytes of a second."""
_LAUNCH, _SHORTEST = _GPU.seen.launch / _CLOCK, 0.5e-6
"""Seconds from a kernel of a graph to the next one, and of a kernel that does next to nothing."""
_SCHEDULERS, _WAITING = 4, 6
"""Instructions of an SM in a cycle; warps of an SM that take twice as long, since they wait for what they load."""
_PIECE, _ENDS = 600, 1400
"""Cycles of latency that a piece has on its way through shared memory, and a block at its beginning and end."""
_ON_THEIR_WAY = 128
"""Bytes that a thread waits for at once: eight vectors."""
_SLICES = "slices"
"""The buffer of :class:`minitvm.codegen.cuda.templates.blocks_sliced.SlicedBlocks`."""
_MULTIPLIES = ("FFMA", "HMMA.", "HGMMA.")


# --- machine code -----------------------------------------------------------------------------------------------------


def disassembler() -> str | None:
    """The path of ``nvdisasm``: of its wheel, or of a toolkit."""
    wheel = sorted(pathlib.Path(sysconfig.get_path("purelib")).glob("nvidia/*/bin/nvdisasm"))
    return str(wheel[-1]) if wheel else shutil.which("nvdisasm")


_FUNCTION = re.compile(r"^\.text\.(\w+):$")
_LABEL = re.compile(r"^(\.L\w+):$")
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(\w[\w.]*)(.*?);?\s*$")
_TARGET = re.compile(r"`\((\.L\w+)\)")
_REGISTERS = re.compile(r"index@\((\w+)\)\s+/\*\w+\*/\s+\.word\s+0x(\w+)")
_REGISTER_COUNTS = re.compile(r"EIATTR_REGCOUNT\n(.*?)(?=\n\s*//-)", re.DOTALL)


@dataclass(frozen=True)
class Code:
    """A function's instructions in order, its loops (first and last instruction), and a thread's registers."""

    instructions: tuple[str, ...]
    loops: tuple[tuple[int, int], ...]
    registers: int

    def slots(self, multiplies: int) -> float:
        """Instructions that a warp issues, which multiplies so often: the innermost loop that multiplies most goes
        round as often as that takes; the others once."""
        first, last = max(self._innermost, key=self._multiplies, default=(0, -1))
        inside = self._multiplies((first, last))
        trips = multiplies / inside if inside else 1
        return len(self.instructions) + max(0.0, trips - 1) * (last + 1 - first)

    @cached_property
    def _innermost(self) -> list[tuple[int, int]]:
        found = self.loops
        return [(a, b) for a, b in found if not any(a <= c and d <= b and (a, b) != (c, d) for c, d in found)]

    def _multiplies(self, part: tuple[int, int]) -> int:
        return sum(name.startswith(_MULTIPLIES) for name in self.instructions[part[0] : part[1] + 1])


def machine_code(cubin: bytes) -> dict[str, Code]:
    """The functions of a cubin by name; :class:`CompilerError` where there is no ``nvdisasm``."""
    tool = disassembler()
    if tool is None:
        raise CompilerError("nvdisasm is not installed", hint="pip install nvidia-cuda-nvdisasm")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([tool, file.name], capture_output=True, text=True, check=True).stdout
    said = "\n".join(_REGISTER_COUNTS.findall(text))
    registers = {name: int(count, 16) for name, count in _REGISTERS.findall(said)}
    return {name: _code(lines, registers.get(name, 0)) for name, lines in _functions(text)}


def _functions(text: str) -> Iterator[tuple[str, list[str]]]:
    name, lines = "", list[str]()
    for line in text.splitlines():
        if found := _FUNCTION.match(line):
            name, lines = found[1], []
        elif line.startswith("//-----") and name:
            yield name, lines
            name = ""
        else:
            lines.append(line)
    if name:
        yield name, lines


def _code(lines: list[str], registers: int) -> Code:
    names, labels, loops = list[str](), dict[str, int](), list[tuple[int, int]]()
    for line in lines:
        if label := _LABEL.match(line):
            labels[label[1]] = len(names)
        elif found := _INSTRUCTION.match(line):
            target = _TARGET.search(found[2])
            if found[1].startswith("BRA") and target and labels.get(target[1], len(names)) < len(names):
                loops.append((labels[target[1]], len(names)))
            names.append(found[1])
    while names and names[-1] == "NOP":
        names.pop()
    return Code(tuple(names), tuple(loops), registers)


# --- loops ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """What a thread of a launch does, as its loops say; a warp's where it says so."""

    fma: int
    mma: int
    """Products of 16 x 8 by 8 elements, or by 16 of two bytes, of a warp, or of it as one of a warpgroup."""
    depth: int
    """Of those."""
    multiplies: int
    """Instructions that multiply: one of a warpgroup has as many products as its columns have pieces of 8."""
    by_groups: bool
    """True if a warp begins products as one of a warpgroup, and does not wait for each of them."""
    shared: int
    """Cycles in which shared memory serves a warp."""
    loaded: int
    """Bytes that come to a warp from global memory."""
    pieces: int
    """What has to have come before the threads go on, so often; 0 where they do not wait for each other."""
    ahead: int
    """Pieces on their way while one is multiplied."""


def work(kernel: Kernel) -> Work:
    met = [(stmt, at) for stmt, at in visits(kernel) if at.taken.any()]
    fma = sum(at.times for stmt, at in met if _adds_a_product(stmt))
    products = [(stmt, at.times) for stmt, at in met if isinstance(stmt, (Mma, Wgmma))]
    depth = 8 if any(stmt.kind == "tf32" for stmt, _ in products) else 16
    mma = sum(times * _pieces(stmt) for stmt, times in products)
    by_groups = any(isinstance(stmt, Wgmma) for stmt, _ in products)
    found = accesses(replace(kernel, body=_before_arrival(kernel.body)))
    shared = sum(a.waves * a.times for a in found if a.is_shared and a.buffer.name != _SLICES)
    outside = [a for a in found if not a.is_shared and a.what in ("load", "copy")]
    meets = any(isinstance(stmt, Barrier) for stmt, _ in met)
    pieces = max((a.rounds for a in outside), default=0) if meets else 0
    waits = [stmt.left for stmt, _ in met if isinstance(stmt, CopyWait)]
    loaded = sum(a.waves * SECTOR * a.times for a in outside)
    multiplies = sum(times for _, times in products) or fma
    return Work(fma, mma, depth, multiplies, by_groups, shared, loaded, pieces, 1 + max(waits, default=0))


def _pieces(product: Mma | Wgmma) -> int:
    """Pieces of 8 columns that one product has."""
    return product.sums.shape[-2] if isinstance(product, Wgmma) else 1


def _before_arrival(body: Stmt) -> Stmt:
    parts = body.stmts if isinstance(body, Seq) else ()
    return parts[0] if any(isinstance(stmt, Arrival) for stmt in parts) else body


def _adds_a_product(stmt: Stmt) -> bool:
    return isinstance(stmt, Store) and isinstance(stmt.value, Intrin) and stmt.value.name == "fma"


# --- an estimate ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bound:
    """A launch's cycles, by what they go to, for an SM that has so many blocks of it one after the other or at once."""

    kernel: str
    cycles: Mapping[str, float]

    @property
    def by(self) -> str:
        """What takes longest."""
        return max(self.cycles, key=lambda what: self.cycles[what])

    @property
    def total(self) -> float:
        return max(self.cycles.values())

    @property
    def seconds(self) -> float:
        return self.total / _CLOCK


def bound(kernel: Kernel, code: Code, machine: GpuModel, nbytes: float) -> Bound:
    """Of a launch that moves so many bytes of memory."""
    launch, does = launch_of(kernel), work(kernel)
    memory = {"memory": nbytes / _MEMORY * _CLOCK, "start": _SHORTEST * _CLOCK}
    if not does.multiplies:
        return Bound(kernel.name, memory)
    warps, blocks = -(-launch.threads // WARP), math.prod(launch.grid)
    shared = sum(buffer.nbytes for buffer in allocated(kernel.body) if buffer.scope == "shared")
    each = -(-blocks // machine.sms)
    held = max(1, machine.occupancy(launch.threads, code.registers, shared))
    busy = {
        "issue": code.slots(does.multiplies) / _SCHEDULERS,
        "shared": does.shared,
        "mma": does.mma * math.prod(MMA) * does.depth / _rate(does, machine),
        "second level": does.loaded / machine.seen.from_second_level,
    }
    alone = 1 if does.by_groups else 1 + _WAITING / (min(each, held) * warps)
    busy |= {"issue": busy["issue"] * alone, "mma": busy["mma"] * alone}
    latency = -(-each // held) * (does.pieces * _PIECE / does.ahead + _ENDS)
    cycles = {what: each * warps * one for what, one in busy.items()} | {"latency": latency}
    ends = _ENDS / 2 + _arrival(kernel, warps) + _sliced(kernel, warps)
    return Bound(kernel.name, memory | {what: one + ends for what, one in cycles.items()})


def _arrival(kernel: Kernel, warps: int) -> float:
    """Cycles until a block knows that all have arrived, which is memory's latency twice, and it has added its parts, of
    which its threads have so many bytes on their way as come in the latency of a piece."""
    arrival = arrival_of(kernel)
    if arrival is None:
        return 0
    stored = sum(a.waves * a.times for a in accesses(kernel) if a.what == "store" and a.buffer.name == "parts")
    loaded = warps * stored * SECTOR * (1 if arrival.together else arrival.parts)
    return 2 * _PIECE + loaded / min(_GPU.seen.from_second_level, warps * WARP * _ON_THEIR_WAY / _PIECE)


def _sliced(kernel: Kernel, warps: int) -> int:
    """Cycles in which the sums of a block's slices meet in shared memory, with nothing beside that."""
    return warps * sum(a.waves * a.times for a in accesses(kernel) if a.buffer.name == _SLICES)


def _rate(does: Work, machine: GpuModel) -> float:
    """Multiply-adds of an SM in a cycle."""
    use = machine.seen.group_use if does.by_groups else machine.seen.tensor_use
    return machine.tensor_flops / 2 / machine.sms / machine.clock * (does.depth / 16) * use


@dataclass(frozen=True)
class Estimate:
    """Of a network: seconds and launches, of them those behind the first of a kernel; kernels that take longest."""

    model: str
    batch: int
    precision: str
    launches: int
    second: int
    predicted: float
    """By the compiler's own model."""
    seconds: float
    kernels: Mapping[str, float]
    """Seconds of all launches of a kernel, wherever it is called, those that take longest first."""
    bounds: Mapping[str, float]
    """Seconds by what they go to."""

    @property
    def floor(self) -> float:
        floors = network(self.model).floors or {}
        return floors.get((self.batch, self.precision), math.nan) / 1e3

    def row(self) -> str:
        most = sorted(self.bounds.items(), key=lambda item: -item[1])
        spent = ", ".join(f"{what} {seconds * 1e3:.3f}" for what, seconds in most)
        numbers = f"{self.floor * 1e3:.2f} | {self.predicted * 1e3:.3f} | {self.seconds * 1e3:.3f}"
        name = f"{self.model} b{self.batch} {self.precision}"
        over = self.seconds / self.floor
        return f"| {name} | {self.launches} ({self.second}) | {numbers} | {over:.1f} | {spent} |"


HEAD = (
    "| network | launches, of them behind a kernel's first | floor ms | predicted ms | estimate ms | over the floor "
    "| ms by what bounds a launch |\n|---|---|---|---|---|---|---|"
)


def estimates(models: Sequence[str] = ()) -> Iterator[Estimate]:
    """Of :data:`CASES`; of the models that are named alone, a small one at batch 1 in float32."""
    small = [(name, 1, FLOAT32) for name in models if name in SMALL]
    for case in [*(case for case in CASES if not models or case[0] in models), *small]:
        yield estimate(*case)


def estimate(model: str, batch: int, precision: str) -> Estimate:
    """Compiles a network of :mod:`benchmarks.cuda_check` with NVRTC, which takes minutes where nothing is cached."""
    with PassContext(config=CONFIG[precision]):
        library = minitvm.compile(model_of(model, batch, precision), f"cuda -arch={ARCH}")
    uses = Counter(node.func for node in library.artifact.graph.nodes if node.is_kernel)
    by_kernel, by_bound, launches = dict[str, float](), defaultdict[str, float](float), 0
    for symbol, count in uses.items():
        found = list(bounds_of(library, symbol))
        launches += count * len(found)
        for one in found:
            by_bound[one.by] += count * one.seconds
        by_bound["launches"] += count * _LAUNCH * len(found)
        by_kernel[symbol] = count * sum(one.seconds + _LAUNCH for one in found)
    predicted = sum(count * library.function_metadata[symbol]["seconds"] for symbol, count in uses.items())
    kernels = dict(sorted(by_kernel.items(), key=lambda item: -item[1]))
    counted = (launches, launches - uses.total(), predicted, sum(kernels.values()))
    return Estimate(model, batch, precision, *counted, kernels, by_bound)


def bounds_of(library: minitvm.Library, symbol: str) -> Iterator[Bound]:
    """Of a kernel's launches."""
    report = library.report
    machine = report.compiler.backend.machine
    kernels = report.compiler.backend.bind(report.kernel(symbol).legalized).kernels
    code = machine_code(unpack(library.artifact.objects[symbol])[1])
    for number, kernel in enumerate(kernels):
        nbytes = 0.0 if number else library.function_metadata[symbol]["bytes"]
        yield bound(kernel, code[function_name(kernel)], machine, nbytes)
