"""ONNX recurrent layers: one dense layer projects all steps at once, ``nn.lstm``, ``nn.gru``, ``nn.rnn`` recur.

Weights: W (directions, gates * hidden, input), R (directions, gates * hidden, hidden),
B (directions, 2 * gates * hidden): the projection's biases, then the recurrence's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from minitvm.frontend.onnx.index import within
from minitvm.frontend.onnx.node import OnnxNode, cast, emit, emit_many, rank
from minitvm.frontend.onnx.registry import onnx_op
from minitvm.frontend.onnx.tensor import integers, reshaped
from minitvm.ir.expr import Constant, Expr
from minitvm.ir.ops._shape import shapes_differ
from minitvm.ir.types import TensorType

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_ACTIVATIONS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}


def _kind(node: OnnxNode) -> str:
    """The layer's name without how it is quantized."""
    return node.op_type.removeprefix("DynamicQuantize")


_CLOSED = 1e4
"""The sigmoid of this is 1, of its negative 0, in every float dtype."""


@dataclass(frozen=True)
class Lengths:
    """How many of the ``steps`` count, for each sequence of the batch.  values: (batch,) integers.

    What lies behind is zero in the output, and changes no state.  A sequence of no steps ends in zeros.
    """

    values: Expr
    steps: int

    def inside(self) -> Expr:
        """Which steps count: (steps, batch, 1) bool."""
        step = integers(np.arange(self.steps).reshape(-1, 1))
        return emit("expand_dims", emit("less", step, emit("expand_dims", cast(self.values, "int64"), axis=0)), axis=2)

    def turned(self, x: Expr) -> Expr:
        """Each sequence of x: (steps, batch, ...) back to front, what lies behind it left in place."""
        return emit("reverse_sequence", x, self.values, seq_axis=0, batch_axis=1)

    def masked(self, y: Expr) -> Expr:
        return emit("where", self.inside(), y, 0)

    def last(self, y: Expr) -> Expr:
        """The output of each sequence's last step.  y: (steps, batch, hidden) -> (batch, hidden)."""
        if not self.steps:
            return emit("zeros", shape=y.shape[1:], dtype=y.dtype)
        step = emit("maximum", cast(self.values, "int64") - 1, 0)
        places = emit("reshape", step, newshape=(1, -1, 1))
        indices = emit("broadcast_to", places, shape=(1, *y.shape[1:]))
        return self.some(emit("squeeze", emit("gather", y, indices, axis=0), axis=(0,)))

    def some(self, state: Expr) -> Expr:
        """A last state (batch, hidden), zero where a sequence has no steps."""
        return emit("where", emit("expand_dims", emit("greater", self.values, 0), axis=1), state, 0)

    def held(self, xw: Expr, hidden: int) -> Expr:
        """An LSTM's gates: behind a sequence nothing comes in and nothing is forgotten, so that its cell stays."""
        gates = np.repeat(np.array([-_CLOSED, 0, _CLOSED, 0], xw.dtype), hidden)  # input, output, forget, cell
        return emit("where", self.inside(), xw, Constant(gates))


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
        return _GATES[_kind(self.node)]

    @property
    def batch(self) -> int:
        return self.x.shape[1]

    def part(self, value: Expr, direction: int) -> Expr:
        """One direction's share of a tensor whose first dimension is directions, without that dimension."""
        if self.directions > 1:
            value = emit("strided_slice", value, begin=(direction,), end=(direction + 1,), axes=(0,))
        return emit("squeeze", value, axis=(0,))

    def initial(self, index: int, direction: int) -> Expr:
        """A state at the start, (batch, hidden): input ``index``, or zeros."""
        given = self.node.get(index)
        if given is None:
            return emit("zeros", shape=(self.batch, self.hidden), dtype=self.x.dtype)
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


