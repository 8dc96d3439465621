"""One running copy of a library: memory for its values, and the steps of a run."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from minitvm import config
from minitvm.errors import InputError, MiniTVMError, origin
from minitvm.ir.types import TensorType
from minitvm.runtime.checks import check_input, from_zigzag
from minitvm.runtime.graph import ALIGNMENT, Alias, Entry, HostStep, Segment, owners, steps_of, workspace_slots
from minitvm.runtime.ndarray import Device

if TYPE_CHECKING:
    from minitvm.runtime.library import Library

WORTH_A_TEAM = 50e-6
"""Seconds of work below which one thread is faster than waking another and meeting it at barriers."""


class Instance:
    """Memory and steps.  Not for several threads at once: every thread makes its own from the shared library."""

    def __init__(self, library: Library, device: Device, num_threads: int | None) -> None:
        self.library = library
        self.device = device
        self.code = library.code
        self.memory = library.code.memory
        wanted = _threads(library, num_threads) if library.work_seconds > WORTH_A_TEAM else 1
        self.num_threads = min(wanted, self.code.most_threads)
        self.graph = library.graph
        self.owner = owners(self.graph)
        self.types = self.graph.entry_types
        self.arena = self.memory.empty((library.plan.nbytes + ALIGNMENT,), "uint8")
        self.values: list[Any] = [None] * self.graph.entries
        self.input_names = [self.graph.nodes[i].name for i in self.graph.arg_nodes]
        self.input_entry = {self.graph.nodes[i].name: self.graph.entry_start[i] for i in self.graph.arg_nodes}
        self.unset = {name for name in self.input_names if name not in library.params}
        self.workspaces: dict[int, Any] = {}
        """Bytes by kernel node."""
        self.has_run = False
        """Whether the results are those of a whole run; not after one that raised."""
        self._allocate()
        self._slots = (ctypes.c_void_p * (self.graph.entries + len(workspace_slots(self.graph))))()
        self._fill_slots()
        self.slots = ctypes.addressof(self._slots)
        self._checks = [((i, 0), node) for i, node in enumerate(self.graph.nodes) if node.check]
        self.steps = self.make_steps()

    # --- memory ---

    def _allocate(self) -> None:
        for name, entry in self.input_entry.items():
            if name in self.library.params:
                given = self.library.params[name]  # a dictionary that anybody may have changed
                self.values[entry] = self.memory.hold(check_input(name, given, self.types[entry]))
            elif self.types[entry].is_static:
                self.values[entry] = self.memory.empty(self.types[entry].static_shape, self.types[entry].dtype)
        for entry, offset in enumerate(self.library.plan.offsets):
            if offset >= 0:
                self.values[entry] = self.memory.view(self.arena, offset, self.types[entry])
        for node_index, node in enumerate(self.graph.nodes):
            if isinstance(node.step, Alias):
                entry = self.graph.entry_start[node_index]
                source = self.values[self.owner[entry]]
                if self.values[entry] is None and source is not None:
                    self.values[entry] = self.memory.view(source, 0, self.types[entry])

    def _fill_slots(self) -> None:
        for entry in range(self.graph.entries):
            value = self.values[self.owner[entry]]
            self._slots[entry] = None if value is None else self.memory.address(value)
        for node, slot in workspace_slots(self.graph).items():
            memory = self._workspace(node)
            if memory is not None:
                self.workspaces[node] = memory
                self._slots[slot] = self.memory.address(memory)

    def _workspace(self, node: int) -> Any:
        """A kernel's workspace: in the arena, or of its own where more threads run than planned for."""
        needs = self.library.function_metadata[self.graph.nodes[node].func]
        nbytes = needs["workspace"] + needs["workspace_per_thread"] * self.num_threads
        if needs["workspace_per_thread"] and self.num_threads > self.library.threads:
            return self.memory.empty((nbytes,), "uint8")
        at = self.library.plan.workspaces.get(node)
        return None if at is None else self.memory.view(self.arena, at, TensorType((nbytes,), "uint8"))

    def replace(self, name: str, value: Any) -> None:
        """Use other memory for an input or parameter: ``value``, which ``memory`` holds, is of the right type."""
        root = self.input_entry[name]
        self.values[root] = value
        for entry, owner in enumerate(self.owner):
            if owner == root:
                self._slots[entry] = self.memory.address(value)
                self.values[entry] = self.memory.view(value, 0, self.types[entry])

    def address(self, entry: int) -> int:
        """Where kernels read or write an entry now."""
        return self._slots[entry] or 0

    def assign(self, name: str, value: np.ndarray) -> None:
        """Copy ``value``, already checked, into an input."""
        entry = self.input_entry[name]
        if not self.types[entry].is_static:
            self.values[entry] = np.array(value)
        elif name in self.library.params and self.values[entry] is self.library.params[name]:
            self.replace(name, self.memory.hold(np.array(value)))
        else:
            self.memory.write(self.values[entry], value)
        self.unset.discard(name)

    def value(self, entry: Entry) -> np.ndarray:
        """The value of an entry as it is now; a view that the next run overwrites."""
        index = self.graph.entry_id(entry)
        found = self.values[index]
        if found is None:
            node = self.graph.nodes[entry[0]]
            raise MiniTVMError(f"{node.name!r} has no value yet", hint="call run() first")
        return self.memory.read(found) if self.types[index].is_static else found  # other values are Python's alone

    # --- running ---

    def make_steps(self) -> list[Callable[[], None]]:
        """What a run does, in order."""
        return [self._step(step) for step in steps_of(self.graph)]

    def _step(self, step: Segment | int) -> Callable[[], None]:
        return self.host_step(step) if isinstance(step, int) else self.segment_step(step)

    def segment_step(self, segment: Segment) -> Callable[[], None]:
        """A stretch of kernels at once."""
        return self.code_step(segment)

    def kernel_step(self, index: int) -> Callable[[], None]:
        """The kernel of node ``index`` alone."""
        return self.code_step(index)

    def code_step(self, what: Segment | int) -> Callable[[], None]:
        return self.code.step(what, self.slots, self.num_threads)

    def node_step(self, index: int) -> Callable[[], None]:
        """One node alone; nothing for inputs and reshapes."""
        node = self.graph.nodes[index]
        if node.is_kernel:
            return self.kernel_step(index)
        return self.host_step(index) if isinstance(node.step, HostStep) else lambda: None

    def host_step(self, index: int) -> Callable[[], None]:
        """A call in Python: values in, the function, values out."""
        from minitvm.runtime.hosts import bind  # loads the operators, which most libraries do without

        node = self.graph.nodes[index]
        host, branches = self.library.artifact.hosts[node.name], self.library.branches
        instances = {n: branches[node.name, n].instance(self.device, self.num_threads) for n in host.branches}
        function = bind(host.function, instances)

        def run() -> None:
            results = function([self.value(e) for e in node.inputs])
            for i, result in enumerate(results):
                self._store(self.graph.entry_id((index, i)), result)

        return run

    def _store(self, entry: int, result: np.ndarray) -> None:
        if self.types[entry].is_static:
            self.memory.write(self.values[entry], result.astype(self.types[entry].dtype, casting="no", copy=False))
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
                raise InputError(
                    node.check.format(from_zigzag(int(code))), where=[origin(node.spans)] if node.spans else []
                )
        self.has_run = True


def _threads(library: Library, given: int | None) -> int:
    """As asked, here or in ``MINITVM_NUM_THREADS``; else the number compiled for, one per core at most."""
    if given is not None or config.read_int("MINITVM_NUM_THREADS"):
        return config.resolve_threads(given)
    return min(library.threads, config.resolve_threads(0))
