"""Images on a GPU: modules that all instances share, and for each instance a stream and its graphs."""

from __future__ import annotations

import ctypes
import itertools
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from minitvm.errors import LibraryError, TargetError
from minitvm.runtime.code import CODES, Code
from minitvm.runtime.devices import Device
from minitvm.runtime.graph import Artifact, CpuTag, LibraryCall, Segment, stop_slot, workspace_slots
from minitvm.runtime.nvidia.driver import Gpu, gpu
from minitvm.runtime.nvidia.image import Launch, unpack
from minitvm.runtime.nvidia.libraries import PreparedCall, call_of, handles
from minitvm.runtime.nvidia.memory import CudaMemory, DeviceArray
from minitvm.runtime.timing import Run

_GRAPHS = 4
"""Of a segment, that are kept: a caller may take turns with some sets of arrays."""
_REPEATS = 20
"""Of a kernel in a graph that is timed: what comes between two graphs is shared by so many."""
_PLAIN_SHARED = 48 * 1024
"""Bytes of shared memory that a function may have without being asked for more."""


class CudaArtifact(Code):
    """The images of an artefact, on any GPUs."""

    memory: Any = None
    most_threads = 1
    device_kind = "cuda"

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        self._loaded: dict[Gpu, Loaded] = {}
        self._lock = threading.Lock()

    @staticmethod
    def check(made_for: CpuTag, name: str) -> None:
        """Anybody may load it: whether there is such a GPU is asked when a device is."""

    def on(self, device: Device) -> CudaCode:
        owner = gpu(device.index)
        _require_arch(self.artifact.cpu.name, owner)
        with self._lock:
            for other in [g for g in self._loaded if g.lost is not None]:
                del self._loaded[other]
            if owner not in self._loaded:
                self._loaded[owner] = Loaded(owner, self.artifact)
            return CudaCode(self.artifact, self._loaded[owner])

    def step(self, what: Segment | int, slots: int, threads: int) -> Callable[[], None]:
        raise TargetError("code of a GPU runs on a device", hint="code.on(minitvm.cuda(0))")


def _require_arch(arch: str, owner: Gpu) -> None:
    """Machine code runs on GPUs of its generation that are no older; with a suffix on its own kind only."""
    found = re.fullmatch(r"sm_(\d+)(\d)([af]?)", arch)
    wanted = (int(found[1]), int(found[2])) if found else (0, 0)
    exactly = bool(found and found[3] == "a")
    if wanted[0] != owner.capability[0] or wanted > owner.capability or (exactly and wanted != owner.capability):
        raise LibraryError(
            f"the library was compiled for {arch}, {owner} is {owner.arch}",
            hint=f"compile the model for it: target='cuda -arch={owner.arch}'",
        )


class Loaded:
    """An artefact's modules on one GPU, and its weights there."""

    def __init__(self, owner: Gpu, artifact: Artifact) -> None:
        self.gpu = owner
        self.kernels: dict[str, list[tuple[Launch, Any]]] = {}
        """By kernel: launches, each with its function."""
        self._modules: list[Any] = []
        self.streams: set[int] = set()
        """Of its instances."""
        self._weights: dict[int, tuple[np.ndarray, DeviceArray]] = {}
        self._lock = threading.Lock()
        called = {node.func for node in artifact.graph.nodes if isinstance(node.step, LibraryCall)}
        self.calls = {symbol: call_of(artifact.objects[symbol]) for symbol in called}
        """By symbol, what vendors' libraries compute."""
        with owner:
            for symbol, image in artifact.objects.items():
                if symbol in self.calls:
                    continue
                launches, code = unpack(image)
                module = owner.call("cuModuleLoadData", code, where=[f"kernel {symbol}"]) if launches else None
                if module is not None:
                    self._modules.append(module)
                self.kernels[symbol] = [(launch, self._function(module, launch)) for launch in launches]

    def _function(self, module: Any, launch: Launch) -> Any:
        where = [f"function {launch.function}"]
        found = self.gpu.call("cuModuleGetFunction", module, launch.function.encode(), where=where)
        if launch.shared > _PLAIN_SHARED:
            of = self.gpu.driver.CUfunction_attribute
            args = (found, of.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, launch.shared)
            self.gpu.call("cuFuncSetAttribute", *args, where=where)
        return found

    def weight(self, array: np.ndarray, memory: CudaMemory) -> DeviceArray:
        """An array that nobody writes to, once for all instances."""
        with self._lock:
            if id(array) not in self._weights:
                held = memory.hold(array)
                memory.wait()  # other streams read it
                self._weights[id(array)] = (array, held)
            found = self._weights[id(array)][1]
            found.used_by(memory)
            return found

    def __del__(self) -> None:
        self.gpu.free(partial(_unloaded, self.gpu, self._modules, self.streams))


