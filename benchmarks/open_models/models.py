"""The models: small configurations with random weights; each how it is made, what it takes which sizes it runs with.

PyTorch and the libraries that the networks come from are the extra ``models``; only building needs them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.open_models.exporting import DYNAMO, LEGACY, Cached, Flat, Model
from benchmarks.open_models.inputs import Sizes

BATCH: Sizes = {"batch": (2, 1, 3, 4)}
TEXT: Sizes = {**BATCH, "seq": (9, 16, 33, 5)}
PAIR: Sizes = {**TEXT, "target": (4, 7, 1, 12)}
STEP: Sizes = {"batch": (2, 1, 2, 3), "past": (7, 16, 33, 5), "seq": (3, 1, 1, 2)}
IMAGE: Sizes = {**BATCH, "height": (64, 96, 128, 64), "width": (64, 128, 96, 160)}
SOUND: Sizes = {**BATCH, "samples": (2000, 3200, 1700, 4001)}


# --- transformers -----------------------------------------------------------------------------------------------------

_SMALL = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
_IDS = {"input_ids": "int64<100 batch seq", "attention_mask": "int64=1 batch seq"}
_PIXELS = {"pixel_values": "float32 batch 3 height width"}
_WAVE = {"input_values": "float32 batch samples"}
_PATCHES = {"pixel_values": "float32 batch 3 64 64"}


def network(name: str, part: str | None = None, **config: Any) -> nn.Module:
    """One of transformers' classes, or a part of it."""
    made_by = getattr(importlib.import_module("transformers"), name)
    config_of = made_by.config_class
    network = made_by(config_of(**config, attn_implementation="eager"))
    return network if part is None else network.get_submodule(part)


def _flat(name: str, inputs: Mapping[str, str], part: str | None = None, **config: Any) -> nn.Module:
    return Flat(network(name, part, **config), list(inputs), return_dict=True)


def _text(name: str, inputs: Mapping[str, str] = _IDS, **config: Any) -> Model:
    return Model(partial(_flat, name, inputs, **{**_SMALL, **config}), inputs, TEXT)


def _vision(name: str, inputs: Mapping[str, str] = _PATCHES, part: str | None = None, **config: Any) -> Model:
    return Model(partial(_flat, name, inputs, part, **config), inputs, IMAGE if inputs is _PIXELS else BATCH)


def _sound(name: str, **config: Any) -> Model:
    return Model(partial(_flat, name, _WAVE, **config), _WAVE, SOUND)


def _pair(name: str, **config: Any) -> Model:
    """An encoder and a decoder, without a cache."""
    make = partial(_flat, name, _PAIR, **config)
    return Model(make, _PAIR, PAIR)


def _by(exporter: str, model: Model) -> Model:
    """One that the other exporter refuses."""
    return replace(model, exporters=(exporter,))


def _rows(name: str, inputs: Mapping[str, str], sizes: Sizes = TEXT, **config: Any) -> Model:
    return Model(partial(_flat, name, inputs, **config), inputs, sizes)


def _decoder(name: str, heads: int = 4, size: int = 8, **config: Any) -> Model:
    """With past keys and values: ``heads`` of ``size`` columns."""
    plain = {"input_ids": "int64<100 batch seq", "attention_mask": "int64=1 batch past+seq"}
    held = {f"past_{i}_{what}": f"float32 batch {heads} past {size}" for i in range(2) for what in ("key", "value")}
    settings = {**_SMALL, **config}

    def make() -> nn.Module:
        return Cached(network(name, **settings), list(plain))

    return Model(make, {**plain, **held}, STEP, (DYNAMO,))


_LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 64}
_CONVOLUTIONS = {"conv_dim": (32,) * 3, "conv_stride": (5, 2, 2), "conv_kernel": (10, 3, 2)}
_WAVES = {
    **_LAYERS,
    **_CONVOLUTIONS,
    "vocab_size": 40,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}
