"""What the simulated GPU is asked for, on a real one: compiled by NVRTC, loaded and launched by the driver.

After a fault nothing works in a process any more.  So kernels have one of their own, ``python -m simulated_gpu.real``,
which is replaced then, and where a launch does not end.  On the stand-in for the driver only the compiler is another.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import numpy as np

import simulated_gpu
from minitvm.codegen.cuda.backend import compile_cubin
from minitvm.errors import MiniTVMError
from minitvm.runtime.nvidia.code import Loaded, Prepared
from minitvm.runtime.nvidia.driver import gpu
from minitvm.runtime.nvidia.image import Launch, pack
from minitvm.runtime.nvidia.memory import CudaMemory
from simulated_gpu import device, host
from simulated_gpu.host import DeviceFault, host_image

ENDS = 60
"""Seconds within which a launch has to end."""
ZONE = 32 << 10
"""Bytes before and behind every array that nobody may store to."""
_UNIT, _ALIGN = 256, 16
_POISON = 0xFFF3
"""NaN as a float of any width; not the NaN that arithmetic gives."""


@dataclass(frozen=True)
class Asked:
    """A launch over one piece of memory, its arrays at these places; code where the process has not had it yet."""

    image: int
    code: bytes | None
    launch: Launch
    memory: np.ndarray
    places: Sequence[int]


def real_image(*sources: str, optimize: str = "") -> bytes:
    """In place of :func:`simulated_gpu.host.host_image`: what is launched is compiled when it is."""
    return pickle.dumps(sources)


class RealKernels:
    """In place of :class:`simulated_gpu.host.HostKernels`: the driver has the order of blocks and threads."""

    _made = 0

    def __init__(self, image: bytes) -> None:
        self._sources = pickle.loads(image)
        self._code: dict[int, tuple[int, bytes]] = {}

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
        """Run a kernel over arrays.

        Raises :class:`DeviceFault`: what the driver says, a store beside an array, counters that are not 0 again.
        """
        number, _, function = name.rpartition("/")
        given = [*arrays, np.zeros(counters, np.uint32)] if counters else [*arrays]
        memory, places = laid_out(given)
        launch = Launch(function, (*grid,), (*block,), dynamic, (*range(len(given)),))  # type: ignore[arg-type]
        found = process().run(*self._compiled(int(number or 0)), launch, memory, places)
        for n, (array, at) in enumerate(zip(given, places, strict=True)):
            whole, inside = slice(at - ZONE, at + array.nbytes + ZONE), slice(at, at + array.nbytes)
            array.reshape(-1).view(np.uint8)[...] = found[inside]
            found[inside] = memory[inside]
            for place in np.flatnonzero(found[whole] != memory[whole])[:1] - ZONE:
                raise DeviceFault(f"{name}: stored outside of argument {n}, {array.nbytes} bytes, at byte {place}")
        if counters and given[-1].any():
            raise DeviceFault(f"{name}: counters of arrivals are not 0 again")

    def _compiled(self, number: int) -> tuple[int, bytes]:
        """Machine code, and a number that no other has."""
        if number not in self._code:
            RealKernels._made += 1
            self._code[number] = (RealKernels._made, compiled(self._sources[number]))
        return self._code[number]


def compiled(source: str) -> bytes:
    if "STANDIN_ARCH" in os.environ:
        return host_image(source, optimize="-O0")
    return compile_cubin(source, process().arch).image


def laid_out(arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, list[int]]:
    """Memory of arrays with poisoned zones around them, on no larger boundaries than kernels may count on."""
    places, end = [], ZONE
    for array in arrays:
        places.append(end + _ALIGN)
        end = -(-(places[-1] + array.nbytes + ZONE) // _UNIT) * _UNIT
    memory = np.full(end // 2 + ZONE, _POISON, np.uint16).view(np.uint8)
    for array, at in zip(arrays, places, strict=True):
        assert array.flags.c_contiguous
        memory[at : at + array.nbytes] = array.reshape(-1).view(np.uint8)
    return memory, places


# --- the process that has the device --------------------------------------------------------------------------------


class Process:
    """One that loads and launches, until something faults in it."""

    def __init__(self) -> None:
        own, other = socket.socketpair()
        command = [sys.executable, "-m", "simulated_gpu.real", str(other.fileno())]
        self._process = subprocess.Popen(command, pass_fds=[other.fileno()])
        other.close()
        self._connection = Connection(own.detach())
        self._has: set[int] = set()
        self.arch: str = self._answer("the device is opened")

    def run(self, image: int, code: bytes, launch: Launch, memory: np.ndarray, places: Sequence[int]) -> np.ndarray:
        """The memory after a launch."""
        sent = None if image in self._has else code
        self._has.add(image)
        self._connection.send(Asked(image, sent, launch, memory, places))
        found: np.ndarray = self._answer(launch.function)
        return found

    def _answer(self, what: str) -> Any:
        try:
            ended = ("lost", f"does not end within {ENDS} seconds")
            status, value = self._connection.recv() if self._connection.poll(ENDS) else ended
        except (EOFError, OSError):
            status, value = "lost", "its process has ended"
        if status == "lost":
            self.end()
        if status != "done":
            raise DeviceFault(f"{what}: {value}")
        return value

    def end(self) -> None:
        global _process
        _process = None
        self._connection.close()
        self._process.kill()
        self._process.wait()


_process: Process | None = None


def process() -> Process:
    """The one that there is, or a new one."""
    global _process
    _process = _process or Process()
    return _process


def serve(connection: Connection) -> None:
    """Answer with the architecture, then each launch with its memory, or with what went wrong."""
    try:
        owner = gpu(0)
    except MiniTVMError as error:
        connection.send(("lost", str(error)))
        return
    connection.send(("done", owner.arch))
    memory, images = CudaMemory(owner), dict[int, bytes]()
    while True:
        try:
            asked: Asked = connection.recv()
        except EOFError:
            return
        if asked.code is not None:
            images[asked.image] = asked.code
        try:
            connection.send(("done", launched(memory, images[asked.image], asked)))
        except MiniTVMError as error:
            connection.send(("refused" if owner.lost is None else "lost", str(error)))


def launched(memory: CudaMemory, code: bytes, asked: Asked) -> np.ndarray:
    """As the runtime loads and launches what is in a library."""
    artifact: Any = SimpleNamespace(graph=SimpleNamespace(nodes=()), objects={"kernel": pack([asked.launch], code)})
    loaded = Loaded(memory.gpu, artifact)
    held = memory.hold(asked.memory)
    slots = (ctypes.c_uint64 * len(asked.places))(*(held.address + at for at in asked.places))
    ((launch, function),) = loaded.kernels["kernel"]
    one = Prepared(launch, function, ctypes.addressof(slots), range(len(slots)), 0, 0, launch.function)
    with memory.gpu:
        one.run(memory)
    return memory.read(held)


def use() -> None:
    """Let everything that is imported from now on and wants the simulated GPU have the real one."""
    for module in (simulated_gpu, host, device):
        vars(module).update(HostKernels=RealKernels, host_image=real_image)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
