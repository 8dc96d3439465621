"""The native entry of a graph, as LLVM IR text: functions that call the kernels, so that Python is not in between.

``node_K(slots, thread, threads, place)`` calls the kernel of node K with its arguments; ``segment_N`` runs a
stretch of kernels between two host calls.  Every thread of the team calls them.  ``slots`` is an array of
pointers: one per entry of the graph, then one per kernel node's workspace; then a word that is not 0 when the run is
to stop.

A barrier stands before a kernel only where it needs one: it reads what was written, or overwrites what was
written or read, since the last barrier.  Where a run plans the memory, that is what is not alive any more.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from minitvm.ir.dims import Dim, number
from minitvm.ir.types import TensorType
from minitvm.runtime.graph import Artifact, Entry, Graph, Plan, Segment, segments, steps_of, stop_slot, workspace_slots
from minitvm.runtime.places import liveness, owners
from minitvm.target import SHARING, spinning_text


@dataclass(frozen=True)
class Bytes:
    """The place where a value lies in the arena: from ``start`` up to ``end``."""

    start: int
    end: int

    def meets(self, other: "Bytes") -> bool:
        return self.start < other.end and other.start < self.end


@dataclass(frozen=True)
class Life:
    """A value of a size that a run decides, from the step that makes it to the last one that reads it.  Memory is
    shared by what is not alive together, for all that is known."""

    owner: int
    first: int
    last: int

    def meets(self, other: "Life") -> bool:
        return self.owner == other.owner or self.last < other.first or other.last < self.first


Places: TypeAlias = "Callable[[Iterable[Entry]], list[Any]]"
"""Where entries are, as far as it is in the arena; a place can say whether it ``meets`` another one."""


@dataclass
class _Hazards:
    """Places touched since the last barrier."""

    written: list[Any]
    read: list[Any]

    def conflict(self, reads: Sequence[Any], writes: Sequence[Any]) -> bool:
        return _meet(reads, self.written) or _meet(writes, self.written) or _meet(writes, self.read)

    def add(self, reads: Sequence[Any], writes: Sequence[Any]) -> None:
        self.written.extend(writes)
        self.read.extend(reads)


def _meet(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return any(one.meets(other) for one in some for other in others)


def _planned(graph: Graph, plan: Plan) -> Places:
    def places(entries: Iterable[Entry]) -> list[Bytes]:
        found = ((plan.offsets[graph.entry_id(entry)], graph.type_of(entry).nbytes) for entry in entries)
        return [Bytes(start, start + nbytes) for start, nbytes in found if start >= 0]

    return places


def _unplanned(graph: Graph) -> Places:
    """Whatever plan a run makes: reshapes share their inputs' memory in every one."""
    one = TensorType((1,))
    known = (n.with_types(tuple(one if isinstance(t, TensorType) else t for t in n.types)) for n in graph.nodes)
    known_graph = Graph(tuple(known), graph.heads)
    owner, spans = owners(known_graph), liveness(known_graph)
    makers = graph.makers

    def places(entries: Iterable[Entry]) -> list[Life]:
        found = (owner[graph.entry_id(entry)] for entry in entries)
        return [Life(o, *spans[o]) for o in found if not makers[o].is_null]

    return places


def barriers_before(graph: Graph, plan: Plan, workspaces: Mapping[int, Dim], nodes: Sequence[int]) -> set[int]:
    """The nodes of a segment that need a barrier before them.  ``workspaces`` are bytes by node."""
    is_planned = all(type_.is_static for type_ in graph.entry_types)
    places = _planned(graph, plan) if is_planned else _unplanned(graph)
    found: set[int] = set()
    hazards = _Hazards([], [])
    for i in nodes:
        node = graph.nodes[i]
        reads, writes = places(node.inputs), places((i, output) for output in range(len(node.types)))
        if not is_planned and workspaces[i] != 0:
            writes.append(Life(-1, i, i))
        elif i in plan.workspaces:
            writes.append(Bytes(plan.workspaces[i], plan.workspaces[i] + number(workspaces[i], {})))
        if hazards.conflict(reads, writes):
            found.add(i)
            hazards = _Hazards([], [])
        hazards.add(reads, writes)
    return found


def _define(symbol: str) -> str:
    """The head of a function.  They only hand on addresses, so LLVM need not look at them for long."""
    return f"define void @{symbol}(ptr %slots, i64 %thread, i64 %threads, ptr %place) noinline optnone {{"


def _node_text(graph: Graph, index: int, workspace_slot: int) -> str:
    node = graph.nodes[index]
    slots = [graph.entry_id(e) for e in node.inputs]
    slots += range(graph.entry_start[index], graph.entry_start[index + 1])
    slots.append(workspace_slot)
    lines = [_define(f"node_{index}")]
    for k, slot in enumerate(slots):
        lines.append(f"  %a{k} = getelementptr ptr, ptr %slots, i64 {slot}")
        lines.append(f"  %p{k} = load ptr, ptr %a{k}, align 8")
    arguments = ", ".join(f"ptr %p{k}" for k in range(len(slots)))
    lines.append(f"  call void @{node.func}({arguments}, i64 %thread, i64 %threads, ptr %place)")
    return "\n".join([*lines, "  ret void", "}"])


_BARRIER = "  call void @minitvm.barrier(ptr %place, i64 %threads)"


