"""A small model for the runtime's tests, what it must compute, and inputs for it."""

from __future__ import annotations

import numpy as np

from minitvm import relay
from minitvm.runtime.library import Library

Model = tuple[relay.Module, dict[str, np.ndarray], Library]


def small_module() -> tuple[relay.Module, dict[str, np.ndarray]]:
    """x: (2, 6) -> softmax(relu(x @ w.T + b)), and a second result that is a reshape; weights by name."""
    x, w, b = relay.var("x", shape=(2, 6)), relay.var("w", shape=(5, 6)), relay.var("b", shape=(5,))
    hidden = relay.nn.relu(relay.nn.bias_add(relay.nn.dense(x, w), b))
    module = relay.Module(
        relay.Function([x, w, b], relay.Tuple([relay.nn.softmax(hidden), relay.reshape(hidden, newshape=(10,))]))
    )
    rng = np.random.default_rng(7)
    params = {"w": rng.standard_normal((5, 6)).astype("float32"), "b": rng.standard_normal(5).astype("float32")}
    return module, params


def expected(params: dict[str, np.ndarray], x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    hidden = np.maximum(x @ params["w"].T + params["b"], 0)
    powers = np.exp(hidden - hidden.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True), hidden.reshape(10)


def sample(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((2, 6)).astype("float32")
