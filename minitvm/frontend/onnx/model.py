"""Opening an ONNX model: what goes in and comes out without importing it; its tensors, wherever they are stored."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from minitvm.doors import door
from minitvm.errors import FrontendError, NotAModelError, stage
from minitvm.frontend.description import ModelDescription, ValueDescription
from minitvm.frontend.files import File, Files
from minitvm.frontend.held import HeldModel, LoadedModel, ModelSource, external_file, foreign_error, open_model
from minitvm.frontend.onnx.inferred import typed_outputs
from minitvm.frontend.onnx.types import dtype_name, text_of_proto, type_of_proto
from minitvm.frontend.other_formats import framework_of
from minitvm.ir.budget import current
from minitvm.ir.dtypes import bits_of, packed_bytes, unpacked
from minitvm.ir.types import STRING, MapType, SequenceType

LARGE = 64 * 1024
"""Bytes of a tensor, from which it is mapped."""


@stage("opening the model")
def describe_onnx(model: ModelSource) -> ModelDescription:
    """Inputs and outputs with symbolic dimensions as strings and unknown ones as ``None``.

    Raises :class:`FrontendError` for what is not an ONNX model.
    """
    return describe_model(load_model(model).proto)


def describe_model(proto: onnx.ModelProto) -> ModelDescription:
    weights = {t.name for t in proto.graph.initializer} | {t.values.name for t in proto.graph.sparse_initializer}
    inputs = [describe_value(v) for v in proto.graph.input if v.name not in weights]
    opset = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 0)
    bodies = [onnx.GraphProto(node=function.node) for function in proto.functions]
    inner = [*inner_graphs(proto.graph), *bodies, *(graph for body in bodies for graph in inner_graphs(body))]
    windows = _windows(proto.graph)
    return ModelDescription(
        tuple(_apart(inputs, windows)),
        tuple(map(describe_value, typed_outputs(proto))),
        opset,
        tuple(node.op_type for node in proto.graph.node),
        sum(math.prod(t.dims) for graph in (proto.graph, *inner) for t in _weights(graph)),
        tuple(node.op_type for graph in inner for node in graph.node),
        tuple(describe_value(v) for v in proto.graph.input if v.name in weights and proto.ir_version >= _DEFAULTS),
        _metadata(proto),
        _buffers(proto.graph),
        _grown(proto.graph),
        windows,
    )


_BUFFERS: Mapping[str, tuple[tuple[int, int], ...]] = {
    "GroupQueryAttention": ((3, 1), (4, 2)),
    "TensorScatter": ((0, 0),),
}
"""Operators with the inputs that they write new places into, each with the output that it becomes."""


def _buffers(graph: onnx.GraphProto) -> dict[str, str]:
    moving = _windows(graph)
    found = {taken.name: given for _, taken, given in _passed_on(graph, _BUFFERS)}
    return {name: given for name, given in found.items() if name not in moving}


def _windows(graph: onnx.GraphProto) -> dict[str, int]:
    found = {}
    for node, taken, _ in _passed_on(graph, _BUFFERS):
        attributes = {a.name: a.i for a in node.attribute}
        if attributes.get("sliding_window_cache", 0):
            found[taken.name] = attributes.get("local_window_size", -1)
    return found


def _apart(inputs: list[ValueDescription], windows: Mapping[str, int]) -> list[ValueDescription]:
    """Rows of windows are counted by themselves, whatever name exporters give all lengths of caches."""
    others = {d for value in inputs if value.name not in windows for d in value.shape[1:]}

    def own(value: ValueDescription) -> ValueDescription:
        batch, *rest = value.shape
        rest = [f"{d}_of_windows" if isinstance(d, str) and d in others else d for d in rest]
        return replace(value, shape=(batch, *rest))

    return [own(value) if value.name in windows and value.shape else value for value in inputs]


def _passed_on(
    graph: onnx.GraphProto, table: Mapping[str, tuple[tuple[int, int], ...]]
) -> Iterator[tuple[onnx.NodeProto, onnx.ValueInfoProto, str]]:
    """Nodes that make an output of an input, these two by the positions that ``table`` says."""
    inputs, outputs = {v.name: v for v in graph.input}, {v.name for v in graph.output}
    for node in graph.node:
        for taken, given in table.get(node.op_type, ()):
            is_there = taken < len(node.input) and given < len(node.output)
            if is_there and node.input[taken] in inputs and node.output[given] in outputs:
                yield node, inputs[node.input[taken]], node.output[given]


_GROWN: Mapping[str, tuple[tuple[int, int], ...]] = {
    "Concat": ((0, 0),),
    "Attention": ((4, 1), (5, 2)),
    "MultiHeadAttention": ((6, 1), (7, 2)),
}
"""Operators with the inputs that they put new places behind, each with the output that comes of it."""


def _grown(graph: onnx.GraphProto) -> dict[str, tuple[str, int]]:
    found = {}
    for node, taken, given in _passed_on(graph, _GROWN):
        dims = taken.type.tensor_type.shape.dim
        axis = next((a.i for a in node.attribute if a.name == "axis"), 2)
        axis += len(dims) * (axis < 0)
        if 0 < axis < len(dims) and not dims[axis].HasField("dim_value"):
            found[taken.name] = (given, axis)
    return found


def inner_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graphs among the attributes of its nodes, and theirs."""
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                yield inner
                yield from inner_graphs(inner)


