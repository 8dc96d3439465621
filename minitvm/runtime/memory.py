"""Where each value of a graph lies: the plan that a library carries, and who shares memory with whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minitvm.runtime.graph import Alias, Graph
from minitvm.runtime.ndarray import ALIGNMENT


@dataclass(frozen=True)
class Plan:
    """``offsets`` and ``storage_ids`` per entry; an offset of -1 is outside of the arena (inputs, parameters,
    values whose size is not known).  ``workspaces`` are offsets per node that has one."""

    offsets: tuple[int, ...]
    storage_ids: tuple[int, ...]
    workspaces: Mapping[int, int]
    nbytes: int
    lower_bound: int
    """Bytes alive at the worst step: no plan can do with less."""
    naive: int
    """Bytes if nothing were shared."""

    def __str__(self) -> str:
        share = self.nbytes / self.lower_bound if self.lower_bound else 1.0
        return (
            f"planned {self.nbytes:,} bytes; lower bound {self.lower_bound:,} ({share:.3f} x); "
            f"without sharing {self.naive:,}"
        )


def round_up(nbytes: int) -> int:
    """What a value of ``nbytes`` takes in the arena."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def owners(graph: Graph) -> list[int]:
    """The entry whose memory each entry has: itself, or the input of the reshape that it is the result of."""
    types = graph.entry_types
    owner = list(range(graph.entries))
    for i, node in enumerate(graph.nodes):
        if isinstance(node.step, Alias) and types[graph.entry_start[i]].is_static:
            owner[graph.entry_start[i]] = owner[graph.entry_id(node.inputs[0])]
    return owner


def last_uses(graph: Graph, owner: Sequence[int]) -> list[int]:
    """The last step that reads each owner; results of the graph, and of checks, are read after the last node."""
    last = [0] * graph.entries
    for step, node in enumerate(graph.nodes):
        for i in range(len(node.types)):
            last[owner[graph.entry_id((step, i))]] = step
        for entry in node.inputs:
            last[owner[graph.entry_id(entry)]] = step
    checks = [(step, 0) for step, node in enumerate(graph.nodes) if node.check]
    for head in (*graph.heads, *checks):
        last[owner[graph.entry_id(head)]] = len(graph.nodes)
    return last
