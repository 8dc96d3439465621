"""RNN, GRU and LSTM with the default activations.  ONNX's own run every step of every sequence, and all forwards."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.fuzz.references.registry import Array, reference

State = tuple[Array, ...]
Step = Callable[[Array, State], State]


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


@reference("RNN", "GRU", "LSTM")
def recurrent(
    x: Array, w: Array, r: Array, b: Array | None = None, lengths: Array | None = None, *others: Array | None,
    direction: bytes = b"forward", hidden_size: int = 0, **given: Any,
) -> State:  # fmt: skip
    """Both directions of a layer.

    x: (steps, batch, features), weights: (directions, gates * hidden, features), (directions, gates * hidden, hidden),
    (directions, 2 * gates * hidden) -> (steps, directions, batch, hidden), and each last state.
    """
    (directions, rows, hidden), batch = r.shape, x.shape[1]
    step_of, count = {1: (_rnn, 1), 3: (_gru, 1), 4: (_lstm, 2)}[rows // hidden]
    initial, peepholes = [*others, None, None][:count], others[2] if len(others) > 2 else None
    if (directions, rows) != w.shape[:2]:
        raise ValueError("weights of other directions or gates")
    if any(s is not None and s.shape != (directions, batch, hidden) for s in initial):
        raise ValueError("a state of another shape")
    if lengths is not None and ((lengths < 0) | (lengths > len(x))).any():
        raise ValueError("a sequence longer than there are steps")
    ends = np.full(batch, len(x)) if lengths is None else lengths
    bias = np.zeros((directions, 2 * rows), x.dtype) if b is None else b
    starts = [np.zeros((directions, batch, hidden), x.dtype) if s is None else s for s in initial]
    found = []
    for d in range(directions):
        more = given if peepholes is None else {**given, "peepholes": peepholes[d]}
        bw, br = np.split(bias[d], 2)
        step, backward = step_of(w[d], r[d], bw, br, **more), d == 1 or direction == b"reverse"
        found.append(_walk(x, tuple(s[d] for s in starts), step, ends, backward))
    lasts = (np.stack([last[i] for _, last in found]) for i in range(count))
    return (np.stack([y for y, _ in found], 1), *lasts)


def _walk(x: Array, state: State, step: Step, ends: Array, backward: bool) -> tuple[Array, State]:
    """All steps of one direction; a sequence that has ended gives zeros, and its state stays."""
    outputs = np.zeros((x.shape[0], *state[0].shape), x.dtype)
    for t in reversed(range(x.shape[0])) if backward else range(x.shape[0]):
        runs = (t < ends)[:, None]
        state = tuple(np.where(runs, new, old) for new, old in zip(step(x[t], state), state, strict=True))
        outputs[t] = np.where(runs, state[0], 0)
    return outputs, state


def _rnn(w: Array, r: Array, bw: Array, br: Array, clip: float = np.inf) -> Step:
    return lambda x, state: (np.tanh(np.clip(x @ w.T + state[0] @ r.T + (bw + br), -clip, clip)),)


def _gru(w: Array, r: Array, bw: Array, br: Array, clip: float = np.inf, linear_before_reset: int = 0) -> Step:
    n = r.shape[1]
    last = slice(2 * n, None)

    def step(x: Array, state: State) -> State:
        (h,), inner = state, x @ w.T + bw
        gates = (np.clip(inner[:, s] + h @ r[s].T + br[s], -clip, clip) for s in (slice(n), slice(n, 2 * n)))
        update, keep = map(_sigmoid, gates)
        linear = linear_before_reset
        reset = keep * (h @ r[last].T + br[last]) if linear else (keep * h) @ r[last].T + br[last]
        return ((1 - update) * np.tanh(np.clip(inner[:, last] + reset, -clip, clip)) + update * h,)

    return step


def _lstm(
    w: Array,
    r: Array,
    bw: Array,
    br: Array,
    clip: float = np.inf,
    input_forget: int = 0,
    peepholes: Array | None = None,
) -> Step:
    pi, po, pf = np.split(np.zeros(3 * r.shape[1], w.dtype) if peepholes is None else peepholes, 3)

    def step(x: Array, state: State) -> State:
        h, c = state
        i, o, f, g = np.split(x @ w.T + h @ r.T + (bw + br), 4, 1)
        i = _sigmoid(np.clip(i + pi * c, -clip, clip))
        f = 1 - i if input_forget else _sigmoid(np.clip(f + pf * c, -clip, clip))
        c = f * c + i * np.tanh(np.clip(g, -clip, clip))
        return _sigmoid(np.clip(o + po * c, -clip, clip)) * np.tanh(c), c

    return step
