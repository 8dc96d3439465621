"""References of ONNX Runtime's fused layers, whose formulas are known but to nobody else."""

from typing import Any

import numpy as np
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tests.fuzz.references.registry import Array, reference


def _attended(q: Array, k: Array, v: Array, added: Array, scale: float, softcap: float = 0.0) -> Array:
    """Queries, keys and values (batch, heads, length, size) -> (batch, length, heads * size)."""
    scores = q @ np.swapaxes(k, 2, 3) * (scale or q.shape[3] ** -0.5)
    scores = softcap * np.tanh(scores / softcap) if softcap else scores
    scores = np.where(added < np.finfo(np.float32).min / 2, added, scores + added)
    powers = np.exp(scores - scores.max(3, keepdims=True))
    mixed = powers / powers.sum(3, keepdims=True) @ v
    return np.asarray(np.swapaxes(mixed, 1, 2).reshape(q.shape[0], q.shape[2], -1))


def _apart(x: Array, heads: int) -> Array:
    return np.swapaxes(x.reshape(*x.shape[:2], heads, -1), 1, 2)


def _causal(length: int) -> Array:
    return np.where(np.tri(length, dtype=bool), 0, float(np.finfo(np.float32).min))


@reference("com.microsoft.Attention", wide=True)
def attention(
    x: Array,
    weight: Array,
    bias: Array,
    mask: Array | None = None,
    *,
    num_heads: int,
    unidirectional: int = 0,
    scale: float = 0.0,
) -> Array:
    q, k, v = (_apart(part, num_heads) for part in np.split(x @ weight + bias, 3, axis=2))
    added = np.zeros(()) if mask is None else np.where(mask[:, None, None] > 0, 0, -10000.0)
    return _attended(q, k, v, added + (_causal(x.shape[1]) if unidirectional else 0), scale)


