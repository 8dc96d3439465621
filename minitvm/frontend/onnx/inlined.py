"""Nodes that stand for others, imported as these in a scope of their own: calls of the model's functions, and operators
that ONNX itself defines by simpler ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import zip_longest
from typing import Any

import onnx

from minitvm.errors import MiniTVMError
from minitvm.frontend.onnx.check import check_supported
from minitvm.frontend.onnx.elsewhere import Functions, Supports
from minitvm.frontend.onnx.functions import definition_of, has_definition
from minitvm.frontend.onnx.local_functions import LocalFunction, LocalFunctions, call_attributes
from minitvm.frontend.onnx.node import OnnxNode, label_of, place_of
from minitvm.frontend.onnx.registry import Builder
from minitvm.frontend.onnx.scope import Scope
from minitvm.ir.expr import Expr


class Inlined(Functions):
    """Those of one import."""

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
