"""The loop interpreter as a back end: whole models run on what the loop IR means, slowly and with every check.

Indices out of bounds, reads of memory that nobody wrote, elements never stored, and iterations of a parallel loop that
store to the same element are errors.  Kernels are legalized for a machine that has no functions at all.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence

import numpy as np

from minitvm.codegen.backend import Backend, Launches, register
from minitvm.codegen.workspace import Workspace
from minitvm.ir.loop import Buffer, Kernel
from minitvm.ir.loop.interp import run_sequence
from minitvm.ir.loop.verify import verify_kernel
from minitvm.runtime.artifact import Artifact
from minitvm.runtime.code import Code, HostMemory
from minitvm.runtime.cpu_tag import CpuTag
from minitvm.runtime.steps import Segment
from minitvm.target import MachineModel


class Interpreter(Code):
    """Kernels of an artefact, one after the other on one thread."""

    memory = HostMemory()
    most_threads = 1

    def __init__(self, artifact: Artifact) -> None:
        self.graph, self.launches = artifact.graph, artifact.objects

    @staticmethod
    def check(made_for: CpuTag, name: str) -> None:
        """Loops run everywhere."""

    def step(self, what: Segment | int, slots: int, threads: int) -> Callable[[], None]:
        nodes = what.nodes if isinstance(what, Segment) else (what,)
        launches = [self.launch(node, slots) for node in nodes]

        def run() -> None:
            for launch in launches:
                launch()

        return run

    def launch(self, index: int, slots: int) -> Callable[[], None]:
        """The kernels of a node over what the slots point to when it runs."""
        node = self.graph.nodes[index]
        launches: Launches = self.launches[node.func]

        def run() -> None:
            arrays = dict(zip(launches.params, self.arrays(index, launches.params, slots), strict=True))
            given = {b: arrays[b] for b in launches.params[: len(node.inputs)]}
            found = run_sequence(launches.kernels, given, check_races=True)
            for result in launches.params[len(node.inputs) :]:
                arrays[result][...] = found[result]

        return run

    def arrays(self, index: int, buffers: Sequence[Buffer], slots: int) -> list[np.ndarray]:
        """The operands and results of a node as they are now."""
        node, starts = self.graph.nodes[index], self.graph.entry_start
        entries = [*map(self.graph.entry_id, node.inputs), *range(starts[index], starts[index + 1])]
        pointers = (ctypes.c_void_p * self.graph.entries).from_address(slots)
        return [_array(buffer, pointers[entry]) for buffer, entry in zip(buffers, entries, strict=True)]


def _array(buffer: Buffer, address: int | None) -> np.ndarray:
    nbytes = math.prod(buffer.shape) * np.dtype(buffer.dtype).itemsize
    memory = (ctypes.c_uint8 * nbytes).from_address(address or 0)
    return np.ctypeslib.as_array(memory).view(buffer.dtype).reshape(buffer.shape)


@register
class InterpBackend(Backend):
    kind = "interp"
    code = Interpreter
    machine = MachineModel(vector_bytes=32, vector_registers=16)
    made_for = CpuTag("", "interpreter", ())

    def workspace(self, kernel: Kernel) -> Workspace:
        """None: the interpreter has memory of its own."""
        return Workspace({}, 0)

    def source(self, launches: Launches) -> Launches:
        return launches

    def image(self, source: Launches) -> Launches:
        for kernel in source.kernels:
            verify_kernel(kernel)
        return source
