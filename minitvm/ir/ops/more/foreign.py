"""Operators that another library computes: a model's long tail."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from minitvm.doors import door, left_out
from minitvm.errors import InputError, MiniTVMError
from minitvm.ir.op import Fusion, Op
from minitvm.ir.reader import Reader
from minitvm.ir.types import AnyTensor, TensorType, TupleType, Type, numpy_dtype

Evaluator = Callable[..., Sequence[Any]]


@door
def evaluator_of_onnx(node: str, version: int) -> Evaluator:
    """What computes a node of ONNX's as ONNX's own evaluator does."""
    raise left_out("ONNX's evaluator")


@door
def imported_late(node: str, version: int) -> Evaluator:
    """What computes a node that is imported when its inputs are known."""
    raise left_out("importing in a run")


EVALUATORS: dict[str, Callable[[str, int], Evaluator]] = {"onnx": evaluator_of_onnx, "minitvm": imported_late}
"""By the origin of a node."""


class Foreign(Op, name="foreign", fusion=Fusion.OPAQUE, takes_stored=True):
    """A node of a model for which minitvm has no operators: it runs in Python, by its origin's own evaluator.

    inputs: the node's, without those left out -> values of ``types``, as they print (one, or a tuple of several).
    ``origin`` is one of ``EVALUATORS``; ``operator`` names it; ``node`` is the node as text, ``version`` that of its
    operator set.

    Running it raises :class:`InputError` where the evaluator refuses the values, ``MiniTVMError`` where it is missing.
    """

    origin: str
    operator: str
    node: str
    version: int
    types: tuple[str, ...]

    @property
    def title(self) -> str:
        return self.operator

    def infer(self, *inputs: TensorType) -> Type:
        if self.origin not in EVALUATORS:
            raise self.reject(f"origin is {self.origin!r}", hint=f"known: {', '.join(EVALUATORS)}")
        fields = self._results()
        return fields[0] if len(fields) == 1 else TupleType(fields)

    def _results(self) -> tuple[Type, ...]:
        return tuple(Reader(text, None).type() for text in self.types)

    def reference(self, *inputs: np.ndarray) -> Any:
        try:
            results = _evaluator(self.origin, self.node, self.version)(*inputs)
        except MiniTVMError:
            raise
        except Exception as error:  # whatever numpy and the evaluator make of values
            raise InputError(f"{self.title} fails for these inputs: {error or type(error).__name__}") from error
        values = tuple(map(_of_type, results, self._results()))
        return values[0] if len(values) == 1 else values


class ForeignRandom(Foreign, name="foreign_random", stateful=True, hosted=True, draws=True):
    """A ``foreign`` operator whose results differ from one run to the next."""


def _of_type(found: Any, type_: Type) -> Any:
    return np.asarray(found, numpy_dtype(type_.dtype)) if isinstance(type_, (TensorType, AnyTensor)) else found


@lru_cache(maxsize=256)
def _evaluator(origin: str, node: str, version: int) -> Evaluator:
    return EVALUATORS[origin](node, version)
