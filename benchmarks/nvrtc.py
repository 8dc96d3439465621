"""What NVRTC makes of a model's kernels: registers, spills, shared memory, how many fit on an SM, wide instructions."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

import minitvm
from benchmarks.onnx_models import NETWORKS
from minitvm.codegen.cuda import resources
from minitvm.codegen.cuda.backend import compile_cubin
from minitvm.codegen.cuda.machine import gpu_model
from minitvm.codegen.cuda.resources import Needs
from minitvm.errors import CompilerError
from simulated_gpu.device import simulated_target

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
class Row(Needs):
    """With the instructions of its group."""

    marks: Mapping[str, int]


def needs(source: str, arch: str, count: bool = True) -> list[Row]:
    """Of all launches of a group's source; ``count``: instructions too, which takes half as long again."""
    marks = _marks(ptx(source, arch)) if count else {}
    found = resources.needs(source, compile_cubin(source, arch).log, gpu_model(arch))
    return [Row(**vars(row), marks=marks) for row in found]


def ptx(source: str, arch: str) -> str:
    """NVRTC's PTX of a source."""
    from cuda.bindings import nvrtc

    program = nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], [])[1]
    options = [f"--gpu-architecture={arch.replace('sm', 'compute')}".encode(), b"--std=c++17", b"--fmad=false"]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompilerError(f"NVRTC makes no PTX for {arch}")
    text = bytes(nvrtc.nvrtcGetPTXSize(program)[1])
    nvrtc.nvrtcGetPTX(program, text)
    nvrtc.nvrtcDestroyProgram(program)
    return text.rstrip(b"\0").decode()


def _marks(text: str) -> dict[str, int]:
    counts = {name: len(re.findall(pattern, text)) for name, pattern in MARKS.items()}
    return {name: count for name, count in counts.items() if count}


# --- of models ----------------------------------------------------------------------------------------------------


def sources(name: str, arch: str) -> dict[str, str]:
    """A model's groups as CUDA C."""
    with simulated_target():
        library = minitvm.compile(NETWORKS[name].build() if name in NETWORKS else name, f"simulated -arch={arch}")
    return {symbol: bytes(image).decode() for symbol, image in library.artifact.objects.items()}


def model_needs(name: str, arch: str) -> Iterator[Row]:
    for source in sources(name, arch).values():
        yield from needs(source, arch)


COLUMNS = ("kernel", "blocks", "threads", "registers", "spills", "stack", "shared", "blocks an SM", "warps", "PTX")


def cells(row: Row) -> list[str]:
    marks = ", ".join(f"{name} {count}" for name, count in row.marks.items())
    numbers = (row.blocks, row.threads, row.registers, row.spills, row.stack, row.shared, row.occupancy)
    return [row.function, *(f"{n:,}" for n in numbers), f"{row.share:.0%}", marks]


def show(title: str, found: list[Row], console: Console) -> None:
    table = Table(*COLUMNS, title=title)
    for row in found:
        table.add_row(*cells(row))
    console.print(table)


def page(found: Mapping[tuple[str, str], list[Row]]) -> str:
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
