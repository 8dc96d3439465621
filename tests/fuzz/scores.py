"""Attention by parts as one kernel computes it: what lies between its two products is in float32, where the graph has
float16.

FuseAttention makes such a kernel, as other runtimes do.  A score beyond 65504 makes a row of NaN in the graph and none
in the kernel: "Where the model's own numbers overflow on the way, those of a rewritten one may not" (docs/passes.md).
So there are two right results, and this is the other one; what lies near neither is wrong.
"""

import functools
from collections.abc import Sequence

import numpy as np
import onnx

from tests.fuzz.case import all_nodes
from tests.fuzz.walk import Array, Compute, NoAnswer, Results

_BETWEEN = frozenset(("Add", "Cast", "Div", "IsNaN", "Mul", "Reshape", "Softmax", "Where"))
"""Operators that FuseAttention walks through."""


def in_float32(model: onnx.ModelProto, compute: Compute) -> Compute:
    """Raises :class:`NoAnswer` where the model has no attention by parts."""
    inside, ends = _between(model.graph)
    if not ends:
        raise NoAnswer("no softmax between two products")

    def wide(node: onnx.NodeProto, operands: Sequence[Array | None], opset: int) -> Results:
        name = next(iter(node.output), "")
        if name not in inside | ends:
            return compute(node, operands, opset)
        widened = [None if a is None else _widened(a) for a in operands]
        if node.op_type == "Cast" and node.attribute[0].i == onnx.TensorProto.FLOAT16 and widened[0] is not None:
            return [widened[0].astype(np.float32)]
        results = compute(node, widened, opset)
        values = operands[1] if name in ends else None
        return results if values is None else [a.astype(values.dtype) for a in results]

    return wide


def _widened(a: Array) -> Array:
    return a.astype(np.float32) if a.dtype == np.float16 else a


def _between(graph: onnx.GraphProto) -> tuple[set[str], set[str]]:
    """Names of what lies between two products, the first of them among it, and of the second ones."""
    nodes = all_nodes(list(graph.node))
    made = {name: node for node in nodes for name in node.output if name}

    @functools.cache
    def down(name: str) -> frozenset[str]:
        """The names on the way from a factor to the product below; none where there is none."""
        node = made.get(name)
        if node is None or node.op_type == "MatMul":
            return frozenset({name} if node else ())
        below = frozenset[str]().union(*map(down, node.input if node.op_type in _BETWEEN else ()))
        return below | {name} if below else below

    found = {node.output[0]: down(node.input[0]) for node in nodes if node.op_type == "MatMul"}
    ends = {end: way for end, way in found.items() if any(made[name].op_type == "Softmax" for name in way)}
    return set[str]().union(*ends.values()), set(ends)
