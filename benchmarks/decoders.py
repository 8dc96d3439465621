"""Decoders with a growing cache, as onnxruntime-genai's model builder writes them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.graph import Graph

_CONTRIB = "com.microsoft"


@dataclass(frozen=True)
class Decoder:
    """The sizes of one (Llama, Touvron et al. 2023, arXiv:2302.13971): those of SmolLM-135M, but for its layers."""

    layers: int = 12
    hidden: int = 576
    heads: int = 9
    groups: int = 3
    """Heads of keys and values (Ainslie et al. 2023, arXiv:2305.13245)."""
    inner: int = 1536
    vocabulary: int = 49152
    longest: int = 2048
    bits: int = 32
    """Of weights; 4: in blocks of 32 with a scale each, two to a byte."""
    accuracy: int = 0
    """``MatMulNBits``'s ``accuracy_level``; 4 lets inputs become 8 bits."""

    @property
    def size(self) -> int:
        """Of a head."""
        return self.hidden // self.heads

    @property
    def weights(self) -> int:
        """Bytes that each step reads."""
        attention = self.hidden * self.size * (2 * self.heads + 2 * self.groups)
        count = self.layers * (attention + 3 * self.hidden * self.inner) + self.hidden * self.vocabulary
        return count * 4 if self.bits == 32 else count // 2 + count // 32 * 4

    def feeds(self, tokens: np.ndarray, past: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Of a step with ``tokens``: (batch, length) int64, behind the cache ``past`` as :meth:`empty` gives it."""
        batch, length = tokens.shape
        total = length + next(iter(past.values())).shape[2]
        return {"input_ids": tokens, "attention_mask": np.ones((batch, total), np.int64), **past}

    def empty(self, batch: int = 1, length: int = 0) -> dict[str, np.ndarray]:
        """A cache of zeros: (batch, groups, length, size) of each layer's keys and values."""
        names = [f"past_key_values.{k}.{kind}" for k in range(self.layers) for kind in ("key", "value")]
        return {name: np.zeros((batch, self.groups, length, self.size), np.float32) for name in names}

    def model(self) -> onnx.ModelProto:
        """Token numbers, a mask of ones and the cache in; logits and the longer cache out; all lengths are open."""
        g = Graph()
        lengths, total = _lengths(g)
        angles = np.arange(self.longest)[:, None] / 1e4 ** (np.arange(0, self.size, 2) / self.size)
        tables = [g.weight(f(angles).astype(np.float32)) for f in (np.cos, np.sin)]
        table = g.normal((self.vocabulary, self.hidden), 1.0)
        x = g.node("Gather", [table, "input_ids"])
        more, presents = "", []
        for k in range(self.layers):
            x, y = self._added(g, x, more)
            q, key, value = (
                self._linear(g, y, self.hidden, n * self.size) for n in (self.heads, self.groups, self.groups)
            )
            inputs = [q, key, value, *(f"past_key_values.{k}.{kind}" for kind in ("key", "value")), lengths, total]
            y = _attention(g, inputs + tables, k, self.heads, self.groups)
            presents += [f"present.{k}.key", f"present.{k}.value"]
            x, y = self._added(g, x, self._linear(g, y, self.hidden, self.hidden))
            gate, up = (self._linear(g, y, self.hidden, self.inner) for _ in range(2))
            gated = g.node("Mul", [g.node("Mul", [gate, g.node("Sigmoid", [gate])]), up])
            more = self._linear(g, gated, self.inner, self.hidden)
        _, y = self._added(g, x, more)
        return self._closed(g, self._linear(g, y, self.hidden, self.vocabulary), presents)

    def _added(self, g: Graph, x: str, more: str) -> tuple[str, str]:
        """The sum of both, and that sum with a root mean square of 1 (Zhang and Sennrich 2019, arXiv:1910.07467)."""
        gamma = g.weight(g.rng.uniform(0.5, 1.5, self.hidden).astype(np.float32))
        if not more:
            y = g.node("SimplifiedLayerNormalization", [x, gamma], axis=-1, epsilon=1e-5, stash_type=1)
            return x, y
        y = g.node("SkipSimplifiedLayerNormalization", [x, more, gamma], domain=_CONTRIB, epsilon=1e-5)
        g.nodes[-1].output.extend(["", "", f"{y}_sum"])
        return f"{y}_sum", y

    def _linear(self, g: Graph, x: str, before: int, after: int) -> str:
        scale = np.sqrt(1.0 / before)
        if self.bits == 32:
            return g.node("MatMul", [x, g.normal((before, after), scale)])
        blocks = -(-before // 32)
        packed = g.weight(g.rng.integers(0, 256, (after, blocks, 16), np.uint8))
        scales = g.weight((g.rng.uniform(0.5, 1.5, after * blocks) * scale / 4.6).astype(np.float32))
        attributes = {"K": before, "N": after, "bits": 4, "block_size": 32, "accuracy_level": self.accuracy}
        return g.node("MatMulNBits", [x, packed, scales], domain=_CONTRIB, **attributes)

    def _closed(self, g: Graph, logits: str, presents: list[str]) -> onnx.ModelProto:
        def cache(names: list[str], length: str) -> list[onnx.ValueInfoProto]:
            shape = ["batch", self.groups, length, self.size]
            return [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in names]

        ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"])
        mask = helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "total"])
        result = helper.make_tensor_value_info(logits, TensorProto.FLOAT, ["batch", "length", self.vocabulary])
        graph = helper.make_graph(
            g.nodes,
            "decoder",
            [ids, mask, *cache(list(self.empty()), "past")],
            [result, *cache(presents, "total")],
            g.weights,
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(_CONTRIB, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def _lengths(g: Graph) -> tuple[str, str]:
    """Of the cache with the new tokens: of each sequence less 1, and the longest."""
    one = g.weight(np.array([1], np.int64))
    lengths = g.node("Sub", [g.node("ReduceSum", ["attention_mask", one], keepdims=0), one])
    total = g.node("Gather", [g.node("Shape", ["attention_mask"]), g.weight(np.int64(1))], axis=0)
    first, second = (g.node("Cast", [name], to=TensorProto.INT32) for name in (lengths, total))
    return first, second


def _attention(g: Graph, inputs: list[str], layer: int, heads: int, groups: int) -> str:
    y = g.node("GroupQueryAttention", inputs, domain=_CONTRIB, num_heads=heads, kv_num_heads=groups, do_rotary=1)
    g.nodes[-1].output.extend([f"present.{layer}.key", f"present.{layer}.value"])
    return y
