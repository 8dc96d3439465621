"""FuseOps, operator fusion: operators that one kernel can compute together become one function marked ``primitive``.

First it is decided which operators those are.  A node's *post-dominator* is the first node that every path from it to
a result runs through.  A node and all that lies on its paths to the post-dominator can become one kernel, since nothing
in between is seen from outside.  Source of the algorithm, and of its three phases: Relay's FuseOps.  Memory is
O(nodes + edges); nothing here recurses.

Then the groups are cut out of the graph.  Each has at most one anchor operator, whose loops the others join.  A group's
parameters ``p0, p1, ...`` are always tensors, in the order in which a walk from the result meets them: a tuple that
comes from outside is put together inside.  Scalar constants become literals of element-wise kernels.  Equal groups
share one ``Function``, so that a kernel is compiled once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from minitvm.doors import door
from minitvm.ir.decision import Decision, Declined, decision, listening, name_of, record
from minitvm.ir.dims import are_counted_on
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, Tuple, TupleGetItem, Var
from minitvm.ir.op import Fusion, Op
from minitvm.ir.ops.checks import StopFusion
from minitvm.ir.structural import node_key
from minitvm.ir.types import Shape, TensorType, TupleType, is_named, tensor_fields
from minitvm.ir.visitor import as_function, children, is_scalar_constant, post_order, rebuild, rebuild_over, span_of
from minitvm.passes.manager import FunctionPass, PassContext, register_config
from minitvm.passes.narrow import is_cast_of_weights
from minitvm.passes.recomputed import MAX_COPIES, Cutting

BY_ROWS = "by_rows"
"""The attribute of groups whose threads share rows."""


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

    def merge_into(self, other: Group) -> None:
        child, target = self.find(), other.find()
        if child is target:
            return
        target.size += child.size
        child.parent = target
        if child.anchored:
            assert not target.anchored, "two anchors in one group"
            target.anchored = True
            assert min(child.pattern, target.pattern) <= Fusion.BROADCAST, "two complex groups merged"
            target.pattern = max(child.pattern, target.pattern)


@dataclass(slots=True, eq=False)
class Node:
    """An expression, who consumes it over which kind of edge, and its place in the tree of post-dominators."""

    expr: Expr
    group: Group
    outputs: list[tuple[Node, Fusion]] = field(default_factory=list)
    extern: bool = False
    """Consumed in a way that no kernel can (a tuple of tuples), so it has no post-dominator."""
    parent: Node | None = None
    """The post-dominator."""
    edge: Fusion = Fusion.OPAQUE
    """The worst edge on the way there."""
    depth: int = 1


def build_graph(function: Function) -> dict[Expr, Node]:
    """The nodes of a function in post-order, with their post-dominators."""
    graph: dict[Expr, Node] = {}
    for expr in post_order(function.body):
        pattern = _pattern(expr)
        graph[expr] = Node(expr, Group(pattern, expr, pattern is Fusion.OUT_ELEMWISE_FUSABLE))
        for operand in children(expr):
            _connect(graph[operand], graph[expr], pattern)
    for node in reversed(graph.values()):
        _place(node)
    return graph


def _pattern(expr: Expr) -> Fusion:
    match expr:
        case Call(op=Op() as op) if is_lowerable(expr) and not isinstance(op, StopFusion):
            return op.fusion
        case Tuple():
            return Fusion.TUPLE
        case TupleGetItem() if _holds_tensors(expr.tuple):
            return Fusion.INJECTIVE
    return Fusion.OPAQUE


def _connect(operand: Node, user: Node, pattern: Fusion) -> None:
    if isinstance(user.expr, Call):
        if pattern is Fusion.BROADCAST and _shapes(operand.expr) == _shapes(user.expr):
            pattern = Fusion.ELEMWISE
        operand.outputs.append((user, pattern))
    elif isinstance(operand.expr.type, TensorType) if isinstance(user.expr, Tuple) else _holds_tensors(operand.expr):
        operand.outputs.append((user, Fusion.INJECTIVE))
    else:
        operand.extern = True


def _shapes(expr: Expr) -> list[Shape]:
    return [tensor.shape for tensor in tensor_fields(expr.type)]


def _holds_tensors(expr: Expr) -> bool:
    return isinstance(expr.type, TupleType) and all(isinstance(f, TensorType) for f in expr.type.fields)


def _place(node: Node) -> None:
    """Below the lowest common ancestor of its consumers, which have their places."""
    if node.extern or not node.outputs or isinstance(node.expr, (Var, Constant)):
        return
    (parent, edge), *others = node.outputs
    found: Node | None = parent
    for consumer, own in others:
        found, worst = _common_ancestor(found, consumer)
        edge = max(edge, own, worst)
    node.parent, node.edge, node.depth = found, edge, 1 if found is None else found.depth + 1


def _common_ancestor(left: Node | None, right: Node) -> tuple[Node | None, Fusion]:
    """The lowest common ancestor and the worst edge on the way up to it from both sides."""
    other: Node | None = right
    worst = Fusion.ELEMWISE
    while left is not other:
        if left is None or other is None:
            return None, worst
        up_left, up_other = left.depth >= other.depth, other.depth >= left.depth
        if up_left:
            worst, left = max(worst, left.edge), left.parent
        if up_other:
            worst, other = max(worst, other.edge), other.parent
    return left, worst


Accepts = tuple[Fusion, Fusion]
"""The most complex kinds of groups that may lie on the way, and at its end."""

BROADCAST, INJECTIVE = (Fusion.BROADCAST,) * 2, (Fusion.INJECTIVE,) * 2
POINTWISE = (Fusion.INJECTIVE, Fusion.OUT_ELEMWISE_FUSABLE)
"""At the end also a reduction, or a group with an anchor."""


@door
def shares_memory(context: PassContext) -> bool:
    """True if concatenations may be made where they lie: ShareMemory follows."""
    return False


@door
def made_in_place(whole: Expr, joined: Expr) -> Sequence[Expr]:
    """What makes the parts of a concatenation of ``joined``, if in its result's memory; else nothing."""
    return ()


