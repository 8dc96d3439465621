"""A compiled model as data: nodes in the order they run, where their values lie; the artefact.

What a node does is its *step*, one of the classes here; an input or parameter has none (``null`` in JSON).  Values are
*entries* ``(node, output)``, numbered in node order (``entry_id``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, wraps
from itertools import accumulate, count, groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from minitvm.errors import origin
from minitvm.ir.arrays import ALIGNMENT
from minitvm.ir.dims import Fact, SymbolicDim
from minitvm.ir.types import Leaf, Span, TensorType

if TYPE_CHECKING:
    from minitvm.ir.expr import Function

Entry: TypeAlias = tuple[int, int]
"""(node, output)."""


@dataclass(frozen=True)
class Launch:
    """Runs one of the artefact's kernels."""

    symbol: str
    once: bool = False
    """Whether it depends on parameters and sizes alone, so that its results stay right as long as these do."""


@dataclass(frozen=True)
class LibraryCall:
    """Calls a vendor's library; which function, and with what, is what the artefact has under the symbol."""

    symbol: str


@dataclass(frozen=True)
class Alias:
    """Runs nothing: the results are the operand's memory, each from a byte of ``starts`` on, in shapes of their own."""

    starts: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class Join:
    """Runs nothing: the operands were made in the result's memory, one behind the other."""


@dataclass(frozen=True)
class HostStep:
    """A call in Python, of the artefact's host function of the node's name."""


Step: TypeAlias = Launch | LibraryCall | Alias | Join | HostStep
STEPS: dict[str, Step | None] = {"": None, "__nop": Alias(), "__join": Join(), "__host": HostStep()}
"""Steps by TVM's ``func_name``; any other is a symbol."""
_NAMES = {type(step): name for name, step in STEPS.items()}


@dataclass(frozen=True, slots=True)
class Node:
    """``step`` is ``None`` for inputs and parameters.  ``name`` is unique."""

    name: str
    step: Step | None
    inputs: tuple[Entry, ...]
    types: tuple[Leaf, ...]
    spans: Span = ()
    check: str = ""
    """Of a node whose result is an index out of range (``control.out_of_range``): what to raise, ``{}`` the index."""

    @property
    def is_null(self) -> bool:
        return self.step is None

    @property
    def is_kernel(self) -> bool:
        """True if the artefact's code runs it: a kernel, or a library's function in place of one."""
        return isinstance(self.step, Launch | LibraryCall)

    @property
    def func(self) -> str:
        """TVM's ``func_name``: a symbol, ``__nop``, ``__join``, ``__host``, or nothing for inputs and parameters."""
        return self.step.symbol if isinstance(self.step, Launch | LibraryCall) else _NAMES[type(self.step)]

    @property
    def once(self) -> bool:
        """True if it depends on parameters and sizes alone."""
        return isinstance(self.step, Launch) and self.step.once

    def with_types(self, types: tuple[Leaf, ...]) -> Node:
        """The same node with results of other types."""
        return Node(self.name, self.step, self.inputs, types, self.spans, self.check)


@dataclass(frozen=True, repr=False)
class Graph:
    nodes: tuple[Node, ...]
    heads: tuple[Entry, ...]
    structure: dict[str, Any] = field(init=False, compare=False, repr=False, default_factory=dict)
    """What :func:`of_structure` keeps: it is that of all graphs made :meth:`with_nodes`."""

    def __repr__(self) -> str:
        return f"<Graph of {len(self.nodes)} nodes, {sum(n.is_kernel for n in self.nodes)} of them kernels>"

    @cached_property
    def entry_start(self) -> tuple[int, ...]:
        """Number of the first entry of each node; one more at the end (TVM's ``node_row_ptr``)."""
        return tuple(accumulate((len(node.types) for node in self.nodes), initial=0))

    def with_nodes(self, nodes: tuple[Node, ...]) -> Graph:
        """The same graph with results of other sizes."""
        found = object.__new__(Graph)
        found.__dict__.update(self.__dict__, nodes=nodes)
        return found

    @property
    def entries(self) -> int:
        return self.entry_start[-1]

    def entry_id(self, entry: Entry) -> int:
        return self.entry_start[entry[0]] + entry[1]

    def type_of(self, entry: Entry) -> Leaf:
        return self.nodes[entry[0]].types[entry[1]]

    @property
    def entry_types(self) -> list[Leaf]:
        return [type_ for node in self.nodes for type_ in node.types]

    @property
    def makers(self) -> list[Node]:
        """The node that each entry is a result of, by entry."""
        return [node for node in self.nodes for _ in node.types]

    @property
    def arg_nodes(self) -> list[int]:
        return _arg_nodes(self)


Found = TypeVar("Found")


def of_structure(function: Callable[[Graph], Found]) -> Callable[[Graph], Found]:
    """Finds what does not depend on sizes once for all graphs that differ in sizes alone.  Not to be changed."""

    @wraps(function)
    def found(graph: Graph) -> Found:
        if function.__name__ not in graph.structure:
            graph.structure[function.__name__] = function(graph)
        kept: Found = graph.structure[function.__name__]
        return kept

    return found


@of_structure
def _arg_nodes(graph: Graph) -> list[int]:
    return [i for i, node in enumerate(graph.nodes) if node.is_null]


# --- the order of a run ---------------------------------------------------------------------------------------


class Segment(NamedTuple):
    """A stretch of kernel nodes, ``nodes`` in order."""

    symbol: str
    nodes: tuple[int, ...]


