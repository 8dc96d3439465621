"""The long tail: nodes without a builder or a definition by simpler operators run in Python, by ``onnx.reference``, and
those whose builders need numbers that come up inside the model by their builders (``late``)."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from google.protobuf import json_format  # type: ignore[import-untyped]

from minitvm.errors import MiniTVMError, TypeInferenceError, UnknownValueError, is_own
from minitvm.frontend.onnx.model import array_of
from minitvm.frontend.onnx.more.multinomial import multinomial
from minitvm.frontend.onnx.more.regex import full_match
from minitvm.frontend.onnx.node import OnnxNode, normal_domain, schema_of
from minitvm.frontend.onnx.registry import Builder, Outputs
from minitvm.frontend.onnx.types import proto_of_type, type_of_proto
from minitvm.ir.builder import call_op
from minitvm.ir.dims import Undecided, is_anonymous
from minitvm.ir.expr import Constant, Expr
from minitvm.ir.types import HostType, TensorType, TupleType, Type, UnknownSize, as_shape

RANDOM = frozenset({"Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"})
"""Dropout in training only: otherwise it has a builder."""

RANKED = frozenset({"MaxUnpool"})
"""The rank of the result, which ONNX's shape inference does not see, is the first input's."""

LIKE = frozenset({"RandomNormalLike", "RandomUniformLike"})
"""The shape of the result, of which ONNX's shape inference knows numbers alone, is the first input's."""

OPEN = frozenset({"STFT"})
"""ONNX's shape inference counts the frames otherwise than its reference."""

OWN: dict[str, Callable[[onnx.NodeProto], Callable[..., Sequence[Any]]]] = {
    "RegexFullMatch": full_match,
    "Multinomial": multinomial,
}
"""Computed here, not by onnx's reference evaluator."""


def is_foreign(node: onnx.NodeProto, domain: str, opset: int) -> bool:
    """True if onnx's reference evaluator has the operator, over tensors alone."""
    schema = schema_of(node, opset)
    if schema is None or schema.deprecated:
        return False
    if any(a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for a in node.attribute):
        return False
    if node.op_type in OWN and not domain:
        return True
    from onnx.reference.op_run import RuntimeContextError, RuntimeImplementationError
    from onnx.reference.ops import load_op

    try:
        load_op(domain, node.op_type, opset)
    except (RuntimeContextError, RuntimeImplementationError, NotImplementedError):
        return False
    except Exception:  # those that are defined by others ask for more than a name
        return bool(schema.has_function or schema.has_context_dependent_function)
    return True


def foreign(node: OnnxNode, origin: str = "onnx") -> list[Expr | None]:
    """The call of ``foreign`` that stands for a node; its results are typed by ONNX's shape inference."""
    if node.op_type in OWN:
        try:
            OWN[node.op_type](node.proto)
        except MiniTVMError as error:
            raise node.fail(error.message, error.hint) from error
    given = [(name, value) for name, value in zip(node.proto.input, node.inputs, strict=True) if value is not None]
    wanted = [name for name in node.proto.output if name]
    whole = _self_contained(node)
    types = _result_types(node, whole, dict(given))
    if node.op_type in RANKED:
        types = {name: proto_of_type(found) for name, found in _as_first(node, wanted).items()}
    elif not all(name in types and _has_rank(types[name]) for name in wanted):
        _require_values(node)
    found = [_type(node, name, types.get(name)) for name in wanted]
    if node.op_type in LIKE:
        found = [given[0][1].tensor_type.with_dtype(one.dtype) if isinstance(one, TensorType) else one for one in found]
    try:
        text = json_format.MessageToJson(whole, indent=None)
    except json_format.Error as error:
        raise node.fail(f"malformed: {error}") from error
    operator = "foreign_random" if node.op_type in RANDOM else "foreign"
    named = {"origin": origin, "operator": f"{whole.domain or 'onnx'}.{node.op_type}"}
    how = {**named, "node": text, "version": node.opset, "types": tuple(map(str, found))}
    call = call_op(operator, *(value for _, value in given), **how)
    results = iter(list(call) if isinstance(call.type, TupleType) else [call])
    return [next(results) if name else None for name in node.proto.output]


def built(builder: Builder, node: OnnxNode) -> Outputs:
    """What the builder makes of a node; where that needs numbers that come up inside the model, its foreign call, which
    one of minitvm's own builders computes."""
    try:
        return builder(node)
    except UnknownValueError as error:
        if error.inputs or not known_to_onnx(node):
            raise
    except TypeInferenceError as error:
        unknown = isinstance(error, UnknownSize) or isinstance(error.__cause__, Undecided)
        if not unknown or not any(map(_is_open, node.inputs)) or not known_to_onnx(node):
            raise
    return foreign(node, "minitvm" if is_own(builder) and node.op_type not in RANDOM else "onnx")


def _is_open(value: Expr | None) -> bool:
    """True if sizes come up inside the model."""
    type_ = None if value is None else value.type
    return isinstance(type_, TensorType) and any(map(is_anonymous, type_.shape))


def known_to_onnx(node: OnnxNode) -> bool:
    """Asked only where it matters: onnx's evaluator is hundreds of modules."""
    return is_foreign(node.proto, normal_domain(node.proto.domain), node.opset)


