"""cuBLAS and cuDNN, called by ctypes on an instance's stream; their calls are captured with its kernels.

Of cuDNN these are the functions of before its graphs, deprecated and still there in version 9.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import itertools
import json
import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from minitvm.config import cache_dir
from minitvm.errors import DeviceError, TargetError
from minitvm.runtime.cache import KernelCache, cache_key
from minitvm.runtime.nvidia.driver import Gpu
from minitvm.runtime.nvidia.memory import CudaMemory, DeviceArray

# --- calls as data --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Product:
    """The arguments of ``cublasGemmStridedBatchedEx``.  Matrices lie by columns there, so that row by row C = A B is
    asked for as C^T = B^T A^T: m and n are those of C^T, the operands change places."""

    library: ClassVar[str] = "cublas"

    dtype: str
    transposes: tuple[int, int]
    sizes: tuple[int, int, int]
    leading: tuple[int, int, int]
    strides: tuple[int, int, int]
    """Elements from matrix to matrix of a batch."""
    batch: int
    allow_tf32: bool = False

    @property
    def nbytes(self) -> list[int]:
        """The bytes of the operands and of the result, as they lie here."""
        (n, m, k), last, (b, a, c) = self.sizes, self.batch - 1, self.strides
        return [size * np.dtype(self.dtype).itemsize for size in (m * k + last * a, k * n + last * b, m * n + last * c)]


@dataclass(frozen=True)
class Convolution:
    """A cross-correlation.  ``shapes``: the image's, the filters' and the result's, channels before spatial axes."""

    library: ClassVar[str] = "cudnn"

    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    padding: tuple[int, ...]
    """Before and after each spatial axis."""
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    allow_tf32: bool = False

    @property
    def nbytes(self) -> list[int]:
        """The bytes of the operands and of the result."""
        return [math.prod(shape) * np.dtype(self.dtype).itemsize for shape in self.shapes]


LibraryFunction: TypeAlias = Product | Convolution


def call_bytes(call: LibraryFunction) -> bytes:
    return json.dumps({"library": call.library, **asdict(call)}).encode("ascii")


def call_of(data: bytes) -> LibraryFunction:
    """The call that :func:`call_bytes` wrote."""
    form = {name: _tuples(value) for name, value in json.loads(data).items()}
    kind = {kind.library: kind for kind in (Product, Convolution)}[form.pop("library")]
    return kind(**form)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


# --- where they are -------------------------------------------------------------------------------------------


class Vendor(NamedTuple):
    """A library as it is known to others, and what is called of it, the name in front left out."""

    title: str
    oldest: int
    """Major version."""
    package: str
    status_text: str
    functions: tuple[str, ...]


VENDORS = {
    "cublas": Vendor(
        "cuBLAS",
        12,
        "nvidia-cublas",
        "GetStatusString",
        ("Create_v2", "Destroy_v2", "SetStream_v2", "SetWorkspace_v2", "GemmStridedBatchedEx"),
    ),
    "cudnn": Vendor(
        "cuDNN",
        9,
        "nvidia-cudnn-cu13",
        "GetErrorString",
        (
            *("Create", "Destroy", "SetStream"),
            *(
                f"{does}{what}Descriptor"
                for does in ("Create", "Destroy")
                for what in ("Tensor", "Filter", "Convolution")
            ),
            *("SetTensorNdDescriptorEx", "SetFilterNdDescriptor", "SetConvolutionNdDescriptor"),
            *("SetConvolutionGroupCount", "SetConvolutionMathType", "GetConvolutionForwardWorkspaceSize"),
            *("FindConvolutionForwardAlgorithmEx", "ConvolutionForward"),
        ),
    ),
}


def path_of(name: str) -> str:
    """The place where a library of NVIDIA's is: in its wheel, or of a toolkit."""
    return str(importlib.import_module("cuda.pathfinder").load_nvidia_dynamic_lib(name).abs_path)