@of_structure
def steps_of(graph: Graph) -> list[Segment | int]:
    """Segments, and the nodes that are calls in Python, in the order they run; what moves nothing does not appear.
    What depends on parameters and sizes alone is a segment of its own, the first."""
    steps: list[Segment | int] = []
    running = [i for i, node in enumerate(graph.nodes) if node.is_kernel or isinstance(node.step, HostStep)]
    running.sort(key=lambda i: not graph.nodes[i].once)
    numbers = count()
    for (in_python, _), nodes in groupby(running, lambda i: (not graph.nodes[i].is_kernel, graph.nodes[i].once)):
        stretch = tuple(nodes)
        steps += stretch if in_python else [Segment(f"segment_{next(numbers)}", stretch)]
    return steps


def segments(steps: list[Segment | int]) -> list[Segment]:
    return [step for step in steps if isinstance(step, Segment)]


@of_structure
def workspace_slots(graph: Graph) -> dict[int, int]:
    """The slot of every kernel node's workspace pointer; entries come first."""
    kernels = [i for i, node in enumerate(graph.nodes) if node.is_kernel]
    return {node: graph.entries + k for k, node in enumerate(kernels)}


def stop_slot(graph: Graph) -> int:
    """The slot behind all others: a word that is not 0 when the run is to stop."""
    return graph.entries + len(workspace_slots(graph))


# --- memory ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
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

    def __repr__(self) -> str:
        return f"<memory {self}>"

    def __str__(self) -> str:
        share = self.nbytes / self.lower_bound if self.lower_bound else 1.0
        return (
            f"planned {self.nbytes:,} bytes; lower bound {self.lower_bound:,} ({share:.3f} x); "
            f"without sharing {self.naive:,}"
        )


def round_up(nbytes: int) -> int:
    """What a value of ``nbytes`` takes in the arena."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


# --- the artefact: all of a compiled model, what build makes, a file holds, and instances run ------------------


class CpuTag(NamedTuple):
    """The CPU that object code was made for."""

    triple: str
    name: str
    features: tuple[str, ...]
    """Instruction sets that the code may use, without ``+``."""
    caches: tuple[int, ...] = ()
    """Bytes of the first, second and third level that kernels were made for."""


class HostCall(NamedTuple):
    """An operator that runs in Python instead of in a kernel, and why."""

    op: str
    reason: str
    node: str
    span: Span = ()

    def __str__(self) -> str:
        return f"{self.op}{f' ({origin(self.span)})' if self.span else ''}: {self.reason}"


class Host(NamedTuple):
    """What a call in Python does: a function over its operands, and the compiled branches of control flow."""

    function: Function
    branches: Mapping[str, Artifact] = MappingProxyType({})
    """By attribute of the operator."""


@dataclass(frozen=True, repr=False)
class Artifact:
    """Everything that a compiled model consists of; what its file holds."""

    graph: Graph
    plan: Plan
    params: Mapping[str, np.ndarray]
    """64-byte aligned."""
    objects: Mapping[str, Any]
    """By kernel, what the target's :class:`Code` runs: object code, or bytes of another kind."""
    metadata: Mapping[str, Mapping[str, Any]]
    target: str
    cpu: CpuTag
    threads: int
    """What kernels were scheduled for, and the plan's workspaces made for."""
    entry: bytes = b""
    """What calls the kernels; holds the seal, from which the library's file is written and read.
    Nothing of targets whose libraries cannot be saved."""
    hosts: Mapping[str, Host] = field(default_factory=dict)
    """By node."""
    sizes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Of a symbolic artefact: the parameters that hold the sizes of kernels, with their symbols; a library for numbers
    is made of it by ``runtime/bind.py``."""
    assumed: frozenset[Fact] = frozenset()
    """Of a symbolic artefact: its types hold where these do."""
    host_calls: tuple[HostCall, ...] = ()
    values: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Inputs of the model for whose values it was compiled."""
    model: Mapping[str, Any] = field(default_factory=dict)
    """What the model that it was made of says of itself, as JSON: its inputs and outputs (name, ONNX Runtime's type,
    shape) under ``inputs`` and ``outputs``, and ``metadata``.  Nothing of what was built of a graph."""
    others: tuple[Artifact, ...] = ()
    """The same model, compiled for other shapes or values."""

    @cached_property
    def is_open(self) -> bool:
        """True if it is for all shapes; of such a one without kernels its types or assumptions say so."""
        if self.sizes or self.assumed:
            return True
        tensors = (type_ for type_ in self.graph.entry_types if isinstance(type_, TensorType))
        return any(isinstance(d, SymbolicDim) and not d.is_anonymous for type_ in tensors for d in type_.shape)

    def __repr__(self) -> str:
        return f"<Artifact for {self.target}: {self.graph!r}, {len(self.params)} params>"

    @property
    def inputs(self) -> dict[str, Leaf]:
        """The types of what a run is given, by name."""
        nodes = (self.graph.nodes[i] for i in self.graph.arg_nodes)
        return {n.name: n.types[0] for n in nodes if n.name not in self.params and n.name not in self.sizes}

    @property
    def output_names(self) -> list[str]:
        """The model's names of the results; ``output0`` and so on where it has none."""
        return [n for n, *_ in self.model.get("outputs", ())] or [f"output{i}" for i in range(len(self.graph.heads))]

    @cached_property
    def work_seconds(self) -> float:
        """The predicted time of one run's kernels on one thread, branches of control flow not counted."""
        return float(sum(self.metadata[n.func]["seconds"] for n in self.graph.nodes if n.is_kernel))
