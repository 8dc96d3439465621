"""Sequences of different lengths in one batch, as recurrent layers take them: ``sequence_lens``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minitvm.frontend.onnx.node import cast, emit, scalar
from minitvm.frontend.onnx.tensor import integers
from minitvm.ir.expr import Constant, Expr

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
        counts = emit("less", step, emit("expand_dims", cast(self.values, "int64"), axis=0))
        return emit("expand_dims", counts, axis=2)

    def turned(self, x: Expr) -> Expr:
        """Each sequence of x: (steps, batch, ...) back to front, what lies behind it left in place."""
        return emit("reverse_sequence", x, self.values, seq_axis=0, batch_axis=1)

    def masked(self, y: Expr) -> Expr:
        return emit("where", self.inside(), y, scalar(0, y))

    def last(self, y: Expr) -> Expr:
        """The output of each sequence's last step.  y: (steps, batch, hidden) -> (batch, hidden)."""
        if not self.steps:
            return emit("zeros", shape=y.shape[1:], dtype=y.dtype)
        step = emit("subtract", cast(self.values, "int64"), integers(1))
        places = emit("reshape", emit("maximum", step, integers(0)), newshape=(1, -1, 1))
        indices = emit("broadcast_to", places, shape=(1, *y.shape[1:]))
        return self.some(emit("squeeze", emit("gather", y, indices, axis=0), axis=(0,)))

    def some(self, state: Expr) -> Expr:
        """A last state (batch, hidden), zero where a sequence has no steps."""
        return emit(
            "where",
            emit("expand_dims", emit("greater", self.values, scalar(0, self.values)), axis=1),
            state,
            scalar(0, state),
        )

    def held(self, xw: Expr, hidden: int) -> Expr:
        """An LSTM's gates: behind a sequence nothing comes in and nothing is forgotten, so that its cell stays."""
        gates = np.repeat(np.array([-_CLOSED, 0, _CLOSED, 0], xw.dtype), hidden)  # input, output, forget, cell
        return emit("where", self.inside(), xw, Constant(gates))
