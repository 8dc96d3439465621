"""Runs a kernel's machine code on arrays, on one or more Python threads, over poisoned memory."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial

import numpy as np

from minitvm.codegen.backend import plan_workspace
from minitvm.codegen.llvm.compile import Cpu, compile_object, host, machine_model
from minitvm.codegen.llvm.emit import emit
from minitvm.ir.loop import Buffer, Kernel
from minitvm.runtime.native import NativeCode
from minitvm.runtime.poison import A_NUMBER, NOT_A_NUMBER, fill
from minitvm.target import SHARING, MachineModel, spinning_text


def poisoned(nbytes: int, marker: int) -> np.ndarray:
    """Bytes at a 64-byte boundary, full of a marker."""
    raw = np.zeros(nbytes + 128, np.uint8)
    start = -raw.ctypes.data % 64
    fill(raw[start : start + nbytes + nbytes % 2], marker)
    return raw[start : start + nbytes]


def memory_of(buffer: Buffer, array: np.ndarray | None, marker: int) -> np.ndarray:
    """Flat memory of a buffer."""
    flat = poisoned(buffer.size * np.dtype(buffer.dtype).itemsize, marker).view(buffer.dtype)
    if array is not None:
        flat[:] = array.ravel()
    return flat


@cache
def _sharing(cpu: Cpu) -> bytes:
    """What kernels call for their part of the work."""
    text = f'target triple = "{cpu.triple}"\n{spinning_text(SHARING, machine_model(cpu).features)}'
    return compile_object(text, cpu)


@lru_cache(16)
def _linked(text: str, name: str, cpu: Cpu) -> NativeCode:
    """Linked once for all numbers of threads that a kernel is run on."""
    return NativeCode([compile_object(text, cpu), _sharing(cpu)], [name])


def run_native(
    kernel: Kernel, *arrays: np.ndarray, threads: int = 1, machine: MachineModel | None = None, cpu: Cpu | None = None
) -> tuple[np.ndarray, ...]:
    """The kernel's results; ``arrays`` are its inputs.  They do not depend on what was in memory before.

    ``machine`` may have other vectors and caches than the processor, but is of its architecture and system."""
    cpu = cpu or host()
    here = machine_model(cpu)
    machine = replace(machine or here, features=here.features)
    code = _linked(emit(kernel, machine), kernel.name, cpu)
    kinds = [ctypes.c_void_p] * (len(kernel.params) + 1) + [ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
    function = code.function(kernel.name, None, *kinds)
    given = [np.asarray(a, b.dtype).reshape(b.shape) for a, b in zip(arrays, kernel.inputs, strict=True)]
    results, others = (_run_over(m, kernel, function, given, threads) for m in (NOT_A_NUMBER, A_NUMBER))
    for buffer, one, other in zip(kernel.outputs, results, others, strict=True):
        assert one.tobytes() == other.tobytes(), f"{buffer.name} depends on what was in memory before\n{one}\n{other}"
    return results


def _run_over(
    marker: int, kernel: Kernel, function: Callable[..., None], given: Sequence[np.ndarray], threads: int
) -> tuple[np.ndarray, ...]:
    memory = [memory_of(b, a, marker) for b, a in zip(kernel.inputs, given, strict=True)]
    memory += [memory_of(b, None, marker) for b in kernel.outputs]
    workspace = poisoned(plan_workspace(kernel, threads).nbytes, marker)
    _on_threads(function, [m.ctypes.data for m in (*memory, workspace)], threads)
    for array, flat in zip(given, memory, strict=False):
        assert flat.tobytes() == array.tobytes(), "an input was written to"
    results = memory[len(given) :]
    return tuple(m.reshape(b.shape).copy() for b, m in zip(kernel.outputs, results, strict=True))


def _on_threads(function: Callable[..., None], pointers: Sequence[int], threads: int) -> None:
    run = np.zeros(128 + 128 * threads + 64, np.uint8)
    places = [np.array([run.ctypes.data + -run.ctypes.data % 64, 0, 0], np.int64) for _ in range(threads)]
    parts = [partial(function, *pointers, t, threads, place.ctypes.data) for t, place in enumerate(places)]
    team = [threading.Thread(target=part) for part in parts[1:]]
    for member in team:
        member.start()
    parts[0]()
    for member in team:
        member.join()
