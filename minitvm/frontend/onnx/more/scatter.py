"""ONNX operators that write at positions held in a tensor."""

import math

import numpy as np

from minitvm.frontend.onnx.index import along, positions_first, within
from minitvm.frontend.onnx.nn import window_of
from minitvm.frontend.onnx.node import OnnxNode, emit, normalize_axis, rank, scalar
from minitvm.frontend.onnx.registry import formulas, onnx_op
from minitvm.frontend.onnx.tensor import integers
from minitvm.ir.expr import Constant, Expr

_REDUCTIONS = {"none": "update", "update": "update", "add": "add", "mul": "mul", "max": "max", "min": "min"}
"""``update`` is no word of ONNX's, but some write it, and ONNX Runtime takes it for ``none``."""


def _scatter(node: OnnxNode) -> Expr:
    return along(node, "scatter_elements", node[2], reduction=_REDUCTIONS[node.attr("reduction", "none")])


def _scatter_nd(node: OnnxNode) -> Expr:
    mode = _REDUCTIONS[node.attr("reduction", "none")]
    return emit("scatter_nd", node[0], positions_first(node), node[2], mode=mode)


@onnx_op("TensorScatter", since=24)
def tensor_scatter(node: OnnxNode) -> Expr:
    """``update`` written into the cache from each sequence's index on; in circles where ``mode`` says so."""
    past, update, axis = node[0], node[1], normalize_axis(node, node.attr("axis", -2), rank(node[0]))
    length, circular = update.shape[axis], node.attr("mode", "linear") == "circular"
    start = node.get(2) or Constant(np.zeros(past.shape[0], np.int64))
    if not circular and length:
        start = emit(
            "subtract", within(node, past, emit("add", start, integers(length - 1)), (axis,)), integers(length - 1)
        )
    return emit("tensor_scatter", past, update, start, axis=axis, circular=circular) if length else past


@onnx_op("MaxUnpool", since=9)
def max_unpool(node: OnnxNode) -> Expr:
    """Each element back where MaxPool found it, among zeros; a larger ``output_shape`` has more of them at the end."""
    x, at, window = node[0], node[1], window_of(node, node.require("kernel_shape"), node[0])
    pads = [window.padding[d] + window.padding[d + len(window.kernel)] for d in range(len(window.kernel))]
    extents = zip(x.shape[2:], window.strides, pads, window.kernel, strict=True)
    shape = [*x.shape[:2], *((n - 1) * stride - pad + taps for n, stride, pad, taps in extents)]
    flat, count = emit("full", scalar(0, x), shape=(math.prod(shape),), dtype=x.dtype), math.prod(x.shape)
    positions, values = (emit("reshape", t, newshape=(count,)) for t in (at, x))
    found = emit("reshape", emit("scatter_elements", flat, positions, values, axis=0), newshape=tuple(shape))
    wanted = [int(d) for d in node.constant(2, "output_shape")] if node.get(2) is not None else shape
    more = [(0, want - have) for want, have in zip(wanted, shape, strict=True)]
    return emit("nn.pad", found, 0, pad_width=tuple(more)) if wanted != shape else found


formulas({"Scatter-9": _scatter, "ScatterElements-11": _scatter, "ScatterND-11": _scatter_nd})
