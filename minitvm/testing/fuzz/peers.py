"""The independent oracles, in a process of their own: ONNX Runtime, and ONNX's reference evaluator."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from minitvm.testing.fuzz.case import Arrays, value_info
from minitvm.testing.fuzz.flat import flattened
from minitvm.testing.fuzz.freedom import freedom
from minitvm.testing.fuzz.references import evaluator

Results = list[np.ndarray]

PERTURBED = 16
"""Evaluations in double with inputs that are one rounding away."""
Way = Callable[[tuple[int, ...]], np.ndarray]
"""How far, of one rounding, each element of some shape moves: -1 to 1."""
_FLOATS = {TensorProto.DOUBLE: 2.0**-51, TensorProto.FLOAT: 2.0**-23, TensorProto.FLOAT16: 2.0**-10}

_DTYPES = ("to", "dtype", "output_datatype")
_RESIZING = ("Resize", "Upsample")
"""Their scales are sizes: these stay as they are."""


@dataclass(frozen=True)
class Question:
    """``peer`` is ``onnxruntime``, ``onnx``, ``double``, ``inside`` (every value of the graph by name), ``freedom``
    or ``freedom of onnx`` (the elements that ONNX leaves open, seen from either peer's results)."""

    peer: str
    model: bytes
    feeds: list[Arrays]
    answered: tuple[str, ...] = ()
    """For ``freedom``: the peers whose answers are there."""


@dataclass(frozen=True)
class Declines:
    """The peer has no answer, and why."""

    why: str

    @property
    def leaves_open(self) -> bool:
        """Whether the model may be a model nevertheless: the peer lacks a kernel, or is too old."""
        return self.is_too_old or any(text in self.why for text in ("NotImplemented", "not support"))

    @property
    def is_too_old(self) -> bool:
        return "ValidateOpsetForDomain" in self.why


def answer(question: Question) -> list[Any]:
    """For each feed the results, or :class:`Declines`.  ``double`` gives, for each feed, a list of results: the
    graph in double, and again with inputs perturbed."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return [_attempt(question, feeds) for feeds in question.feeds]


def _attempt(question: Question, feeds: Arrays) -> Any:
    try:
        proto = onnx.load_from_string(question.model)
        if question.peer not in ("onnxruntime", "inside"):
            proto = flattened(proto, feeds, _value)
        return _PEERS[question.peer](question, proto)(feeds)
    except Exception as error:  # a peer may fail in any way; that is no finding
        return Declines(f"{type(error).__name__}: {str(error)[:300]}")


def _value(model: onnx.ModelProto, feeds: Arrays, name: str) -> np.ndarray:
    given = {**{t.name: numpy_helper.to_array(t) for t in model.graph.initializer}, **feeds}
    if name in given:
        return given[name]
    asked = onnx.ModelProto()
    asked.CopyFrom(model)
    del asked.graph.output[:]
    asked.graph.output.add().name = name
    (found,) = _arrays(evaluator(asked).run(None, dict(feeds)))
    return found


def _onnxruntime(model: bytes) -> Callable[[Arrays], Results]:
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    settings.log_severity_level = 4
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
    return lambda feeds: [np.asarray(r) for r in session.run(None, feeds)]


def _onnx(proto: onnx.ModelProto) -> Callable[[Arrays], Results]:
    """It takes models that are none, too: these are left to ONNX's shape inference."""
    reference = evaluator(proto)

    def run(feeds: Arrays) -> Results:
        _check_shapes(proto, feeds)
        return _arrays(reference.run(None, dict(feeds)))

    return run


def _check_shapes(model: onnx.ModelProto, feeds: Arrays) -> None:
    """Raises where ONNX finds a node malformed on inputs of these shapes."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    for value in fixed.graph.input:
        value.CopyFrom(value_info(value.name, feeds[value.name].dtype.name, feeds[value.name].shape))
    onnx.shape_inference.infer_shapes(fixed, check_type=True, strict_mode=True, data_prop=True)


def _arrays(found: Iterable[Any]) -> Results:
    """The reference returns numpy scalars, lists and the like in places."""
    return [np.asarray(value) for value in found]


def _inside(model: bytes) -> Callable[[Arrays], Arrays]:
    """Every value of the graph, by ONNX Runtime (which finds the types of outputs that have none) or the reference."""
    proto = onnx.load_from_string(model)
    names = [v.name for v in proto.graph.output]
    names += [n for node in proto.graph.node for n in node.output if n and n not in names]
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)

    def run(feeds: Arrays) -> Arrays:
        try:
            return dict(zip(names, _onnxruntime(proto.SerializeToString())(feeds), strict=True))
        except Exception:  # any, as for all that peers do
            return _inside_reference(model)(feeds)

    return run


def _inside_reference(model: bytes) -> Callable[[Arrays], Arrays]:
    reference = evaluator(onnx.load_from_string(model))

    def run(feeds: Arrays) -> Arrays:
        found: Any = reference.run(None, dict(feeds), intermediate=True)
        return {n: np.asarray(v) for n, v in found.items() if isinstance(v, (np.ndarray, np.generic))}

    return run


def _double(proto: onnx.ModelProto) -> Callable[[Arrays], list[Results]]:
    """The graph in double precision: once as it is, then with every float moved by up to one rounding of its dtype,
    and every value inside by one of the coarsest dtype in the graph."""
    names = [v.name for v in proto.graph.output]
    rounding = {v.name: _FLOATS.get(v.type.tensor_type.elem_type, 0.0) for v in proto.graph.input}
    plain = evaluator(_in_double(proto, None))

    def run(feeds: Arrays) -> list[Results]:
        wide = {n: _widened(a, 0.0, None) for n, a in feeds.items()}
        values: Any = plain.run(None, wide, intermediate=True)
        found = [_arrays(values[name] for name in names)]
        for way in _ways():
            other = evaluator(_noisy(_in_double(proto, way), values, _coarsest(proto), way))
            found.append(_arrays(other.run(None, {n: _widened(a, rounding[n], way) for n, a in feeds.items()})))
        return found

    return run


def _ways() -> Iterator[Way]:
    """All up, all down (what has saturated moves over its edge), and each as chance has it."""
    yield np.ones
    yield lambda shape: -np.ones(shape)
    for seed in range(PERTURBED - 2):
        rng = np.random.default_rng(seed)
        yield lambda shape, rng=rng: rng.uniform(-1, 1, shape)  # type: ignore[misc]


def _coarsest(model: onnx.ModelProto) -> float:
    """The largest rounding of the floats in a graph, as far as it says which there are."""
    kinds = {v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output)}
    kinds |= {t.data_type for t in model.graph.initializer}
    kinds |= {a.i for node in model.graph.node for a in node.attribute if a.name in _DTYPES}
    return max((size for kind, size in _FLOATS.items() if kind in kinds), default=0.0) / 2


def _noisy(model: onnx.ModelProto, values: Arrays, rounding: float, way: Way) -> onnx.ModelProto:
    """Each float that a node of the graph gives out is multiplied by what lies next to 1."""
    nodes = []
    for node in list(model.graph.node):
        nodes.append(node)
        for i, name in enumerate(node.output):
            value = values.get(name) if name else None
            if not isinstance(value, np.ndarray) or value.dtype != np.float64 or node.op_type == "Constant":
                continue
            node.output[i], noise = f"{name} exact", f"{name} noise"
            factors = 1 + rounding * way(value.shape)
            model.graph.initializer.append(numpy_helper.from_array(factors, noise))
            nodes.append(onnx.helper.make_node("Mul", [node.output[i], noise], [name]))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def _widened(array: np.ndarray, rounding: float, way: Way | None) -> np.ndarray:
    if array.dtype.kind != "f":
        return array
    wide = array.astype(np.float64)
    return wide if way is None else wide * (1 + rounding * way(wide.shape))


def _in_double(model: onnx.ModelProto, way: Way | None) -> onnx.ModelProto:
    """The model with float32 and float16 replaced by float64 everywhere."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    sizes = {name for node in model.graph.node if node.op_type in _RESIZING for name in node.input[1:]}
    tensors = list(wide.graph.initializer)
    for node in wide.graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                tensors.append(attribute.t)
            if attribute.name in _DTYPES and attribute.i in _FLOATS:
                attribute.i = TensorProto.DOUBLE
    for tensor in tensors:
        if tensor.data_type in _FLOATS:
            moved = None if tensor.name in sizes else way
            array = _widened(numpy_helper.to_array(tensor), _FLOATS[tensor.data_type], moved)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for value in (*wide.graph.input, *wide.graph.output):
        if value.type.tensor_type.elem_type in _FLOATS:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    return wide


_PEERS: dict[str, Callable[[Question, onnx.ModelProto], Callable[[Arrays], Any]]] = {
    "onnxruntime": lambda q, proto: _onnxruntime(q.model),
    "onnx": lambda q, proto: _onnx(proto),
    "double": lambda q, proto: _double(proto),
    "inside": lambda q, proto: _inside(q.model),
    "freedom": lambda q, proto: freedom(proto, _inside, q.answered),
    "freedom of onnx": lambda q, proto: freedom(proto, _inside_reference, q.answered),
}
