"""Devices, and their memory: what values are there, and how they get there and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minitvm.doors import door
from minitvm.errors import InputError, TargetError
from minitvm.ir.arrays import address_of, aligned, aligned_empty
from minitvm.ir.types import Leaf
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
        """True if it can be used; what uses one that is not there says why."""
        try:
            return bool(memory_of(self))
        except TargetError:
            return False

    @property
    def device_type(self) -> int:
        """The kind as DLPack and TVM number it."""
        return next(number for number, kind in _KINDS.items() if kind == self.kind)

    @property
    def device_id(self) -> int:
        """``index``, as TVM calls it."""
        return self.index

    def sync(self) -> None:
        """Wait for all that runs on the device; a CPU run has finished when it returns."""
        memory_of(self).wait()


def cpu(index: int = 0) -> Device:
    return Device("cpu", index)


def cuda(index: int = 0) -> Device:
    """A GPU; no driver is asked for it yet."""
    return Device("cuda", index)


def device(target: str | Target = "cpu", index: int = 0) -> Device:
    """The device of a target or device name: ``device("llvm")``, ``device("cpu", 0)``.

    Raises :class:`TargetError` for a name that is neither.
    """
    name = str(target) or "cpu"
    return _DEVICES.get(name if name in _DEVICES else Target.parse(target).kind, cpu)(index)


_DEVICES = {"cpu": cpu, "cuda": cuda}
"""By name; code for targets of other names runs on the CPU."""


class Memory:
    """The host's memory; a device's has the same methods.

    What it holds are *values*: here numpy's arrays, on a device arrays there, of any class, that only it can look into.
    They have a ``shape`` and a ``dtype``, and ``numpy.asarray`` copies them to the host.
    """

    is_host = True
    """Whether values are arrays of the host, and kernels can work on any others where they are."""
    device = Device()

    def empty(self, shape: Sequence[int], dtype: str) -> Any:
        """A new value on a 64-byte boundary, its contents undefined."""
        return aligned_empty(shape, dtype)

    def hold(self, array: np.ndarray) -> Any:
        """A value like an array of the host; the array itself where kernels can read it there."""
        return aligned(array)

    def share(self, array: np.ndarray) -> Any:
        """Holds, as :meth:`hold` does, an array that nobody writes to any more: others may have the same value."""
        return self.hold(array)

    def view(self, value: Any, offset: int, type_: Leaf) -> Any:
        """The bytes of a value from ``offset`` on, as another one."""
        memory = value.reshape(-1).view(np.uint8)[offset : offset + type_.nbytes]
        return memory.view(type_.dtype).reshape(type_.static_shape)

    def address(self, value: Any) -> int:
        """The address at which kernels find it."""
        return address_of(value)

    def write(self, value: Any, source: Any) -> None:
        """Copy an array of the host, or a value, of the same dtype and shape into it."""
        value[...] = source

    def read(self, value: Any) -> np.ndarray:
        """The value as an array of the host, which may share its memory."""
        return np.asarray(value)

    def read_together(self, values: Sequence[Any]) -> list[np.ndarray]:
        """Several values as arrays of the host, by one wait."""
        return [self.read(value) for value in values]

    def is_aligned(self, value: Any) -> bool:
        """True if a value that somebody else gave begins where kernels can load vectors from."""
        return True

    def copy(self, value: Any) -> Any:
        """A value of its own."""
        return value.copy()

    def taken(self, array: Any) -> Any:
        """An array of another library on this device as a value over the same memory, whose contents are there."""
        return np.asarray(array)

    def wait(self) -> None:
        """Until all that was begun here has happened; raises what went wrong."""


HOST = Memory()


def memory_of(where: Device) -> Memory:
    """The memory in which a device keeps what its user keeps; :class:`TargetError` where there is no such device."""
    if where == HOST.device:
        return HOST
    if where.kind == "cpu":
        raise TargetError(f"there is no device {where}", hint="use minitvm.cpu(0)")
    return memory_above(where.index)


@door
def memory_above(index: int) -> Memory:
    """The memory of a GPU."""
    raise TargetError("this minitvm runs nothing on GPUs", hint="its room was taken out: install all of minitvm")


_KINDS = {1: "cpu", 2: "cuda", 3: "cpu", 13: "cuda"}
"""Of devices by DLPack's numbers: the host's memory may be pinned, and a GPU's managed."""


def device_of(value: Any) -> Device:
    """The device on which an array of any library lies; :class:`InputError` for devices that are no GPU of NVIDIA's."""
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack_device__"):
        return cuda() if hasattr(value, "__cuda_array_interface__") else HOST.device
    number, index = map(int, value.__dlpack_device__())
    if number not in _KINDS:
        raise InputError(f"an array is on a device that DLPack numbers {number}", hint="copy it to the host")
    return Device(_KINDS[number], index) if _KINDS[number] != "cpu" else HOST.device
