"""The driver, through cuda-bindings: calls that say what went wrong, and a GPU with its primary context.

The primary context is the one that PyTorch, CuPy, cuBLAS and cuDNN use, too.
"""

from __future__ import annotations

import functools
import importlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from minitvm.errors import DeviceError, LibraryError, TargetError
from minitvm.runtime.devices import Device

OLDEST_DRIVER, OLDEST_GPU = 12_000, (7, 5)
"""The CUDA version that a driver must be for, thousands and tens; the least compute capability that NVRTC knows."""
_POOL_KEEPS = 64 << 20
"""Bytes that a pool does not give back to the driver when they are free."""
LEGACY_STREAM = 1
"""The stream that other libraries use where they are told nothing else."""
_OUT_OF_MEMORY = 2
_NOT_FOR_IT = frozenset({200, 209, 218, 222, 300})
"""What is said of code that the driver cannot load."""
_BROKEN = frozenset({201, 214, 220, 700, 702, 709, 710, *range(714, 720), 721, 999})
"""After these nothing works in the context any more."""
_UPDATE = "update NVIDIA's driver, https://www.nvidia.com/drivers"


@functools.cache
def bindings() -> Any:
    """cuda-bindings' driver, ready; :class:`TargetError` where it is not installed, or there is no driver for it."""
    try:
        driver = importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise TargetError(
            "cuda-bindings is not installed, so no GPU can be used", hint="pip install cuda-bindings nvidia-cuda-nvrtc"
        ) from error
    try:
        (status,) = driver.cuInit(0)
        _, version = driver.cuDriverGetVersion()
    except RuntimeError as error:
        raise TargetError(
            "there is no NVIDIA driver on this machine, so no GPU can be used",
            where=[str(error)],
            hint="install NVIDIA's driver (it brings libcuda.so.1); libraries are built and saved without one",
        ) from error
    if status:
        text = _text(driver, status)
        raise TargetError(f"NVIDIA's driver finds no GPU that it can use: {text}", hint="nvidia-smi lists the GPUs")
    if version < OLDEST_DRIVER:
        raise TargetError(
            f"NVIDIA's driver is too old: it is for CUDA {_version(version)}, CUDA {_version(OLDEST_DRIVER)} is needed",
            hint=_UPDATE,
        )
    return driver


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _text(driver: Any, status: Any) -> str:
    """What the driver calls an error, and says of it."""
    name, says = (f(status)[1] for f in (driver.cuGetErrorName, driver.cuGetErrorString))
    return f"{says.decode()} ({name.decode()})" if name and says else f"error {int(status)}"