def partition(function: Function, opt_level: int, max_depth: int, max_copies: int, shares: bool) -> dict[Expr, Group]:
    """The group of every node that is one.  At level 0 each alone; otherwise after three phases over all nodes.

    ``shares``: ShareMemory follows.
    """
    graph = build_graph(function)
    fusing = _Fusing(max_depth, graph if shares else {})
    for phase in range(3) if opt_level > 0 else ():
        for node in graph.values():
            fusing.visit(node, phase)
    for node in graph.values() if opt_level == 0 else ():
        fusing.note(node, None, "at level 0 each operator is its own kernel")
    groups = {expr: node.group.find() for expr, node in graph.items()}
    if opt_level > 0:
        _cut_apart(graph, groups, fusing, max_copies)
    for verdict in fusing.verdicts.values():
        record(verdict)
    return groups


def _cut_apart(graph: dict[Expr, Node], groups: dict[Expr, Group], fusing: _Fusing, max_copies: int) -> None:
    """Groups that would compute a value too often become several."""

    def users(expr: Expr) -> list[Expr]:
        return [user.expr for user, _ in graph[expr].outputs if groups[user.expr] is groups[expr]]

    def repeats(expr: Expr) -> bool:
        """True if what an expression reads, or is, may be computed at several places of its group."""
        op = expr.op if isinstance(expr, Call) else None
        once = isinstance(op, Op) and op.fusion is not Fusion.INJECTIVE and not op.read_again
        return groups[expr].size > 1 and not (once and len(users(expr)) <= 1)

    found = {groups[expr] for expr in graph if repeats(expr)}
    if not found:
        return
    cutting, whole = Cutting(users, max_copies), dict(groups)
    for node in reversed(graph.values()):
        reason = cutting.visit(node.expr) if whole[node.expr] in found else ""
        if reason:
            fusing.note(node, None, reason, again=True)
    made = {root: whole[root] for root in cutting.home.values() if whole[root].root is root}
    for expr, root in cutting.home.items():
        groups[expr] = made.setdefault(root, Group(_pattern(root), root, anchored=False))


