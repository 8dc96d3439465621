"""Types as ONNX writes them, and as the graph IR has them."""

from collections.abc import Callable

import numpy as np
import onnx

from minitvm.errors import FrontendError
from minitvm.ir.types import (
    DTYPES,
    STRING,
    AnyTensor,
    HostType,
    MapType,
    SequenceType,
    TensorType,
    TupleType,
    Type,
    as_shape,
)

Reject = Callable[[str, "str | None"], FrontendError]


NUMPY_NAMES = {
    "float": "float32",
    "double": "float64",
    "float8e4m3fn": "float8_e4m3fn",
    "float8e4m3fnuz": "float8_e4m3fnuz",
    "float8e5m2": "float8_e5m2",
    "float8e5m2fnuz": "float8_e5m2fnuz",
    "float8e8m0": "float8_e8m0fnu",
    "float4e2m1": "float4_e2m1fn",
}
"""Of ONNX's element types that have another name."""


def dtype_name(code: int, reject: Reject | None = None) -> str:
    """The dtype of an ONNX element type; raises what ``reject(message, hint)`` makes where minitvm has none."""
    name = type_name(code)
    known = NUMPY_NAMES.get(name, name)
    if known in DTYPES or known == STRING:
        return known
    message, hint = f"element type {name!r} is not supported", f"supported: {', '.join(DTYPES)}"
    raise reject(message, hint) if reject else FrontendError(message, hint=hint)


def type_name(code: int) -> str:
    """ONNX's own name of an element type: ``float``, ``int64``, ..."""
    try:
        return str(onnx.TensorProto.DataType.Name(code)).lower()
    except ValueError:
        return f"code {code}"


def element_code(dtype: str) -> int:
    """ONNX's number of a dtype."""
    return onnx.TensorProto.STRING if dtype == STRING else int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def type_of_proto(proto: onnx.TypeProto, reject: Reject) -> TensorType | HostType:
    """Dimensions without a number are anonymous; raises what ``reject(message, hint)`` makes of unknown types."""
    kind = proto.WhichOneof("value")
    if kind == "sequence_type":
        return SequenceType(type_of_proto(proto.sequence_type.elem_type, reject))
    if kind == "optional_type":
        return SequenceType(type_of_proto(proto.optional_type.elem_type, reject), optional=True)
    if kind == "map_type":
        value = type_of_proto(proto.map_type.value_type, reject)
        return MapType(dtype_name(proto.map_type.key_type, reject), value.dtype)
    if kind != "tensor_type":
        words = (kind or "unknown").removesuffix("_type").replace("_", " ")
        raise reject(f"its type is {words}; minitvm has tensors, sequences, maps and optionals", None)
    tensor = proto.tensor_type
    dtype = dtype_name(tensor.elem_type, reject)
    if not tensor.HasField("shape"):
        return AnyTensor(dtype)
    dims = tuple(d.dim_value if d.WhichOneof("value") == "dim_value" else None for d in tensor.shape.dim)
    return TensorType(as_shape(dims), dtype)


def proto_of_type(type_: Type | None) -> onnx.TypeProto:
    """What ONNX's shape inference is told of a value; nothing of one that is left out."""
    if isinstance(type_, SequenceType):
        make = onnx.helper.make_optional_type_proto if type_.optional else onnx.helper.make_sequence_type_proto
        return make(proto_of_type(type_.element))
    if isinstance(type_, (TensorType, AnyTensor)):
        sizes = list(type_.sizes) if isinstance(type_, TensorType) else None
        return onnx.helper.make_tensor_type_proto(element_code(type_.dtype), sizes)
    if isinstance(type_, MapType):
        value = onnx.helper.make_tensor_type_proto(element_code(type_.dtype), ())
        return onnx.helper.make_map_type_proto(element_code(type_.key), value)
    assert not isinstance(type_, TupleType), type_
    return onnx.TypeProto()


def text_of_proto(proto: onnx.TypeProto) -> str:
    """The type as ONNX Runtime names it: ``tensor(float)``, ``seq(tensor(string))``."""
    kind = proto.WhichOneof("value")
    if kind in ("sequence_type", "optional_type"):
        inner = proto.sequence_type if kind == "sequence_type" else proto.optional_type
        return f"{'seq' if kind == 'sequence_type' else 'optional'}({text_of_proto(inner.elem_type)})"
    if kind == "map_type":
        return f"map({type_name(proto.map_type.key_type)},{text_of_proto(proto.map_type.value_type)})"
    return f"tensor({type_name(proto.tensor_type.elem_type)})"
