"""A model with other weights or inputs, or with sizes for dimensions that it leaves open."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import onnx

from minitvm.errors import InputError, did_you_mean, listing, warn
from minitvm.frontend.files import Files
from minitvm.frontend.held import LoadedModel, ModelSource
from minitvm.frontend.onnx.model import array_of, load_model


def overridden(
    model: ModelSource,
    by_name: Mapping[str, int],
    by_denotation: Mapping[str, int],
    initializers: Mapping[str, np.ndarray],
) -> LoadedModel:
    """The model with sizes for the dimensions of inputs and outputs that have those names or denotations, and with
    those values for weights.

    Raises :class:`InputError` for what is no weight of the model, or one of another type or shape.
    """
    loaded = load_model(model)
    proto = onnx.ModelProto()
    proto.CopyFrom(loaded.proto)
    dims = [*_dimensions([*proto.graph.input, *proto.graph.output])]
    for name in by_name.keys() - {dim.dim_param for dim in dims}:
        warn(f"no dimension of the model is called {name!r}")
    for dim in dims:
        size = by_name.get(dim.dim_param) if dim.HasField("dim_param") else by_denotation.get(dim.denotation)
        if size is not None and dim.WhichOneof("value") != "dim_value":
            dim.dim_value = size
    weights = {tensor.name: tensor for tensor in proto.graph.initializer}
    for name, array in initializers.items():
        if name not in weights:
            guess = did_you_mean(name, weights)
            raise InputError(f"the model has no weight {name!r}", hint=guess or f"it has: {listing(weights)}")
        _replace(weights[name], array, loaded.files)
    return LoadedModel(proto, loaded.files)


def with_inputs(loaded: LoadedModel, names: Collection[str], ranks: Mapping[str, int]) -> LoadedModel:
    """The model whose weights ``names``, which are inputs as well, are inputs alone, and inputs have those ranks."""
    proto = onnx.ModelProto()
    proto.CopyFrom(loaded.proto)
    graph = proto.graph
    for tensors in (graph.initializer, graph.sparse_initializer):
        kept = [tensor for tensor in tensors if _name_of(tensor) not in names]
        del tensors[:]
        tensors.extend(kept)
    for value in graph.input:
        if value.name in ranks:
            shape = onnx.TensorShapeProto(dim=[onnx.TensorShapeProto.Dimension()] * ranks[value.name])
            value.type.tensor_type.shape.CopyFrom(shape)
    return LoadedModel(proto, loaded.files)


def _name_of(tensor: onnx.TensorProto | onnx.SparseTensorProto) -> str:
    return str(tensor.name if isinstance(tensor, onnx.TensorProto) else tensor.values.name)


def _dimensions(values: Sequence[onnx.ValueInfoProto]) -> Iterator[onnx.TensorShapeProto.Dimension]:
    for value in values:
        yield from value.type.tensor_type.shape.dim


def _replace(tensor: onnx.TensorProto, array: np.ndarray, files: Files) -> None:
    is_outside = tensor.data_location == onnx.TensorProto.EXTERNAL
    shape = tuple(tensor.dims)
    found = onnx.numpy_helper.from_array(array, tensor.name)
    if (found.data_type, tuple(array.shape)) != (tensor.data_type, shape):
        own = array_of(tensor, files).dtype if not is_outside else "what the file says"
        raise InputError(f"weight {tensor.name!r} is {own} {shape}, the array given is {array.dtype} {array.shape}")
    tensor.CopyFrom(found)