@dataclass
class _Fusing:
    """Relay's phases.  ``verdicts`` holds the latest one on every call, where somebody listens."""

    max_depth: int
    graph: dict[Expr, Node]
    in_place: dict[Node, bool] = field(default_factory=dict)
    """By tuple whether ShareMemory joins it."""
    verdicts: dict[Expr, Decision] = field(default_factory=dict)

    def visit(self, node: Node, phase: int) -> None:
        target, kind = node.parent, node.group.pattern
        if kind is Fusion.OPAQUE:
            self.note(node, None, "opaque: it fuses with nothing")
        elif target is None:
            self.note(node, None, "its value is a result of the function, or its users meet nowhere")
        elif self._span_size(node, target) > self.max_depth:
            self.note(node, target, f"the kernel would hold more than max_depth = {self.max_depth} operators")
        elif phase == 2:
            self._into_tuple(node, target)
        elif node.group.find() is target.group.find():
            self.note(node, target, "joined with its users", fused=True)
        elif target.group.pattern is Fusion.TUPLE:
            self.note(node, target, "a kernel does not end in a tuple")
        elif kind is Fusion.OUT_ELEMWISE_FUSABLE:
            epilogue, requirement = "an elementwise epilogue of the anchor", ", an epilogue must be elementwise"
            if phase == 0:
                self._over_edge(node, target, Fusion.ELEMWISE, BROADCAST, epilogue, requirement)
        elif kind <= Fusion.BROADCAST or is_cast_of_weights(node.expr):
            weights = is_cast_of_weights(node.expr)
            worst = Fusion.OUT_ELEMWISE_FUSABLE if weights else Fusion.COMM_REDUCE
            self._over_edge(node, target, worst, POINTWISE, "computed where it is used", "")
        elif kind in (Fusion.INJECTIVE, Fusion.TUPLE):
            if phase == 1:  # later than anchors, so that these finish their epilogues first
                ends = POINTWISE if _reads_in_place(node, target) else INJECTIVE
                self._along(node, target, ends, "index arithmetic is folded into its users")
        else:
            self.note(node, target, "nothing is fused after a reduction")

    def _over_edge(
        self, node: Node, target: Node, worst: Fusion, accepts: Accepts, reason: str, requirement: str
    ) -> None:
        if node.edge <= worst:
            self._along(node, target, accepts, reason)
        else:
            self.note(node, target, f"the way there is {node.edge.name.lower()}{requirement}")

    def _into_tuple(self, node: Node, target: Node) -> None:
        """Operands of a tuple that has itself been fused into injective users (a concatenation's inputs)."""
        fused = target.group.pattern is Fusion.TUPLE and target.group.find() is not target.group
        if fused and self._is_made_in_place(target):
            self.note(node, target, "what it is joined with is made in place")
        elif fused and node.group.pattern <= Fusion.INJECTIVE:
            self._along(node, target, INJECTIVE, "computed where the joined tuple is written")

    def _is_made_in_place(self, joined: Node) -> bool:
        """True if it is joined alone, and an operand has a kernel of its own anyway, which can write it there."""
        whole = joined.group.find().root
        if joined not in self.in_place:
            operands = made_in_place(whole, joined.expr) if self.graph else ()
            makers = (self.graph[e].group.find().pattern for e in operands if isinstance(e, Call) and is_lowerable(e))
            self.in_place[joined] = any(pattern > Fusion.INJECTIVE for pattern in makers)
        return self.in_place[joined]

    def _along(self, node: Node, target: Node, accepts: Accepts, reason: str) -> None:
        """Merge all groups on the ways from ``node`` to ``target``, if each is of an accepted kind."""
        way = _way(node, target)
        for step in way:
            kind = step.group.find().pattern
            if kind > accepts[step is target]:
                what = name_of(step.expr)
                self.note(node, target, f"{what}, which lies in a group of kind {kind.name.lower()}, is in the way")
                return
        for step in (node, *way):
            step.group.merge_into(target.group)
        self.note(node, target, reason, fused=True)

    def _span_size(self, node: Node, target: Node) -> int:
        """Operators in the merged group; counting stops beyond ``max_depth``, which keeps long ways cheap."""
        total = target.group.find().size + node.group.size
        seen, stack = {node, target}, [node]
        while stack and total <= self.max_depth:
            for consumer, _ in stack.pop().outputs:
                if consumer not in seen:
                    seen.add(consumer)
                    total += consumer.group.size
                    stack.append(consumer)
        return total

    def note(self, node: Node, target: Node | None, reason: str, fused: bool = False, again: bool = False) -> None:
        """``again``: whatever was said before."""
        known = self.verdicts.get(node.expr)
        if listening() and isinstance(node.expr, Call) and (known is None or not known.taken or again):
            verdict = reason if target is None else f"into {name_of(target.expr)}: {reason}"
            self.verdicts[node.expr] = decision("FuseOps", node.expr, verdict if fused else Declined(verdict))


