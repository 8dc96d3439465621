"""What templates and schedules need to know of a GPU: a table by architecture, and how many blocks an SM holds.

The figures of an architecture are those of its largest usual card (sm_90: H200), from NVIDIA's data sheets and, for
limits of an SM, the table "technical specifications per compute capability" of the CUDA programming guide.
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

from minitvm.errors import TargetError
from minitvm.target import Level, MachineModel, Rates

WARP = 32
"""Threads that run in step."""
REGISTERS = 64 * 1024
"""Of an SM."""
_REGISTER_UNIT = 256  # a warp is given whole ones of these
_SHARED_UNIT = 128
_FLOAT = 4  # bytes
_FEATURES = {"cp.async": (80, math.inf), "mma": (80, math.inf), "cluster": (90, math.inf), "wgmma": (90, 90)}
"""The architectures that have them, from the first one to the last."""
_WORTH_ROUNDING = 0.6
"""Of a launch and its cycles, what may be left with factors of fewer bits."""
_ONE_BY_ONE = 0.12
"""Of the multiply-adds of a product, what loads take that are of one element instead of four."""

_SINGLE_USE, _VECTOR_USE = 0.03, 0.3
"""Of tensor cores, what products of windows reach that come element by element (measured on an H200), or in vectors."""


class _Card(NamedTuple):
    sms: int
    warps: int  # an SM holds
    blocks: int  # an SM holds
    shared: int  # KiB of an SM
    reserved: int  # bytes of a block's shared memory that are the system's
    lanes: int  # multiply-adds of float32 that an SM does in a cycle
    tera_flops: float  # float32, outside of the tensor cores
    tera_flops_half: float  # float16 and bfloat16, of the tensor cores, sums in float32; TF32 has half of it
    tera_bytes: float  # of memory, a second


_CARDS = {
    75: _Card(40, 32, 16, 64, 0, 64, 8.1, 65, 0.32),  # T4
    80: _Card(108, 64, 32, 164, 1024, 64, 19.5, 312, 2.0),  # A100
    86: _Card(84, 48, 16, 100, 1024, 128, 37.4, 150, 0.7),  # A40
    87: _Card(16, 48, 16, 164, 1024, 128, 5.3, 43, 0.2),  # Orin
    89: _Card(142, 48, 24, 100, 1024, 128, 91.6, 362, 0.86),  # L40S
    90: _Card(132, 64, 32, 228, 1024, 128, 67, 990, 4.8),  # H200
    100: _Card(148, 64, 32, 228, 1024, 128, 75, 2250, 8.0),  # B200
    103: _Card(148, 64, 32, 228, 1024, 128, 75, 2500, 8.0),  # B300
    110: _Card(20, 48, 24, 228, 1024, 128, 8.1, 260, 0.27),  # Thor
    120: _Card(170, 48, 24, 100, 1024, 128, 105, 419, 1.8),  # RTX 5090
    121: _Card(48, 48, 24, 100, 1024, 128, 31, 125, 0.27),  # GB10
}


class Seen(NamedTuple):
    """What a card was seen to do (``cuda-check --sections calibrate``); cycles are of an SM at work."""

    card: str
    launch: int  # cycles from the end of a graph's kernel to the next one's work
    second_level: int  # cycles until what is loaded is there: from the second-level cache
    memory: int  # and from memory
    from_second_level: float  # bytes that an SM gets from there in a cycle, while all do
    tensor_use: float  # of the tensor cores' peak, what mma.sync reaches
    group_use: float  # and what wgmma does, factors in shared memory; 0 where there is none
    memory_use: float  # of the memory's peak, what reads reach


_SEEN = {90: Seen("NVIDIA H200", 1448, 332, 681, 30.87, 0.647, 0.6, 0.936)}
"""``python -m benchmarks cuda-calibrate`` writes the entries.  Of others nothing is known but what an H200 does."""


_CLUSTERED = {90: (14, 16, 16, 16, 16, 18, 18, 18)}
"""SMs of the parts of a GPU (GPCs) in one of which a cluster runs; an H200's driver tells how many clusters fit."""
_LEAST_CLUSTERED = 14
"""SMs of such a part, of others."""


