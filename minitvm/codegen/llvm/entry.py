"""The native entry of a graph, as LLVM IR text: functions that call the kernels, so that Python is not in between.

``node_K(slots, thread, threads, barrier)`` calls the kernel of node K with its arguments; ``segment_N`` runs a
stretch of kernels between two host calls.  Every thread of the team calls them.  ``slots`` is an array of
pointers: one per entry of the graph, then one per kernel node's workspace.

A barrier stands before a kernel only where it needs one: it reads what was written, or overwrites what was
written or read, since the last barrier.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from minitvm.runtime.graph import Entry, Graph, Plan, Segment, segments, steps_of, workspace_slots
from minitvm.target import spinning_text


@dataclass
class _Hazards:
    """Memory ranges touched since the last barrier."""

    written: list[tuple[int, int]]
    read: list[tuple[int, int]]

    def conflict(self, reads: Sequence[tuple[int, int]], writes: Sequence[tuple[int, int]]) -> bool:
        return _overlap(reads, self.written) or _overlap(writes, self.written) or _overlap(writes, self.read)

    def add(self, reads: Sequence[tuple[int, int]], writes: Sequence[tuple[int, int]]) -> None:
        self.written.extend(writes)
        self.read.extend(reads)


def _overlap(some: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]) -> bool:
    return any(a < d and c < b for a, b in some for c, d in others)


def _ranges(graph: Graph, plan: Plan, entries: Iterable[Entry]) -> list[tuple[int, int]]:
    found = ((plan.offsets[graph.entry_id(entry)], graph.type_of(entry).nbytes) for entry in entries)
    return [(start, start + nbytes) for start, nbytes in found if start >= 0]


def barriers_before(graph: Graph, plan: Plan, workspaces: Mapping[int, int], nodes: Sequence[int]) -> set[int]:
    """The nodes of a segment that need a barrier before them.  ``workspaces`` are bytes by node."""
    if any(not type_.is_static for type_ in graph.entry_types):
        return set(nodes[1:])  # what shares memory with what, a run decides
    found: set[int] = set()
    hazards = _Hazards([], [])
    for i in nodes:
        node = graph.nodes[i]
        reads = _ranges(graph, plan, node.inputs)
        writes = _ranges(graph, plan, ((i, output) for output in range(len(node.types))))
        if i in plan.workspaces:
            writes.append((plan.workspaces[i], plan.workspaces[i] + workspaces[i]))
        if hazards.conflict(reads, writes):
            found.add(i)
            hazards = _Hazards([], [])
        hazards.add(reads, writes)
    return found


def _node_text(graph: Graph, index: int, workspace_slot: int) -> str:
    node = graph.nodes[index]
    slots = [graph.entry_id(e) for e in node.inputs]
    slots += range(graph.entry_start[index], graph.entry_start[index + 1])
    slots.append(workspace_slot)
    lines = [f"define void @node_{index}(ptr %slots, i64 %thread, i64 %threads, ptr %barrier) {{"]
    for k, slot in enumerate(slots):
        lines.append(f"  %a{k} = getelementptr ptr, ptr %slots, i64 {slot}")
        lines.append(f"  %p{k} = load ptr, ptr %a{k}, align 8")
    arguments = ", ".join(f"ptr %p{k}" for k in range(len(slots)))
    lines.append(f"  call void @{node.func}({arguments}, i64 %thread, i64 %threads, ptr %barrier)")
    return "\n".join([*lines, "  ret void", "}"])


def _segment_text(segment: Segment, barriers: set[int]) -> str:
    lines = [f"define void @{segment.symbol}(ptr %slots, i64 %thread, i64 %threads, ptr %barrier) {{"]
    for node in segment.nodes:
        if node in barriers:
            lines.append("  call void @minitvm.barrier(ptr %barrier, i64 %threads)")
        lines.append(f"  call void @node_{node}(ptr %slots, i64 %thread, i64 %threads, ptr %barrier)")
    return "\n".join([*lines, "  ret void", "}"])


def entry_text(graph: Graph, plan: Plan, workspaces: Mapping[int, int], features: frozenset[str]) -> str:
    """The LLVM IR of all ``node_K`` and ``segment_N`` of a graph, for a machine with those features."""
    slots = workspace_slots(graph)
    arity = {n.func: len(n.inputs) + len(n.types) + 1 for n in graph.nodes if n.is_kernel}
    parts = [spinning_text("codegen/llvm/barrier.ll", features)]
    for symbol, count in arity.items():
        parts.append(f"declare void @{symbol}({', '.join(['ptr'] * count)}, i64, i64, ptr)")
    parts += [_node_text(graph, i, slot) for i, slot in slots.items()]
    for segment in segments(steps_of(graph)):
        parts.append(_segment_text(segment, barriers_before(graph, plan, workspaces, segment.nodes)))
    return "\n\n".join(parts) + "\n"


_ESCAPED = {code: f"\\{code:02X}" for code in range(256) if not 0x20 <= code < 0x7F or chr(code) in '"\\'}


def constant_text(name: str, data: bytes) -> str:
    """Bytes as a constant of an LLVM module."""
    return f'@{name} = constant [{len(data)} x i8] c"{data.decode("latin-1").translate(_ESCAPED)}"\n'
