"""Functions that a model brings: each call is imported as the function's nodes, in a scope of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise, zip_longest
from typing import Any

import onnx

from minitvm.errors import FrontendError, MiniTVMError
from minitvm.frontend.onnx.check import all_nodes, check_supported, opset_of, opsets_of
from minitvm.frontend.onnx.elsewhere import Functions, Supports
from minitvm.frontend.onnx.functions import definition_of, fill, has_definition
from minitvm.frontend.onnx.node import OnnxNode, label_of, normal_domain, place_of, schema_of
from minitvm.frontend.onnx.registry import Builder
from minitvm.frontend.onnx.scope import Scope
from minitvm.ir.expr import Expr

EXPANDED_NODES = 1 << 16
"""Nodes that the calls of a model's functions may become, all together."""

Key = tuple[str, str, str]
"""Domain, name and overload."""


@dataclass(frozen=True)
class LocalFunction:
    """A function as a graph that says neither types nor shapes."""

    proto: onnx.FunctionProto
    around: Mapping[str, int]
    """The operator sets of the model, for those that the function does not import itself."""

    @cached_property
    def key(self) -> Key:
        return _key(self.proto.domain, self.proto.name, self.proto.overload)

    @property
    def name(self) -> str:
        """The function's name as messages have it."""
        return ":".join(filter(None, (f"{self.proto.domain}.{self.proto.name}", self.proto.overload)))

    @cached_property
    def opsets(self) -> dict[str, int]:
        return {**self.around, **opsets_of(self.proto)}

    @cached_property
    def graph(self) -> onnx.GraphProto:
        """Its inputs and nodes, with attributes that refer to those of a call; not its outputs, which what ONNX defines
        need not all produce."""
        inputs = [onnx.ValueInfoProto(name=name) for name in self.proto.input]
        return onnx.GraphProto(name=self.proto.name, node=self.proto.node, input=inputs)

    @cached_property
    def nodes(self) -> list[onnx.NodeProto]:
        """Every node, those of the graphs inside it, too."""
        return list(all_nodes(self.graph))

    @cached_property
    def draws(self) -> bool:
        """True if a node of its own draws random numbers."""
        schemas = (schema_of(node, opset_of(node, self.opsets)) for node in self.nodes)
        return any(s is not None and s.non_deterministic and not _holds_graphs(s) for s in schemas)

    @cached_property
    def _refers(self) -> bool:
        return any(a.ref_attr_name for node in self.nodes for a in node.attribute)

    def called_by(self, call: onnx.NodeProto) -> onnx.GraphProto:
        """The graph with the attributes of a call, or the function's defaults, in place of what refers to them."""
        declared = {*self.proto.attribute, *(a.name for a in self.proto.attribute_proto)}
        for attribute in call.attribute:
            if attribute.name not in declared:
                known = ", ".join(sorted(declared)) or "none"
                raise FrontendError(
                    f"function {self.name} has no attribute {attribute.name!r}", hint=f"its attributes: {known}"
                )
            if attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
                raise FrontendError(
                    f"function {self.name} is called with a graph, its attribute {attribute.name!r}",
                    hint="put the graph into an If, Loop or Scan",
                )
        if not self._refers:
            return self.graph
        found = onnx.GraphProto()
        found.CopyFrom(self.graph)
        fill(found.node, {a.name: a for a in (*self.proto.attribute_proto, *call.attribute)})
        return found


def _holds_graphs(schema: Any) -> bool:
    """Of control flow, onnx says that it may be random."""
    return any(a.type == onnx.defs.OpSchema.AttrType.GRAPH for a in schema.attributes.values())


