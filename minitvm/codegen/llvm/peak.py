"""What this machine does at most: multiply-adds and bytes a second, measured by kernels of LLVM IR."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from minitvm.codegen.llvm.compile import Cpu, compile_object
from minitvm.cpu_costs import CPU
from minitvm.ir.arrays import aligned
from minitvm.runtime.native import NativeCode
from minitvm.target import MachineModel, Rates

CHAINS = 10
"""Multiply-adds in flight: latency 4 times two units needs 8; more would spill with 16 registers."""
FMA_STEPS = 1_000_000
BYTES_READ = 64 << 20
"""By a thread in one try, as often as the caches' share of it has to be read for that."""
IN_MEMORY = 4
"""Times the third-level cache: what is read once is not in it any more."""


def fma_text(cpu: Cpu, count: int = CHAINS) -> str:
    """``peak_fma(ptr out, i64 steps)``: chains of independent multiply-adds that never leave registers."""
    vector = f"<{cpu.vector_bytes // 4} x float>"
    chains = range(count)
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


def measure(cpu: Cpu, machine: MachineModel, threads: int, tries: int = 15) -> Rates:
    """The best of some tries of each kernel.  Takes a second.

    What a core has for itself (its units, L1, L2) is that of one thread, times ``threads``: several at once all have
    their cores only where nothing else runs.  What they share is measured on one and on all of them.
    """
    code = NativeCode([compile_object(read_text(cpu), cpu)], ["peak_read"])
    read = code.function("peak_read", None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    sums = vector_sums(cpu, 1, tries)

    def rate(nbytes: float, together: int) -> float:
        return _read_rate(read, cpu, int(nbytes / together), together, tries)

    own = [threads * rate(nbytes / 2, 1) for nbytes in (machine.l1_bytes, machine.l2_bytes)]
    counts = sorted({1, threads})
    shared = [max(rate(n, count) for count in counts) for n in (machine.l3_bytes / 2, IN_MEMORY * machine.l3_bytes)]
    flops = 2 * sums * machine.lanes("float32") * threads
    levels = machine.levels(threads, [*own, *shared])
    return replace(machine.rates(threads), flops=flops, clock=sums / CPU.fma_per_cycle, levels=levels)


def vector_sums(cpu: Cpu, threads: int, tries: int, steps: int = FMA_STEPS) -> float:
    """Multiply-adds of vectors a second, of each thread: the best of some tries; a million steps take 1/100 second."""
    code = NativeCode([compile_object(fma_text(cpu), cpu)], ["peak_fma"])
    fma = code.function("peak_fma", None, ctypes.c_void_p, ctypes.c_int64)
    registers = [aligned(np.full(CHAINS * cpu.vector_bytes // 4, 1e-9, np.float32)) for _ in range(threads)]
    return CHAINS * steps / _best(lambda t: fma(registers[t].ctypes.data, steps), threads, tries)


def _read_rate(read: Callable[[int, int, int], None], cpu: Cpu, nbytes: int, threads: int, tries: int) -> float:
    """Bytes a second, of ``nbytes`` of each thread's own that are read again and again."""
    data = [aligned(np.ones(nbytes // 4, np.float32)) for _ in range(threads)]
    repeats = max(1, BYTES_READ // nbytes)
    seconds = _best(lambda t: read(data[t].ctypes.data, nbytes // cpu.vector_bytes, repeats), threads, tries)
    return threads * nbytes * repeats / seconds


def _best(work: Callable[[int], None], threads: int, tries: int) -> float:
    """Seconds until all threads are done, the best of ``tries``; native code releases the interpreter's lock."""
    with ThreadPoolExecutor(threads) as pool:
        return min(_seconds(work, threads, pool) for _ in range(tries))


def _seconds(work: Callable[[int], None], threads: int, pool: ThreadPoolExecutor) -> float:
    """One try; that of one thread runs here, since handing it over takes longer than a short one."""
    start = time.perf_counter()
    if threads == 1:
        work(0)
    else:
        list(pool.map(work, range(threads)))
    return time.perf_counter() - start
