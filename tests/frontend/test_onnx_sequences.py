"""Recurrent layers over sequences of different lengths, and layers whose shapes contradict their attributes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx_build import build, error_of, run, value
from onnx_oracle import check_as_onnx_runtime, check_same, compiled, onnx_runtime, onnx_runtime_refuses

from minitvm.errors import FrontendError, InputError, MiniTVMError, TypeInferenceError

RNG = np.random.default_rng(5)
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STEPS, BATCH, HIDDEN, FEATURES = 5, 4, 3, 2


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def layer(op: str, lengths: np.ndarray | None = None, **changes: Any) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model with all its states as inputs, and their values; ``lengths`` an initializer where given."""
    attributes = {"hidden_size": HIDDEN, "direction": "forward", **changes}
    count = 1 + (attributes["direction"] == "bidirectional")
    feeds = {"x": floats(STEPS, BATCH, FEATURES), "h": floats(count, BATCH, HIDDEN), "c": floats(count, BATCH, HIDDEN)}
    gates = GATES[op] * HIDDEN
    weights = {"w": floats(count, gates, FEATURES), "r": floats(count, gates, HIDDEN), "b": floats(count, 2 * gates)}
    if lengths is not None:
        weights["lengths"] = lengths
    else:
        feeds["lengths"] = np.array([STEPS, 2, 0, 1], np.int32)
    states = ["h", "c"][: 2 if op == "LSTM" else 1]
    node = helper.make_node(
        op,
        ["x", "w", "r", "b", "lengths", *states],
        ["y", "yh", "yc"][: 1 + len(states)],
        name="the_node",
        **attributes,
    )
    used = {name: array for name, array in feeds.items() if name in node.input}
    return build([node], [value(n, a) for n, a in used.items()], list(node.output), weights), used


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", list(GATES))
def test_shorter_sequences(op: str, direction: str) -> None:
    """Known while importing, and known when the model runs."""
    for lengths in ([STEPS, 2, 0, 1], [0, 0, 0, 0], [STEPS] * 4, [3, 3, 3, 3]):
        model, feeds = layer(op, np.array(lengths, np.int32), direction=direction)
        check_same(run(model, feeds), onnx_runtime(model, feeds), rtol=1e-4, atol=1e-5)
    model, feeds = layer(op, direction=direction)
    check_as_onnx_runtime(model, feeds, rtol=1e-4, atol=1e-5)


def test_lengths_outside_of_the_input() -> None:
    """Known while importing, and when the model runs."""
    lengths = np.array([STEPS + 1, 1, 1, -1], np.int32)
    model, feeds = layer("GRU", lengths)
    assert onnx_runtime_refuses(model, feeds)
    problem = "length 6 is outside of dimension 0 of Tensor[(5, 4, 2), float32]"
    assert error_of(TypeInferenceError, model) == f'GRU: {problem}\n  | ONNX node "the_node" (GRU)'
    model, feeds = layer("GRU")
    for call in (run, compiled):
        with pytest.raises(InputError) as error:
            call(model, {**feeds, "lengths": lengths})
        assert str(error.value).startswith(problem) and "the_node" in str(error.value)


def test_an_unknown_direction() -> None:
    model, _ = layer("LSTM", direction="sideways")
    assert error_of(FrontendError, model) == (
        "LSTM: attribute direction='sideways' is not supported\n"
        '  | ONNX node "the_node" (LSTM)\n'
        "  = hint: directions: forward, reverse, bidirectional"
    )


def test_a_hidden_size_that_the_weights_do_not_have() -> None:
    model, feeds = layer("LSTM", hidden_size=HIDDEN + 1)
    assert onnx_runtime_refuses(model, feeds)
    with pytest.raises(MiniTVMError) as error:
        run(model, feeds)
    assert str(error.value) == (
        'LSTM: W is Tensor[(1, 12, 2), float32]; expected Tensor[(1, 16, 2), float32]\n  | ONNX node "the_node" (LSTM)'
    )


