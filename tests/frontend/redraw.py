"""The ``light`` models of the onnx package with weights worth testing.

Their weights are ``ConstantOfShape`` nodes, so every value is the same and many mistakes do not show. Here each
becomes an initializer drawn at random, at the scale that keeps activations near 1 (He's); what only held the shapes
goes away.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import onnx.backend.test
from onnx import numpy_helper

FOLDER = Path(onnx.backend.test.__file__).parent / "data" / "light"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("light_*.onnx")))


def light(name: str) -> onnx.ModelProto:
    """A model as it is in the package, weights all constant fills."""
    return onnx.load(FOLDER / f"{name}.onnx")


WIDE, NARROW = 4096, 128


def redrawn(name: str, seed: int = 0) -> onnx.ModelProto:
    """The model with random weights as initializers, and one input: the image.

    Layers of 4096 units, which only the fully connected ones have, get 128: half a gigabyte of weights shows no more.
    """
    model, rng = light(name), np.random.default_rng(seed)
    graph = model.graph
    given = {t.name: t for t in graph.initializer}
    fills = {n.output[0]: n for n in graph.node if n.op_type == "ConstantOfShape"}
    roles = {name: role for node in graph.node for name, role in _roles(node)}
    given_shapes = {output: numpy_helper.to_array(given[node.input[0]]).tolist() for output, node in fills.items()}
    shapes = {output: [NARROW if n == WIDE else n for n in shape] for output, shape in given_shapes.items()}
    kept = [node for node in graph.node if node.op_type != "ConstantOfShape"]
    weights = [
        numpy_helper.from_array(_draw(rng, roles.get(output, "weight"), tuple(shape)), output)
        for output, shape in shapes.items()
    ]
    read = {name for node in kept for name in node.input}
    weights += [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(kept)
    graph.initializer.extend(weights)
    names = {tensor.name for tensor in weights}
    inputs = [value for value in graph.input if value.name in read and value.name not in names]
    del graph.input[:]
    graph.input.extend(inputs)
    model.ir_version = 8
    return model


def _roles(node: onnx.NodeProto) -> list[tuple[str, str]]:
    """What each input of a node is, where that decides its scale."""
    if node.op_type == "BatchNormalization":
        return list(zip(node.input[1:], ("gamma", "beta", "mean", "var"), strict=True))
    if node.op_type in ("Conv", "Gemm"):
        return list(zip(node.input[1:], ("weight", "beta"), strict=False))
    if node.op_type == "Unsqueeze":  # scale and offset of a normalisation that was split up
        return [(node.input[0], "gamma")]
    return []


def _draw(rng: np.random.Generator, role: str, shape: tuple[int, ...]) -> np.ndarray:
    if role in ("gamma", "var"):
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    if role in ("beta", "mean"):
        return (0.1 * rng.standard_normal(shape)).astype(np.float32)
    fan_in = math.prod(shape[1:]) if len(shape) > 1 else 1
    values = rng.standard_normal(shape, dtype=np.float32)
    values *= np.float32(math.sqrt(2 / max(fan_in, 1)))
    return values
