"""What lies behind sizes that the data decide, in a run: its library is bound when they are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from minitvm.errors import InputError, origin
from minitvm.ir.types import MOST_BYTES, symbols
from minitvm.runtime.bind import DoesNotFit
from minitvm.runtime.graph import Artifact, Host

if TYPE_CHECKING:
    from minitvm.runtime.instance import Instance


class Bindable(Protocol):
    """What is asked of a library for all sizes."""

    artifact: Artifact

    def at_values(self, values: Mapping[str, int]) -> Any: ...


def is_stage(host: Host) -> bool:
    """True if a call is of ``control.stage``."""
    from minitvm.ir.ops.stage import Stage  # which most libraries do without

    return isinstance(getattr(host.function.body, "op", None), Stage)


class Staged:
    """The library of a stage, which runs as long as nobody has told it to end."""

    def __init__(self, library: Bindable) -> None:
        self.library, self.stopped = library, False
        self.names = list(library.artifact.inputs)

    def tell(self, stop: bool) -> None:
        self.stopped = stop

    def run(self, op: Any, sizes: list[int], values: list[Any]) -> list[Any]:
        """All results; :class:`DoesNotFit` where it is not for these sizes."""
        known = dict(zip(op.sizes, sizes, strict=True))
        try:
            if any(size < 0 for size in sizes):
                least = min(known, key=lambda name: known[name])
                raise DoesNotFit(f"a size that the model computes is {known[least]}", where=self._made_with(least))
            bound = self.library.at_values(known)
        except DoesNotFit as error:
            error.measured = {name: known[name] for name in op.by_data}
            raise
        if sum(bound.sizes.nbytes) > MOST_BYTES:
            raise self._too_large(known)
        types = bound.inputs
        shapes = [types[name].static_shape for name in self.names]
        try:
            results: list[Any] = bound.call(dict(zip(self.names, op.cut(values, shapes), strict=True)))
        except InputError as error:
            if isinstance(error.__cause__, MemoryError):
                raise self._too_large(known) from error
            raise
        return results

    def _too_large(self, sizes: Mapping[str, int]) -> InputError:
        asked = ", ".join(f"{name} = {size:,}" for name, size in sizes.items())
        message = f"sizes that the model computes would take more memory than there is: {asked}"
        return InputError(message, where=self._made_with(max(sizes, key=lambda name: sizes[name])))

    def _made_with(self, size: str) -> list[str]:
        """The first value that is made with a size, and what makes it."""
        nodes = self.library.artifact.graph.nodes
        found = ((node, type_) for node in nodes for type_ in node.types if size in symbols(type_))
        return [f"{node.name}: {type_}      {origin(node.spans)}".rstrip() for node, type_ in found][:1]


def stage_step(op: Any, staged: Staged) -> Callable[[Instance, int], None]:
    """The step of a node that is a stage."""
    count = len(op.sizes)

    def run(outer: Instance, index: int) -> None:
        given = [outer.value(entry) for entry in outer.graph.nodes[index].inputs]
        results = staged.run(op, [int(size.item()) for size in given[:count]], given[count:])
        start = outer.graph.entry_start[index]
        for entry, result in enumerate(results, start):
            if outer.types[entry].is_static:
                outer.memory.write(outer.held(entry), result)
            else:
                outer.values[entry] = result

    return run


def staged(library: Bindable) -> Staged:
    """What runs the library of a stage."""
    return Staged(library)
