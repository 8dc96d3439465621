"""The networks, with random weights: only building them needs PyTorch (the extra ``models``)."""

from __future__ import annotations

import importlib
import pathlib
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import nn

from benchmarks import worker

Made: TypeAlias = tuple[nn.Module, tuple[torch.Tensor, ...]]


class First(nn.Module):
    """The first result of a network that has several, or names them."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, *inputs: torch.Tensor) -> Any:
        found = self.network(*inputs)
        return found[next(iter(found))] if isinstance(found, dict) else found[0]


def _image(size: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(1, 3, size, size),)


def _torchvision(name: str, size: int = 224, **options: Any) -> Made:
    return importlib.import_module("torchvision.models").get_model(name, weights=None, **options), _image(size)


def _segmentation(name: str, size: int) -> Made:
    network, images = _torchvision(name, size, weights_backbone=None)
    return First(network), images


def _timm(name: str, size: int = 224) -> Made:
    return importlib.import_module("timm").create_model(name), _image(size)


def _transformer(name: str, inputs: Sequence[torch.Tensor], part: str = "", **config: Any) -> Made:
    made_by = getattr(importlib.import_module("transformers"), name)
    network = made_by(made_by.config_class(**config))
    return First(network.get_submodule(part)), tuple(inputs)


_WHISPER = {
    "d_model": 512,
    "encoder_layers": 6,
    "num_hidden_layers": 6,
    "encoder_attention_heads": 8,
    "encoder_ffn_dim": 2048,
    "decoder_layers": 1,
    "decoder_attention_heads": 8,
}
"""Its base encoder."""


def _whisper() -> Made:
    return _transformer("WhisperModel", [torch.randn(1, 80, 3000)], "encoder", **_WHISPER)


def _wav2vec2() -> Made:
    return _transformer("Wav2Vec2Model", [torch.randn(1, 16000)], attn_implementation="eager")


def _distilbert() -> Made:
    words = torch.randint(0, 30000, (1, 128)), torch.ones(1, 128, dtype=torch.long)
    return _transformer("DistilBertModel", words, attn_implementation="eager")


NETWORKS: dict[str, Callable[[], Made]] = {
    "convnext_tiny": partial(_torchvision, "convnext_tiny"),
    "deeplabv3_mobilenet_v3_large": partial(_segmentation, "deeplabv3_mobilenet_v3_large", 256),
    "distilbert_s128": _distilbert,
    "efficientnet_v2_s": partial(_torchvision, "efficientnet_v2_s"),
    "ghostnet": partial(_timm, "ghostnet_100"),
    "googlenet": partial(_torchvision, "googlenet", aux_logits=False, init_weights=False),
    "hrnet_w18_small": partial(_timm, "hrnet_w18_small"),
    "mixer_s16": partial(_timm, "mixer_s16_224"),
    "mnasnet1_0": partial(_torchvision, "mnasnet1_0"),
    "mobilevit_s": partial(_timm, "mobilevit_s", 256),
    "poolformer_s12": partial(_timm, "poolformer_s12"),
    "pvt_v2_b0": partial(_timm, "pvt_v2_b0"),
    "regnet_y_1_6gf": partial(_torchvision, "regnet_y_1_6gf"),
    "repvgg_a0": partial(_timm, "repvgg_a0"),
    "resnext50_32x4d": partial(_torchvision, "resnext50_32x4d"),
    "shufflenet_v2_x1_0": partial(_torchvision, "shufflenet_v2_x1_0"),
    "swin_t": partial(_torchvision, "swin_t"),
    "vit_b_16": partial(_torchvision, "vit_b_16"),
    "wav2vec2_base_1s": _wav2vec2,
    "whisper_base_encoder": _whisper,
}


def build(folder: pathlib.Path, names: Sequence[str], say: Callable[[str], None]) -> None:
    """Export those that the folder lacks, each with its inputs beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.backends.mha.set_fastpath_enabled(False)  # the exporter does not know the operator
    for name in names or NETWORKS:
        path = folder / f"{name}.onnx"
        if not path.exists():
            torch.manual_seed(0)
            network, inputs = NETWORKS[name]()
            _normalise(network.eval())
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                titles = [f"x{i}" for i in range(len(inputs))]
                torch.onnx.export(network, inputs, path, input_names=titles, dynamo=False, opset_version=17)
            worker.save_feeds(path, {title: x.numpy() for title, x in zip(titles, inputs, strict=True)})
            say(f"{path.name}: exported")


def _normalise(network: nn.Module) -> None:
    """Statistics of batch norms that are not trivial."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_var is not None and module.running_mean is not None
            module.running_var.uniform_(0.5, 1.5)
            module.running_mean.normal_(0, 0.1)
