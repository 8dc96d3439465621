"""Normalizations, softmax and means.

ONNX's Softmax, LogSoftmax and Hardmax before opset 13 take one axis; its BatchNormalization takes the root of a float32
variance in float32 whatever the data are, before opset 14 that of nine tenths of it, as if it were training; its LRN
takes as many channels as images; its LpNormalization sums without magnitudes for p = 1; its MeanVarianceNormalization
is that of float32 alone, by a difference of squares; its SoftmaxCrossEntropyLoss overflows, its
NegativeLogLikelihoodLoss fails over nothing; its InstanceNormalization broadcasts the scale, its Mean not the first
operand; its GroupNormalization broadcasts, too; its ReduceSumSquare has wider integers; its ReduceMean of no integers
is the least one, its ArgMax and ArgMin refuse nothing of which there are no rows; its ReduceLogSumExp loses NaN beside
infinity; its Gemm sums integers in double; it has no DequantizeLinear before opset 19, and an Erf of 8 digits.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx.reference.ops._quant_utils import reshape_input
from onnx.reference.ops.op_attention import Attention as _Attention
from onnx.reference.ops.op_layer_normalization import LayerNormalization as _LayerNormalization

from tests.fuzz.case import dtype_of
from tests.fuzz.references.images import average_pool
from tests.fuzz.references.registry import REFERENCES, Array, reference, single


def erf(x: Array) -> Array:
    """Of integers in single precision, as onnx's reference."""
    found = np.vectorize(math.erf, otypes=[float])(x)
    return np.asarray(found.astype("float32") if x.dtype.kind in "iu" else found, x.dtype)


reference("Erf")(erf)


