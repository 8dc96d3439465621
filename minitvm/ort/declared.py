"""What is said of a model's inputs beforehand: dimensions that it leaves open, values that shapes depend on."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from minitvm.errors import InputError, MiniTVMError, UnknownValueError, listing
from minitvm.frontend import ValueDescription
from minitvm.ir.types import MapType, SequenceType, TensorType, as_shape
from minitvm.ort.errors import MissingInputError
from minitvm.runtime.checks import unknown_name

Compiled = TypeVar("Compiled")

_DECLARED = re.compile(r"\s*(?P<name>[^<\s]+)\s*(?:<=\s*(?P<most>\d+)\s*)?\Z")


@dataclass(frozen=True)
class Declared:
    """A dimension as ``shape_dict`` has it: a number, a name (``"seq"``), a name with a bound (``"seq<=512"``)."""

    dim: int | str
    most: int | None = None

    @staticmethod
    def of(given: Any, name: str) -> Declared:
        """:class:`InputError` for what is none of these; ``name`` is the input's."""
        if isinstance(given, (int, np.integer)) and not isinstance(given, bool) and given >= 0:
            return Declared(int(given))
        found = _DECLARED.match(given) if isinstance(given, str) else None
        if found is None:
            hint = "a dimension is a number, a name such as 'seq', or a name with a bound: 'seq<=512'"
            raise InputError(f"shape_dict gives a dimension of input {name!r} as {given!r}", hint=hint)
        return Declared(found["name"], int(found["most"]) if found["most"] else None)

    def holds(self, extent: int) -> bool:
        return extent == self.dim if isinstance(self.dim, int) else self.most is None or extent <= self.most

    def __str__(self) -> str:
        return str(self.dim) if self.most is None else f"{self.dim}<={self.most}"


def declared_shapes(
    given: Mapping[str, Sequence[Any]] | None, inputs: Mapping[str, ValueDescription]
) -> dict[str, tuple[Declared, ...]]:
    """What ``shape_dict`` says of inputs; :class:`InputError` where it does not fit the model."""
    found = {name: tuple(Declared.of(dim, name) for dim in shape) for name, shape in (given or {}).items()}
    for name, shape in found.items():
        if name not in inputs:
            raise InputError(f"shape_dict names {name!r}, which is no input", hint=f"inputs: {', '.join(inputs)}")
        if inputs[name].has_rank and len(inputs[name].shape) != len(shape):
            raise InputError(f"shape_dict gives input {name!r} {len(shape)} dimensions, not {len(inputs[name].shape)}")
    return found


def check_given(feeds: Mapping[str, Any], inputs: Collection[str], defaults: Collection[str] = ()) -> None:
    """:class:`InputError` where it is no dictionary of all ``inputs`` and no others but ``defaults``."""
    if not isinstance(feeds, Mapping):
        raise InputError(
            f"the inputs are a {type(feeds).__name__}, not a dictionary", hint="run(None, {name: array, ...})"
        )
    for name in feeds:
        if name not in inputs and name not in defaults:
            raise unknown_name(name, [*inputs, *defaults])
    missing = [name for name in inputs if name not in feeds]
    if missing:
        raise MissingInputError(
            f"input{'s' if len(missing) > 1 else ''} missing: {listing(missing)}",
            hint=f"give an array for every input: {listing(inputs)}",
        )


def tell_sizes(
    error: MiniTVMError, inputs: Iterable[ValueDescription], said: Mapping[str, Sequence[Any]], feeds: Mapping[str, Any]
) -> None:
    """Adds to the error of a run what open dimensions were, as the model or ``said`` has their names:
    ``n = 2, t = 3 (x) and 4 (y)``."""
    if isinstance(error, InputError) and not error.where and not isinstance(error.__cause__, MemoryError):
        return  # an input by itself is wrong
    found: dict[str, dict[int, list[str]]] = {}
    for value in inputs:
        extents = getattr(feeds.get(value.name), "shape", ())
        names = [Declared.of(dim, value.name).dim for dim in said.get(value.name, ())] or value.shape
        for dim, extent in zip(names if value.has_rank else (), extents, strict=False):
            if isinstance(dim, str):
                found.setdefault(dim, {}).setdefault(extent, []).append(value.name)
    told = ", ".join(f"{dim} = {_told(extents)}" for dim, extents in found.items())
    error.where += (f"sizes of this run: {told}",) if told else ()


def _told(extents: Mapping[int, Sequence[str]]) -> str:
    if len(extents) == 1:
        return str(next(iter(extents)))
    return " and ".join(f"{extent} ({', '.join(names)})" for extent, names in extents.items())


def check_declared(name: str, extents: Sequence[int], declared: Sequence[Declared]) -> None:
    """:class:`InputError` where an input's shape is not as was said."""
    for axis, (extent, dim) in enumerate(zip(extents, declared, strict=True)):
        if not dim.holds(extent):
            raise InputError(
                f"input {name!r} has shape {tuple(extents)}, but dimension {axis} is declared as {dim}",
                hint="declare a larger bound where the session is made: shape_dict",
            )


def with_values(
    compiled: Callable[[dict[str, np.ndarray]], Compiled],
    values: Mapping[str, np.ndarray],
    feeds: Mapping[str, np.ndarray],
) -> Compiled:
    """``compiled(values)``, with more of ``feeds`` among the values as long as it asks for them.

    Raises the :class:`UnknownValueError` that no value of ``feeds`` answers.
    """
    known = dict(values)
    while True:
        try:
            return compiled(known)
        except UnknownValueError as error:
            more = {name: feeds[name] for name in error.inputs if name in feeds and name not in known}
            if not more:
                raise
            known |= more


def declared_type(value: ValueDescription) -> TensorType | SequenceType | MapType:
    """The type of a model's input or output as its file has it."""
    return value.held or TensorType(as_shape(value.shape), value.dtype)


def nothing_of(type_: SequenceType | MapType) -> Any:
    """An empty value of a type that is no tensor's."""
    if isinstance(type_, MapType):
        return {}
    return None if type_.optional else []
