"""The order of a run: stretches of kernels without Python in between, and calls in Python between them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count, groupby

from minitvm.runtime.graph import Graph, HostStep


@dataclass(frozen=True)
class Segment:
    """A stretch of kernel nodes, ``nodes`` in order."""

    symbol: str
    nodes: tuple[int, ...]


def steps_of(graph: Graph) -> list[Segment | int]:
    """Segments, and the nodes that are calls in Python, in the order they run; what moves nothing does not appear."""
    steps: list[Segment | int] = []
    running = [i for i, node in enumerate(graph.nodes) if node.is_kernel or isinstance(node.step, HostStep)]
    numbers = count()
    for in_python, nodes in groupby(running, lambda i: not graph.nodes[i].is_kernel):
        stretch = tuple(nodes)
        steps += stretch if in_python else [Segment(f"segment_{next(numbers)}", stretch)]
    return steps


def segments(steps: list[Segment | int]) -> list[Segment]:
    return [step for step in steps if isinstance(step, Segment)]


def workspace_slots(graph: Graph) -> dict[int, int]:
    """The slot of every kernel node's workspace pointer; entries come first."""
    kernels = [i for i, node in enumerate(graph.nodes) if node.is_kernel]
    return {node: graph.entries + k for k, node in enumerate(kernels)}