def _reads_in_place(node: Node, target: Node) -> bool:
    """True if the only user of what is merely cut out or turned can do without a copy."""
    moved, user = (n.expr.op if isinstance(n.expr, Call) else None for n in (node, target))
    if not isinstance(moved, Op) or not isinstance(user, Op) or len(node.outputs) != 1:
        return False
    return user.reads_in_place and (moved.view or moved.affine)


def _way(node: Node, target: Node) -> list[Node]:
    """Every node on a path from ``node`` (not included) to ``target`` (included)."""
    seen: dict[Node, None] = {}
    stack = [node]
    while stack:
        for consumer, _ in reversed(stack.pop().outputs):
            if consumer not in seen:
                seen[consumer] = None
                if consumer is not target:
                    stack.append(consumer)
    return list(seen)


MAX_NAME = 80
MAX_DEPTH = 256

register_config("minitvm.FuseOps.max_depth", int, MAX_DEPTH, "the most operators that one kernel may hold")
register_config(
    "minitvm.FuseOps.max_copies", int, MAX_COPIES, "the most places at which one kernel may compute the same value anew"
)


def is_lowerable(call: Call) -> bool:
    """True if a call can become a kernel: static types, and a compute rule or a template.  Others are host calls.
    Where symbols are counted on, types may have them."""
    if not isinstance(call.op, Op) or not (call.op.has_compute() or call.op.lowered_by_template):
        return False
    symbols = are_counted_on()
    return all(is_named(node.type) if symbols else node.type.is_static for node in (call, *call.args))


class FuseOps(FunctionPass, opt_level=0):
    """Each group of operators that fuse becomes a function marked ``primitive``; what is not lowerable stays as it is.

    Acts by the context's level (or ``fuse_opt_level``): at 0 each operator is its own kernel.
    """

    def __init__(self, fuse_opt_level: int | None = None) -> None:
        self.opt_level = None if fuse_opt_level == -1 else fuse_opt_level

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        level = context.opt_level if self.opt_level is None else self.opt_level
        depth, copies = (context.option(f"minitvm.FuseOps.max_{what}") for what in ("depth", "copies"))
        return cut_out(function, partition(function, level, depth, copies, shares_memory(context)))


def cut_out(function: Function, groups: dict[Expr, Group]) -> Function:
    """The function with a call of a primitive function in place of each group."""
    return as_function(rebuild(function, (*function.params, _Rewriter(groups).run(function.body))))


@dataclass
class _Rewriter:
    groups: dict[Expr, Group]
    done: dict[Expr, Expr] = field(default_factory=dict)
    shared: dict[Hashable, Function] = field(default_factory=dict)

    def run(self, root: Expr) -> Expr:
        for node in post_order(root):
            group = self.groups.get(node)
            if group is None or group.root is node or _is_outer_field(node, self.groups):
                self.done[node] = self._rewrite(node, group)
        return self.done[root]

    def _rewrite(self, node: Expr, group: Group | None) -> Expr:
        if isinstance(node, Call) and isinstance(node.op, StopFusion):
            return self.done[node.args[0]]
        is_field = isinstance(node, TupleGetItem) and self.groups.get(node.tuple) is group
        if group is None or not (is_field or (isinstance(node, Call) and is_lowerable(node))):
            return rebuild_over(node, self.done)
        parts = _Cut(group, self.groups)
        key = parts.collect(node)
        if key not in self.shared:
            self.shared[key] = parts.function(node)
        fields = [self.done[e] if index is None else TupleGetItem(self.done[e], index) for e, index in parts.sources]
        return Call(self.shared[key], fields, span=span_of(*parts.calls))


