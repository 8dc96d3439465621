"""How blocks of one launch follow each other: a few that are neighbours wait for all of them, or the last goes on."""

from __future__ import annotations

from dataclasses import dataclass

from minitvm.ir.loop import Barrier, Kernel, walk_stmts

CLUSTER = 8
"""The most blocks that any GPU with clusters runs at the same time."""


@dataclass(frozen=True, slots=True, eq=False)
class Arrival(Barrier):
    """Blocks of a nest follow neighbours of the nest before, which has as many, in the same launch.

    Each follows ``parts`` of them, from a multiple of ``parts`` on, its own number among theirs.

    ``together``: these are a cluster, which a GPU runs at the same time; each goes on when all have arrived.  Else the
    last one that arrives goes on in place of all; each raises a counter, which is 0 before the launch and behind it.
    """

    parts: int
    together: bool


def arrival_of(kernel: Kernel) -> Arrival | None:
    """The one in a launch, where there is one."""
    return next((stmt for stmt in walk_stmts(kernel.body) if isinstance(stmt, Arrival)), None)
