"""What the cost table of CPUs says, measured on this one: the table beside it, or the table written anew.

The clock is that of a chain of integer multiplications and additions, four cycles each on x86-64 and most AArch64; all
else is counted in its cycles.  The least of some tries counts: whatever else runs can only add to it.  What copies
cost is that of the loops that templates pack panels with.
"""

from __future__ import annotations

import ctypes
import datetime
import pathlib
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.machine import cpu_model
from minitvm import cpu_costs
from minitvm.codegen.backend import plan_workspace
from minitvm.codegen.llvm import peak
from minitvm.codegen.llvm.compile import Cpu, compile_object, host, machine_model
from minitvm.codegen.llvm.emit import emit
from minitvm.codegen.templates.matmul import Panels
from minitvm.codegen.templates.product import Matrix
from minitvm.cpu_costs import CPU, CpuCosts
from minitvm.ir.arrays import aligned
from minitvm.ir.loop import Buffer, Const, Kernel
from minitvm.ir.loop.builder import LoopBuilder
from minitvm.runtime.native import NativeCode
from minitvm.target import SHARING, MachineModel, spinning_text

TABLE = pathlib.Path(cpu_costs.__file__)
CHAIN_CYCLES = 4  # of a multiplication, 3, and an addition
CHAIN_STEPS = 1_000_000
PACKED = (64, 16)  # rows and panels of what is packed: the first level does not hold it, the second does

NOT_MEASURED = {
    "measured_on": "what this command writes",
    "line_bytes": "manuals",
    "way_bytes": "manuals",
    **dict.fromkeys(("items_per_thread", "stack_bytes", "near_caches"), "a limit that was chosen"),
    **dict.fromkeys(("launch", "meeting", "barrier", "written_line"), "threads beside each other, `figures`"),
    **dict.fromkeys(
        ("step", "window_element", "store_sums", "relayout_element", "winograd_place", "broadcast", "weight_load")
        + ("loads_hidden", "far_weights", "pixels_from_l2", "rows_evicted", "rows_from_l2", "dots_from_l2")
        + ("wait_exposed",),
        "fitted to the times of layers, `layers`",
    ),
}
"""Figures that no single loop shows, and where they are from."""


