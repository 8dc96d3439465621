"""A symbolic artefact for numbers: who evaluates dimensions, when a shape is met.

What the kernels are is settled; shapes, the memory plan and the sizes that kernels are handed are made anew, of
what is found out once: which dimensions there are, and how values lie in memory relative to each other.  Code and
weights are those of the symbolic library.
"""

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from minitvm.errors import InputError
from minitvm.ir.dims import Dim, SymbolicDim, number
from minitvm.ir.types import Leaf, TensorType
from minitvm.runtime.graph import Artifact, Graph, workspace_slots
from minitvm.runtime.memory import Planner, room_of


class DoesNotFit(InputError):
    """Numbers for which a symbolic library was not made: types that do not hold for them."""


def values_of(artifact: Artifact, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """What the symbols of a library stand for where its inputs have these shapes."""
    found: dict[str, int] = {}
    for node in (artifact.graph.nodes[i] for i in artifact.graph.arg_nodes):
        known = node.types[0].shape if isinstance(node.types[0], TensorType) else ()
        for dim, extent in zip(known, shapes.get(node.name, ()), strict=False):
            if isinstance(dim, SymbolicDim) and found.setdefault(dim.atom.of[0], extent) != extent:
                raise DoesNotFit(f"dimension {dim} is {found[dim.atom.of[0]]} and {extent}")
    return found


class Binder:
    """Makes a symbolic artefact one for numbers."""

    def __init__(self, artifact: Artifact) -> None:
        self._artifact, self._types = artifact, _Types(artifact)
        facts = {i: artifact.metadata[artifact.graph.nodes[i].func] for i in workspace_slots(artifact.graph)}
        self._with_workspace = [i for i, f in facts.items() if f["workspace"] != 0 or f["workspace_per_thread"] != 0]
        self._planner: Planner | None = None
        self._planning = threading.Lock()

    def bound(self, shapes: Mapping[str, tuple[int, ...]]) -> Artifact:
        """The artefact for inputs of these shapes, by name; :class:`DoesNotFit` where its types do not hold."""
        values = values_of(self._artifact, shapes)
        try:
            for fact in self._artifact.assumed:
                if not fact.holds(values):
                    raise DoesNotFit(f"it is made for {fact}, and that does not hold for {_listed(values)}")
            return self._bound(values)
        except ValueError as error:
            raise DoesNotFit(f"dimension {error}") from None

    def _bound(self, values: Mapping[str, int]) -> Artifact:
        artifact = self._artifact
        graph = self._types.graph(values)
        metadata = {symbol: _metadata(facts, values) for symbol, facts in artifact.metadata.items()}
        needs = {i: metadata[artifact.graph.nodes[i].func] for i in self._with_workspace}
        workspaces = {i: n["workspace"] + n["workspace_per_thread"] * artifact.threads for i, n in needs.items()}
        with self._planning:
            self._planner = self._planner or Planner(graph, workspaces, room_of(artifact.cpu, artifact.threads))
            plan = self._planner.plan(graph, workspaces)
        sizes = {name: np.array([values[s] for s in symbols], np.int64) for name, symbols in artifact.sizes.items()}
        found = replace(artifact, graph=graph, plan=plan, params={**artifact.params, **sizes}, metadata=metadata)
        return replace(found, sizes={}, assumed=frozenset(), others=())


def _listed(values: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items())


def _metadata(facts: Mapping[str, Any], values: Mapping[str, int]) -> Mapping[str, Any]:
    """Bytes of workspaces as numbers."""
    found = {name: number(value, values) for name, value in facts.items() if isinstance(value, SymbolicDim)}
    return {**facts, **found} if found else facts


class _Types:
    """The types of a graph, each dimension once: evaluated, they are the same graph for numbers."""

    def __init__(self, artifact: Artifact) -> None:
        self._graph = Graph(artifact.graph.nodes, artifact.graph.heads)
        self._dims: dict[Dim, int] = {}
        self._open: dict[Leaf, tuple[int, ...]] = {}
        for type_ in artifact.graph.entry_types:
            if isinstance(type_, TensorType) and not type_.is_static:
                self._open[type_] = tuple(self._dims.setdefault(d, len(self._dims)) for d in type_.shape)
        self._numbers = {type_: place for place, type_ in enumerate(self._open)}
        self._nodes = [
            (i, tuple([self._numbers.get(t, t) for t in node.types]))
            for i, node in enumerate(artifact.graph.nodes)
            if any(t in self._open for t in node.types)
        ]
        self._results = {own for _, own in self._nodes}

    def graph(self, values: Mapping[str, int]) -> Graph:
        """``ValueError`` where a dimension is no number."""
        dims = [number(dim, values) for dim in self._dims]
        types = [TensorType(tuple([dims[i] for i in shape]), type_.dtype) for type_, shape in self._open.items()]
        made = {own: tuple([types[t] if isinstance(t, int) else t for t in own]) for own in self._results}
        nodes = list(self._graph.nodes)
        for i, own in self._nodes:
            nodes[i] = nodes[i].with_types(made[own])
        return self._graph.with_nodes(tuple(nodes))
