"""Doors to the long tail: nodes that no builder here makes, and what is seen to before one is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import onnx

from minitvm.doors import door
from minitvm.frontend.onnx.node import OnnxNode, normal_domain
from minitvm.frontend.onnx.registry import Builder, Outputs
from minitvm.ir.expr import Expr

Supports: TypeAlias = Callable[[onnx.NodeProto, int], bool]
"""True if a node of an operator set can be imported."""


class Functions:
    """What nodes are that stand for others.  Without the room that imports these, none is."""

    def graphs(self) -> list[tuple[onnx.GraphProto, Mapping[str, int]]]:
        """The functions that the model brings, each with the operator sets that it imports."""
        return []

    def own(self, node: onnx.NodeProto, opset: int) -> Builder | None:
        """What imports a call of such a function."""
        return None

    def defined(self, node: onnx.NodeProto, opset: int, supports: Supports) -> Builder | None:
        """What imports an operator as ONNX defines it by others."""
        return None


@door
def functions_of(model: onnx.ModelProto) -> Functions:
    """The functions of a model that is imported."""
    return Functions()


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