@functools.cache
def load(name: str) -> ctypes.CDLL:
    """:class:`TargetError` where it is not installed, too old, or lacks what is called of it."""
    title, oldest, package, status_text, functions = VENDORS[name]
    try:
        library = ctypes.CDLL(path_of(name))
    except (ImportError, OSError, RuntimeError) as error:
        hint = "pip install nvidia-cublas nvidia-cudnn-cu13 cuda-pathfinder, or leave out -libs"
        said = str(error).partition("\n")[0]
        raise TargetError(f"{title} is not installed, which the library calls", where=[said], hint=hint) from error
    hint = f"pip install -U {package}, or leave {name} out of -libs"
    missing = [f for f in ("GetProperty", status_text, *functions) if not hasattr(library, name + f)]
    if missing:
        raise TargetError(f"{title} has no {name}{missing[0]}, which is called", where=[library._name], hint=hint)
    major = version_of(name, library)[0]
    if major < oldest:
        raise TargetError(f"{title} {major} is too old: {oldest} is needed", where=[library._name], hint=hint)
    getattr(library, name + status_text).restype = ctypes.c_char_p
    return library


def version_of(name: str, library: ctypes.CDLL) -> list[int]:
    """Major, minor and patch (``libraryPropertyType``)."""
    found = (ctypes.c_int * 3)()
    for which in range(3):
        getattr(library, f"{name}GetProperty")(which, ctypes.byref(found, which * ctypes.sizeof(ctypes.c_int)))
    return list(found)


# --- how they are called --------------------------------------------------------------------------------------

_SCALES: dict[str, Any] = {"float16": ctypes.c_float, "float32": ctypes.c_float, "float64": ctypes.c_double}
"""What results are scaled by, as sums are kept."""


def _factors(dtype: str) -> list[Any]:
    """By 1, and nothing is added."""
    return [ctypes.byref(_SCALES[dtype](value)) for value in (1, 0)]


class Handle(ABC):
    """A library's, of an instance: on its stream, with memory to work in."""

    name: ClassVar[str]
    version: ClassVar[str] = ""
    """What names of some functions end in."""

    def __init__(self, memory: CudaMemory) -> None:
        self.value = ctypes.c_void_p()
        self.library, self.memory, self.gpu = load(self.name), memory, memory.gpu
        with self.gpu:
            self.call(f"Create{self.version}", ctypes.byref(self.value))
            self.call(f"SetStream{self.version}", self.value, ctypes.c_void_p(int(memory.stream)))

    def call(self, function: str, *args: Any, what: object = "") -> None:
        """``what`` is named in errors."""
        status = getattr(self.library, self.name + function)(*args)
        if status:
            vendor = VENDORS[self.name]
            text = getattr(self.library, self.name + vendor.status_text)(status).decode()
            raise DeviceError(
                f"{vendor.title} fails on {self.gpu.device}: {self.name}{function} returns {text} ({status})",
                where=[str(what)] if what else (),
                hint=f"leave {self.name} out of -libs",
            )

    def scratch(self, nbytes: int) -> tuple[DeviceArray, ctypes.c_void_p]:
        """Memory, as long as the array is kept."""
        found = self.memory.empty((max(1, nbytes),), "uint8")
        return found, ctypes.c_void_p(found.address)

    def warm(self, what: LibraryFunction) -> None:
        """Call it once over memory that nobody reads: what that loads cannot be loaded while a graph is captured."""
        operands = [self.scratch(nbytes) for nbytes in what.nbytes]
        with self.gpu:
            self.run(what, *(address.value or 0 for _, address in operands))

    @abstractmethod
    def run(self, what: Any, *addresses: int) -> None:
        """A call that was announced: operands, then the result, row-major."""

    def __del__(self) -> None:
        if getattr(self, "gpu", None) is not None and self.value:
            self.gpu.free(functools.partial(_destroyed, self.library, self.owned()))

    def owned(self) -> list[tuple[str, Any]]:
        """What gives something back, and what that is, in order: the handle is the last."""
        return [(f"{self.name}Destroy{self.version}", self.value)]


def _destroyed(library: Any, owned: list[tuple[str, Any]]) -> bool:
    for function, value in owned:
        getattr(library, function)(value)
    return True


