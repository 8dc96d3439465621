"""From CUDA C to a shared object of the host, and launches of what is in one (``runtime.cpp``, ``device.hpp``)."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence

import numpy as np

from minitvm.errors import CompilerError, MiniTVMError
from simulated_gpu.guard import Guarded

ORDERS = ("forward", "reverse", "random")
"""In which blocks, warps and the lanes of a warp run."""

_HERE = pathlib.Path(__file__).parent
_FLAGS = (
    *("-fPIC", "-w", "-std=c++17", "-ffp-contract=off", "-fno-math-errno", "-fno-strict-aliasing"),
    *("-fvisibility=hidden", "-U_FORTIFY_SOURCE"),
)
_CHECKS = "-fsanitize=bounds,alignment"
_KERNEL = re.compile(
    r'^extern "C" (__global__ void(?:\s+__cluster_dims__\((\d+), 1, 1\))?'
    r"(?:\s+__launch_bounds__\((\d+)[^)]*\))?\s+(\w+)\()",
    re.MULTILINE,
)
_DYNAMIC = re.compile(r"extern __shared__ (?:__align__\(\d+\) )?([\w ]+?) (\w+)\[\];")
_DEVICE = re.compile(r"^(?:template\b[^\n;{]*\n)?(?:template\b[^\n;{]*)?__device__(?:[^\n]*\}$|.*?^\}$)", re.M | re.S)


class DeviceFault(MiniTVMError):
    """A kernel that a GPU would stop, or that counts on what no GPU promises."""


def host_compiler() -> str | None:
    """The host's C++ compiler, or ``None``."""
    return shutil.which("g++") or shutil.which("clang++")


def host_image(*sources: str, optimize: str = "-O1") -> bytes:
    """CUDA C as a shared object, which takes a cubin's place; of several texts, kernels are named ``NUMBER/NAME``.

    ``optimize``: with ``-O0`` it is compiled in a third of the time, and runs a few times longer.

    What is inline PTX is the host's own.  Raises :class:`CompilerError` where there is no C++ compiler, or it refuses.
    """
    table: list[str] = []
    text = ['#include "device.hpp"\n']
    line = 1
    for number, source in enumerate(sources):
        text.append(_on_host(source, line, number, "" if len(sources) == 1 else f"{number}/", table))
        line += source.count("\n") + 1
    known = "\n".join(_literal(f"{part}\n") for source in sources for part in source.split("\n"))
    text += ["namespace cudasim {\nextern const Kernel kernels[];\nextern const char source[];\n"]
    text += [f"const Kernel kernels[] = {{\n{''.join(table)}{{}}}};\nconst char source[] =\n{known};\n}}\n"]
    return _shared_object("".join(text), optimize)


def _literal(text: str) -> str:
    """A string of C++, which has no surrogates to escape what lies beyond 16 bits."""
    return json.dumps(text, ensure_ascii=False)


def _on_host(source: str, line: int, number: int, prefix: str, table: list[str]) -> str:
    """One text in a namespace of its own, and shared memory of each kernel in a section of its own."""
    text = _DEVICE.sub(lambda found: "\n" * found[0].count("\n") if "asm" in found[0] else found[0], source)
    text = _DYNAMIC.sub(r"\1 *\2 = (\1 *)cudasim::dynamic_shared();", text)
    edges: list[str] = []

    def kernel(found: re.Match[str]) -> str:
        section = f"cudasim_{len(table)}"
        edges.extend(f"extern char __{e}_{section}[] __attribute__((weak));\n" for e in ("start", "stop"))
        call = f"[](void **p) {{ cudasim::call(n{number}::{found[4]}, p); }}"
        edge = (f"__start_{section}", f"__stop_{section}")
        threads, cluster, count = found[3] or "1024", found[2] or "1", f"cudasim::count(n{number}::{found[4]})"
        row = [f'"{prefix}{found[4]}"', call, *edge, threads, count, cluster]
        table.append(f"{{{', '.join(row)}}},\n")
        at = line + text.count("\n", 0, found.start())
        return f'\n#undef CUDASIM_SHARED\n#define CUDASIM_SHARED "{section}"\n#line {at}\n{found[1]}'

    body = _KERNEL.sub(kernel, text)
    return f"{''.join(edges)}namespace n{number} {{\n#line {line}\n{body}\n}}\n"


def _shared_object(text: str, optimize: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        (work / "kernels.cpp").write_text(text, encoding="utf-8")
        (work / "runtime.o").write_bytes(_runtime())
        _compile(work, "-c", optimize, _CHECKS, f"-I{_HERE}", "kernels.cpp", "-o", "kernels.o")
        _compile(work, "-shared", "kernels.o", "runtime.o", "-lm", "-o", "kernels.so")
        return (work / "kernels.so").read_bytes()


@functools.cache
def _runtime() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        _compile(pathlib.Path(folder), "-c", "-O1", str(_HERE / "runtime.cpp"), "-o", "runtime.o")
        return (pathlib.Path(folder) / "runtime.o").read_bytes()


def _compile(folder: pathlib.Path, *arguments: str) -> None:
    compiler = host_compiler()
    if compiler is None:
        raise CompilerError("no C++ compiler is installed, which simulated CUDA needs", hint="install g++ or clang++")
    command, english = [compiler, *_FLAGS, *arguments], {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=english)
    if done.returncode:
        raise CompilerError("the C++ compiler refuses the kernels", where=done.stderr.splitlines()[:20])


class HostKernels:
    """The kernels of a :func:`host_image`.  One launch at a time."""

    def __init__(self, image: bytes) -> None:
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            file.write(image)
            file.flush()
            self._library = ctypes.CDLL(file.name)
        self._library.cudasim_message.restype = ctypes.c_char_p

    def launch(
        self,
        name: str,
        grid: Sequence[int],
        block: Sequence[int],
        arrays: Sequence[np.ndarray],
        order: str = "forward",
        seed: int = 0,
        dynamic: int = 0,
        counters: int = 0,
    ) -> None:
        """Run a kernel over arrays, which it works on in memory that ends where they do; and over so many counters of
        arrivals, which it is given behind them.

        Raises :class:`DeviceFault`: an access outside of them, a barrier that not all threads reach, ...
        """
        self._library.cudasim_order(ORDERS.index(order), seed)
        arrays = [*arrays, np.zeros(counters, np.uint32)] if counters else arrays
        guarded = [Guarded(array, at_end=order != "reverse") for array in arrays]
        pointers = [ctypes.c_void_p(g.address) for g in guarded]
        addresses = (ctypes.c_void_p * len(arrays))(*(ctypes.addressof(p) for p in pointers))
        starts = (ctypes.c_void_p * len(arrays))(*(g.address for g in guarded))
        self._library.cudasim_memory(len(arrays), starts, (ctypes.c_size_t * len(arrays))(*(g.nbytes for g in guarded)))
        code = self._library.cudasim_launch(
            name.encode(), (ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(*block), dynamic, addresses
        )
        if code:
            text = self._library.cudasim_message().decode(errors="replace")
            message, *where = text.splitlines()
            where += [place for n, g in enumerate(guarded) if (place := g.describe(message, f"argument {n}"))]
            raise DeviceFault(message, where=where)
        for number, (memory, array) in enumerate(zip(guarded, arrays, strict=True)):
            if memory.is_overrun():
                raise DeviceFault(f"{name}: stored outside of argument {number}, {array.nbytes} bytes")
            memory.copy_to(array)
        if counters and arrays[-1].any():
            raise DeviceFault(f"{name}: counters of arrivals are not 0 again")
