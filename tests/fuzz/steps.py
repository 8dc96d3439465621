"""Recurrences step by step: each step a node of one step, so that what is asked of a node's roundings is asked of each.

A state that steps multiply by more than 1 makes the first one's rounding as large as its result.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tests.fuzz.case import attributes
from tests.fuzz.walk import Array, Compute, Results

GATES = {"RNN": 1, "GRU": 2, "LSTM": 3}
"""Recurrent operators, and how many activations a direction has."""


def by_steps(compute: Compute, node: onnx.NodeProto, operands: Sequence[Array | None], opset: int) -> Results:
    """What a node of ``GATES`` gives, of steps that ``compute`` answers."""
    given, is_lstm = attributes(node), node.op_type == "LSTM"
    if given.keys() & {"layout", "activation_alpha", "activation_beta"}:
        raise NotImplementedError("a batch in front, or numbers of activations")
    x, w, r, b, lengths, h, c, p = [*operands, *[None] * 8][:8]
    assert x is not None and w is not None and r is not None
    nothing = np.zeros((len(w), x.shape[1], r.shape[2]), x.dtype)
    starts = [nothing if a is None else a for a in ((h, c) if is_lstm else (h,))]
    ends = np.full(x.shape[1], len(x)) if lengths is None else lengths
    found = []
    for d in range(len(w)):
        one, part = _one(node, d, b is not None, p is not None), slice(d, d + 1)
        fixed = [None if a is None else a[part] for a in (w, r, b, None)]
        last = [None if p is None else p[part]] if is_lstm else []

        def step(row: Array, state: Results, one: Any = one, fixed: Any = fixed, last: Any = last) -> Results:
            return compute(one, [row, *fixed, *state, *last], opset)[1:]

        backward = d == 1 or given.get("direction") == b"reverse"
        found.append(_walked(step, x, [a[part] for a in starts], ends, backward))
    lasts = [np.concatenate(each) for each in zip(*(state for _, state in found), strict=True)]
    results = [np.stack([rows for rows, _ in found], 1), *lasts]
    return [a for a, name in zip(results, node.output, strict=False) if name]


def _walked(
    step: Callable[[Array, Results], Results], x: Array, state: Results, ends: Array, backward: bool
) -> tuple[Array, Results]:
    """All rows of one direction, and the last state; that of a sequence that has ended stays."""
    rows = np.zeros((len(x), *state[0].shape[1:]), x.dtype)
    for t in reversed(range(len(x))) if backward else range(len(x)):
        runs = (t < ends)[:, None]
        state = [np.where(runs, new, old) for new, old in zip(step(x[t : t + 1], state), state, strict=True)]
        rows[t] = np.where(runs, state[0][0], 0)
    return rows, state


def _one(node: onnx.NodeProto, direction: int, biased: bool, peeps: bool) -> onnx.NodeProto:
    """The node for one step of a direction, forwards."""
    gates, given = GATES[node.op_type], attributes(node)
    given.pop("direction", None)
    if "activations" in given:
        given["activations"] = given["activations"][direction * gates : (direction + 1) * gates]
    names = ["x", "w", "r", "b" if biased else "", "", "h"]
    more = ["c", "p" if peeps else ""] if node.op_type == "LSTM" else []
    return helper.make_node(node.op_type, [*names, *more], ["y", "last", "cell"][: 3 if more else 2], **given)
