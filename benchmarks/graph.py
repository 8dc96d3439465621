"""The builder of the benchmark's models: He-initialised, batch-norm statistics that are not trivial."""

from __future__ import annotations

from collections.abc import Sequence
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
        self.weights.append(numpy_helper.from_array(np.array(array, order="C"), name))
        return name

    def normal(self, shape: Sequence[int], scale: float) -> str:
        return self.weight(self.rng.normal(0, scale, shape).astype(np.float32))

    def conv(
        self, x: str, before: int, after: int, size: int, stride: int = 1, groups: int = 1, bias: bool = False
    ) -> str:
        return self.conv2(x, before, after, (size, size), stride, groups=groups, bias=bias)

    def conv2(
        self,
        x: str,
        before: int,
        after: int,
        kernel: tuple[int, int],
        stride: int = 1,
        same: bool = True,
        groups: int = 1,
        bias: bool = False,
    ) -> str:
        fan_in = before // groups * kernel[0] * kernel[1]
        inputs = [x, self.normal((after, before // groups, *kernel), np.sqrt(2.0 / fan_in))]
        if bias:
            inputs.append(self.normal((after,), 0.1))
        pads = [size // 2 if same else 0 for size in kernel] * 2
        return self.node("Conv", inputs, kernel_shape=kernel, strides=[stride, stride], pads=pads, group=groups)

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

    def gemm(self, x: str, before: int, after: int) -> str:
        weight = self.normal((after, before), np.sqrt(1.0 / before))
        return self.node("Gemm", [x, weight, self.normal((after,), 0.1)], transB=1)

    def activate(self, x: str, kind: str) -> str:
        """``kind``: an operator of one input, or ``Swish``, which opset 17 has no operator for."""
        if kind == "Swish":
            return self.node("Mul", [x, self.node("Sigmoid", [x])])
        attributes = {"alpha": 1 / 6} if kind == "HardSigmoid" else {}
        return self.node(kind, [x], **attributes)

    def layer_norm(self, x: str, hidden: int) -> str:
        gamma = self.weight(self.rng.uniform(0.5, 1.5, hidden).astype(np.float32))
        return self.node("LayerNormalization", [x, gamma, self.normal((hidden,), 0.1)], axis=-1, epsilon=1e-12)

    def gelu(self, x: str) -> str:
        scaled = self.node("Div", [x, self.weight(np.float32(np.sqrt(2)))])
        plus = self.node("Add", [self.node("Erf", [scaled]), self.weight(np.float32(1))])
        return self.node("Mul", [self.node("Mul", [x, plus]), self.weight(np.float32(0.5))])

    def gelu_tanh(self, x: str) -> str:
        cubed = self.node("Mul", [self.node("Pow", [x, self.weight(np.float32(3))]), self.weight(np.float32(0.044715))])
        inner = self.node("Mul", [self.node("Add", [x, cubed]), self.weight(np.float32(np.sqrt(2 / np.pi)))])
        plus = self.node("Add", [self.node("Tanh", [inner]), self.weight(np.float32(1))])
        return self.node("Mul", [self.node("Mul", [x, self.weight(np.float32(0.5))]), plus])

    def classify(self, x: str, channels: int, classes: int = 1000) -> str:
        flat = self.node("Flatten", [self.node("GlobalAveragePool", [x])])
        return self.gemm(flat, channels, classes)

    def model(self, result: str, input_shape: Sequence[int]) -> onnx.ModelProto:
        given = helper.make_tensor_value_info("data", TensorProto.FLOAT, list(input_shape))
        self.nodes.append(helper.make_node("Identity", [result], ["output"], "output"))
        made = helper.make_tensor_value_info("output", TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "benchmark", [given], [made], self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
        return onnx.shape_inference.infer_shapes(model)