def _weights(graph: onnx.GraphProto) -> list[Any]:
    """What is stored, with its shape: of a sparse tensor all its elements."""
    return [*graph.initializer, *graph.sparse_initializer]


_DEFAULTS = 4
"""The version of ONNX's format from which on a weight that is an input is one that may be given."""
_NO_VERSION = 2**63 - 1
"""What ONNX Runtime says of a model without a version."""


def _metadata(proto: onnx.ModelProto) -> dict[str, Any]:
    return {
        "producer_name": proto.producer_name,
        "graph_name": proto.graph.name,
        "domain": proto.domain,
        "description": proto.doc_string,
        "graph_description": proto.graph.doc_string,
        "version": proto.model_version if proto.HasField("model_version") else _NO_VERSION,
        "custom_metadata_map": {entry.key: entry.value for entry in proto.metadata_props},
    }


def describe_value(value: onnx.ValueInfoProto) -> ValueDescription:
    def reject(message: str, hint: str | None) -> FrontendError:
        return FrontendError(f"value {value.name!r}: {message}", hint=hint)

    tensor = value.type.tensor_type
    if value.type.WhichOneof("value") not in (None, "tensor_type"):
        held = type_of_proto(value.type, reject)
        assert isinstance(held, (SequenceType, MapType))
        return ValueDescription(value.name, text_of_proto(value.type), "", (), held=held)
    dtype = dtype_name(tensor.elem_type, reject) if tensor.elem_type else ""
    shape = tuple(_dimension(d) for d in tensor.shape.dim)
    return ValueDescription(value.name, text_of_proto(value.type), dtype, shape, tensor.HasField("shape"))


def _dimension(dim: Any) -> int | str | None:
    if dim.WhichOneof("value") == "dim_value":
        return int(dim.dim_value) if dim.dim_value >= 0 else None
    return str(dim.dim_param) or None


@stage("opening the model")
def load_model(source: ModelSource) -> LoadedModel:
    """Parses a model; weights stored beside the file are read later.

    Raises :class:`FrontendError` that says what the file is, where it is no ONNX model.
    """
    if isinstance(source, LoadedModel):
        return source
    if isinstance(source, onnx.ModelProto):
        return LoadedModel(_complete(source, "the model"), Files())
    if isinstance(source, (bytes, bytearray, memoryview)):
        return LoadedModel(_parse(bytes(source), "the given bytes"), Files())
    held = source if isinstance(source, HeldModel) else open_model(source)
    return LoadedModel(_parse_file(held.files.opened[held.name], held.name), held.files)


@door
def without_weights(file: File, name: str) -> bytes | None:
    """The model in a file with its large weights as external data in that file; ``None``: it is parsed whole."""
    return None


def _parse_file(file: File, name: str) -> onnx.ModelProto:
    """The model in a file, its large weights as references to where they lie in it."""
    path = file.path
    try:
        file.require_unchanged()
        slim = without_weights(file, name)
        if slim is not None:
            return _parse(slim, str(path), path)
        return _parse(file.whole(), str(path), path)
    except OSError as error:
        raise FrontendError(f"{path} cannot be read: {error.strerror}") from error


def _parse(data: bytes | mmap.mmap, what: str, path: Path | None = None) -> onnx.ModelProto:
    if not data:
        raise NotAModelError(f"{what}: empty, not an ONNX model", hint="was the download or export interrupted?")
    foreign = framework_of(path.suffix) if path is not None else None
    try:
        proto = onnx.ModelProto.FromString(memoryview(data))
        if foreign is None or proto.opset_import:
            return _complete(proto, what)
    except (DecodeError, RuntimeError) as error:
        if foreign is None:
            raise _not_a_model(data, what) from error
    raise foreign_error(path, *foreign)


def _not_a_model(data: bytes | mmap.mmap, what: str) -> NotAModelError:
    if all(byte >= 32 or byte in b"\t\n\r\f" for byte in data[:4096]):
        return NotAModelError(
            f"{what}: text, not an ONNX model", hint="an ONNX file is binary; was it a download page?"
        )
    if data[:1] == b"\x08":  # the tag of ir_version, which comes first
        return NotAModelError(f"{what}: a truncated or damaged ONNX model", hint="copy or export the file again")
    return NotAModelError(f"{what}: not an ONNX model", hint="minitvm reads ONNX files (protobuf, .onnx)")


