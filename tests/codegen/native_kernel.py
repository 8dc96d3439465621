"""Runs a kernel's machine code on arrays, on one or more Python threads."""

from __future__ import annotations

import ctypes
import threading

import numpy as np

from minitvm.codegen.llvm.compile import compile_object, host, machine_model
from minitvm.codegen.llvm.emit import emit
from minitvm.codegen.workspace import buffer_elements, plan_workspace
from minitvm.ir.loop import Buffer, Kernel
from minitvm.runtime.cpu import NativeCode
from minitvm.target import MachineModel


def aligned(nbytes: int) -> np.ndarray:
    """Bytes at a 64-byte boundary."""
    raw = np.zeros(nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes]


def memory_of(buffer: Buffer, array: np.ndarray | None) -> np.ndarray:
    """Flat memory of a buffer; elements that belong to no index hold a pattern that arithmetic would notice."""
    flat = aligned(buffer_elements(buffer) * np.dtype(buffer.dtype).itemsize).view(buffer.dtype)
    flat[:] = np.array(77).astype(buffer.dtype)
    if array is not None:
        view(buffer, flat)[...] = array
    return flat


def view(buffer: Buffer, flat: np.ndarray) -> np.ndarray:
    strides = [s * flat.itemsize for s in buffer.row_major_strides]
    return np.lib.stride_tricks.as_strided(flat[buffer.offset :], buffer.shape, strides)


def run_native(
    kernel: Kernel, *arrays: np.ndarray, threads: int = 1, machine: MachineModel | None = None
) -> tuple[np.ndarray, ...]:
    """The kernel's results; ``arrays`` are its inputs."""
    code = NativeCode([compile_object(emit(kernel, machine or machine_model(host())), host())], [kernel.name])
    given = [np.asarray(a, b.dtype).reshape(b.shape) for a, b in zip(arrays, kernel.inputs, strict=True)]
    memory = [memory_of(b, a) for b, a in zip(kernel.inputs, given, strict=True)]
    memory += [memory_of(b, None) for b in kernel.outputs]
    workspace = aligned(plan_workspace(kernel, threads).nbytes)
    barrier = aligned(128)
    pointers = [m.ctypes.data for m in (*memory, workspace)]
    kinds = [ctypes.c_void_p] * len(pointers) + [ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
    function = code.function(kernel.name, None, *kinds)
    team = [
        threading.Thread(target=function, args=(*pointers, t, threads, barrier.ctypes.data)) for t in range(1, threads)
    ]
    for member in team:
        member.start()
    function(*pointers, 0, threads, barrier.ctypes.data)
    for member in team:
        member.join()
    for buffer, array, flat in zip(kernel.inputs, given, memory, strict=False):
        np.testing.assert_array_equal(view(buffer, flat), array, err_msg="an input was written to")
    results = memory[len(given) :]
    return tuple(view(b, m).copy() for b, m in zip(kernel.outputs, results, strict=True))
