"""ONNX Runtime's own operators, from their documentation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minitvm.testing.fuzz.references.registry import Array, reference
from minitvm.testing.fuzz.references.rows import dequantize, erf, quantize
from minitvm.testing.fuzz.references.windows import average_pool


@reference("com.microsoft.Gelu", "com.microsoft.BiasGelu", wide=True)
def gelu(x: Array, bias: Array | None = None) -> Array:
    x = x if bias is None else x + bias
    return np.asarray(0.5 * x * (1 + erf(x / np.sqrt(2))))


@reference("com.microsoft.FastGelu", wide=True)
def fast_gelu(x: Array, bias: Array | None = None) -> Array:
    x = x if bias is None else x + bias
    return np.asarray(0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x * x * x))))


@reference("com.microsoft.QuickGelu", wide=True)
def quick_gelu(x: Array, *, alpha: float = 1.702) -> Array:
    return np.asarray(x / (1 + np.exp(-alpha * x)))


@reference("com.microsoft.FusedMatMul", wide=True)
def fused_matmul(a: Array, b: Array, *, alpha: float = 1.0, transA: int = 0, transB: int = 0) -> Array:
    left = np.swapaxes(a, -1, -2) if transA else a
    right = np.swapaxes(b, -1, -2) if transB else b
    return np.asarray(alpha * (left @ right))


@reference("com.microsoft.SkipLayerNormalization", wide=True)
def skip_layer_norm(
    x: Array, skip: Array, gamma: Array, beta: Array | None = None, bias: Array | None = None, *, epsilon: float = 1e-12
) -> Array:
    total = x + skip + (0 if bias is None else bias)
    centred = total - total.mean(-1, keepdims=True)
    variance = np.square(centred).mean(-1, keepdims=True)
    return np.asarray(centred / np.sqrt(variance + epsilon) * gamma) + (0 if beta is None else beta)


def _quantized(name: str, function: Callable[..., Array], operands: int = 1, before: int = 0) -> None:
    """An operator on real numbers as one on integers: ``operands`` of them, each with its scale and zero point, behind
    ``before`` others; those of the result come last."""

    @reference(f"com.microsoft.{name}")
    def run(*given: Array, **attributes: Any) -> Array:
        others, rest = given[:before], given[before:]
        real = [dequantize(*rest[3 * i : 3 * i + 3]) for i in range(operands)]
        return quantize(np.asarray(function(*others, *real, **attributes)), *rest[3 * operands :])


_quantized("QLinearAveragePool", average_pool)
_quantized("QLinearGlobalAveragePool", lambda x: x.mean((2, 3), keepdims=True))
_quantized("QLinearLeakyRelu", lambda x, alpha=0.01: np.where(x < 0, alpha * x, x))
_quantized("QLinearSigmoid", lambda x: 1 / (1 + np.exp(-x)))
_quantized("QLinearAdd", np.add, 2)
_quantized("QLinearMul", np.multiply, 2)
_quantized("QLinearWhere", np.where, 2, before=1)


@reference("com.microsoft.QLinearConcat")
def qlinear_concat(y_scale: Array, y_zero: Array, *parts: Array, axis: int) -> Array:
    real = [dequantize(*parts[i : i + 3]) for i in range(0, len(parts), 3)]
    return quantize(np.concatenate(real, axis), y_scale, y_zero)
