"""What this machine can do at most: multiply-adds and bytes a second, measured by kernels of LLVM IR."""

from __future__ import annotations

import ctypes
import platform
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from minitvm.codegen.llvm.compile import Cpu, compile_object, host
from minitvm.ir.arrays import aligned
from minitvm.runtime.native import NativeCode

CHAINS = 10
"""Multiply-adds in flight: latency 4 times two units needs 8; more would spill with 16 registers."""
FMA_STEPS = 4_000_000
IN_MEMORY = (128 * 1024 * 1024, 1)
"""Bytes of one thread, and how often they are read."""
IN_L2 = (256 * 1024, 400)


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


def fma_text(cpu: Cpu) -> str:
    """``peak_fma(ptr out, i64 steps)``: chains of independent vector multiply-adds that never leave registers."""
    vector = f"<{cpu.vector_bytes // 4} x float>"
    chains = range(CHAINS)
    starts = "\n".join(f"  %s{c} = getelementptr i8, ptr %out, i64 {cpu.vector_bytes * c}" for c in chains)
    phis = "\n".join(f"  %x{c} = phi {vector} [%i0, %entry], [%y{c}, %loop]" for c in chains)
    fmas = "\n".join(
        f"  %y{c} = call {vector} @llvm.fma.v{cpu.vector_bytes // 4}f32({vector} %x{c}, {vector} %i0, {vector} %x{c})"
        for c in chains
    )
    stores = "\n".join(f"  store {vector} %y{c}, ptr %s{c}, align 4" for c in chains)
    return f"""
target triple = "{cpu.triple}"
declare {vector} @llvm.fma.v{cpu.vector_bytes // 4}f32({vector}, {vector}, {vector})
define void @peak_fma(ptr %out, i64 %steps) "prefer-vector-width"="512" {{
entry:
{starts}
  %i0 = load {vector}, ptr %out, align 64
  br label %loop
loop:
  %n = phi i64 [%steps, %entry], [%m, %loop]
{phis}
{fmas}
  %m = sub i64 %n, 1
  %more = icmp ne i64 %m, 0
  br i1 %more, label %loop, label %done
done:
{stores}
  ret void
}}
"""


def read_text(cpu: Cpu) -> str:
    """``peak_read(ptr data, i64 vectors, i64 repeats)``: loads every vector, eight at a time; sums go to the front."""
    vector, lanes = f"<{cpu.vector_bytes // 4} x float>", range(8)
    phis = "\n".join(f"  %x{c} = phi {vector} [zeroinitializer, %again], [%y{c}, %loop]" for c in lanes)
    body = "\n".join(
        f"  %o{c} = add i64 %n, {c}\n  %p{c} = getelementptr {vector}, ptr %data, i64 %o{c}\n"
        f"  %v{c} = load {vector}, ptr %p{c}, align 4\n  %y{c} = fadd {vector} %x{c}, %v{c}"
        for c in lanes
    )
    sums = "\n".join(f"  %t{c} = fadd {vector} {'%y0' if c == 1 else f'%t{c - 1}'}, %y{c}" for c in lanes if c)
    return f"""
target triple = "{cpu.triple}"
define void @peak_read(ptr %data, i64 %vectors, i64 %repeats) "prefer-vector-width"="512" {{
entry:
  br label %again
again:
  %r = phi i64 [%repeats, %entry], [%left, %done]
  br label %loop
loop:
  %n = phi i64 [0, %again], [%m, %loop]
{phis}
{body}
  %m = add i64 %n, 8
  %more = icmp ult i64 %m, %vectors
  br i1 %more, label %loop, label %done
done:
{sums}
  store {vector} %t7, ptr %data, align 4
  %left = sub i64 %r, 1
  %rest = icmp ne i64 %left, 0
  br i1 %rest, label %again, label %exit
exit:
  ret void
}}
"""


def measure(threads: int, tries: int = 30) -> Peak:
    """The best of some tries of each kernel, on that many threads at once.  Takes two seconds."""
    cpu = host()
    objects = [compile_object(text(cpu), cpu) for text in (fma_text, read_text)]
    code = NativeCode(objects, ["peak_fma", "peak_read"])
    fma = code.function("peak_fma", None, ctypes.c_void_p, ctypes.c_int64)
    read = code.function("peak_read", None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    flops = 2.0 * CHAINS * (cpu.vector_bytes // 4) * FMA_STEPS
    registers = [aligned(np.full(CHAINS * cpu.vector_bytes // 4, 1e-9, np.float32)) for _ in range(threads)]
    fma_seconds = _best(lambda t: fma(registers[t].ctypes.data, FMA_STEPS), threads, tries)
    memory, l2 = (_read_rate(read, cpu, *kind, threads, tries) for kind in (IN_MEMORY, IN_L2))
    return Peak(threads, threads * flops / fma_seconds / 1e9, memory, l2)


def _read_rate(
    read: Callable[[int, int, int], None], cpu: Cpu, nbytes: int, repeats: int, threads: int, tries: int
) -> float:
    """GB/s of reading ``nbytes`` of each thread's own ``repeats`` times."""
    data = [aligned(np.ones(nbytes // 4, np.float32)) for _ in range(threads)]
    seconds = _best(lambda t: read(data[t].ctypes.data, nbytes // cpu.vector_bytes, repeats), threads, tries)
    return threads * nbytes * repeats / seconds / 1e9


def _best(work: Callable[[int], None], threads: int, tries: int) -> float:
    """Seconds until all threads are done, the best of ``tries``; native code releases the interpreter's lock."""
    seconds = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(tries):
            start = time.perf_counter()
            list(pool.map(work, range(threads)))
            seconds.append(time.perf_counter() - start)
    return min(seconds)
