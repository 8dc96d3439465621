"""``@reference``: a function as an operator of ONNX's reference evaluator."""

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from tests.fuzz.case import attributes

Array: TypeAlias = np.ndarray
F = TypeVar("F", bound="Callable[..., Array | tuple[Array, ...]]")

REFERENCES: list[type[Any]] = []


def reference(*names: str, wide: bool = False) -> Callable[[F], F]:
    """Registers ``function(*operands, **attributes)`` for operators of ONNX, or of other domains as ``domain.type``.

    Attributes come as a node has them, and ``opset`` where the function asks for it; the evaluator declines a node
    with others.  ``wide``: operands in double, the result rounded to the first one's dtype.
    """

    def register(function: F) -> F:
        asks = "opset" in inspect.signature(function).parameters

        def run(self: Any, *operands: Array | None, **_: Any) -> tuple[Array, ...]:
            given = attributes(self.onnx_node)
            if asks:
                given["opset"] = int(self.run_params["opsets"][""])
            taken = [None if a is None or not wide else a.astype(np.float64) for a in operands] if wide else operands
            found = function(*taken, **given)
            dtype = operands[0].dtype if wide and operands[0] is not None else None
            results = found if isinstance(found, tuple) else (np.asarray(found, dtype),)
            return results[: len(self.onnx_node.output)]

        for name in names:
            domain, _, op_type = name.rpartition(".")
            REFERENCES.append(type(op_type, (OpRun,), {"op_domain": domain, "_run": run}))
        return function

    return register


def evaluator(model: onnx.ModelProto) -> ReferenceEvaluator:
    return ReferenceEvaluator(model, new_ops=REFERENCES)


def single(x: Array) -> Array:
    """Floats in float32 at least."""
    return x.astype(np.promote_types(x.dtype, np.float32)) if x.dtype.kind == "f" else x
