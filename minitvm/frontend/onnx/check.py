"""Is it a graph?  Every value produced once, before it is used, and every operator known; checked before importing."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from graphlib import CycleError, TopologicalSorter

import onnx

from minitvm.errors import FrontendError, UnsupportedOperatorError
from minitvm.frontend.onnx.model import describe_value
from minitvm.frontend.onnx.node import OnnxNode, at, kind_of, normal_domain, place_of, schema_of
from minitvm.frontend.onnx.types import NUMPY_NAMES, dtype_name
from minitvm.ir.node import Expr
from minitvm.ir.types import DTYPES, STRING, TensorType

Imports = Mapping[str, int]
"""The version of each operator set."""

Supports = Callable[[onnx.NodeProto, int], bool]
"""Whether there is a way to import a node of that opset."""


def opsets_of(proto: onnx.ModelProto | onnx.FunctionProto) -> dict[str, int]:
    return {normal_domain(entry.domain): int(entry.version) for entry in proto.opset_import}


def opset_of(node: onnx.NodeProto, opsets: Imports) -> int:
    domain = normal_domain(node.domain)
    return opsets.get(domain, 1 if domain else onnx.defs.onnx_opset_version())


def check_model(graphs: Iterable[tuple[onnx.GraphProto, Imports]], is_supported: Supports) -> None:
    """Raises one :class:`FrontendError` of all that the model's graph and its functions have and minitvm has not:
    operator sets, operators, element types; an :class:`UnsupportedOperatorError` where operators are among it."""
    graphs = list(graphs)
    found = list(_unknown_opset([opsets for _, opsets in graphs]))
    found += _unknown_operators([(all_nodes(graph), opsets) for graph, opsets in graphs], is_supported)
    found += [error for graph, _ in graphs for error in _unknown_types(graph)]
    if len(found) == 1:
        raise found[0]
    if found:
        kind = next((type(e) for e in found if isinstance(e, UnsupportedOperatorError)), FrontendError)
        where = [line for error in found for line in (error.message, *error.where)]
        raise kind(f"{len(found)} things in the model cannot be imported", where=where, hint=found[0].hint)


def _unknown_opset(imports: Iterable[Imports]) -> Iterator[FrontendError]:
    newest = onnx.defs.onnx_opset_version()
    version = max(opsets.get("", newest) for opsets in imports)
    oldest = min(opsets.get("", newest) for opsets in imports)
    if oldest < 1:
        yield FrontendError(f"the model uses ONNX opset {oldest}; the first is 1", hint="the file is damaged")
    if version > newest:
        yield FrontendError(
            f"the model uses ONNX opset {version}; the installed onnx {onnx.__version__} knows up to {newest}",
            hint="pip install --upgrade onnx, or export the model with an older opset",
        )


def _unknown_types(graph: onnx.GraphProto) -> Iterator[FrontendError]:
    """Of inputs and outputs, and of tensors anywhere."""
    for value in (*graph.input, *graph.output):
        yield from _raised(partial(describe_value, value))
    for tensor in _tensors(graph):
        yield from _raised(partial(dtype_name, tensor.data_type, partial(_of_tensor, tensor.name)))


def _of_tensor(name: str, message: str, hint: str | None) -> FrontendError:
    return FrontendError(message, where=[f'ONNX tensor "{name}"'], hint=hint)


def _raised(check: Callable[[], object]) -> Iterator[FrontendError]:
    try:
        check()
    except FrontendError as error:
        yield error


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in all_nodes(graph):
        yield from (a.t for a in node.attribute if a.type == onnx.AttributeProto.TENSOR)
        for inner in subgraphs(node):
            yield from inner.initializer


def subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    found = [a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
    return found + [g for a in node.attribute if a.type == onnx.AttributeProto.GRAPHS for g in a.graphs]


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Every node of a graph and of the graphs inside it."""
    for node in graph.node:
        yield node
        for inner in subgraphs(node):
            yield from all_nodes(inner)


