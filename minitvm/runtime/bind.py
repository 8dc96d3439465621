"""A symbolic artefact for numbers: who evaluates dimensions, when a shape is met.

What the kernels are is settled; shapes, the memory plan and the sizes that kernels are handed are made anew.  Code and
weights are those of the symbolic library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minitvm.errors import InputError
from minitvm.ir.dims import Atom, Dim, SymbolicDim
from minitvm.ir.dims import replace as replaced
from minitvm.ir.types import TensorType
from minitvm.runtime.graph import Artifact, Graph
from minitvm.runtime.library import Library
from minitvm.runtime.memory import plan_memory


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


@dataclass(frozen=True)
class SymbolicLibrary:
    """A library whose shapes have symbols.  Its types hold where each pair of ``assumed`` dimensions is equal."""

    library: Library
    assumed: frozenset[tuple[Dim, Dim]] = frozenset()

    def for_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> Library:
        """The library for inputs of these shapes, by name; :class:`DoesNotFit` where its types do not hold for them."""
        values = values_of(self.library.artifact, shapes)
        numbers = _Numbers(values)
        for a, b in self.assumed:
            if numbers.of(a) != numbers.of(b):
                raise DoesNotFit(f"dimensions {a} and {b} are {numbers.of(a)} and {numbers.of(b)}")
        return bound(self.library, values)


def bound(library: Library, values: Mapping[str, int]) -> Library:
    """The library for numbers in the place of symbols."""
    found = Library(bound_artifact(library.artifact, values), library.ir_mod, library.report)
    found.share_code(library)
    return found


def bound_artifact(artifact: Artifact, values: Mapping[str, int]) -> Artifact:
    numbers = _Numbers(values)
    nodes = tuple(replace(node, types=tuple(map(numbers.type, node.types))) for node in artifact.graph.nodes)
    graph = Graph(nodes, artifact.graph.heads)
    metadata = {symbol: _metadata(facts, numbers) for symbol, facts in artifact.metadata.items()}
    workspaces = {
        i: metadata[node.func]["workspace"] + metadata[node.func]["workspace_per_thread"] * artifact.threads
        for i, node in enumerate(nodes)
        if node.is_kernel
    }
    sizes = {name: np.array([values[s] for s in symbols], np.int64) for name, symbols in artifact.sizes.items()}
    params = {**artifact.params, **sizes}
    return replace(
        artifact, graph=graph, plan=plan_memory(graph, workspaces), params=params, metadata=metadata, sizes={}
    )


def _metadata(facts: Mapping[str, Any], numbers: _Numbers) -> dict[str, Any]:
    return {name: numbers.of(value) if isinstance(value, SymbolicDim) else value for name, value in facts.items()}


class _Numbers:
    def __init__(self, values: Mapping[str, int]) -> None:
        self._atoms: dict[Atom, Dim] = {Atom("symbol", (name,)): value for name, value in values.items()}
        self._known: dict[Dim, int] = {}
        self._types: dict[TensorType, TensorType] = {}

    def of(self, dim: Dim) -> int:
        if isinstance(dim, int):
            return dim
        if dim not in self._known:
            try:
                found = replaced(dim, self._atoms)
            except ValueError as error:
                raise DoesNotFit(f"dimension {dim}: {error}") from None
            if isinstance(found, SymbolicDim) or found < 0:
                raise DoesNotFit(f"dimension {dim} would be {found}")
            self._known[dim] = found
        return self._known[dim]

    def type(self, type_: Any) -> Any:
        if not isinstance(type_, TensorType) or type_.is_static:
            return type_
        if type_ not in self._types:
            self._types[type_] = type_.with_shape(tuple(map(self.of, type_.shape)))
        return self._types[type_]