class Blas(Handle):
    name, version = "cublas", "_v2"

    _WORKSPACE = 32 << 20
    """Bytes, as NVIDIA advises for sm_90; memory of its own cannot be allocated while a graph is captured."""
    _TYPES: ClassVar[dict[str, tuple[int, int]]] = {"float16": (2, 68), "float32": (0, 68), "float64": (1, 70)}
    """``cudaDataType``, and ``cublasComputeType_t``: sums in float32, of float64 in itself."""
    _TF32 = 77
    """CUBLAS_COMPUTE_32F_FAST_TF32."""

    def __init__(self, memory: CudaMemory) -> None:
        super().__init__(memory)
        self._workspace, address = self.scratch(self._WORKSPACE)
        with self.gpu:
            self.call("SetWorkspace_v2", self.value, address, ctypes.c_size_t(self._WORKSPACE))

    def run(self, what: Product, *addresses: int) -> None:
        a, b, c = map(ctypes.c_void_p, addresses)
        type_, compute = self._TYPES[what.dtype]
        strides = map(ctypes.c_longlong, what.strides)
        operands = [(p, type_, *how) for p, *how in zip((b, a, c), what.leading, strides, strict=True)]
        one, zero = _factors(what.dtype)
        scaled = [one, *operands[0], *operands[1], zero, *operands[2]]
        how = (what.batch, self._TF32 if what.allow_tf32 else compute, -1)  # CUBLAS_GEMM_DEFAULT
        self.call("GemmStridedBatchedEx", self.value, *what.transposes, *what.sizes, *scaled, *how, what=what)


class _Measured(ctypes.Structure):
    """``cudnnConvolutionFwdAlgoPerf_t``."""

    _fields_: ClassVar = [
        ("algorithm", ctypes.c_int),
        ("status", ctypes.c_int),
        ("milliseconds", ctypes.c_float),
        ("nbytes", ctypes.c_size_t),
        ("is_deterministic", ctypes.c_int),
        ("math", ctypes.c_int),
        ("reserved", ctypes.c_int * 3),
    ]


class Algorithm(NamedTuple):
    """What was measured to be fastest, and the memory that it works in."""

    number: int
    math: int
    nbytes: int


_fastest: weakref.WeakKeyDictionary[Gpu, dict[Convolution, Algorithm]] = weakref.WeakKeyDictionary()


