"""SimplifyInference: normalizations become the arithmetic that they are when nothing is trained.

Statistics that are constants turn into one scale and one shift that FoldConstant computes; the scale then folds
into convolution weights (FoldScaleAxis).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minitvm.ir import builder as ir
from minitvm.ir.decision import Declined, decide
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, TupleGetItem
from minitvm.ir.op import Op
from minitvm.ir.ops.nn_norm import BatchNorm, Dropout, GroupNorm, InstanceNorm, L2Normalize, LayerNorm
from minitvm.ir.visitor import as_function, rewrite
from minitvm.passes.manager import FunctionPass, PassContext, register_config

KEEP = register_config(
    "minitvm.SimplifyInference.keep",
    tuple,
    ("nn.layer_norm",),
    "operators that stay whole, as a tuple of names; () expands all of them, as Relay does",
)

Expansion = Callable[..., Expr]
"""From an operator and its arguments to what replaces the call."""


class SimplifyInference(FunctionPass, opt_level=0):
    """Expand batch_norm, dropout, layer_norm, instance_norm, group_norm and l2_normalize.

    ``keep`` names operators to leave whole; by default ``minitvm.SimplifyInference.keep`` says.  Statistics of a
    batch_norm that the graph uses are left alone.
    """

    def __init__(self, keep: Sequence[str] | None = None) -> None:
        self.keep = keep

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        keep = context.option(KEEP.name) if self.keep is None else self.keep
        return as_function(rewrite(function, lambda _, new: _expand(new, keep)))


def _expand(node: Expr, keep: Sequence[str]) -> Expr:
    """What replaces a node; the first result of an operator with several is its projection."""
    call = node.tuple if isinstance(node, TupleGetItem) and node.index == 0 else node
    if not isinstance(call, Call) or not isinstance(call.op, Op):
        return node
    if call.op.name in keep:
        decide("SimplifyInference", call, Declined("it stays whole (minitvm.SimplifyInference.keep)"))
        return node
    table = _RESULTS if isinstance(node, TupleGetItem) else _CALLS
    expand = table.get(type(call.op))
    if expand is None:
        return node
    decide("SimplifyInference", call, "becomes its arithmetic")
    return expand(call.op, *call.args)


def _scalar(value: float, like: Expr) -> Constant:
    return Constant(np.asarray(value, like.dtype))


def along(vector: Expr, axis: int, rank: int) -> Expr:
    """A vector whose elements lie along ``axis`` of a tensor of ``rank``: trailing dimensions of 1."""
    after = rank - 1 - axis % rank
    return ir.expand_dims(vector, axis=1, num_newaxis=after) if after else vector


def _batch_norm(op: Any, data: Expr, gamma: Expr, beta: Expr, mean: Expr, variance: Expr) -> Expr:
    """``x * scale + shift`` with ``scale = gamma / sqrt(var + eps)``, ``shift = beta - mean * scale``."""
    rank = data.tensor_type.rank
    one = _scalar(1, variance)
    scale = one / ir.sqrt(variance + _scalar(op.epsilon, variance))
    if op.scale:
        scale = scale * gamma
    shift = -mean * scale
    if op.center:
        shift = shift + beta
    return data * along(scale, op.axis, rank) + along(shift, op.axis, rank)


def _normalize(data: Expr, axes: Sequence[int], epsilon: float) -> Expr:
    """``(x - mean) / sqrt(variance + eps)`` over ``axes``."""
    mean = ir.mean(data, axis=tuple(axes), keepdims=True)
    variance = ir.variance(data, mean, axis=tuple(axes), keepdims=True)
    return (data - mean) / ir.sqrt(variance + _scalar(epsilon, data))


def _affine(data: Expr, gamma: Expr, beta: Expr, axis: int, op: Any) -> Expr:
    rank = data.tensor_type.rank
    if op.scale:
        data = data * along(gamma, axis, rank)
    if op.center:
        data = data + along(beta, axis, rank)
    return data


def _in_single(expand: Expansion) -> Expansion:
    """Squares of float16 in float32: 256 squared is infinite."""

    def expanded(op: Any, *args: Expr) -> Expr:
        if args[0].dtype != "float16":
            return expand(op, *args)
        return ir.cast(expand(op, *(ir.cast(a, dtype="float32") for a in args)), dtype="float16")

    return expanded


def _over(axes_of: Callable[[Any, int], Sequence[int]]) -> Expansion:
    """Statistics over some axes, by the operator and the rank."""

    def expanded(op: Any, data: Expr, gamma: Expr, beta: Expr) -> Expr:
        axes = axes_of(op, data.tensor_type.rank)
        return _affine(_normalize(data, axes, op.epsilon), gamma, beta, op.axis, op)

    return expanded


def _group_norm(op: Any, data: Expr, gamma: Expr, beta: Expr) -> Expr:
    """Statistics over each group of channels and all but the batch: channel C becomes (groups, C / groups)."""
    shape, axis = data.shape, op.axis % len(data.shape)
    grouped = (*shape[:axis], op.num_groups, shape[axis] // op.num_groups, *shape[axis + 1 :])
    axes = [d for d in range(1, len(grouped)) if d != axis]
    whole = _normalize(ir.reshape(data, newshape=grouped), axes, op.epsilon)
    return _affine(ir.reshape(whole, newshape=shape), gamma, beta, axis, op)


def _l2_normalize(op: Any, data: Expr) -> Expr:
    square = ir.sum(data * data, axis=op.axis, keepdims=True)
    return data / ir.sqrt(ir.maximum(square, _scalar(op.eps, data)))


_RESULTS: dict[type[Op], Expansion] = {BatchNorm: _batch_norm, Dropout: lambda op, data: data}
_CALLS: dict[type[Op], Expansion] = {
    LayerNorm: _in_single(_over(lambda op, _: [op.axis])),
    # all but the batch (dimension 0) and the channel
    InstanceNorm: _in_single(_over(lambda op, rank: [d for d in range(1, rank) if d != op.axis % rank])),
    GroupNorm: _in_single(_group_norm),
    L2Normalize: _in_single(_l2_normalize),
}
