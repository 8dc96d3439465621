"""cuBLAS, called by ctypes: matrix products on an instance's stream, captured with its kernels."""

from __future__ import annotations

import ctypes
import functools
import importlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from minitvm.errors import DeviceError, TargetError
from minitvm.runtime.cuda.memory import CudaMemory

_WORKSPACE = 32 << 20
"""Bytes, as NVIDIA advises for sm_90; memory of its own cannot be allocated while a graph is captured."""
_STRICT = 0
"""CUBLAS_DEFAULT_MATH: float32 is multiplied as float32, never as TF32."""
_HINT = "pip install 'minitvm[cuda-libs]', or leave out -libs"


@dataclass(frozen=True)
class Product:
    """The arguments of ``cublasSgemm`` and its kin.  Matrices lie by columns there, so that row by row C = A B is asked
    for as C^T = B^T A^T: m and n are those of C^T, the operands change places."""

    function: str
    transposes: tuple[int, int]
    sizes: tuple[int, int, int]
    leading: tuple[int, int, int]
    strides: tuple[int, int, int]
    """Elements from matrix to matrix of a batch."""
    batch: int

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode("ascii")

    @staticmethod
    def from_bytes(data: bytes) -> Product:
        plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(data).items()}
        return Product(**plain)


def path_of(name: str) -> str:
    """Where a library of NVIDIA's is: in its wheel, or of a toolkit."""
    return str(importlib.import_module("cuda.pathfinder").load_nvidia_dynamic_lib(name).abs_path)


@functools.cache
def cublas() -> ctypes.CDLL:
    """:class:`TargetError` where it is not installed."""
    try:
        return ctypes.CDLL(path_of("cublas"))
    except (ImportError, OSError, RuntimeError) as error:
        raise TargetError("cuBLAS is not installed, which the library calls", hint=_HINT) from error


class Blas:
    """A handle of cuBLAS: an instance's, with its stream and a workspace."""

    def __init__(self, memory: CudaMemory) -> None:
        self._library, self._gpu = cublas(), memory.gpu
        self._handle = ctypes.c_void_p()
        self._workspace = memory.empty((_WORKSPACE,), "uint8")
        with memory.gpu:
            self.call("cublasCreate_v2", ctypes.byref(self._handle))
            self.call("cublasSetStream_v2", self._handle, ctypes.c_void_p(int(memory.stream)))
            workspace = ctypes.c_void_p(memory.address(self._workspace))
            self.call("cublasSetWorkspace_v2", self._handle, workspace, ctypes.c_size_t(_WORKSPACE))
            self.call("cublasSetMathMode", self._handle, _STRICT)

    def call(self, name: str, *args: Any) -> None:
        status = getattr(self._library, name)(*args)
        if status:
            raise DeviceError(f"cuBLAS fails on {self._gpu.device}: {name} returns {status}")

    def product(self, what: Product, a: int, b: int, c: int) -> None:
        """Of the matrices at these addresses, row by row."""
        real = ctypes.c_float if what.function == "cublasSgemm" else ctypes.c_double
        pointers, strides = (ctypes.c_void_p(p) for p in (b, a, c)), map(ctypes.c_longlong, what.strides)
        operands = [(p, lead, stride) for p, lead, stride in zip(pointers, what.leading, strides, strict=True)]
        one, zero = ctypes.byref(real(1)), ctypes.byref(real(0))
        scaled = [one, *operands[0], *operands[1], zero, *operands[2]]
        name = f"{what.function}StridedBatched"
        self.call(name, self._handle, *what.transposes, *what.sizes, *scaled, what.batch)

    def __del__(self) -> None:
        with self._gpu.while_there() as there:
            if there and self._handle:
                self._library.cublasDestroy_v2(self._handle)


class PreparedProduct:
    """A call, of what the slots point to when it is made."""

    def __init__(self, blas: Blas, what: Product, slots: int, entries: Sequence[int]) -> None:
        self._blas, self._what = blas, what
        self._slots = [ctypes.c_uint64.from_address(slots + 8 * entry) for entry in entries]

    def run(self, memory: CudaMemory) -> None:
        self._blas.product(self._what, *(slot.value for slot in self._slots))
