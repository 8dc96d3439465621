"""Memory of a GPU: arrays there, in the order of one stream."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from minitvm.errors import InputError
from minitvm.ir.types import Leaf
from minitvm.runtime.devices import Memory
from minitvm.runtime.nvidia import exchange
from minitvm.runtime.nvidia.driver import LEGACY_STREAM, Gpu, gpu

_NOBODY = -1
"""DLPack's stream of who does not wait; the others it numbers as the driver does."""
VECTOR_BYTES = 16
"""What kernels load at once, from multiples of it only."""


class Held:
    """Memory that streams work on: it is free when all of them have come to what they were given last."""

    def __init__(self, memory: CudaMemory) -> None:
        self.memory = memory
        self.own: set[int] = set()
        """Our streams beside its memory's."""
        self.others: set[int] = set()
        """Streams of other libraries."""

    def users(self) -> set[int]:
        """Streams that may still work on it: one of ours that is no more had ended its work before."""
        return (self.own & self.memory.gpu.streams) | self.others


class Block(Held):
    """Bytes that the driver gave; given back when nobody has an array there any more."""

    def __init__(self, memory: CudaMemory, nbytes: int) -> None:
        super().__init__(memory)
        self.address = 0
        owner, doing = memory.gpu, f"{nbytes:,} bytes are asked for"
        owner.sweep()
        with owner:
            if owner.pool is None:
                self.address = int(owner.call("cuMemAlloc", max(1, nbytes), doing=doing))
            else:
                args = (max(1, nbytes), owner.pool, memory.stream)
                self.address = int(owner.call("cuMemAllocFromPoolAsync", *args, doing=doing))

    def __del__(self) -> None:
        if self.address:
            owner, stream = self.memory.gpu, self.memory.stream
            others = self.users() - {stream and int(stream)}
            owner.free(partial(_given_back, owner, self.address, None if stream is None else int(stream), others))


def _given_back(owner: Gpu, address: int, stream: int | None, others: set[int]) -> bool:
    """Whether memory could be given back; it is not while anybody may work on it."""
    stream = stream if stream in owner.streams else None  # else all that it was given has happened
    if owner.pool is None:
        if owner.follows(None, others | ({stream} if stream else set())):
            owner.driver.cuMemFree(address)
            return True
        return False
    if not owner.follows(stream or 0, others):
        return False
    owner.driver.cuMemFreeAsync(address, stream or 0)
    return True


class Borrowed(Held):
    """Memory of another library's; that is told when nobody here works on it any more."""

    def __init__(self, memory: CudaMemory, owner: Any) -> None:
        super().__init__(memory)
        self._owner = [owner]

    def __del__(self) -> None:
        owner, stream = self.memory.gpu, self.memory.stream
        streams = self.users() | ({int(stream)} if stream is not None else set())
        owner.free(partial(_told, owner, self._owner, streams))


def _told(gpu: Gpu, owner: list[Any], streams: set[int]) -> bool:
    """Whether all streams have ended their work; the owner is let go then."""
    if not gpu.follows(None, streams & gpu.streams):
        return False
    owner.clear()
    return True