class LocalFunctions:
    """All functions of a model.

    As in ONNX Runtime, one of the name of an operator that ONNX has in the operator set that is imported is not called.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self._found: dict[Key, LocalFunction] = {}
        self._repeatable: set[Key] = set()
        for proto in model.functions:
            function = LocalFunction(proto, opsets_of(model))
            if self._found.setdefault(function.key, function) is not function:
                raise FrontendError(f"function {function.name} is defined twice")
            produced = {*proto.input, *(name for node in proto.node for name in node.output)}
            for name in proto.output:
                if name not in produced:
                    raise FrontendError(f"output {name!r} of function {function.name} is never produced")
        if self._found:
            self._check_size(list(all_nodes(model.graph)))

    def __iter__(self) -> Iterator[LocalFunction]:
        return iter(self._found.values())

    def of(self, node: onnx.NodeProto, opset: int) -> LocalFunction | None:
        """The function that a node calls."""
        found = self._found.get(_key(node.domain, node.op_type, node.overload)) if self._found else None
        return None if found is not None and schema_of(node, opset) is not None else found

    def is_repeatable(self, function: LocalFunction) -> bool:
        """True if calls with the same inputs give the same: nothing that they lead to draws random numbers."""
        return function.key in self._repeatable

    def _called(self, nodes: Iterable[onnx.NodeProto]) -> list[LocalFunction]:
        """One function for each call that is imported: what is called with the same again is the same."""
        found: dict[Any, LocalFunction] = {}
        for node in nodes:
            function = self._found.get(_key(node.domain, node.op_type, node.overload))
            if function is not None:
                found[_said(node) if function.key in self._repeatable else id(node)] = function
        return [*found.values()]

    def _check_size(self, nodes: list[onnx.NodeProto]) -> None:
        """Calls lead back to no function on the way, and become no more nodes than may be."""
        sizes: dict[Key, int] = {}
        for key in self._ordered():
            function = self._found[key]
            called = self._called(function.nodes)
            if not function.draws and all(map(self.is_repeatable, called)):
                self._repeatable.add(key)
            sizes[key] = len(function.nodes) + sum(sizes[other.key] for other in self._called(function.nodes))
        total = sum(sizes[function.key] for function in self._called(nodes))
        if total > EXPANDED_NODES:
            count = sum(len(function.nodes) for function in self)
            raise FrontendError(
                f"calls of the model's functions stand for {total:,} nodes; at most {EXPANDED_NODES:,} are imported",
                where=[f"{len(self._found)} functions of {count} nodes call each other"],
                hint="functions that call each other many times: a Loop repeats without copies",
            )

    def _ordered(self) -> list[Key]:
        """Each function after those that it calls."""
        calls = {key: [other.key for other in self._called(f.nodes)] for key, f in self._found.items()}
        try:
            return list(TopologicalSorter(calls).static_order())
        except CycleError as error:
            path = [self._found[key].name for key in reversed(error.args[1])]
            raise FrontendError(
                f"function {path[0]} calls itself",
                where=[f"{caller} calls {called}" for caller, called in pairwise(path[:11])],
                hint="ONNX functions do not recur; recurrence is written with Loop or Scan",
            ) from error


def _said(node: onnx.NodeProto) -> tuple[Any, ...]:
    """What two calls of the same have in common."""
    return (node.domain, node.op_type, node.overload, *node.input, *call_attributes(node))


def call_attributes(node: onnx.NodeProto) -> tuple[bytes, ...]:
    return tuple(sorted(attribute.SerializeToString(deterministic=True) for attribute in node.attribute))


def _key(domain: str, name: str, overload: str) -> Key:
    return normal_domain(domain), name, overload


class Inlined(Functions):
    """Calls of a model's functions, and operators that ONNX itself defines by simpler ones, become their nodes."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._functions = LocalFunctions(model)
        self._called: dict[Any, list[Expr | None]] = {}
        """What calls of functions became."""

    def graphs(self) -> list[tuple[onnx.GraphProto, Mapping[str, int]]]:
        return [(function.graph, function.opsets) for function in self._functions]

    def own(self, node: onnx.NodeProto, opset: int) -> Builder | None:
        function = self._functions.of(node, opset)
        return None if function is None else partial(self._call, function)

    def defined(self, node: onnx.NodeProto, opset: int, supports: Supports) -> Builder | None:
        return self._by_definition if has_definition(node, opset, supports) else None

    def _by_definition(self, node: OnnxNode) -> list[Expr | None]:
        """The operator as ONNX defines it by others: the definition's nodes, imported in a scope of their own."""
        importer, caller = node.control
        body, label = LocalFunction(definition_of(node), caller.opsets), caller.label_of(node.proto)
        check_supported(body.graph, body.opsets, importer.supports)
        return self._inside(node, body, body.graph, Scope(caller=caller, opsets=body.opsets, label_of=lambda _: label))

    def _call(self, function: LocalFunction, node: OnnxNode) -> list[Expr | None]:
        """A call of one of the model's functions; one with the same inputs and attributes as before is the same."""
        caller, inputs = node.control[1], node.inputs
        takes, gives = len(function.proto.input), len(function.proto.output)
        if len(inputs) > takes or len(node.proto.output) > gives:
            raise node.fail(f"is a function of {takes} inputs and {gives} outputs")
        known = (function.key, *inputs, *call_attributes(node.proto))
        if known in self._called and self._functions.is_repeatable(function):
            return self._called[known]
        label = caller.label_of(node.proto)
        scope = Scope(caller=caller, opsets=function.opsets, label_of=lambda inner: f"{label}/{label_of(inner)}")
        try:
            found = self._called[known] = self._inside(node, function, function.called_by(node.proto), scope)
        except MiniTVMError as error:
            error.where = (*error.where, f"in function {function.name}, called by {place_of(node.proto)}")
            raise
        return found

    def _inside(
        self, node: OnnxNode, function: LocalFunction, graph: onnx.GraphProto, scope: Scope
    ) -> list[Expr | None]:
        """The outputs of a function's graph whose inputs are the node's; those that it leaves out are absent."""
        for value, given in zip_longest(graph.input, node.inputs):
            if given is None:
                scope.absent.add(value.name)
            else:
                scope.values[value.name] = given
        node.control[0].import_nodes(graph, scope)
        return [scope.values.get(name) for name in function.proto.output]
