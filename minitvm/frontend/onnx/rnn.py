"""ONNX recurrent layers: one dense layer projects all steps at once, ``nn.lstm``, ``nn.gru``, ``nn.rnn`` recur.

Layers with other activations, clipped gates or coupled ones are loops over what one step does.

Weights: W (directions, gates * hidden, input), R (directions, gates * hidden, hidden),
B (directions, 2 * gates * hidden): the projection's biases, then the recurrence's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from minitvm.frontend.onnx.activation import elu, hard_sigmoid, softplus
from minitvm.frontend.onnx.control import Step, recurrence
from minitvm.frontend.onnx.index import within
from minitvm.frontend.onnx.node import OnnxNode, cast, emit, emit_many, rank
from minitvm.frontend.onnx.registry import onnx_op
from minitvm.frontend.onnx.tensor import integers, reshaped
from minitvm.ir.expr import Constant, Expr
from minitvm.ir.ops._shape import shapes_differ
from minitvm.ir.types import TensorType

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_STATES = {"RNN": 1, "GRU": 1, "LSTM": 2}
_ACTIVATIONS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}


def _kind(node: OnnxNode) -> str:
    """The layer's name without how it is quantized."""
    return node.op_type.removeprefix("DynamicQuantize")


_CLOSED = 1e4
"""The sigmoid of this is 1, of its negative 0, in every float dtype."""


@dataclass(frozen=True)
class Lengths:
    """The number of the ``steps`` that count, for each sequence of the batch.  values: (batch,) integers.

    What lies behind is zero in the output, and changes no state.  A sequence of no steps ends in zeros.
    """

    values: Expr
    steps: int

    def inside(self, later: int = 0) -> Expr:
        """The steps that count, or come so many ``later``: (steps, batch, 1) bool."""
        step = integers(np.arange(-later, self.steps - later).reshape(-1, 1))
        return emit("expand_dims", emit("less", step, emit("expand_dims", cast(self.values, "int64"), axis=0)), axis=2)

    def reversed(self, x: Expr) -> Expr:
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
        """An LSTM's gates: behind a sequence nothing comes in and nothing is forgotten, so that its cell stays; nothing
        goes out, so that states that are measured together are those of sequences that go on."""
        gates = np.repeat(np.array([-_CLOSED, -_CLOSED, _CLOSED, 0], xw.dtype), hidden)  # input, output, forget, cell
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
        """The biases of the projection and of the recurrence, each (gates * hidden,)."""
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

    def recurred(self, direction: int, xw: Expr, weight: Expr, *arguments: Expr, **options: bool) -> list[Expr]:
        """Y (steps, batch, hidden) and the last states (batch, hidden) of one direction."""
        kind, reverse, lengths = _kind(self.node), self.is_reverse(direction), self.lengths
        operator = f"qnn.{kind.lower()}" if kind != self.node.op_type else f"nn.{kind.lower()}"
        step = step_of(self, direction)
        if step is not None:
            first, count = (2 if kind == "GRU" else 1), _STATES[kind]
            given = [weight, *arguments]
            states, taken = given[first : first + count], [*given[:first], *given[first + count :]]
            return self.looped(step, states, xw, taken, reverse)
        if lengths is None:
            return emit_many(operator, xw, weight, *arguments, reverse=reverse, **options)
        xw = lengths.reversed(xw) if reverse else xw
        xw = lengths.held(xw, self.hidden) if kind == "LSTM" else xw
        y, _, *cells = emit_many(operator, xw, weight, *arguments, **options)
        masked = lengths.masked(y)
        return [lengths.reversed(masked) if reverse else masked, lengths.last(y), *map(lengths.some, cells)]

    def looped(self, step: Step, states: list[Expr], xw: Expr, taken: list[Expr], reverse: bool) -> list[Expr]:
        """The layer's outputs, by a step of its own.

        Where a sequence has ended states stay, the output is zero, and so is the state that later steps see (which they
        may measure); whether it has, and had before, are two more features.
        """
        lengths = self.lengths
        if lengths is None:
            last, y = recurrence(step, states, xw, taken, reverse)
            return [y, *last]

        def held(before: list[Expr], features: Expr, given: list[Expr]) -> tuple[list[Expr], Expr]:
            size = features.shape[1] - 2
            xw, *flags = emit_many("split", features, indices_or_sections=(size, size + 1), axis=1)
            inside, was_inside = (emit("greater", flag, 0) for flag in flags)
            after, y = step([emit("where", was_inside, before[0], 0), *before[1:]], xw, given)
            kept = [emit("where", inside, new, old) for new, old in zip(after, before, strict=True)]
            return kept, emit("where", inside, y, 0)

        xw = lengths.reversed(xw) if reverse else xw
        flags = [cast(lengths.inside(later), xw.dtype) for later in (0, 1)]
        last, y = recurrence(held, states, emit("concatenate", [xw, *flags], axis=2), taken)
        return [lengths.reversed(y) if reverse else y, *map(lengths.some, last)]