class Dnn(Handle):
    name = "cudnn"

    _ALGORITHMS, _MOST_BYTES = 8, 256 << 20
    """How many there are, and the memory that one may work in."""
    _TYPES: ClassVar[dict[str, tuple[int, int]]] = {"float16": (2, 0), "float32": (0, 0), "float64": (1, 1)}
    """``cudnnDataType_t`` of the elements and of sums."""
    _MATH: ClassVar[dict[str, int]] = {"float16": 1, "float32": 0, "float64": 0}
    _FMA = 3
    """``cudnnMathType_t``: with tensor cores (CUDNN_TENSOR_OP_MATH, CUDNN_DEFAULT_MATH), without them."""

    def __init__(self, memory: CudaMemory, convolutions: Iterable[Convolution]) -> None:
        self._descriptors: dict[Convolution, list[tuple[str, ctypes.c_void_p]]] = {}
        super().__init__(memory)
        self._found = {what: self._algorithm(what) for what in convolutions}
        self._bytes = max((found.nbytes for found in self._found.values()), default=0)
        self._workspace, self._work = self.scratch(self._bytes)

    def _algorithm(self, what: Convolution) -> Algorithm:
        """The fastest, put into the descriptor."""
        known = _fastest.setdefault(self.gpu, {})
        with self.gpu:
            descriptors = self._describe(what)
            if what not in known:
                known[what] = self._kept(what, descriptors)
            self.call("SetConvolutionMathType", descriptors[2], known[what].math)
        return known[what]

    def _kept(self, what: Convolution, descriptors: Sequence[ctypes.c_void_p]) -> Algorithm:
        """Measured once for a shape, a kind of GPU and a version: what was found lies beside the kernels on disk."""
        cache, version = KernelCache(cache_dir()), str(version_of(self.name, self.library))
        names = Algorithm._fields  # what another minitvm keeps is not read
        key = cache_key("algorithm", self.gpu.name, self.gpu.arch, version, call_bytes(what).decode(), *names)
        stored = cache.get(key)
        if stored is not None:
            return Algorithm(*json.loads(stored))
        found = self._measure(what, *descriptors)
        cache.put(key, json.dumps(found).encode())
        return found

    def _describe(self, what: Convolution) -> list[ctypes.c_void_p]:
        """Descriptors of the image, the filters, the convolution and the result, in the order of the calls."""
        type_, sums = self._TYPES[what.dtype]
        (image, filters, result), rank = (_ints(shape) for shape in what.shapes), len(what.padding)
        window = map(_ints, (what.padding, what.strides, what.dilation))
        found = [self._descriptor(what, kind) for kind in ("Tensor", "Filter", "Convolution", "Tensor")]
        x, w, convolution, y = found
        self.call("SetTensorNdDescriptorEx", x, 0, type_, rank + 2, image, what=what)
        self.call("SetFilterNdDescriptor", w, type_, 0, rank + 2, filters, what=what)
        self.call("SetConvolutionNdDescriptor", convolution, rank, *window, 1, sums, what=what)
        self.call("SetConvolutionGroupCount", convolution, what.groups, what=what)
        self.call("SetConvolutionMathType", convolution, self._FMA if self._is_strict(what) else self._MATH[what.dtype])
        self.call("SetTensorNdDescriptorEx", y, 0, type_, rank + 2, result, what=what)
        return found

    def _descriptor(self, what: Convolution, kind: str) -> ctypes.c_void_p:
        found = ctypes.c_void_p()
        self.call(f"Create{kind}Descriptor", ctypes.byref(found))
        self._descriptors.setdefault(what, []).append((kind, found))
        return found

    @staticmethod
    def _is_strict(what: Convolution) -> bool:
        return what.dtype == "float32" and not what.allow_tf32

    def _measure(self, what: Convolution, *descriptors: ctypes.c_void_p) -> Algorithm:
        """``cudnnFindConvolutionForwardAlgorithmEx`` runs them all; which it does in the memory that they may have."""
        x, w, convolution, y = descriptors
        nbytes = self._most_bytes(x, w, convolution, y)
        (_x, image), (_w, filters), (_y, result), (_work, work) = map(self.scratch, (*what.nbytes, nbytes))
        count, found = ctypes.c_int(), (_Measured * (2 * self._ALGORITHMS))()
        operands = (x, image, w, filters, convolution, y, result)
        answer = (len(found), ctypes.byref(count), found, work, ctypes.c_size_t(nbytes))
        self.call("FindConvolutionForwardAlgorithmEx", self.value, *operands, *answer, what=what)
        usable = [
            f for f in found[: count.value] if not f.status and (f.math == self._FMA or not self._is_strict(what))
        ]
        if not usable:
            hint = "leave cudnn out of -libs"
            raise DeviceError(f"cuDNN has no algorithm on {self.gpu.device}", where=[str(what)], hint=hint)
        fastest = min(usable, key=lambda f: float(f.milliseconds))
        return Algorithm(fastest.algorithm, fastest.math, fastest.nbytes)

    def _most_bytes(self, x: Any, w: Any, convolution: Any, y: Any) -> int:
        """What the algorithms work in that take no more than they may."""
        size, sizes = ctypes.c_size_t(), [0]
        for number in range(self._ALGORITHMS):
            args = (self.value, x, w, convolution, y, number, ctypes.byref(size))
            if not self.library.cudnnGetConvolutionForwardWorkspaceSize(*args) and size.value <= self._MOST_BYTES:
                sizes.append(size.value)
        return max(sizes)

    def run(self, what: Convolution, *addresses: int) -> None:
        image, filters, result = map(ctypes.c_void_p, addresses)
        x, w, convolution, y = (found for _, found in self._descriptors[what])
        one, zero = _factors(what.dtype)
        how = (convolution, self._found[what].number, self._work, ctypes.c_size_t(self._bytes))
        self.call("ConvolutionForward", self.value, one, x, image, w, filters, *how, zero, y, result, what=what)

    def owned(self) -> list[tuple[str, Any]]:
        made = itertools.chain.from_iterable(self._descriptors.values())
        return [*((f"cudnnDestroy{kind}Descriptor", found) for kind, found in made), *super().owned()]


def _ints(values: Sequence[int]) -> Any:
    return (ctypes.c_int * len(values))(*values)


def handles(memory: CudaMemory, calls: Iterable[LibraryFunction]) -> dict[str, Handle]:
    """The handles of the libraries that are called, by name, ready to be captured."""
    distinct = set(calls)
    convolutions = [call for call in distinct if isinstance(call, Convolution)]
    found: dict[str, Handle] = {"cudnn": Dnn(memory, convolutions)} if convolutions else {}
    if len(convolutions) < len(distinct):
        found["cublas"] = Blas(memory)
    for call in distinct:
        found[call.library].warm(call)
    return found


class PreparedCall:
    """A call, of what the slots point to when it is made."""

    def __init__(self, handle: Handle, what: LibraryFunction, slots: int, entries: Sequence[int]) -> None:
        self._handle, self._what = handle, what
        self._slots = [ctypes.c_uint64.from_address(slots + 8 * entry) for entry in entries]

    def run(self, memory: CudaMemory) -> None:
        self._handle.run(self._what, *(slot.value for slot in self._slots))
