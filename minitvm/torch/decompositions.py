"""Operators that PyTorch's exporter to ONNX does not know, or takes for others, in terms of those that it does.

``nn.TransformerEncoderLayer`` and ``nn.MultiheadAttention`` call the fused ones in inference (PyTorch's "fast path").
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch.nn.functional import gelu, layer_norm, linear, relu, softmax

aten = torch.ops.aten


def _mask(mask: Tensor, kind: int | None) -> Tensor:
    """To (batch, heads, queries, keys), from queries by keys (0), batch by keys (1), or as it is (2)."""
    if kind == 0:
        return mask[None, None]
    return mask[:, None, None] if kind == 1 else mask


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor]:
    """``aten._native_multi_head_attention``: (batch, length, embed_dim), True where the mask hides a key."""
    parts = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
    q, k, v = (linear(x, w, b).unflatten(-1, (num_head, -1)).transpose(1, 2) for x, w, b in parts)
    scores = q @ k.transpose(-1, -2) * (embed_dim // num_head) ** -0.5
    if mask is not None:
        scores = scores.masked_fill(_mask(mask.bool(), mask_type), float("-inf"))
    weights = softmax(scores, -1)
    found = linear((weights @ v).transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if not need_weights:
        return found, found.new_empty(0)
    return found, weights.mean(1) if average_attn_weights else weights


def _feed_forward(use_gelu: bool, wide: Tensor, bias: Tensor, back: Tensor, bias_back: Tensor, x: Tensor) -> Tensor:
    inside = linear(x, wide, bias)
    return linear(gelu(inside) if use_gelu else relu(inside), back, bias_back)


def _normalized(size: int, weight: Tensor, bias: Tensor, eps: float, x: Tensor) -> Tensor:
    return layer_norm(x, (size,), weight, bias, eps)


def transformer_encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """``aten._transformer_encoder_layer_fwd``: Vaswani et al. 2017, or with norms before (Xiong et al. 2020)."""

    def attended(x: Tensor) -> Tensor:
        weights = qkv_weight, qkv_bias, proj_weight, proj_bias
        return multi_head_attention(x, x, x, embed_dim, num_heads, *weights, mask, False, mask_type=mask_type)[0]

    mixed = partial(_feed_forward, use_gelu, ffn_weight_1, ffn_bias_1, ffn_weight_2, ffn_bias_2)
    first = partial(_normalized, embed_dim, norm_weight_1, norm_bias_1, eps)
    second = partial(_normalized, embed_dim, norm_weight_2, norm_bias_2, eps)
    if norm_first:
        x = src + attended(first(src))
        return x + mixed(second(x))
    x = first(src + attended(src))
    return second(x + mixed(x))


DECOMPOSITIONS: dict[Any, Any] = {
    **get_decompositions(
        [
            aten._native_batch_norm_legit_functional,  # which is taken for inference
            aten._batch_norm_with_update_functional,
            aten._scaled_dot_product_flash_attention_for_cpu,
        ]
    ),
    aten._native_multi_head_attention.default: multi_head_attention,
    aten._transformer_encoder_layer_fwd.default: transformer_encoder_layer,
}
