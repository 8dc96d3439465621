"""The part ``import`` of a check: a model as it was imported, beside another implementation of ONNX."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import onnx

from minitvm.errors import MiniTVMError, place_of
from minitvm.frontend import from_onnx
from minitvm.frontend.onnx.check import opsets_of, ordered_nodes, read_names
from minitvm.frontend.onnx.node import normal_domain
from minitvm.frontend.onnx.registry import Builder, builder_for
from minitvm.ir.decision import Declined
from minitvm.ir.evaluate import evaluate
from minitvm.ir.expr import Function, Module, Tuple
from minitvm.lab.check_oracles import Oracle
from minitvm.lab.check_result import Finding
from minitvm.passes import InferType
from minitvm.passes.compare import Comparison, Run, close, compare
from minitvm.passes.draws import random_inputs
from minitvm.passes.redundancy import bind_params

_CANNOT = (MiniTVMError, ValueError, TypeError, KeyError)
"""What making a smaller ONNX model raises where that means nothing."""


@dataclass
class Import:
    """A model and how it is imported, beside who is asked about it."""

    proto: onnx.ModelProto
    oracle: Oracle
    shapes: Mapping[str, Sequence[int | None]] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(model: Any, oracle: Oracle, shapes: Mapping[str, Any] | None, values: Mapping[str, Any] | None) -> Import:
        """The import of a path, bytes, or a ``ModelProto``."""
        if isinstance(model, (str, os.PathLike)):
            proto = onnx.load(os.fspath(model))
        else:
            proto = model if isinstance(model, onnx.ModelProto) else onnx.load_from_string(bytes(model))
        return Import(proto, oracle, shapes or {}, values or {})

    def module(self) -> Module:
        """The module as it is imported; raises what ``from_onnx`` does."""
        module, params = from_onnx(self.proto, shape_dict=self.shapes, value_dict=self.values)
        return InferType()(module.with_function("main", bind_params(module.main, params)))

    def prove(self, module: Module) -> Comparison:
        """The module that was imported, by its operators' references, beside the oracle."""
        usual, *ways = self._runs(module.main)
        return compare(module.main, usual, draws=self.oracle.draws, ways=ways, atol=self.oracle.atol)

    def _runs(self, function: Function) -> list[Run]:
        known = {name: np.asarray(value) for name, value in self.values.items()}
        return self.oracle.runs(self.proto, [p.name for p in function.params], known)

    # --- who is wrong ---

    def finding(self, module: Module, proof: Comparison) -> Finding:
        """The first node whose results differ; alone, where it shows it alone."""
        every = replace(self, proto=_with_results(self.proto, _values(self.proto)))
        try:
            wrong = every._first_wrong(proof)
        except _CANNOT as error:
            wrong, note = None, f"which node it is was not found: {error}"
        else:
            note = "" if wrong else "every node is right by itself"
        if wrong is None:
            return self._finding("the importer", proof.difference, module, (note,))
        node, values = wrong
        guilty = f"the importer function of {node.op_type}, on node {node.name or node.output[0]!r}"
        notes = (f"it is {place_of(builder)}",) if (builder := self._builder(node)) else ()
        with suppress(*_CANNOT):
            small = Import(self._alone(node, values), self.oracle)
            found = small.prove(alone := small.module())
            if found.difference:
                return small._finding(guilty, found.difference, alone, notes)
        return self._finding(guilty, proof.difference, module, notes)

    def _finding(self, guilty: str, message: str, module: Module, notes: tuple[str, ...]) -> Finding:
        against = "onnxruntime" if self.oracle.has_ways else "reference"
        given = "".join(f", {name}={dict(d)!r}" for name, d in self._options.items() if d)
        repeat = f'check(Path(__file__).with_suffix(".onnx"), parts=["import"], against="{against}"{given})'
        said = f"{self.oracle.name} says otherwise: {message}"
        return Finding("import", guilty, said, module, repeat, notes, onnx=self.proto.SerializeToString())

    @property
    def _options(self) -> dict[str, Mapping[str, Any]]:
        return {"shape_dict": self.shapes, "value_dict": {n: np.asarray(v).tolist() for n, v in self.values.items()}}

    def _builder(self, node: onnx.NodeProto) -> Builder | None:
        domain = normal_domain(node.domain)
        return builder_for(domain, node.op_type, opsets_of(self.proto).get(domain, 1))

    def _first_wrong(self, proof: Comparison) -> tuple[onnx.NodeProto, dict[str, np.ndarray]] | None:
        """With the values of all results and inputs; of a model that has every node's results."""
        assert proof.draw is not None
        function = self.module().main
        inputs = random_inputs(function, draw=proof.draw)
        names = [output.name for output in self.proto.graph.output]
        usual, *ways = self._runs(function)
        theirs = inputs if isinstance(inputs, Declined) else usual(inputs)
        if isinstance(inputs, Declined) or isinstance(theirs, Declined):
            return None
        own = evaluate(function, *inputs)
        own = own if isinstance(own, tuple) else (own,)
        given = {p.name: value for p, value in zip(function.params, inputs, strict=True)}
        results = function.body.fields if isinstance(function.body, Tuple) else (function.body,)
        for position, (name, body) in enumerate(zip(names, results, strict=True)):
            if isinstance(own[position], np.ndarray) and not close(np.asarray(theirs[position]), own[position]):
                one, *others = (partial(_nth, run, position) for run in (usual, *ways))
                part, atol = Function(function.params, body), self.oracle.atol
                if compare(part, one, draws=[proof.draw], ways=others, atol=atol).difference:
                    values = {**dict(zip(names, own, strict=True)), **given}
                    return next(n for n in self.proto.graph.node if name in n.output), values
        return None

    def _alone(self, node: onnx.NodeProto, values: Mapping[str, np.ndarray]) -> onnx.ModelProto:
        """The node as a model; what is constant stays so."""
        read, graph = read_names(node), onnx.GraphProto(name="alone")
        graph.initializer.extend(t for t in self.proto.graph.initializer if t.name in read)
        graph.node.extend(n for n in self.proto.graph.node if n.op_type == "Constant" and n.output[0] in read)
        graph.node.append(node)
        known = {t.name for t in graph.initializer} | {n.output[0] for n in graph.node}
        for name in sorted(read - known):
            value = values[name]
            dtype = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
            graph.input.append(onnx.helper.make_tensor_value_info(name, dtype, value.shape))
        made = onnx.ModelProto()
        made.CopyFrom(self.proto)
        made.graph.CopyFrom(graph)
        return _with_results(made, [name for name in node.output if name in values])


def _values(proto: onnx.ModelProto) -> list[str]:
    """The values of the main graph that somebody reads, and its results, in the order in which they are made."""
    nodes = ordered_nodes(proto.graph)
    read = {output.name for output in proto.graph.output}.union(*map(read_names, nodes))
    return [name for node in nodes for name in node.output if name in read]


def _with_results(proto: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """The model with other results."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    del made.graph.output[:]
    made.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return made


def _nth(run: Run, position: int, inputs: list[Any]) -> Any:
    found = run(inputs)
    return found if isinstance(found, Declined) else found[position]
