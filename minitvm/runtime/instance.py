"""One running copy of a library: memory for its values, and the steps of a run."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np

from minitvm import config
from minitvm.errors import InputError, MiniTVMError, StoppedError, origin
from minitvm.ir.arrays import ALIGNMENT
from minitvm.ir.types import SequenceType, TensorType, Type
from minitvm.runtime.checks import check_input, from_zigzag
from minitvm.runtime.code import Code
from minitvm.runtime.devices import Device
from minitvm.runtime.graph import Artifact, Entry, HostStep, Segment, steps_of, stop_slot, workspace_slots
from minitvm.runtime.ndarray import copied
from minitvm.runtime.places import kept_of, owners, places, readers

WORTH_A_TEAM = 50e-6
"""Seconds of work below which one thread is faster than waking another and meeting it at barriers."""


class Inside(Protocol):
    """Branches of control flow, or what runs them."""

    def tell(self, stop: bool) -> None: ...


HostRun = Callable[[list[Any]], list[Any]]
"""A call in Python: values in, values out.  A sequence is a list, an optional without a value ``None``."""


class Instance:
    """Memory and steps.  Not for several threads at once: every thread makes its own from the shared library.

    ``params`` are the parameters to run with, ``host(node, branches)`` the function of a call in Python,
    ``branches(node, device, threads)`` new instances of what control flow runs, ``control(instance, index)`` its native
    step where it has one.
    """

    writes_all: ClassVar[bool] = False
    """Whether kernels have to write all of their results, whatever lies there."""

    kept: tuple[int, ...] = ()
    """What depends on parameters and sizes alone, in memory that no run takes from it."""
    kept_is_right = False
    """Whether that is there, computed with the parameters and sizes of now."""
    _may_keep = False
    """Whether it may be kept."""

    def __init__(
        self,
        artifact: Artifact,
        code: Code,
        params: Mapping[str, np.ndarray],
        host: Callable[[str, Mapping[str, Instance]], HostRun],
        branches: Callable[[str, Device, int], Mapping[str, Any]],
        control: Callable[[Instance, int], Callable[[], None] | None],
        device: Device,
        num_threads: int | None,
    ) -> None:
        self.artifact, self.plan, self.params = artifact, artifact.plan, params
        self.device, self._host, self._branches, self._control = device, host, branches, control
        self.code, self.memory = code, code.memory
        wanted = _threads(artifact, num_threads) if artifact.work_seconds > WORTH_A_TEAM else 1
        self.num_threads = min(wanted, code.most_threads)
        self.graph = artifact.graph
        self.owner, self.types = owners(self.graph), self.graph.entry_types
        self.arena = self.memory.empty((self.plan.nbytes + ALIGNMENT,), "uint8")
        self.values: list[Any] = [None] * self.graph.entries
        self.input_names = [self.graph.nodes[i].name for i in self.graph.arg_nodes]
        self.input_entry = {self.graph.nodes[i].name: self.graph.entry_start[i] for i in self.graph.arg_nodes}
        self.unset = {name for name in self.input_names if name not in params}
        self._not_ours = set(params)
        """Inputs whose memory others use, too: it is not written to."""
        self.workspaces: dict[int, Any] = {}
        """Bytes by kernel node."""
        self.has_run = False
        """Whether the results are those of a whole run; not after one that raised."""
        self._is_open = False
        """Whether nobody has looked yet at what the last run's checks found."""
        self.stopped = False
        """Whether runs end before their next kernel."""
        self.inside: list[Inside] = []
        self._hold_inputs()
        if any(node.once for node in self.graph.nodes):
            self._keep()
        self._slots = (ctypes.c_void_p * (stop_slot(self.graph) + 1))(*self._addresses())
        self.slots = ctypes.addressof(self._slots)
        self.checks = [((i, 0), node) for i, node in enumerate(self.graph.nodes) if node.check]

    # --- memory ---

    def _keep(self) -> None:
        self.kept = tuple(entry for entry in kept_of(self.graph) if self.plan.offsets[entry] < 0)
        self._may_keep = bool(self.kept)
        for entry in self.kept:
            self.values[entry] = self.memory.empty(self.types[entry].static_shape, self.types[entry].dtype)

    def _hold_inputs(self) -> None:
        for name, entry in self.input_entry.items():
            given, type_ = self.params.get(name), self.types[entry]
            if given is not None:  # of a dictionary that anybody may have changed
                own = self.artifact.params.get(name)
                if own is not None and own is getattr(given, "original", given):
                    self.values[entry] = self.memory.share(own)
                else:
                    self.values[entry] = self.memory.hold(check_input(name, given, type_))
            elif type_.is_static:
                self.values[entry] = self.memory.empty(type_.static_shape, type_.dtype)

    def held(self, entry: int) -> Any:
        """An entry's value in memory; in the arena it is looked at when it is first asked for."""
        found, at, (owner, start) = self.values[entry], self.plan.offsets[entry], places(self.graph)[entry]
        if found is None and at >= 0:
            found = self.values[entry] = self.memory.view(self.arena, at, self.types[entry])
        elif found is None and owner != entry and self.values[owner] is not None:
            found = self.values[entry] = self.memory.view(self.values[owner], start, self.types[entry])
        return found

    def _addresses(self) -> Iterator[int | None]:
        """Of all entries, then of workspaces."""
        start = self.memory.address(self.arena)
        own = {e: self.memory.address(value) for e, value in enumerate(self.values) if value is not None}
        for offset, owner in zip(self.plan.offsets, self.owner, strict=True):
            yield start + offset if offset >= 0 else own.get(owner)
        for node in workspace_slots(self.graph):
            memory = self._workspace(node)
            if memory is not None:
                self.workspaces[node] = memory
            yield None if memory is None else self.memory.address(memory)

    def _workspace(self, node: int) -> Any:
        """A kernel's workspace: in the arena, or of its own where more threads run than planned for."""
        needs = self.artifact.metadata[self.graph.nodes[node].func]
        nbytes = needs["workspace"] + needs["workspace_per_thread"] * self.num_threads
        if needs["workspace_per_thread"] and self.num_threads > self.artifact.threads:
            return self.memory.empty((nbytes,), "uint8")
        at = self.plan.workspaces.get(node)
        return None if at is None else self.memory.view(self.arena, at, TensorType((nbytes,), "uint8"))

    def lie_in(self, arena: Any) -> None:
        """Let what the plan places lie in other memory, of at least its size; what lay there is left behind."""
        is_elsewhere = self.memory.address(arena) != self.memory.address(self.arena)
        self.arena = arena
        if is_elsewhere:
            for entry, at in enumerate(self.plan.offsets):
                if at >= 0:
                    self.values[entry] = None
            self._slots[:-1] = list(self._addresses())

    def replace(self, name: str, value: Any) -> None:
        """Use memory of somebody else for an input or parameter: ``value``, of ``memory`` and the right type."""
        self.place_input(name, value)
        self._not_ours.add(name)
        self.unset.discard(name)
        self._may_keep = self._may_keep and name not in self.params  # a parameter's memory that anybody may write to

    def place_input(self, name: str, value: Any) -> None:
        """Let an input or parameter lie in other memory, that is written to between runs; what depends on it has to be
        computed again then (:attr:`kept_is_right`)."""
        self.kept_is_right = self.kept_is_right and name not in self.params
        self._move(self.input_entry[name], value)

    def place_result(self, entry: Entry, value: Any) -> None:
        """Let kernels write a result to ``value``, a value of the right type on a 64-byte boundary."""
        owner = self.owner[self.graph.entry_id(entry)]
        others = sum(self.owner[self.graph.entry_id(head)] == owner for head in self.graph.heads) > 1
        if others or self.plan.offsets[owner] < 0:
            raise InputError(
                f"the result of {self.graph.nodes[entry[0]].name!r} has no memory of its own",
                hint="get_output(index, out) copies it",
            )
        self._move(owner, value)

    def _move(self, root: int, value: Any) -> None:
        """An entry that owns its memory, and those that share it, to other memory."""
        self.values[root] = value
        for entry, start in readers(self.graph)[root]:
            self._slots[entry] = self.memory.address(value) + start
            self.values[entry] = self.memory.view(value, start, self.types[entry])

    def point(self, entry: int, address: int) -> None:
        """Let an entry without memory of its own lie at an address, which the caller keeps alive."""
        self._slots[entry] = address

    def address(self, entry: int) -> int:
        """The address at which kernels read or write an entry now."""
        return self._slots[entry] or 0

    def assign(self, name: str, value: Any) -> None:
        """Copy ``value``, already checked, into an input."""
        entry = self.input_entry[name]
        self.kept_is_right = self.kept_is_right and name not in self.params
        if not self.types[entry].is_static:
            self.values[entry] = copied(value)
        elif name in self._not_ours:
            is_host = isinstance(value, np.ndarray)
            self.place_input(name, self.memory.hold(np.array(value)) if is_host else self.memory.copy(value))
            self._not_ours.discard(name)
        else:
            self.memory.write(self.values[entry], value)
        self.unset.discard(name)

    def result(self, entry: Entry) -> Any:
        """A copy of the value of an entry."""
        return copied(self.value(entry))

    def value(self, entry: Entry) -> Any:
        """The value of an entry as it is now, on the host: a list, ``None``, or a view that the next run overwrites."""
        found, is_static = self.there(entry), self.types[self.graph.entry_id(entry)].is_static
        return self.memory.read(found) if is_static else found  # other values are Python's alone

    def there(self, entry: Entry) -> Any:
        """The same in the memory where it is."""
        index = self.graph.entry_id(entry)
        found = self.held(index)
        if found is None and not may_be_none(self.types[index]):
            node = self.graph.nodes[entry[0]]
            raise MiniTVMError(f"{node.name!r} has no value yet", hint="call run() first")
        return found

    # --- running ---

    @cached_property
    def steps(self) -> list[Callable[[], None]]:
        """What a run does, in order.  Made when it first runs: a body that a loop or a choice outside runs natively
        never does by itself, and steps of its own would be second copies of all that lies inside it."""
        return self.make_steps()

    def make_steps(self) -> list[Callable[[], None]]:
        """Makes :attr:`steps` anew."""
        return [self.host_step(s) if isinstance(s, int) else self.segment_step(s) for s in steps_of(self.graph)]

    def segment_step(self, segment: Segment) -> Callable[[], None]:
        """A stretch of kernels at once; what depends on parameters and sizes alone where it is not there yet."""
        run = self.code_step(segment)
        if not self.kept or not self.graph.nodes[segment.nodes[0]].once:
            return run

        def where_it_is_not() -> None:
            if not self.kept_is_right:
                run()
                self.kept_is_right = self._may_keep and not self.stopped

        return where_it_is_not

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

    def branches_of(self, index: int) -> Mapping[str, Any]:
        """New instances of the branches of a node of control flow, by attribute."""
        found = self._branches(self.graph.nodes[index].name, self.device, self.num_threads)
        for one in found.values():
            self.hold_inside(one)
        return found

    def hold_inside(self, one: Inside) -> None:
        """Registers what is to be told whatever this instance is told, and was: steps may be made while another thread
        ends the run."""
        self.inside.append(one)
        if self.stopped:
            one.tell(True)

    def host_step(self, index: int) -> Callable[[], None]:
        """Control flow, or a call in Python; an error says of which node."""
        step, spans = self.host_work(index), self.graph.nodes[index].spans

        def run() -> None:
            try:
                step()
            except MiniTVMError as error:
                if spans and not error.where:
                    error.where = (origin(spans),)
                raise

        return run

    def host_work(self, index: int) -> Callable[[], None]:
        """Control flow over native bodies, or a call in Python."""
        return self.native_step(index) or self.python_step(index)

    def native_step(self, index: int) -> Callable[[], None] | None:
        """Control flow without Python; ``None`` where it needs that."""
        return self._control(self, index)

    def python_step(self, index: int) -> Callable[[], None]:
        """Values in, the function, values out."""
        node = self.graph.nodes[index]
        function = self._host(node.name, self.branches_of(index))

        def run() -> None:
            results = function([self.value(e) for e in node.inputs])
            for i, result in enumerate(results):
                self._store(self.graph.entry_id((index, i)), result)

        return run

    def _store(self, entry: int, result: Any) -> None:
        if self.types[entry].is_static:
            self.memory.write(self.held(entry), result.astype(self.types[entry].dtype, casting="no", copy=False))
        else:
            self.values[entry] = copied(result)  # it may be a view of memory that is used again

    def run(self) -> None:
        self.has_run = False
        for step in self.steps:
            step()
            if self.stopped:
                raise StoppedError("the run was told to end")
        self.finish()

    def tell(self, stop: bool) -> None:
        """Says whether to end the run that is under way in another thread before its next kernel, and those that
        follow."""
        self.stopped = stop
        self._slots[-1] = int(stop)
        for one in self.inside:
            one.tell(stop)

    def finish(self, settled: bool = False) -> None:
        """Ends a run, after all steps.  On a device it may only have begun: who reads a result calls :meth:`settle`."""
        self._is_open = bool(self.checks)
        self.has_run = True
        if self._is_open and (settled or self.memory.is_host):
            self.settle()

    def settle(self) -> None:
        """Let the results of the last run count, unless a check found an index out of range: :class:`InputError`."""
        if not self._is_open:
            return
        self._is_open = self.has_run = False
        values = self.memory.read_together([self.there(entry) for entry, _ in self.checks])
        for found, (_, node) in zip(values, self.checks, strict=True):
            if code := found.item() if found.size == 1 else found.max(initial=0):
                text, spans = node.check.format(from_zigzag(int(code))), node.spans
                raise InputError(text, where=[origin(spans)] if spans else [])
        self.has_run = True


def may_be_none(type_: Type) -> bool:
    return isinstance(type_, SequenceType) and type_.optional


def _threads(artifact: Artifact, given: int | None) -> int:
    """As asked, here or in ``MINITVM_NUM_THREADS``; else the number compiled for, one per core at most."""
    if given is not None or config.read_int("MINITVM_NUM_THREADS"):
        return config.resolve_threads(given)
    return min(artifact.threads, config.resolve_threads(0))