def measured(tries: int = 15) -> dict[str, Any]:
    """The figures of the table that a loop by itself shows, by their names; takes some seconds."""
    cpu = host()
    machine = machine_model(cpu, 1)
    clock = _clock(cpu, tries)
    sums = peak.vector_sums(cpu, 1, tries)
    found = peak.measure(cpu, machine, 1, tries)
    rates = {level.name: level.rate for level in found.levels}
    most = max(1, round(sums / clock)) * cpu.vector_bytes * clock
    aside, beside = (_rate(cpu, machine, tries, first) for first in (0, 1))
    along, across = (_packing(cpu, machine, tries, transposed) * clock for transposed in (False, True))
    vectors = PACKED[0] * PACKED[1]
    return {
        "fma_per_cycle": max(1, round(sums / clock)),
        "loads_per_cycle": max(1, round(rates["L1"] / cpu.vector_bytes / clock)),
        "fma_latency": round(clock / _single(cpu, tries)),
        "clock": float(f"{clock:.2g}"),
        "own_caches": (round(rates["L1"] / most, 2), round(rates["L2"] / most, 2)),
        "l3_bytes_per_cycle": round(rates["L3"] / clock, 1),
        "memory_rate": float(f"{rates['memory']:.2g}"),
        "l2_vector": round(cpu.vector_bytes * clock / rates["L2"], 2),
        "copy_vector": round(along / vectors, 2),
        "pack_element": round(across / vectors / (cpu.vector_bytes // 4), 2),
        "unaligned_loads": max(1, round(aside / beside)),
    }


def _least(work: Callable[[], object], tries: int) -> float:
    def seconds() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return min(seconds() for _ in range(tries))


def _clock(cpu: Cpu, tries: int) -> float:
    """Cycles a second, of ``chain(x, steps)``: each step waits for the one before it, and nobody can tell its end."""
    text = f"""
target triple = "{cpu.triple}"
define i64 @chain(i64 %x, i64 %steps) {{
entry:
  br label %loop
loop:
  %n = phi i64 [%steps, %entry], [%m, %loop]
  %a = phi i64 [%x, %entry], [%c, %loop]
  %b = mul i64 %a, 6364136223846793005
  %c = add i64 %b, %n
  %m = sub i64 %n, 1
  %more = icmp ne i64 %m, 0
  br i1 %more, label %loop, label %done
done:
  ret i64 %c
}}
"""
    code = NativeCode([compile_object(text, cpu)], ["chain"])
    chain = code.function("chain", ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    return CHAIN_CYCLES * CHAIN_STEPS / _least(partial(chain, 1, CHAIN_STEPS), tries)


def _single(cpu: Cpu, tries: int) -> float:
    """Multiply-adds a second that wait for each other."""
    code = NativeCode([compile_object(peak.fma_text(cpu, 1), cpu)], ["peak_fma"])
    fma = code.function("peak_fma", None, ctypes.c_void_p, ctypes.c_int64)
    register = aligned(np.full(cpu.vector_bytes // 4, 1e-9, np.float32))
    return CHAIN_STEPS / _least(partial(fma, register.ctypes.data, CHAIN_STEPS), tries)


def _rate(cpu: Cpu, machine: MachineModel, tries: int, first: int) -> float:
    """Vectors a second from half of the first-level cache, the first of which begins at a number of floats."""
    code = NativeCode([compile_object(peak.read_text(cpu), cpu)], ["peak_read"])
    read = code.function("peak_read", None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    count, repeats = machine.l1_bytes // 2 // cpu.vector_bytes // 8 * 8, 2000
    data = aligned(np.ones((count + 1) * cpu.vector_bytes // 4, np.float32))
    return count * repeats / _least(partial(read, data.ctypes.data + 4 * first, count, repeats), tries)


def _packing(cpu: Cpu, machine: MachineModel, tries: int, transposed: bool) -> float:
    """Seconds that a matrix takes to become panels, along or across how it was stored."""
    (depth, blocks), lanes = PACKED, machine.lanes("float32")
    shape = (depth, blocks * lanes)
    source = Buffer("w", shape[::-1] if transposed else shape, "float32")
    packed = Buffer("packed", (1, blocks, depth, lanes), "float32")
    code = LoopBuilder()
    Panels(Matrix.of(source, transposed), packed).fill_group(code, Const(0), Const(0), 0, machine)
    kernel = Kernel("pack", (source, packed), code.stmt)
    team = f'target triple = "{cpu.triple}"\n{spinning_text(SHARING, machine.features)}'
    native = NativeCode([compile_object(text, cpu) for text in (emit(kernel, machine), team)], [kernel.name])
    kinds = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 2 + [ctypes.c_void_p]
    function = native.function(kernel.name, None, *kinds)
    sizes = (source.size, packed.size, plan_workspace(kernel, 1).nbytes // 4 + 64, 64)
    *arrays, sharing = [aligned(np.zeros(n, np.float32)) for n in sizes]
    pointers, times = [array.ctypes.data for array in arrays], range(20)
    work = partial(function, *pointers, 0, 1, sharing.ctypes.data)
    return _least(lambda: [work() for _ in times], tries) / len(times)


def show(found: Mapping[str, Any], console: Console) -> None:
    """The table's figures beside those of this CPU; of others, where they are from."""
    table = Table("figure", "builds go by", "here", title=f"{cpu_model()}, {datetime.date.today()}")
    for name in (field.name for field in fields(CpuCosts)):
        table.add_row(name, str(getattr(CPU, name)), str(found.get(name, NOT_MEASURED.get(name))))
    console.print(table)


def write(found: Mapping[str, Any], path: pathlib.Path) -> None:
    """The table's file with measured figures, and what they were measured on; its comments stay."""
    text = path.read_text(encoding="utf-8")
    vectors = f"vectors of {host().vector_bytes} bytes"
    for name, value in {**found, "measured_on": f'"{cpu_model()}, {vectors}, {datetime.date.today()}"'}.items():
        line = re.compile(rf"^(    {name}: [^=\n]+ = )(\"[^\"]*\"|\([^)]*\)|[^\s#]+)", re.MULTILINE)
        spelled = f"{value:.2g}".replace("e+0", "e") if isinstance(value, float) and value >= 1e6 else str(value)
        text, count = line.subn(rf"\g<1>{spelled}", text)
        assert count == 1, name
    path.write_text(text, encoding="utf-8")
