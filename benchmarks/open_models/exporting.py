"""From networks of PyTorch to files, by its two exporters."""

from __future__ import annotations

import importlib
import pathlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import torch
from torch import nn

from benchmarks.open_models.inputs import Input, Sizes, feeds, runs, write

LEGACY, DYNAMO = "legacy", "dynamo"


@dataclass(frozen=True)
class Model:
    """``make`` gives the network, ``inputs`` are texts that :class:`Input` reads, in the order of its parameters."""

    make: Callable[[], nn.Module]
    inputs: Mapping[str, str]
    sizes: Sizes
    exporters: Sequence[str] = (LEGACY, DYNAMO)
    opset: int = 18


class Flat(nn.Module):
    """A network of named inputs and nested results, as tensors in and tensors out."""

    def __init__(self, network: nn.Module, names: Sequence[str], **options: Any) -> None:
        super().__init__()
        self.network, self.names, self.options = network, list(names), options

    def forward(self, *tensors: torch.Tensor) -> Any:
        return tuple(_tensors(self.network(**dict(zip(self.names, tensors, strict=True)), **self.options)))


class Cached(Flat):
    """A decoder whose last inputs are keys and values of layer after layer."""

    def forward(self, *tensors: torch.Tensor) -> Any:
        cache_of = importlib.import_module("transformers").DynamicCache
        plain, held = tensors[: len(self.names)], tensors[len(self.names) :]
        past = cache_of(list(zip(held[::2], held[1::2], strict=True)))
        found = self.network(**dict(zip(self.names, plain, strict=True)), past_key_values=past, use_cache=True)
        return found.logits, *(t for layer in found.past_key_values.layers for t in (layer.keys, layer.values))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _tensors(one)


def build(models: Mapping[str, Model], folder: pathlib.Path, names: Sequence[str], say: Callable[[str], None]) -> None:
    """One file for each model and exporter that is not there yet; what cannot be exported is said."""
    folder.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    for name in names or models:
        for exporter in models[name].exporters:
            path = folder / f"{name}.{exporter}.onnx"
            if not path.exists():
                say(f"{path.name}: {_built(models[name], exporter, path)}")


def _built(model: Model, exporter: str, path: pathlib.Path) -> str:
    torch.manual_seed(0)
    try:
        network = model.make().eval()
        exported = _exported(network, model, exporter, path.with_suffix(".tmp"))
    except Exception as error:  # the exporters' own, of any kind
        return f"not exported: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    write(exported, model.inputs, model.sizes)
    onnx.save(exported, path)
    return "exported"


def _exported(network: nn.Module, model: Model, exporter: str, path: pathlib.Path) -> onnx.ModelProto:
    drawn = feeds(model.inputs, next(runs(model.sizes)))
    shapes = [
        {axis: dim for axis, dim in enumerate(Input.of(text).shape) if isinstance(dim, str)}
        for text in model.inputs.values()
    ]
    varying = isinstance(network, Flat)
    open_shapes: dict[str, Any] = (
        {
            "dynamic_axes": {
                name: {a: d.replace("+", "_") for a, d in s.items()} for name, s in zip(drawn, shapes, strict=True)
            }
        }
        if exporter == LEGACY
        else {"dynamic_shapes": (tuple(_dims(s) for s in shapes),) if varying else tuple(map(_dims, shapes))}
    )
    try:
        torch.onnx.export(
            network,
            tuple(map(torch.from_numpy, drawn.values())),
            path,
            input_names=list(drawn),
            dynamo=exporter == DYNAMO,
            opset_version=model.opset,
            **({"external_data": False, "verbose": False} if exporter == DYNAMO else {}),
            **open_shapes,
        )
        return onnx.load(path)
    finally:
        path.unlink(missing_ok=True)


def _dims(shape: Mapping[int, str]) -> dict[int, str]:
    return {axis: name.replace("+", "_") for axis, name in shape.items()}