def _complete(proto: onnx.ModelProto, what: str) -> onnx.ModelProto:
    if not proto.opset_import or not proto.HasField("graph"):
        missing = "operator set versions" if proto.HasField("graph") else "a graph"
        raise FrontendError(f"{what}: an ONNX model without {missing}", hint="was the export interrupted?")
    if not proto.graph.output:
        raise FrontendError(f"{what}: the graph has no outputs")
    return proto


# --- tensors --------------------------------------------------------------------------------------------------

_MOST_DIGITS = 19
"""A number of bytes has no more."""


def array_of(tensor: onnx.TensorProto, files: Files) -> np.ndarray:
    """The array of a tensor; external data is looked up below the folder of ``files``.

    Raises :class:`FrontendError` for element types without a numpy dtype, data shorter than the shape asks for,
    and external files that are missing or outside the folder.
    """
    where = [f'ONNX tensor "{tensor.name}"']
    dtype = dtype_name(tensor.data_type, lambda message, hint: FrontendError(message, where=where, hint=hint))
    if any(d < 0 for d in tensor.dims):
        raise FrontendError(f"a tensor has the shape {tuple(tensor.dims)}", where=where)
    external = tensor.data_location == onnx.TensorProto.EXTERNAL
    try:
        found = _external(tensor, dtype, files, where) if external else onnx.numpy_helper.to_array(tensor)
        if dtype == STRING:
            found = np.array([one.decode("utf-8", "replace") for one in tensor.string_data], object)
        return np.ascontiguousarray(found).reshape(tuple(tensor.dims))
    except (ValueError, TypeError) as error:
        shape = tuple(tensor.dims)
        raise FrontendError(
            f"the data of a tensor does not fill its shape {shape} of {dtype}", where=where, hint="the file is damaged"
        ) from error


def dense_array(sparse: onnx.SparseTensorProto, files: Files) -> np.ndarray:
    """All elements of a sparse tensor.  Raises what :func:`array_of` raises, and where an index is outside."""
    values, indices = array_of(sparse.values, files), array_of(sparse.indices, files)
    size = math.prod(sparse.dims) * values.itemsize
    current().require("bytes", max(0, size), f"all elements of a sparse tensor of shape {tuple(sparse.dims)}")
    try:
        found = np.zeros(tuple(sparse.dims), values.dtype)
        places = indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), found.shape)
        np.put(found, places, values)
    except (ValueError, IndexError) as error:
        message = f"a sparse tensor of shape {tuple(sparse.dims)} cannot be read: {error}"
        raise FrontendError(message, where=[f'ONNX tensor "{sparse.values.name}"']) from error
    return found


def _external(tensor: onnx.TensorProto, dtype: str, files: Files, where: list[str]) -> np.ndarray:
    """The elements, in a row or as they are in the file."""
    file, offset, wanted = _place(tensor, dtype, files, where)
    if wanted >= LARGE and bits_of(dtype) >= 8:
        return file.array(dtype, tensor.dims, offset)
    file.require_unchanged()
    return unpacked(file[offset : offset + wanted], dtype, math.prod(tensor.dims))


def _place(tensor: onnx.TensorProto, dtype: str, files: Files, where: list[str]) -> tuple[File, int, int]:
    """The file that a tensor is in, where in it, and how many bytes."""
    entries = {e.key: e.value for e in tensor.external_data}
    file = external_file(entries.get("location", ""), files, where)
    wanted = packed_bytes(dtype, math.prod(tensor.dims))
    offset = _number(entries, "offset", 0, where)
    if _number(entries, "length", wanted, where) != wanted:
        raise FrontendError(f"external data of {entries['length']} bytes for a tensor of {wanted} bytes", where=where)
    if offset + wanted > len(file):
        raise FrontendError(
            f"{file.path.name} has {len(file)} bytes; a tensor is stored at {offset} to {offset + wanted}",
            where=where,
            hint="the file is truncated",
        )
    return file, offset, wanted


def check_weights(graph: onnx.GraphProto, files: Files) -> None:
    """Raises what :func:`array_of` raises of a graph's weights; files beside the model are looked for, not read."""
    for tensor in graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            array_of(tensor, files)
        elif all(d >= 0 for d in tensor.dims):
            _place(tensor, dtype_name(tensor.data_type), files, [f'ONNX tensor "{tensor.name}"'])


def _number(entries: dict[str, str], name: str, default: int, where: list[str]) -> int:
    text = entries.get(name, str(default))
    if not text.isdecimal() or len(text) > _MOST_DIGITS:
        raise FrontendError(
            f"the {name} of external data is {text!r}, not a number", where=where, hint="the file is damaged"
        )
    return int(text)
