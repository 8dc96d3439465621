"""Nodes of opsets 1 to 6 as opset 7 writes them, which is the oldest that builders read.

Then operands were broadcast where an attribute asked for it, from an axis on; shapes, tiles and types had other
places.  Dropout drops nothing, as always in inference; a batch normalization trains where its statistics are wanted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import onnx

from minitvm.frontend.onnx.elsewhere import OLDEST_OPSET
from minitvm.frontend.onnx.node import OnnxNode, dims, emit, normalize_axis, rank, schema_of
from minitvm.ir.expr import Constant, Expr

Change: TypeAlias = "tuple[list[Expr | None], dict[str, Any]]"
"""The inputs, and attributes with their new values; those of ``None`` are left out."""


def modern(node: OnnxNode) -> OnnxNode:
    """The same node of opset 7: attributes that this one has not go, defaults that it has not are said."""
    change = _CHANGES.get(node.op_type)
    inputs, attributes = change(node) if change is not None else (node.inputs, {})
    names = [*node.proto.input, *(f"input{i}" for i in range(len(node.proto.input), len(inputs)))]
    found = onnx.NodeProto()
    found.CopyFrom(node.proto)
    del found.input[:], found.attribute[:]
    found.input.extend(name if value is not None else "" for name, value in zip(names, inputs, strict=False))
    found.attribute.extend(proto for proto in _kept(node) if proto.name not in attributes)
    found.attribute.extend(
        onnx.helper.make_attribute(name, value) for name, value in attributes.items() if value is not None
    )
    return OnnxNode(found, inputs, OLDEST_OPSET, node.known_values, node.control)


def _kept(node: OnnxNode) -> list[onnx.AttributeProto]:
    """Attributes that opset 7 has as well, with what they are by default where that was something else."""
    newer = schema_of(node.proto, OLDEST_OPSET)
    if newer is None:
        return list(node.proto.attribute)
    found = {name: node.attribute_proto(name) for name in newer.attributes}
    kept = ((proto, newer.attributes[name].default_value) for name, proto in found.items() if proto is not None)
    return [proto for proto, default in kept if proto != default]


def _broadcast(node: OnnxNode) -> Change:
    """The second operand from ``axis`` on; without one its dimensions are the first one's last."""
    x, y, axis = node[0], node[1], node.attr("axis")
    if not node.attr("broadcast", 0):
        return [x, y], {}
    if all(d == 1 for d in dims(y)):
        return [x, emit("reshape", y, newshape=())], {}
    if axis is None:
        return [x, y], {}
    behind = rank(x) - normalize_axis(node, axis, rank(x)) - rank(y)
    if behind < 0:
        raise node.misfit(f"{y.tensor_type} is broadcast from axis {axis} of {x.tensor_type}, which it is longer than")
    return [x, emit("expand_dims", y, axis=rank(y), num_newaxis=behind) if behind else y], {}


def _prelu(node: OnnxNode) -> Change:
    """A slope of one dimension is one of channels."""
    x, slope = node[0], node[1]
    if rank(slope) == 1 and dims(slope) != (1,) and rank(x) > 2:
        slope = emit("expand_dims", slope, axis=1, num_newaxis=rank(x) - 2)
    return [x, slope], {}


def _cast(node: OnnxNode) -> Change:
    """To a type by its name."""
    to = node.require("to")
    if isinstance(to, str):
        codes = dict(onnx.TensorProto.DataType.items())
        if to.upper() not in codes:
            raise node.refuse("to", "a name of onnx.TensorProto.DataType, such as FLOAT")
        to = codes[to.upper()]
    return node.inputs, {"to": to}


def _tile(node: OnnxNode) -> Change:
    """One axis, some times; since opset 6 a number for each axis."""
    if node.opset >= 6:
        return node.inputs, {}
    tiles, axis = (int(node.constant(i, what).reshape(-1)[0]) for i, what in ((1, "the tiles"), (2, "the axis")))
    repeats = np.ones(rank(node[0]), np.int64)
    repeats[normalize_axis(node, axis, rank(node[0]))] = tiles
    return [node[0], Constant(repeats)], {}


def _split(node: OnnxNode) -> Change:
    if node.get(1) is None:
        return [node[0]], {}
    return [node[0]], {"split": [int(size) for size in node.constant(1, "the sizes").reshape(-1)]}


def _reshape(node: OnnxNode) -> Change:
    if node.opset >= 5:
        return node.inputs, {}
    return [node[0], Constant(np.array(node.require("shape"), np.int64))], {}


def _upsample(node: OnnxNode) -> Change:
    if rank(node[0]) != 4:
        raise node.misfit(f"takes 4 dimensions; found {node[0].tensor_type}")
    mode = {"bilinear": "linear"}.get(node.attr("mode"), node.attr("mode"))
    return node.inputs, {"scales": [1.0, 1.0, node.require("height_scale"), node.require("width_scale")], "mode": mode}


def _layer(node: OnnxNode) -> Change:
    """The GRU of opset 1 is by default of a direction that its definition misspells."""
    return node.inputs, {"direction": node.attr("direction").replace("foward", "forward")}


_CHANGES: dict[str, Callable[[OnnxNode], Change]] = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less"), _broadcast),
    "Cast": _cast,
    "Concat": lambda node: (node.inputs, {"axis": node.attr("axis", 1 if node.opset < 4 else None)}),
    "GRU": _layer,
    "PRelu": _prelu,
    "Pad": lambda node: (node.inputs, {"pads": node.attr("paddings") or node.require("pads")}),
    "Reshape": _reshape,
    "Split": _split,
    "Tile": _tile,
    "Upsample": _upsample,
}
