"""A graph node by node, for given inputs: the branch that is taken, and every trip of every loop.

What is asked of a graph's inside, its values, their rounding, what is open, is asked of each node where the walk meets
it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.fuzz.case import DOMAINS, IR_VERSION, Arrays, attributes, code_of, dtype_of, subgraphs, value_info
from tests.fuzz.references import evaluator

Array = np.ndarray
Results = list[Array]


@dataclass(frozen=True)
class Seen:
    """A node with its operands, ``None`` where one is left out, its results, and its attributes."""

    node: onnx.NodeProto
    x: Sequence[Array | None]
    results: Sequence[Array]
    attributes: Mapping[str, Any]
    opset: int = 0

    @property
    def first(self) -> Array:
        found = self.x[0]
        assert found is not None
        return found

    @property
    def y(self) -> Array:
        return self.results[0]

    def operand(self, position: int) -> Array | None:
        """``None``, too, behind the last one."""
        return self.x[position] if position < len(self.x) else None

    def of(self, *changed: Callable[[Array], Array]) -> Array:
        """The node's first result over operands that are changed, in order; others as they are."""
        each = zip(changed, self.x, strict=False)
        operands = [None if a is None else change(a) for change, a in each] + list(self.x[len(changed) :])
        return by_reference(self.node, operands, self.opset)[0]


Compute = Callable[[onnx.NodeProto, Sequence[Array | None], int], Results]
"""A node's results from its operands, in an opset; those without a name are left out."""
Each = Callable[[Seen], Sequence[Array]]
"""What a node's results are taken for."""


class Held(np.ndarray):
    """A sequence: an array of its values."""

    @staticmethod
    def of(value: Any) -> Array:
        """A node's result as the walk keeps it."""
        if not isinstance(value, list):
            return np.asarray(value)
        found = np.empty(len(value), object)
        found[:] = [*map(np.asarray, value)]
        return found.view(Held)


class NoAnswer(Exception):
    """A node cannot be computed."""


def by_reference(node: onnx.NodeProto, operands: Sequence[Array | None], opset: int) -> Results:
    """By ONNX's reference evaluator, some operators of which are written anew."""
    feeds = _feeds(node, operands)
    run: Any = evaluator(onnx.load_from_string(alone(node, feeds, opset))).run
    return [*map(Held.of, run(None, feeds))]


def by_onnxruntime(node: onnx.NodeProto, operands: Sequence[Array | None], opset: int) -> Results:
    """By ONNX Runtime where it has a kernel; not over nothing, which makes some of them abort."""
    feeds = _feeds(node, operands)
    if any(a.size == 0 for given in feeds.values() for a in (given if isinstance(given, list) else [given])):
        return by_reference(node, operands, opset)
    try:
        return [*map(Held.of, _kept_session(alone(node, feeds, opset)).run(None, feeds))]
    except Exception:  # any: it may fail in all ways
        return by_reference(node, operands, opset)


def session(model: bytes) -> Any:
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    settings.log_severity_level = 4
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model, settings, providers=["CPUExecutionProvider"])


@lru_cache(maxsize=256)
def _kept_session(model: bytes) -> Any:
    """A graph is walked some times over."""
    return session(model)


def _feeds(node: onnx.NodeProto, operands: Sequence[Array | None]) -> dict[str, Any]:
    """Operands by name; sequences are lists."""
    given = {n: a for n, a in zip(node.input, operands, strict=False) if n and a is not None}
    return {n: [*a] if isinstance(a, Held) else a for n, a in given.items()}


def _info(name: str, given: Any) -> onnx.ValueInfoProto:
    if not isinstance(given, list):
        return value_info(name, given.dtype.name, given.shape)
    return helper.make_tensor_sequence_value_info(name, code_of(given[0].dtype.name if given else "float32"), None)


def alone(node: onnx.NodeProto, feeds: Mapping[str, Any], opset: int) -> bytes:
    """A model of one node; outputs have the types that are found."""
    inputs = [_info(name, given) for name, given in feeds.items()]
    graph = helper.make_graph([node], "one", inputs, [onnx.ValueInfoProto(name=n) for n in node.output if n])
    imports = [helper.make_opsetid("", opset), *DOMAINS]
    return bytes(helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION).SerializeToString())