def _call_of(node: int) -> str:
    return f"  call void @node_{node}(ptr %slots, i64 %thread, i64 %threads, ptr %place)"


def _segment_text(segment: Segment, barriers: set[int], stop: int) -> str:
    """A worker leaves at a barrier, and comes back to it; all leave where the run is to stop."""
    steps = [node for node in segment.nodes if node in barriers]
    cases = " ".join(f"i64 {step}, label %step_{step}" for step in steps)
    lines = [_define(segment.symbol), "  %from = call i64 @minitvm.from(ptr %place, i64 %threads)"]
    lines.append(f"  %stop = getelementptr ptr, ptr %slots, i64 {stop}")
    lines += [f"  switch i64 %from, label %start [ {cases} ]", "start:"]
    for node in segment.nodes:
        if node in barriers:
            given = f"ptr %place, i64 %thread, i64 %threads, i64 {node}, ptr %stop"
            lines.append(f"  %leaves_{node} = call i1 @minitvm.leaves({given})")
            lines.append(f"  br i1 %leaves_{node}, label %end, label %step_{node}")
            lines.append(f"step_{node}:")
        lines.append(_call_of(node))
    return "\n".join([*lines, "  br label %end", "end:", "  ret void", "}"])


def entry_text(graph: Graph, plan: Plan, workspaces: Mapping[int, Dim], features: frozenset[str]) -> str:
    """The LLVM IR of all ``node_K`` and ``segment_N`` of a graph, for a machine with those features."""
    slots = workspace_slots(graph)
    arity = {n.func: len(n.inputs) + len(n.types) + 1 for n in graph.nodes if n.is_kernel}
    parts = [spinning_text(SHARING, features)]
    for symbol, count in arity.items():
        parts.append(f"declare void @{symbol}({', '.join(['ptr'] * count)}, i64, i64, ptr)")
    parts += [_node_text(graph, i, slot) for i, slot in slots.items()]
    for segment in segments(steps_of(graph)):
        barriers = barriers_before(graph, plan, workspaces, segment.nodes)
        parts.append(_segment_text(segment, barriers, stop_slot(graph)))
    return "\n\n".join(parts) + "\n"


_SHARED = re.compile(r"^define [^@\n]*@(minitvm\.\w+)\(.*?^}\n", re.MULTILINE | re.DOTALL)
_NAME = re.compile(r"@(minitvm\.\w+)")


def needed(text: str, images: Collection[bytes]) -> str:
    """The text of an entry without functions of :data:`SHARING` that neither it nor the kernels' object code calls:
    LLVM takes longer for all of them than for the kernel of a small model."""
    bodies = {found[1]: found[0] for found in _SHARED.finditer(text)}
    waiting = _NAME.findall(_SHARED.sub("", text))
    waiting += [name for name in bodies if any(name.encode() in image for image in images)]
    kept: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in kept:
            kept.add(name)
            waiting += _NAME.findall(bodies.get(name, ""))
    return _SHARED.sub(lambda found: found[0] if found[1] in kept else "", text)


# --- the same, with a clock ---------------------------------------------------------------------------------------

_STAMP = """
declare i32 @clock_gettime(i32, ptr)

define internal void @stamp(i64 %thread, i64 %moment) noinline {{
  %row = mul i64 %thread, {moments}
  %which = add i64 %row, %moment
  %at = getelementptr [2 x i64], ptr inttoptr (i64 {table} to ptr), i64 %which
  %done = call i32 @clock_gettime(i32 {clock}, ptr %at)
  ret void
}}
"""


def clocked_text(artifact: Artifact, segment: Segment, table: int, clock: int, features: frozenset[str]) -> str:
    """``clocked(slots, thread, threads, place)``: a segment that also writes down when each thread begins and ends
    each kernel; what it waits for at barriers lies between.

    ``table`` is the address of (thread, kernel, begin or end) pairs of seconds and nanoseconds, as ``clock_gettime``
    has them of ``clock``.  The functions ``node_K`` are those of the artefact.
    """
    graph, nodes = artifact.graph, segment.nodes
    needs = {i: artifact.metadata[graph.nodes[i].func] for i in nodes}
    workspaces = {i: n["workspace"] + n["workspace_per_thread"] * artifact.threads for i, n in needs.items()}
    barriers = barriers_before(graph, artifact.plan, workspaces, nodes)
    lines = [_define("clocked")]
    for position, node in enumerate(nodes):
        if node in barriers:
            lines.append(_BARRIER)
        lines.append(f"  call void @stamp(i64 %thread, i64 {2 * position})")
        lines.append(_call_of(node))
        lines.append(f"  call void @stamp(i64 %thread, i64 {2 * position + 1})")
    declared = [f"declare void @node_{node}(ptr, i64, i64, ptr)" for node in nodes]
    stamp = _STAMP.format(moments=2 * len(nodes), table=table, clock=clock)
    return "\n".join([spinning_text(SHARING, features), stamp, *declared, *lines, "  ret void", "}"]) + "\n"


_ESCAPED = {code: f"\\{code:02X}" for code in range(256) if not 0x20 <= code < 0x7F or chr(code) in '"\\'}


def constant_text(name: str, data: bytes) -> str:
    """Bytes as a constant of an LLVM module."""
    return f'@{name} = constant [{len(data)} x i8] c"{data.decode("latin-1").translate(_ESCAPED)}"\n'
