"""Memory of a GPU: arrays there, in the order of one stream."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from minitvm.errors import InputError
from minitvm.ir.types import Leaf
from minitvm.runtime.devices import Memory
from minitvm.runtime.nvidia import exchange
from minitvm.runtime.nvidia.driver import Gpu, gpu

_DEFAULT_STREAM, _NOBODY = 1, -1
"""Streams as DLPack numbers them."""


class Block:
    """Bytes that the driver gave; given back when nobody has an array there any more."""

    def __init__(self, memory: CudaMemory, nbytes: int) -> None:
        self.memory, self.address = memory, 0
        owner, doing = memory.gpu, f"{nbytes:,} bytes are asked for"
        self.is_given_out = False
        """Whether other streams than its own may work on it."""
        with owner:
            if owner.pool is None:
                self.address = int(owner.call("cuMemAlloc", max(1, nbytes), doing=doing))
            else:
                args = (max(1, nbytes), owner.pool, memory.stream)
                self.address = int(owner.call("cuMemAllocFromPoolAsync", *args, doing=doing))

    def __del__(self) -> None:
        owner, stream = self.memory.gpu, self.memory.stream
        with owner.while_there() as there:
            if not there or not self.address:
                return
            if self.is_given_out or stream is None:
                owner.driver.cuCtxSynchronize()
            if owner.pool is None:
                owner.driver.cuMemFree(self.address)
            else:
                owner.driver.cuMemFreeAsync(self.address, stream or 0)


class Borrowed:
    """Memory of another library's; that is told when nobody here works on it any more."""

    def __init__(self, memory: CudaMemory, owner: Any) -> None:
        self._memory, self._owner = memory, owner

    def __del__(self) -> None:
        with self._memory.gpu.while_there() as there:
            if there:
                self._memory.gpu.driver.cuCtxSynchronize()


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
        value.give_out()
        if stream != _NOBODY:
            with self.memory.gpu:
                self.memory.follow(self.memory.stream, stream or _DEFAULT_STREAM)
        versioned = max_version is not None and tuple(max_version) >= (1, 0)
        index = self.memory.device.index
        return exchange.capsule(value, value.address, value.shape, value.dtype, index, versioned)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3 (Numba's documentation); what reads it has to wait for ``stream``."""
        self.give_out()
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "version": 3,
            "strides": None,
            "stream": int(self.memory.stream),
        }

    def give_out(self) -> None:
        """Others may work on its memory from now on, in streams of their own: it is free when all have done."""
        if isinstance(self.owner, Block):
            self.owner.is_given_out = True


class CudaMemory(Memory):
    """What happens in it, happens in the order of its stream; every instance has one."""

    is_host = False

    def __init__(self, owner: Gpu) -> None:
        self.gpu, self.device, self.stream = owner, owner.device, owner.stream()
        self.running = ""
        """The kernel that runs alone, for errors."""
        self._event: Any = None
        self._ordering = threading.Lock()

    def __del__(self) -> None:
        if getattr(self, "stream", None) is not None:
            with self.gpu.while_there() as there:
                if there:
                    self.gpu.driver.cuStreamDestroy(self.stream)
                if there and self._event is not None:
                    self.gpu.driver.cuEventDestroy(self._event)
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
        with self.gpu:
            if isinstance(source, DeviceArray):
                self.after(source)
                self.gpu.call("cuMemcpyDtoDAsync", value.address, source.address, value.nbytes, self.stream)
            else:  # what the host may change again when this returns
                array = np.ascontiguousarray(source, value.dtype)
                self.gpu.call("cuMemcpyHtoDAsync", value.address, array.ctypes.data, array.nbytes, self.stream)

    def read(self, value: DeviceArray) -> np.ndarray:
        found = np.empty(value.shape, value.dtype)
        if value.size:
            with self.gpu:
                if value.memory is not self:
                    self.after(value)
                args = (found.ctypes.data, value.address, found.nbytes, self.stream)
                self.gpu.call("cuMemcpyDtoHAsync", *args, where=self.where())
        self.wait()
        return found

    def copy(self, value: DeviceArray) -> DeviceArray:
        found = self.empty(value.shape, value.dtype.name)
        self.write(found, value)
        return found

    def after(self, value: DeviceArray) -> None:
        """What comes next in this stream waits for what was begun in the value's."""
        if value.memory is not self:
            self.gpu.require()
            self.follow(value.memory.stream)
            value.give_out()

    def follow(self, stream: Any, follower: Any = None) -> None:
        """What comes next in this stream, or in ``follower``, waits for what another stream was given so far."""
        call = self.gpu.call
        with self._ordering:
            if self._event is None:
                self._event = call("cuEventCreate", int(self.gpu.driver.CUevent_flags.CU_EVENT_DISABLE_TIMING))
            call("cuEventRecord", self._event, stream)
            call("cuStreamWaitEvent", self.stream if follower is None else follower, self._event, 0)

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
