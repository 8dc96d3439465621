"""In whose memory each value of a graph lies, from which byte on, and its liveness: how long that memory is needed.

A reshape, or a slice that is one stretch of memory, lies in its operand's; the operands of a concatenation may have
been made in its result's.  All others own theirs.
"""

from collections.abc import Collection
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from minitvm.runtime.graph import Alias, Graph, HostStep, Join, Launch, of_structure


class Place(NamedTuple):
    """A stretch in an entry's memory, from byte ``start`` on."""

    entry: int
    start: int


@of_structure
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


@of_structure
def owners(graph: Graph) -> list[int]:
    """The entry whose memory each entry has."""
    return [place.entry for place in places(graph)]


@of_structure
def readers(graph: Graph) -> dict[int, list[Place]]:
    """The entries in each owner's memory, each with where it begins there."""
    found: dict[int, list[Place]] = {}
    for entry, (owner, start) in enumerate(places(graph)):
        found.setdefault(owner, []).append(Place(entry, start))
    return found


@of_structure
def kept_of(graph: Graph) -> frozenset[int]:
    """The owners of what depends on parameters and sizes alone and is read after the segment that makes it."""
    owner, makers = owners(graph), graph.makers
    readers = (node for node in graph.nodes if not node.once and (node.is_kernel or isinstance(node.step, HostStep)))
    read = {owner[graph.entry_id(entry)] for node in readers for entry in node.inputs}
    read |= {owner[graph.entry_start[i]] for i, node in enumerate(graph.nodes) if node.check}
    return frozenset(own for own in read if makers[own].once)


def with_once(graph: Graph, known: Collection[str]) -> Graph:
    """The graph whose kernels that read nothing but parameters and sizes, those ``known``, say so; but for those whose
    results are the graph's, or lie in other values."""
    owner, nodes = owners(graph), list(graph.nodes)
    heads = {owner[graph.entry_id(head)] for head in graph.heads}
    fixed: set[int] = set()
    for i, node in enumerate(nodes):
        own = range(graph.entry_start[i], graph.entry_start[i + 1])
        if node.is_null:
            is_fixed = node.name in known
        else:
            is_fixed = all(entry[0] in fixed for entry in node.inputs) and isinstance(node.step, Launch | Alias)
        if is_fixed and isinstance(node.step, Launch):
            is_fixed = all(owner[entry] == entry and entry not in heads for entry in own)
            nodes[i] = replace(node, step=replace(node.step, once=is_fixed))
        if is_fixed:
            fixed.add(i)
    return Graph(tuple(nodes), graph.heads)


@of_structure
def liveness(graph: Graph) -> list[tuple[int, int]]:
    """The first step that writes each owner's memory and the last one that reads it; results of the graph, and of
    checks, are read after the last node, and what depends on sizes alone is there before the first."""
    owner = owners(graph)
    first, last = [len(graph.nodes)] * graph.entries, [0] * graph.entries
    for step, node in enumerate(graph.nodes):
        for own in (owner[graph.entry_start[step] + i] for i in range(len(node.types))):
            first[own], last[own] = min(first[own], 0 if node.once else step), step
        for entry in node.inputs:
            last[owner[graph.entry_id(entry)]] = step
    checks = [(step, 0) for step, node in enumerate(graph.nodes) if node.check]
    for head in (*graph.heads, *checks):
        last[owner[graph.entry_id(head)]] = len(graph.nodes)
    return list(zip(first, last, strict=True))
