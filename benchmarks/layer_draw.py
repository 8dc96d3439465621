"""What random layers are drawn with: sizes as networks and as accidents have them, a graph of a few nodes, bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import helper

from benchmarks.graph import Graph

T = TypeVar("T")

OPSET = 20
USUAL = (8, 16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 192, 256, 320, 384, 512, 768, 1024, 2048)
AWKWARD = (
    *(1, 2, 3, 5, 7, 9, 10, 13, 15, 17, 21, 24, 31, 33, 37, 40, 49, 63, 65, 72, 88, 97, 120, 127, 129, 197, 251, 255),
    *(257, 300, 509, 1000, 1009, 2049),
)
IMAGES = (7, 8, 13, 14, 16, 17, 19, 20, 26, 28, 32, 33, 35, 40, 52, 56, 64, 80, 97, 112, 128, 149, 160, 224)

LEAST_US, MOST_US = 20.0, 8000.0
"""Bounds of a layer's nominal time; what a runtime really takes is within a few times of it."""
FLOPS_PER_US = 60e3
ELEMENTS_PER_US = 2e3
_TRIES = 1000


@dataclass(frozen=True)
class Layer:
    """One drawn layer: ``conv/17`` is the 17th convolution, the same in every sweep of one seed."""

    name: str
    text: str
    model: onnx.ModelProto
    feeds: dict[str, np.ndarray]
    tolerance: float
    """The largest difference between two right answers, relative to the largest element."""

    @property
    def kind(self) -> str:
        return self.name.partition("/")[0]


class Draw(Graph):
    """Random choices, and the graph that they become.  A draw method describes itself with :meth:`say`."""

    def __init__(self, seed: Sequence[int]) -> None:
        super().__init__()
        self.rng = np.random.default_rng(list(seed))
        self.inputs: list[onnx.ValueInfoProto] = []
        self.feeds: dict[str, np.ndarray] = {}
        self.words: list[str] = []
        self.flops = 0.0
        self.elements = 0.0
        self.tolerance = 1e-4

    # --- choices ---

    def choose(self, values: Sequence[T]) -> T:
        return values[int(self.rng.integers(len(values)))]

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def dim(self, low: int = 1, high: int = 2048) -> int:
        """A size as often usual as awkward."""
        usual = [v for v in USUAL if low <= v <= high]
        awkward = [v for v in AWKWARD if low <= v <= high]
        return self.choose(usual if usual and self.chance(0.5) else awkward)

    def image(self, low: int = 7, high: int = 224) -> int:
        return self.choose([v for v in IMAGES if low <= v <= high])

    def shape(self, rank: int, high: int = 2048) -> tuple[int, ...]:
        """Any shape of ``rank`` whose size is within bounds; the leading sizes are the smaller ones."""
        while True:
            found = tuple(self.dim(1, high if d else min(high, 64)) for d in range(rank))
            if LEAST_US * ELEMENTS_PER_US / 4 < math.prod(found) < MOST_US * ELEMENTS_PER_US / 8:
                return found

    def any_shape(self) -> tuple[int, ...]:
        """Two to four dimensions: rows, sequences of vectors, images."""
        if self.chance(0.4):
            size = self.image()
            return (1, self.dim(3, 512), size, size)
        return self.shape(self.choose((2, 3, 3, 4)))

    # --- the graph ---

    def feed(self, shape: Sequence[int], dtype: str = "float32", below: int = 100) -> str:
        """Another input of the model: normal floats, or integers from 0 on."""
        name = f"x{len(self.inputs)}"
        onnx_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self.inputs.append(helper.make_tensor_value_info(name, onnx_type, list(shape)))
        self.elements += math.prod(shape)
        if self.elements < MOST_US * ELEMENTS_PER_US:  # larger draws are thrown away
            drawn = self.rng.normal(size=shape) if dtype == "float32" else self.rng.integers(0, below, shape)
            self.feeds[name] = drawn.astype(dtype)
        return name

    def say(self, *words: object) -> None:
        self.words += [str(word) for word in words]

    def integers(self, *values: int) -> str:
        return self.weight(np.array(values, np.int64))

    def finish(self, outputs: Sequence[str]) -> onnx.ModelProto:
        made = [helper.make_empty_tensor_value_info(name) for name in outputs]
        graph = helper.make_graph(self.nodes, "layer", self.inputs, made, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
        return onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)


Maker = Callable[[Draw], "str | Sequence[str]"]
"""Builds a layer in a draw; the names of its results."""


def draw_layer(kind: str, number: int, maker: Maker, seed: Sequence[int]) -> Layer:
    """The layer ``kind/number``: drawn again until its size is within bounds."""
    for attempt in range(_TRIES):
        draw = Draw((*seed, number, attempt))
        found = maker(draw)
        outputs = [found] if isinstance(found, str) else list(found)
        if not LEAST_US <= _nominal_us(draw) <= MOST_US:
            continue
        model = draw.finish(outputs)
        if all(d.dim_value > 0 for out in model.graph.output for d in out.type.tensor_type.shape.dim):
            return Layer(f"{kind}/{number}", " ".join(filter(None, draw.words)), model, draw.feeds, draw.tolerance)
    raise RuntimeError(f"no {kind} within bounds in {_TRIES} tries")


def _nominal_us(draw: Draw) -> float:
    return draw.flops / FLOPS_PER_US + draw.elements / ELEMENTS_PER_US


def dims(shape: Sequence[Any]) -> str:
    """``1x64x56x56``."""
    return "x".join(map(str, shape))
