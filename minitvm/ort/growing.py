"""Caches that runs change where they lie: first places of memory with room, bound as an input and as an output."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from minitvm.frontend import ModelDescription
from minitvm.ir.arrays import address_of
from minitvm.ir.decision import Decision
from minitvm.ir.dims import PLACES, ROOM
from minitvm.ort.plain import Plain
from minitvm.ort.shelf import Shelf
from minitvm.ort.symbolic import Measured, Shapes, SymbolicLibraries
from minitvm.runtime.bind import DoesNotFit
from minitvm.runtime.bound import Bound
from minitvm.runtime.direct import How
from minitvm.runtime.library import Library

Make: TypeAlias = "Callable[[Shapes, Measured], Library | Decision]"
Checked: TypeAlias = "Callable[[Mapping[str, Any]], Mapping[str, Any]]"
"""Inputs as they have to be, or an error."""


class Growing:
    """A model whose inputs ``grown`` are results as well with new places behind them, each with the result's position
    and the axis of the places; ``make`` compiles it with memory in their place."""

    def __init__(self, grown: Mapping[str, tuple[int, int]], make: Make) -> None:
        self._grown, self._make = grown, make
        self._last: tuple[Plain, Bound] | None = None
        """What ran last, and what its inputs are like."""
        self._libraries = SymbolicLibraries(self._made)

    @staticmethod
    def of(model: ModelDescription, shelf: Shelf, make: Callable[..., Library | Decision]) -> Growing | None:
        """What is compiled of a model is kept; ``None`` where it has no such inputs."""
        beside, outputs = shelf.beside("in place"), [value.name for value in model.outputs]
        grown = {name: (outputs.index(output), axis) for name, (output, axis) in model.grown.items()}

        def made(shapes: Shapes, measured: Measured) -> Library | Decision:
            return beside.symbolic(shapes, partial(make, shapes, measured, grown))[0]

        return Growing(grown, made) if grown else None

    @property
    def libraries(self) -> list[Library]:
        return [found for found in self._libraries.done() if isinstance(found, Library)]

    def _made(self, shapes: Shapes, measured: Measured) -> Library | Decision:
        """Compiled for the shapes of places in use, and room for more."""
        given = {name: shape for name, shape in shapes.items() if not name.endswith(PLACES)}
        room = next(given[name][axis] for name, (_, axis) in self._grown.items())
        for name, (_, axis) in self._grown.items():
            given[name] = (*given[name][:axis], shapes[name + PLACES][0], *given[name][axis + 1 :])
        return self._make(given, {**measured, ROOM: room})

    def run(self, feeds: Mapping[str, Any], how: How, checked: Checked) -> list[Any] | None:
        """All results, where caches are first places of memory that is bound as input and as output; else ``None``.
        What is ``checked`` of inputs is not looked at where all of them are plain arrays."""
        memory, places = dict[str, np.ndarray](), dict[str, np.ndarray]()
        for name, (position, axis) in self._grown.items():
            found = memory_of(feeds.get(name), how.into.get(position), axis)
            if found is None:
                return None
            memory[name], places[name + PLACES] = found, np.empty((feeds[name].shape[axis], 0), "bool")
        if len({memory[name].shape[axis] for name, (_, axis) in self._grown.items()}) != 1:
            return None
        given = {**feeds, **memory, **places}
        library: Bound | Library | None = self._ready(given)
        if library is None:
            given = {**checked(feeds), **memory, **places}
            library = self._bound({name: array.shape for name, array in given.items()})
        return None if library is None else self._ran(library, given, memory, how)

    def _ready(self, given: Mapping[str, Any]) -> Bound | None:
        """What ran last, for plain arrays of other lengths."""
        plain, last = self._last or (None, None)
        values = None if plain is None else plain.values(given)
        try:
            return None if values is None or last is None else last.at(values)
        except DoesNotFit:
            return None

    def _bound(self, shapes: Shapes) -> Bound | Library | None:
        found = self._libraries.bound(shapes)
        if isinstance(found, Bound):
            self._last = Plain(found.opened.artifact.inputs), found
        return found

    def _ran(
        self, library: Bound | Library, feeds: Mapping[str, Any], memory: Mapping[str, np.ndarray], how: How
    ) -> list[Any] | None:
        positions = {position: name for name, (position, _) in self._grown.items()}
        try:
            results = library.call(
                feeds, How({**how.into, **{at: memory[name] for at, name in positions.items()}}, how.watch)
            )
        except DoesNotFit:
            return None
        return [how.into[at] if at in positions else result for at, result in enumerate(results)]


def memory_of(past: Any, present: Any, axis: int) -> np.ndarray | None:
    """The memory whose first places along ``axis`` two arrays are, with all the room that their strides leave; ``None``
    where there is none."""
    if not isinstance(past, np.ndarray) or not isinstance(present, np.ndarray) or past.dtype != present.dtype:
        return None
    is_same = address_of(past) == address_of(present) and past.strides == present.strides
    if not is_same or past.shape[axis] > present.shape[axis] or not present.dtype.isnative:
        return None
    step = present.strides[axis]
    room = present.strides[axis - 1] // step if step > 0 else 0
    if room < present.shape[axis] or not present.flags.writeable:
        return None
    return _over((*present.shape[:axis], room, *present.shape[axis + 1 :]), present)


def _over(shape: tuple[int, ...], array: np.ndarray) -> np.ndarray | None:
    """An array of that shape, at the place and of the strides of another one; ``None`` where its elements are not one
    after the other, or not in the memory that the other is a view of."""
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    start = address_of(array) - address_of(owner)
    if not owner.flags.c_contiguous or start < 0 or start + math.prod(shape) * array.itemsize > owner.nbytes:
        return None
    found: np.ndarray = np.ndarray(shape, array.dtype, owner.reshape(-1).view(np.uint8), start)
    alike = zip(shape, found.strides, array.strides, strict=True)
    return found if all(one == other for extent, one, other in alike if extent != 1) else None
