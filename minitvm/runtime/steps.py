"""The steps of a run: stretches of kernels that run natively, and host calls between them."""

from __future__ import annotations

from dataclasses import dataclass

from minitvm.runtime.graph import HOST, Graph


@dataclass(frozen=True)
class Segment:
    """A stretch of kernel nodes that run natively, ``nodes`` in order."""

    symbol: str
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class HostStep:
    node: int


def steps_of(graph: Graph) -> list[Segment | HostStep]:
    """Native segments and host calls in the order they run; reshapes that move nothing do not appear."""
    steps: list[Segment | HostStep] = []
    run: list[int] = []

    def close() -> None:
        if run:
            steps.append(Segment(f"segment_{sum(isinstance(s, Segment) for s in steps)}", tuple(run)))
            run.clear()

    for i, node in enumerate(graph.nodes):
        if node.func == HOST:
            close()
            steps.append(HostStep(i))
        elif node.is_kernel:
            run.append(i)
    close()
    return steps


def workspace_slots(graph: Graph) -> dict[int, int]:
    """The slot of every kernel node's workspace pointer; entries come first."""
    kernels = [i for i, node in enumerate(graph.nodes) if node.is_kernel]
    return {node: graph.entries + k for k, node in enumerate(kernels)}
