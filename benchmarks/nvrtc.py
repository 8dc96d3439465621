"""What NVRTC makes of a model's kernels: registers, spills, shared memory, how many fit on an SM, wide instructions."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

import minitvm
from benchmarks.onnx_models import WORKLOADS
from minitvm.codegen.cuda.backend import compile_cubin
from minitvm.codegen.cuda.machine import WARP, gpu_model
from minitvm.errors import CompilerError
from minitvm.runtime.cuda.image import records
from minitvm.testing.cuda.device import simulated_target

_ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
MARKS = {
    "ld.v4": r"ld\.global\S*\.v4\.[bfu]32",
    "st.v4": r"st\.global\S*\.v4\.[bfu]32",
    "cp.async": r"cp\.async\.c",
    "mma": r"mma\.sync",
    "ldmatrix": r"ldmatrix",
    "shfl": r"shfl\.sync",
}
"""Instructions of PTX that fast kernels consist of: LDG.128, STG.128, LDGSTS, HMMA, LDSM, SHFL on the machine."""


@dataclass(frozen=True)
class Needs:
    """What one launch needs."""

    function: str
    blocks: int
    threads: int
    registers: int
    stack: int  # bytes of a thread's memory
    spills: int  # bytes stored and loaded because registers ran out
    shared: int  # bytes of a block
    occupancy: int  # blocks that an SM holds at a time
    share: float  # of the warps that an SM can hold
    marks: Mapping[str, int]


def needs(source: str, arch: str, count: bool = True) -> list[Needs]:
    """Of all launches of a group's source; ``count``: instructions too, which takes half as long again."""
    model = gpu_model(arch)
    log = _by_function(compile_cubin(source, arch).log)
    marks = _marks(ptx(source, arch)) if count else {}
    found = []
    for launch in records(source):
        registers, stack, spills, static = log[launch.function]
        threads, shared = _product(launch.block), static + launch.shared
        held = model.occupancy(threads, registers, shared)
        share = held * -(-threads // WARP) / model.warps
        row = Needs(
            launch.function, _product(launch.grid), threads, registers, stack, spills, shared, held, share, marks
        )
        found.append(row)
    return found


def _product(extents: tuple[int, int, int]) -> int:
    return extents[0] * extents[1] * extents[2]


def _by_function(log: str) -> dict[str, tuple[int, int, int, int]]:
    """Registers, stack, spills and static shared memory by function."""
    _, *parts = _ENTRY.split(log)
    found = {}
    for name, text in zip(parts[::3], parts[2::3], strict=True):
        stack, stores, loads = (
            _number(rf"(\d+) bytes {what}", text) for what in ("stack", "spill stores", "spill loads")
        )
        registers, shared = _number(r"Used (\d+) registers", text), _number(r"(\d+) bytes smem", text)
        found[name] = (registers, stack, stores + loads, shared)
    return found


def _number(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    return int(match[1]) if match else 0


def ptx(source: str, arch: str) -> str:
    """NVRTC's PTX of a source."""
    from cuda.bindings import nvrtc

    program = nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], [])[1]
    options = [f"--gpu-architecture={arch.replace('sm', 'compute')}".encode(), b"--std=c++17", b"--fmad=false"]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompilerError(f"NVRTC makes no PTX for {arch}")
    text = b" " * nvrtc.nvrtcGetPTXSize(program)[1]
    nvrtc.nvrtcGetPTX(program, text)
    nvrtc.nvrtcDestroyProgram(program)
    return text.decode()


def _marks(text: str) -> dict[str, int]:
    counts = {name: len(re.findall(pattern, text)) for name, pattern in MARKS.items()}
    return {name: count for name, count in counts.items() if count}


# --- of models ----------------------------------------------------------------------------------------------------


def sources(name: str, arch: str) -> dict[str, str]:
    """A model's groups as CUDA C."""
    with simulated_target():
        library = minitvm.compile(WORKLOADS[name].build() if name in WORKLOADS else name, f"simulated -arch={arch}")
    return {symbol: bytes(image).decode() for symbol, image in library.artifact.objects.items()}


def model_needs(name: str, arch: str) -> Iterator[Needs]:
    for source in sources(name, arch).values():
        yield from needs(source, arch)


COLUMNS = ("kernel", "blocks", "threads", "registers", "spills", "stack", "shared", "blocks an SM", "warps", "PTX")


def cells(row: Needs) -> list[str]:
    marks = ", ".join(f"{name} {count}" for name, count in row.marks.items())
    numbers = (row.blocks, row.threads, row.registers, row.spills, row.stack, row.shared, row.occupancy)
    return [row.function, *(f"{n:,}" for n in numbers), f"{row.share:.0%}", marks]


def show(title: str, found: list[Needs], console: Console) -> None:
    table = Table(*COLUMNS, title=title)
    for row in found:
        table.add_row(*cells(row))
    console.print(table)


def page(found: Mapping[tuple[str, str], list[Needs]]) -> str:
    """Markdown: a table for each model and architecture."""
    text = ["# What the kernels of two networks need on a GPU", "", _HEAD]
    for (model, arch), rows in found.items():
        text += ["", f"## {model}, {arch}", "", f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
        text += [f"| {' | '.join(cells(row))} |" for row in rows]
    return "\n".join(text) + "\n"


PAGE = pathlib.Path(__file__).parents[1] / "docs" / "cuda-kernels.md"
_HEAD = """\
Written by `python -m benchmarks nvrtc`: registers, spills and shared memory are ptxas' own figures, what an SM holds
follows from them and the limits in `codegen/cuda/machine.py`. Instructions are counted in the PTX of the group."""
