"""ONNX recurrent layers: one dense layer projects all steps at once, ``nn.lstm``, ``nn.gru``, ``nn.rnn`` recur.

Weights: W (directions, gates * hidden, input), R (directions, gates * hidden, hidden),
B (directions, 2 * gates * hidden): the projection's biases, then the recurrence's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from minitvm.frontend.onnx.index import within
from minitvm.frontend.onnx.node import OnnxNode, dims, emit, emit_many, rank
from minitvm.frontend.onnx.registry import onnx_op
from minitvm.frontend.onnx.sequence import Lengths
from minitvm.frontend.onnx.tensor import reshaped
from minitvm.ir.expr import Constant, Expr
from minitvm.ir.types import TensorType

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_ACTIVATIONS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}


@dataclass(frozen=True)
class Layer:
    """What all directions share.  x: (steps, batch, features)."""

    node: OnnxNode
    x: Expr
    hidden: int
    directions: int
    lengths: Lengths | None = None
    """Where sequences of the batch end earlier than ``x``."""

    @property
    def gates(self) -> int:
        return _GATES[self.node.op_type]

    @property
    def batch(self) -> int:
        return self.x.shape[1]

    def part(self, value: Expr, direction: int) -> Expr:
        """One direction's share of a tensor whose first dimension is directions, without that dimension."""
        if self.directions == 1:
            return emit("squeeze", value, axis=(0,))
        cut = emit("strided_slice", value, begin=(direction,), end=(direction + 1,), axes=(0,))
        return emit("squeeze", cut, axis=(0,))

    def initial(self, index: int, direction: int) -> Expr:
        """A state at the start, (batch, hidden): input ``index``, or zeros."""
        given = self.node.get(index)
        if given is None:
            return Constant(np.zeros((self.batch, self.hidden), self.x.dtype))
        if self.node.attr("layout", 0):
            given = emit("transpose", given, axes=(1, 0, 2))
        return self.part(given, direction)

    def biases(self, direction: int) -> tuple[Expr | None, Expr | None]:
        """Of the projection and of the recurrence, each (gates * hidden,)."""
        if self.node.get(3) is None:
            return None, None
        both, size = self.part(self.node[3], direction), self.gates * self.hidden
        low = emit("strided_slice", both, begin=(0,), end=(size,), axes=(0,))
        return low, emit("strided_slice", both, begin=(size,), end=(2 * size,), axes=(0,))

    def projected(self, direction: int, bias: Expr | None) -> Expr:
        """The input's share of the gates at every step: (steps, batch, gates * hidden)."""
        steps, batch, features = self.x.shape
        rows = reshaped(self.x, [steps * batch, features], allowzero=True)
        product = emit("nn.dense", rows, self.part(self.node[1], direction))
        if bias is not None:
            product = emit("nn.bias_add", product, bias, axis=1)
        return reshaped(product, [steps, batch, self.gates * self.hidden], allowzero=True)

    def is_reverse(self, direction: int) -> bool:
        return direction == 1 or self.node.attr("direction") == "reverse"

    def recurred(self, direction: int, xw: Expr, *arguments: Expr, **options: object) -> list[Expr]:
        """Y (steps, batch, hidden) and the last states (batch, hidden) of one direction."""
        name, reverse = f"nn.{self.node.op_type.lower()}", self.is_reverse(direction)
        lengths = self.lengths
        if lengths is None:
            return emit_many(name, xw, *arguments, reverse=reverse, **options)
        xw = lengths.turned(xw) if reverse else xw
        xw = lengths.held(xw, self.hidden) if self.node.op_type == "LSTM" else xw
        y, _, *cells = emit_many(name, xw, *arguments, **options)
        masked = lengths.masked(y)
        return [lengths.turned(masked) if reverse else masked, lengths.last(y), *map(lengths.some, cells)]


@onnx_op("RNN", since=7)
def rnn(node: OnnxNode) -> list[Expr | None]:
    layer = _layer(node)

    def run(direction: int) -> list[Expr]:
        bias, other = layer.biases(direction)
        xw = layer.projected(direction, _sum(bias, other))
        state = layer.initial(5, direction)
        return layer.recurred(direction, xw, layer.part(node[2], direction), state)

    return _outputs(layer, run)