Source = tuple[Expr, "int | None"]
"""What a parameter stands for: a tensor from outside, or one field of a tuple from outside."""


@dataclass
class _Cut:
    """One group while it is cut out: its nodes in post-order, and what comes from outside."""

    group: Group
    groups: dict[Expr, Group]
    order: list[Expr] = field(default_factory=list)
    sources: dict[Source, Var] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)

    def collect(self, root: Expr) -> Hashable:
        """Find the nodes and parameters; the key is equal for equal groups."""
        self.order = post_order(root, operands=self._needs)
        for node in self.order:
            if not self._inside(node) and not self._only_literal(node):
                fields = enumerate(node.type.fields) if isinstance(node.type, TupleType) else [(None, node.type)]
                for index, type_ in fields:
                    self.sources[node, index] = Var(f"p{len(self.sources)}", type_)
        self.calls = [n for n in self.order if isinstance(n, Call) and self._inside(n)]
        number = {node: i for i, node in enumerate(self.order)}
        return tuple(self._key(node, number) for node in self.order)

    def _needs(self, node: Expr) -> tuple[Expr, ...]:
        return children(node) if self._inside(node) else ()

    def _inside(self, node: Expr) -> bool:
        """A tuple is put together inside whoever wrote it; a projection of an outer tuple is a parameter."""
        if isinstance(node, Tuple):
            return True
        return self.groups.get(node) is self.group and not _is_outer_field(node, self.groups)

    def _only_literal(self, node: Expr) -> bool:
        """A scalar constant, all of whose users in the group compute element by element."""
        if not is_scalar_constant(node):
            return False
        users = (n for n in self.order if self._inside(n) and node in children(n))
        return all(_pattern(user) <= Fusion.COMM_REDUCE for user in users)

    def _key(self, node: Expr, number: dict[Expr, int]) -> Hashable:
        if self._inside(node):
            return node_key(node), tuple(number[child] for child in children(node))
        is_literal = isinstance(node, Constant) and (node, None) not in self.sources
        return node_key(node) if is_literal else node.checked_type

    def function(self, root: Expr) -> Function:
        """The group as a function; :meth:`collect` comes first."""
        local: dict[Expr, Expr] = {}
        for node in self.order:
            local[node] = self._local(node, local)
        ops = [call.op for call in self.calls if isinstance(call.op, Op)]
        shares_memory = all(op.view for op in ops)
        attrs = {"primitive": True, "name": _kernel_name([op.name for op in ops]), "reshape_only": shares_memory}
        return Function(list(self.sources.values()), local[root], attrs, span=span_of(*self.calls))

    def _local(self, node: Expr, local: dict[Expr, Expr]) -> Expr:
        if self._inside(node):
            return rebuild(node, [local[child] for child in children(node)])
        if isinstance(node.type, TupleType):
            return Tuple([self.sources[node, i] for i in range(len(node.type.fields))], span=())
        return self.sources.get((node, None), node)


def _is_outer_field(node: Expr, groups: dict[Expr, Group]) -> bool:
    """A projection that joined a group without its tuple: it stays outside, so that parameters are tensors."""
    return isinstance(node, TupleGetItem) and groups.get(node.tuple) is not groups.get(node)


def _kernel_name(ops: list[str]) -> str:
    """``fused_nn_conv2d_add_nn_relu``; long names end in a hash of the rest."""
    name = "_".join(["fused", *ops]).replace(".", "_")
    if len(name) <= MAX_NAME:
        return name
    return f"{name[: MAX_NAME - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
