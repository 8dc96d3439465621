"""What runs an artefact, chosen by the kind of its target."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Protocol

from minitvm.doors import door
from minitvm.errors import LibraryError
from minitvm.runtime.devices import Device, Memory
from minitvm.runtime.graph import Artifact, CpuTag, Segment
from minitvm.runtime.timing import Run, timed


class Code(Protocol):
    """An artefact's code, ready to run.  May be shared by threads."""

    memory: Memory
    most_threads: int
    """That it can make use of."""
    device_kind: str = "cpu"
    """Of the devices that it runs on; the first one where nobody chooses."""

    def __init__(self, artifact: Artifact) -> None: ...

    @staticmethod
    def check(made_for: CpuTag, name: str) -> None:
        """:class:`LibraryError` where this machine cannot run code made for that one; ``name`` is the library's."""

    def on(self, device: Device) -> Code:
        """What runs on a device: one for each instance.  :class:`TargetError` where it cannot."""
        return self

    def step(self, what: Segment | int, slots: int, threads: int) -> Callable[[], None]:
        """Runs a segment of kernels, or one kernel node alone.

        ``slots`` is the address of pointers in the host's memory: one per entry of the graph, where its value is now,
        then one per kernel node's workspace (:func:`workspace_slots`), then a word that ends a run (:func:`stop_slot`),
        looked at between kernels where Python is not told of each.
        """

    def clocked(self, source: str, segment: Segment, slots: int, threads: int) -> Callable[[], None]:
        """The step of a segment, as :meth:`step` has it, by the source that the target's back end has for it
        (``Backend.clocked``)."""
        raise AssertionError("a back end with such a source has code that runs it")

    def timed(self, run: Run, runs: int) -> list[float]:
        """Seconds of each of so many runs of a step."""
        return timed(run, runs)


CODES: dict[str, type[Code]] = {}
"""By kind of target; minitvm's own as soon as they are asked for."""


@door
def code_above(kind: str) -> type[Code] | None:
    """What a room above runs code of a kind with; ``None``: nothing."""
    return None


@door
def seal_of(artifact: Artifact) -> bytes:
    """What an entry has of its artefact, so that it can be read from a file; nothing where there are no files."""
    return b""


@door
def interpreter() -> type[Code] | None:
    """What runs loops, the code of target ``interp``, as they are."""
    return None


def code_for(target: str) -> type[Code]:
    """What runs code made for a target; :class:`LibraryError` where nothing here does."""
    kind = target.partition(" ")[0]
    if kind == "llvm" and kind not in CODES:
        importlib.import_module("minitvm.runtime.native")
    if kind not in CODES:
        above = {kind: code_above(kind), "interp": interpreter()}
        CODES.update({name: code for name, code in above.items() if code is not None})
    if kind not in CODES:
        known = ", ".join(sorted({*CODES, "llvm"}))
        raise LibraryError(f"nothing here runs code for target {target!r}", hint=f"this minitvm runs code for {known}")
    return CODES[kind]
