"""Networks of the sizes that are published, with random weights: what a first compilation is measured with."""

from __future__ import annotations

from functools import partial

from torch import nn

from benchmarks.open_models.exporting import DYNAMO, LEGACY, Flat, Model
from benchmarks.open_models.models import network

_IDS = {"input_ids": "int64<49152 batch seq", "attention_mask": "int64=1 batch seq"}


def _swin() -> nn.Module:
    from torchvision.models import swin_t

    made: nn.Module = swin_t(weights=None)
    return made


def _smollm() -> nn.Module:
    made = network(
        "LlamaForCausalLM",
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    return Flat(made, list(_IDS), use_cache=False)


LARGE: dict[str, Model] = {
    "swin_t": Model(_swin, {"x": "float32 1 3 224 224"}, {"batch": [1]}, (LEGACY,)),
    "hifigan_full": Model(
        partial(network, "SpeechT5HifiGan"), {"spectrogram": "float32 frames 80"}, {"frames": [60, 70]}, (LEGACY,)
    ),
    "smollm": Model(_smollm, _IDS, {"batch": [1], "seq": [16, 20]}, (DYNAMO,)),
}
