"""What runs an artefact, chosen by the kind of its target: code, and the memory of the device that it runs on."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from minitvm.errors import LibraryError
from minitvm.ir.arrays import aligned, aligned_empty
from minitvm.ir.types import Leaf
from minitvm.runtime.graph import Artifact, CpuTag, Segment

if TYPE_CHECKING:
    from minitvm.runtime.ndarray import Device


class Memory:
    """The host's memory; a device's has the same methods.

    What it holds are *values*: here numpy's arrays, on a device arrays there, of any class, that only it can look into.
    """

    is_host = True
    """Whether values are arrays of the host, and kernels can work on any others where they are."""

    def empty(self, shape: Sequence[int], dtype: str) -> Any:
        """A new value on a 64-byte boundary, its contents undefined."""
        return aligned_empty(shape, dtype)

    def hold(self, array: np.ndarray) -> Any:
        """A value like an array of the host; the array itself where kernels can read it there."""
        return aligned(array)

    def view(self, value: Any, offset: int, type_: Leaf) -> Any:
        """The bytes of a value from ``offset`` on, as another one."""
        memory = value.reshape(-1).view(np.uint8)[offset : offset + type_.nbytes]
        return memory.view(type_.dtype).reshape(type_.static_shape)

    def address(self, value: Any) -> int:
        """Where kernels find it."""
        return int(value.ctypes.data)

    def write(self, value: Any, array: np.ndarray) -> None:
        """Copy an array of the same dtype and shape into it."""
        value[...] = array

    def read(self, value: Any) -> np.ndarray:
        """As an array of the host, which may share its memory."""
        return np.asarray(value)


class Code(Protocol):
    """An artefact's code, ready to run.  May be shared by threads."""

    memory: Memory
    most_threads: int
    """That it can make use of."""
    device_kind: str = "cpu"
    """Of the devices that it runs on; the first one where nobody chooses."""

    def __init__(self, artifact: Artifact) -> None: ...

    @staticmethod
    def check(made_for: CpuTag, name: str) -> None:
        """:class:`LibraryError` where this machine cannot run code made for that one; ``name`` is the library's."""

    def on(self, device: Device) -> Code:
        """What runs on a device: one for each instance.  :class:`TargetError` where it cannot."""
        return self

    def step(self, what: Segment | int, slots: int, threads: int) -> Callable[[], None]:
        """Runs a segment of kernels, or one kernel node alone.

        ``slots`` is the address of pointers in the host's memory: one per entry of the graph, where its value is now,
        then one per kernel node's workspace (:func:`workspace_slots`).
        """


CODES: dict[str, type[Code]] = {}
"""By kind of target; minitvm's own as soon as they are asked for."""

_HOMES = {"llvm": "native", "interp": "interpreter", "cuda": "cuda"}
"""The modules beside this one that hold them."""


def code_for(target: str) -> type[Code]:
    """What runs code made for a target; :class:`LibraryError` where nothing here does."""
    kind = target.partition(" ")[0]
    if kind not in CODES and kind in _HOMES:
        importlib.import_module(f"minitvm.runtime.{_HOMES[kind]}")
    if kind not in CODES:
        known = ", ".join(sorted({*CODES, *_HOMES}))
        raise LibraryError(f"nothing here runs code for target {target!r}", hint=f"this minitvm runs code for {known}")
    return CODES[kind]
