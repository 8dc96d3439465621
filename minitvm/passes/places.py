"""Passes that stand in the default pipeline where their files are there, and what passes may ask of a target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from minitvm.doors import door
from minitvm.ir.decision import Declined
from minitvm.ir.expr import Call
from minitvm.passes.alter_op_layout import AlterOpLayout, Faster
from minitvm.passes.manager import Pass
from minitvm.target import MachineModel

LibraryOf: TypeAlias = Callable[[Call], "str | Declined | None"]
"""The library that computes a call, or why none does; ``None`` where nobody would ask one (``Backend.library_of``)."""
Slower: TypeAlias = Callable[[Call], "Declined | None"]
"""Why an operator that stands for several would be no faster than these (``Backend.slower``)."""
Predict: TypeAlias = Callable[[Call], "float | Declined"]
"""The cycles that a call is predicted to take on the target, or why nothing there computes it so."""


Answer = TypeVar("Answer")


def remembering(ask: Callable[[Call], Answer]) -> Callable[[Call], Answer]:
    """The same, asked once about calls that are alike: networks repeat their layers."""
    known: dict[object, Answer] = {}

    def asked_once(call: Call) -> Answer:
        key = call.op, tuple(arg.type for arg in call.args)
        if key not in known:
            known[key] = ask(call)
        return known[key]

    return asked_once


@dataclass(frozen=True)
class Asked:
    """What the passes for a target may ask: of all but the machine, the kind of its schedules and the pass that chooses
    layouts it may be unknown."""

    machine: MachineModel
    layouts: AlterOpLayout
    kind: str = "llvm"
    library_of: LibraryOf | None = None
    slower: Slower | None = None
    predict: Predict | None = None


Make: TypeAlias = Callable[[Asked], "Iterable[Pass]"]
Placeable = TypeVar("Placeable", bound="Make | type[Pass]")


@dataclass(frozen=True)
class Position:
    """The place of passes in the default pipeline: beside the first run of another one, or behind all where none is
    named; and the targets that they are for."""

    before: str = ""
    after: str = ""
    kind: str = ""
    """Of the schedules that they are for, where not for all."""
    feature: str = ""
    """Of the CPUs that they are for, where not for all."""
    shared: bool = False
    """For kernels that threads share alone."""
    given: str = ""
    """What a pass is made with, of what may be asked."""
    needs: str = ""
    """What has to be there to be asked."""

    def is_for(self, asked: Asked) -> bool:
        """True if a target has use for them."""
        kind = "llvm" if self.feature else self.kind or asked.kind
        alone = self.shared and asked.machine.threads == 1
        there = not self.needs or getattr(asked, self.needs) is not None
        return kind == asked.kind and {self.feature} - {""} <= asked.machine.features and not alone and there


@dataclass(frozen=True)
class Placed:
    """Passes with their place."""

    make: Make | type[Pass]
    place: Position

    def among(self, steps: Sequence[Pass], asked: Asked) -> list[Pass]:
        """The steps with these among them."""
        place, names = self.place, [step.info.name for step in steps]
        if not place.is_for(asked):
            return [*steps]
        given = (getattr(asked, name) for name in place.given.split())
        made = (self.make(*given),) if isinstance(self.make, type) else self.make(asked)
        at = names.index(place.before) if place.before else names.index(place.after) + 1 if place.after else len(steps)
        return [*steps[:at], *made, *steps[at:]]


PLACED: dict[str, Placed] = {}
"""By what makes them, and where they stand."""


def in_pipeline(**place: Any) -> Callable[[Placeable], Placeable]:
    """Gives the passes that a function makes for a target, or a pass, their :class:`Position`; a decorator."""

    def register(make: Placeable) -> Placeable:
        PLACED[f"{make.__module__}.{make.__qualname__} {place}"] = Placed(make, Position(**place))
        return make

    return register


def with_placed(steps: Sequence[Pass], asked: Asked) -> list[Pass]:
    """The pipeline with all that have a place in it."""
    found = list(steps)
    for _, placed in sorted(PLACED.items()):
        found = placed.among(found, asked)
    return found


@door
def other_ways(predict: Predict) -> Faster | None:
    """What AlterOpLayout asks whether another algorithm is faster than a convolution in blocks."""
    return None