def _self_contained(node: OnnxNode) -> onnx.NodeProto:
    """The node with the tensors of its attributes in it, as the importer reads them: onnx looks anywhere for files."""
    found = onnx.NodeProto()
    found.CopyFrom(node.proto)
    found.domain = normal_domain(found.domain)
    for tensor in _external_tensors(found):
        tensor.CopyFrom(onnx.numpy_helper.from_array(array_of(tensor, node.control[0].files), tensor.name))
    return found


def attribute_tensors(node: onnx.NodeProto) -> list[onnx.TensorProto]:
    return [tensor for attribute in node.attribute for tensor in (attribute.t, *attribute.tensors)]


def _external_tensors(node: onnx.NodeProto) -> list[onnx.TensorProto]:
    return [tensor for tensor in attribute_tensors(node) if tensor.data_location == onnx.TensorProto.EXTERNAL]


def parsed(node: str) -> onnx.NodeProto:
    """A node that is given as protobuf's JSON; an error where it asks for a file."""
    proto: onnx.NodeProto = json_format.Parse(node, onnx.NodeProto())
    if _external_tensors(proto):
        raise MiniTVMError(f"{proto.op_type}: a tensor of an attribute is in a file", hint="compile the model again")
    return proto


def evaluator(node: str, opset: int) -> Callable[..., Sequence[Any]]:
    """What computes a node that is given as protobuf's JSON: arrays of its inputs to its results."""
    proto = parsed(node)
    made = _function_of(proto, opset)
    is_seeded = proto.op_type not in RANDOM or any(a.name == "seed" for a in proto.attribute)

    def evaluate(*arrays: np.ndarray) -> list[Any]:
        drawn = None if is_seeded or _chance is None else _function_of(_drawn(proto), opset)
        return list((drawn or made)(*arrays))

    return evaluate


def _function_of(proto: onnx.NodeProto, opset: int) -> Callable[..., Sequence[Any]]:
    if proto.op_type in OWN and not proto.domain:
        return OWN[proto.op_type](proto)
    try:
        from onnx.reference import ReferenceEvaluator
    except ImportError as error:
        message = "the model has an operator that is not compiled, and onnx's reference evaluator is missing"
        raise MiniTVMError(message, hint="pip install onnx") from error
    made = ReferenceEvaluator(proto, opsets={proto.domain: opset})
    names = [name for name in proto.input if name]
    return lambda *arrays: list(made.run(None, dict(zip(names, arrays, strict=True))))


_chance: random.Random | None = None
"""What seeds nodes that draw numbers and have no seed, where it was asked for."""


def seed_chance(seed: int) -> None:
    """Seeds the generator: what nodes without a seed draw from now on follows from ``seed`` and the order in which they
    run."""
    global _chance
    _chance = random.Random(seed)


def _drawn(proto: onnx.NodeProto) -> onnx.NodeProto:
    """The node with the next seed."""
    assert _chance is not None
    found = onnx.NodeProto()
    found.CopyFrom(proto)
    found.attribute.append(onnx.helper.make_attribute("seed", float(_chance.randrange(2**24))))
    return found


def _result_types(node: OnnxNode, proto: onnx.NodeProto, inputs: dict[str, Expr]) -> dict[str, Any]:
    data = {n: onnx.numpy_helper.from_array(v.value) for n, v in inputs.items() if isinstance(v, Constant)}
    imports = [onnx.helper.make_opsetid(proto.domain, node.opset)]
    types = {name: proto_of_type(value.type) for name, value in inputs.items()}
    try:
        found: dict[str, Any] = onnx.shape_inference.infer_node_outputs(node.schema, proto, types, data, None, imports)
    except Exception as error:  # what onnx's inference and checker make of damaged nodes is no short list
        raise node.fail(f"ONNX refuses its inputs: {error}") from error
    return found


def _has_rank(found: Any) -> bool:
    return bool(found.WhichOneof("value") != "tensor_type" or found.tensor_type.HasField("shape"))


def _as_first(node: OnnxNode, names: list[str]) -> dict[str, TensorType]:
    first = node[0].tensor_type
    return dict.fromkeys(names, first.with_shape(as_shape((None,) * first.rank)))


def _require_values(node: OnnxNode) -> None:
    """Shape inference gets further with the values of small integer inputs: sizes, axes, lengths."""
    for position, value in enumerate(node.inputs):
        if value is not None and not isinstance(value, Constant) and is_integer(value.type):
            try:
                node.constant(position, "what its result's rank depends on")
            except UnknownValueError as error:
                if error.inputs:
                    raise


def is_integer(type_: Type) -> bool:
    return isinstance(type_, TensorType) and type_.dtype.lstrip("u").startswith("int")


def _type(node: OnnxNode, name: str, found: Any) -> TensorType | HostType:
    if found is None:
        raise node.fail(f"ONNX does not say of which type result {name!r} is")
    type_ = type_of_proto(found, lambda message, hint: node.fail(f"result {name!r}: {message}", hint))
    if node.op_type in OPEN and isinstance(type_, TensorType):
        return type_.with_shape(as_shape((None,) * type_.rank))
    return type_
