"""Do the parts of a library that was read fit together?  Kernels trust the plan, so nothing runs before this."""

from __future__ import annotations

from collections.abc import Iterator

from minitvm.ir.types import TensorType
from minitvm.runtime.graph import HOST, NOP, Graph, Node
from minitvm.runtime.library import Contents
from minitvm.runtime.memory import owners
from minitvm.runtime.ndarray import ALIGNMENT
from minitvm.runtime.team import MOST_THREADS

MOST_ARENA_BYTES = 1 << 46


def contradiction(contents: Contents) -> str | None:
    """The first thing that does not fit, in words; ``None`` where everything does."""
    for check in (_graph, _plan, _workspaces, _params, _code):
        found = next(check(contents), None)
        if found is not None:
            return found
    return None


def _graph(contents: Contents) -> Iterator[str]:
    """Every value is read after it is made."""
    graph = contents.graph
    names: set[str] = set()
    for i, node in enumerate(graph.nodes):
        if not isinstance(node.name, str):
            yield f"a node is called {node.name!r}"
        if node.name in names:
            yield f"two nodes are called {node.name!r}"
        names.add(node.name)
        if any(not _is_entry(graph, entry, i) for entry in node.inputs):
            yield f"node {node.name!r} reads a value that no node before it makes"
        if node.func == NOP and not _moves_nothing(graph, node):
            yield f"reshape {node.name!r} changes the size"
        if node.func == HOST and node.name not in contents.hosts:
            yield f"host call {node.name!r} has no function"
    if any(not _is_entry(graph, head, len(graph.nodes)) for head in graph.heads):
        yield "a result is no value of the graph"


def _is_entry(graph: Graph, entry: tuple[int, int], before: int) -> bool:
    node, output = entry
    return 0 <= node < before and 0 <= output < len(graph.nodes[node].types)


def _moves_nothing(graph: Graph, node: Node) -> bool:
    if len(node.inputs) != 1 or len(node.types) != 1:
        return False
    source, result = graph.type_of(node.inputs[0]), node.types[0]
    return not (source.is_static and result.is_static) or source.nbytes == result.nbytes


def _plan(contents: Contents) -> Iterator[str]:
    """Every value has its place inside of the arena."""
    graph, plan = contents.graph, contents.plan
    if not 0 <= plan.nbytes <= MOST_ARENA_BYTES:
        yield f"the memory plan has {plan.nbytes} bytes"
    if not len(plan.offsets) == len(plan.storage_ids) == graph.entries:
        yield f"the memory plan has {len(plan.offsets)} places for {graph.entries} values"
    owner = owners(graph)
    for i, node in enumerate(graph.nodes):
        for entry, type_ in enumerate(node.types, graph.entry_start[i]):
            needed = node.is_kernel and owner[entry] == entry
            if not _has_place(plan.offsets[entry], type_, plan.nbytes, needed):
                yield f"a value of node {node.name!r} lies outside of the memory plan"


def _has_place(offset: int, type_: TensorType, arena: int, needed: bool) -> bool:
    if offset == -1:
        return not needed
    return type_.is_static and offset % ALIGNMENT == 0 and offset >= 0 and offset + type_.nbytes <= arena


def _workspaces(contents: Contents) -> Iterator[str]:
    if not 1 <= contents.threads <= MOST_THREADS:
        yield f"it was made for {contents.threads} threads"
    for i, node in enumerate(contents.graph.nodes):
        if node.is_kernel:
            needs = contents.metadata[node.func]
            fixed, each = needs["workspace"], needs["workspace_per_thread"]
            wanted, at = fixed + each * contents.threads, contents.plan.workspaces.get(i, -1)
            if min(fixed, each) < 0 or (wanted and not 0 <= at <= contents.plan.nbytes - wanted):
                yield f"the workspace of node {node.name!r} lies outside of the memory plan"


def _params(contents: Contents) -> Iterator[str]:
    inputs = {node.name: node for node in contents.graph.nodes if node.is_null}
    for name, array in contents.params.items():
        if name not in inputs:
            yield f"parameter {name!r} is no input of the graph"
        elif inputs[name].types[0] != TensorType(array.shape, array.dtype.name):
            yield f"parameter {name!r} is {array.dtype.name} {array.shape}, not {inputs[name].types[0]}"


def _code(contents: Contents) -> Iterator[str]:
    for symbol in ("entry", *(node.func for node in contents.graph.nodes if node.is_kernel)):
        if symbol not in contents.objects:
            yield f"the code of {symbol!r} is missing"