def _unloaded(owner: Gpu, modules: list[Any], streams: set[int]) -> bool:
    """Whether nothing of some modules runs any more, and they are gone."""
    if not owner.follows(None, streams & owner.streams):
        return False
    for module in modules:
        owner.driver.cuModuleUnload(module)
    return True


class CudaCode(CudaArtifact):
    """An instance's: its stream, in which all happens that it does."""

    def __init__(self, artifact: Artifact, loaded: Loaded) -> None:
        super().__init__(artifact)
        self.graph, self.loaded, self.gpu = artifact.graph, loaded, loaded.gpu
        self.memory: InstanceMemory = InstanceMemory(loaded)
        self._handles = handles(self.memory, loaded.calls.values())
        counters = max((one.counters for each in loaded.kernels.values() for one, _ in each), default=0)
        self._counters = self.memory.hold(np.zeros(counters, np.uint32)) if counters else None
        """Of arrivals: a launch that counts leaves zeros, and the next one in the stream comes after it."""

    def step(self, what: Segment | int, slots: int, threads: int) -> Callable[[], None]:
        nodes = what.nodes if isinstance(what, Segment) else (what,)
        launches = [found for node in nodes for found in self._launches(node, slots)]
        if isinstance(what, Segment):
            return Captured(launches, self.memory, self._slots(slots)).run if launches else lambda: None
        return NodeStep(self.graph.nodes[what].func, launches, self.memory, self._slots(slots))

    def _slots(self, slots: int) -> tuple[int, int]:
        """The place where the pointers are, and how many bytes."""
        return slots, 8 * stop_slot(self.graph)

    def _launches(self, index: int, slots: int) -> Sequence[Prepared | PreparedCall]:
        node, starts = self.graph.nodes[index], self.graph.entry_start
        entries = [*map(self.graph.entry_id, node.inputs), *range(starts[index], starts[index + 1])]
        call = self.loaded.calls.get(node.func)
        if call is not None:
            return [PreparedCall(self._handles[call.library], call, slots, entries)]
        workspace = workspace_slots(self.graph)[index]
        counters = self._counters.address if self._counters else 0
        found = self.loaded.kernels[node.func]
        return [Prepared(*one, slots, entries, workspace, counters, node.func) for one in found]

    def timed(self, run: Run, runs: int) -> list[float]:
        """The seconds that the GPU took, by events; of a kernel that is to run more than once, in graphs that repeat
        it: a launch by itself would wait for the host, longer than most kernels take."""
        if isinstance(run, NodeStep) and runs > 1:
            repeats = min(runs, _REPEATS)
            graph = Captured([*run.launches] * repeats, self.memory, run.slots).run
            graph()  # captured, and not counted
            shares = (seconds / repeats for seconds in self.timed(graph, -(-runs // repeats)) for _ in range(repeats))
            return [*shares][:runs]
        call = self.gpu.call
        with self.gpu:
            events = [call("cuEventCreate", 0) for _ in range(runs + 1)]
            call("cuEventRecord", events[0], self.memory.stream)
            for event in events[1:]:
                run()
                call("cuEventRecord", event, self.memory.stream)
        self.memory.wait()
        with self.gpu:
            found = [call("cuEventElapsedTime", *pair) / 1e3 for pair in itertools.pairwise(events)]
            for event in events:
                call("cuEventDestroy", event)
        return found


@dataclass(frozen=True)
class NodeStep:
    """One node's launches by themselves; ``slots`` as :class:`Captured` has them."""

    name: str
    launches: Sequence[Prepared | PreparedCall]
    memory: CudaMemory
    slots: tuple[int, int]

    def __call__(self) -> None:
        self.memory.running = self.name
        with self.memory.gpu:
            for launch in self.launches:
                launch.run(self.memory)


class InstanceMemory(CudaMemory):
    """One that shares weights."""

    def __init__(self, loaded: Loaded) -> None:
        super().__init__(loaded.gpu)
        self._loaded = loaded
        loaded.streams.add(int(self.stream))

    def share(self, array: np.ndarray) -> DeviceArray:
        return self._loaded.weight(array, self)


class Prepared:
    """A launch, its arguments where the driver reads them."""

    def __init__(
        self,
        launch: Launch,
        function: Any,
        slots: int,
        entries: Sequence[int],
        workspace: int,
        counters: int,
        name: str,
    ) -> None:
        self._what = (function, *launch.grid, *launch.block, launch.shared)
        self._name = name
        pointers = (ctypes.c_uint64 * 1).from_address
        self._from = [
            (pointers(slots + 8 * entries[n]), 0) if n >= 0 else (pointers(slots + 8 * workspace), -1 - n)
            for n in launch.params
        ]
        count = len(launch.params) + bool(launch.counters)
        self._values = (ctypes.c_uint64 * count)(*[0] * len(launch.params), *[counters] * bool(launch.counters))
        start = ctypes.addressof(self._values)
        self._addresses = (ctypes.c_void_p * count)(*(start + 8 * n for n in range(count)))

    def run(self, memory: CudaMemory) -> None:
        """Over what the slots point to now."""
        for number, (slot, offset) in enumerate(self._from):
            self._values[number] = slot[0] + offset
        args = (*self._what, memory.stream, ctypes.addressof(self._addresses), 0)
        memory.gpu.call("cuLaunchKernel", *args, where=[f"kernel {self._name}"])


class Captured:
    """A segment as one CUDA graph; captured again where memory that it uses has moved."""

    def __init__(self, launches: Sequence[Prepared | PreparedCall], memory: CudaMemory, slots: tuple[int, int]) -> None:
        self._launches, self._memory, self._slots = launches, memory, slots
        self._graphs: OrderedDict[bytes, Any] = OrderedDict()
        self._key = b""
        self._graph: Any = None

    def run(self) -> None:
        memory, owner = self._memory, self._memory.gpu
        if owner.lost is not None:
            owner.require()
        memory.running = ""
        driver, key = owner.driver, ctypes.string_at(*self._slots)
        owner.enter()
        try:
            if key != self._key:
                self._choose(key)
            (status,) = driver.cuGraphLaunch(self._graph, memory.stream)
        finally:
            driver.cuCtxPopCurrent()
        if status:
            owner.fail(status, "a graph of kernels is launched")

    def _choose(self, key: bytes) -> None:
        """The graph over this memory."""
        found = self._graphs.get(key)
        if found is None:
            found = self._graphs[key] = self._captured()
        self._graphs.move_to_end(key)
        self._key, self._graph = key, found
        while len(self._graphs) > _GRAPHS:
            self._memory.gpu.call("cuGraphExecDestroy", self._graphs.popitem(last=False)[1])

    def _captured(self) -> Any:
        with self._memory.lock, self._memory.gpu.capturing():
            return self._instantiated()

    def _instantiated(self) -> Any:
        memory, call, driver = self._memory, self._memory.gpu.call, self._memory.gpu.driver
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        call("cuStreamBeginCapture", memory.stream, mode)
        try:
            for launch in self._launches:
                launch.run(memory)
        except BaseException:
            driver.cuStreamEndCapture(memory.stream)
            raise
        graph = call("cuStreamEndCapture", memory.stream)
        try:
            return call("cuGraphInstantiate", graph, 0, doing="a graph of kernels is made")
        finally:
            call("cuGraphDestroy", graph)

    def __del__(self) -> None:
        self._memory.gpu.free(partial(_destroyed, self._memory.gpu, list(self._graphs.values())))


def _destroyed(owner: Gpu, graphs: list[Any]) -> bool:
    """Graphs that are still running go when they have ended."""
    for graph in graphs:
        owner.driver.cuGraphExecDestroy(graph)
    return True


CODES["cuda"] = CudaArtifact
