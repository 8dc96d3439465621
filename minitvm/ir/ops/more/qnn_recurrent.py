"""An LSTM whose state is quantized as it comes, at each step anew, and multiplied with bytes in integers."""

from collections.abc import Sequence

import numpy as np

from minitvm.ir.loop import DOT_OPERANDS, Dot
from minitvm.ir.op import Fusion, Op
from minitvm.ir.ops._shape import require_kind, shapes_differ
from minitvm.ir.ops.nn_recurrent import peeped, sigmoid
from minitvm.ir.types import TensorType, TupleType

BLOCK = 16
"""Columns of the weight that lie side by side."""

PARTS_OF_WORD = 4


def words_of(weight: np.ndarray) -> np.ndarray:
    """weight: (hidden, columns) int8 -> (blocks, depth, 16) int32 words, ``depth`` a quarter of ``hidden``.

    A word has the rows r, r + depth, r + 2 * depth, r + 3 * depth, so that vectors of the state become vectors of
    words; rows and columns that are missing are zeros.
    """
    (hidden, columns), parts = weight.shape, PARTS_OF_WORD
    depth, blocks = -(-hidden // parts), -(-columns // BLOCK)
    whole = np.pad(weight, ((0, parts * depth - hidden), (0, blocks * BLOCK - columns)))
    apart = whole.reshape(parts, depth, blocks, BLOCK).transpose(2, 1, 3, 0)
    return np.asarray(np.ascontiguousarray(apart).view("<i4")[..., 0])


def _bytes_of(words: np.ndarray) -> np.ndarray:
    """The other way: (blocks, depth, 16) -> (4 * depth, blocks * 16) int8."""
    apart = np.ascontiguousarray(words)[..., None].view("int8").transpose(3, 1, 0, 2)
    return np.asarray(apart.reshape(PARTS_OF_WORD * words.shape[1], -1))


class QuantizedLstm(Op, name="qnn.lstm", fusion=Fusion.OPAQUE, lowered_by_template=True, outputs=3):
    """``nn.lstm`` by a state of bytes: before each step all states together become uint8, with a range that holds 0.

    xw: (steps, batch, 4 * hidden) float32, recurrent_weight: words of int8 (:func:`words_of`; one more column of ones
    where it has zero points), corrections: (1 or 2, 4 * hidden) int32, the sums of the weight's columns less their zero
    points, and these where there are any; scale: (4 * hidden,), h0, c0: (batch, hidden), peephole (optional; i, o, f):
    (3 * hidden,) -> y: (steps, batch, hidden), and the last h and c: (batch, hidden).

    ``reverse`` walks the steps backwards; results stay in input order.  ``product`` is the instruction that multiplies.
    """

    reverse: bool = False
    product: Dot = "dot4"

    def infer(
        self,
        xw: TensorType,
        recurrent_weight: TensorType,
        corrections: TensorType,
        scale: TensorType,
        h0: TensorType,
        c0: TensorType,
        peephole: TensorType | None = None,
    ) -> TupleType:
        require_kind(self, xw, "f", "xw")
        if xw.rank != 3 or h0.rank != 2 or xw.dtype != "float32":
            raise self.reject(f"xw must be (steps, batch, 4 * hidden) float32, and h0 (batch, hidden): {xw}, {h0}")
        hidden, columns = h0.static_shape[1], 4 * h0.static_shape[1]
        rows = corrections.shape[0] if corrections.rank else 0
        blocks, depth = -(-(columns + (rows == 2)) // BLOCK), -(-hidden // PARTS_OF_WORD)
        state = xw.with_shape((xw.shape[1], hidden))
        expected = {
            "xw": (xw, xw.with_shape((*xw.shape[:2], columns))),
            "recurrent_weight": (recurrent_weight, TensorType((blocks, depth, BLOCK), "int32")),
            "corrections": (corrections, TensorType((2 if rows == 2 else 1, columns), "int32")),
            "scale": (scale, xw.with_shape((columns,))),
            "h0": (h0, state),
            "c0": (c0, state),
            "peephole": (peephole, xw.with_shape((3 * hidden,))),
        }
        for name, (type_, wanted) in expected.items():
            if type_ is not None and (type_.dtype != wanted.dtype or shapes_differ(type_.shape, wanted.shape)):
                raise self.reject(f"{name} must be {wanted}, not {type_}")
        return TupleType((xw.with_shape((*xw.shape[:2], hidden)), state, state))

    def flops(self, args: Sequence[TensorType], results: Sequence[TensorType]) -> float:
        """Two per multiplication by the recurrent weight."""
        return 2.0 * args[0].size * args[4].static_shape[1]

    def reference(
        self,
        xw: np.ndarray,
        recurrent_weight: np.ndarray,
        corrections: np.ndarray,
        scale: np.ndarray,
        h0: np.ndarray,
        c0: np.ndarray,
        peephole: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        assert DOT_OPERANDS[self.product] == ("uint8", "int8")
        h, c, hidden = h0.copy(), c0.copy(), h0.shape[1]
        y = np.empty((*xw.shape[:2], hidden), xw.dtype)
        weight = _bytes_of(recurrent_weight)[:hidden, : 4 * hidden].astype("int64")
        zeros = corrections[1] if len(corrections) == 2 else np.zeros(4 * hidden, "int64")
        peepholes = [None] * 3 if peephole is None else np.split(peephole, 3)
        for t in range(xw.shape[0])[:: -1 if self.reverse else 1]:
            step, zero = _range(h)
            levels = np.clip(np.rint(h / step) + zero, 0, 255).astype("int64") - int(zero)
            sums = (levels @ (weight - zeros)).astype("float32")
            i, o, f, g = np.split(xw[t] + sums * (step * scale), 4, axis=1)
            i, f = peeped(i, c, peepholes[0]), peeped(f, c, peepholes[2])
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = y[t] = sigmoid(peeped(o, c, peepholes[1])) * np.tanh(c)
        return y, h, c


def _range(h: np.ndarray) -> tuple[np.float32, np.float32]:
    """The scale and the zero point of all states together."""
    low, high = np.float32(min(h.min(initial=0), 0)), np.float32(max(h.max(initial=0), 0))
    step = np.float32(1) if low == high else (high - low) / np.float32(255)
    return step, np.clip(np.rint(-low / step), 0, 255).astype("float32")
