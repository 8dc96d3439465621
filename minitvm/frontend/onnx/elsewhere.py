"""Doors to the long tail: nodes that no builder here makes, and what is seen to before one is asked."""

from __future__ import annotations

import onnx

from minitvm.doors import door
from minitvm.frontend.onnx.node import OnnxNode, normal_domain
from minitvm.frontend.onnx.registry import Builder, Outputs
from minitvm.ir.expr import Expr


@door
def is_foreign(node: onnx.NodeProto, domain: str, opset: int) -> bool:
    """True if another library computes the operator when the model runs."""
    return False


@door
def foreign(node: OnnxNode) -> list[Expr | None]:
    """The call that stands for such a node."""
    raise node.fail("would have to run in Python, which is not part of this minitvm")


OLDEST_OPSET = 7
"""That builders read."""


def is_old(node: OnnxNode) -> bool:
    return node.opset < OLDEST_OPSET and not normal_domain(node.proto.domain)


@door
def modern(node: OnnxNode) -> OnnxNode:
    """An old node as the oldest operator set that builders read has it."""
    raise node.fail(f"is of opset {node.opset}, and what is older than {OLDEST_OPSET} is not part of this minitvm")


@door
def is_for_python(node: OnnxNode) -> bool:
    """True if a node works on what only Python holds, so that no builder is asked."""
    return False


@door
def known_to_onnx(node: OnnxNode) -> bool:
    """The same as :func:`is_foreign`, of a node with a builder."""
    return False


@door
def built(builder: Builder, node: OnnxNode) -> Outputs:
    """What the builder makes of a node; or a foreign call, where it needs numbers that come up inside the model."""
    return builder(node)


@door
def trained_norm(node: OnnxNode) -> Outputs:
    """Batch normalization over its own batch."""
    raise node.fail("is in training mode, which is not part of this minitvm")


@door
def bags(node: OnnxNode) -> Expr | None:
    """What a Loop that adds up rows stacks; ``None`` where it is of another kind."""
    return None
