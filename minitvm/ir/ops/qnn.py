"""Products of words: four bytes (the VNNI layout) or two int16, as a machine multiplies and adds them.  Integer layers
become these.

What words hold is the function's that multiplies them (:data:`minitvm.ir.loop.DOT_OPERANDS`).
"""

from collections.abc import Sequence

import numpy as np

from minitvm.ir.dims import differ
from minitvm.ir.dtypes import bits_of
from minitvm.ir.layout import Layout
from minitvm.ir.loop import DOT_OPERANDS, Binary, Buffer, Dot, LoopExpr, Stage, const, intrin
from minitvm.ir.op import Fusion, Op, compute, sum_over
from minitvm.ir.ops.nn_conv import Conv2dNCHWc
from minitvm.ir.ops.nn_dense import DensePack
from minitvm.ir.ops.transform import View
from minitvm.ir.types import TensorType, as_tensor

BYTES = 4
"""Of a word."""


class Words(View, name="qnn.words", fusion=Fusion.OPAQUE):
    """Parts of a tensor as words.  data: (..., 4 * n) of int8 or uint8, or (..., 2 * n) of int16 -> (..., n) int32."""

    def infer(self, data: TensorType) -> TensorType:
        if data.dtype not in ("int8", "uint8", "int16") or not data.rank:
            raise self.reject(f"takes bytes or int16 along an axis, not {data}")
        last, parts = data.shape[-1], parts_of(data.dtype)
        if differ(last % parts, 0):
            raise self.reject(f"the last dimension of {data} is no multiple of {parts}")
        return TensorType((*data.shape[:-1], last // parts), "int32")

    def reference(self, data: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(data).view("<i4")

    def compute(self, data: Buffer) -> Stage:
        count, bits = parts_of(data.dtype), bits_of(data.dtype)

        def word(*index: LoopExpr) -> LoopExpr:
            found: LoopExpr = const(0, "int32")
            for at in range(count):
                place = (*index[:-1], index[-1] * count + at)
                part = data[place].astype("int32") & const((1 << bits) - 1, "int32")
                found = found | Binary("shl", part, const(bits * at, "int32"))
            return found

        return compute((*data.shape[:-1], data.shape[-1] // count), word)


def parts_of(dtype: str) -> int:
    """The number of parts of a word that holds a dtype."""
    return 8 * BYTES // bits_of(dtype)


def taken_apart(words: np.ndarray, dtype: str, axis: int) -> np.ndarray:
    """The parts of words, those of each one after the other along ``axis``."""
    apart = np.ascontiguousarray(words)[..., None].view(dtype)
    shape = [extent * parts_of(dtype) if d == axis else extent for d, extent in enumerate(words.shape)]
    return np.moveaxis(apart, -1, axis + 1).reshape(shape)


class _OverWords(Op):
    """What a product over words has in place of its float twin's."""

    product: Dot = "dot4"

    def infer(self, data: TensorType, weight: TensorType) -> TensorType:
        for name, type_ in (("data", data), ("weight", weight)):
            if type_.dtype != "int32":
                raise self.reject(f"{name} is {type_}; expected words, which are int32")
        return as_tensor(super().infer(data, weight))

    def flops(self, args: Sequence[TensorType], results: Sequence[TensorType]) -> float:
        return parts_of(DOT_OPERANDS[self.product][0]) * super().flops(args, results)

    def apart(self, data: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The parts along axis 1, in float64, which holds every sum of them."""
        pairs = zip((data, weight), DOT_OPERANDS[self.product], strict=True)
        x, w = (taken_apart(words, dtype, 1).astype("float64") for words, dtype in pairs)
        return x, w

    def times(self, data: LoopExpr, weight: LoopExpr) -> LoopExpr:
        return intrin(self.product, data, weight, const(0, "int32"))


def _wrapped(sums: np.ndarray) -> np.ndarray:
    return sums.astype("int64").astype("int32")


class Conv2dWords(_OverWords, Conv2dNCHWc, name="qnn.contrib_conv2d_NCHWc"):
    """``nn.contrib_conv2d_NCHWc`` over words of input channels.  data, weight: int32 -> int32."""

    product: Dot = "dot4"

    def reference(self, data: np.ndarray, weight: np.ndarray) -> np.ndarray:
        image, kernel, out = self.layouts
        x, w = self.apart(Layout("NCHW").convert(data, image), Layout("OIHW").convert(weight, kernel))
        return np.ascontiguousarray(out.convert(_wrapped(self._slide(x, w)), "NCHW"))

    def _times(self, pixel: LoopExpr, factor: LoopExpr) -> LoopExpr:
        return self.times(pixel, factor)


class DenseWords(_OverWords, DensePack, name="qnn.contrib_dense_pack"):
    """``nn.contrib_dense_pack`` over words of features.  data, weight: int32 -> int32."""

    product: Dot = "dot4"

    def reference(self, data: np.ndarray, weight: np.ndarray) -> np.ndarray:
        blocks, _, width = weight.shape
        x, w = self.apart(data, weight)
        w = w.transpose(1, 0, 2).reshape(w.shape[1], blocks * width)
        return _wrapped(x @ w[:, : self.units])

    def compute(self, data: Buffer, weight: Buffer) -> Stage:
        (m, k), (blocks, _, n) = data.shape, weight.shape

        def element(i: LoopExpr, j: LoopExpr) -> LoopExpr:
            return sum_over(k, lambda r: self.times(data[i, r], weight[j // n, r, j % n]))

        return compute((m, self.units or blocks * n), element)
