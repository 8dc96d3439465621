"""What lies behind sizes that the data decide, in a run: its library is bound when they are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from minitvm.errors import InputError
from minitvm.ir.types import MOST_BYTES
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
                raise DoesNotFit(f"a size that the model computes is {min(sizes)}")
            bound = self.library.at_values(known)
            if sum(bound.sizes.nbytes) > MOST_BYTES:
                raise DoesNotFit("what sizes that the model computes ask for is more than can be addressed")
        except DoesNotFit as error:
            error.measured = {name: known[name] for name in op.by_data}
            raise
        types = bound.inputs
        shapes = [types[name].static_shape for name in self.names]
        try:
            results: list[Any] = bound.call(dict(zip(self.names, op.cut(values, shapes), strict=True)))
        except MemoryError as error:
            asked = ", ".join(f"{name} = {size:,}" for name, size in known.items())
            raise InputError(f"there is no memory for sizes that the model computes: {asked}") from error
        return results


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
