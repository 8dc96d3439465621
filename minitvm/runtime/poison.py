"""Poisoned memory (``MINITVM_POISON=1``): what a kernel leaves unwritten, or reads unwritten, is an error.

Every kernel runs twice, its results and its workspace filled with another marker each time.  What differs between
the two runs was not decided by the kernel's inputs alone: an element that still holds both markers was never written,
any other was computed from memory that nobody wrote.  No honest value is taken for a marker, NaN included.  Then the
segment of kernels runs once more as it does without poison, barriers and all, and has to give the same bits.

An instance decides when it is made; without poison nothing of this is reached.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from minitvm.errors import CompilerError, origin
from minitvm.ir.arrays import ALIGNMENT
from minitvm.ir.types import Leaf
from minitvm.runtime.graph import Segment, round_up
from minitvm.runtime.instance import Instance
from minitvm.runtime.places import liveness
from minitvm.runtime.staged import is_stage

NOT_A_NUMBER, A_NUMBER = 0x7FFA, 0x4B4B
"""The markers, two bytes each.  The first is a quiet NaN as float16, float32 and float64, the second is 14.6, 1.3e7 and
1.5e54; both are unusual integers and no bool, and they differ in every byte."""

HINT = "this is a defect of minitvm, not of the model: please report it with the model and the target"


def fill(memory: np.ndarray, marker: int) -> None:
    """Overwrite bytes with a marker."""
    even = len(memory) // 2 * 2
    memory[:even].view(np.uint16)[...] = marker
    memory[even:] = np.frombuffer(np.uint16(marker).tobytes(), np.uint8)[: len(memory) - even]


@dataclass(frozen=True)
class Slot:
    """The place where a result lies: ``memory`` are bytes, and those of ``type`` come first."""

    memory: np.ndarray
    type: Leaf


@dataclass(frozen=True)
class Difference:
    """The first element of a result that is not the same after two runs, and how many there are."""

    index: tuple[int, ...]
    values: tuple[str, str]
    count: int
    unwritten: bool


def difference(one: np.ndarray, other: np.ndarray, type_: Leaf) -> Difference | None:
    """Compares the bytes of two results; ``one`` was made over ``NOT_A_NUMBER``, ``other`` over ``A_NUMBER``."""
    size, pair = np.dtype(type_.dtype).itemsize, [m[: type_.nbytes].view(type_.dtype) for m in (one, other)]
    differs = np.flatnonzero(pair[0].view(f"u{size}") != pair[1].view(f"u{size}"))
    if not len(differs):
        return None
    first = int(differs[0])
    start, stop = first * size, (first + 1) * size
    unwritten = _holds(one, NOT_A_NUMBER, start, stop) and _holds(other, A_NUMBER, start, stop)
    index = tuple(int(i) for i in np.unravel_index(first, type_.static_shape))
    return Difference(index, (str(pair[0][first]), str(pair[1][first])), len(differs), unwritten)


def _holds(memory: np.ndarray, marker: int, start: int, stop: int) -> bool:
    """True if those bytes of ``memory``, a marker's from its beginning, are still the marker's."""
    pair = np.uint16(marker).tobytes()
    return memory[start:stop].tobytes() == bytes(pair[i % 2] for i in range(start, stop))


class PoisonedInstance(Instance):
    """An instance whose steps are checked."""

    writes_all = True

    def make_steps(self) -> list[Callable[[], None]]:
        """What a run does: as without poison, every kernel checked before its segment runs."""
        return [lambda: fill(self.arena, NOT_A_NUMBER), *super().make_steps()]

    def host_work(self, index: int) -> Callable[[], None]:
        """Runs in Python, so that the kernels of bodies are checked; then natively where that goes, with the same bits.
        Of a stage the kernels are checked as it is."""
        if is_stage(self.artifact.hosts[self.graph.nodes[index].name]):
            return super().host_work(index)
        checked, native = self.python_step(index), self.native_step(index)
        return checked if native is None else partial(self._both, index, checked, native)

    def _both(self, index: int, checked: Callable[[], None], native: Callable[[], None]) -> None:
        checked()
        entries = range(self.graph.entry_start[index], self.graph.entry_start[index + 1])
        results = {entry: np.array(self.held(entry)) for entry in entries}
        for entry in entries:
            if self.types[entry].is_static:
                fill(self._slot(entry).memory, NOT_A_NUMBER)
        native()
        if self.stopped:
            return
        for number, (entry, one) in enumerate(results.items()):
            other = self.held(entry)
            if one.shape != other.shape or one.tobytes() != other.tobytes():
                message = f"gives another result {number}, {self.types[entry]}, without Python than with it"
                raise self._error(index, message, by=self.graph.nodes[index].name)

    # --- one kernel -------------------------------------------------------------------------------------------

    def kernel_step(self, index: int) -> Callable[[], None]:
        """Runs node ``index`` over both markers and compares."""
        native = self.code_step(index)
        entries = range(self.graph.entry_start[index], self.graph.entry_start[index + 1])
        workspace = self.workspaces.get(index)
        fence = self._fence(index)

        def over(marker: int, slots: Sequence[Slot]) -> None:
            for slot in slots:
                fill(slot.memory, marker)
            if workspace is not None:
                fill(workspace, marker)
            native()
            for number, slot in enumerate(slots):
                self._require_inside(index, number, slot, marker)

        def run() -> None:
            slots = [self._slot(entry) for entry in entries]
            around = [line.tobytes() for line in fence]
            over(NOT_A_NUMBER, slots)
            kept = [slot.memory.copy() for slot in slots]
            over(A_NUMBER, slots)
            if around != [line.tobytes() for line in fence]:
                raise self._error(index, "writes next to its results, into memory of others")
            for number, (one, slot) in enumerate(zip(kept, slots, strict=True)):
                found = difference(one, slot.memory, slot.type)
                if found is not None:
                    raise self._reject(index, number, found)

        return run

    def _slot(self, entry: int) -> Slot:
        """The place where this run writes an entry: in the arena, what fills up its place included, or in memory handed
        out."""
        type_ = self.types[entry]
        start = self.plan.offsets[entry]
        address = self.address(entry)
        if address == self.arena.ctypes.data + start:
            return Slot(self.arena[start : start + round_up(max(1, type_.nbytes))], type_)
        return Slot(np.ctypeslib.as_array((ctypes.c_uint8 * type_.nbytes).from_address(address)), type_)

    def _fence(self, index: int) -> list[np.ndarray]:
        """The lines of the arena before and after a kernel's results and its workspace."""
        arena, start = self.arena, self.graph.entry_start
        offsets = self.plan.offsets
        own = [(offsets[e], self.types[e].nbytes) for e in range(start[index], start[index + 1])]
        if index in self.plan.workspaces:
            own.append((self.plan.workspaces[index], len(self.workspaces[index])))
        lines = [(at // ALIGNMENT, (at + round_up(max(1, nbytes))) // ALIGNMENT) for at, nbytes in own]
        near = {n for low, high in lines for n in (low - 1, high) if n >= 0}
        free = [n for n in sorted(near) if not any(low <= n < high for low, high in lines)]
        return [arena[n * ALIGNMENT : (n + 1) * ALIGNMENT] for n in free]

    def _require_inside(self, index: int, number: int, slot: Slot, marker: int) -> None:
        if not _holds(slot.memory, marker, slot.type.nbytes, len(slot.memory)):
            raise self._error(index, f"writes past the end of its result {number}, {slot.type}")

    def _reject(self, index: int, number: int, found: Difference) -> CompilerError:
        type_ = self.graph.nodes[index].types[number]
        element = f"element {list(found.index)} of its result {number}, {type_}"
        total = f"{found.count:,} of {type_.size:,} elements depend on what was in memory before"
        if found.unwritten:
            return self._error(index, f"never writes {element}", total)
        values = f"{found.values[0]} over one marker, {found.values[1]} over another"
        return self._error(index, f"computes {element} from memory that nobody wrote", values, total)

    def _error(self, index: int, message: str, *where: str, by: str = "") -> CompilerError:
        """What the kernel of node ``index``, or something else, does wrong."""
        node = self.graph.nodes[index]
        place = f"node {node.name!r}, threads: {self.num_threads}"
        return CompilerError(
            f"{by or node.func} {message}", where=[*where, place, *filter(None, [origin(node.spans)])], hint=HINT
        )

    # --- a segment --------------------------------------------------------------------------------------------

    def segment_step(self, segment: Segment) -> Callable[[], None]:
        """Kernel by kernel, checked; then all at once from the same memory, with the same results."""
        kernels = [self.kernel_step(i) for i in segment.nodes]
        native, arena = self.code_step(segment), self.arena
        kept_after = self._kept_after(segment.nodes)

        def run() -> None:
            before = arena.copy()
            for kernel in kernels:
                kernel()
            slots = {entry: self._slot(entry) for entry in kept_after}
            results = {entry: slot.memory.copy() for entry, slot in slots.items()}
            for slot in slots.values():
                fill(slot.memory, NOT_A_NUMBER)
            arena[...] = before
            native()
            for entry, one in results.items():
                found = difference(one, slots[entry].memory, slots[entry].type)
                if found is not None and not self.stopped:
                    raise self._unlike(segment, kept_after[entry], found)

        return run

    def _kept_after(self, nodes: Sequence[int]) -> dict[int, int]:
        """The entries made by ``nodes`` that are read after the last of them; each with its node."""
        found, start = liveness(self.graph), self.graph.entry_start
        made = {e: i for i in nodes for e in range(start[i], start[i + 1])}
        return {e: i for e, i in made.items() if found[self.owner[e]][1] > nodes[-1]}

    def _unlike(self, segment: Segment, index: int, found: Difference) -> CompilerError:
        func = self.graph.nodes[index].func
        message = f"gives another element {list(found.index)} of {func} than its kernels one by one"
        values = f"{found.values[0]} one by one, {found.values[1]} at once"
        return self._error(index, message, values, by=segment.symbol)


def poisoned() -> type[PoisonedInstance]:
    """What runs a library whose kernels are checked."""
    return PoisonedInstance
