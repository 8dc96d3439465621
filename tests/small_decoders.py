"""Decoders of ten tokens, and tokenizers for them."""

from __future__ import annotations

import json

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser


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


def grows(tokens: int = 10, heads: int = 2, size: int = 8) -> onnx.ModelProto:
    """A decoder of that layer, its caches first."""
    layer, random = attends(heads, size), np.random.default_rng(tokens)
    names = {"keys": "past_keys", "values": "past_values", "all_keys": "present_keys", "all_values": "present_values"}
    for node in layer.graph.node:
        for side in (node.input, node.output):
            side[:] = [names.get(name, name) for name in side]
    for value in (*layer.graph.input, *layer.graph.output):
        value.name = names.get(value.name, value.name)
    for name, shape in (("table", (tokens, heads * size)), ("head", (heads * size, tokens))):
        layer.graph.initializer.append(numpy_helper.from_array(random.normal(size=shape).astype("float32"), name))
    layer.graph.node.insert(0, helper.make_node("Gather", ["table", "input_ids"], ["x"]))
    layer.graph.node.append(helper.make_node("MatMul", ["y", "head"], ["logits"]))
    layer.graph.input[0].CopyFrom(helper.make_tensor_value_info("input_ids", onnx.TensorProto.INT64, ["b", "n"]))
    layer.graph.output[0].CopyFrom(helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["b", "n", tokens]))
    return layer


def attends(heads: int, size: int) -> onnx.ModelProto:
    """A layer of attention as PyTorch's exporter writes it: ``keys`` and ``values`` with new ones behind them."""
    width = heads * size
    by_heads = "\n".join(
        f"{n}1 = MatMul(x, w{n}) {n}2 = Reshape({n}1, apart) {n} = Transpose<perm = [0, 2, 1, 3]>({n}2)" for n in "qkv"
    )
    found = parser.parse_model(f"""<ir_version: 9, opset_import: ["": 17]>
        attends (float[b, n, {width}] x, float[b, {heads}, past, {size}] keys, float[b, {heads}, past, {size}] values)
            => (float[b, n, {width}] y, float[b, {heads}, total, {size}] all_keys,
                float[b, {heads}, total, {size}] all_values)
        <int64[4] apart = {{0, 0, {heads}, {size}}}, int64[3] flat = {{0, 0, {width}}}, float scale = {{{size**-0.5}}},
         int64 zero = {{0}}, int64 one = {{1}}, int64 two = {{2}}, int64[1] ones = {{1}},
         float stays = {{0.0}}, float never = {{-1e30}}>
        {{ {by_heads}
          all_keys = Concat<axis = -2>(keys, k) all_values = Concat<axis = -2>(values, v)
          held = Shape(keys) past = Gather(held, two) sizes = Shape(x) new = Gather(sizes, one) total = Add(past, new)
          own = Range(past, total, one) place = Range(zero, total, one) owns = Unsqueeze(own, ones)
          seen = LessOrEqual(place, owns) mask = Where(seen, stays, never)
          turned = Transpose<perm = [0, 1, 3, 2]>(all_keys) scores = MatMul(q, turned) scaled = Mul(scores, scale)
          masked = Add(scaled, mask) shares = Softmax<axis = -1>(masked) mixed = MatMul(shares, all_values)
          back = Transpose<perm = [0, 2, 1, 3]>(mixed) flatted = Reshape(back, flat) y = MatMul(flatted, wo) }}""")
    random = np.random.default_rng(heads)
    for name in ("wq", "wk", "wv", "wo"):
        weight = random.normal(size=(width, width)).astype("float32") / np.sqrt(width)
        found.graph.initializer.append(numpy_helper.from_array(weight.astype("float32"), name))
    return found
