"""Recurrent layers in one direction.  The input's projection, a dense over all steps with both biases added, comes
first; here is what depends on the step before.  Templates lower them; there are no compute rules."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from minitvm.ir.dims import differ
from minitvm.ir.op import Fusion, Op, signature
from minitvm.ir.ops._shape import require_kind, require_same_dtype, shapes_differ
from minitvm.ir.types import TensorType, TupleType, Type, accumulator


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)) that never overflows."""
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1, small) / (1 + small))


class Recurrent(Op, fusion=Fusion.OPAQUE, lowered_by_template=True):
    """A layer over (steps, batch, features).  ``reverse`` walks the steps backwards; results stay in input order.

    Results are y: (steps, batch, hidden), and the last of each state: (batch, hidden).
    """

    gates: ClassVar[int] = 1
    reverse: bool = False

    def _check(self, xw: TensorType, weight: TensorType, **others: TensorType | None) -> TupleType:
        """The results' types; rejects shapes that do not fit each other."""
        require_kind(self, xw, "f", "xw")
        gates = self.gates
        if xw.rank != 3 or weight.rank != 2:
            raise self.reject(f"xw must be (steps, batch, {gates} * hidden) and the weight a matrix: {xw}, {weight}")
        rows, hidden = weight.shape
        if differ(rows, gates * hidden):
            raise self.reject(f"recurrent_weight must be ({gates} * hidden, hidden), not {weight}")
        if differ(xw.shape[2], gates * hidden):
            raise self.reject(f"xw has {xw.shape[2]} features but the weight has {gates} gates of {hidden}: {xw}")
        require_same_dtype(self, xw, weight)
        state = xw.with_shape((xw.shape[1], hidden))
        shapes = {"recurrent_bias": (gates * hidden,), "peephole": (3 * hidden,)}
        for name, type_ in others.items():
            expected = xw.with_shape(shapes.get(name, state.shape))
            if type_ is not None:
                require_same_dtype(self, xw, type_)
                if shapes_differ(type_.shape, expected.shape):
                    raise self.reject(f"{name} must be {expected}, not {type_}")
        return TupleType((xw.with_shape((*xw.shape[:2], hidden)), *[state] * (self.outputs - 1)))

    def flops(self, args: Sequence[TensorType], results: Sequence[TensorType]) -> float:
        """Two per multiplication by the recurrent weight; the gates' own are few beside them."""
        return 2.0 * args[0].size * args[1].static_shape[1]

    def batch_axes(self) -> tuple[Sequence[int | None], Sequence[int | None]]:
        axes = {"xw": 1, "h0": 0, "c0": 0}
        return [axes.get(name) for name in signature(type(self)).names], [1, *[0] * (self.outputs - 1)]

    def solve(self, types: list[Type | None]) -> list[Type | None]:
        """States without a type are (batch, hidden)."""
        xw, weight = types[:2]
        if not isinstance(xw, TensorType) or not isinstance(weight, TensorType):
            return types
        state, names = xw.with_shape((xw.shape[1], weight.shape[1])), signature(type(self)).names
        return [state if t is None and names[n] in ("h0", "c0") else t for n, t in enumerate(types)]

    def reference(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """All steps; of half precision in single, rounded at the end."""
        dtype = arrays[0].dtype
        wide = accumulator(dtype.name)
        return tuple(r.astype(dtype) for r in self._walk(*(a.astype(wide, copy=False) for a in arrays)))

    def _walk(self, *args: Any, **kwargs: Any) -> tuple[np.ndarray, ...]:
        raise NotImplementedError

    def _order(self, steps: int) -> Any:
        return range(steps - 1, -1, -1) if self.reverse else range(steps)


class Lstm(Recurrent, name="nn.lstm", gates=4, outputs=3):
    """Long short-term memory, gates in ONNX's order i, o, f, c.

    xw: (steps, batch, 4 * hidden), recurrent_weight: (4 * hidden, hidden), h0, c0: (batch, hidden),
    peephole (optional; i, o, f): (3 * hidden,) -> y: (steps, batch, hidden), and the last h and c: (batch, hidden).
    """

    def infer(
        self,
        xw: TensorType,
        recurrent_weight: TensorType,
        h0: TensorType,
        c0: TensorType,
        peephole: TensorType | None = None,
    ) -> TupleType:
        return self._check(xw, recurrent_weight, h0=h0, c0=c0, peephole=peephole)

    def _walk(
        self,
        xw: np.ndarray,
        recurrent_weight: np.ndarray,
        h0: np.ndarray,
        c0: np.ndarray,
        peephole: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        h, c = h0.copy(), c0.copy()
        y = np.empty((*xw.shape[:2], h0.shape[1]), xw.dtype)
        peepholes = [None] * 3 if peephole is None else np.split(peephole, 3)
        for t in self._order(xw.shape[0]):
            i, o, f, g = np.split(xw[t] + h @ recurrent_weight.T, 4, axis=1)
            i, f = peeped(i, c, peepholes[0]), peeped(f, c, peepholes[2])
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = y[t] = sigmoid(peeped(o, c, peepholes[1])) * np.tanh(c)
        return y, h, c


def peeped(gate: np.ndarray, cell: np.ndarray, peephole: np.ndarray | None) -> np.ndarray:
    """A gate that sees the cell, which may be infinite where nobody looks."""
    return gate if peephole is None else gate + peephole * cell


class Gru(Recurrent, name="nn.gru", gates=3, outputs=2):
    """Gated recurrent unit, gates in ONNX's order z, r, h.

    xw: (steps, batch, 3 * hidden), recurrent_weight: (3 * hidden, hidden), recurrent_bias: (3 * hidden,),
    h0: (batch, hidden) -> y: (steps, batch, hidden), and the last h.  With ``linear_before_reset`` the reset gate
    scales the candidate's recurrent product and bias, otherwise the state before that product.
    """

    linear_before_reset: bool = False

    def infer(
        self, xw: TensorType, recurrent_weight: TensorType, recurrent_bias: TensorType, h0: TensorType
    ) -> TupleType:
        return self._check(xw, recurrent_weight, recurrent_bias=recurrent_bias, h0=h0)

    def _walk(
        self, xw: np.ndarray, recurrent_weight: np.ndarray, recurrent_bias: np.ndarray, h0: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        h = h0.copy()
        y = np.empty((*xw.shape[:2], h0.shape[1]), xw.dtype)
        for t in self._order(xw.shape[0]):
            h = y[t] = self._step(xw[t], recurrent_weight, recurrent_bias, h)
        return y, h

    def _step(self, x: np.ndarray, weight: np.ndarray, bias: np.ndarray, h: np.ndarray) -> np.ndarray:
        """The state after one step."""
        (xz, xr, xh), (wz, wr, wh), (bz, br, bh) = np.split(x, 3, axis=1), np.split(weight, 3), np.split(bias, 3)
        z = sigmoid(xz + h @ wz.T + bz)
        r = sigmoid(xr + h @ wr.T + br)
        recurrent = r * (h @ wh.T + bh) if self.linear_before_reset else (r * h) @ wh.T + bh
        return np.asarray((1 - z) * np.tanh(xh + recurrent) + z * h)


class Rnn(Recurrent, name="nn.rnn", outputs=2):
    """The plain recurrence h = tanh(xw + recurrent_weight @ h).

    xw: (steps, batch, hidden), recurrent_weight: (hidden, hidden), h0: (batch, hidden)
    -> y: (steps, batch, hidden), and the last h.
    """

    def infer(self, xw: TensorType, recurrent_weight: TensorType, h0: TensorType) -> TupleType:
        return self._check(xw, recurrent_weight, h0=h0)

    def _walk(self, xw: np.ndarray, recurrent_weight: np.ndarray, h0: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        h = h0.copy()
        y = np.empty((*xw.shape[:2], h0.shape[1]), xw.dtype)
        for t in self._order(xw.shape[0]):
            h = y[t] = np.tanh(xw[t] + h @ recurrent_weight.T)
        return y, h
