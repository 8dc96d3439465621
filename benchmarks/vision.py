"""Networks of images, built as ONNX: VGG, U-Net, ESPCN, Inception, DenseNet and those with squeeze and excitation."""

from __future__ import annotations

import numpy as np
import onnx

from benchmarks.graph import Graph


def vgg16(batch: int = 1) -> onnx.ModelProto:
    """VGG-16 (Simonyan and Zisserman 2014, arXiv:1409.1556, configuration D)."""
    g, x, channels = Graph(), "data", 3
    for width, repeats in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(repeats):
            x, channels = g.node("Relu", [g.conv(x, channels, width, 3, bias=True)]), width
        x = g.node("MaxPool", [x], kernel_shape=[2, 2], strides=[2, 2])
    x = g.node("Flatten", [x])
    x = g.node("Relu", [g.gemm(x, 512 * 49, 4096)])
    x = g.node("Relu", [g.gemm(x, 4096, 4096)])
    return g.model(g.gemm(x, 4096, 1000), (batch, 3, 224, 224))


def unet(batch: int = 1, size: int = 256, width: int = 32) -> onnx.ModelProto:
    """U-Net (Ronneberger et al. 2015, arXiv:1505.04597) with padding and batch norm, 32 to 512 channels."""
    g, x, channels = Graph(), "data", 3
    kept = []
    for level in range(4):
        x, channels = _pair(g, x, channels, width << level), width << level
        kept.append((x, channels))
        x = g.node("MaxPool", [x], kernel_shape=[2, 2], strides=[2, 2])
    x, channels = _pair(g, x, channels, width << 4), width << 4
    for skip, after in reversed(kept):
        weight = g.normal((channels, after, 2, 2), np.sqrt(1.0 / channels))
        up = g.node("ConvTranspose", [x, weight, g.normal((after,), 0.1)], kernel_shape=[2, 2], strides=[2, 2])
        x, channels = _pair(g, g.node("Concat", [up, skip], axis=1), 2 * after, after), after
    return g.model(g.conv(x, channels, 1, 1, bias=True), (batch, 3, size, size))


def _pair(g: Graph, x: str, before: int, after: int) -> str:
    x = g.node("Relu", [g.norm(g.conv(x, before, after, 3), after)])
    return g.node("Relu", [g.norm(g.conv(x, after, after, 3), after)])


def espcn(batch: int = 1, scale: int = 3) -> onnx.ModelProto:
    """ESPCN (Shi et al. 2016, arXiv:1609.05158) as PyTorch's example has it: 224 x 224 to 672 x 672."""
    g, x, channels = Graph(), "data", 1
    for width, size in ((64, 5), (64, 3), (32, 3)):
        x, channels = g.node("Relu", [g.conv(x, channels, width, size, bias=True)]), width
    x = g.conv(x, channels, scale * scale, 3, bias=True)
    return g.model(g.node("DepthToSpace", [x], blocksize=scale, mode="CRD"), (batch, 1, 224, 224))