@onnx_op("GRU", since=7)
def gru(node: OnnxNode) -> list[Expr | None]:
    layer = _layer(node)

    def run(direction: int) -> list[Expr]:
        bias, recurrent = layer.biases(direction)
        zeros = Constant(np.zeros(3 * layer.hidden, layer.x.dtype))
        return layer.recurred(
            direction,
            layer.projected(direction, bias),
            layer.part(node[2], direction),
            zeros if recurrent is None else recurrent,
            layer.initial(5, direction),
            linear_before_reset=bool(node.attr("linear_before_reset")),
        )

    return _outputs(layer, run)


@onnx_op("LSTM", since=7)
def lstm(node: OnnxNode) -> list[Expr | None]:
    layer = _layer(node)
    if node.attr("input_forget", 0):
        raise node.refuse("input_forget")

    def run(direction: int) -> list[Expr]:
        xw = layer.projected(direction, _sum(*layer.biases(direction)))
        peepholes = [] if node.get(7) is None else [layer.part(node[7], direction)]
        states = [layer.initial(5, direction), layer.initial(6, direction)]
        return layer.recurred(direction, xw, layer.part(node[2], direction), *states, *peepholes)

    return _outputs(layer, run)


def _layer(node: OnnxNode) -> Layer:
    direction = node.attr("direction")
    if direction not in ("forward", "reverse", "bidirectional"):
        raise node.refuse("direction", "directions: forward, reverse, bidirectional")
    directions = 2 if direction == "bidirectional" else 1
    _check_supported(node, directions)
    if [rank(node[i]) for i in range(3)] != [3, 3, 3]:
        found = " and ".join(str(node[i].tensor_type) for i in range(3))
        raise node.misfit(f"the input and both weights must have 3 dimensions: {found}")
    x = emit("transpose", node[0], axes=(1, 0, 2)) if node.attr("layout", 0) else node[0]
    hidden = node.attr("hidden_size") or node[2].shape[2]
    _check_shapes(node, x, hidden, directions)
    return Layer(node, x, hidden, directions, _lengths(node, x))


def _check_shapes(node: OnnxNode, x: Expr, hidden: int, directions: int) -> None:
    """Every input has the shape that ``direction`` and ``hidden_size`` ask for."""
    gates, (_, batch, features) = _GATES[node.op_type] * hidden, x.shape
    state = (batch, directions, hidden) if node.attr("layout", 0) else (directions, batch, hidden)
    expected: dict[int, tuple[int, ...]] = {
        1: (directions, gates, features),
        2: (directions, gates, hidden),
        3: (directions, 2 * gates),
        4: (batch,),
        5: state,
        6: state,
        7: (directions, 3 * hidden),
    }
    for position, shape in expected.items():
        given = node.get(position)
        if given is not None and dims(given) != shape:
            name = _INPUTS[position]
            raise node.misfit(f"{name} is {given.tensor_type}; expected {TensorType(shape, given.dtype)}")


_INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")


def _lengths(node: OnnxNode, x: Expr) -> Lengths | None:
    """``None`` where every sequence is as long as the input."""
    given, steps = node.get(4), x.shape[0]
    if given is None:
        return None
    known = node.known(4)
    if known is not None and np.all(known == steps):
        return None
    return Lengths(within(node, x, given, (0,), lengths=True), steps)


def _check_supported(node: OnnxNode, directions: int) -> None:
    found = [name.lower() for name in node.attr("activations")] if node.has("activations") else []
    if found and found != [name.lower() for name in _ACTIVATIONS[node.op_type] * directions]:
        raise node.refuse("activations", f"supported: {', '.join(_ACTIVATIONS[node.op_type])}")
    if node.attr("clip"):
        raise node.refuse("clip")


def _sum(a: Expr | None, b: Expr | None) -> Expr | None:
    return None if a is None or b is None else emit("add", a, b)


def _outputs(layer: Layer, run: Callable[[int], Sequence[Expr]]) -> list[Expr | None]:
    """Y (steps, directions, batch, hidden) and the last states (directions, batch, hidden); batch first by layout."""
    found = [run(d) for d in range(layer.directions)]
    results = [_joined([one[0] for one in found], 1)]
    results += [_joined([one[i] for one in found], 0) for i in range(1, len(found[0]))]
    if not layer.node.attr("layout", 0):
        return list(results)
    return [
        emit("transpose", results[0], axes=(2, 0, 1, 3)),
        *(emit("transpose", r, axes=(1, 0, 2)) for r in results[1:]),
    ]


def _joined(parts: list[Expr], axis: int) -> Expr:
    grown = [emit("expand_dims", part, axis=axis) for part in parts]
    return grown[0] if len(grown) == 1 else emit("concatenate", grown, axis=axis)
