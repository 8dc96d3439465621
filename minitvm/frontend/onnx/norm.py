"""ONNX normalisations."""

from __future__ import annotations

import math

import numpy as np

from minitvm.frontend.onnx.elsewhere import trained_norm
from minitvm.frontend.onnx.node import OnnxNode, cast, dims, emit, normalize_axis, rank, single, wide
from minitvm.frontend.onnx.registry import Outputs, formulas, onnx_op
from minitvm.frontend.onnx.tensor import reshaped
from minitvm.ir.expr import Constant, Expr


@onnx_op("BatchNormalization")
def batch_normalization(node: OnnxNode) -> Outputs:
    if node.attr("training_mode", 0) or any(node.wants(i) for i in range(1, 5)):
        return trained_norm(node)
    x = single(node[0])
    parameters = [cast(node[i], x.dtype) for i in range(1, 5)]
    if not node.attr("spatial", 1):  # before opset 9: numbers of each element, not of each channel
        scale, bias, mean, variance = parameters
        return cast((x - mean) / emit("sqrt", variance + node.attr("epsilon")) * scale + bias, node[0].dtype)
    return cast(emit("nn.batch_norm", x, *parameters, axis=1, epsilon=node.attr("epsilon"))[0], node[0].dtype)


def _per_group(node: OnnxNode) -> Expr:
    """Before opset 21 scale and bias come per group."""
    repeats = node[0].shape[1] // node.require("num_groups")
    return _group_norm(node, *(emit("repeat", node[i], repeats=repeats, axis=0) for i in (1, 2)))


def _group_norm(node: OnnxNode, scale: Expr, bias: Expr) -> Expr:
    groups, epsilon = node.require("num_groups"), node.attr("epsilon")
    return emit("nn.group_norm", node[0], scale, bias, num_groups=groups, axis=1, epsilon=epsilon)


def _lrn(node: OnnxNode) -> Expr:
    factors = {name: node.attr(name) for name in ("bias", "alpha", "beta")}
    return emit("nn.lrn", node[0], size=node.require("size"), axis=1, **factors)


formulas(
    {
        "GroupNormalization-18": _per_group,
        "GroupNormalization-21": lambda n: _group_norm(n, n[1], n[2]),
        "InstanceNormalization": lambda n: emit("nn.instance_norm", *n.operands(), axis=1, epsilon=n.attr("epsilon")),
        "LRN": _lrn,
    }
)


@onnx_op("LayerNormalization", since=17)
def layer_normalization(node: OnnxNode) -> list[Expr]:
    """``nn.layer_norm`` over the last axis; several axes are merged into one and split again."""
    x, scale = node[0], node[1]
    axis = normalize_axis(node, node.attr("axis"), rank(x))
    bias = node.get(2) or nothing_added(scale)
    one_each = dims(x)[axis:] == (None,) or dims(scale) == dims(bias) == dims(x)[axis:]
    if axis == rank(x) - 1 and one_each:
        return [_layer_norm(node, x, scale, bias), *_statistics(node, x, axis)]
    size = math.prod(x.shape[axis:])
    flat = reshaped(x, [math.prod(x.shape[:axis]), size], allowzero=True)
    parameters = [reshaped(emit("broadcast_to", p, shape=x.shape[axis:]), [size], True) for p in (scale, bias)]
    return [reshaped(_layer_norm(node, flat, *parameters), list(x.shape), True), *_statistics(node, x, axis)]


def nothing_added(scale: Expr) -> Constant:
    """The bias where there is none: -0.0, which keeps the sign of zero."""
    return Constant(np.full(scale.shape, -0.0, scale.dtype))


def _layer_norm(node: OnnxNode, x: Expr, scale: Expr, bias: Expr) -> Expr:
    return emit("nn.layer_norm", x, scale, bias, axis=rank(x) - 1, epsilon=node.attr("epsilon"))


def _statistics(node: OnnxNode, x: Expr, axis: int) -> list[Expr]:
    """The mean and the reciprocal of the standard deviation, in float32, where the node names them."""
    if not node.wants(1) and not node.wants(2):
        return []
    x = cast(x, wide(x.dtype))
    axes = tuple(range(axis, rank(x)))
    mean = emit("mean", x, axis=axes, keepdims=True)
    variance = emit("variance", x, mean, axis=axes, keepdims=True)
    deviation = emit("sqrt", variance + node.attr("epsilon"))
    return [cast(found, "float32") for found in (mean, 1 / deviation)]


@onnx_op("RMSNormalization", since=23)
def rms_normalization(node: OnnxNode) -> Expr:
    """x over the root of its mean square, times scale; in float32 at least."""
    x, scale = (cast(node[i], wide(node[i].dtype)) for i in (0, 1))
    axes = tuple(range(normalize_axis(node, node.attr("axis"), rank(x)), rank(x)))
    root = emit("sqrt", emit("mean", x * x, axis=axes, keepdims=True) + node.attr("epsilon"))
    return cast(cast(x / root, scale.dtype) * scale, node[1].dtype)
