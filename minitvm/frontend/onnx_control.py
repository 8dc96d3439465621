"""ONNX control flow: a branch whose condition is known is taken at import, others become functions."""

from __future__ import annotations

import numpy as np
import onnx

from minitvm.frontend.onnx_node import OnnxNode
from minitvm.frontend.onnx_registry import onnx_op
from minitvm.ir.builder import call_op
from minitvm.ir.expr import Constant, Expr, Function, Var
from minitvm.ir.types import TensorType, TupleType


@onnx_op("If", since=1)
def if_(node: OnnxNode) -> list[Expr]:
    importer, scope = node.control
    condition = node.known(0)
    if condition is not None:
        branch = node.require("then_branch" if condition.reshape(-1)[0] else "else_branch")
        return list(importer.inline(branch, scope))
    branches = [importer.function(node.require(name), scope, []) for name in ("then_branch", "else_branch")]
    captured = list(dict.fromkeys(outer for _, taken in branches for outer in taken))
    then, orelse = (_over(body, taken, captured) for body, taken in branches)
    return _results(call_op("control.if", node[0], *captured, then_branch=then, else_branch=orelse))


def _over(body: Expr, taken: dict[Expr, Var], captured: list[Expr]) -> Function:
    """The function of a branch over the values that either branch takes from outside."""
    params = [taken[outer] if outer in taken else _unused(outer, i) for i, outer in enumerate(captured)]
    return Function(params, body)


def _unused(outer: Expr, position: int) -> Var:
    return Var(outer.name if isinstance(outer, Var) else f"unused{position}", outer.type)


def _results(call: Expr) -> list[Expr]:
    return list(call) if isinstance(call.type, TupleType) else [call]


@onnx_op("Loop", since=1)
def loop(node: OnnxNode) -> list[Expr]:
    """``control.loop``.  A carried value whose shape changes gets unknown dimensions: found by repetition."""
    importer, scope = node.control
    graph = node.require("body")
    first = [node[i] for i in range(2, len(node.inputs))]
    types = [value.tensor_type for value in first]
    while True:
        params = _loop_params(node, graph, types)
        body, taken = importer.function(graph, scope, params)
        found = body.type.fields[1 : 1 + len(types)]
        joined = [_joined(node, graph, i, t, f) for i, (t, f) in enumerate(zip(types, found, strict=True))]
        if joined == types:
            break
        types = joined
    trips = node.get(0) or Constant(np.asarray(np.iinfo(np.int64).max))
    going = node.get(1) or Constant(np.asarray(True))
    function = Function([*params, *taken.values()], body)
    return list(call_op("control.loop", trips, going, *first, *taken, body=function, num_carried=len(first)))


def _loop_params(node: OnnxNode, graph: onnx.GraphProto, types: list[TensorType]) -> list[Var]:
    """The body's own parameters: the iteration, the condition, and the carried values."""
    if len(graph.input) != 2 + len(types):
        raise node.fail(f"its body takes {len(graph.input)} inputs; expected 2 and the {len(types)} carried values")
    head = (TensorType((), "int64"), TensorType((), "bool"))
    return [Var(value.name, type_) for value, type_ in zip(graph.input, (*head, *types), strict=True)]


def _joined(node: OnnxNode, graph: onnx.GraphProto, position: int, before: TensorType, after: TensorType) -> TensorType:
    if before.dtype != after.dtype or before.rank != after.rank:
        name = graph.input[2 + position].name
        raise node.fail(f"carried value {name!r} goes in as {before} and comes out as {after}")
    pairs = zip(before.shape, after.shape, strict=True)
    return before.with_shape(tuple(a if a == b else None for a, b in pairs))
