"""Relay's three phases of fusion: which nodes share a kernel, and the reason for each answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from minitvm.ir.decision import Decision, Declined, decision, listening, name_of, record
from minitvm.ir.expr import Call, Expr, Function
from minitvm.ir.op import Fusion
from minitvm.passes.fuse.graph import DominatorNode, GraphNode, build_graph, post_dominators

Accepts = Callable[[Fusion, bool], bool]
"""Whether a group of this kind may lie on the way; the flag says that it is the end of the way."""


@dataclass(slots=True, eq=False)
class Group:
    """Nodes that become one kernel: a union-find tree whose root holds the facts."""

    pattern: Fusion
    root: Expr
    anchored: bool
    size: int = 1
    parent: Group | None = None

    def find(self) -> Group:
        root = self
        while root.parent is not None:
            root = root.parent
        step = self
        while step is not root:  # shorten the way for the next question
            assert step.parent is not None
            step.parent, step = root, step.parent
        return root


def _merge(child: Group, target: Group) -> None:
    child, target = child.find(), target.find()
    if child is target:
        return
    target.size += child.size
    child.parent = target
    if child.anchored:
        assert not target.anchored, "two anchors in one group"
        target.anchored = True
        assert min(child.pattern, target.pattern) <= Fusion.BROADCAST, "two complex groups merged"
        target.pattern = max(child.pattern, target.pattern)


@dataclass
class Partition:
    """The groups of one function.  ``verdicts`` holds the latest one on every call, where somebody listens."""

    nodes: list[GraphNode]
    tree: list[DominatorNode]
    max_depth: int
    groups: list[Group] = field(default_factory=list)
    verdicts: dict[Expr, Decision] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.groups = [Group(n.pattern, n.expr, n.pattern is Fusion.OUT_ELEMWISE_FUSABLE) for n in self.nodes]

    def run(self, opt_level: int) -> None:
        """Level 0 leaves every node alone; otherwise all three phases, each over all nodes."""
        if opt_level == 0:
            for node in self.nodes:
                self._note(node, None, "at level 0 each operator is its own kernel")
            return
        for phase in range(3):
            for node in self.nodes:
                self._visit(node, phase)

    def _visit(self, node: GraphNode, phase: int) -> None:
        parent = self.tree[node.index].parent
        if self.groups[node.index].pattern is Fusion.OPAQUE:
            self._note(node, None, "opaque: it fuses with nothing")
        elif parent is None:
            self._note(node, None, "its value is a result of the function, or its users meet nowhere")
        elif self._span_size(node, parent.node) > self.max_depth:
            self._note(node, parent.node, f"the kernel would hold more than max_depth = {self.max_depth} operators")
        elif phase == 2:
            self._into_tuple(node, parent.node)
        else:
            self._into_dominator(node, parent.node, phase)

    def _into_dominator(self, node: GraphNode, target: GraphNode, phase: int) -> None:
        group, edge = self.groups[node.index], self.tree[node.index].pattern
        if group.find() is self.groups[target.index].find():
            self._note(node, target, "joined with its users", fused=True)
        elif self.groups[target.index].pattern is Fusion.TUPLE:
            self._note(node, target, "a kernel does not end in a tuple")
        elif group.pattern is Fusion.OUT_ELEMWISE_FUSABLE:
            if phase == 0:
                self._after_anchor(node, target, edge)
        elif group.pattern <= Fusion.BROADCAST:
            self._pointwise(node, target, edge)
        elif group.pattern in (Fusion.INJECTIVE, Fusion.TUPLE):
            if phase == 1:  # later than anchors, so that these finish their epilogues first
                self._along(node, target, _injective, "index arithmetic is folded into its users")
        else:
            self._note(node, target, "nothing is fused after a reduction")

    def _after_anchor(self, node: GraphNode, target: GraphNode, edge: Fusion) -> None:
        if edge is Fusion.ELEMWISE:
            self._along(node, target, lambda kind, _: kind <= Fusion.BROADCAST, "an elementwise epilogue of the anchor")
        else:
            self._note(node, target, f"the way there is {edge.name.lower()}, an epilogue must be elementwise")

    def _pointwise(self, node: GraphNode, target: GraphNode, edge: Fusion) -> None:
        if edge <= Fusion.COMM_REDUCE:
            self._along(node, target, _pointwise_way, "computed where it is used")
        else:
            self._note(node, target, f"the way there is {edge.name.lower()}")

    def _into_tuple(self, node: GraphNode, target: GraphNode) -> None:
        """Operands of a tuple that has itself been fused into injective users (a concatenation's inputs)."""
        tuple_group = self.groups[target.index]
        fused = tuple_group.pattern is Fusion.TUPLE and tuple_group.find() is not tuple_group
        if fused and self.groups[node.index].pattern <= Fusion.INJECTIVE:
            self._along(node, target, _injective, "computed where the joined tuple is written")

    def _along(self, node: GraphNode, target: GraphNode, accepts: Accepts, reason: str) -> None:
        """Merge all groups on the ways from ``node`` to ``target``, if each is of an accepted kind."""
        way = self._way(node, target)
        for step in way:
            kind = self.groups[step.index].find().pattern
            if not accepts(kind, step is target):
                what = name_of(step.expr)
                self._note(node, target, f"{what}, which lies in a group of kind {kind.name.lower()}, is in the way")
                return
        for step in (node, *way):
            if step is not target:
                _merge(self.groups[step.index], self.groups[target.index])
        self._note(node, target, reason, fused=True)

    def _way(self, node: GraphNode, target: GraphNode) -> list[GraphNode]:
        """Every node on a path from ``node`` (not included) to ``target`` (included)."""
        seen: dict[int, GraphNode] = {}
        stack = [node]
        while stack:
            for consumer, _ in reversed(stack.pop().outputs):
                if consumer.index not in seen:
                    seen[consumer.index] = consumer
                    if consumer is not target:
                        stack.append(consumer)
        return list(seen.values())

    def _span_size(self, node: GraphNode, target: GraphNode) -> int:
        """Operators in the merged group; counting stops beyond ``max_depth``, which keeps long ways cheap."""
        total = self.groups[target.index].find().size + self.groups[node.index].size
        seen, stack = {node.index, target.index}, [node]
        while stack and total <= self.max_depth:
            for consumer, _ in stack.pop().outputs:
                if consumer.index not in seen:
                    seen.add(consumer.index)
                    total += self.groups[consumer.index].size
                    stack.append(consumer)
        return total

    def _note(self, node: GraphNode, target: GraphNode | None, reason: str, fused: bool = False) -> None:
        known = self.verdicts.get(node.expr)
        if listening() and isinstance(node.expr, Call) and (known is None or not known.taken):
            verdict = reason if target is None else f"into {name_of(target.expr)}: {reason}"
            self.verdicts[node.expr] = decision("FuseOps", node.expr, verdict if fused else Declined(verdict))


def _injective(kind: Fusion, _end: bool) -> bool:
    return kind <= Fusion.INJECTIVE


def _pointwise_way(kind: Fusion, end: bool) -> bool:
    """Injective groups may lie on parallel ways; at the end also a reduction, or a group with an anchor."""
    return kind <= (Fusion.OUT_ELEMWISE_FUSABLE if end else Fusion.INJECTIVE)


def partition(
    function: Function, pattern_of: Callable[[Call], Fusion], opt_level: int, max_depth: int
) -> dict[Expr, Group]:
    """The group of every node that is one."""
    graph = build_graph(function, pattern_of)
    nodes = list(graph.values())
    parts = Partition(nodes, post_dominators(nodes), max_depth)
    parts.run(opt_level)
    for verdict in parts.verdicts.values():
        record(verdict)
    return {n.expr: parts.groups[n.index].find() for n in nodes}
