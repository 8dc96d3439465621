"""A test case: an ONNX graph, the arrays it is run with, and how it is compiled and run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper

Arrays = dict[str, np.ndarray]

DOMAINS = (helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("ai.onnx.ml", 3))
IR_VERSION = 10


@dataclass(frozen=True)
class Value:
    """A tensor of a graph; ``shape`` is ``None`` where it depends on data."""

    name: str
    dtype: str
    shape: tuple[int, ...] | None

    @property
    def rank(self) -> int:
        return -1 if self.shape is None else len(self.shape)


@dataclass(frozen=True)
class Config:
    """How a case is compiled and run; the defaults are the simplest."""

    level: int = 0
    threads: int = 1
    target: str = "llvm"
    way: str = "session"
    """``session``, ``module`` (compile, set inputs, run) or ``saved`` (saved and loaded before)."""
    poison: bool = False
    verify: bool = False
    reference: bool = False
    """Hold minitvm's own reference against the oracles too."""


@dataclass
class Case:
    """One graph with its feeds.  Plain data: it can be sent to a worker, shrunk, and written to a file."""

    nodes: list[onnx.NodeProto]
    feeds: list[Arrays]
    """At least one; all have the same names and dtypes."""
    constants: Arrays
    outputs: list[Value]
    opset: int
    config: Config = field(default_factory=Config)
    symbols: dict[str, tuple[str | None, ...]] = field(default_factory=dict)
    """Names of an input's dimensions where they are open; ``None`` where the size is fixed."""

    def replace(self, **changes: Any) -> Case:
        return dataclasses.replace(self, **changes)

    @property
    def operators(self) -> tuple[str, ...]:
        """Types of all nodes, those inside of branches and loops too."""
        return tuple(operator_name(node) for node in all_nodes(self.nodes))

    def model(self) -> onnx.ModelProto:
        """The case as an ONNX model."""
        graph = helper.make_graph(
            self.nodes,
            "case",
            [self._input(name, array) for name, array in self.feeds[0].items()],
            [value_info(v.name, v.dtype, None) for v in self.outputs],
            [tensor(array, name) for name, array in self.constants.items()],
        )
        imports = [helper.make_opsetid("", self.opset), *DOMAINS]
        return helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)

    def _input(self, name: str, array: np.ndarray) -> onnx.ValueInfoProto:
        names = self.symbols.get(name, (None,) * array.ndim)
        dims = [size if symbol is None else symbol for symbol, size in zip(names, array.shape, strict=True)]
        return value_info(name, array.dtype.name, dims)


def value_info(name: str, dtype: str, dims: Sequence[int | str] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, code_of(dtype), dims)


def operator_name(node: onnx.NodeProto) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain else str(node.op_type)


def subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]


def all_nodes(nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """The nodes, and those of the graphs inside them."""
    inner = [n for node in nodes for graph in subgraphs(node) for n in all_nodes(list(graph.node))]
    return [*nodes, *inner]


def reads(node: onnx.NodeProto) -> set[str]:
    """Every name a node reads, those that its graphs take from outside among them."""
    names = set(filter(None, node.input))
    for graph in subgraphs(node):
        defined = {v.name for v in (*graph.input, *graph.initializer)}
        defined |= {name for inner in graph.node for name in inner.output}
        wanted = {v.name for v in graph.output}.union(*(reads(inner) for inner in graph.node))
        names |= wanted - defined
    return names


def needed(nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]) -> list[onnx.NodeProto]:
    """The nodes, in order, that the outputs depend on."""
    wanted, kept = set(outputs), []
    for node in reversed(nodes):
        if wanted & set(filter(None, node.output)):
            wanted |= reads(node)
            kept.append(node)
    return kept[::-1]


def pruned(case: Case) -> Case:
    """Without nodes, constants, inputs and symbols that no output depends on.  One input stays."""
    nodes = needed(case.nodes, [v.name for v in case.outputs])
    read = {v.name for v in case.outputs}.union(*(reads(node) for node in nodes))
    inputs = [n for n in case.feeds[0] if n in read] or list(case.feeds[0])[:1]
    return case.replace(
        nodes=nodes,
        feeds=[{n: feeds[n] for n in inputs} for feeds in case.feeds],
        constants={n: a for n, a in case.constants.items() if n in read},
        symbols={n: s for n, s in case.symbols.items() if n in inputs},
    )


def code_of(dtype: str) -> int:
    """ONNX's number of a dtype, by numpy's name."""
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def dtype_of(code: int) -> str:
    """numpy's name of ONNX's type number."""
    return str(np.dtype(helper.tensor_dtype_to_np_dtype(code)).name)


def tensor(array: np.ndarray, name: str) -> onnx.TensorProto:
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def is_float(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def plain(array: np.ndarray) -> np.ndarray:
    """bfloat16, which numpy does not count among floats, in float32."""
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


_finfo: Any = ml_dtypes.finfo


def eps_of(dtype: np.dtype[Any]) -> float:
    return float(_finfo(dtype).eps)


def tiny_of(dtype: np.dtype[Any]) -> float:
    return float(_finfo(dtype).tiny)
