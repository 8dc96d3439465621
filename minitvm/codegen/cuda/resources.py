"""Occupancy, and what launches of a GPU need: registers, shared memory and spills, as ptxas says in NVRTC's log."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from minitvm.codegen.cuda.machine import REGISTERS, WARP, GpuModel
from minitvm.ir.loop import Alloc, Buffer, Const, For, Kernel, LoopKind, Stmt, Store, allocated, stmt_children
from minitvm.runtime.nvidia.image import Launch, records

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
    """The needs of all launches of a group's source, from NVRTC's log of it."""
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


# --- before there is code ---------------------------------------------------------------------------------------------

_FEW, _MANY = 16, 44
"""Registers of a thread for addresses and the like, and of one that multiplies what is in shared memory."""
_BLOCKS, _THREADS = 16, 1024
"""What every SM may hold, if not more."""
_OF_A_PRODUCT = 16
"""Words that such a thread keeps at least; up to so many are kept of two steps."""
_WRITTEN_OUT = 32
"""Trips up to which NVRTC writes out a loop that adds up what it loads, so that all its loads are on their way."""


def registers(kernel: Kernel) -> int:
    """The registers of a thread, predicted from a launch's loops: what it keeps in ``local`` buffers, and addresses."""
    kept = _kept(kernel.body)
    return kept + (_MANY if _multiplies(kernel, kept) else _FEW)


def _multiplies(kernel: Kernel, kept: int) -> bool:
    return kept > _OF_A_PRODUCT and any(buffer.scope == "shared" for buffer in allocated(kernel.body))


def blocks_at_least(kernel: Kernel, threads: int) -> int:
    """So many blocks of a product's launch an SM shall hold at a time by its registers: what is predicted is kept."""
    if not _multiplies(kernel, _kept(kernel.body)):
        return 1
    held = REGISTERS // (-(-registers(kernel) // 8) * 8 * threads)
    return max(1, min(held, _BLOCKS, _THREADS // threads))


def _kept(stmt: Stmt) -> int:
    """Words that a thread keeps at a time."""
    match stmt:
        case Alloc(buffer, body):
            return _words(buffer) * (buffer.scope == "local") + _kept(body)
        case For(kind=LoopKind.UNROLLED, body=body):
            inside = _kept(body)  # few loads of an iteration begin during the one before
            return 2 * inside if inside <= _OF_A_PRODUCT else inside
        case For(_, Const(int(trips)), body, LoopKind.SERIAL) if 1 < trips <= _WRITTEN_OUT:
            return max(_kept(body), trips * _summed(body))
    return max(map(_kept, stmt_children(stmt)), default=0)


def _words(buffer: Buffer) -> int:
    """Registers of a buffer: short elements share one where they are stored as vectors of the last dimension."""
    itemsize = buffer.nbytes // max(1, buffer.size)
    beside = min(buffer.shape[-1], max(1, 4 // itemsize)) if buffer.shape and itemsize else 1
    return buffer.size * max(1, itemsize // 4) // max(1, beside)


def _summed(body: Stmt) -> int:
    """How many sums an iteration adds to, where that is all it does."""
    match body:
        case For(_, Const(int(trips)), inner):
            return trips * _summed(inner)
        case Store(buffer, _, _) if buffer.scope == "local":
            return 1
    return 0
