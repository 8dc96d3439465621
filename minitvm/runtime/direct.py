"""A run over the caller's arrays and into new ones: what is large is copied neither in nor out."""

from __future__ import annotations

import ctypes
import operator
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from minitvm.errors import InputError
from minitvm.ir.arrays import ALIGNMENT, address_of, aligned_empty
from minitvm.ir.types import Leaf, fits, numpy_dtype, type_of
from minitvm.runtime.graph import steps_of
from minitvm.runtime.places import Place, readers

if TYPE_CHECKING:
    from minitvm.runtime.instance import Instance

Key = TypeVar("Key", bound=Hashable)

WORTH_BINDING = 16 * 1024
"""Bytes.  Less is copied sooner than its address is found."""


class Recycled:
    """Memory for results of up to ``nbytes``, 64-byte aligned: that of an earlier run where nobody has an array over it
    any more.

    Fresh pages would cost more than most kernels take to fill them.  There are two, as a caller often has the last
    run's results while the next one is made.
    """

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._kept: list[tuple[np.ndarray, int]] = []
        """Each with how often its memory is referred to where we alone have it."""

    def array(self, shape: Sequence[int], kind: np.dtype[Any]) -> np.ndarray:
        """Memory for a new run, as an array of its own."""
        found: np.ndarray = np.ndarray(shape, kind, self._free())
        return found

    def _free(self) -> np.ndarray:
        if _COUNTS_ARE_EXACT:
            for memory, ours in self._kept:
                if sys.getrefcount(memory.base) <= ours:
                    return memory
        memory = aligned_empty((self._nbytes,), "uint8", lasts=True)
        self._kept = [*self._kept[-1:], (memory, sys.getrefcount(memory.base))]
        return memory


_COUNTS_ARE_EXACT = bool(getattr(sys, "_is_gil_enabled", lambda: True)()) and sys.implementation.name == "cpython"
"""Elsewhere memory in use may look free, so that every result gets its own."""


@dataclass(frozen=True)
class How:
    """The conditions of a run: results of the positions in ``into`` are written to its arrays; ``watch`` is entered
    with the instance while it runs, and may stop it."""

    into: Mapping[int, np.ndarray] = field(default_factory=dict)
    watch: Callable[[Instance], AbstractContextManager[Any]] | None = None


AS_EVER = How()