@pytest.mark.parametrize("name", ["w", "r", "b", "h", "c", "lengths"])
@pytest.mark.parametrize("op", list(GATES))
def test_every_shape_is_checked(op: str, name: str) -> None:
    """A shape that does not fit is refused, as in ONNX Runtime."""
    if name == "c" and op != "LSTM":
        return
    model, feeds = layer(op, np.array([STEPS, 2, 0, 1], np.int32))
    arrays = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    for axis in range({**arrays, **feeds}[name].ndim):
        weights, given = dict(arrays), dict(feeds)
        where = weights if name in weights else given
        where[name] = np.concatenate([where[name]] * 2, axis=axis)
        changed = build(
            model.graph.node, [value(n, a) for n, a in given.items()], list(model.graph.node[0].output), weights
        )
        assert onnx_runtime_refuses(changed, given)
        with pytest.raises(MiniTVMError):
            run(changed, given)


ACTIVATIONS = {
    "Affine": (0.7, 0.2), "Elu": (0.5,), "HardSigmoid": (0.3, 0.4), "LeakyRelu": (0.2,), "Relu": (),
    "ScaledTanh": (0.9, 0.6), "Sigmoid": (), "Softplus": (), "Softsign": (), "Tanh": (), "ThresholdedRelu": (0.1,),
}  # fmt: skip


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize(
    "direction, more", [("forward", {"clip": 0.4}), ("reverse", {}), ("bidirectional", {"clip": 0.9})]
)
@pytest.mark.parametrize("op", list(GATES))
def test_other_activations(op: str, direction: str, more: dict[str, Any], ends: bool) -> None:
    """All there are in turn; clipped gates; cells that forget what they take in; sequences that end earlier."""
    count = {"RNN": 1, "GRU": 2, "LSTM": 3}[op] * (1 + (direction == "bidirectional"))
    first = len(op) + len(direction) + 5 * ends
    names = [list(ACTIVATIONS)[(first + 4 * i) % len(ACTIVATIONS)] for i in range(count)]
    for position, name in enumerate(("activation_alpha", "activation_beta")):
        numbers = [ACTIVATIONS[n][position] for n in names if len(ACTIVATIONS[n]) > position]
        more = more | ({name: numbers} if numbers else {})
    more = more | (
        {"input_forget": 1} if op == "LSTM" and ends else {"linear_before_reset": 1} if op == "GRU" and ends else {}
    )
    lengths = None if ends else np.full(BATCH, STEPS, np.int32)
    model, feeds = layer(op, lengths, direction=direction, activations=names, **more)
    check_as_onnx_runtime(model, feeds, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("op", list(GATES))
def test_a_sequence_of_no_steps(op: str) -> None:
    """Nothing comes out, and states are what they were, with activations of its own as without."""
    for more in ({}, {"clip": 0.5}):
        model, feeds = layer(op, np.full(BATCH, STEPS, np.int32), **more)
        model.graph.node[0].input[4] = ""
        feeds["x"] = feeds["x"][:0]
        model.graph.input[0].CopyFrom(value("x", feeds["x"]))
        y, *states = compiled(model, feeds)
        assert y.shape == (0, 1, BATCH, HIDDEN)
        for state, name in zip(states, "hc", strict=False):
            np.testing.assert_array_equal(state, feeds[name])


@pytest.mark.parametrize("more", [{}, {"clip": 0.5}])
@pytest.mark.parametrize("op", list(GATES))
def test_batch_first(op: str, more: dict[str, Any]) -> None:
    """ONNX Runtime has none: as the same layer with the batch behind the steps.  With peepholes where there are any."""
    model, feeds = layer(op, np.full(BATCH, STEPS, np.int32), direction="bidirectional", **more)
    if op == "LSTM":
        model.graph.node[0].input.append("p")
        model.graph.initializer.append(numpy_helper.from_array(floats(2, 3 * HIDDEN), "p"))
    expected = onnx_runtime(model, feeds)
    model.graph.node[0].attribute.append(helper.make_attribute("layout", 1))
    turned = {name: np.ascontiguousarray(array.swapaxes(0, 1)) for name, array in feeds.items()}
    for given, array in zip(model.graph.input, turned.values(), strict=True):
        given.CopyFrom(value(given.name, array))
    found = compiled(model, turned)
    orders = [(2, 0, 1, 3), (1, 0, 2), (1, 0, 2)]
    check_same(found, [e.transpose(o) for e, o in zip(expected, orders, strict=False)], rtol=1e-4, atol=1e-5)