class Gpu:
    """A GPU with its primary context.  May be shared by threads.

    ``with gpu`` makes the context this thread's, and gives back the one before.  After a kernel has faulted, nothing
    works in the context any more: ``lost`` says why, and :func:`gpu` makes a new one.
    """

    def __init__(self, index: int) -> None:
        self.driver = driver = bindings()
        self.device = Device("cuda", index)
        self.lost: DeviceError | None = None
        self.streams: set[int] = set()
        """Those of ours that there are."""
        self.ordering = threading.RLock()
        """Held while a stream is captured, and by what puts work of one stream behind work of another."""
        self._captures = 0
        self._to_free: deque[Callable[[], bool]] = deque()
        count = self.call("cuDeviceGetCount")
        if not 0 <= index < count:
            raise TargetError(
                f"there is no device {self.device}: this machine has {count} GPU{'s' * (count != 1)}",
                hint="use minitvm.cuda(0), or minitvm.cpu(0)",
            )
        self.handle = self.call("cuDeviceGet", index)
        self.name = self.call("cuDeviceGetName", 256, self.handle).split(b"\0")[0].decode()
        of = driver.CUdevice_attribute
        self.capability = (
            self.attribute(of.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            self.attribute(of.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        )
        if self.capability < OLDEST_GPU:
            raise TargetError(
                f"{self} is not supported: its compute capability is {_dotted(self.capability)}, "
                f"{_dotted(OLDEST_GPU)} is needed",
                hint="compile the model for the CPU: target='llvm'",
            )
        self.context = self.call("cuDevicePrimaryCtxRetain", self.handle)
        self.pool = self._pool() if self.attribute(of.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED) else None

    def attribute(self, which: Any) -> int:
        return int(self.call("cuDeviceGetAttribute", which, self.handle))

    def _pool(self) -> Any:
        """Memory for what is given out, in the order of streams."""
        driver = self.driver
        props = driver.CUmemPoolProps()
        props.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        props.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        props.location.id = self.device.index
        with self:
            pool = self.call("cuMemPoolCreate", props)
            keeps = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
            self.call("cuMemPoolSetAttribute", pool, keeps, driver.cuuint64_t(_POOL_KEEPS))
        return pool

    @property
    def memory_bytes(self) -> float:
        """The bytes a second of its memory: two transfers of the bus a cycle.  Cards of one architecture differ."""
        of = self.driver.CUdevice_attribute
        kilohertz = self.attribute(of.CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)
        return 2e3 * kilohertz * self.attribute(of.CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH) / 8

    @property
    def sms(self) -> int:
        return self.attribute(self.driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)

    @property
    def arch(self) -> str:
        return "sm_{}{}".format(*self.capability)

    def __str__(self) -> str:
        return f"GPU {self.device.index} ({self.name})"

    def __enter__(self) -> Gpu:
        self.require()
        self.enter()
        return self

    def enter(self) -> None:
        """Make the context this thread's."""
        (status,) = self.driver.cuCtxPushCurrent(self.context)
        if status:  # another library has reset the GPU
            self.fail(status, "cuCtxPushCurrent")

    def __exit__(self, *_: object) -> None:
        self.driver.cuCtxPopCurrent()

    def require(self) -> None:
        """:class:`DeviceError` where what was here is gone."""
        if self.lost is not None:
            raise DeviceError(
                f"the memory of this module on {self.device} is gone, since a kernel failed there",
                where=[self.lost.message],
                hint='make a new one: library["default"](device)',
            )

    def call(self, name: str, *args: Any, doing: str = "", where: Sequence[str] = ()) -> Any:
        """A function of the driver; ``doing`` says in an error what it was for, ``where`` for whom."""
        try:
            status, *values = getattr(self.driver, name)(*args)
        except RuntimeError as error:  # a function that the driver does not have
            raise TargetError(
                f"NVIDIA's driver is too old: it has no {name}", where=[str(error)], hint=_UPDATE
            ) from error
        if status:
            self.fail(status, doing or name, where)
        return values[0] if len(values) == 1 else tuple(values) or None

    def fail(self, status: Any, doing: str, where: Sequence[str] = ()) -> None:
        """Raise what a status means."""
        text, code = _text(self.driver, status), int(status)
        if code == _OUT_OF_MEMORY:
            hint = "use a smaller batch, let go of modules and arrays, or end other processes on the GPU"
            raise DeviceError(
                f"{self.device} is out of memory: {doing}", where=[*self._memory_left(), *where], hint=hint
            )
        if code in _NOT_FOR_IT:
            hint = f"{_UPDATE}; or compile with an nvidia-cuda-nvrtc as old as the driver"
            raise LibraryError(f"the driver of {self} cannot load the library's code: {text}", where=where, hint=hint)
        if code in _BROKEN:
            hint = "GraphModuleDebug runs kernel by kernel and names it; a new module works, on a new context"
            self.lost = DeviceError(f"a kernel failed on {self.device}: {text}", where=where, hint=hint)
            raise self.lost
        raise DeviceError(f"{self.device} fails: {text}", where=[f"while: {doing}", *where])

    def _memory_left(self) -> list[str]:
        status, *free = self.driver.cuMemGetInfo()
        return [] if status else ["{:,} of {:,} bytes are free".format(*free)]

    def stream(self) -> Any:
        with self:
            found = self.call("cuStreamCreate", int(self.driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
        self.streams.add(int(found))
        return found

    def wait(self) -> None:
        """Waits for all of our streams, and for the one that others use by default.

        By events: to wait for the context would break the captures of other threads and libraries.
        """
        with self:
            with self.ordering:
                events = [self.mark(stream) for stream in (LEGACY_STREAM, *self.streams)]
            for event in events:
                self.call("cuEventSynchronize", event)
                self.call("cuEventDestroy", event)
        self.sweep()

    def mark(self, stream: Any) -> Any:
        """An event behind what a stream was given so far."""
        event = self.call("cuEventCreate", int(self.driver.CUevent_flags.CU_EVENT_DISABLE_TIMING))
        self.call("cuEventRecord", event, stream)
        return event

    # --- giving back ---

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """While a stream is captured nothing is freed, whatever is collected meanwhile: that would become part of the
        graph, or break it."""
        with self.ordering:
            self._captures += 1
            try:
                yield
            finally:
                self._captures -= 1
        self.sweep()

    def free(self, work: Callable[[], bool]) -> None:
        """Do what frees something, now or when that is possible; it says whether it could, else it is tried again.

        For ``__del__``, which may run anywhere, also where this thread holds a lock: it never waits for one.
        """
        self._to_free.append(work)
        self.sweep()

    def sweep(self) -> None:
        """Frees what waits for that, unless something is captured or another thread is at it."""
        if not self._to_free or not self.ordering.acquire(blocking=False):
            return
        try:
            if not self._captures:
                self._freed()
        finally:
            self.ordering.release()

    def _freed(self) -> None:
        if self.lost is not None:
            self._to_free.clear()  # it went with the context
        elif not self.driver.cuCtxPushCurrent(self.context)[0]:
            try:
                waiting = [self._to_free.popleft() for _ in range(len(self._to_free))]
                self._to_free.extend(work for work in waiting if not work())
            finally:
                self.driver.cuCtxPopCurrent()

    def succeeds(self, name: str, *args: Any) -> bool:
        """True if a call that frees, or that has to come before, did what it should."""
        return not getattr(self.driver, name)(*args)[0]

    def follows(self, follower: Any, streams: Iterable[int]) -> bool:
        """Let a stream, or the caller where it is ``None``, wait for what others were given; false where that cannot
        be, as while one of them is captured."""
        none = self.driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
        for stream in streams:
            status, captured = self.driver.cuStreamIsCapturing(stream)
            if status or captured != none:
                return False
            status, event = self.driver.cuEventCreate(int(self.driver.CUevent_flags.CU_EVENT_DISABLE_TIMING))
            if status:
                return False
            waits = ("cuEventSynchronize", event) if follower is None else ("cuStreamWaitEvent", follower, event, 0)
            done = self.succeeds("cuEventRecord", event, stream) and self.succeeds(*waits)
            self.driver.cuEventDestroy(event)
            if not done:
                return False
        return True


def _dotted(capability: tuple[int, int]) -> str:
    return "{}.{}".format(*capability)


_gpus: dict[int, Gpu] = {}
_lock = threading.Lock()


def gpu(index: int) -> Gpu:
    """A GPU of this machine; :class:`TargetError` where it is not there, or not to be used."""
    with _lock:
        found = _gpus.get(index)
        if found is not None and found.lost is None:
            return found
        if found is not None:
            found.driver.cuDevicePrimaryCtxReset(found.handle)
            del _gpus[index]
        _gpus[index] = Gpu(index)
        return _gpus[index]


def present_arch() -> str | None:
    """The architecture of the first GPU; ``None`` where there is none."""
    try:
        return gpu(0).arch
    except TargetError:
        return None
