"""Decoders of ten tokens, and tokenizers for them."""

from __future__ import annotations

import json

import onnx
from onnx import parser


def sums() -> onnx.ModelProto:
    """The next token is the last digit of the sum of all that came; without a cache."""
    return parser.parse_model("""<ir_version: 9, opset_import: ["": 17]>
        sums (int64[b, n] input_ids) => (float[b, n, 10] logits)
        <int64 ten = {10}, int64[10] all = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, int64[1] last = {2}, int64 axis = {1}>
        { sums = CumSum(input_ids, axis) next = Mod(sums, ten) wide = Unsqueeze(next, last)
          same = Equal(wide, all) logits = Cast<to = 1>(same) }""")


def tokenizer(letter: str, count: int = 10) -> str:
    """A word for each token, ``w0``, ``w1``, ..., as the package tokenizers writes its files."""
    model = {"type": "WordLevel", "vocab": {f"{letter}{i}": i for i in range(count)}, "unk_token": f"{letter}3"}
    parts = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    return json.dumps(
        {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": model, **parts}
    )