_PAIR = {"input_ids": "int64<100 batch seq", "decoder_input_ids": "int64<100 batch target"}
_T5 = {"vocab_size": 100, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
_BART = {
    "vocab_size": 100,
    "d_model": 32,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 1,
    **{
        f"{side}_{what}": n
        for side in ("encoder", "decoder")
        for what, n in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 64))
    },
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_IMAGES = {**_LAYERS, "image_size": 64, "patch_size": 16}
_STAGES = {"hidden_sizes": [8, 16, 32, 64], "depths": [1, 1, 1, 1]}
_EXPERTS = {"num_key_value_heads": 2, "num_experts_per_tok": 2, "experts_implementation": "batched_mm"}
_LONG: Sizes = {**BATCH, "samples": (4000, 6400, 3200, 5001)}
_CODEC = {"num_filters": 4, "hidden_size": 16, "codebook_size": 32, "codebook_dim": 16}
_UP = {"upsample_initial_channel": 32, "upsample_rates": [4, 4], "upsample_kernel_sizes": [8, 8]}
_VOICE = {"hidden_size": 32, "num_hidden_layers": 2, "ffn_dim": 64, "num_attention_heads": 2, "flow_size": 32}
_VOICE |= {"spectrogram_bins": 33, "noise_scale": 0.0, "noise_scale_duration": 0.0, **_UP}
_FEATURES = {"input_features": "float32 batch 16 64"}

TRANSFORMERS = {
    "bert": _text("BertModel"),
    "bert_tokens": _text("BertForTokenClassification"),
    "distilbert": _text("DistilBertModel", dim=32, n_layers=2, n_heads=4, hidden_dim=64),
    "roberta": _text("RobertaModel", max_position_embeddings=66),
    "albert": _text("AlbertModel", embedding_size=16),
    "electra": _text("ElectraModel", embedding_size=16),
    "deberta_v2": _text("DebertaV2Model", relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=16),
    "mpnet": _text("MPNetModel", max_position_embeddings=66),
    "modernbert": _text("ModernBertModel", pad_token_id=0),
    "squeezebert": _text("SqueezeBertModel", embedding_size=32),
    "mobilebert": _text("MobileBertModel", embedding_size=16, true_hidden_size=32, intra_bottleneck_size=32),
    "convbert": _text("ConvBertModel", embedding_size=16),
    "xlm_roberta_classes": _text("XLMRobertaForSequenceClassification", max_position_embeddings=66),
    "t5_encoder": _text("T5EncoderModel", **_T5),
    "t5": _pair("T5ForConditionalGeneration", **_T5, decoder_start_token_id=0),
    "bart": _pair("BartForConditionalGeneration", **_BART),
    "marian": _pair("MarianMTModel", **_BART),
    "m2m": _pair("M2M100ForConditionalGeneration", **_BART),
    "clip_text": _text("CLIPTextModel", eos_token_id=2),
    "clip_vision": _vision("CLIPVisionModel", **_IMAGES),
    "siglip_vision": _vision("SiglipVisionModel", **_IMAGES),
    "vit": _vision("ViTModel", **_IMAGES),
    "deit": _vision("DeiTModel", **_IMAGES),
    "beit": _vision("BeitModel", **_IMAGES),
    "dinov2": _vision("Dinov2Model", _PIXELS, **_LAYERS, image_size=64, patch_size=16),
    "swin": _vision("SwinModel", _PIXELS, image_size=64, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4),
    "swinv2": _vision("Swinv2Model", image_size=64, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4),
    "segformer": _vision(
        "SegformerForSemanticSegmentation",
        _PIXELS,
        hidden_sizes=[8, 16, 24, 32],
        depths=[1] * 4,
        decoder_hidden_size=16,
    ),
    "mobilevit": _vision(
        "MobileViTModel", _PIXELS, hidden_sizes=[16, 24, 32], neck_hidden_sizes=[8, 8, 16, 16, 24, 32, 64]
    ),
    "convnextv2": _vision("ConvNextV2Model", _PIXELS, **_STAGES),
    "poolformer": _vision("PoolFormerModel", _PIXELS, **_STAGES),
    "pvt": _vision(
        "PvtV2Model", _PIXELS, hidden_sizes=[8, 16, 24, 32], depths=[1] * 4, num_attention_heads=[1, 2, 3, 4]
    ),
    "yolos": _vision("YolosForObjectDetection", **{**_IMAGES, "image_size": [64, 64]}, num_detection_tokens=10),
    "detr": _vision(
        "DetrForObjectDetection",
        _PIXELS,
        use_timm_backbone=True,
        backbone="resnet18",
        use_pretrained_backbone=False,
        **{k: v for k, v in _BART.items() if "layers" in k or "ffn" in k or "d_model" in k or "heads" in k},
        num_queries=10,
    ),
    "rt_detr": _vision(
        "RTDetrForObjectDetection",
        num_queries=20,
        encoder_hidden_dim=32,
        d_model=32,
        decoder_layers=2,
        decoder_attention_heads=4,
        encoder_attention_heads=4,
        decoder_n_points=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        decoder_in_channels=[32, 32, 32],
    ),
    "upernet": _by(DYNAMO, _vision("UperNetForSemanticSegmentation", _PIXELS, hidden_size=16, pool_scales=[1, 2])),
    "wav2vec2": _sound("Wav2Vec2Model", **_WAVES),
    "wav2vec2_letters": _sound("Wav2Vec2ForCTC", **_WAVES),
    "hubert": _sound("HubertModel", **_WAVES),
    "wavlm": _sound("WavLMModel", **_WAVES, num_buckets=16),
    "whisper_encoder": _vision("WhisperModel", _FEATURES, "encoder", **_BART, num_mel_bins=16, max_source_positions=32),
    "audio_spectrogram": _vision(
        "ASTModel", {"input_values": "float32 batch 32 16"}, **_LAYERS, max_length=32, num_mel_bins=16
    ),
    "hifigan": _rows("SpeechT5HifiGan", {"spectrogram": "float32 batch seq 16"}, model_in_dim=16, **_UP),
    "encodec": _by(LEGACY, _rows("EncodecModel", {"input_values": "float32 batch 1 samples"}, _LONG, **_CODEC)),
    "vits": _by(LEGACY, _rows("VitsModel", {"input_ids": "int64<38 batch seq"}, **_VOICE)),
    "gpt2": _decoder("GPT2LMHeadModel", n_embd=32, n_layer=2, n_head=4, n_positions=64),
    "llama": _decoder("LlamaForCausalLM", 2, num_key_value_heads=2),
    "mistral": _decoder("MistralForCausalLM", 2, num_key_value_heads=2, sliding_window=None),
    "qwen2": _decoder("Qwen2ForCausalLM", 2, num_key_value_heads=2),
    "qwen3": _decoder("Qwen3ForCausalLM", 2, num_key_value_heads=2, head_dim=8),
    "gemma2": _decoder("Gemma2ForCausalLM", 2, num_key_value_heads=2, head_dim=8, sliding_window=16),
    "gemma3": _decoder("Gemma3ForCausalLM", 2, num_key_value_heads=2, head_dim=8, sliding_window=16),
    "phi": _decoder("PhiForCausalLM"),
    "phi3": _decoder("Phi3ForCausalLM", pad_token_id=0),
    "gpt_neox": _decoder("GPTNeoXForCausalLM"),
    "opt": _decoder("OPTForCausalLM", ffn_dim=64, word_embed_proj_dim=32),
    "bloom": _decoder("BloomForCausalLM", n_layer=2, n_head=4),
    "stablelm": _decoder("StableLmForCausalLM", num_key_value_heads=4),
    "smollm3": _decoder("SmolLM3ForCausalLM", 2, num_key_value_heads=2, pad_token_id=0),
    "granite": _decoder("GraniteForCausalLM", 2, num_key_value_heads=2),
    "mixtral": _decoder("MixtralForCausalLM", 2, **_EXPERTS, num_local_experts=4),
    "olmoe": _decoder("OlmoeForCausalLM", 2, **_EXPERTS, num_experts=4),
    "qwen3_moe": _decoder("Qwen3MoeForCausalLM", 2, **_EXPERTS, head_dim=8, num_experts=4, moe_intermediate_size=32),
}


