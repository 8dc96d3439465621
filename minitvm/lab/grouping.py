"""Fusion of one's own: a label for each call says which calls become one kernel; the rest is done here.

fused = minitvm.lab.primitive_functions(function, {call: "a", other: "a"})
"""

from __future__ import annotations

import graphlib
from collections.abc import Hashable, Mapping

from minitvm.errors import PassError
from minitvm.ir.decision import name_of
from minitvm.ir.expr import Call, Expr, Function, TupleGetItem
from minitvm.ir.op import Fusion, Op
from minitvm.ir.visitor import children, post_order
from minitvm.passes.fuse_ops import Group, cut_out, is_lowerable


def primitive_functions(function: Function, labels: Mapping[Expr, Hashable]) -> Function:
    """The function with calls of equal label in one function each, marked ``primitive``, as ``FuseOps`` makes them.

    A call without a label is a kernel of its own; what cannot be one (:func:`minitvm.passes.fuse_ops.is_lowerable`)
    stays as it is.  :class:`PassError` for calls that are no one kernel: where several values are seen from outside, a
    value leaves and comes back, or two operators have loops that the others would join.
    """
    order = post_order(function.body)
    label: dict[Expr, Hashable] = {}
    for node in order:
        if isinstance(node, Call) and is_lowerable(node):
            label[node] = labels.get(node, node)
        elif isinstance(node, TupleGetItem) and node.tuple in label:
            label[node] = label[node.tuple]
    members: dict[Hashable, list[Expr]] = {}
    for node, name in label.items():
        members.setdefault(name, []).append(node)
    seen = {operand for user in order for operand in children(user) if label.get(user) != label.get(operand)}
    seen.add(function.body)
    _require_order(order, label)
    roots = {name: _root([node for node in nodes if node in seen]) for name, nodes in members.items()}
    groups = {name: Group(_anchor(nodes), roots[name], anchored=False) for name, nodes in members.items()}
    return cut_out(function, {node: groups[name] for node, name in label.items()})


def _root(seen: list[Expr]) -> Expr:
    """The one value of a group that is seen from outside; several fields are those of one."""
    whole = {node.tuple if isinstance(node, TupleGetItem) and len(seen) > 1 else node for node in seen}
    if len(whole) != 1:
        what = " and ".join(map(name_of, seen))
        raise PassError(f"a kernel has one result, and of this group {what} are read by others", hint="cut it there")
    return whole.pop()


def _anchor(nodes: list[Expr]) -> Fusion:
    """The kind of a group; of anchors there is one."""
    ops = [node.op for node in nodes if isinstance(node, Call) and isinstance(node.op, Op)]
    anchors = [op.name for op in ops if op.fusion is Fusion.OUT_ELEMWISE_FUSABLE]
    if len(anchors) > 1:
        raise PassError(f"{' and '.join(anchors)} cannot be one kernel", hint="each has loops of its own")
    return max(op.fusion for op in ops)


def _require_order(order: list[Expr], label: Mapping[Expr, Hashable]) -> None:
    """:class:`PassError` where a group needs what is made of its own result."""
    before: dict[Hashable, set[Hashable]] = {}
    for node in order:
        own = label.get(node, node)
        needs = {label.get(operand, operand) for operand in children(node)}
        before.setdefault(own, set()).update(needs - {own})
    try:
        graphlib.TopologicalSorter(before).prepare()
    except graphlib.CycleError as error:
        names = {name: node for node, name in label.items()}
        what = ", ".join(name_of(names[one]) for one in error.args[1] if one in names)
        raise PassError(f"groups that need each other's results: {what}", hint="a value must not come back") from None
