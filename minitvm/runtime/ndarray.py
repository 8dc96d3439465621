"""Arrays and device handles as TVM spells them, over numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minitvm.errors import InputError
from minitvm.ir.arrays import aligned_empty
from minitvm.ir.types import TensorType
from minitvm.target import Target


@dataclass(frozen=True)
class Device:
    """A place that arrays live on and models run on; prints as ``cpu(0)``."""

    kind: str = "cpu"
    index: int = 0

    def __str__(self) -> str:
        return f"{self.kind}({self.index})"

    @property
    def exist(self) -> bool:
        return self.kind == "cpu" and self.index == 0

    def sync(self) -> None:
        """Wait for the device; a CPU run has finished when it returns."""


def cpu(index: int = 0) -> Device:
    return Device("cpu", index)


def cuda(index: int = 0) -> Device:
    """A GPU; whether it is there says ``exist``, and what runs on it or puts an array there."""
    return Device("cuda", index)


def device(target: str | Target = "cpu", index: int = 0) -> Device:
    """The device of a target or device name: ``device("llvm")``, ``device("cpu", 0)``.

    Raises :class:`TargetError` for a name that is neither.
    """
    name = str(target) or "cpu"
    return _DEVICES.get(name if name in _DEVICES else Target.parse(target).kind, cpu)(index)


_DEVICES = {"cpu": cpu, "cuda": cuda}
"""By name; code for targets of other names runs on the CPU."""


def copied(value: Any) -> Any:
    """A value that shares no memory with this one: an array, a list of values, ``None``."""
    if isinstance(value, (list, dict)):
        return dict(value) if isinstance(value, dict) else list(map(copied, value))
    return value if value is None else np.array(value)


class NDArray:
    """An array on a device, with TVM's calls.  ``numpy()`` copies, so nothing outside shares its memory."""

    __slots__ = ("_data", "device")

    def __init__(self, data: np.ndarray, where: Device | None = None) -> None:
        self._data: np.ndarray = data
        self.device = where or cpu()

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._data.shape)

    @property
    def dtype(self) -> str:
        return str(self._data.dtype.name)

    @property
    def ndim(self) -> int:
        return self._data.ndim

    def numpy(self) -> np.ndarray:
        """A copy as a numpy array."""
        return np.array(self._data)

    asnumpy = numpy

    def copyfrom(self, source: Any) -> NDArray:
        """Overwrite with ``source``, an array of the same shape; :class:`InputError` otherwise."""
        value = np.asarray(source)
        if not self._data.flags.writeable:
            raise InputError("the array to copy into is read-only", hint="minitvm.nd.empty(shape, dtype) makes one")
        if value.shape != self.shape:
            raise InputError(
                f"cannot copy an array of shape {value.shape} into one of shape {self.shape}",
                hint="allocate the target with minitvm.nd.empty(shape, dtype) of the source's shape",
            )
        self._data[...] = value
        return self

    def copyto(self, target: NDArray | Device) -> NDArray:
        """Copy into ``target``, or into a new array on the device ``target``."""
        if isinstance(target, Device):
            return NDArray(self.numpy(), target)
        if not isinstance(target, NDArray):
            raise InputError(f"cannot copy into a {type(target).__name__}", hint="give an NDArray, or a device")
        return target.copyfrom(self._data)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._data, dtype, copy=True) if copy else np.asarray(self._data, dtype)

    def __dlpack__(self, **options: Any) -> Any:
        return self._data.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, self.device.index)

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: Any) -> NDArray:
        return NDArray(np.asarray(self._data[index]), self.device)

    def __repr__(self) -> str:
        return f"<minitvm.nd.NDArray shape={self.shape}, {self.device}>\n{self._data!r}"


def array(value: Any, where: Device | None = None) -> NDArray:
    """A copy of an array-like value."""
    return NDArray(np.array(value), where)


def empty(shape: int | Sequence[int], dtype: str = "float32", where: Device | None = None) -> NDArray:
    """A new array, contents undefined."""
    wanted = TensorType((shape,) if isinstance(shape, int) else tuple(shape), dtype)
    return NDArray(aligned_empty(wanted.static_shape, wanted.dtype), where)