class DeviceArray:
    """An array on a GPU, row-major.  ``owner`` keeps its memory alive."""

    __slots__ = ("address", "dtype", "memory", "owner", "shape")

    def __init__(self, memory: CudaMemory, owner: Any, address: int, shape: Sequence[int], dtype: Any) -> None:
        self.memory, self.owner, self.address = memory, owner, address
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * int(self.dtype.itemsize)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.memory.read(self), dtype)

    def copy(self) -> DeviceArray:
        return self.memory.copy(self)

    # --- for other libraries ---

    def __dlpack_device__(self) -> tuple[int, int]:
        return exchange.CUDA, self.memory.device.index

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """What is given to ``stream`` next waits for what made this; ``None`` is the default stream, -1 for nobody."""
        if dl_device not in (None, self.__dlpack_device__()):
            raise BufferError(f"the array is on {self.memory.device}: copy it to the host with numpy()")
        value = self.copy() if copy else self
        value.used_by_others(LEGACY_STREAM if stream in (None, _NOBODY) else stream)
        if stream != _NOBODY:
            with self.memory.gpu:
                self.memory.follow(self.memory.stream, stream or LEGACY_STREAM)
        versioned = max_version is not None and tuple(max_version) >= (1, 0)
        index = self.memory.device.index
        return exchange.capsule(value, value.address, value.shape, value.dtype, index, versioned)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3 (Numba's documentation); what reads it has to wait for ``stream``."""
        self.used_by_others(LEGACY_STREAM)
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "version": 3,
            "strides": None,
            "stream": int(self.memory.stream),
        }

    def used_by(self, memory: CudaMemory) -> None:
        """The stream of another memory of ours works on it from now on, too."""
        self.owner.own.add(int(memory.stream))

    def used_by_others(self, stream: int) -> None:
        """Another library does, in a stream of its own; who keeps its pointer, keeps this until its work has ended."""
        self.owner.others.add(stream or LEGACY_STREAM)


