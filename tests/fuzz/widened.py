"""A graph with all of its floats in float64: what it says before any rounding of its own."""

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from tests.fuzz.case import Arrays, is_float

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
_DTYPES = ("to", "dtype", "output_datatype", "stash_type", "softmax_precision")


def widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """Inputs, constants, casts and bodies; operators stay as they are."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    _widen(found.graph)
    return found


def widened_feed(feed: Arrays) -> Arrays:
    return {name: a.astype(np.float64) if is_float(a) else a for name, a in feed.items()}


def _widen(graph: onnx.GraphProto) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type in _FLOATS:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for attribute in (a for node in graph.node for a in node.attribute):
        if attribute.type == onnx.AttributeProto.GRAPH:
            _widen(attribute.g)
        elif attribute.type == onnx.AttributeProto.TENSOR:
            _widen_tensor(attribute.t)
        elif attribute.name in _DTYPES and attribute.i in _FLOATS:
            attribute.i = TensorProto.DOUBLE


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in _FLOATS:
        wide = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))
