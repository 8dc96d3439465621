"""A machine with a GPU, without one: a stand-in for NVIDIA's driver (``libcuda.cpp``) that the runtime finds.

A process finds it with :func:`environment`; there, :func:`use_host_code` lets kernels be compiled for it.
"""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib
import subprocess
import tempfile
from typing import Any

from minitvm.codegen.backend import backend_class
from minitvm.errors import CompilerError
from minitvm.runtime.nvidia import image, libraries
from simulated_gpu.host import host_compiler, host_image

_SOURCE = pathlib.Path(__file__).with_name("libcuda.cpp")
_NAME = "libcuda.so.1"


def build(folder: pathlib.Path) -> pathlib.Path:
    """The stand-in as ``libcuda.so.1`` in a folder; :class:`CompilerError` where there is no C++ compiler."""
    compiler = host_compiler()
    if compiler is None:
        raise CompilerError("no C++ compiler is installed, which the stand-in needs", hint="install g++ or clang++")
    path = folder / _NAME
    flags = ("-O1", "-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden", "-w")
    subprocess.run([compiler, *flags, "-o", str(path), str(_SOURCE), "-ldl"], check=True)
    return path


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory(prefix="minitvm-standin-")
    build(pathlib.Path(folder.name))
    return folder


def environment(**says: object) -> dict[str, str]:
    """Variables for a process that shall find the stand-in; ``says`` are those of ``libcuda.cpp``, as ``arch=80``."""
    path = os.pathsep.join(filter(None, [_folder().name, os.environ.get("LD_LIBRARY_PATH", "")]))
    own = {f"STANDIN_{name.upper()}": str(value) for name, value in says.items()}
    return {**os.environ, "LD_LIBRARY_PATH": path, **own}


def use_host_code(idle: bool = False) -> None:
    """Let ``target="cuda"`` compile for the stand-in from now on: CUDA C by the host's compiler instead of NVRTC.

    ``idle``: into nothing, for a stand-in with ``idle=1``, whose kernels do nothing.
    """
    backend: Any = backend_class("cuda")
    made = backend.__init__

    def init(self: Any, *args: Any) -> None:
        made(self, *args)
        self.version = None if idle else "host"

    def host(self: object, source: str) -> bytes:
        return image.pack(image.records(source), b"" if idle else host_image(source))

    backend.__init__, backend.image = init, host
    libraries.path_of = lambda name: _NAME  # it has cuBLAS and cuDNN, too


@functools.cache
def _driver() -> ctypes.CDLL:
    found = ctypes.CDLL(_NAME)
    found.standin_used.restype = ctypes.c_size_t
    return found


def calls(function: str) -> int:
    """How often this process called a function of the stand-in."""
    return int(_driver().standin_calls(function.encode()))


def bytes_used(most: bool = False) -> int:
    """Of its memory, now, or at the most so far."""
    return int(_driver().standin_used(int(most)))
