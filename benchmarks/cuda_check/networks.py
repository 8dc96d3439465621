"""The networks of the check, in any batch and precision, with PyTorch's way to say the same beside each."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from benchmarks import cuda_sim
from benchmarks.graph import Graph
from benchmarks.onnx_models import bert, mobilenet_v2, resnet

FLOAT32, TF32, FLOAT16 = "float32", "tf32", "float16"
PRECISIONS = (FLOAT32, TF32, FLOAT16)
CONFIG: Mapping[str, Mapping[str, Any]] = {FLOAT32: {}, TF32: {"cuda.allow_tf32": True}, FLOAT16: {}}
"""Options of passes by precision; float16 is the model's own dtype."""
TOLERANCE = {FLOAT32: 1e-4, TF32: 5e-4, FLOAT16: 1e-2}
"""Largest difference from float32 on the CPU, relative to the largest value of the same output."""
STEPS = {"efficientnet_lite0_int8_qdq": 2e-2}
"""Activations of 8 bits, where a rounding that falls the other way is a step: how far ONNX Runtime is from itself with
its optimisations off (the README of ``shared/models``).  The class has to be the same as well."""


OF_REFERENCE = {FLOAT16: 1.5, TF32: 1.0}
"""Times what float16 costs the reference, which a GPU may be off: in float16 sums come in another order, and TF32 has
float16's bits in factors alone."""


@dataclass(frozen=True)
class Network:
    build: Callable[[int], onnx.ModelProto]
    """By batch."""
    heads: int = 0
    """Of its attention; 0 for convolutional networks."""
    floors: Mapping[tuple[int, str], float] | None = None
    """On an H200, by batch and precision, in ms: FLOPs and bytes of each fused kernel at what such a GPU reaches
    (50 TFLOP/s in float32, 62 % of the tensor cores' peak, 4.3 TB/s), 1.5 us a kernel at least."""


def _floors(float32: tuple[float, float], tf32: tuple[float, float], float16: tuple[float, float]) -> Any:
    by = zip(PRECISIONS, (float32, tf32, float16), strict=True)
    return {(batch, name): found[n] for name, found in by for n, batch in enumerate((1, 32))}


NETWORKS = {
    "resnet18": Network(lambda batch: resnet(18, batch), 0, _floors((0.08, 2.4), (0.04, 0.43), (0.03, 0.22))),
    "resnet50": Network(lambda batch: resnet(50, batch), 0, _floors((0.17, 5.3), (0.09, 1.2), (0.08, 0.61))),
    "mobilenet_v2": Network(mobilenet_v2, 0, _floors((0.08, 0.58), (0.08, 0.42), (0.08, 0.21))),
    "bert_base_s128": Network(lambda batch: bert(12, batch), 12, _floors((0.49, 14.4), (0.16, 2.6), (0.13, 1.3))),
}
SMALL = {
    "small_residual": Network(lambda batch: _small_residual(batch)),
    "small_transformer": Network(lambda batch: bert(1, batch, 8, 64, 2), 2),
}
"""For the stand-in, whose GPU is the CPU."""


def _small_residual(batch: int) -> onnx.ModelProto:
    g = Graph()
    x = g.node("Relu", [g.norm(g.conv("data", 3, 8, 3, 2), 8)])
    x = g.node("Relu", [g.node("Add", [g.norm(g.conv(x, 8, 8, 3), 8), x])])
    return g.model(g.classify(g.relu6(g.norm(g.conv(x, 8, 8, 3, groups=8), 8)), 8, 10), (batch, 3, 12, 12))


def stored() -> dict[str, pathlib.Path]:
    """Pretrained models of ``shared/models``, where they are: by name, with the arrays expected beside them."""
    paths = sorted(cuda_sim.FOLDER.glob("*.onnx"))
    return {path.stem: path for path in paths if path.with_suffix(".npz").exists()}


def known() -> list[str]:
    return [*NETWORKS, *SMALL, *stored()]


def network(name: str) -> Network:
    return (NETWORKS | SMALL)[name]


def model_of(name: str, batch: int, precision: str) -> onnx.ModelProto | str:
    """What to compile: a model, or the path of a stored one."""
    if name in stored():
        return str(stored()[name])
    made = network(name).build(batch)
    return in_float16(made) if precision == FLOAT16 else made


def in_float16(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same network, its inputs, weights and results float16."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    for n, tensor in enumerate(found.graph.initializer):
        if tensor.data_type == TensorProto.FLOAT:
            half = numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name)
            found.graph.initializer[n].CopyFrom(half)
    for value in (*found.graph.input, *found.graph.output, *found.graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return found


@dataclass(frozen=True)
class Sample:
    """A feed in float32, what is expected of it, and whose word that is."""

    feed: Mapping[str, np.ndarray]
    expected: list[np.ndarray]
    source: str
    tolerance: float | None = None
    """Other than the precision's; the largest of each row is the same one then."""

    def is_right(self, found: list[np.ndarray], largest: float, precision: str, half: float = 0.0) -> bool:
        """Of results whose largest error is given; ``half``: what float16 costs the reference."""
        pairs = zip(found, self.expected, strict=True)
        same = all(np.array_equal(a.argmax(-1), b.argmax(-1)) for a, b in pairs) if self.tolerance else True
        return same and largest <= self.allowed(precision, half)

    def allowed(self, precision: str, half: float = 0.0) -> float:
        return self.tolerance or allowed(precision, half)

    def in_precision(self, precision: str) -> dict[str, np.ndarray]:
        wide = np.dtype(np.float32)
        half = precision == FLOAT16
        return {n: a.astype(np.float16) if half and a.dtype == wide else a for n, a in self.feed.items()}


def allowed(precision: str, half: float) -> float:
    """The largest difference from float32; where factors are rounded never less than the reference's own is right."""
    return max(TOLERANCE[precision], OF_REFERENCE.get(precision, 0.0) * half)


def cost_of_half(name: str, precision: str) -> float:
    """How far the same network in float16 is from float32 on the CPU, every operator rounded; 0 in strict float32.

    Of one image or sentence: what rounding costs does not grow with the batch.
    """
    if precision not in OF_REFERENCE or name in stored():
        return 0.0
    import minitvm

    given = sample(name)
    session = minitvm.InferenceSession(model_of(name, 1, FLOAT16), target="llvm")
    found = session.run(None, given.in_precision(FLOAT16))
    return max(cuda_sim.error(have, want) for have, want in zip(found, given.expected, strict=True))


def sample(name: str, batch: int = 1) -> Sample:
    """Of a stored model the arrays beside it, else random ones and what the CPU makes of them."""
    if name in stored():
        _, feed, expected = cuda_sim.models()[name]()
        return Sample(feed, expected, "onnxruntime, stored", STEPS.get(name))
    model = network(name).build(batch)
    feed = random_feed(model)
    try:
        import onnxruntime
    except ImportError:
        import minitvm

        return Sample(feed, minitvm.InferenceSession(model).run(None, feed), "minitvm on the CPU")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return Sample(feed, session.run(None, feed), f"onnxruntime {onnxruntime.__version__}")


def random_feed(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def workers() -> int:
    """How many processes compile at once."""
    return max(1, min(12, (os.cpu_count() or 1) - 2))
