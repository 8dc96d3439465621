"""One running copy of a library: memory for its values, and the steps of a run."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import numpy as np

from minitvm import config
from minitvm.errors import InputError, MiniTVMError
from minitvm.ir.types import TensorType
from minitvm.runtime.checks import check_input, from_zigzag
from minitvm.runtime.graph import HOST, NOP, Entry
from minitvm.runtime.loaded import Loaded
from minitvm.runtime.memory import owners
from minitvm.runtime.ndarray import ALIGNMENT, Device, aligned, aligned_empty
from minitvm.runtime.steps import HostStep, Segment, steps_of, workspace_slots
from minitvm.runtime.team import resolve_threads, team

HostRun: TypeAlias = Callable[[list[np.ndarray]], list[np.ndarray]]
"""A call in Python: arrays in, arrays out."""

_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
"""A native entry: (slots, thread, threads, barrier)."""


WORTH_A_TEAM = 50e-6
"""Seconds of work below which one thread is faster than waking another and meeting it at barriers."""


class Instance:
    """Memory and steps.  Not for several threads at once: every thread makes its own from the shared library."""

    def __init__(
        self, library: Loaded, device: Device, num_threads: int | None, bind_host: Callable[[str, int], HostRun]
    ) -> None:
        """``bind_host`` makes the host call of a node, on so many threads."""
        self.library = library
        self.device = device
        self.num_threads = _threads(library, num_threads) if library.work_seconds > WORTH_A_TEAM else 1
        self.graph = library.graph
        self.owner = owners(self.graph)
        self.types = self.graph.entry_types
        self.arena = aligned_empty((library.plan.nbytes + ALIGNMENT,), "uint8")
        self.values: list[np.ndarray | None] = [None] * self.graph.entries
        self.input_names = [self.graph.nodes[i].name for i in self.graph.arg_nodes]
        self.input_entry = {self.graph.nodes[i].name: self.graph.entry_start[i] for i in self.graph.arg_nodes}
        self.unset = {name for name in self.input_names if name not in library.params}
        self._barrier = np.zeros(2 * ALIGNMENT, np.uint8)  # of a team of one: nobody waits at it
        self.workspaces: dict[int, np.ndarray] = {}
        """Bytes by kernel node."""
        self.has_run = False
        """Whether the results are those of a whole run; not after one that raised."""
        self._allocate()
        self._slots = (ctypes.c_void_p * (self.graph.entries + len(workspace_slots(self.graph))))()
        self._fill_slots()
        self.slots = ctypes.addressof(self._slots)
        self._checks = [((i, 0), node) for i, node in enumerate(self.graph.nodes) if node.check]
        self._bind_host = bind_host
        self.steps = self.make_steps()

    # --- memory ---

    def _allocate(self) -> None:
        for name, entry in self.input_entry.items():
            if name in self.library.params:
                given = self.library.params[name]  # a dictionary that anybody may have changed
                self.values[entry] = aligned(check_input(name, given, self.types[entry]))
            elif self.types[entry].is_static:
                self.values[entry] = aligned_empty(self.types[entry].static_shape, self.types[entry].dtype)
        for entry, offset in enumerate(self.library.plan.offsets):
            if offset >= 0:
                self.values[entry] = self._view(offset, self.types[entry])
        for node_index, node in enumerate(self.graph.nodes):
            if node.func == NOP:
                entry = self.graph.entry_start[node_index]
                source = self.values[self.owner[entry]]
                if self.values[entry] is None and source is not None:
                    self.values[entry] = source.reshape(self.types[entry].static_shape)

    def _view(self, offset: int, type_: TensorType) -> np.ndarray:
        return self.arena[offset : offset + type_.nbytes].view(type_.dtype).reshape(type_.static_shape)

    def _fill_slots(self) -> None:
        for entry in range(self.graph.entries):
            value = self.values[self.owner[entry]]
            self._slots[entry] = None if value is None else value.ctypes.data
        for node, slot in workspace_slots(self.graph).items():
            memory = self._workspace(node)
            if memory is not None:
                self.workspaces[node] = memory
                self._slots[slot] = memory.ctypes.data

    def _workspace(self, node: int) -> np.ndarray | None:
        """A kernel's workspace: in the arena, or of its own where more threads run than planned for."""
        needs = self.library.function_metadata[self.graph.nodes[node].func]
        nbytes = needs["workspace"] + needs["workspace_per_thread"] * self.num_threads
        if needs["workspace_per_thread"] and self.num_threads > self.library.threads:
            return aligned_empty((nbytes,), "uint8")
        at = self.library.plan.workspaces.get(node)
        return None if at is None else self.arena[at : at + nbytes]

    def replace(self, name: str, value: np.ndarray) -> None:
        """Use other memory for an input or parameter: ``value`` is 64-byte aligned and of the right type."""
        root = self.input_entry[name]
        self.values[root] = value
        for entry, owner in enumerate(self.owner):
            if owner == root:
                self._slots[entry] = value.ctypes.data
                self.values[entry] = value.reshape(self.types[entry].static_shape)

    def address(self, entry: int) -> int:
        """Where kernels read or write an entry now."""
        return self._slots[entry] or 0

    def assign(self, name: str, value: np.ndarray) -> None:
        """Copy ``value``, already checked, into an input."""
        entry = self.input_entry[name]
        if not self.types[entry].is_static:
            self.values[entry] = np.array(value)
        elif name in self.library.params and self.values[entry] is self.library.params[name]:
            self.replace(name, aligned(np.array(value)))
        else:
            self.values[entry][...] = value  # type: ignore[index]
        self.unset.discard(name)

    def value(self, entry: Entry) -> np.ndarray:
        """The value of an entry as it is now; a view that the next run overwrites."""
        found = self.values[self.graph.entry_id(entry)]
        if found is None:
            node = self.graph.nodes[entry[0]]
            raise MiniTVMError(f"{node.name!r} has no value yet", hint="call run() first")
        return found

    # --- running ---

    def make_steps(self) -> list[Callable[[], None]]:
        """What a run does, in order."""
        return [self._step(step) for step in steps_of(self.graph)]

    def _step(self, step: Segment | HostStep) -> Callable[[], None]:
        return self.host_step(step.node) if isinstance(step, HostStep) else self.segment_step(step)

    def segment_step(self, segment: Segment) -> Callable[[], None]:
        """A stretch of kernels at once."""
        return self.native_step(segment.symbol)

    def kernel_step(self, index: int) -> Callable[[], None]:
        """The kernel of node ``index`` alone."""
        return self.native_step(f"node_{index}")

    def node_step(self, index: int) -> Callable[[], None]:
        """One node alone; nothing for inputs and reshapes."""
        node = self.graph.nodes[index]
        if node.is_kernel:
            return self.kernel_step(index)
        return self.host_step(index) if node.func == HOST else lambda: None

    def native_step(self, symbol: str) -> Callable[[], None]:
        """A call of one of the library's native functions on every thread."""
        address, slots, threads = self.library.native.address(symbol), self.slots, self.num_threads
        if threads == 1:
            return partial(_ENTRY(address), slots, 0, 1, self._barrier.ctypes.data)

        def run() -> None:
            team(threads).run(address, slots)

        return run

    def host_step(self, index: int) -> Callable[[], None]:
        """A call in Python: values in, the function, values out."""
        node = self.graph.nodes[index]
        function = self._bind_host(node.name, self.num_threads)

        def run() -> None:
            results = function([self.value(e) for e in node.inputs])
            for i, result in enumerate(results):
                self._store(self.graph.entry_id((index, i)), result)

        return run

    def _store(self, entry: int, result: np.ndarray) -> None:
        if self.types[entry].is_static:
            np.copyto(self.values[entry], result, casting="no")  # type: ignore[arg-type]
        else:
            self.values[entry] = result

    def run(self) -> None:
        self.has_run = False
        for step in self.steps:
            step()
        self.finish()

    def finish(self) -> None:
        """After all steps: the results count, unless a check found an index out of range."""
        for entry, node in self._checks:
            found = self.value(entry)
            code = found.max() if found.size > 1 else found.item()
            if code:
                places = [f'from ONNX node "{span}"' for span in node.spans]
                raise InputError(node.check.format(from_zigzag(int(code))), where=places)
        self.has_run = True


def _threads(library: Loaded, given: int | None) -> int:
    """As asked, here or in ``MINITVM_NUM_THREADS``; else the number compiled for, one per core at most."""
    if given is not None or config.read_int("MINITVM_NUM_THREADS"):
        return resolve_threads(given)
    return min(library.threads, resolve_threads(0))
