"""Groups and whole models on simulated CUDA, without the runtime of a GPU: target ``simulated``.

Everything is what target ``cuda`` makes but for the last step: the sources of all groups become one shared object.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import pairwise
from typing import ClassVar

import numpy as np

from minitvm.codegen.backend import BACKENDS, backend_class, register
from minitvm.errors import TargetError
from minitvm.runtime.code import CODES, Code
from minitvm.runtime.devices import Memory
from minitvm.runtime.graph import Artifact, CpuTag, Segment
from minitvm.runtime.nvidia.image import Launch, records
from minitvm.target import OPTIONS, Target
from simulated_gpu.host import ORDERS, HostKernels, host_image


class HostGroups:
    """Groups by their sources, compiled together (``optimize`` as :func:`simulated_gpu.host.host_image` takes it)."""

    def __init__(self, sources: Sequence[str], optimize: str = "-O1") -> None:
        self.launches = [records(source) for source in sources]
        self._prefix = "{}/" if len(sources) > 1 else ""
        self._kernels = HostKernels(host_image(*sources, optimize=optimize))

    def run(
        self, number: int, values: Sequence[np.ndarray], workspace: np.ndarray, order: str = "forward", seed: int = 0
    ) -> None:
        """All launches of a group over its parameters: inputs, then results, which are written.

        ``workspace`` are bytes, as many as the back end says that the group needs.
        """
        launches = self.launches[number]
        shared = _parts(launches, workspace)
        for launch in launches:
            arrays = [values[place] if place >= 0 else shared[place] for place in launch.params]
            name, what = self._prefix.format(number) + launch.function, (launch.shared, launch.counters)
            self._kernels.launch(name, launch.grid, launch.block, arrays, order, seed, *what)


def _parts(launches: Sequence[Launch], workspace: np.ndarray) -> dict[int, np.ndarray]:
    """What launches hand on to each other, by place; each reaches as far as the next."""
    starts = sorted({-1 - place for launch in launches for place in launch.params if place < 0})
    return {-1 - at: workspace[at:end] for at, end in pairwise([*starts, workspace.size])}


class Simulated(Code):
    """An artefact's groups on the host."""

    memory = Memory()
    most_threads = 1

    def __init__(self, artifact: Artifact) -> None:
        self.graph, self.metadata, self.images = artifact.graph, artifact.metadata, artifact.objects
        options = Target.parse(artifact.target).options
        self.order, self.seed = options.get("order", "forward"), int(options.get("seed", 0))

    @staticmethod
    def check(made_for: CpuTag, name: str) -> None:
        """Sources run everywhere."""

    @cached_property
    def groups(self) -> HostGroups:
        """Compiled when the first of them runs."""
        return HostGroups([bytes(image).decode() for image in self.images.values()])

    def step(self, what: Segment | int, slots: int, threads: int) -> Callable[[], None]:
        nodes = what.nodes if isinstance(what, Segment) else (what,)

        def run() -> None:
            for node in nodes:
                self.run(node, slots)

        return run

    def run(self, index: int, slots: int) -> None:
        """A node's launches over what the slots point to now."""
        node, starts = self.graph.nodes[index], self.graph.entry_start
        pointers = (ctypes.c_void_p * self.graph.entries).from_address(slots)
        entries = [*map(self.graph.entry_id, node.inputs), *range(starts[index], starts[index + 1])]
        values = [_bytes_at(pointers[entry], self.graph.entry_types[entry].nbytes) for entry in entries]
        workspace = np.full(self.metadata[node.func]["workspace"], 0xFF, np.uint8)
        self.groups.run(list(self.images).index(node.func), values, workspace, self.order, self.seed)


def _bytes_at(address: int | None, nbytes: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address or 0))


class SimulatedBackend(backend_class("cuda")):  # type: ignore[misc]
    """Target ``simulated -arch=sm_90 -order=random -seed=1``: the order in which threads run."""

    kind = "simulated"
    code = Simulated
    options: ClassVar[dict[str, str]] = {
        "arch": "architecture to make kernels for, such as sm_90",
        "order": "of blocks and threads: forward, reverse, random",
        "seed": "of a random order",
    }
    stages: ClassVar[dict[str, str]] = {}

    def __init__(self, target: Target, threads: int) -> None:
        super().__init__(target, threads)
        if target.options.get("order", "forward") not in ORDERS:
            raise TargetError(f"unknown order {target.options['order']!r}", hint=f"one of {', '.join(ORDERS)}")
        self.version = "source"

    def image(self, source: str) -> bytes:
        return source.encode()


@contextmanager
def simulated_target() -> Iterator[None]:
    """Inside, there is the target ``simulated``."""
    register(SimulatedBackend)
    try:
        yield
    finally:
        for table in (BACKENDS, CODES, OPTIONS):
            table.pop(SimulatedBackend.kind, None)
