"""The CUDA C itself computes what the interpreter does: compiled by the host's C++ compiler, threads one by one.

Bound kernels have no barrier inside a block, so the threads of a grid may run in any order; they run backwards here.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from cuda_kernels import GROUPS, MACHINE, inputs_of, kernel_of
from dressed import group
from operator_cases import GENERATORS, Accuracy, RandomDraw, random_case
from test_cuda_nvrtc import every_operation
from test_ops import WITHOUT_COMPUTE, WITHOUT_SAMPLE

from minitvm.codegen.cuda.bind import bind_plain, launch_of
from minitvm.codegen.cuda.emit import emit_cuda, function_name
from minitvm.codegen.cuda.spell import HELPERS
from minitvm.codegen.lower import lower
from minitvm.codegen.simplify import simplify
from minitvm.ir.loop import Buffer, Kernel
from minitvm.ir.loop.interp import run_kernel

CALLS = 8
"""Of each operator."""
COMPILER = shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")

SHIM = """\
#include <cmath>
#include <cstring>
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(n)
struct Index { int x, y, z; };
static Index blockIdx, threadIdx;
template <class To, class From> static To bits(From value) { To to; std::memcpy(&to, &value, sizeof to); return to; }
static float __int_as_float(int v) { return bits<float>(v); }
static int __float_as_int(float v) { return bits<int>(v); }
static double __longlong_as_double(long long v) { return bits<double>(v); }
static long long __double_as_longlong(double v) { return bits<long long>(v); }
static float half_to_float(unsigned short v) { return (float)bits<_Float16>(v); }
static unsigned short float_to_half(float v) { return bits<unsigned short>((_Float16)v); }
static int dot4(int a, int b, int total) {
    for (int i = 0; i < 4; i++) total += (int)(unsigned char)(a >> 8 * i) * (int)(signed char)(b >> 8 * i);
    return total;
}
"""

LAUNCH = """\
extern "C" void launch_{number}(void **p) {{
    for (int b = {blocks}; b-- > 0;) for (int t = {threads}; t-- > 0;) {{
        blockIdx.x = b; threadIdx.x = t;
        {call};
    }}
}}
"""


def source_of(number: int, kernel: Kernel) -> str:
    """One kernel in a namespace of its own, and a function that runs its whole grid."""
    name, launch = f"{function_name(kernel)}_{number}", launch_of(kernel)
    text = emit_cuda(kernel).replace(f"\n{function_name(kernel)}(", f"\nvoid {name}(", 1)
    text = text.replace('extern "C" __global__ void __launch_bounds__', "__global__ __launch_bounds__")
    for helper in ("half_to_float", "float_to_half", "dot4"):
        text = text.replace(HELPERS[helper], "")
    arguments = ", ".join(f"arg(p[{i}])" for i in range(len(kernel.params)))
    call = LAUNCH.format(number=number, blocks=launch.grid[0], threads=launch.block[0], call=f"{name}({arguments})")
    return f"namespace n{number} {{\n{_ANY}{text}{call}}}\n"


_ANY = "struct arg { void *at; arg(void *p) : at(p) {} template <class T> operator T *() const { return (T *)at; } };\n"


def compiled(kernels: list[Kernel], folder: Path) -> ctypes.CDLL:
    source, library = folder / "kernels.cpp", folder / "kernels.so"
    source.write_text(SHIM + "\n".join(source_of(n, k) for n, k in enumerate(kernels)))
    command = [str(COMPILER), "-O1", "-shared", "-fPIC", "-w", "-ffp-contract=off", "-o", str(library), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]
    return ctypes.CDLL(str(library))


def run(library: ctypes.CDLL, first: int, bound: tuple[Kernel, ...], arrays: dict[Buffer, np.ndarray]) -> None:
    """Launch kernels one after the other; ``arrays`` get their results."""
    for number, kernel in enumerate(bound, first):
        for buffer in kernel.outputs:
            arrays[buffer] = np.full(buffer.shape, 77).astype(buffer.dtype)
        pointers = (ctypes.c_void_p * len(kernel.params))(*(arrays[b].ctypes.data for b in kernel.params))
        library[f"launch_{number}"](pointers)


@dataclass(frozen=True)
class Checked:
    """A kernel, its grids, what it is given and what it must give."""

    what: str
    kernel: Kernel
    arrays: list[np.ndarray]
    expected: tuple[np.ndarray, ...]
    accuracy: Accuracy

    def check(self, library: ctypes.CDLL, first: int, bound: tuple[Kernel, ...]) -> None:
        inputs = [
            np.ascontiguousarray(a).reshape(b.shape) for a, b in zip(self.arrays, self.kernel.inputs, strict=True)
        ]
        memory = dict(zip(self.kernel.inputs, inputs, strict=True))
        run(library, first, bound, memory)
        for buffer, want in zip(self.kernel.outputs, self.expected, strict=True):
            have = memory[buffer].reshape(want.shape)
            wrong = self.accuracy.differences(have, want)
            assert not wrong.any(), f"{self.what}: {have[wrong][:3]}, not {want[wrong][:3]}"


def groups() -> Iterator[Checked]:
    for name in GROUPS:
        kernel = kernel_of(name)
        arrays = inputs_of(kernel)
        yield Checked(name, kernel, arrays, run_kernel(kernel, *arrays), Accuracy(ulps=8, scale=8))


def generated() -> Iterator[Checked]:
    """Random calls of every operator, of any dtype it accepts, alone and in groups."""
    for name, number in product(GENERATORS, range(CALLS)):
        draw = RandomDraw(zlib.crc32(f"{name} {number}".encode()))
        call = random_case(name, draw)
        if call.op.name not in WITHOUT_COMPUTE | WITHOUT_SAMPLE:
            found = group(call, draw)
            kernel = simplify(lower(found.function, "kernel", MACHINE))
            yield Checked(f"{call} ({name} {number})", kernel, found.arrays, found.expected, found.accuracy)


@pytest.mark.parametrize("cases", [groups, generated])
def test_printed_kernels_give_the_right_numbers(cases: Callable[[], Iterator[Checked]], tmp_path: Path) -> None:
    found = [(c, bind_plain(c.kernel)) for c in cases() if all(0 not in b.shape for b in c.kernel.params)]
    library = compiled([part for _, bound in found for part in bound], tmp_path)
    first = 0
    for checked, bound in found:
        checked.check(library, first, bound)
        first += len(bound)
    assert len(found) >= 12


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "int32", "int64", "uint8", "uint32", "bool"])
def test_every_operator_and_function(dtype: str, tmp_path: Path) -> None:
    """On values that every function is defined for, and small enough for every cast."""
    kernel = every_operation(dtype)
    given = np.array([1, 2, 3, 0]).astype(dtype)
    library = compiled([kernel], tmp_path)
    arrays = {kernel.inputs[0]: given}
    run(library, 0, (kernel,), arrays)
    for buffer, (want, written) in zip(kernel.outputs, _written(kernel, given), strict=True):
        np.testing.assert_allclose(arrays[buffer][written], want[written], rtol=1e-6, err_msg=buffer.name)


def _written(kernel: Kernel, given: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Results, and which of their elements the kernel stores; each statement is run by itself."""
    from minitvm.ir.loop import Store, walk_stmts
    from minitvm.ir.loop.interp import run_sequence

    results = [(np.zeros(b.shape, b.dtype), np.zeros(b.shape, bool)) for b in kernel.outputs]
    for store in (s for s in walk_stmts(kernel.body) if isinstance(s, Store)):
        out = Buffer("out", (), store.buffer.dtype)
        single = Kernel("k", (kernel.inputs[0], out), Store(out, (), store.value))
        at = tuple(int(i.value) for i in store.index)  # type: ignore[attr-defined]
        value, written = results[kernel.outputs.index(store.buffer)]
        value[at] = run_sequence([single], {kernel.inputs[0]: given})[out]
        written[at] = True
    return results
