"""Arrays and device handles as TVM spells them, over numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minitvm.errors import InputError, stage
from minitvm.ir.types import TensorType
from minitvm.runtime.devices import HOST, Device, Memory, device_of, memory_of


def copied(value: Any) -> Any:
    """A value that shares no memory with this one: an array, a list of values, ``None``."""
    if isinstance(value, (list, dict)):
        return dict(value) if isinstance(value, dict) else list(map(copied, value))
    return value if value is None else np.array(value)


class Parameter(np.ndarray):
    """An array that has :class:`NDArray`'s calls as well: what parameters are, so that code for either works."""

    original: np.ndarray | None = None
    """The whole array that it shows."""

    @classmethod
    def of(cls, array: np.ndarray) -> Parameter:
        found = np.asarray(array).view(cls)
        found.original = array
        return found

    def numpy(self) -> np.ndarray:
        """A copy as a plain numpy array."""
        return np.array(self)

    asnumpy = numpy

    def copyto(self, target: NDArray | Device) -> NDArray:
        """Copies as :meth:`NDArray.copyto` does."""
        return NDArray(np.asarray(self)).copyto(target)


class NDArray:
    """An array on a device, with TVM's calls.  ``numpy()`` copies, so nothing outside shares its memory."""

    __slots__ = ("_data", "device")

    def __init__(self, data: Any, where: Device | None = None) -> None:
        """``data`` is numpy's, or a value of a device's memory."""
        self._data = data
        self.device = where or self._memory.device

    @property
    def _memory(self) -> Memory:
        found: Memory = HOST if isinstance(self._data, np.ndarray) else self._data.memory
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._data.shape)

    @property
    def dtype(self) -> str:
        return str(self._data.dtype.name)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @stage("reading an array")
    def numpy(self) -> np.ndarray:
        """A copy as a numpy array."""
        return np.array(self._data)

    asnumpy = numpy

    @stage("writing an array")
    def copyfrom(self, source: Any) -> NDArray:
        """Overwrite with ``source``, an array of the same shape; :class:`InputError` otherwise."""
        value = source._data if isinstance(source, NDArray) else source
        value = value if hasattr(value, "memory") else np.asarray(value)
        if isinstance(self._data, np.ndarray) and not self._data.flags.writeable:
            raise InputError("the array to copy into is read-only", hint="minitvm.nd.empty(shape, dtype) makes one")
        if value.shape != self.shape:
            raise InputError(
                f"cannot copy an array of shape {value.shape} into one of shape {self.shape}",
                hint="allocate the target with minitvm.nd.empty(shape, dtype) of the source's shape",
            )
        if self._memory.is_host or value.dtype != self._data.dtype:
            value = np.asarray(value).astype(self._data.dtype)
        self._memory.write(self._data, value)
        return self

    def copyto(self, target: NDArray | Device) -> NDArray:
        """Copy into ``target``, or into a new array on the device ``target``."""
        if isinstance(target, Device):
            return NDArray(memory_of(target).hold(self.numpy()), target)
        if not isinstance(target, NDArray):
            raise InputError(f"cannot copy into a {type(target).__name__}", hint="give an NDArray, or a device")
        return target.copyfrom(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._data, dtype, copy=True) if copy else np.asarray(self._data, dtype)

    def __dlpack__(self, **options: Any) -> Any:
        """A capsule over this memory; of a GPU's, what the stream given is handed next waits for what made it."""
        return self._data.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        number, index = self._data.__dlpack_device__()
        return int(number), int(index)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Of memory of a GPU (``AttributeError`` of the host's, as the interface wants it)."""
        found: dict[str, Any] = self._data.__cuda_array_interface__
        return found

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> NDArray:
        """What numpy gives for the index; of memory of a GPU, a copy on the host."""
        return NDArray(np.asarray(np.asarray(self._data)[index]))

    def __setitem__(self, index: Any, value: Any) -> None:
        """What numpy writes for the index; of memory of a GPU, all of it is copied there and back."""
        held = self.numpy()
        held[index] = np.asarray(value)
        self.copyfrom(held)

    def __repr__(self) -> str:
        return f"<minitvm.nd.NDArray shape={self.shape}, {self.device}>\n{np.asarray(self._data)!r}"


def array(value: Any, device: Device | None = None) -> NDArray:
    """A copy of an array-like value, on a device."""
    copy = np.array(value)
    return NDArray(copy if device is None else memory_of(device).hold(copy), device)


def empty(shape: int | Sequence[int], dtype: str = "float32", device: Device | None = None) -> NDArray:
    """A new array, contents undefined."""
    wanted = TensorType((shape,) if isinstance(shape, int) else tuple(shape), dtype)
    return NDArray(memory_of(device or HOST.device).empty(wanted.static_shape, wanted.dtype), device)


def from_dlpack(value: Any) -> NDArray:
    """An array of any library over the same memory, on the host or a GPU."""
    return NDArray(memory_of(device_of(value)).taken(value))