def check_names(graph: onnx.GraphProto | onnx.FunctionProto) -> None:
    """Names are text.  protobuf hands out what is not UTF-8 as bytes."""
    if any(isinstance(name, bytes) for name in _names(graph)):
        raise FrontendError("a name in the model is not text", hint="the file is damaged")
    for node in graph.node:
        for inner in subgraphs(node):
            check_names(inner)


def _names(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[str]:
    if isinstance(graph, onnx.FunctionProto):
        yield from (graph.name, graph.domain, graph.overload, *graph.input, *graph.output, *graph.attribute)
        yield from (attribute.name for attribute in graph.attribute_proto)
    else:
        yield from (value.name for value in (*graph.input, *graph.output, *graph.initializer))
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (name for a in node.attribute for name in (a.name, a.ref_attr_name))


def check_against_schema(node: onnx.NodeProto, opset: int) -> None:
    """What ONNX says about the operator: how many inputs and outputs, and which attributes."""
    schema = schema_of(node, opset)
    if schema is None:
        return
    given, most = len(node.input), schema.max_input
    if not schema.min_input <= given <= most:
        expected = str(most) if schema.min_input == most else f"{schema.min_input} to {most}"
        raise FrontendError(f"{node.op_type}: takes {expected} inputs, {given} given", where=[place_of(node)])
    if len(node.output) > schema.max_output:
        most = schema.max_output
        raise FrontendError(f"{node.op_type}: has {most} outputs, {len(node.output)} are named", where=[place_of(node)])
    for attribute in node.attribute:
        if attribute.name not in schema.attributes:
            known = ", ".join(sorted(schema.attributes)) or "none"
            raise FrontendError(
                f"{node.op_type}: opset {opset} has no attribute {attribute.name!r}",
                where=[place_of(node)],
                hint=f"its attributes: {known}",
            )


def check_dtypes(node: OnnxNode) -> None:
    """Inputs are of element types that ONNX allows for the operator at this opset."""
    takes = node.schema.inputs if node.schema is not None else ()
    for position, value in enumerate(node.inputs if takes else ()):
        if value is None or not isinstance(value.type, TensorType):
            continue
        known = _dtypes_of(*at(takes, position).types)
        if value.dtype not in known:
            raise node.fail(
                f"input {position} is {value.dtype}; opset {node.opset} allows {', '.join(sorted(known)) or 'none'}",
                hint="cast the input",
            )
    _check_type_variables(node)


@cache
def _dtypes_of(*types: str) -> frozenset[str]:
    """The dtypes that minitvm has of those that a parameter may be of."""
    names = {t.removeprefix("tensor(").removesuffix(")") for t in types}
    return frozenset({NUMPY_NAMES.get(name, name) for name in names} & {*DTYPES, STRING})


def _check_type_variables(node: OnnxNode) -> None:
    """Inputs that share a type variable of the operator are of one dtype."""
    takes = node.schema.inputs if node.schema is not None else ()
    bound: dict[str, tuple[int, str]] = {}
    for position, value in enumerate(node.inputs if takes else ()):
        parameter = at(takes, position)
        if value is None or not isinstance(value.type, TensorType) or not parameter.is_homogeneous:
            continue
        first, dtype = bound.setdefault(parameter.type_str, (position, value.dtype))
        if value.dtype != dtype:
            raise node.fail(f"input {position} is {value.dtype}, input {first} {dtype}", hint="cast one of them")


def check_results(declared: Iterable[onnx.ValueInfoProto], found: Iterable[Expr]) -> None:
    """Results are of the element types that the model says, where it says any."""
    for value, expr in zip(declared, found, strict=True):
        kind = value.type.tensor_type.elem_type
        if not kind or not isinstance(expr.type, TensorType):
            continue
        said = describe_value(value).dtype
        if said != expr.dtype:
            raise FrontendError(
                f"output {value.name!r} is {expr.dtype}; the model says {said}",
                where=[*map("from ONNX node {!r}".format, expr.span[-1:])],
                hint="cast the value, or declare the type that it has",
            )


def check_supported(graph: onnx.GraphProto, opsets: Imports, is_supported: Supports) -> None:
    """Raises :class:`UnsupportedOperatorError` that lists every operator without a builder, with its nodes."""
    for error in _unknown_operators([(all_nodes(graph), opsets)], is_supported):
        raise error


def _unknown_operators(
    parts: Iterable[tuple[Iterable[onnx.NodeProto], Imports]], is_supported: Supports
) -> Iterator[UnsupportedOperatorError]:
    missing: dict[str, list[str]] = {}
    for nodes, opsets in parts:
        for node in nodes:
            if not is_supported(node, opset_of(node, opsets)):
                missing.setdefault(kind_of(node), []).append(node.name or next(filter(None, node.output), ""))
    if missing:
        counts = ", ".join(f"{kind} ({len(names)})" for kind, names in sorted(missing.items()))
        yield UnsupportedOperatorError(
            f"the model has operators that minitvm cannot import: {counts}",
            where=[f"{kind}: {_some(names)}" for kind, names in sorted(missing.items())],
            hint="write a builder for them: @minitvm.frontend.onnx_op(name, since=..., domain=...)",
        )


def _some(names: list[str], most: int = 10) -> str:
    more = f", and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def defined_names(graph: onnx.GraphProto) -> set[str]:
    """Names of the graph's inputs and weights."""
    weights = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    return weights | {v.name for v in graph.input}


def read_names(node: onnx.NodeProto) -> set[str]:
    """Every value a node reads, those that its sub-graphs take from outside included."""
    names = {name for name in node.input if name}
    for inner in subgraphs(node):
        names |= outer_names(inner)
    return names


def outer_names(graph: onnx.GraphProto) -> set[str]:
    """The values that a sub-graph takes from the graphs around it."""
    defined = defined_names(graph) | {name for node in graph.node for name in node.output}
    read = {v.name for v in graph.output}.union(*(read_names(node) for node in graph.node))
    return read - defined


def ordered_nodes(graph: onnx.GraphProto, outer: Iterable[str] = ()) -> list[onnx.NodeProto]:
    """The nodes, each after what it reads, in the file's order where that is one already.

    ``outer`` are names the graph may read from outside.  Raises :class:`FrontendError` for values that
    nobody produces, that are produced twice, or that depend on themselves.
    """
    given = defined_names(graph) | set(outer)
    _check_unique(graph)
    producers = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    reads = [read_names(node) for node in graph.node]
    for node, names in zip(graph.node, reads, strict=True):
        for name in sorted(names):
            if name not in producers and name not in given:
                raise FrontendError(
                    f"value {name!r} is read but never produced",
                    where=[place_of(node)],
                    hint="it is no input, no initializer and no node's output; check the model with onnx.checker",
                )
    for output in graph.output:
        if output.name not in producers and output.name not in given:
            raise FrontendError(f"output {output.name!r} is never produced")
    return [graph.node[i] for i in _sorted(graph, reads, producers)]


def _check_unique(graph: onnx.GraphProto) -> None:
    seen = defined_names(graph)
    for node in graph.node:
        for name in filter(None, node.output):
            if name in seen:
                raise FrontendError(f"value {name!r} is produced twice", where=[place_of(node)])
            seen.add(name)
    for kind, values in (("input", graph.input), ("initializer", graph.initializer)):
        for name, count in Counter(v.name for v in values).items():
            if count > 1:
                raise FrontendError(f"{kind} {name!r} is listed twice")


def _sorted(graph: onnx.GraphProto, reads: list[set[str]], producers: dict[str, int]) -> list[int]:
    """The file's order where it is valid; else one in which each node follows its producers."""
    waits = {node: {producers[n] for n in names if n in producers} for node, names in enumerate(reads)}
    if all(producer < node for node, before in waits.items() for producer in before):
        return list(waits)
    try:
        return list(TopologicalSorter(waits).static_order())
    except CycleError as error:
        path = error.args[1][:-1]
        raise FrontendError(
            f"the graph has a cycle of {len(path)} nodes",
            where=[place_of(graph.node[i]) for i in path[:10]],
            hint="an ONNX graph has no cycles; recurrence is written with Loop or Scan",
        ) from error
