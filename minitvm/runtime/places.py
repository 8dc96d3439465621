"""In whose memory each value of a graph lies, from which byte on, and its liveness: how long that memory is needed.

A reshape, or a slice that is one stretch of memory, lies in its operand's; the operands of a concatenation may have
been made in its result's.  All others own theirs.
"""

from itertools import accumulate
from typing import NamedTuple

from minitvm.runtime.graph import Alias, Graph, Join, once


class Place(NamedTuple):
    """A stretch in an entry's memory, from byte ``start`` on."""

    entry: int
    start: int


@once
def places(graph: Graph) -> list[Place]:
    """The place of each entry.  What is not static owns its memory."""
    types, parts = graph.entry_types, dict[int, Place]()

    def place(entry: int) -> Place:
        way = []
        while entry in parts:
            way.append(entry)
            entry = parts[entry].entry
        start = 0
        for inner in reversed(way):  # all of them find the owner at once from now on
            start += parts[inner].start
            parts[inner] = Place(entry, start)
        return Place(entry, start)

    for result, node in zip(graph.entry_start, graph.nodes, strict=False):
        operands = list(map(graph.entry_id, node.inputs))
        if isinstance(node.step, Alias) and types[result].is_static:
            parts |= {result + n: Place(operands[0], start) for n, start in enumerate(node.step.starts)}
        elif isinstance(node.step, Join):
            starts = accumulate((types[operand].nbytes for operand in operands), initial=0)
            for operand, start in zip(operands, starts, strict=False):
                parts[place(operand).entry] = Place(result, start)
    return [place(entry) for entry in range(graph.entries)]


@once
def owners(graph: Graph) -> list[int]:
    """The entry whose memory each entry has."""
    return [place.entry for place in places(graph)]


@once
def readers(graph: Graph) -> dict[int, list[Place]]:
    """The entries in each owner's memory, each with where it begins there."""
    found: dict[int, list[Place]] = {}
    for entry, (owner, start) in enumerate(places(graph)):
        found.setdefault(owner, []).append(Place(entry, start))
    return found


@once
def liveness(graph: Graph) -> list[tuple[int, int]]:
    """The first step that writes each owner's memory and the last one that reads it; results of the graph, and of
    checks, are read after the last node."""
    owner = owners(graph)
    first, last = [len(graph.nodes)] * graph.entries, [0] * graph.entries
    for step, node in enumerate(graph.nodes):
        for own in (owner[graph.entry_start[step] + i] for i in range(len(node.types))):
            first[own], last[own] = min(first[own], step), step
        for entry in node.inputs:
            last[owner[graph.entry_id(entry)]] = step
    checks = [(step, 0) for step, node in enumerate(graph.nodes) if node.check]
    for head in (*graph.heads, *checks):
        last[owner[graph.entry_id(head)]] = len(graph.nodes)
    return list(zip(first, last, strict=True))
