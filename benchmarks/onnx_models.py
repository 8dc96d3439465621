"""The benchmark's models, built as ONNX: ``WORKLOADS``, which every command takes, and ``NETWORKS``, all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx

from benchmarks.graph import Graph
from benchmarks.sequences import bert, gpt2, mlp, recurrent, vit_tiny
from benchmarks.vision import densenet121, efficientnet_b0, espcn, inception_v3, mobilenet_v3_small, unet, vgg16


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

NETWORKS = WORKLOADS | {
    w.name: w
    for w in (
        Workload("mobilenet_v3_small", mobilenet_v3_small, 0.113),
        Workload("efficientnet_b0", efficientnet_b0, 0.772),
        Workload("vgg16", vgg16, 30.9),
        Workload("densenet121", densenet121, 5.67),
        Workload("inception_v3", inception_v3, 11.4),
        Workload("unet_256", unet, 24.1),
        Workload("espcn_x3", espcn, 5.97),
        Workload("vit_tiny", vit_tiny, 2.51),
        Workload("bert_base_s128", lambda: bert(12), 22.3),
        Workload("gpt2_4layers_s64", gpt2, 4.48),
        Workload("lstm", lambda: recurrent("LSTM"), 0.039),
        Workload("gru2", lambda: recurrent("GRU", 2), 0.069),
        Workload("mlp_b1", mlp, 0.0013),
        Workload("mlp_b64", lambda: mlp(64), 0.0856),
    )
}