@dataclass(frozen=True)
class GpuModel(MachineModel):
    """A GPU; ``vector_bytes`` are what a thread loads or stores at once."""

    records: ClassVar[Path | None] = Path(__file__).with_name("records.jsonl")
    arch: str = "sm_90"
    sms: int = 132
    warps: int = 64
    """An SM holds so many, ``blocks`` and ``shared_bytes`` likewise."""
    blocks: int = 32
    shared_bytes: int = 228 * 1024
    block_reserved: int = 1024
    """Bytes of shared memory that every block takes beside its own."""
    lanes_of_sm: int = 128
    """Multiply-adds of float32 that an SM does in a cycle."""
    flops: float = 67e12
    """A second, of float32 outside of the tensor cores; a multiply-add is two."""
    tensor_flops: float = 990e12
    """Of float16; TF32 has half of it."""
    memory_bytes: float = 4.8e12
    """A second."""
    clustered: tuple[int, ...] = _CLUSTERED[90]
    """SMs of the parts in one of which a cluster runs."""
    seen: Seen = _SEEN[90]

    @property
    def name(self) -> str:
        return self.arch

    @property
    def block_shared(self) -> int:
        """The most bytes of shared memory that one block may have."""
        return self.shared_bytes - self.block_reserved

    @property
    def clock(self) -> float:
        """Cycles a second."""
        return self.flops / (2 * self.lanes_of_sm * self.sms)

    @property
    def bytes_per_cycle(self) -> float:
        """The bytes of memory that move in a cycle."""
        return self.memory_bytes / self.clock

    def rates(self, threads: int) -> Rates:
        """The whole card's, whatever the host has."""
        levels = (Level("memory", math.inf, self.memory_bytes),)
        return Rates(1, self.flops, self.clock, levels, self.seen.launch / self.clock)

    def cycles(self, flops: float, dtype: str) -> float:
        return flops / (2 * self.lanes_of_sm * self.sms)

    def pays_to_move(self, multiply_adds: int, elements: int) -> bool:
        """Windows of a plain layout are loaded one element at a time; moving is two launches, and memory's work."""
        saved = multiply_adds / (self.lanes_of_sm * self.sms) * _ONE_BY_ONE
        return saved > 2 * self.seen.launch + 2 * elements * _FLOAT / self.bytes_per_cycle

    def pays_to_fill(self, multiply_adds: int, times: float, nbytes: int) -> bool:
        """True if tensor cores gain more than moving costs, which is a launch of its own, and memory's work."""
        single, whole = (2 * multiply_adds / self.tensor_flops / use for use in (_SINGLE_USE, _VECTOR_USE))
        return single > whole * times + nbytes / self.memory_bytes + self.seen.launch / self.clock

    def pays_to_round(self, exact: float, rounded: float) -> bool:
        """Products that are bound by launches, latency or memory gain nothing from tensor cores."""
        return self.seen.launch + rounded <= _WORTH_ROUNDING * (self.seen.launch + exact)

    def runs_clusters(self, count: int, size: int) -> bool:
        """True if so many clusters run at once, as evenly as their blocks alone would; one that is left over doubles
        what its SMs have to do."""
        each = -(-count * size // self.sms)
        return "cluster" in self.features and count <= each * sum(sms // size for sms in self.clustered)

    def occupancy(self, threads: int, registers: int, shared: int) -> int:
        """Blocks that an SM holds at a time: of so many threads, of so many registers each, with bytes of memory."""
        warps = -(-threads // WARP)
        warp_registers = -(-registers * WARP // _REGISTER_UNIT) * _REGISTER_UNIT
        by_registers = REGISTERS // warp_registers // warps if registers else self.blocks
        taken = -(-(shared + self.block_reserved) // _SHARED_UNIT) * _SHARED_UNIT
        by_shared = self.shared_bytes // taken if taken else self.blocks
        return min(self.blocks, self.warps // warps, by_registers, by_shared)


def gpu_model(arch: str, threads: int = 1) -> GpuModel:
    """The GPU that ``sm_90`` or ``sm_90a`` means; :class:`TargetError` for one that is not known.

    ``threads`` are the host's.
    """
    found = re.fullmatch(r"sm_(\d+)[af]?", arch)
    card = _CARDS.get(int(found[1])) if found else None
    if card is None:
        known = ", ".join(f"sm_{number}" for number in _CARDS)
        raise TargetError(f"unknown GPU architecture {arch!r}", hint=f"known: {known}")
    assert found is not None
    return GpuModel(
        16,
        60,  # of 16 bytes, and some for addresses
        threads=threads,
        features=frozenset(name for name, (first, last) in _FEATURES.items() if first <= int(found[1]) <= last),
        arch=arch,
        sms=card.sms,
        warps=card.warps,
        blocks=card.blocks,
        shared_bytes=card.shared * 1024,
        block_reserved=card.reserved,
        lanes_of_sm=card.lanes,
        flops=card.tera_flops * 1e12,
        tensor_flops=card.tera_flops_half * 1e12,
        memory_bytes=card.tera_bytes * 1e12,
        seen=_SEEN.get(int(found[1]), _SEEN[90]),
        clustered=_CLUSTERED.get(int(found[1]), (_LEAST_CLUSTERED,) * (card.sms // _LEAST_CLUSTERED)),
    )
