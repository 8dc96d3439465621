"""ONNX Runtime's own operators for ONNX's reference evaluator, from their documentation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

Reference = Callable[..., "np.ndarray | tuple[np.ndarray, ...]"]


def _erf(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.vectorize(math.erf, otypes=[float])(x))


def _gelu(x: np.ndarray, bias: np.ndarray | None = None, **_: Any) -> np.ndarray:
    x = x if bias is None else x + bias
    return np.asarray(0.5 * x * (1 + _erf(x / np.sqrt(2))))


def _fast_gelu(x: np.ndarray, bias: np.ndarray | None = None, **_: Any) -> np.ndarray:
    x = x if bias is None else x + bias
    return np.asarray(0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x * x * x))))


def _quick_gelu(x: np.ndarray, alpha: float | None = None, **_: Any) -> np.ndarray:
    return np.asarray(x / (1 + np.exp(-(1.702 if alpha is None else alpha) * x)))


def _fused_matmul(
    a: np.ndarray, b: np.ndarray, alpha: float | None = None, trans_a: int = 0, trans_b: int = 0
) -> np.ndarray:
    left = np.swapaxes(a, -1, -2) if trans_a else a
    right = np.swapaxes(b, -1, -2) if trans_b else b
    return np.asarray((1.0 if alpha is None else alpha) * (left @ right))


def _skip_layer_norm(
    x: np.ndarray,
    skip: np.ndarray,
    gamma: np.ndarray,
    beta: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    epsilon: float | None = None,
) -> np.ndarray:
    total = x + skip + (0 if bias is None else bias)
    centred = total - total.mean(-1, keepdims=True)
    variance = np.square(centred).mean(-1, keepdims=True)
    return np.asarray(centred / np.sqrt(variance + (1e-12 if epsilon is None else epsilon)) * gamma) + (
        0 if beta is None else beta
    )


def _operator(name: str, reference: Reference, renamed: dict[str, str]) -> type[OpRun]:
    """An operator of domain ``com.microsoft``, computed in double and rounded once."""

    def run(self: Any, *inputs: np.ndarray | None, **attributes: Any) -> tuple[np.ndarray]:
        wide = [None if x is None else x.astype(np.float64) for x in inputs]
        given = {a.name: a for a in self.onnx_node.attribute}
        chosen = {renamed.get(n, n): (a.f if a.type == a.FLOAT else a.i) for n, a in given.items()}
        found = np.asarray(reference(*wide, **chosen))
        return (found.astype(inputs[0].dtype if inputs[0] is not None else found.dtype),)

    return type(name, (OpRun,), {"op_domain": "com.microsoft", "_run": run})


CONTRIB = [
    _operator("Gelu", _gelu, {}),
    _operator("BiasGelu", _gelu, {}),
    _operator("FastGelu", _fast_gelu, {}),
    _operator("QuickGelu", _quick_gelu, {}),
    _operator("FusedMatMul", _fused_matmul, {"transA": "trans_a", "transB": "trans_b"}),
    _operator("SkipLayerNormalization", _skip_layer_norm, {}),
]
