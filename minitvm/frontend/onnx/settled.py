"""What became of nodes that an import leaves nothing of: one decision each, for those who ask later."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx

from minitvm.frontend.onnx.node import label_of
from minitvm.ir.decision import decide, listening
from minitvm.ir.expr import Call, Constant, Expr, Tuple
from minitvm.ir.visitor import post_order


def tell_settled(nodes: Iterable[onnx.NodeProto], values: Mapping[str, Expr], body: Expr) -> None:
    """``values`` are what outputs of nodes became, by name; ``body`` is the result of the module."""
    if not listening():
        return
    reached = set(post_order(body))
    left = {name for node in reached if isinstance(node, (Call, Tuple)) for name in node.span}
    for node in nodes:
        if label_of(node) not in left:
            found = [values[name] for name in node.output if name in values]
            decide("from_onnx", node.op_type, _why(node, found, reached), (label_of(node),))


def _why(node: onnx.NodeProto, found: list[Expr], reached: set[Expr]) -> str:
    if node.op_type == "Constant":
        return "is a constant"
    if all(isinstance(one, Constant) for one in found):
        return "computed while the model was read: it follows from weights and shapes"
    if reached.isdisjoint(found):
        return "left out: no result of the model needs it"
    return "its result is its operand, as it is"
