"""A saved library behind a session: what it is for is compiled already; and the file of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from minitvm.errors import listing
from minitvm.frontend import ModelDescription, ValueDescription
from minitvm.ir.decision import Decision
from minitvm.ir.types import Leaf, TensorType
from minitvm.ort.errors import MissingInputError
from minitvm.ort.values import tensor_text
from minitvm.runtime.direct import AS_EVER, How
from minitvm.runtime.graph import HostCall
from minitvm.runtime.library import Library
from minitvm.target import Target


class Loaded:
    """Runs a library for whatever shapes it is for; nothing is compiled."""

    worker = None

    def __init__(self, library: Library) -> None:
        self._library = library
        self.target = Target.parse(library.target)
        self.compiled_beside: list[Decision] = []
        self.description = _described(library)

    @property
    def host_calls(self) -> list[HostCall]:
        return list(self._library.host_calls)

    @property
    def inputs_by_value(self) -> list[str]:
        """Inputs for whose values it was compiled."""
        return list(self._library.artifact.values)

    @property
    def symbolic(self) -> Decision | None:
        if self._library.artifact.is_open:
            return Decision("session", "kernels for all shapes", True, "the library has them")
        return None

    @property
    def libraries(self) -> list[Library]:
        return [self._library]

    def prepare(self, shapes: Mapping[str, Sequence[int]], values: Mapping[str, Any] | None = None) -> None:
        """Look whether it is for these shapes; :class:`InputError` where it is not."""
        self._library.for_shapes(shapes, values)

    def save(self, path: Any, key: Any = None) -> None:
        self._library.save(path, key)

    def run(self, feeds: Mapping[str, Any], how: How = AS_EVER) -> list[Any]:
        library, checked = self.found(feeds)
        return library.call(checked, how)

    def again(self, feeds: Mapping[str, Any], into: Mapping[int, Any]) -> None:
        """Each run looks at all that is bound."""

    def found(self, feeds: Mapping[str, Any]) -> tuple[Library, dict[str, Any]]:
        """What runs these inputs, and the inputs as it takes them."""
        known = [value.name for value in self.description.inputs]
        missing = [name for name in known if name not in feeds]
        if isinstance(feeds, Mapping) and missing:
            raise MissingInputError(
                f"input{'s' if len(missing) > 1 else ''} missing: {listing(missing)}",
                hint=f"give an array for every input: {listing(known)}",
            )
        return self._library.chosen(feeds)


def _described(library: Library) -> ModelDescription:
    """What the model says of itself, else what is known of the library."""
    said = library.artifact.model
    if said:
        inputs, outputs = (tuple(_value(*one) for one in said[key]) for key in ("inputs", "outputs"))
        return ModelDescription(inputs, outputs, metadata=MappingProxyType(said["metadata"]))
    heads = zip(library.output_names, library.graph.heads, strict=True)
    return ModelDescription(
        tuple(_of_type(name, type_) for name, type_ in library.artifact.inputs.items()),
        tuple(_of_type(name, library.graph.type_of(head)) for name, head in heads),
    )


def _value(name: str, type_: str, shape: Sequence[int | str | None]) -> ValueDescription:
    return ValueDescription(name, type_, "", tuple(shape))


def _of_type(name: str, type_: Leaf) -> ValueDescription:
    if not isinstance(type_, TensorType):
        return ValueDescription(name, str(type_), "", ())
    shape = tuple(d if isinstance(d, int) else None if d.is_anonymous else str(d) for d in type_.shape)
    return ValueDescription(name, tensor_text(type_.dtype), type_.dtype, shape)


def write(libraries: Sequence[Library], path: Any, key: Any = None) -> None:
    """Libraries of one model as one file, the first of which says what it is."""
    first, *others = (library.artifact for library in libraries)
    Library(replace(first, others=tuple(replace(other, model={}) for other in others))).save(path, key)