# --- one step of layers of which ``nn.lstm`` and its like know nothing ------------------------------------------

Activation: TypeAlias = Callable[[Expr], Expr]

_FUNCTIONS: dict[str, tuple[Callable[..., Expr], tuple[float, ...]]] = {
    "affine": (lambda x, alpha, beta: x * alpha + beta, (1.0, 0.0)),
    "elu": (elu, (1.0,)),
    "hardsigmoid": (hard_sigmoid, (0.2, 0.5)),
    "leakyrelu": (lambda x, alpha: emit("nn.leaky_relu", x, alpha=alpha), (0.01,)),
    "relu": (lambda x: emit("nn.relu", x), ()),
    "scaledtanh": (lambda x, alpha, beta: emit("tanh", x * beta) * alpha, (1.0, 1.0)),
    "sigmoid": (lambda x: emit("sigmoid", x), ()),
    "softplus": (softplus, ()),
    "softsign": (lambda x: x / (emit("abs", x) + 1), ()),
    "tanh": (lambda x: emit("tanh", x), ()),
    "thresholdedrelu": (lambda x, alpha: emit("where", emit("greater", x, alpha), x, 0), (1.0,)),
}
"""ONNX's activations by their names in lower case, and what alpha and beta are by default."""


def activations_of(node: OnnxNode, directions: int) -> list[Activation]:
    """All directions', of clipped gates (as in ONNX Runtime not of an LSTM's cell); each takes the next alpha and beta,
    if it has any."""
    names, plain = _names(node, directions)
    if len(names) != len(plain) or set(names) - _FUNCTIONS.keys():
        known = (
            "Affine, Elu, HardSigmoid, LeakyRelu, Relu, ScaledTanh, Sigmoid, Softplus, Softsign, Tanh, ThresholdedRelu"
        )
        raise node.refuse("activations", f"{len(plain)} of {known}")
    given = [iter(node.attr(f"activation_{name}") or ()) for name in ("alpha", "beta")]
    clip, of_cell = float(node.attr("clip") or 0.0), 2 if _kind(node) == "LSTM" else -1
    return [_activation(n, given, clip if i % 3 != of_cell else 0.0) for i, n in enumerate(names)]


def _names(node: OnnxNode, directions: int) -> tuple[list[str], list[str]]:
    """The activations of all directions in lower case, as given (RNN's default has two whatever the direction) and as
    they usually are."""
    plain = [name.lower() for name in _ACTIVATIONS[_kind(node)] * directions]
    return [name.lower() for name in node.attr("activations")] if node.has("activations") else plain, plain


def _activation(name: str, given: list[Iterator[float]], clip: float) -> Activation:
    function, defaults = _FUNCTIONS[name]
    numbers = [next(own, default) for own, default in zip(given, defaults, strict=False)]
    return lambda x: function(emit("clip", x, a_min=-clip, a_max=clip) if clip else x, *numbers)


