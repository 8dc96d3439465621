"""ONNX Runtime's own operators, from their documentation."""

from __future__ import annotations

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
    x: Array,
    skip: Array,
    gamma: Array,
    beta: Array | None = None,
    bias: Array | None = None,
    *,
    epsilon: float = 1e-12,
) -> Array:
    total = x + skip + (0 if bias is None else bias)
    centred = total - total.mean(-1, keepdims=True)
    variance = np.square(centred).mean(-1, keepdims=True)
    return np.asarray(centred / np.sqrt(variance + epsilon) * gamma) + (0 if beta is None else beta)


@reference("com.microsoft.QLinearAveragePool")
def qlinear_average_pool(x: Array, x_scale: Array, x_zero: Array, y_scale: Array, y_zero: Array, **given: Any) -> Array:
    return quantize(average_pool(dequantize(x, x_scale, x_zero), **given), y_scale, y_zero)
