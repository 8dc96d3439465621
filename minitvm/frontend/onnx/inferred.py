"""Types of outputs that a model does not say, for those who look at it; what is compiled has its own."""

from __future__ import annotations

import onnx

_MOST_BYTES = 1 << 26
"""Of models that are looked through for it: onnx copies them."""


def typed_outputs(proto: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """The outputs, those without a type as onnx infers them where it can."""
    outputs = list(proto.graph.output)
    if all(_is_typed(value) for value in outputs) or proto.ByteSize() > _MOST_BYTES:
        return outputs
    try:
        found = onnx.shape_inference.infer_shapes(proto).graph
    except Exception:  # what onnx makes of damaged models is no short list, and nothing hangs on it
        return outputs
    known = {value.name: value for value in (*found.output, *found.input, *found.value_info) if _is_typed(value)}
    return [value if _is_typed(value) else known.get(value.name, value) for value in outputs]


def _is_typed(value: onnx.ValueInfoProto) -> bool:
    kind = value.type.WhichOneof("value")
    return kind is not None and (kind != "tensor_type" or bool(value.type.tensor_type.elem_type))
