"""A graph without control flow, for given inputs: the branch that is taken, and every trip of every loop.

Peers' references and rules see the nodes inside of branches and loops as they see all others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from minitvm.testing.fuzz.case import Arrays, attributes, dtype_of, subgraphs

Names = Mapping[str, str]
Evaluate = Callable[[onnx.ModelProto, Arrays, str], np.ndarray]
"""One value of a model on some inputs."""


def flattened(model: onnx.ModelProto, feeds: Arrays, evaluate: Evaluate) -> onnx.ModelProto:
    """``model`` itself where it has no control flow.  ``evaluate`` runs what is built so far, where a condition or a
    number of trips is computed."""
    if not any(subgraphs(node) for node in model.graph.node):
        return model
    flat = onnx.ModelProto()
    flat.CopyFrom(model)
    del flat.graph.node[:]
    _Flat(flat, feeds, evaluate).add(model.graph, {})
    return flat


class _Flat:
    def __init__(self, model: onnx.ModelProto, feeds: Arrays, evaluate: Evaluate) -> None:
        self.model, self.feeds, self.evaluate = model, feeds, evaluate
        self.opset = next(i.version for i in model.opset_import if not i.domain)
        self.count = 0

    def add(self, graph: onnx.GraphProto, names: Names) -> list[str]:
        """Adds a graph's nodes, with ``names`` for its inputs; its outputs' names."""
        found = dict(names)
        if names:
            self.model.graph.initializer.extend(self._renamed(graph, found))
        for node in graph.node:
            flat = onnx.NodeProto()
            flat.CopyFrom(node)
            flat.input[:] = [found.get(n, n) for n in node.input]
            if names:
                found |= {n: self._new(n) for n in node.output if n}
                flat.output[:] = [found.get(n, n) for n in node.output]
            self._one(flat, found)
        return [found.get(v.name, v.name) for v in graph.output]

    def _renamed(self, graph: onnx.GraphProto, names: dict[str, str]) -> list[onnx.TensorProto]:
        names |= {t.name: self._new(t.name) for t in graph.initializer}
        return [numpy_helper.from_array(numpy_helper.to_array(t), names[t.name]) for t in graph.initializer]

    def _new(self, name: str) -> str:
        self.count += 1
        return f"{name} inside {self.count}"

    def _one(self, node: onnx.NodeProto, names: Names) -> None:
        made = {"If": self._if, "Loop": self._loop, "Scan": self._scan}.get(node.op_type)
        if made is None:
            self.model.graph.node.append(node)
            return
        outer = {**names, "": ""}  # never empty: what is inside gets names of its own
        for name, found in zip(node.output, made(node, attributes(node), outer), strict=False):
            if name:
                self._node("Identity", [found], name)

    def _if(self, node: onnx.NodeProto, given: dict[str, Any], names: Names) -> list[str]:
        return self.add(given["then_branch" if self._value(node.input[0]).all() else "else_branch"], names)

    def _loop(self, node: onnx.NodeProto, given: dict[str, Any], names: Names) -> list[str]:
        count, going, *states = [*node.input, ""][: max(len(node.input), 2)]
        trips = int(self._value(count).reshape(())) if count else None
        going = going or self._constant(np.array(True))
        body, rows, step = given["body"], list[list[str]](), 0
        while step != trips and self._value(going).all():
            operands = [self._constant(np.array(step)), going, *states]
            going, *found = self.add(body, {**names, **_bound(body, operands)})
            states, step = found[: len(states)], step + 1
            rows.append(found[len(states) :])
        return [*states, *self._stacked(rows, body.output[1 + len(states) :])]

    def _scan(self, node: onnx.NodeProto, given: dict[str, Any], names: Names) -> list[str]:
        if set(given) - {"body", "num_scan_inputs", "scan_input_directions"}:
            raise NotImplementedError("scans along other axes, and outputs in other directions")
        first = len(node.input) - given["num_scan_inputs"]
        states, scanned = list(node.input[:first]), node.input[first:]
        body, rows, length = given["body"], list[list[str]](), len(self._value(scanned[0]))
        for step in range(length):
            backward = given.get("scan_input_directions", [0] * len(scanned))
            places = [self._constant(np.array(length - 1 - step if back else step)) for back in backward]
            taken = [self._node("Gather", [name, at]) for name, at in zip(scanned, places, strict=True)]
            found = self.add(body, {**names, **_bound(body, [*states, *taken])})
            states = found[:first]
            rows.append(found[first:])
        return [*states, *self._stacked(rows, body.output[first:])]

    def _stacked(self, rows: Sequence[Sequence[str]], results: Sequence[onnx.ValueInfoProto]) -> list[str]:
        if not rows:
            return [self._constant(_nothing(value)) for value in results]
        return [self._node("Concat", [self._row(name) for name in names], axis=0) for names in zip(*rows, strict=True)]

    def _row(self, name: str) -> str:
        if self.opset < 13:
            return self._node("Unsqueeze", [name], axes=[0])
        return self._node("Unsqueeze", [name, self._constant(np.array([0]))])

    def _node(self, op_type: str, inputs: Sequence[str], output: str = "", **given: Any) -> str:
        output = output or self._new(op_type)
        self.model.graph.node.append(helper.make_node(op_type, inputs, [output], **given))
        return output

    def _constant(self, array: np.ndarray) -> str:
        self.model.graph.initializer.append(numpy_helper.from_array(array, self._new("constant")))
        return str(self.model.graph.initializer[-1].name)

    def _value(self, name: str) -> np.ndarray:
        """A value of the graph as far as it is built."""
        return self.evaluate(self.model, self.feeds, name)


def _bound(body: onnx.GraphProto, operands: Sequence[str]) -> dict[str, str]:
    return dict(zip([v.name for v in body.input], operands, strict=True))


def _nothing(value: onnx.ValueInfoProto) -> np.ndarray:
    kind = value.type.tensor_type
    return np.zeros((0, *(d.dim_value for d in kind.shape.dim)), dtype_of(kind.elem_type))
