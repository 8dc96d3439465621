"""Operators that ONNX itself defines by simpler ones: one without a builder is imported as its definition."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import onnx

from minitvm.frontend.onnx.node import OnnxNode, normal_domain, schema_of
from minitvm.frontend.onnx.types import proto_of_type


def has_definition(node: onnx.NodeProto, opset: int, is_supported: Callable[[onnx.NodeProto, int], bool]) -> bool:
    """True where ONNX defines the operator by supported ones.  A definition that depends on the types counts."""
    schema = schema_of(node, opset)
    if schema is None:
        return False
    if not schema.has_function:
        return bool(schema.has_context_dependent_function)
    body = _fixed_definition(schema, opset)
    version = {normal_domain(o.domain): o.version for o in body.opset_import}
    return all(is_supported(inner, version.get(normal_domain(inner.domain), opset)) for inner in body.node)


def _newest(versions: Sequence[int], opset: int) -> int:
    return max((v for v in versions if v <= opset), default=min(versions))


def _fixed_definition(schema: Any, opset: int) -> onnx.FunctionProto:
    version = _newest(schema.function_opset_versions, opset)
    found: onnx.FunctionProto = onnx.FunctionProto.FromString(schema.get_function_with_opset_version(version))
    return found


def definition_of(node: OnnxNode) -> onnx.FunctionProto:
    """The operator's definition, with the node's attributes filled in."""
    schema = node.schema
    if schema.has_function:
        body = _fixed_definition(schema, node.opset)
    else:
        version = _newest(schema.context_dependent_function_opset_versions, node.opset)
        types = [proto_of_type(None if expr is None else expr.type).SerializeToString() for expr in node.inputs]
        found = schema.get_context_dependent_function_with_opset_version(version, node.proto.SerializeToString(), types)
        body = onnx.FunctionProto.FromString(found)
    given = {name: node.attribute_proto(name) for name in (*schema.attributes, *(a.name for a in node.proto.attribute))}
    fill(body.node, {name: proto for name, proto in given.items() if proto is not None})
    return body


def fill(nodes: Iterable[onnx.NodeProto], given: Mapping[str, onnx.AttributeProto]) -> None:
    """Attributes that refer to one of ``given`` become it, those of inner graphs, too; without such a one they go."""
    for node in nodes:
        for attribute in list(node.attribute):
            if not attribute.ref_attr_name:
                for graph in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                    fill(graph.node, given)
                continue
            name, found = attribute.name, given.get(attribute.ref_attr_name)
            node.attribute.remove(attribute)
            if found is not None:
                node.attribute.add().CopyFrom(found)
                node.attribute[-1].name = name