@onnx_op("RNN", "LSTM", since=7)
def rnn(node: OnnxNode) -> list[Expr | None]:
    """Both biases are the projection's; LSTM has a cell beside its state, and peepholes."""
    layer = layer_of(node)
    states = (5, 6) if node.op_type == "LSTM" else (5,)
    if node.attr("input_forget", 0):
        raise node.refuse("input_forget")

    def run(direction: int) -> list[Expr]:
        one, other = layer.biases(direction)
        xw = layer.projected(direction, None if one is None or other is None else emit("add", one, other))
        peepholes = [] if node.get(7) is None else [layer.part(node[7], direction)]
        given = [layer.initial(index, direction) for index in states]
        return layer.recurred(direction, xw, layer.part(node[2], direction), *given, *peepholes)

    return outputs_of(layer, run)


@onnx_op("GRU", since=7)
def gru(node: OnnxNode) -> list[Expr | None]:
    layer = layer_of(node)

    def run(direction: int) -> list[Expr]:
        bias, recurrent = layer.biases(direction)
        zeros = Constant(np.zeros(3 * layer.hidden, layer.x.dtype))
        given = zeros if recurrent is None else recurrent, layer.initial(5, direction)
        xw, before = layer.projected(direction, bias), bool(node.attr("linear_before_reset"))
        return layer.recurred(direction, xw, layer.part(node[2], direction), *given, linear_before_reset=before)

    return outputs_of(layer, run)


def layer_of(node: OnnxNode) -> Layer:
    direction = node.attr("direction", "forward")
    if direction not in ("forward", "reverse", "bidirectional"):
        raise node.refuse("direction", "directions: forward, reverse, bidirectional")
    directions = 2 if direction == "bidirectional" else 1
    _check_supported(node, directions)
    if [rank(node[i]) for i in range(3)] != [3, 3, 3]:
        found = " and ".join(str(node[i].tensor_type) for i in range(3))
        raise node.misfit(f"the input and both weights must have 3 dimensions: {found}")
    x = emit("transpose", node[0], axes=(1, 0, 2)) if node.attr("layout", 0) else node[0]
    hidden = node.attr("hidden_size") or min(node[2].shape[1:])
    _check_shapes(node, x, hidden, directions)
    return Layer(node, x, hidden, directions, _lengths(node, x))


def _check_shapes(node: OnnxNode, x: Expr, hidden: int, directions: int) -> None:
    """Every input has the shape that ``direction`` and ``hidden_size`` ask for."""
    gates, (_, batch, features) = _GATES[_kind(node)] * hidden, x.shape
    order = 1 if _kind(node) == node.op_type else -1  # gates come last in quantized weights
    state = (batch, directions, hidden) if node.attr("layout", 0) else (directions, batch, hidden)
    expected: dict[str, tuple[int, ...]] = {
        "W": (directions, *(gates, features)[::order]),
        "R": (directions, *(gates, hidden)[::order]),
        "B": (directions, 2 * gates),
        "sequence_lens": (batch,),
        "initial_h": state,
        "initial_c": state,
        "P": (directions, 3 * hidden),
    }
    for position, (name, shape) in enumerate(expected.items(), 1):
        given = node.get(position)
        if given is not None and shapes_differ(given.tensor_type.shape, shape):
            raise node.misfit(f"{name} is {given.tensor_type}; expected {TensorType(shape, given.dtype)}")


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
    if found and found != [name.lower() for name in _ACTIVATIONS[_kind(node)] * directions]:
        raise node.refuse("activations", f"supported: {', '.join(_ACTIVATIONS[_kind(node)])}")
    if node.attr("clip"):
        raise node.refuse("clip")


def outputs_of(layer: Layer, run: Callable[[int], Sequence[Expr]]) -> list[Expr | None]:
    """Y (steps, directions, batch, hidden) and the last states (directions, batch, hidden); batch first by layout."""
    found = [run(d) for d in range(layer.directions)]
    results = [_joined([one[0] for one in found], 1)]
    results += [_joined([one[i] for one in found], 0) for i in range(1, len(found[0]))]
    if not layer.node.attr("layout", 0):
        return list(results)
    return [emit("transpose", r, axes=(2, 0, 1, 3) if rank(r) == 4 else (1, 0, 2)) for r in results]


def _joined(parts: list[Expr], axis: int) -> Expr:
    grown = [emit("expand_dims", part, axis=axis) for part in parts]
    return grown[0] if len(grown) == 1 else emit("concatenate", grown, axis=axis)
