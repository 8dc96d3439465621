"""Activations that are operators of their own; the others are compositions of elementwise operators."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minitvm.ir.compute import accumulator, compute, max_over, sum_over
from minitvm.ir.decision import Declined
from minitvm.ir.expr import Call, Constant, Expr
from minitvm.ir.loop import Buffer, LoopExpr, Stage, intrin, select
from minitvm.ir.op import Fusion, Op
from minitvm.ir.ops._shape import Channelwise, beside, normalize_axis, require_kind
from minitvm.ir.ops.broadcast import Add, Maximum, Minimum, Multiply
from minitvm.ir.relayout import Placement, Site, along_axis, vector_along
from minitvm.ir.types import TensorType


class Prelu(Channelwise, name="nn.prelu", fusion=Fusion.BROADCAST, homogeneous=True):
    """``leaky_relu`` with a slope per channel.  data: (...) floats, alpha: (data.shape[axis],) -> as data."""

    def infer(self, data: TensorType, alpha: TensorType) -> TensorType:
        self.check_vectors(data, "slope", alpha=alpha)
        return data

    def reference(self, data: np.ndarray, alpha: np.ndarray) -> np.ndarray:
        return np.asarray(np.where(data > 0, data, data * beside(alpha, self.axis, data.ndim)))

    def compute(self, data: Buffer, alpha: Buffer) -> Stage:
        axis = self.axis % len(data.shape)
        return compute(data.shape, lambda *i: select(data[i] > 0, data[i], data[i] * alpha[i[axis]]))

    def relayout(self, site: Site) -> Placement | Declined:
        """With the channels in blocks, ``max(x, 0) + alpha * min(x, 0)`` with alpha broadcast."""
        if not site.data.blocks:
            return along_axis(site, self.axis, "its slopes lie along")
        if site.type(1).size == 1:
            return Declined("one slope for all channels")
        return Placement((site.data, vector_along(site.data, self.axis)), site.data, _broadcast_prelu)


def _broadcast_prelu(args: Sequence[Expr]) -> Expr:
    x, alpha = args
    zero = Constant(np.zeros((), x.dtype))
    negative = Call(Multiply(), (alpha, Call(Minimum(), (x, zero))))
    return Call(Add(), (Call(Maximum(), (x, zero)), negative))


class SoftmaxBase(Op, fusion=Fusion.OUT_ELEMWISE_FUSABLE):
    """Over one axis.  data: (...) floats -> (...)."""

    axis: int = -1

    def infer(self, data: TensorType) -> TensorType:
        require_kind(self, data, "f", "the input")
        normalize_axis(self, self.axis, data.rank)
        return data

    def _wide(self, data: np.ndarray) -> np.ndarray:
        """``data`` less the axis' maximum, in single precision at least."""
        wide = data.astype(np.promote_types(data.dtype, "float32"))
        return np.asarray(wide - wide.max(axis=self.axis, keepdims=True, initial=-np.inf))

    def _stages(self, data: Buffer) -> tuple[Stage, Stage, Stage]:
        """data less the axis' maximum, exp of that, and the sum of that (its axis removed), summed in single."""
        axis, wide = self.axis % len(data.shape), accumulator(data.dtype)
        extent, outer = data.shape[axis], data.shape[:axis] + data.shape[axis + 1 :]

        def drop(i: tuple[LoopExpr, ...]) -> tuple[LoopExpr, ...]:
            return i[:axis] + i[axis + 1 :]

        def put(i: tuple[LoopExpr, ...], r: LoopExpr) -> tuple[LoopExpr, ...]:
            return (*i[:axis], r, *i[axis:])

        top = compute(outer, lambda *i: max_over(extent, lambda r: data[put(i, r)].astype(wide)), name="top")
        shifted = compute(data.shape, lambda *i: data[i].astype(wide) - top[drop(i)], name="shifted")
        powers = compute(data.shape, lambda *i: intrin("exp", shifted[i]), name="powers")
        total = compute(outer, lambda *i: sum_over(extent, lambda r: powers[put(i, r)]), name="total")
        return shifted, powers, total

    def relayout(self, site: Site) -> Placement | Declined:
        return along_axis(site, self.axis, "it runs over")


class Softmax(SoftmaxBase, name="nn.softmax"):
    """exp(data) over its sum along ``axis``.  data: (...) floats -> (...)."""

    def reference(self, data: np.ndarray) -> np.ndarray:
        powers = np.exp(self._wide(data))
        return np.asarray((powers / powers.sum(axis=self.axis, keepdims=True)).astype(data.dtype))

    def compute(self, data: Buffer) -> Stage:
        axis = self.axis % len(data.shape)
        _, powers, total = self._stages(data)
        return compute(data.shape, lambda *i: (powers[i] / total[i[:axis] + i[axis + 1 :]]).astype(data.dtype))


class LogSoftmax(SoftmaxBase, name="nn.log_softmax"):
    """log(softmax(data)), without the loss of digits.  data: (...) floats -> (...)."""

    def reference(self, data: np.ndarray) -> np.ndarray:
        shifted = self._wide(data)
        return np.asarray((shifted - np.log(np.exp(shifted).sum(axis=self.axis, keepdims=True))).astype(data.dtype))

    def compute(self, data: Buffer) -> Stage:
        axis = self.axis % len(data.shape)
        shifted, _, total = self._stages(data)
        logs = compute(total.shape, lambda *i: intrin("log", total[i]), name="logs")
        return compute(data.shape, lambda *i: (shifted[i] - logs[i[:axis] + i[axis + 1 :]]).astype(data.dtype))