def step_of(layer: Layer, direction: int) -> Step | None:
    """What one step does; ``None`` where the layer is as ``nn.lstm`` and its like have it."""
    node, kind = layer.node, _kind(layer.node)
    names, plain = _names(node, layer.directions)
    if names == plain and not node.attr("clip") and not node.attr("input_forget", 0):
        return None
    each = len(_ACTIVATIONS[kind])
    functions = activations_of(node, layer.directions)[each * direction : each * (direction + 1)]
    coupled, before = bool(node.attr("input_forget", 0)), bool(node.attr("linear_before_reset", 0))

    def lstm(states: list[Expr], xw: Expr, taken: list[Expr]) -> tuple[list[Expr], Expr]:
        return lstm_step(functions, xw + emit("nn.dense", states[0], taken[0]), states[1], taken[1:], coupled)

    def rnn(states: list[Expr], xw: Expr, taken: list[Expr]) -> tuple[list[Expr], Expr]:
        state = functions[0](xw + emit("nn.dense", states[0], taken[0]))
        return [state], state

    def gru(states: list[Expr], xw: Expr, taken: list[Expr]) -> tuple[list[Expr], Expr]:
        state = _gru_step(functions, before, states[0], emit_many("split", xw, indices_or_sections=3, axis=1), taken)
        return [state], state

    return {"LSTM": lstm, "RNN": rnn, "GRU": gru}[kind]


def _gru_step(
    functions: Sequence[Activation], linear_before_reset: bool, h: Expr, xw: list[Expr], taken: list[Expr]
) -> Expr:
    """The next state; ``taken``: the recurrence's weight and bias."""
    wz, wr, wh = emit_many("split", taken[0], indices_or_sections=3, axis=0)
    bz, br, bh = emit_many("split", taken[1], indices_or_sections=3, axis=0)
    f, g = functions
    z, r = f(xw[0] + emit("nn.dense", h, wz) + bz), f(xw[1] + emit("nn.dense", h, wr) + br)
    found = r * (emit("nn.dense", h, wh) + bh) if linear_before_reset else emit("nn.dense", r * h, wh) + bh
    return (1 - z) * g(xw[2] + found) + z * h


def lstm_step(
    functions: Sequence[Activation], gates: Expr, cell: Expr, peepholes: Sequence[Expr], coupled: bool = False
) -> tuple[list[Expr], Expr]:
    """The next state and cell, and the state once more as what the step gives.  A ``coupled`` cell forgets as much as
    it takes in."""
    f, g, h = functions
    before, out, forget, new = emit_many("split", gates, indices_or_sections=4, axis=1)
    if peepholes:
        p_in, p_out, p_forget = emit_many("split", peepholes[0], indices_or_sections=3, axis=0)
        before, forget = before + p_in * cell, forget + p_forget * cell
    taken = f(before)
    cell = (1 - taken if coupled else f(forget)) * cell + taken * g(new)
    if peepholes:
        out = out + p_out * cell
    state = f(out) * h(cell)
    return [state, cell], state


@onnx_op("RNN", "LSTM", since=7)
def rnn(node: OnnxNode) -> list[Expr | None]:
    """Both biases are the projection's; LSTM has a cell beside its state, and peepholes."""
    layer = layer_of(node)
    states = (5, 6) if node.op_type == "LSTM" else (5,)

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
    activations_of(node, directions)
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
    weights = {n: (directions, *(gates, size)[::order]) for n, size in (("W", features), ("R", hidden))}
    initial = {"B": (directions, 2 * gates), "sequence_lens": (batch,), "initial_h": state, "initial_c": state}
    expected: dict[str, tuple[int, ...]] = {**weights, **initial, "P": (directions, 3 * hidden)}
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
