"""The independent oracles, in a process of their own: ONNX Runtime, and ONNX's reference evaluator."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from tests.fuzz import open_attention, open_ends  # noqa: F401  (register the rules)
from tests.fuzz.case import Arrays, value_info
from tests.fuzz.freedom import freedom
from tests.fuzz.walk import Array, Results, Seen, by_onnxruntime, by_reference, constants, session, walk

PERTURBED = 16
"""Evaluations in double with inputs that are one rounding away."""
Way = Callable[[tuple[int, ...]], np.ndarray]
"""How far, of one rounding, each element of some shape moves: -1 to 1."""

_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
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
    digits: str = "float32"
    """For ``double``: the dtype of fewest digits inside, whose roundings move every value."""


@dataclass(frozen=True)
class Declines:
    """The peer has no answer, and why."""

    why: str

    @property
    def leaves_open(self) -> bool:
        """Whether the model may be a model nevertheless: the peer lacks a kernel, or is too old."""
        return self.is_too_old or any(text in self.why for text in ("NotImplemented", "not support"))

    @property
    def is_doubtful(self) -> bool:
        """Whether the other peer is needed to say that the model is one."""
        return self.is_too_old or not self.leaves_open

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
        return _PEERS[question.peer](question, onnx.load_from_string(question.model), feeds)
    except Exception as error:  # a peer may fail in any way; that is no finding
        return Declines(f"{type(error).__name__}: {str(error)[:300]}")


def _results(model: onnx.ModelProto, values: Arrays) -> Results:
    return [values[v.name] for v in model.graph.output]


def _onnx(model: onnx.ModelProto, feeds: Arrays) -> Results:
    """It takes models that are none, too: these are left to ONNX's shape inference."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    for value in fixed.graph.input:
        value.CopyFrom(value_info(value.name, feeds[value.name].dtype.name, feeds[value.name].shape))
    onnx.shape_inference.infer_shapes(fixed, check_type=True, strict_mode=True, data_prop=True)
    return _results(model, walk(model, feeds))


def _double(model: onnx.ModelProto, feeds: Arrays, digits: str) -> list[Results]:
    """The graph in double precision: once as it is, then with every float moved by up to one rounding of its dtype,
    and every value inside by one of the coarsest."""
    given = {**constants(model.graph), **feeds}
    sizes = {n for node in model.graph.node if node.op_type in _RESIZING for n in node.input[1:]}
    rounding = float(np.finfo(digits).eps) / 2

    def evaluation(way: Way) -> Results:
        def each(seen: Seen) -> Sequence[Array]:
            still = seen.node.op_type == "Constant" and sizes.intersection(seen.node.output)
            return [_moved(a, 0.0 if still else rounding, way) for a in seen.results]

        wide = {n: _moved(a, 0.0 if n in sizes else _rounding(a), way) for n, a in given.items()}
        return _results(model, walk(model, wide, _in_double, each))

    return [evaluation(way) for way in _ways()]


def _rounding(array: Array) -> float:
    return float(np.finfo(array.dtype).eps) if array.dtype.kind == "f" else 0.0


def _moved(array: Array, rounding: float, way: Way) -> Array:
    """Floats in double, moved by some part of a rounding."""
    return array.astype(np.float64) * (1 + rounding * way(array.shape)) if array.dtype.kind == "f" else array


def _ways() -> Iterator[Way]:
    """As it is; all up, all down (what has saturated moves over its edge), and each as chance has it."""
    yield np.zeros
    yield np.ones
    yield lambda shape: -np.ones(shape)
    for seed in range(PERTURBED - 2):
        rng = np.random.default_rng(seed)
        yield lambda shape, rng=rng: rng.uniform(-1, 1, shape)  # type: ignore[misc]


def _in_double(node: onnx.NodeProto, operands: Sequence[Array | None], opset: int) -> Results:
    """By the reference, with float32 and float16 replaced by float64 where the node names a dtype."""
    if any(a.name in _DTYPES and a.i in _FLOATS for a in node.attribute):
        wide = onnx.NodeProto()
        wide.CopyFrom(node)
        node = wide
        for attribute in node.attribute:
            if attribute.name in _DTYPES and attribute.i in _FLOATS:
                attribute.i = onnx.TensorProto.DOUBLE
    return by_reference(node, operands, opset)


_PEERS: dict[str, Callable[[Question, onnx.ModelProto, Arrays], Any]] = {
    "onnxruntime": lambda q, model, feeds: [np.asarray(r) for r in session(q.model).run(None, feeds)],
    "onnx": lambda q, model, feeds: _onnx(model, feeds),
    "double": lambda q, model, feeds: _double(model, feeds, q.digits),
    "inside": lambda q, model, feeds: walk(model, feeds, by_onnxruntime),
    "freedom": lambda q, model, feeds: freedom(model, feeds, by_onnxruntime, q.answered),
    "freedom of onnx": lambda q, model, feeds: freedom(model, feeds, by_reference, q.answered),
}
