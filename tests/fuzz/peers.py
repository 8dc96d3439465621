"""The independent oracles, in a process of their own: ONNX Runtime, and ONNX's reference evaluator."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from minitvm.frontend import from_onnx
from minitvm.ir.evaluate import evaluate
from tests.fuzz import open_attention, open_ends, open_scales  # noqa: F401  (register the rules)
from tests.fuzz.case import Arrays, is_float, value_info
from tests.fuzz.freedom import freedom
from tests.fuzz.own import narrowly, own
from tests.fuzz.scores import in_float32
from tests.fuzz.walk import Array, Results, alone, by_onnxruntime, by_reference, session, walk


@dataclass(frozen=True)
class Question:
    """``peer`` is ``onnxruntime``, ``onnx``, ``each node`` (alone, by ONNX Runtime), ``own``, ``own of onnx`` or
    ``own of minitvm`` (how far its own roundings move a graph, by whom it is evaluated), ``own, wide scores`` and
    ``own of minitvm, wide scores`` (with those of attention by parts in float32), ``inside`` (every value of
    the graph by name), ``freedom`` or ``freedom of onnx`` (the elements that ONNX leaves open, seen from either peer's
    results)."""

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
    def is_doubtful(self) -> bool:
        """Whether the other peer is needed to say that the model is one."""
        return self.is_too_old or not self.leaves_open

    @property
    def is_too_old(self) -> bool:
        return "ValidateOpsetForDomain" in self.why


def answer(question: Question) -> list[Any]:
    """For each feed the results, or :class:`Declines`.  ``own`` gives, for each feed, a list of results: the
    graph as it is, and again with its roundings moved."""
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


def _by_minitvm(node: onnx.NodeProto, operands: Sequence[Array | None], opset: int) -> Results:
    """By minitvm's reference: where no peer is asked."""
    feeds = {n: a for n, a in zip(node.input, operands, strict=False) if n and a is not None}
    known = {n: a for n, a in feeds.items() if not is_float(a)}
    shapes = {n: a.shape for n, a in feeds.items()}
    module, params = from_onnx(alone(node, feeds, opset), shapes, value_dict=known)
    found = evaluate(module, *(a for n, a in feeds.items() if n not in known), *params.values())
    return list(found) if isinstance(found, tuple) else [found]


def _onnx(model: onnx.ModelProto, feeds: Arrays) -> Results:
    """It takes models that are none, too: these are left to ONNX's shape inference."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    for value in fixed.graph.input:
        value.CopyFrom(value_info(value.name, feeds[value.name].dtype.name, feeds[value.name].shape))
    onnx.shape_inference.infer_shapes(fixed, check_type=True, strict_mode=True, data_prop=True)
    return _results(model, walk(model, feeds, narrowly(by_reference)))


_PEERS: dict[str, Callable[[Question, onnx.ModelProto, Arrays], Any]] = {
    "onnxruntime": lambda q, model, feeds: [np.asarray(r) for r in session(q.model).run(None, feeds)],
    "onnx": lambda q, model, feeds: _onnx(model, feeds),
    "each node": lambda q, model, feeds: _results(model, walk(model, feeds, by_onnxruntime)),
    "inside": lambda q, model, feeds: walk(model, feeds, narrowly(by_onnxruntime)),
    "own": lambda q, model, feeds: own(model, feeds, narrowly(by_onnxruntime)),
    "own of onnx": lambda q, model, feeds: own(model, feeds, narrowly(by_reference)),
    "own of minitvm": lambda q, model, feeds: own(model, feeds, _by_minitvm),
    "own, wide scores": lambda q, model, feeds: own(model, feeds, in_float32(model, narrowly(by_onnxruntime))),
    "own of minitvm, wide scores": lambda q, model, feeds: own(model, feeds, in_float32(model, _by_minitvm)),
    "freedom": lambda q, model, feeds: freedom(model, feeds, narrowly(by_onnxruntime), q.answered),
    "freedom of onnx": lambda q, model, feeds: freedom(model, feeds, narrowly(by_reference), q.answered),
    "freedom of minitvm": lambda q, model, feeds: freedom(model, feeds, _by_minitvm, q.answered),
}