def walk(model: onnx.ModelProto, feeds: Arrays, compute: Compute = by_reference, each: Each | None = None) -> Arrays:
    """Every value of the graph, by name; those inside of branches and loops are seen by ``each`` alone."""
    opset = next(i.version for i in model.opset_import if not i.domain)
    return _Walk(opset, compute, each).through(model.graph, feeds)


def constants(graph: onnx.GraphProto) -> Arrays:
    return {t.name: numpy_helper.to_array(t) for t in graph.initializer}


class _Walk:
    def __init__(self, opset: int, compute: Compute, each: Each | None) -> None:
        self.opset, self.compute, self.each = opset, compute, each

    def through(self, graph: onnx.GraphProto, given: Arrays) -> Arrays:
        values = {**constants(graph), **given}
        for node in graph.node:
            found = self._results(node, [values[n] if n else None for n in node.input], values)
            values |= zip(filter(None, node.output), found, strict=False)
        return values

    def _results(self, node: onnx.NodeProto, x: Sequence[Array | None], values: Arrays) -> Sequence[Array]:
        given = attributes(node)
        if subgraphs(node):
            made = {"If": self._if, "Loop": self._loop, "Scan": self._scan}[node.op_type](x, given, values)
            return [a for a, name in zip(made, node.output, strict=False) if name]
        try:
            results = self.compute(node, x, self.opset)
        except Exception as error:  # any: peers fail in all ways
            raise NoAnswer(f"{node.op_type}: {type(error).__name__}: {error}") from error
        return results if self.each is None else self.each(Seen(node, x, results, given, self.opset))

    def _body(self, body: onnx.GraphProto, operands: Sequence[Any], values: Arrays) -> Results:
        bound = dict(zip([v.name for v in body.input], operands, strict=True))
        found = self.through(body, {**values, **bound})
        return [found[v.name] for v in body.output]

    def _if(self, x: Sequence[Any], given: dict[str, Any], values: Arrays) -> Results:
        return self._body(given["then_branch" if x[0].all() else "else_branch"], [], values)

    def _loop(self, x: Sequence[Any], given: dict[str, Any], values: Arrays) -> Results:
        count, going, *states = [*x, None][: max(len(x), 2)]
        trips = None if count is None else int(count.reshape(()))
        going, body, rows = np.array(True) if going is None else going, given["body"], list[Results]()
        while len(rows) != trips and going.all():
            going, *found = self._body(body, [np.array(len(rows)), going, *states], values)
            states = found[: len(states)]
            rows.append(found[len(states) :])
        return [*states, *_stacked(rows, body.output[1 + len(states) :])]

    def _scan(self, x: Sequence[Any], given: dict[str, Any], values: Arrays) -> Results:
        if set(given) - {"body", "num_scan_inputs", "scan_input_directions", "scan_output_directions"}:
            raise NotImplementedError("scans along other axes")
        first = len(x) - given["num_scan_inputs"]
        states, body, rows = list(x[:first]), given["body"], list[Results]()
        backward = given.get("scan_input_directions", [0] * len(x))
        scanned = [a[::-1] if back else a for a, back in zip(x[first:], backward, strict=False)]
        for taken in zip(*scanned, strict=True):
            found = self._body(body, [*states, *map(np.asarray, taken)], values)
            states = found[:first]
            rows.append(found[first:])
        stacked = _stacked(rows, body.output[first:])
        turned = given.get("scan_output_directions", [0] * len(stacked))
        return [*states, *(a[::-1] if back else a for a, back in zip(stacked, turned, strict=True))]


def _stacked(rows: Sequence[Results], results: Sequence[onnx.ValueInfoProto]) -> Results:
    return [np.stack(each) for each in zip(*rows, strict=True)] if rows else [_nothing(value) for value in results]


def _nothing(value: onnx.ValueInfoProto) -> Array:
    kind = value.type.tensor_type
    return np.zeros((0, *(d.dim_value for d in kind.shape.dim)), dtype_of(kind.elem_type))