@reference("com.microsoft.GroupQueryAttention")
def group_query_attention(
    q: Array, k: Array, v: Array, *_: Any, num_heads: int, kv_num_heads: int, softcap: float = 0.0
) -> tuple[Array, ...]:
    """Without a past, of sequences that are all as long."""
    key, value = (_apart(a, kv_num_heads) for a in (k, v))
    queries, keys, values = (a.astype(np.float64) for a in (_apart(q, num_heads), key, value))
    keys, values = (np.repeat(a, num_heads // kv_num_heads, 1) for a in (keys, values))
    found = _attended(queries, keys, values, _causal(q.shape[1]), 0.0, softcap)
    return found.astype(q.dtype), key, value


@reference("com.microsoft.RotaryEmbedding")
def rotary(x: Array, places: Array, cos: Array, sin: Array, *, interleaved: int = 0) -> Array:
    heads = x.reshape(*x.shape[:2], -1, 2 * cos.shape[1]).astype(np.float64)
    a, b = (heads[..., 0::2], heads[..., 1::2]) if interleaved else np.split(heads, 2, axis=3)
    c, s = (table[places][:, :, None].astype(np.float64) for table in (cos, sin))
    turned = [a * c - b * s, b * c + a * s]
    joined = np.stack(turned, 4) if interleaved else np.concatenate(turned, 3)
    return np.asarray(joined.reshape(x.shape).astype(x.dtype))


@reference("com.microsoft.EmbedLayerNormalization")
def embed_layer_norm(ids: Array, segments: Array | None, *tables: Array, epsilon: float = 1e-12) -> tuple[Array, ...]:
    words, places, of_segments, gamma, beta = (t.astype(np.float64) for t in tables)
    total = words[ids] + places[None, : ids.shape[1]] + of_segments[0 if segments is None else segments]
    centred = total - total.mean(-1, keepdims=True)
    normed = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + epsilon) * gamma + beta
    return normed.astype(tables[0].dtype), np.zeros(ids.shape[0], np.int32)


@reference("com.microsoft.SkipSimplifiedLayerNormalization")
def skip_rms_norm(
    x: Array, skip: Array, gamma: Array, bias: Array | None = None, *, epsilon: float = 1e-12
) -> tuple[Array, ...]:
    """The norm of the sum, two results that ONNX Runtime leaves out, and the sum."""
    total = x.astype(np.float64) + skip + (0 if bias is None else bias)
    found = total / np.sqrt(np.square(total).mean(-1, keepdims=True) + epsilon) * gamma
    return found.astype(x.dtype), np.zeros(0, np.float32), np.zeros(0, np.float32), total.astype(x.dtype)


@reference("com.microsoft.MatMulNBits")
def few_bits(
    a: Array, packed: Array, scales: Array, zeros: Array | None = None, *, K: int, N: int, bits: int, block_size: int
) -> Array:
    """Of 4 bits, two to a byte."""
    codes = np.stack([packed & 15, packed >> 4], 3).reshape(N, K).astype(np.float64)
    points = np.full((N, K // block_size), 8.0)
    if zeros is not None:
        held = zeros.reshape(N, -1)
        points = np.stack([held & 15, held >> 4], 2).reshape(N, -1)[:, : K // block_size].astype(np.float64)
    weight = (codes - np.repeat(points, block_size, 1)) * np.repeat(scales.reshape(N, -1), block_size, 1)
    return np.asarray((a.astype(np.float64) @ weight.T).astype(a.dtype))


@reference("com.microsoft.QGemm")
def quantized_gemm(
    a: Array,
    a_scale: Array,
    a_zero: Array,
    b: Array,
    b_scale: Array,
    b_zero: Array,
    c: Array | None = None,
    y_scale: Array | None = None,
    y_zero: Array | None = None,
    *,
    transA: int = 0,
    transB: int = 0,
    alpha: float = 1.0,
) -> Array:
    left, right = (x.astype(np.int64).T if turned else x.astype(np.int64) for x, turned in ((a, transA), (b, transB)))
    total = (left - a_zero) @ (right - b_zero) + (0 if c is None else c)
    real = np.asarray(total * (alpha * a_scale.astype(np.float64) * b_scale))
    if y_scale is None or y_zero is None:
        return real.astype(np.float32)
    info = np.iinfo(y_zero.dtype)
    return np.asarray(np.clip(np.rint(real / y_scale) + y_zero, info.min, info.max).astype(y_zero.dtype))


@reference("com.microsoft.MatMulIntegerToFloat")
def integers_to_float(
    a: Array,
    b: Array,
    a_scale: Array,
    b_scale: Array,
    a_zero: Array | None = None,
    b_zero: Array | None = None,
    bias: Array | None = None,
) -> Array:
    left, right = (x.astype(np.int64) - (0 if zero is None else zero) for x, zero in ((a, a_zero), (b, b_zero)))
    real = left @ right * (a_scale.astype(np.float64) * b_scale)
    return np.asarray((real if bias is None else real + bias).astype(np.float32))


@reference("com.microsoft.DynamicQuantizeMatMul")
def dynamic_product(
    a: Array, b: Array, b_scale: Array, b_zero: Array | None = None, bias: Array | None = None
) -> Array:
    """The first operand in 255 steps between its ends, 0 among them."""
    low, high = a.min(initial=0), a.max(initial=0)
    scale = np.asarray((high - low) / 255 if high > low else 1, np.float32)
    zero = np.clip(np.rint(-low / scale), 0, 255).astype(np.uint8)
    codes = np.clip(np.rint(a / scale) + zero, 0, 255).astype(np.uint8)
    return integers_to_float(codes, b, scale, b_scale, zero, b_zero, bias)


@reference("com.microsoft.GatherND")
def gather_nd(x: Array, places: Array) -> Array:
    """ONNX Runtime's looks at no place where there is nothing to gather at each."""
    return np.asarray(x[tuple(np.moveaxis(places, -1, 0))])


@reference("com.microsoft.GridSample")
def grid_sample(
    x: Array, grid: Array, *, mode: bytes = b"bilinear", padding_mode: bytes = b"zeros", align_corners: int = 0
) -> Array:
    """ONNX's, its modes by their older names."""
    named: dict[str, Any] = {"mode": "nearest" if mode == b"nearest" else "linear", "align_corners": align_corners}
    node = helper.make_node("GridSample", ["x", "grid"], ["y"], padding_mode=padding_mode, **named)
    run: Any = ReferenceEvaluator(node).run
    return np.asarray(run(None, {"x": x.astype(np.float64), "grid": grid.astype(np.float64)})[0], x.dtype)
