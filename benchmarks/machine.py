"""What this machine can do at most: multiply-adds and bytes a second, and its name."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

from minitvm.driver import backend_for

GIGA = 1e9


@dataclass(frozen=True)
class Peak:
    """The most that ``threads`` threads reach: float32 GFLOP/s, and GB/s read from memory and from the L2 cache."""

    threads: int
    gflops: float
    memory_gbs: float
    l2_gbs: float

    def better_of(self, other: Peak) -> Peak:
        """Each figure's better one: whatever else ran on the machine can only have lowered it."""
        gflops, memory = max(self.gflops, other.gflops), max(self.memory_gbs, other.memory_gbs)
        return Peak(self.threads, gflops, memory, max(self.l2_gbs, other.l2_gbs))


def cpu_model() -> str:
    """The processor's name as the system gives it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def measure(threads: int) -> Peak:
    """As ``minitvm bench --roofline`` measures it.  Takes a second."""
    found = backend_for("llvm", threads).measured()
    rates = {level.name: level.rate / GIGA for level in found.levels}
    return Peak(threads, found.flops / GIGA, rates["memory"], rates["L2"])
