"""What FuseOps decides on: the graph with edges from producer to consumer, and its post-dominator tree.

A node's *post-dominator* is the first node that every path from it to a result runs through.  A node and all that
lies on its paths to the post-dominator can become one kernel, since nothing in between is seen from outside.
Source of the algorithm: Relay's FuseOps.  Memory is O(nodes + edges); nothing here recurses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from minitvm.ir.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, Var
from minitvm.ir.op import Fusion
from minitvm.ir.types import TensorType, TupleType
from minitvm.ir.visitor import children, is_scalar_constant, post_order


@dataclass(slots=True, eq=False)
class GraphNode:
    """An expression, how it fuses, and who consumes it over which kind of edge."""

    index: int
    expr: Expr
    pattern: Fusion
    outputs: list[tuple[GraphNode, Fusion]] = field(default_factory=list)
    extern: bool = False
    """Consumed in a way that no kernel can (a tuple of tuples), so it has no post-dominator."""


@dataclass(slots=True, eq=False)
class DominatorNode:
    """A node of the post-dominator tree; ``pattern`` is the worst edge on the way to ``parent``."""

    node: GraphNode
    parent: DominatorNode | None
    depth: int
    pattern: Fusion


def build_graph(function: Function, pattern_of: Callable[[Call], Fusion]) -> dict[Expr, GraphNode]:
    """The nodes of a function in post-order.  Scalar constants stand as operands of their users, not as nodes,
    so that a literal which two kernels share does not tie the kernels together."""
    graph: dict[Expr, GraphNode] = {}
    for expr in post_order(function.body):
        if is_scalar_constant(expr) and expr is not function.body:
            continue
        node = graph[expr] = GraphNode(len(graph), expr, _pattern(expr, pattern_of))
        for operand in children(expr):
            if operand in graph:
                _connect(graph[operand], node)
    return graph


def _pattern(expr: Expr, pattern_of: Callable[[Call], Fusion]) -> Fusion:
    if isinstance(expr, Call):
        return pattern_of(expr)
    if isinstance(expr, Tuple):
        return Fusion.TUPLE
    if isinstance(expr, TupleGetItem) and _holds_tensors(expr.tuple):
        return Fusion.INJECTIVE
    return Fusion.OPAQUE


def _connect(operand: GraphNode, user: GraphNode) -> None:
    expr = user.expr
    if isinstance(expr, Call):
        operand.outputs.append((user, _edge_pattern(expr, user.pattern, operand.expr)))
    elif isinstance(operand.expr.type, TensorType) if isinstance(expr, Tuple) else _holds_tensors(operand.expr):
        operand.outputs.append((user, Fusion.INJECTIVE))
    else:
        operand.extern = True


def _edge_pattern(call: Call, pattern: Fusion, operand: Expr) -> Fusion:
    """A broadcast over an operand of the result's own shape is elementwise for that operand."""
    same = isinstance(operand.type, TensorType) and isinstance(call.type, TensorType)
    if pattern is Fusion.BROADCAST and same and operand.tensor_type.shape == call.tensor_type.shape:
        return Fusion.ELEMWISE
    return pattern


def _holds_tensors(expr: Expr) -> bool:
    found = expr.type
    return isinstance(found, TupleType) and all(isinstance(f, TensorType) for f in found.fields)


def post_dominators(nodes: list[GraphNode]) -> list[DominatorNode]:
    """The post-dominator tree by node index, in one pass from the results up: a node's parent is the lowest
    common ancestor of its consumers."""
    tree: dict[int, DominatorNode] = {}
    for node in reversed(nodes):
        tree[node.index] = _place(node, tree)
    return [tree[node.index] for node in nodes]


def _place(node: GraphNode, tree: dict[int, DominatorNode]) -> DominatorNode:
    if node.extern or not node.outputs or isinstance(node.expr, (Var, Constant)):
        return DominatorNode(node, None, 1, Fusion.OPAQUE)
    first, pattern = node.outputs[0]
    parent: DominatorNode | None = tree[first.index]
    for consumer, edge in node.outputs[1:]:
        parent, worst = _common_ancestor(parent, tree[consumer.index])
        pattern = max(pattern, edge, worst)
    return DominatorNode(node, parent, 1 if parent is None else parent.depth + 1, pattern)


def _common_ancestor(left: DominatorNode | None, right: DominatorNode) -> tuple[DominatorNode | None, Fusion]:
    """The lowest common ancestor and the worst edge on the way up to it from both sides."""
    other: DominatorNode | None = right
    worst = Fusion.ELEMWISE
    while left is not other:
        if left is None or other is None:
            return None, worst
        up_left, up_other = left.depth >= other.depth, other.depth >= left.depth
        if up_left:
            worst, left = max(worst, left.pattern), left.parent
        if up_other:
            worst, other = max(worst, other.pattern), other.parent
    return left, worst