class CudaMemory(Memory):
    """What happens in it, happens in the order of its stream; every instance has one."""

    is_host = False

    def __init__(self, owner: Gpu) -> None:
        self.gpu, self.device, self.stream = owner, owner.device, owner.stream()
        self.running = ""
        """The kernel that runs alone, for errors."""
        self.lock = threading.RLock()
        """Held while its stream is captured, and by what puts copies into it."""

    def __del__(self) -> None:
        if getattr(self, "stream", None) is not None:
            self.gpu.free(partial(_ended, self.gpu, int(self.stream)))
            self.stream = None  # for what is collected together with it, and later

    def empty(self, shape: Sequence[int], dtype: str) -> DeviceArray:
        found = DeviceArray(self, None, 0, shape, dtype)
        found.owner = block = Block(self, found.nbytes)
        found.address = block.address
        return found

    def hold(self, array: np.ndarray) -> DeviceArray:
        value = self.empty(array.shape, array.dtype.name)
        self.write(value, array)
        return value

    def view(self, value: DeviceArray, offset: int, type_: Leaf) -> DeviceArray:
        return DeviceArray(self, value.owner, value.address + offset, type_.static_shape, type_.dtype)

    def address(self, value: DeviceArray) -> int:
        return value.address

    def write(self, value: DeviceArray, source: Any) -> None:
        if not value.size:
            return
        with self.gpu, self.lock:
            if isinstance(source, DeviceArray):
                self.after(source)
                self.gpu.call("cuMemcpyDtoDAsync", value.address, source.address, value.nbytes, self.stream)
            else:
                array = np.ascontiguousarray(source, value.dtype)
                self.gpu.call("cuMemcpyHtoDAsync", value.address, array.ctypes.data, array.nbytes, self.stream)
                if self._is_pinned(array.ctypes.data):  # else the driver has its own copy
                    self.gpu.call("cuStreamSynchronize", self.stream, where=self.where())

    def _is_pinned(self, address: int) -> bool:
        """True if the driver knows memory of the host: it reads that when the stream comes to it, and the host may
        change it as soon as a copy returns."""
        kind = self.gpu.driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        status, found = self.gpu.driver.cuPointerGetAttribute(kind, address)
        return not status and bool(int(found))

    def read(self, value: DeviceArray) -> np.ndarray:
        found = np.empty(value.shape, value.dtype)
        if value.size:
            with self.gpu, self.lock:
                if value.memory is not self:
                    self.after(value)
                args = (found.ctypes.data, value.address, found.nbytes, self.stream)
                self.gpu.call("cuMemcpyDtoHAsync", *args, where=self.where())
        self.wait()
        return found

    def read_together(self, values: Sequence[DeviceArray]) -> list[np.ndarray]:
        """Gathered on the device: one copy to the host, one wait."""
        if len(values) < 2:
            return [self.read(value) for value in values]
        ends = np.cumsum([value.nbytes for value in values])
        all_ = self.empty((int(ends[-1]),), "uint8")
        for value, end in zip(values, ends, strict=True):
            start = int(end) - value.nbytes
            self.write(DeviceArray(self, all_.owner, all_.address + start, value.shape, value.dtype), value)
        parts = np.split(self.read(all_), ends[:-1])
        return [part.view(v.dtype).reshape(v.shape) for part, v in zip(parts, values, strict=True)]

    def is_aligned(self, value: DeviceArray) -> bool:
        return not value.size or value.address % VECTOR_BYTES == 0

    def copy(self, value: DeviceArray) -> DeviceArray:
        found = self.empty(value.shape, value.dtype.name)
        self.write(found, value)
        return found

    def after(self, value: DeviceArray) -> None:
        """What comes next in this stream waits for what was begun in the value's."""
        if value.memory is not self:
            self.gpu.require()
            if value.memory.stream is not None:
                self.follow(value.memory.stream)
            value.used_by(self)

    def follow(self, stream: Any, follower: Any = None) -> None:
        """What comes next in this stream, or in ``follower``, waits for what another stream was given so far."""
        with self.gpu.ordering:
            event = self.gpu.mark(stream)
            try:
                self.gpu.call("cuStreamWaitEvent", self.stream if follower is None else follower, event, 0)
            finally:
                self.gpu.driver.cuEventDestroy(event)

    def taken(self, array: Any) -> DeviceArray:
        found = getattr(array, "_data", array)
        if isinstance(found, DeviceArray):
            with self.gpu:
                self.after(found)
            return found
        return self._from_dlpack(array) if hasattr(array, "__dlpack__") else self._from_interface(array)

    def _from_dlpack(self, array: Any) -> DeviceArray:
        try:
            capsule = array.__dlpack__(stream=int(self.stream), max_version=(1, 0))
        except TypeError:  # from before DLPack 1.0
            capsule = array.__dlpack__(stream=int(self.stream))
        found = exchange.taken(capsule)
        _require_row_major(found.shape, found.strides, 1)
        return DeviceArray(self, Borrowed(self, found), found.address, found.shape, found.dtype)

    def _from_interface(self, array: Any) -> DeviceArray:
        found = array.__cuda_array_interface__
        dtype = np.dtype(found["typestr"])
        _require_row_major(found["shape"], found.get("strides"), dtype.itemsize)
        if found.get("stream") is not None:
            with self.gpu:
                self.follow(found["stream"])
        return DeviceArray(self, Borrowed(self, array), found["data"][0] or 0, found["shape"], dtype)

    def wait(self) -> None:
        with self.gpu:
            self.gpu.call("cuStreamSynchronize", self.stream, where=self.where())

    def where(self) -> list[str]:
        return [f"kernel {self.running}"] if self.running else []


def _ended(gpu: Gpu, stream: int) -> bool:
    """Whether a stream has come to its end and is gone."""
    if gpu.succeeds("cuStreamSynchronize", stream):
        gpu.streams.discard(stream)
        gpu.driver.cuStreamDestroy(stream)
        return True
    return False


def _require_row_major(shape: Sequence[int], strides: Sequence[int] | None, unit: int) -> None:
    if not exchange.is_row_major(shape, strides, unit):
        raise InputError(
            f"an array of shape {tuple(shape)} has strides {tuple(strides or ())}, kernels read row-major ones",
            hint="make it so: torch's x.contiguous(), cupy.ascontiguousarray(x)",
        )


class _Common(CudaMemory):
    """The place where users' arrays are: they wait for the whole device."""

    def wait(self) -> None:
        self.gpu.wait()


_common: dict[int, CudaMemory] = {}
_lock = threading.Lock()


def memory_of(index: int) -> CudaMemory:
    """The memory of a GPU in which its user keeps arrays."""
    owner = gpu(index)
    with _lock:
        found = _common.get(index)
        if found is None or found.gpu is not owner:
            found = _common[index] = _Common(owner)
        return found
