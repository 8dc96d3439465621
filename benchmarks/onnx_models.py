"""The benchmark's models, built as ONNX here: He-initialised, batch-norm statistics that are not trivial."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17


class Graph:
    """Nodes and weights of one model; every method appends a node and returns the name of its output."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def node(self, op_type: str, inputs: Sequence[str], **attributes: Any) -> str:
        name = f"{op_type.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [f"{name}_out"], name, **attributes))
        return f"{name}_out"

    def weight(self, array: np.ndarray) -> str:
        name = f"weight_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def normal(self, shape: Sequence[int], scale: float) -> str:
        return self.weight(self.rng.normal(0, scale, shape).astype(np.float32))

    def conv(
        self, x: str, before: int, after: int, size: int, stride: int = 1, groups: int = 1, bias: bool = False
    ) -> str:
        fan_in = before // groups * size * size
        inputs = [x, self.normal((after, before // groups, size, size), np.sqrt(2.0 / fan_in))]
        if bias:
            inputs.append(self.normal((after,), 0.1))
        pad = size // 2
        return self.node(
            "Conv",
            inputs,
            kernel_shape=[size, size],
            strides=[stride, stride],
            pads=[pad] * 4,
            group=groups,
        )

    def norm(self, x: str, channels: int, scale: float = 1.0) -> str:
        gamma = self.weight((scale * self.rng.uniform(0.5, 1.5, channels)).astype(np.float32))
        variance = self.weight(self.rng.uniform(0.5, 1.5, channels).astype(np.float32))
        beta, mean = self.normal((channels,), 0.1), self.normal((channels,), 0.1)
        return self.node("BatchNormalization", [x, gamma, beta, mean, variance])

    def relu6(self, x: str) -> str:
        return self.node("Clip", [x, self.weight(np.float32(0)), self.weight(np.float32(6))])

    def linear(self, x: str, before: int, after: int) -> str:
        product = self.node("MatMul", [x, self.normal((before, after), np.sqrt(1.0 / before))])
        return self.node("Add", [product, self.normal((after,), 0.1)])

    def classify(self, x: str, channels: int, classes: int = 1000) -> str:
        flat = self.node("Flatten", [self.node("GlobalAveragePool", [x])])
        weight = self.normal((classes, channels), np.sqrt(1.0 / channels))
        return self.node("Gemm", [flat, weight, self.normal((classes,), 0.1)], transB=1)

    def model(self, result: str, input_shape: Sequence[int]) -> onnx.ModelProto:
        given = helper.make_tensor_value_info("data", TensorProto.FLOAT, list(input_shape))
        self.nodes.append(helper.make_node("Identity", [result], ["output"], "output"))
        made = helper.make_tensor_value_info("output", TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "benchmark", [given], [made], self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
        return onnx.shape_inference.infer_shapes(model)


def resnet(layers: int, batch: int = 1) -> onnx.ModelProto:
    """ResNet-18 or -50 (He et al. 2015, arXiv:1512.03385), stride in the 3x3 convolution."""
    units = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}[layers]
    g = Graph()
    x = g.node("Relu", [g.norm(g.conv("data", 3, 64, 7, 2), 64)])
    x = g.node("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = 64
    for stage, count in enumerate(units):
        width = 64 * 2**stage
        for unit in range(count):
            stride = 2 if stage and not unit else 1
            block = _basic if layers == 18 else _bottleneck
            x, channels = block(g, x, channels, width, stride)
    return g.model(g.classify(x, channels), (batch, 3, 224, 224))


def _shortcut(g: Graph, x: str, before: int, after: int, stride: int) -> str:
    return x if before == after and stride == 1 else g.norm(g.conv(x, before, after, 1, stride), after)


def _basic(g: Graph, x: str, before: int, width: int, stride: int) -> tuple[str, int]:
    y = g.node("Relu", [g.norm(g.conv(x, before, width, 3, stride), width)])
    y = g.norm(g.conv(y, width, width, 3), width, scale=0.5)
    return g.node("Relu", [g.node("Add", [y, _shortcut(g, x, before, width, stride)])]), width


def _bottleneck(g: Graph, x: str, before: int, width: int, stride: int) -> tuple[str, int]:
    after = 4 * width
    y = g.node("Relu", [g.norm(g.conv(x, before, width, 1), width)])
    y = g.node("Relu", [g.norm(g.conv(y, width, width, 3, stride), width)])
    y = g.norm(g.conv(y, width, after, 1), after, scale=0.5)
    return g.node("Relu", [g.node("Add", [y, _shortcut(g, x, before, after, stride)])]), after


def mobilenet_v2(batch: int = 1) -> onnx.ModelProto:
    """MobileNetV2 (Sandler et al. 2018, arXiv:1801.04381)."""
    blocks = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    g = Graph()
    x, channels = g.relu6(g.norm(g.conv("data", 3, 32, 3, 2), 32)), 32
    for expansion, after, repeats, first in blocks:
        for repeat in range(repeats):
            stride = first if not repeat else 1
            width, y = channels * expansion, x
            if expansion > 1:
                y = g.relu6(g.norm(g.conv(y, channels, width, 1), width))
            y = g.relu6(g.norm(g.conv(y, width, width, 3, stride, groups=width), width))
            y = g.norm(g.conv(y, width, after, 1), after)
            x = g.node("Add", [y, x]) if stride == 1 and channels == after else y
            channels = after
    x = g.relu6(g.norm(g.conv(x, channels, 1280, 1), 1280))
    return g.model(g.classify(x, 1280), (batch, 3, 224, 224))


def squeezenet(batch: int = 1) -> onnx.ModelProto:
    """SqueezeNet 1.1 (Iandola et al. 2016, arXiv:1602.07360)."""
    fires = ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))
    g = Graph()
    x, channels = g.node("Relu", [g.conv("data", 3, 64, 3, 2, bias=True)]), 64
    for i, (squeeze, expand) in enumerate(fires):
        if i in (0, 2, 4):
            x = g.node("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2])
        s = g.node("Relu", [g.conv(x, channels, squeeze, 1, bias=True)])
        left = g.node("Relu", [g.conv(s, squeeze, expand, 1, bias=True)])
        right = g.node("Relu", [g.conv(s, squeeze, expand, 3, bias=True)])
        x, channels = g.node("Concat", [left, right], axis=1), 2 * expand
    x = g.node("Relu", [g.conv(x, channels, 1000, 1, bias=True)])
    return g.model(g.node("Flatten", [g.node("GlobalAveragePool", [x])]), (batch, 3, 224, 224))


def bert(layers: int = 4, batch: int = 1, length: int = 128, hidden: int = 768, heads: int = 12) -> onnx.ModelProto:
    """A stack of BERT-base encoder layers (Devlin et al. 2018, arXiv:1810.04805) over embeddings."""
    g = Graph()
    x = "data"
    for _ in range(layers):
        x = _layer_norm(g, g.node("Add", [x, _attention(g, x, batch, length, hidden, heads)]), hidden)
        y = g.linear(x, hidden, 4 * hidden)
        y = g.linear(_gelu(g, y), 4 * hidden, hidden)
        x = _layer_norm(g, g.node("Add", [x, y]), hidden)
    return g.model(x, (batch, length, hidden))


def _layer_norm(g: Graph, x: str, hidden: int) -> str:
    gamma = g.weight(g.rng.uniform(0.5, 1.5, hidden).astype(np.float32))
    return g.node("LayerNormalization", [x, gamma, g.normal((hidden,), 0.1)], axis=-1, epsilon=1e-12)


def _gelu(g: Graph, x: str) -> str:
    scaled = g.node("Div", [x, g.weight(np.float32(np.sqrt(2)))])
    plus = g.node("Add", [g.node("Erf", [scaled]), g.weight(np.float32(1))])
    return g.node("Mul", [g.node("Mul", [x, plus]), g.weight(np.float32(0.5))])


def _attention(g: Graph, x: str, batch: int, length: int, hidden: int, heads: int) -> str:
    size = hidden // heads
    shape = g.weight(np.array([batch, length, heads, size], np.int64))

    def split(name: str, perm: list[int]) -> str:
        return g.node("Transpose", [g.node("Reshape", [name, shape])], perm=perm)

    q = split(g.linear(x, hidden, hidden), [0, 2, 1, 3])
    k = split(g.linear(x, hidden, hidden), [0, 2, 3, 1])
    v = split(g.linear(x, hidden, hidden), [0, 2, 1, 3])
    scores = g.node("Div", [g.node("MatMul", [q, k]), g.weight(np.float32(np.sqrt(size)))])
    mixed = g.node("MatMul", [g.node("Softmax", [scores], axis=-1), v])
    merged = g.node("Transpose", [mixed], perm=[0, 2, 1, 3])
    flat = g.node("Reshape", [merged, g.weight(np.array([batch, length, hidden], np.int64))])
    return g.linear(flat, hidden, hidden)


@dataclass(frozen=True)
class Workload:
    name: str
    build: Callable[[], onnx.ModelProto]
    gflop: float  # multiply-adds of convolutions and products, times two


WORKLOADS = {
    w.name: w
    for w in (
        Workload("resnet18", lambda: resnet(18), 3.63),
        Workload("resnet50", lambda: resnet(50), 8.18),
        Workload("mobilenet_v2", mobilenet_v2, 0.602),
        Workload("squeezenet1_1", squeezenet, 0.698),
        Workload("bert_base_4layers_s128", bert, 7.45),
    )
}
