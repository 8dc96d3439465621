"""What launches of a GPU need: registers, shared memory and spills, as ptxas says in NVRTC's log."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from minitvm.codegen.cuda.machine import WARP, GpuModel
from minitvm.runtime.cuda.image import Launch, records

_ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")


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

    @property
    def why_not(self) -> str:
        """What speaks against code that needs so much."""
        if self.spills:
            return f"{self.function} spills {self.spills} bytes"
        return "" if self.occupancy else f"{self.function}: an SM does not hold one block"


def needs(source: str, log: str, machine: GpuModel) -> list[Needs]:
    """Of all launches of a group's source, from NVRTC's log of it."""
    _, *parts = _ENTRY.split(log)
    logs = dict(zip(parts[::3], parts[2::3], strict=True))
    return [_needs(launch, logs[launch.function], machine) for launch in records(source)]


def _needs(launch: Launch, log: str, machine: GpuModel) -> Needs:
    stack, stores, loads = (_number(rf"(\d+) bytes {what}", log) for what in ("stack", "spill stores", "spill loads"))
    registers, shared = _number(r"Used (\d+) registers", log), _number(r"(\d+) bytes smem", log) + launch.shared
    threads = math.prod(launch.block)
    held = machine.occupancy(threads, registers, shared)
    share = held * -(-threads // WARP) / machine.warps
    blocks = math.prod(launch.grid)
    return Needs(launch.function, blocks, threads, registers, stack, stores + loads, shared, held, share)


def _number(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    return int(match[1]) if match else 0
