"""Networks of tokens and of vectors, built as ONNX: transformers, recurrent layers, a perceptron."""

from __future__ import annotations

import numpy as np
import onnx

from benchmarks.graph import Graph


def bert(layers: int = 4, batch: int = 1, length: int = 128, hidden: int = 768, heads: int = 12) -> onnx.ModelProto:
    """A stack of BERT-base encoder layers (Devlin et al. 2018, arXiv:1810.04805) over embeddings."""
    g, x = Graph(), "data"
    for _ in range(layers):
        x = g.layer_norm(g.node("Add", [x, attention(g, x, batch, length, hidden, heads)]), hidden)
        y = g.linear(x, hidden, 4 * hidden)
        y = g.linear(g.gelu(y), 4 * hidden, hidden)
        x = g.layer_norm(g.node("Add", [x, y]), hidden)
    return g.model(x, (batch, length, hidden))


def attention(
    g: Graph, x: str, batch: int, length: int, hidden: int, heads: int, mask: np.ndarray | None = None
) -> str:
    size = hidden // heads
    shape = g.weight(np.array([batch, length, heads, size], np.int64))

    def split(name: str, perm: list[int]) -> str:
        return g.node("Transpose", [g.node("Reshape", [name, shape])], perm=perm)

    q = split(g.linear(x, hidden, hidden), [0, 2, 1, 3])
    k = split(g.linear(x, hidden, hidden), [0, 2, 3, 1])
    v = split(g.linear(x, hidden, hidden), [0, 2, 1, 3])
    scores = g.node("Div", [g.node("MatMul", [q, k]), g.weight(np.float32(np.sqrt(size)))])
    if mask is not None:
        scores = g.node("Add", [scores, g.weight(mask)])
    mixed = g.node("MatMul", [g.node("Softmax", [scores], axis=-1), v])
    merged = g.node("Transpose", [mixed], perm=[0, 2, 1, 3])
    flat = g.node("Reshape", [merged, g.weight(np.array([batch, length, hidden], np.int64))])
    return g.linear(flat, hidden, hidden)


def _before(
    g: Graph, x: str, batch: int, length: int, hidden: int, heads: int, mask: np.ndarray | None, act: str
) -> str:
    """A layer whose norms stand before attention and perceptron (ViT, GPT-2)."""
    y = g.layer_norm(x, hidden)
    x = g.node("Add", [x, attention(g, y, batch, length, hidden, heads, mask)])
    y = g.linear(g.layer_norm(x, hidden), hidden, 4 * hidden)
    y = g.gelu(y) if act == "erf" else g.gelu_tanh(y)
    return g.node("Add", [x, g.linear(y, 4 * hidden, hidden)])


def vit_tiny(batch: int = 1, layers: int = 12, hidden: int = 192, heads: int = 3) -> onnx.ModelProto:
    """ViT-tiny (Dosovitskiy et al. 2020, arXiv:2010.11929; arXiv:2012.12877): patches of 16 x 16."""
    g, length = Graph(), 197
    patches = g.conv2("data", 3, hidden, (16, 16), 16, False, bias=True)
    flat = g.node("Reshape", [patches, g.weight(np.array([batch, hidden, length - 1], np.int64))])
    tokens = g.node("Transpose", [flat], perm=[0, 2, 1])
    x = g.node("Concat", [g.normal((batch, 1, hidden), 0.02), tokens], axis=1)
    x = g.node("Add", [x, g.normal((1, length, hidden), 0.02)])
    for _ in range(layers):
        x = _before(g, x, batch, length, hidden, heads, None, "erf")
    x = g.node("Gather", [g.layer_norm(x, hidden), g.weight(np.int64(0))], axis=1)
    return g.model(g.gemm(x, hidden, 1000), (batch, 3, 224, 224))


def gpt2(batch: int = 1, layers: int = 4, length: int = 64, hidden: int = 768, heads: int = 12) -> onnx.ModelProto:
    """Layers of GPT-2 (Radford et al. 2019) over embeddings: causal, logits of 8192 tokens at every position."""
    g, x = Graph(), "data"
    mask = np.triu(np.full((1, 1, length, length), -1e9, np.float32), 1)
    for _ in range(layers):
        x = _before(g, x, batch, length, hidden, heads, mask, "tanh")
    logits = g.node("MatMul", [g.layer_norm(x, hidden), g.normal((hidden, 8192), np.sqrt(1.0 / hidden))])
    return g.model(logits, (batch, length, hidden))


def recurrent(op_type: str, layers: int = 1, length: int = 50, size: int = 128, hidden: int = 256) -> onnx.ModelProto:
    """``LSTM`` or ``GRU`` layers over (length, batch 1, size)."""
    g, x, gates = Graph(), "data", {"LSTM": 4, "GRU": 3}[op_type]
    for layer in range(layers):
        before = hidden if layer else size
        kernels = [g.normal((1, gates * hidden, n), np.sqrt(1.0 / hidden)) for n in (before, hidden)]
        y = g.node(op_type, [x, *kernels, g.normal((1, 2 * gates * hidden), 0.1)], hidden_size=hidden)
        x = g.node("Squeeze", [y, g.weight(np.array([1], np.int64))])
    return g.model(x, (length, 1, size))


def mlp(batch: int = 1) -> onnx.ModelProto:
    """784, 512, 512 and 10 units with rectifiers."""
    g = Graph()
    x = g.node("Relu", [g.gemm("data", 784, 512)])
    x = g.node("Relu", [g.gemm(x, 512, 512)])
    return g.model(g.gemm(x, 512, 10), (batch, 784))
