"""A symbolic artefact for numbers: who evaluates dimensions, when a shape is met.

What the kernels are is settled; shapes, the memory plan and the sizes that kernels are handed are made anew, of
what is found out once: which dimensions there are, and how values lie in memory relative to each other.  Code and
weights are those of the symbolic library.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from minitvm.errors import InputError
from minitvm.ir.dims import Dim, SymbolicDim, is_anonymous, number
from minitvm.ir.types import Leaf, TensorType
from minitvm.runtime.graph import Artifact, Graph, workspace_slots
from minitvm.runtime.memory import Planner, room_of


class DoesNotFit(InputError):
    """Numbers for which a symbolic library was not made: types that do not hold for them."""

    measured: Mapping[str, int] = MappingProxyType({})
    """What sizes were that the data decide, where a run has found it out."""


@dataclass(frozen=True)
class Sizes:
    """What a symbolic artefact is for some values of its symbols."""

    values: Mapping[str, int]
    types: Sequence[TensorType]
    """Of its values, in the order of :attr:`Binder.open_types`."""
    nbytes: Sequence[int]
    """Of these types, then of what kernels ask for as workspaces."""

    def hold(self, other: Sizes) -> bool:
        """Whether memory for these is enough for others of the same artefact."""
        return all(map(operator.ge, self.nbytes, other.nbytes))


class Binder:
    """Makes a symbolic artefact one for numbers."""

    def __init__(self, artifact: Artifact) -> None:
        self._artifact, self._types = artifact, _Types(artifact)
        tensors = {name: type_.shape for name, type_ in artifact.inputs.items() if isinstance(type_, TensorType)}
        self._symbols = {
            name: [(axis, dim.atom.of[0]) for axis, dim in enumerate(shape) if isinstance(dim, SymbolicDim)]
            for name, shape in tensors.items()
        }
        facts = {i: artifact.metadata[artifact.graph.nodes[i].func] for i in workspace_slots(artifact.graph)}
        self._with_workspace = [i for i, f in facts.items() if f["workspace"] != 0 or f["workspace_per_thread"] != 0]
        asked = (f[key] for f in facts.values() for key in ("workspace", "workspace_per_thread"))
        self._asked = list(dict.fromkeys(nbytes for nbytes in asked if isinstance(nbytes, SymbolicDim)))
        self._planner: Planner | None = None
        self._planning = threading.Lock()

    def sizes(self, shapes: Mapping[str, tuple[int, ...]]) -> Sizes:
        """For inputs of these shapes, by name; :class:`DoesNotFit` where the artefact's types do not hold for them."""
        return self.sizes_for(self._values(shapes))

    def sizes_for(self, values: Mapping[str, int]) -> Sizes:
        """For values of its symbols; :class:`DoesNotFit` likewise."""
        try:
            for fact in self._artifact.assumed:
                if not fact.holds(values):
                    raise DoesNotFit(f"it is made for {fact}, and that does not hold for {_listed(values)}")
            return self.sizes_of(values)
        except ValueError as error:
            raise DoesNotFit(f"dimension {error}") from None

    def _values(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        """What symbols stand for."""
        found: dict[str, int] = {}
        for name, symbols in self._symbols.items():
            shape = shapes.get(name, ())
            for axis, symbol in symbols[: len(shape)]:
                if found.setdefault(symbol, shape[axis]) != shape[axis]:
                    raise DoesNotFit(f"dimension {symbol} is {found[symbol]} and {shape[axis]}")
        return found

    def sizes_of(self, values: Mapping[str, int]) -> Sizes:
        """For values of its symbols, of which nothing is taken for granted; ``ValueError`` where a dimension is no
        number."""
        types = self._types.at(values)
        return Sizes(values, types, [t.nbytes for t in types] + [number(nbytes, values) for nbytes in self._asked])

    @property
    def open_types(self) -> Mapping[Leaf, int]:
        """The artefact's types with symbols, each with its place among :attr:`Sizes.types`."""
        return self._types.numbers

    def artifact(self, sizes: Sizes) -> Artifact:
        """For these sizes."""
        artifact, values = self._artifact, sizes.values
        graph = self._types.graph(sizes.types)
        metadata = {symbol: _metadata(facts, values) for symbol, facts in artifact.metadata.items()}
        needs = {i: metadata[artifact.graph.nodes[i].func] for i in self._with_workspace}
        workspaces = {i: n["workspace"] + n["workspace_per_thread"] * artifact.threads for i, n in needs.items()}
        with self._planning:
            self._planner = self._planner or Planner(graph, workspaces, room_of(artifact.cpu, artifact.threads))
            plan = self._planner.plan(graph, workspaces)
        numbers = {name: np.array([values[s] for s in symbols], np.int64) for name, symbols in artifact.sizes.items()}
        found = replace(artifact, graph=graph, plan=plan, params={**artifact.params, **numbers}, metadata=metadata)
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
            if isinstance(type_, TensorType) and not type_.is_static and not any(map(is_anonymous, type_.shape)):
                self._open[type_] = tuple(self._dims.setdefault(d, len(self._dims)) for d in type_.shape)
        self.numbers = {type_: place for place, type_ in enumerate(self._open)}
        self._nodes = [
            (i, tuple([self.numbers.get(t, t) for t in node.types]))
            for i, node in enumerate(artifact.graph.nodes)
            if any(t in self._open for t in node.types)
        ]
        self._results = {own for _, own in self._nodes}

    def at(self, values: Mapping[str, int]) -> list[TensorType]:
        """Those with symbols for numbers; ``ValueError`` where a dimension is none."""
        dims = [number(dim, values) for dim in self._dims]
        return [TensorType(tuple([dims[i] for i in shape]), type_.dtype) for type_, shape in self._open.items()]

    def graph(self, types: Sequence[TensorType]) -> Graph:
        made = {own: tuple([types[t] if isinstance(t, int) else t for t in own]) for own in self._results}
        nodes = list(self._graph.nodes)
        for i, own in self._nodes:
            nodes[i] = nodes[i].with_types(made[own])
        return self._graph.with_nodes(tuple(nodes))
