"""A symbolic artefact for numbers: who evaluates dimensions, when a shape is met.

What the kernels are is settled; shapes, the memory plan and the sizes that kernels are handed are made anew, of
what is found out once: which dimensions there are, and how values lie in memory relative to each other.  Code and
weights are those of the symbolic library.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np

from minitvm.errors import InputError
from minitvm.ir.dims import FUNCTIONS, Dim, SymbolicDim, number
from minitvm.ir.polynomials import Atom
from minitvm.ir.types import Leaf, TensorType, symbols
from minitvm.runtime.graph import Artifact, Graph, Host, workspace_slots
from minitvm.runtime.memory import Planner, spread_limit
from minitvm.runtime.places import kept_of

MOST_KEPT = 1 << 25
"""Bytes that what depends on sizes alone may take so that an instance keeps it; more is computed in every run."""


class DoesNotFit(InputError):
    """Numbers for which a symbolic library was not made: types that do not hold for them."""

    measured: Mapping[str, int] = MappingProxyType({})
    """What sizes were that the data decide, where a run has found it out."""


@dataclass(frozen=True)
class Sizes:
    """What a symbolic artefact is for some values of its symbols."""

    values: Mapping[str, int]
    dims: Sequence[int]
    """All of its dimensions."""
    asked: Sequence[int]
    """Bytes that kernels ask for as workspaces."""
    _types: _Types
    inside: Mapping[tuple[str, str], Sizes] = field(default_factory=dict)
    """Of the bodies of control flow, by node and attribute."""

    def type_at(self, place: int) -> TensorType:
        """The type with a place among :attr:`Binder.open_types`."""
        return self._types.at(place, self.dims)

    @cached_property
    def types(self) -> Sequence[TensorType]:
        """The types of its values, in the order of :attr:`Binder.open_types`."""
        return [self.type_at(place) for place in range(len(self._types.numbers))]

    @cached_property
    def nbytes(self) -> Sequence[int]:
        """The bytes of these types, then of workspaces."""
        return [*(t.nbytes if t.is_static else 0 for t in self.types), *self.asked]

    def hold(self, other: Sizes) -> bool:
        """True if memory for these is enough for others of the same artefact."""
        no_less = all(map(operator.ge, self.dims, other.dims)) and all(map(operator.ge, self.asked, other.asked))
        return no_less or all(map(operator.ge, self.nbytes, other.nbytes))


class Binder:
    """Makes a symbolic artefact one for numbers."""

    def __init__(self, artifact: Artifact) -> None:
        self._artifact, self._types = artifact, _Types(artifact)
        tensors = {name: type_.shape for name, type_ in artifact.inputs.items() if isinstance(type_, TensorType)}
        named: dict[tuple[Dim, ...], list[tuple[int, str]]] = {
            shape: [(axis, dim.atom.of[0]) for axis, dim in enumerate(shape) if isinstance(dim, SymbolicDim)]
            for shape in tensors.values()
        }
        self._symbols = {name: named[shape] for name, shape in tensors.items()}
        facts = {i: artifact.metadata[artifact.graph.nodes[i].func] for i in workspace_slots(artifact.graph)}
        self._with_workspace = [i for i, f in facts.items() if f["workspace"] != 0 or f["workspace_per_thread"] != 0]
        asked = (f[key] for f in facts.values() for key in ("workspace", "workspace_per_thread"))
        self._asked = list(dict.fromkeys(nbytes for nbytes in asked if isinstance(nbytes, SymbolicDim)))
        self._inside = {
            (node, attribute): Binder(body)
            for node, host in _open_control(artifact).items()
            for attribute, body in host.branches.items()
        }
        self._planners: dict[frozenset[int], Planner] = {}
        self._planning = threading.Lock()

    def sizes(self, shapes: Mapping[str, tuple[int, ...]]) -> Sizes:
        """The sizes for inputs of these shapes, by name; :class:`DoesNotFit` where the artefact's types do not hold for
        them."""
        return self.sizes_for(self._values(shapes))

    def sizes_for(self, values: Mapping[str, int]) -> Sizes:
        """The sizes for values of its symbols; :class:`DoesNotFit` likewise."""
        try:
            for fact in self._artifact.assumed:
                if not fact.holds(values):
                    raise DoesNotFit(f"it is made for {fact}, and that does not hold for {_listed(values)}")
            return self.sizes_of(values)
        except ValueError as error:
            raise DoesNotFit(f"dimension {error}") from None

    def quick_sizes(self, values: Mapping[str, int]) -> Sizes | None:
        """The sizes that :meth:`sizes_for` finds, by Python code of its own; ``None`` where that says no."""
        try:
            found = self._code(*[values[symbol] for symbol in self._order])
        except (KeyError, ZeroDivisionError):
            return None
        if found is None or min(found, default=0) < 0:
            return None
        count = len(found) - len(self._asked)
        return Sizes(values, found[:count], found[count:], self._types)

    @cached_property
    def _order(self) -> list[str]:
        """The symbols that sizes are made of."""
        facts = [dim for fact in self._artifact.assumed for dim in (fact.a, fact.b)]
        dims = [dim for dim in (*self._types.dims, *self._asked, *facts) if isinstance(dim, SymbolicDim)]
        return sorted({symbol.of[0] for dim in dims for symbol in dim.symbols()})

    @cached_property
    def _code(self) -> Callable[..., tuple[int, ...] | None]:
        """All dimensions and what is asked for, of the symbols' values; nothing where a fact does not hold."""
        names = {symbol: f"v{i}" for i, symbol in enumerate(self._order)}
        sizes = "".join(f"{python_of(dim, names)}, " for dim in (*self._types.dims, *self._asked))
        facts = [f"{python_of(f.a, names)} {f.relation} {python_of(f.b, names)}" for f in self._artifact.assumed]
        text = f"lambda {', '.join(names.values())}: ({sizes}) if {' and '.join(facts) or 'True'} else None"
        found: Callable[..., tuple[int, ...] | None] = eval(text, dict(_OF_NUMBERS))
        return found

    def _values(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        """What symbols stand for."""
        found: dict[str, int] = {}
        before: Any = None
        for name, named in self._symbols.items():
            shape = shapes.get(name, ())
            if before == (id(named), shape):
                continue
            before = id(named), shape
            for axis, symbol in named[: len(shape)]:
                if found.setdefault(symbol, shape[axis]) != shape[axis]:
                    raise DoesNotFit(f"dimension {symbol} is {found[symbol]} and {shape[axis]}")
        return found

    def sizes_of(self, values: Mapping[str, int]) -> Sizes:
        """The sizes for values of its symbols, of which nothing is taken for granted; ``ValueError`` where a dimension
        is no number."""
        asked = [number(nbytes, values) for nbytes in self._asked]
        inside = {key: body.sizes_of(values) for key, body in self._inside.items()}
        return Sizes(values, self._types.extents(values), asked, self._types, inside)

    @property
    def open_types(self) -> Mapping[Leaf, int]:
        """The artefact's types with symbols, each with its place among :attr:`Sizes.types`."""
        return self._types.numbers

    def artifact(self, sizes: Sizes) -> Artifact:
        """The artefact for these sizes."""
        artifact, values = self._artifact, sizes.values
        graph = self._types.graph(sizes.types)
        metadata = {symbol: _metadata(facts, values) for symbol, facts in artifact.metadata.items()}
        needs = {i: metadata[artifact.graph.nodes[i].func] for i in self._with_workspace}
        workspaces = {i: n["workspace"] + n["workspace_per_thread"] * artifact.threads for i, n in needs.items()}
        with self._planning:
            plan = self._planner(graph, workspaces).plan(graph, workspaces)
        numbers = {name: np.array([values[s] for s in symbols], np.int64) for name, symbols in artifact.sizes.items()}
        found = replace(artifact, graph=graph, plan=plan, params={**artifact.params, **numbers}, metadata=metadata)
        return replace(found, sizes={}, assumed=frozenset(), others=(), hosts=self._hosts(sizes))

    def _planner(self, graph: Graph, workspaces: Mapping[int, int]) -> Planner:
        """What plans memory for values of these sizes: what depends on them alone is kept where it is not too large."""
        kept, types = kept_of(graph), graph.entry_types
        if sum(types[entry].nbytes for entry in kept) > MOST_KEPT:
            kept = frozenset()
        if kept not in self._planners:
            room = spread_limit(self._artifact.cpu, self._artifact.threads)
            self._planners[kept] = Planner(graph, workspaces, room, kept)
        return self._planners[kept]

    def _hosts(self, sizes: Sizes) -> Mapping[str, Host]:
        """Control flow with types and bodies for these sizes; a stage is bound in a run."""
        if not self._inside:
            return self._artifact.hosts
        from minitvm.runtime.hosts import numbered

        found = dict(self._artifact.hosts)
        for node in {node for node, _ in self._inside}:
            bodies = {a: self._inside[node, a].artifact(sizes.inside[node, a]) for a in found[node].branches}
            found[node] = Host(numbered(found[node].function, sizes.values), bodies)
        return found


_OF_NUMBERS = {name: function for name, function in FUNCTIONS.items() if name.isidentifier()} | {"min": min, "max": max}


def python_of(dim: Dim, names: Mapping[str, str]) -> str:
    """A dimension as Python computes it, of symbols by these names."""
    if isinstance(dim, int):
        return f"({dim})"
    products = (" * ".join([str(factor), *(_atom(atom, names) for atom in m)]) for m, factor in dim.terms)
    return f"({' + '.join(products)})"


def _atom(atom: Atom, names: Mapping[str, str]) -> str:
    if atom.kind == "symbol":
        return names[atom.of[0]]
    a, b = (python_of(dim, names) for dim in atom.of)
    return f"({a} // {b})" if atom.kind == "//" else f"{atom.kind}({a}, {b})"


def _open_control(artifact: Artifact) -> Mapping[str, Host]:
    """The host calls that are choices or loops over sizes that have names."""
    if not artifact.hosts:
        return {}
    from minitvm.runtime.hosts import is_open_control  # loads the operators, which most libraries do without

    return {node: host for node, host in artifact.hosts.items() if is_open_control(host.function)}


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
        self.dims: dict[Dim, int] = {}
        tensors = (t for t in artifact.graph.entry_types if isinstance(t, TensorType) and symbols(t))
        self.numbers: Mapping[Leaf, int] = {type_: place for place, type_ in enumerate(dict.fromkeys(tensors))}
        self._shapes = [(tuple(map(self._place, t.shape)), t.dtype) for t in self.numbers]
        """Where the dimensions stand; anonymous ones, which a run finds out, as they are."""
        self._nodes = [
            (i, tuple([self.numbers.get(t, t) for t in node.types]))
            for i, node in enumerate(artifact.graph.nodes)
            if any(t in self.numbers for t in node.types)
        ]
        self._results = {own for _, own in self._nodes}

    def _place(self, dim: Dim) -> int | SymbolicDim:
        if isinstance(dim, SymbolicDim) and dim.is_anonymous:
            return dim
        return self.dims.setdefault(dim, len(self.dims))

    def extents(self, values: Mapping[str, int]) -> list[int]:
        """The dimensions as numbers; ``ValueError`` where one is none."""
        return [dim if isinstance(dim, int) else number(dim, values) for dim in self.dims]

    def at(self, place: int, dims: Sequence[int]) -> TensorType:
        """One with symbols for such numbers."""
        shape, dtype = self._shapes[place]
        return TensorType(tuple([dims[d] if isinstance(d, int) else d for d in shape]), dtype)

    def graph(self, types: Sequence[TensorType]) -> Graph:
        made = {own: tuple([types[t] if isinstance(t, int) else t for t in own]) for own in self._results}
        nodes = list(self._graph.nodes)
        for i, own in self._nodes:
            nodes[i] = nodes[i].with_types(made[own])
        return self._graph.with_nodes(tuple(nodes))