class DirectCall:
    """Runs of one instance that is its caller's alone.

    Kernels read inputs wherever they are, and write results where these are handed out.  Host calls work on the
    instance's arrays, and other devices in their own memory, so what has one is run as ever.
    """

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        direct = instance.memory.is_host and not any(isinstance(step, int) for step in steps_of(instance.graph))
        self._readers, heads = readers(instance.graph), list(map(instance.graph.entry_id, instance.graph.heads))
        self._owners = [instance.owner[head] for head in heads]
        self._types = [instance.types[head] for head in heads]
        self._inputs = {
            name: self._readers[entry]
            for name, entry in instance.input_entry.items()
            if direct and name not in instance.params and self._is_bound(entry)
        }
        self._passed_on = {instance.input_entry[name]: name for name in self._inputs}
        """By owner, the input that a result may be, as it was given."""
        firsts = {owner: position for position, owner in reversed(list(enumerate(self._owners)))}
        self._made_as = {
            owner: position
            for owner, position in firsts.items()
            if direct and self._is_bound(owner) and instance.plan.offsets[owner] >= 0
        }
        """By owner, the first position that has its memory."""
        self._as_made = [o if self._made_as.get(o) == p else None for p, o in enumerate(self._owners)]
        """By position, the owner whose memory is handed out."""
        self._results = {owner: Recycled(self._types[at].nbytes) for owner, at in self._made_as.items()}
        self._changed = {} if instance.writes_all else dict(self._changed_in_place())
        """By input, the position of the result that may have its memory."""
        self._slots = (ctypes.c_void_p * instance.graph.entries).from_address(instance.slots)
        self._names = instance.artifact.output_names

    def _changed_in_place(self) -> Iterator[tuple[str, int]]:
        """Inputs that nobody reads once the kernel has run that changes them, and nobody but it changes."""
        graph, owner = self.instance.graph, self.instance.owner
        last = {owner[graph.entry_id(e)]: i for i, node in enumerate(graph.nodes) for e in node.inputs}
        for i, node in enumerate(graph.nodes):
            place = self.instance.artifact.metadata[node.func].get("in_place") if node.is_kernel else None
            if place is not None:
                read = [owner[graph.entry_id(e)] for e in node.inputs]
                name, result = self._passed_on.get(read[place]), owner[graph.entry_id((i, 0))]
                alone = last[read[place]] == i and read.count(read[place]) == 1 and read[place] not in self._owners
                if name is not None and alone and result in self._made_as:
                    yield name, self._made_as[result]

    def _is_bound(self, entry: int) -> bool:
        """True if kernels find an input or result at an address that each run says."""
        type_ = self.instance.types[entry]
        return type_.is_static and type_.nbytes >= WORTH_BINDING

    def run(self, feeds: Mapping[str, np.ndarray], how: How = AS_EVER) -> list[Any]:
        """All results of a run as new arrays; ``feeds`` has an array of the right type for every input.

        The arrays of ``how.into`` have the results' types: kernels write to them where they can, else what they made is
        copied there.  What a run pointed somewhere stays so: the next one points it anew.
        """
        into, kept = how.into, self._taken(feeds)
        for position, array in into.items():
            require_fit(array, self._types[position], self._names[position])
        placed = self._placed(feeds, into) if into else {}
        made = self._made(placed)
        with nullcontext() if how.watch is None else how.watch(self.instance):
            self.instance.run()
        self.instance.settle()
        del kept
        found = [made[o] if o is not None else self._given_out(p, made, feeds) for p, o in enumerate(self._as_made)]
        for position, array in into.items():
            if found[position] is not array:
                found[position] = copied_into(array, found[position], self._names[position])
        return found

    def _placed(self, feeds: Mapping[str, np.ndarray], into: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
        """By owner, the arrays of ``into`` that kernels can write to: nothing else of the run is in their memory, but
        the input that is changed there."""
        spans: dict[str | int, Span] = {position: span_of(array) for position, array in into.items()}
        for name in self._inputs:
            given, changed = feeds.get(name), self._changed.get(name, -1)
            if given is not None and given is not into.get(changed) and is_readable(given):
                span = span_of(given)
                if spans.get(changed) != span:
                    spans[name] = span
        met, found = meeting(spans), {}
        for position, array in into.items():
            owner = self._as_made[position]
            if owner is not None and position not in met and is_writable(array):
                self._point(self._readers[owner], spans[position][0])
                found[owner] = array
        return found

    def _taken(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Points kernels at inputs where they are, kept until they have run; or copies them to where kernels read."""
        kept = dict(feeds)
        for name, value in feeds.items():
            if name in self._inputs:
                if not is_readable(value):
                    value = kept[name] = native(value)
                self._point(self._inputs[name], address_of(value))
            elif isinstance(value, np.ndarray) or not hasattr(value, "memory"):
                self.instance.assign(name, value)
            else:  # on the device already
                memory = self.instance.memory
                self.instance.replace(name, value if memory.is_aligned(value) else memory.copy(value))
        return kept

    def _made(self, placed: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
        """By owner, the memory that results are written to: what is ``placed`` already, else new."""
        made = dict(placed)
        for owner, results in self._results.items():
            if owner not in made:
                type_ = self._types[self._made_as[owner]]
                made[owner] = array = results.array(type_.static_shape, numpy_dtype(type_.dtype))
                self._point(self._readers[owner], address_of(array))
        return made

    def _point(self, entries: Sequence[Place], address: int) -> None:
        for entry, start in entries:
            self._slots[entry] = address + start

    def _given_out(self, position: int, made: Mapping[int, np.ndarray], feeds: Mapping[str, np.ndarray]) -> Any:
        """A result that is not the memory that it was made in: an earlier one has that, or it is an input."""
        owner = self._owners[position]
        given = made.get(owner, feeds.get(self._passed_on.get(owner, "")))
        if given is None:
            return self.instance.result(self.instance.graph.heads[position])
        return native(given).reshape(self._types[position].static_shape)


def require_fit(array: np.ndarray, type_: Leaf, name: str) -> None:
    """:class:`InputError` where a result of this type cannot be written to an array; what is not static is seen once it
    is there."""
    if type_.is_static and not (fits(array, type_) and array.flags.writeable):
        raise InputError(
            f"output {name!r} is {type_}, it cannot be written to an array of {type_of(array)}",
            hint="give memory of the result's type and shape that can be written to",
        )


def copied_into(array: np.ndarray, result: Any, name: str) -> np.ndarray:
    """The array, overwritten with a result; :class:`InputError` where it does not fit."""
    if not isinstance(result, np.ndarray):
        raise InputError(f"output {name!r} is no tensor, it cannot be written to an array")
    require_fit(array, type_of(result), name)
    np.copyto(array, result, casting="no")
    return array


def native(array: np.ndarray) -> np.ndarray:
    """A copy that kernels can read."""
    return np.array(array, array.dtype.newbyteorder("="), order="C")


def is_readable(array: np.ndarray) -> bool:
    """True if a kernel can read it where it is: row-major, elements on their boundaries, bytes in the CPU's order."""
    return array.flags.num & 0x101 == 0x101 and array.dtype.isnative  # NPY_ARRAY_C_CONTIGUOUS, NPY_ARRAY_ALIGNED


Span: TypeAlias = tuple[int, int]
"""The addresses of an array's first byte and of the one after its last."""


def span_of(array: np.ndarray) -> Span:
    first = last = address_of(array)
    if array.flags.c_contiguous:
        return first, first + array.nbytes
    for extent, stride in zip(array.shape, array.strides, strict=True):
        way = (extent - 1) * stride
        first, last = first + min(way, 0), last + max(way, 0)
    return first, last + array.itemsize


def meeting(spans: Mapping[Key, Span]) -> set[Key]:
    """The keys of those that have bytes in common with another."""
    found: set[Key] = set()
    end, holder = 0, list[Key]()
    for key, (first, last) in sorted(spans.items(), key=operator.itemgetter(1)):
        if first < min(last, end):
            found.update((key, *holder))
        if first < last > end:
            end, holder = last, [key]
    return found


def is_writable(array: np.ndarray) -> bool:
    """True if a kernel can write a result there: it begins on a boundary that all of them count on, besides."""
    return array.flags.writeable and is_readable(array) and address_of(array) % ALIGNMENT == 0
