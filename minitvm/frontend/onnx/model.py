"""Opening an ONNX model, and describing its inputs and outputs without importing it."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from minitvm.errors import FrontendError
from minitvm.frontend.onnx.tensor_data import dtype_name, type_name

ModelSource: TypeAlias = "onnx.ModelProto | str | os.PathLike[str] | bytes"

_FOREIGN = {
    ".params": "MXNet",
    ".json": "MXNet",
    ".mlmodel": "CoreML",
    ".mlpackage": "CoreML",
    ".pb": "TensorFlow",
    ".pbtxt": "TensorFlow",
    ".h5": "Keras",
    ".keras": "Keras",
    ".tflite": "TensorFlow Lite",
    ".pt": "PyTorch",
    ".pth": "PyTorch",
}
_EXPORTERS = {
    "MXNet": "mxnet.contrib.onnx.export_model",
    "CoreML": "onnxmltools.convert_coreml",
    "TensorFlow": "tf2onnx",
    "Keras": "tf2onnx",
    "TensorFlow Lite": "tf2onnx",
    "PyTorch": "torch.onnx.export",
}


@dataclass(frozen=True)
class ValueDescription:
    """An input or output as ONNX Runtime describes it: ``tensor(float)``, ``['batch', 3, None]``."""

    name: str
    type: str
    dtype: str
    shape: tuple[int | str | None, ...]
    has_rank: bool = True
    """False where the model does not even say how many dimensions there are; ``shape`` is then empty."""


@dataclass(frozen=True)
class ModelDescription:
    """What goes into a model and what comes out.  Weights are not inputs."""

    inputs: tuple[ValueDescription, ...]
    outputs: tuple[ValueDescription, ...]
    opset: int = 0
    operators: tuple[str, ...] = ()
    """The type of every node of the main graph, in order."""
    parameters: int = 0
    """Elements of all weights together."""


@dataclass(frozen=True)
class LoadedModel:
    """A parsed model and the folder of its file (``""`` where it came from memory)."""

    proto: onnx.ModelProto
    folder: str


def describe_onnx(model: ModelSource) -> ModelDescription:
    """Inputs and outputs with symbolic dimensions as strings and unknown ones as ``None``.

    Raises :class:`FrontendError` for what is not an ONNX model.
    """
    return describe_model(load_model(model).proto)


def describe_model(proto: onnx.ModelProto) -> ModelDescription:
    weights = {t.name for t in proto.graph.initializer} | {t.values.name for t in proto.graph.sparse_initializer}
    inputs = [describe_value(v) for v in proto.graph.input if v.name not in weights]
    opset = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 0)
    return ModelDescription(
        tuple(inputs),
        tuple(describe_value(v) for v in proto.graph.output),
        opset,
        tuple(node.op_type for node in proto.graph.node),
        sum(math.prod(t.dims) for t in proto.graph.initializer),
    )


def describe_value(value: onnx.ValueInfoProto) -> ValueDescription:
    kind = value.type.WhichOneof("value")
    if kind is not None and kind != "tensor_type":
        what = kind.removesuffix("_type").replace("_", " ")
        raise FrontendError(f"value {value.name!r} is of type {what}; minitvm has tensors only")
    tensor = value.type.tensor_type

    def reject(message: str, hint: str | None) -> FrontendError:
        return FrontendError(f"value {value.name!r}: {message}", hint=hint)

    dtype = dtype_name(tensor.elem_type, reject) if tensor.elem_type else ""
    shape = tuple(_dimension(d) for d in tensor.shape.dim)
    onnx_type = f"tensor({type_name(tensor.elem_type)})"
    return ValueDescription(value.name, onnx_type, dtype, shape, tensor.HasField("shape"))


def _dimension(dim: Any) -> int | str | None:
    if dim.WhichOneof("value") == "dim_value":
        return int(dim.dim_value) if dim.dim_value >= 0 else None
    return str(dim.dim_param) or None


def load_model(source: ModelSource) -> LoadedModel:
    """Parses a model; weights stored beside the file are read later.  Local functions are inlined.

    Raises :class:`FrontendError` that says what the file is, where it is no ONNX model.
    """
    if isinstance(source, onnx.ModelProto):
        return LoadedModel(_inline(_complete(source, "the model")), "")
    if isinstance(source, (bytes, bytearray, memoryview)):
        return LoadedModel(_inline(_parse(bytes(source), "the given bytes", None)), "")
    if not isinstance(source, (str, os.PathLike)):
        raise FrontendError(
            f"a model is a path, bytes or an onnx.ModelProto; found {type(source).__name__}",
            hint='from_onnx("model.onnx")',
        )
    path = Path(source)
    return LoadedModel(_inline(_parse(_read(path), str(path), path)), str(path.resolve().parent))


def _read(path: Path) -> bytes:
    if path.is_dir():
        foreign = "TensorFlow" if (path / "saved_model.pb").exists() else _FOREIGN.get(path.suffix.lower())
        if foreign is not None:
            raise _foreign_error(path, foreign)
        raise FrontendError(f"{path} is a folder, not an ONNX file", hint="give the path of the .onnx file inside it")
    if not path.exists():
        raise FrontendError(f"there is no file {path}")
    try:
        return path.read_bytes()
    except OSError as error:
        raise FrontendError(f"{path} cannot be read: {error.strerror}") from error


def _parse(data: bytes, what: str, path: Path | None) -> onnx.ModelProto:
    if not data:
        raise FrontendError(f"{what}: empty, not an ONNX model", hint="was the download or export interrupted?")
    foreign = _FOREIGN.get(path.suffix.lower()) if path is not None else None
    try:
        proto = onnx.ModelProto.FromString(data)
    except (DecodeError, RuntimeError) as error:
        if path is not None and foreign is not None:
            raise _foreign_error(path, foreign) from error
        raise _not_a_model(data, what) from error
    if path is not None and foreign is not None and not proto.opset_import:
        raise _foreign_error(path, foreign)
    return _complete(proto, what)


def _not_a_model(data: bytes, what: str) -> FrontendError:
    if _is_text(data[:4096]):
        return FrontendError(f"{what}: text, not an ONNX model", hint="an ONNX file is binary; was it a download page?")
    if data[:1] == b"\x08":  # the tag of ir_version, which comes first
        return FrontendError(f"{what}: a truncated or damaged ONNX model", hint="copy or export the file again")
    return FrontendError(f"{what}: not an ONNX model", hint="minitvm reads ONNX files (protobuf, .onnx)")


def _is_text(data: bytes) -> bool:
    return all(byte >= 32 or byte in b"\t\n\r\f" for byte in data)


def _foreign_error(path: Path, framework: str) -> FrontendError:
    return FrontendError(
        f"{path} is a {framework} file; minitvm reads ONNX models",
        hint=f"export the model to ONNX, for example with {_EXPORTERS[framework]}",
    )


def _complete(proto: onnx.ModelProto, what: str) -> onnx.ModelProto:
    if not proto.opset_import or not proto.HasField("graph"):
        missing = "operator set versions" if proto.HasField("graph") else "a graph"
        raise FrontendError(f"{what}: an ONNX model without {missing}", hint="was the export interrupted?")
    if not proto.graph.output:
        raise FrontendError(f"{what}: the graph has no outputs")
    return proto


def _inline(proto: onnx.ModelProto) -> onnx.ModelProto:
    if not proto.functions:
        return proto
    from onnx.inliner import inline_local_functions

    try:
        return inline_local_functions(proto)
    except (onnx.checker.ValidationError, RuntimeError) as error:
        raise FrontendError(
            "the model's own functions cannot be put in place of their calls",
            where=str(error).splitlines(),
            hint="ONNX functions call no function that leads back to themselves; export the model without functions",
        ) from error