def densenet121(batch: int = 1, growth: int = 32) -> onnx.ModelProto:
    """DenseNet-121 (Huang et al. 2016, arXiv:1608.06993)."""
    g = Graph()
    x = g.node("Relu", [g.norm(g.conv("data", 3, 64, 7, 2), 64)])
    x, channels = g.node("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4), 64
    for block, layers in enumerate((6, 12, 24, 16)):
        for _ in range(layers):
            y = g.conv(g.node("Relu", [g.norm(x, channels)]), channels, 4 * growth, 1)
            y = g.conv(g.node("Relu", [g.norm(y, 4 * growth)]), 4 * growth, growth, 3)
            x, channels = g.node("Concat", [x, y], axis=1), channels + growth
        x = g.node("Relu", [g.norm(x, channels)])
        if block < 3:
            x, channels = g.conv(x, channels, channels // 2, 1), channels // 2
            x = g.node("AveragePool", [x], kernel_shape=[2, 2], strides=[2, 2])
    return g.model(g.classify(x, channels), (batch, 3, 224, 224))


def _excite(g: Graph, x: str, channels: int, squeezed: int, inner: str, gate: str) -> str:
    """Squeeze and excitation (Hu et al. 2017, arXiv:1709.01507)."""
    y = g.activate(g.conv(g.node("GlobalAveragePool", [x]), channels, squeezed, 1, bias=True), inner)
    return g.node("Mul", [x, g.activate(g.conv(y, squeezed, channels, 1, bias=True), gate)])


def mobilenet_v3_small(batch: int = 1) -> onnx.ModelProto:
    """MobileNetV3-small (Howard et al. 2019, arXiv:1905.02244, table 2)."""
    # kernel, expanded, out, squeeze and excite, activation, stride
    blocks = (
        (3, 16, 16, True, "Relu", 2),
        (3, 72, 24, False, "Relu", 2),
        (3, 88, 24, False, "Relu", 1),
        (5, 96, 40, True, "HardSwish", 2),
        (5, 240, 40, True, "HardSwish", 1),
        (5, 240, 40, True, "HardSwish", 1),
        (5, 120, 48, True, "HardSwish", 1),
        (5, 144, 48, True, "HardSwish", 1),
        (5, 288, 96, True, "HardSwish", 2),
        (5, 576, 96, True, "HardSwish", 1),
        (5, 576, 96, True, "HardSwish", 1),
    )
    g = Graph()
    x, channels = g.activate(g.norm(g.conv("data", 3, 16, 3, 2), 16), "HardSwish"), 16
    for size, width, after, excited, activation, stride in blocks:
        y = x
        if width != channels:
            y = g.activate(g.norm(g.conv(y, channels, width, 1), width), activation)
        y = g.activate(g.norm(g.conv(y, width, width, size, stride, groups=width), width), activation)
        if excited:
            y = _excite(g, y, width, max(8, (width // 4 + 4) // 8 * 8), "Relu", "HardSigmoid")
        y = g.norm(g.conv(y, width, after, 1), after)
        x = g.node("Add", [y, x]) if stride == 1 and channels == after else y
        channels = after
    x = g.activate(g.norm(g.conv(x, channels, 576, 1), 576), "HardSwish")
    x = g.activate(g.gemm(g.node("Flatten", [g.node("GlobalAveragePool", [x])]), 576, 1024), "HardSwish")
    return g.model(g.gemm(x, 1024, 1000), (batch, 3, 224, 224))


def efficientnet_b0(batch: int = 1) -> onnx.ModelProto:
    """EfficientNet-B0 (Tan and Le 2019, arXiv:1905.11946): swish written as ``x * sigmoid(x)``."""
    blocks = (
        (1, 16, 1, 1, 3),
        (6, 24, 2, 2, 3),
        (6, 40, 2, 2, 5),
        (6, 80, 3, 2, 3),
        (6, 112, 3, 1, 5),
        (6, 192, 4, 2, 5),
        (6, 320, 1, 1, 3),
    )
    g = Graph()
    x, channels = g.activate(g.norm(g.conv("data", 3, 32, 3, 2), 32), "Swish"), 32
    for expansion, after, repeats, first, size in blocks:
        for repeat in range(repeats):
            stride, width, y = (1 if repeat else first), channels * expansion, x
            if expansion > 1:
                y = g.activate(g.norm(g.conv(y, channels, width, 1), width), "Swish")
            y = g.activate(g.norm(g.conv(y, width, width, size, stride, groups=width), width), "Swish")
            y = _excite(g, y, width, max(1, channels // 4), "Swish", "Sigmoid")
            y = g.norm(g.conv(y, width, after, 1), after)
            x = g.node("Add", [y, x]) if stride == 1 and channels == after else y
            channels = after
    x = g.activate(g.norm(g.conv(x, channels, 1280, 1), 1280), "Swish")
    return g.model(g.classify(x, 1280), (batch, 3, 224, 224))


class _Inception:
    """The modules of Inception-v3: branches side by side, their channels joined."""

    def __init__(self) -> None:
        self.g = Graph()

    def unit(self, x: str, before: int, after: int, kernel: tuple[int, int], stride: int = 1, same: bool = True) -> str:
        y = self.g.conv2(x, before, after, kernel, stride, same)
        return self.g.node("Relu", [self.g.norm(y, after)])

    def chain(self, x: str, before: int, *units: tuple[int, tuple[int, int]]) -> str:
        for after, kernel in units:
            x, before = self.unit(x, before, after, kernel), after
        return x

    def pool(self, x: str) -> str:
        return self.g.node("AveragePool", [x], kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4, count_include_pad=1)

    def shrunk(self, x: str) -> str:
        return self.g.node("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2])

    def join(self, *branches: str) -> str:
        return self.g.node("Concat", list(branches), axis=1)

    def a(self, x: str, before: int, pooled: int) -> str:
        five = self.chain(x, before, (48, (1, 1)), (64, (5, 5)))
        three = self.chain(x, before, (64, (1, 1)), (96, (3, 3)), (96, (3, 3)))
        one = self.unit(x, before, 64, (1, 1))
        return self.join(one, five, three, self.unit(self.pool(x), before, pooled, (1, 1)))

    def b(self, x: str, before: int) -> str:
        double = self.chain(x, before, (64, (1, 1)), (96, (3, 3)))
        direct = self.unit(x, before, 384, (3, 3), 2, False)
        return self.join(direct, self.unit(double, 96, 96, (3, 3), 2, False), self.shrunk(x))

    def c(self, x: str, w: int) -> str:
        seven = self.chain(x, 768, (w, (1, 1)), (w, (1, 7)), (192, (7, 1)))
        double = self.chain(x, 768, (w, (1, 1)), (w, (7, 1)), (w, (1, 7)), (w, (7, 1)), (192, (1, 7)))
        one = self.unit(x, 768, 192, (1, 1))
        return self.join(one, seven, double, self.unit(self.pool(x), 768, 192, (1, 1)))

    def d(self, x: str) -> str:
        three = self.unit(self.unit(x, 768, 192, (1, 1)), 192, 320, (3, 3), 2, False)
        seven = self.chain(x, 768, (192, (1, 1)), (192, (1, 7)), (192, (7, 1)))
        return self.join(three, self.unit(seven, 192, 192, (3, 3), 2, False), self.shrunk(x))

    def e(self, x: str, before: int) -> str:
        three = self.unit(x, before, 384, (1, 1))
        double = self.chain(x, before, (448, (1, 1)), (384, (3, 3)))
        wide = [self.unit(y, 384, 384, kernel) for y in (three, double) for kernel in ((1, 3), (3, 1))]
        one = self.unit(x, before, 320, (1, 1))
        return self.join(one, *wide, self.unit(self.pool(x), before, 192, (1, 1)))


def inception_v3(batch: int = 1) -> onnx.ModelProto:
    """Inception-v3 (Szegedy et al. 2015, arXiv:1512.00567) without its auxiliary classifier, 299 x 299."""
    m = _Inception()
    x = m.unit("data", 3, 32, (3, 3), 2, False)
    x = m.unit(m.unit(x, 32, 32, (3, 3), 1, False), 32, 64, (3, 3))
    x = m.unit(m.shrunk(x), 64, 80, (1, 1), 1, False)
    x = m.shrunk(m.unit(x, 80, 192, (3, 3), 1, False))
    x = m.a(m.a(m.a(x, 192, 32), 256, 64), 288, 64)
    x = m.b(x, 288)
    for width in (128, 160, 160, 192):
        x = m.c(x, width)
    x = m.e(m.e(m.d(x), 1280), 2048)
    return m.g.model(m.g.classify(x, 2048), (batch, 3, 299, 299))
