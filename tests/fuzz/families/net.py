"""``Net``: a graph of a family under construction: ``draw.Draw`` with a builder's calls, and inputs that can be drawn
again with other sizes."""

import math
import random
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx

from tests.fuzz.case import Arrays, Value
from tests.fuzz.draw import Draw, Reject, Shape

Dim: TypeAlias = "int | str"
"""A size, or the name of a dimension that is open."""
Family: TypeAlias = "Callable[[Net], None]"
Fill: TypeAlias = Callable[[np.random.Generator, Shape], np.ndarray]

FAMILIES: dict[str, tuple[Family, tuple[str, ...]]] = {}
"""By name: what builds the graph, and the dtypes of its floats."""
NEWEST = onnx.defs.onnx_opset_version()
EXTENTS = (0, 1, 2, 3, 5, 8, 13)
"""Of open dimensions: none, one, and others."""


def family(name: str, *dtypes: str) -> Callable[[Family], Family]:
    def register(build: Family) -> Family:
        FAMILIES[name] = (build, dtypes)
        return build

    return register


class Net(Draw):
    """A graph whose floats are of ``dtype``; ``is_open``: the dimensions that have names are open."""

    def __init__(self, rng: random.Random, opset: int, dtype: str = "float32", is_open: bool = False) -> None:
        super().__init__(rng, opset)
        self.kind, self.is_open = dtype, is_open
        self.sizes: dict[str, int] = {}
        """Of the first feed, by the dimension's name."""
        self.fills: dict[str, tuple[tuple[Dim, ...], Fill]] = {}
        self.results: list[Value] = []

    # --- nodes ---

    def ops(self, op_type: str, *inputs: Value | None, outputs: int = 1, **given: Any) -> list[Value]:
        """Adds a node.  ``types``, of its outputs, where ONNX does not infer them."""
        self.op = op_type
        return self.node(inputs, outputs, **given)

    def at(self, op_type: str, *inputs: Value | None, **given: Any) -> Value:
        return self.ops(op_type, *inputs, **given)[0]

    def same(self, op_type: str, *inputs: Value | None, **given: Any) -> Value:
        """A node of another domain, whose result has the type of its first operand."""
        first = inputs[0]
        assert first is not None
        return self.ops(op_type, *inputs, types=[(first.dtype, first.shape)], **given)[0]

    def result(self, *values: Value) -> None:
        self.results.extend(values)

    # --- operands ---

    def array(self, array: Any, dtype: str = "") -> Value:
        """A constant, of the graph's own dtype where none is said."""
        found = np.asarray(array)
        return self.constant(found.astype(dtype or (self.kind if found.dtype.kind == "f" else found.dtype)))

    def scalar(self, number: float, dtype: str = "") -> Value:
        return self.constant(np.asarray(number).astype(dtype or self.kind))

    def numbers(self, *numbers: int) -> Value:
        return self.constant(np.array(numbers, np.int64))

    def weights(self, *shape: int, dtype: str = "") -> Value:
        """Such that a sum of products with them is of everyday size."""
        draw, fan = np.random.default_rng(self.rng.getrandbits(64)), math.prod(shape[1:]) or 1
        return self.constant(draw.normal(0, fan**-0.5, shape).astype(dtype or self.kind))

    def near_one(self, *shape: int, dtype: str = "") -> Value:
        """Scales and variances: positive."""
        draw = np.random.default_rng(self.rng.getrandbits(64))
        return self.constant(draw.uniform(0.3, 1.7, shape).astype(dtype or self.kind))

    def bias(self, *shape: int, dtype: str = "") -> Value:
        draw = np.random.default_rng(self.rng.getrandbits(64))
        return self.constant(draw.normal(0, 0.5, shape).astype(dtype or self.kind))

    def input(self, dims: Sequence[Dim], dtype: str = "", fill: Fill | None = None) -> Value:
        """An input; a dimension with a name has the same size wherever it stands."""
        kind = dtype or self.kind
        for dim in dims:
            if isinstance(dim, str):
                self.sizes.setdefault(dim, self.choice((1, 2, 3, 5)))
        name = self.name()
        self.fills[name] = tuple(dims), fill or (lambda draw, shape: draw.normal(0, 1, shape).astype(kind))
        found = self._fed(name, self.sizes, self.rng)
        self.inputs[name] = found
        self.values[name] = Value(name, found.dtype.name, found.shape)
        return self.values[name]

    def _fed(self, name: str, sizes: dict[str, int], rng: random.Random) -> np.ndarray:
        dims, fill = self.fills[name]
        shape = tuple(sizes[d] if isinstance(d, str) else d for d in dims)
        return fill(np.random.default_rng(rng.getrandbits(64)), shape)

    def feed(self, rng: random.Random, sizes: dict[str, int] | None = None) -> Arrays:
        """All inputs anew."""
        return {name: self._fed(name, sizes or self.sizes, rng) for name in self.fills}

    def symbols(self) -> dict[str, tuple[str | None, ...]]:
        named = {n: tuple(d if isinstance(d, str) else None for d in dims) for n, (dims, _) in self.fills.items()}
        return {n: dims for n, dims in named.items() if any(dims)} if self.is_open else {}

    # --- shapes as exporters write them ---

    def reshaped(self, x: Value, *dims: int) -> Value:
        """0 keeps a dimension, -1 is what is left.  Where all is open, the leading ones are computed of the shape."""
        if not (self.is_open and self.chance(0.5)):
            return self.at("Reshape", x, self.numbers(*dims))
        shape = self.at("Shape", x)
        parts = [self.at("Gather", shape, self.numbers(i)) if d == 0 else self.numbers(d) for i, d in enumerate(dims)]
        wanted = self.at("Concat", *parts, axis=0)
        target = Value(wanted.name, "int64", (len(dims),))
        return self.typed("Reshape", [x, target], self._reshape(x, dims))

    def typed(self, op_type: str, inputs: list[Value | None], shape: Shape, dtype: str = "", **given: Any) -> Value:
        first = inputs[0]
        assert first is not None
        return self.at(op_type, *inputs, types=[(dtype or first.dtype, shape)], **given)

    def _reshape(self, x: Value, dims: Sequence[int]) -> Shape:
        shape = self.known(x)
        found = [shape[i] if d == 0 else d for i, d in enumerate(dims)]
        rest = math.prod(d for d in found if d >= 0)
        if -1 in found and rest == 0:
            raise Reject("what is left of nothing")
        return tuple(math.prod(shape) // rest if d < 0 else d for d in found)

    def permuted(self, x: Value, *axes: int) -> Value:
        return self.at("Transpose", x, perm=list(axes))

    # --- what is given up ---

    def saved(self) -> tuple[object, ...]:
        return (
            *(list(self.nodes), dict(self.inputs), dict(self.constants), dict(self.values)),
            *(dict(self.literals), dict(self.fills), list(self.results)),
        )

    def restore(self, kept: tuple[Any, ...]) -> None:
        """As it was when ``saved``."""
        self.nodes, self.inputs, self.constants, self.values, self.literals, self.fills, self.results = kept

    def trunk(self, x: Value, kinds: Sequence["Block"], blocks: int) -> Value:
        """Blocks one after another; one that does not fit is drawn anew."""
        for _ in range(blocks):
            for _ in range(20):
                kept = self.saved()
                try:
                    x = self.choice(kinds)(self, x)
                    break
                except Reject:
                    self.restore(kept)
        return x


Block: TypeAlias = Callable[[Net, Value], Value]
"""From a value of a graph to another one."""
