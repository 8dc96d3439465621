"""Six networks of PyTorch, at the sizes that they are used at, and small ones for tests; their weights are random."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import nn

Network: TypeAlias = tuple[nn.Module, Callable[[int], torch.Tensor]]
"""A network in inference mode, and inputs for it, by batch."""


class Residual(nn.Module):
    """ResNet's basic block."""

    def __init__(self, width: int, wide: int, stride: int = 1) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(width, wide, 3, stride, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(wide, wide, 3, 1, 1, bias=False), nn.BatchNorm2d(wide))
        self.short = nn.Conv2d(width, wide, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.short(x) + self.second(self.first(x)))


class Inverted(nn.Module):
    """MobileNetV3's block: depthwise, with squeeze and excitation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        wide = 4 * width
        self.expand = nn.Sequential(nn.Conv2d(width, wide, 1), nn.BatchNorm2d(wide), nn.ReLU6())
        self.depth = nn.Sequential(nn.Conv2d(wide, wide, 3, 1, 1, groups=wide), nn.BatchNorm2d(wide), nn.Hardswish())
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, 8, 1), nn.SiLU(), nn.Conv2d(8, wide, 1))
        self.project = nn.Conv2d(wide, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.depth(self.expand(x))
        return x + self.project(y * torch.sigmoid(self.gate(y)))


class UNet(nn.Module):
    """One level of a U-Net."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down, self.deep = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 2 * width, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(2 * width, width, 2, 2), nn.Conv2d(2 * width, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        high = torch.relu(self.down(x))
        low = torch.relu(self.deep(nn.functional.max_pool2d(high, 2)))
        smooth = nn.functional.interpolate(low, scale_factor=2.0, mode="bilinear", align_corners=False)
        return self.out(torch.cat([high + smooth[:, : high.shape[1]], self.up(low)], 1))


class Recurrent(nn.Module):
    """Words, a bidirectional LSTM, a GRU, scores."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.words, self.gru = nn.Embedding(50, width), nn.GRU(2 * width, width, batch_first=True)
        self.lstm = nn.LSTM(width, width, batch_first=True, bidirectional=True)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        states, _ = self.lstm(self.words(ids))
        _, last = self.gru(states)
        return torch.log_softmax(last[-1], -1), states


class Decoder(nn.Module):
    """A block of a GPT: causal attention by ``scaled_dot_product_attention``."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        wide = [nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)]
        self.mlp = nn.Sequential(nn.LayerNorm(width), *wide)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


def _resnet(large: bool) -> Network:
    """ResNet-18 at 224 x 224, or three of its layers."""
    if not large:
        layers = [nn.Conv2d(3, 8, 3), Residual(8, 8), Residual(8, 8, 2), nn.Flatten(), nn.Linear(392, 10)]
        return _images(nn.Sequential(*layers), 16)
    stem = [nn.Conv2d(3, 64, 7, 2, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2)]
    blocks = [Residual(*shape) for shape in (*widths, (512, 512, 1))]
    return _images(nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)), 224)


def _mobilenet(large: bool) -> Network:
    width, blocks, size = (40, 6, 112) if large else (8, 1, 16)
    inner = [Inverted(width) for _ in range(blocks)]
    return _images(nn.Sequential(nn.Conv2d(3, width, 3, 4), *inner, nn.AdaptiveAvgPool2d(1), nn.Flatten()), size)


def _unet(large: bool) -> Network:
    return _images(UNet(32 if large else 8), 128 if large else 16)


def _recurrent(large: bool) -> Network:
    width, length = (128, 40) if large else (16, 7)
    return Recurrent(width).eval(), lambda batch: torch.randint(0, 50, (batch, length))


def _encoder(large: bool) -> Network:
    width, layers, length = (384, 6, 128) if large else (32, 2, 6)
    layer = nn.TransformerEncoderLayer(width, 4 if width < 64 else 12, 4 * width, batch_first=True)
    return _sequences(nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), width, length)


def _decoder(large: bool) -> Network:
    width, blocks, length = (256, 4, 128) if large else (32, 1, 9)
    return _sequences(nn.Sequential(*(Decoder(width) for _ in range(blocks))), width, length)


def _images(network: nn.Module, size: int) -> Network:
    return network.eval(), lambda batch: torch.randn(batch, 3, size, size)


def _sequences(network: nn.Module, width: int, length: int) -> Network:
    return network.eval(), lambda batch: torch.randn(batch, length, width)


NETWORKS: dict[str, Callable[[bool], Network]] = {
    "resnet": _resnet,
    "mobilenet": _mobilenet,
    "unet": _unet,
    "recurrent": _recurrent,
    "encoder": _encoder,
    "decoder": _decoder,
}
"""By name; true for the size that it is used at."""