@reference("LRN")
def lrn(x: Array, *, size: int, alpha: float = float(np.float32(1e-4)), beta: float = 0.75, bias: float = 1.0) -> Array:
    channels, total = x.shape[1], np.zeros_like(x)
    for c in range(channels):
        near = slice(max(0, c - (size - 1) // 2), min(channels, c + size // 2 + 1))
        total[:, c] = np.square(x[:, near]).sum(1)
    return np.asarray(x / (bias + alpha / size * total) ** beta, x.dtype)


@reference("LpNormalization")
def lp_normalization(x: Array, *, axis: int = -1, p: int = 2) -> Array:
    norm = np.linalg.norm(single(x), p, axis, keepdims=True)
    return np.where(norm == 0, 0, x / np.where(norm == 0, 1, norm)).astype(x.dtype)


def _flat(name: str, rows: Callable[[Array], Array]) -> None:
    """An operator on rows; before opset 13 these go over all axes from the given one on."""

    @reference(name)
    def run(x: Array, *, axis: int | None = None, opset: int) -> Array:
        old = opset < 13
        axis = (1 if old else -1) if axis is None else axis
        if x.ndim == 0 or x.size == 0:
            return x if x.size == 0 else rows(x.reshape(1, 1)).reshape(()).astype(x.dtype)
        moved = x if old else np.moveaxis(x, axis, -1)
        width = math.prod(x.shape[axis:]) if old else x.shape[axis]
        found = rows(moved.reshape(-1, width)).reshape(moved.shape).astype(x.dtype)
        return found if old else np.moveaxis(found, -1, axis)


def _softmax(x: Array) -> Array:
    powers = np.exp(single(x) - x.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


def _log_softmax(x: Array) -> Array:
    shifted = single(x) - x.max(1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(1, keepdims=True)))


@reference("NegativeLogLikelihoodLoss")
def negative_log_likelihood(
    x: Array,
    labels: Array,
    weights: Array | None = None,
    *,
    reduction: bytes = b"mean",
    ignore_index: int | None = None,
) -> Array:
    """x: (n, classes, ...), labels: (n, ...).  The mean is that of the weights, of which ignored labels have none."""
    counts = np.ones(labels.shape, bool) if ignore_index is None else labels != ignore_index
    places = np.where(counts, labels, 0)
    each = counts * (np.ones((), single(x).dtype) if weights is None else single(weights)[places])
    losses = -np.take_along_axis(single(x), np.expand_dims(places, 1), 1)[:, 0] * each
    if reduction != b"none":
        losses = losses.sum() / (each.sum() if reduction == b"mean" else 1)
    return np.asarray(losses, x.dtype)


@reference("SoftmaxCrossEntropyLoss")
def loss(
    x: Array,
    labels: Array,
    weights: Array | None = None,
    *,
    reduction: bytes = b"mean",
    ignore_index: int | None = None,
) -> tuple[Array, Array]:
    flat = np.moveaxis(x, 1, -1)
    logs = np.moveaxis(_log_softmax(flat.reshape(-1, x.shape[1])).reshape(flat.shape), -1, 1).astype(x.dtype)
    found = negative_log_likelihood(logs, labels, weights, reduction=reduction, ignore_index=ignore_index)
    return found, logs


_flat("Softmax", _softmax)
_flat("LogSoftmax", _log_softmax)
_flat("Hardmax", lambda x: np.eye(x.shape[1], dtype=x.dtype)[x.argmax(1)])


@reference("BatchNormalization")
def batch_normalization(x: Array, *parameters: Array, epsilon: float = float(np.float32(1e-5)), **_: Any) -> Array:
    dtype, shape = np.result_type(x, *parameters), (-1, parameters[0].size, *[1] * (x.ndim - 2))
    scale, bias, mean, var = (p.astype(dtype).reshape(shape) for p in parameters)
    return np.asarray((x - mean) / np.sqrt(var + epsilon) * scale + bias, x.dtype)


@reference("InstanceNormalization")
def instance_normalization(x: Array, scale: Array, bias: Array, *, epsilon: float = float(np.float32(1e-5))) -> Array:
    if scale.shape != x.shape[1:2] or bias.shape != x.shape[1:2]:
        raise ValueError("not one scale and bias for each channel")
    over, wide = tuple(range(2, x.ndim)), single(x)
    return batch_normalization(x, scale, bias, wide.mean(over), wide.var(over), epsilon=epsilon)


@reference("GroupNormalization")
def group_normalization(
    x: Array, scale: Array, bias: Array, *, num_groups: int, epsilon: float = 1e-5, opset: int, **_: Any
) -> Array:
    """One scale and bias for each group before opset 21, for each channel from then on."""
    channels, wanted = x.shape[1], num_groups if opset < 21 else x.shape[1]
    if scale.shape != (wanted,) or bias.shape != (wanted,) or channels % num_groups:
        raise ValueError("not one scale and bias for each")
    rows = single(x).reshape(len(x), num_groups, -1)
    centred = rows - rows.mean(2, keepdims=True)
    found = (centred / np.sqrt(np.square(centred).mean(2, keepdims=True) + epsilon)).reshape(x.shape)
    each = (np.repeat(a, channels // wanted).reshape(-1, *[1] * (x.ndim - 2)) for a in (scale, bias))
    return np.asarray(found * next(each) + next(each), x.dtype)


@reference("Mean")
def mean(*operands: Array) -> Array:
    return np.asarray(sum(map(single, operands)) / len(operands), operands[0].dtype)


@reference("MeanVarianceNormalization")
def mean_variance(x: Array, *, axes: Sequence[int] = (0, 2, 3)) -> Array:
    centred = single(x) - single(x).mean(tuple(axes), keepdims=True)
    deviation = np.sqrt(np.square(centred).mean(tuple(axes), keepdims=True))
    return np.asarray(centred / (deviation + 1e-9), x.dtype)


def _reduced(
    x: Array, given: Array | None = None, axes: Sequence[int] = (), keepdims: int = 1, noop_with_empty_axes: int = 0
) -> dict[str, Any]:
    """Which axes go, as numpy's reductions are told."""
    chosen = tuple(axes if given is None else given.tolist())
    return {"axis": chosen or (() if noop_with_empty_axes else None), "keepdims": bool(keepdims)}


@reference("ReduceMean")
def reduce_mean(x: Array, *axes: Any, **given: Any) -> Array:
    """Of integers without the fraction; of no integers 0."""
    found = single(x).astype(np.float64 if x.dtype.kind != "f" else single(x).dtype).mean(**_reduced(x, *axes, **given))
    return np.asarray(found if x.dtype.kind == "f" else np.nan_to_num(np.trunc(found)), x.dtype)


def _best(name: str, choose: Callable[[Array, int], Any]) -> None:
    """The first place of a row, or the last; of no rows no place."""

    @reference(name)
    def run(x: Array, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Array:
        shape = list(x.shape)
        del shape[axis]
        if 0 in shape:
            found = np.zeros(shape, np.int64)
        elif select_last_index:
            found = x.shape[axis] - 1 - choose(np.flip(x, axis), axis)
        else:
            found = choose(x, axis)
        return np.asarray(np.expand_dims(found, axis) if keepdims else found, np.int64)


_best("ArgMax", np.argmax)
_best("ArgMin", np.argmin)


@reference("ReduceSumSquare")
def reduce_sum_square(x: Array, *axes: Any, **given: Any) -> Array:
    return np.asarray(np.square(single(x)).sum(dtype=single(x).dtype, **_reduced(x, *axes, **given)), x.dtype)


@reference("ReduceLogSum")
def reduce_log_sum(x: Array, *axes: Any, **given: Any) -> Array:
    return np.asarray(np.log(single(x).sum(**_reduced(x, *axes, **given))), x.dtype)


@reference("ReduceLogSumExp")
def reduce_log_sum_exp(x: Array, *axes: Any, **given: Any) -> Array:
    if x.dtype.kind != "f":
        raise TypeError("exponentials of integers")
    return np.asarray(np.logaddexp.reduce(x.astype(np.float64), **_reduced(x, *axes, **given)), x.dtype)


@reference("Gemm")
def gemm(
    a: Array, b: Array, c: Array | None = None, *, alpha: float = 1, beta: float = 1, transA: int = 0, transB: int = 0
) -> Array:
    """In double only what integers are multiplied with that is none."""
    whole = (int(v) if a.dtype.kind != "f" and float(v).is_integer() else v for v in (alpha, beta))
    alpha, beta = whole
    left, right = single(a.T if transA else a), single(b.T if transB else b)
    found = left @ right if alpha == 1 else alpha * (left @ right)
    return np.asarray(found if c is None or not beta else found + beta * single(c)).astype(a.dtype)


@reference("DequantizeLinear", "com.microsoft.DequantizeLinear")
def dequantize(
    x: Array, scale: Array, zero: Array | None = None, *, axis: int = 1, block_size: int = 0, output_dtype: int = 0
) -> Array:
    distance = x.astype(np.int64) - (
        0 if zero is None else reshape_input(zero, x.shape, axis, block_size).astype(np.int64)
    )
    wide = single(scale)
    found = distance.astype(wide.dtype) * reshape_input(wide, x.shape, axis, block_size)
    return np.asarray(found, dtype_of(output_dtype) if output_dtype else scale.dtype)


@reference("com.microsoft.QuantizeLinear")
def quantize(x: Array, scale: Array, zero: Array | None = None, *, axis: int = 1) -> Array:
    zeros = np.zeros(scale.shape, np.uint8) if zero is None else zero
    info, wide = np.iinfo(zeros.dtype), single(x)
    steps = np.rint(wide / reshape_input(scale.astype(wide.dtype), x.shape, axis, 0))
    shifted = steps + reshape_input(zeros, x.shape, axis, 0)
    return np.asarray(np.clip(shifted, info.min, info.max)).astype(zeros.dtype)


class LayerNormalization(_LayerNormalization):
    """ONNX's own broadcasts what is normalized."""

    op_domain = ""

    def _run(self, x: Array, *operands: Array, **given: Any) -> tuple[Array, ...]:  # type: ignore[override]
        if any(np.broadcast_shapes(x.shape, a.shape) != x.shape for a in operands if a is not None):
            raise ValueError("a scale larger than what is scaled")
        return tuple(super()._run(x, *operands, **given))  # type: ignore[no-untyped-call]


class Attention(_Attention):
    """ONNX's own takes heads that do not divide."""

    op_domain = ""

    def _run(self, q: Array, k: Array, *operands: Array | None, **given: Any) -> tuple[Array, ...]:  # type: ignore[override]
        if q.ndim == 4 and k.shape[1] and q.shape[1] % k.shape[1]:
            raise ValueError("heads of queries that those of keys do not divide")
        return tuple(super()._run(q, k, *operands, **given))  # type: ignore[arg-type]


REFERENCES.extend((Attention, LayerNormalization))


@reference("com.microsoft.Gelu", "com.microsoft.BiasGelu", wide=True)
def gelu(x: Array, bias: Array | None = None) -> Array:
    x = x if bias is None else x + bias
    return np.asarray(0.5 * x * (1 + erf(x / np.sqrt(2))))


@reference("com.microsoft.FastGelu", wide=True)
def fast_gelu(x: Array, bias: Array | None = None) -> Array:
    x = x if bias is None else x + bias
    return np.asarray(0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x * x * x))))


@reference("Gelu", wide=True)
def exact_gelu(x: Array, *, approximate: bytes = b"none") -> Array:
    """ONNX's own error function is right to seven digits, of which little is left where x is negative."""
    if approximate == b"tanh":
        return fast_gelu(x)
    return np.asarray(0.5 * x * np.vectorize(math.erfc, otypes=[np.float64])(-x / np.sqrt(2)))


@reference("com.microsoft.QuickGelu", wide=True)
def quick_gelu(x: Array, *, alpha: float = 1.702) -> Array:
    return np.asarray(x / (1 + np.exp(-alpha * x)))


@reference("com.microsoft.FusedGemm", wide=True)
def fused_gemm(a: Array, b: Array, c: Array | None = None, *, activation: bytes) -> Array:
    functions: dict[bytes, Callable[[Array], Array]] = {
        b"Relu": lambda x: np.maximum(x, 0),
        b"Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        b"Tanh": np.tanh,
    }
    return np.asarray(functions[activation](a @ b + (0 if c is None else c)))


@reference("com.microsoft.FusedMatMul", "com.microsoft.TransposeMatMul", wide=True)
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
