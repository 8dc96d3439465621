"""Products of bytes, four to a word: what integer layers become where a machine multiplies and adds words of bytes.

A word is an int32; its first byte is the lowest.  Words of data hold unsigned bytes, words of weights signed ones.
"""

from collections.abc import Sequence

import numpy as np

from minitvm.ir.layout import Layout
from minitvm.ir.loop import Binary, Buffer, LoopExpr, Stage, const, intrin
from minitvm.ir.op import Fusion, Op, compute, sum_over
from minitvm.ir.ops.nn_conv import Conv2dNCHWc
from minitvm.ir.ops.nn_dense import DensePack
from minitvm.ir.ops.transform import View
from minitvm.ir.types import TensorType, as_tensor

BYTES = 4
"""Of a word."""


class Words(View, name="qnn.words", fusion=Fusion.OPAQUE):
    """The bytes of a tensor as words.  data: (..., 4 * n) of int8 or uint8 -> (..., n) int32."""

    def infer(self, data: TensorType) -> TensorType:
        if data.dtype not in ("int8", "uint8") or not data.rank:
            raise self.reject(f"takes bytes along an axis, not {data}")
        last = data.shape[-1]
        if isinstance(last, int) and last % BYTES:
            raise self.reject(f"the last dimension of {data} is no multiple of {BYTES}")
        return TensorType((*data.shape[:-1], last // BYTES), "int32")

    def reference(self, data: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(data).view("<i4")

    def compute(self, data: Buffer) -> Stage:
        def word(*index: LoopExpr) -> LoopExpr:
            found: LoopExpr = const(0, "int32")
            for at in range(BYTES):
                place = (*index[:-1], index[-1] * BYTES + at)
                byte = data[place].astype("int32") & const(255, "int32")
                found = found | Binary("shl", byte, const(8 * at, "int32"))
            return found

        return compute((*data.shape[:-1], data.shape[-1] // BYTES), word)


def bytes_of(words: np.ndarray, dtype: str, axis: int) -> np.ndarray:
    """The bytes of words, those of each one after the other along ``axis``."""
    apart = np.ascontiguousarray(words)[..., None].view(dtype)
    shape = [extent * BYTES if d == axis else extent for d, extent in enumerate(words.shape)]
    return np.moveaxis(apart, -1, axis + 1).reshape(shape)


class _OverWords(Op):
    """What a product over words has in place of its float twin's."""

    product = "dot4"  # no field: not annotated, so that the twin's are the class's

    def infer(self, data: TensorType, weight: TensorType) -> TensorType:
        for name, type_ in (("data", data), ("weight", weight)):
            if type_.dtype != "int32":
                raise self.reject(f"{name} is {type_}; expected words, which are int32")
        return as_tensor(super().infer(data, weight))

    def flops(self, args: Sequence[TensorType], results: Sequence[TensorType]) -> float:
        return BYTES * super().flops(args, results)


def _wrapped(sums: np.ndarray) -> np.ndarray:
    return sums.astype("int64").astype("int32")


class Conv2dWords(_OverWords, Conv2dNCHWc, name="qnn.contrib_conv2d_NCHWc"):
    """``nn.contrib_conv2d_NCHWc`` over words of four input channels each.  data, weight: int32 -> int32."""

    def reference(self, data: np.ndarray, weight: np.ndarray) -> np.ndarray:
        image, kernel, out = self.layouts
        x = bytes_of(Layout("NCHW").convert(data, image), "u1", 1).astype("float64")
        w = bytes_of(Layout("OIHW").convert(weight, kernel), "i1", 1).astype("float64")
        return np.ascontiguousarray(out.convert(_wrapped(self._slide(x, w)), "NCHW"))

    def _times(self, pixel: LoopExpr, factor: LoopExpr) -> LoopExpr:
        return intrin("dot4", pixel, factor, const(0, "int32"))


class DenseWords(_OverWords, DensePack, name="qnn.contrib_dense_pack"):
    """``nn.contrib_dense_pack`` over words of four features each.  data, weight: int32 -> int32."""

    def reference(self, data: np.ndarray, weight: np.ndarray) -> np.ndarray:
        blocks, _, width = weight.shape
        x = bytes_of(data, "u1", 1).astype("float64")
        w = bytes_of(weight, "i1", 1).astype("float64").transpose(1, 0, 2)
        w = w.reshape(len(w), blocks * width)
        return _wrapped(x @ w[:, : self.units])

    def compute(self, data: Buffer, weight: Buffer) -> Stage:
        (m, k), (blocks, _, n) = data.shape, weight.shape

        def element(i: LoopExpr, j: LoopExpr) -> LoopExpr:
            return sum_over(k, lambda r: intrin("dot4", data[i, r], weight[j // n, r, j % n], const(0, "int32")))

        return compute((m, self.units or blocks * n), element)