# --- timm -------------------------------------------------------------------------------------------------------------


def _timm(name: str, fixed: int | None = None, **options: Any) -> Model:
    """``fixed``: the height and width of one that takes no others."""
    shape = "height width" if fixed is None else f"{fixed} {fixed}"

    def make() -> nn.Module:
        create: Callable[..., nn.Module] = importlib.import_module("timm").create_model
        return create(name, pretrained=False, num_classes=10, **options)

    return Model(make, {"image": f"float32 batch 3 {shape}"}, IMAGE if fixed is None else BATCH)


_SWIN = {"embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4)}
_OF_64: dict[str, Any] = {"fixed": 64, "img_size": 64}

TIMM = {
    "resnet18": _timm("resnet18"),
    "densenet": _timm("densenet121", growth_rate=8, block_config=(2, 2, 2, 2)),
    "mobilenetv3": _timm("mobilenetv3_small_050"),
    "mobilenetv4": _timm("mobilenetv4_conv_small_050"),
    "efficientnet": _timm("efficientnet_lite0"),
    "efficientnetv2": _timm("tf_efficientnetv2_b0"),
    "convnext": _timm("convnext_atto"),
    "regnet": _timm("regnety_002"),
    "hgnet": _timm("hgnetv2_b0"),
    "ghostnet": _timm("ghostnet_050"),
    "repvgg": _timm("repvgg_a0"),
    "mnasnet": _timm("mnasnet_small"),
    "res2net": _timm("res2net50_14w_8s", layers=(1, 1, 1, 1)),
    "dla": _by(LEGACY, _timm("dla46_c")),
    "vgg": _by(DYNAMO, _timm("vgg11")),
    "inception": _timm("inception_v3", 96),
    "xception": _timm("legacy_xception"),
    "edgenext": _timm("edgenext_xx_small"),
    "fastvit": _timm("fastvit_t8"),
    "repvit": _timm("repvit_m0_9"),
    "efficientvit": _timm("efficientvit_b0"),
    "efficientformer": _timm("efficientformerv2_s0", 224, img_size=224),
    "tinyvit": _timm("tiny_vit_5m_224", 224),
    "levit": _timm("levit_128s", 224, img_size=224),
    "swin_timm": _timm("swin_tiny_patch4_window7_224", 56, img_size=56, **_SWIN),
    "swin_open": _timm("swin_tiny_patch4_window7_224", **_SWIN, window_size=4, dynamic_img_size=True),
    "vit_timm": _timm("vit_tiny_patch16_224", **_OF_64, depth=2),
    "vit_open": _by(DYNAMO, _timm("vit_tiny_patch16_224", depth=2, dynamic_img_size=True)),
    "eva": _by(DYNAMO, _timm("eva02_tiny_patch14_224", 56, img_size=56, depth=2)),
    "cait": _timm("cait_xxs24_224", **_OF_64, depth=2),
    "xcit": _timm("xcit_nano_12_p16_224", **_OF_64, depth=2),
    "pit": _timm("pit_ti_224", **_OF_64),
    "coat": _timm("coat_lite_tiny", **_OF_64),
    "maxvit": _by(LEGACY, _timm("maxvit_rmlp_pico_rw_256", **_OF_64)),
    "crossvit": _timm("crossvit_tiny_240", 240),
    "mixer": _timm("mixer_s32_224", **_OF_64),
    "resmlp": _timm("resmlp_12_224", **_OF_64),
    "gmlp": _timm("gmlp_s16_224", **_OF_64),
    "poolformer_timm": _timm("poolformer_s12"),
    "metaformer": _timm("caformer_s18", 64),
    "nextvit": _timm("nextvit_small", 64),
    "mobileone": _timm("mobileone_s0"),
    "focalnet": _timm("focalnet_tiny_srf"),
    "hrnet": _timm("hrnet_w18_small"),
    "seresnext": _timm("seresnext26d_32x4d"),
}


# --- others -----------------------------------------------------------------------------------------------------------


def _yolo(name: str, **head: Any) -> Model:
    """With the head as ultralytics' own exporter sets it."""
    inputs = {"images": "float32 batch 3 height width"}

    def make() -> nn.Module:
        network: Any = importlib.import_module("ultralytics").YOLO(f"{name}.yaml").model
        for key, value in {"export": True, "dynamic": True, "format": "onnx", **head}.items():
            setattr(network.model[-1], key, value)
        return Flat(network.fuse(), ["x"])

    return Model(make, inputs, IMAGE, (LEGACY,))


def _torchvision(name: str, **options: Any) -> Model:
    def make() -> nn.Module:
        network: Any = importlib.import_module("torchvision").models.get_model(name, weights=None, **options)
        return Flat(network, ["x"])

    return Model(make, {"images": "float32 batch 3 height width"}, IMAGE)


class _Detector(Flat):
    """A network that takes a list of images and finds as many boxes as there are."""

    def forward(self, image: torch.Tensor) -> Any:
        found = self.network([image])
        return tuple((found[1] if isinstance(found[0], dict) and len(found) == 2 else found)[0].values())


_FINDS = {"weights": None, "weights_backbone": None, "num_classes": 5}
_PROPOSES = {"min_size": 96, "max_size": 160, "rpn_pre_nms_top_n_test": 60, "rpn_post_nms_top_n_test": 30}


def _detector(name: str, **options: Any) -> Model:
    def make() -> nn.Module:
        create: Callable[..., nn.Module] = importlib.import_module("torchvision").models.get_model
        return _Detector(create(name, **_FINDS, **options), ["image"])

    sizes = {name: extents for name, extents in IMAGE.items() if name != "batch"}
    return Model(make, {"image": "float32 3 height width"}, sizes, (LEGACY,))


class _Recommender(nn.Module):
    """Bags of embeddings and their products by pairs, as in DLRM."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(100, 16, mode="sum") for _ in range(3))
        self.below, self.above = nn.Linear(4, 16), nn.Linear(16 + 16, 1)

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        starts = torch.arange(ids.shape[0]) * ids.shape[1]
        rows = [self.below(dense).relu(), *(bag(ids.flatten(), starts) for bag in self.bags)]
        stacked = torch.stack(rows, 1)
        pairs = torch.bmm(stacked, stacked.transpose(1, 2)).flatten(1)
        return self.above(torch.cat([rows[0], pairs], 1)).sigmoid()


def _diffusers(name: str, inputs: Mapping[str, str], sizes: Sizes, part: str | None = None, **config: Any) -> Model:
    def make() -> nn.Module:
        network: nn.Module = getattr(importlib.import_module("diffusers"), name)(**config)
        return Flat(network if part is None else _Part(network, part), list(inputs), return_dict=False)

    return Model(make, inputs, sizes)


class _Part(nn.Module):
    """Another method of a network than ``forward``."""

    def __init__(self, network: nn.Module, method: str) -> None:
        super().__init__()
        self.network, self.method = network, method

    def forward(self, *values: Any, **named: Any) -> Any:
        found = getattr(self.network, self.method)(*values, **named)
        return [getattr(one, "parameters", one) for one in found] if self.method == "encode" else found


_UNET = {"block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 8}
_BLOCKS = {
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
}
_LATENT: Sizes = {**BATCH, "height": (8, 12, 16, 8), "width": (8, 16, 12, 20), "seq": (7, 12, 3, 20)}
_NOISE = {"sample": "float32 batch 4 height width", "timestep": "float32=7 batch"}
_VAE = {
    "in_channels": 3,
    "out_channels": 3,
    "latent_channels": 4,
    **_UNET,
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
}

OTHERS = {
    "yolo11n": _yolo("yolo11n"),
    "yolov8n": _yolo("yolov8n"),
    "yolo11n_seg": _yolo("yolo11n-seg"),
    "fcn": _torchvision("fcn_resnet50", weights_backbone=None, num_classes=4),
    "deeplab": _torchvision("deeplabv3_mobilenet_v3_large", weights_backbone=None, num_classes=4),
    "shufflenet": _torchvision("shufflenet_v2_x0_5"),
    "squeezenet": _torchvision("squeezenet1_1"),
    "googlenet": _torchvision("googlenet", init_weights=False, aux_logits=False),
    "mobilenetv2": _torchvision("mobilenet_v2"),
    "faster_rcnn": _detector("fasterrcnn_resnet50_fpn", **_PROPOSES, box_score_thresh=0.2),
    "retinanet": _detector(
        "retinanet_resnet50_fpn", min_size=96, max_size=160, score_thresh=0.0101, topk_candidates=50
    ),
    "ssdlite": _detector("ssdlite320_mobilenet_v3_large", score_thresh=0.19, topk_candidates=30, detections_per_img=40),
    "dlrm": _by(LEGACY, Model(_Recommender, {"dense": "float32 batch 4", "ids": "int64<100 batch seq"}, TEXT)),
    "alexnet": _by(DYNAMO, _torchvision("alexnet")),
    "unet": _diffusers(
        "UNet2DConditionModel",
        {**_NOISE, "encoder_hidden_states": "float32 batch seq 16"},
        _LATENT,
        **_UNET,
        **_BLOCKS,
        cross_attention_dim=16,
        attention_head_dim=4,
    ),
    "unet2d": _diffusers(
        "UNet2DModel",
        _NOISE,
        _LATENT,
        **_UNET,
        in_channels=4,
        out_channels=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ),
    "vae_encoder": _diffusers("AutoencoderKL", {"x": "float32 batch 3 height width"}, _LATENT, "encode", **_VAE),
    "vae_decoder": _diffusers("AutoencoderKL", {"z": "float32 batch 4 height width"}, _LATENT, "decode", **_VAE),
}

MODELS: dict[str, Model] = {**TRANSFORMERS, **TIMM, **OTHERS}
