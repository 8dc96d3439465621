"""Normalization layers, softmax too.  SimplifyInference decomposes most of them; here is what they mean."""

import math
from collections.abc import Sequence

import numpy as np

from minitvm.ir.decision import Declined
from minitvm.ir.loop import Buffer, LoopExpr, Stage, all_of, as_index, binary, const, intrin, maximum, minimum, select
from minitvm.ir.op import Fusion, Op, compute, largest_over, sum_over
from minitvm.ir.ops._shape import (
    Axiswise,
    Channelwise,
    Index,
    beside,
    inside,
    known_dim,
    normalize_axes,
    normalize_axis,
    place,
    reduced,
    replaced,
    require_kind,
    reshape_index,
)
from minitvm.ir.relayout import Move, Placement, Site, along_axis, calling
from minitvm.ir.types import TensorType, TupleType, accumulator


class BatchNorm(Channelwise, name="nn.batch_norm", fusion=Fusion.OUT_ELEMWISE_FUSABLE, outputs=3):
    """Normalizes with statistics of the training.  Results: the tensor, moving_mean, moving_var (unchanged).

    data: (...), gamma, beta, moving_mean, moving_var: (data.shape[axis],) ->
    ``(data - moving_mean) / sqrt(moving_var + epsilon) * gamma + beta``, gamma where ``scale``, beta where ``center``.
    """

    epsilon: float = 1e-5
    center: bool = True
    scale: bool = True

    def infer(
        self, data: TensorType, gamma: TensorType, beta: TensorType, moving_mean: TensorType, moving_var: TensorType
    ) -> TupleType:
        vectors = {"gamma": gamma, "beta": beta, "moving_mean": moving_mean, "moving_var": moving_var}
        self.check_vectors(data, "number", " of the input", **vectors)
        return TupleType((data, moving_mean, moving_var))

    def reference(
        self, data: np.ndarray, gamma: np.ndarray, beta: np.ndarray, moving_mean: np.ndarray, moving_var: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        factor = 1 / np.sqrt(moving_var + data.dtype.type(self.epsilon))
        factor = factor * gamma if self.scale else factor
        out = (data - beside(moving_mean, self.axis, data.ndim)) * beside(factor, self.axis, data.ndim)
        out = out + beside(beta, self.axis, data.ndim) if self.center else out
        return np.asarray(out.astype(data.dtype)), moving_mean.copy(), moving_var.copy()

    def compute(
        self, data: Buffer, gamma: Buffer, beta: Buffer, moving_mean: Buffer, moving_var: Buffer
    ) -> tuple[Stage, Stage, Stage]:
        axis = self.axis % len(data.shape)

        def element(*i: LoopExpr) -> LoopExpr:
            c = i[axis]
            value = (data[i] - moving_mean[c]) / intrin("sqrt", moving_var[c] + self.epsilon)
            value = value * gamma[c] if self.scale else value
            return value + beta[c] if self.center else value

        mean = compute(moving_mean.shape, lambda c: moving_mean[c])
        var = compute(moving_var.shape, lambda c: moving_var[c])
        return compute(data.shape, element), mean, var

    def relayout(self, site: Site) -> Placement | Declined:
        if not isinstance(site.carries[0], Move) or site.data.blocks:
            return Declined("batch_norm needs its channels on one axis")
        moved = self.with_attributes(axis=site.data.index(self.axis))
        rest = (None,) * (len(site.carries) - 1)
        return Placement((site.data, *rest), (site.data, None, None), calling(moved))


def _moments(data: Buffer, axes: Sequence[int]) -> tuple[Stage, Stage]:
    """Mean and variance over ``axes`` (kept with extent 1), in single precision at least."""
    wide = accumulator(data.dtype)
    count = math.prod(data.shape[d] for d in axes)
    known = isinstance(count, int)
    reciprocal = (
        const(1 / max(1, count), wide) if known else binary("div", const(1, wide), as_index(count).astype(wide))
    )

    def square(i: Index, _: Index) -> LoopExpr:
        centred = data[i].astype(wide) - mean[place(i, axes)]
        return centred * centred

    def averaged(total: LoopExpr, _: Index) -> LoopExpr:
        return total * reciprocal

    mean = reduced(data.shape, axes, sum_over, lambda i, _: data[i].astype(wide), averaged, name="mean")
    return mean, reduced(data.shape, axes, sum_over, square, averaged, name="variance")


class MomentNorm(Channelwise, fusion=Fusion.OUT_ELEMWISE_FUSABLE):
    """Normalizes with mean and variance of the data itself, then scales by gamma and shifts by beta:
    ``(data - mean) / sqrt(variance + epsilon) * gamma + beta``, gamma where ``scale``, beta where ``center``.

    data: (...) floats, gamma, beta: (data.shape[axis],) -> as data.  A subclass says over which axes.
    """

    epsilon: float = 1e-5
    center: bool = True
    scale: bool = True

    def _axes(self, rank: int) -> tuple[int, ...]:
        """The axes, of the data with :meth:`_split` ones, whose elements share a mean and a variance."""
        raise NotImplementedError(self.name)

    def _split(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape in which they are axes."""
        return shape

    def _place(self, index: Index, extent: int) -> Index:
        """The place where an element of the data, whose ``axis`` has ``extent``, is in that shape."""
        return index

    def infer(self, data: TensorType, gamma: TensorType, beta: TensorType) -> TensorType:
        self.check_vectors(data, "number", " of the input", gamma=gamma, beta=beta)
        return data

    def reference(self, data: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
        split = data.reshape(self._split(data.shape)).astype(np.promote_types(data.dtype, "float32"))
        axes = self._axes(data.ndim)
        centred = split - split.mean(axis=axes, keepdims=True)
        variance = np.mean(centred * centred, axis=axes, keepdims=True)
        out = (centred / np.sqrt(variance + split.dtype.type(self.epsilon))).reshape(data.shape)
        out = out * beside(gamma, self.axis, out.ndim) if self.scale else out
        return np.asarray(out + beside(beta, self.axis, out.ndim) if self.center else out).astype(data.dtype)

    def compute(self, data: Buffer, gamma: Buffer, beta: Buffer) -> Stage:
        axes, axis, shape = self._axes(len(data.shape)), self.axis % len(data.shape), self._split(data.shape)
        split = compute(shape, lambda *i: data[tuple(reshape_index(i, shape, data.shape))])
        mean, variance = _moments(data if shape == data.shape else split, axes)
        inverse = compute(mean.shape, lambda *i: intrin("rsqrt", variance[i] + self.epsilon), name="inverse")

        def element(*i: LoopExpr) -> LoopExpr:
            row = place(self._place(i, data.shape[axis]), axes)
            value = (data[i].astype(mean.dtype) - mean[row]) * inverse[row]
            value = value * gamma[i[axis]].astype(value.dtype) if self.scale else value
            return (value + beta[i[axis]].astype(value.dtype) if self.center else value).astype(data.dtype)

        return compute(data.shape, element)


class LayerNorm(MomentNorm, name="nn.layer_norm"):
    """Normalizes over one axis.  data: (...) floats, gamma, beta: (data.shape[axis],) -> as data."""

    axis: int = -1

    def _axes(self, rank: int) -> tuple[int, ...]:
        return (self.axis % rank,)


class InstanceNorm(MomentNorm, name="nn.instance_norm"):
    """Normalizes every channel of every batch entry.  data: (N, C, ...) floats, gamma, beta: (C,) -> as data."""

    def _axes(self, rank: int) -> tuple[int, ...]:
        return tuple(d for d in range(1, rank) if d != self.axis % rank)


class GroupNorm(MomentNorm, name="nn.group_norm"):
    """Normalizes ``num_groups`` groups of neighbouring channels.  data: (N, C, ...) floats, gamma, beta: (C,)
    -> as data."""

    num_groups: int = 1

    def infer(self, data: TensorType, gamma: TensorType, beta: TensorType) -> TensorType:
        channels = known_dim(self, data.shape[normalize_axis(self, self.axis, data.rank)], "the channels")
        if self.num_groups < 1 or channels % self.num_groups:
            raise self.reject(f"num_groups={self.num_groups} does not divide the {channels} channels")
        return super().infer(data, gamma, beta)

    def _split(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        axis = self.axis % len(shape)
        return (*shape[:axis], self.num_groups, shape[axis] // self.num_groups, *shape[axis + 1 :])

    def _place(self, index: Index, extent: int) -> Index:
        axis, per = self.axis % len(index), extent // self.num_groups
        return (*index[:axis], index[axis] // per, index[axis] % per, *index[axis + 1 :])

    def _axes(self, rank: int) -> tuple[int, ...]:
        """All but the batch and the groups."""
        return tuple(d for d in range(1, rank + 1) if d != self.axis % rank)


class L2Normalize(Op, name="nn.l2_normalize", fusion=Fusion.OUT_ELEMWISE_FUSABLE):
    """data over the root of the sum of its squares along ``axis``, that sum at least ``eps``.  (...) -> (...)."""

    eps: float = 1e-12
    axis: tuple[int, ...] = (1,)

    def infer(self, data: TensorType) -> TensorType:
        require_kind(self, data, "f", "the input")
        normalize_axes(self, self.axis, data.rank)
        return data

    def reference(self, data: np.ndarray) -> np.ndarray:
        wide = data.astype(np.promote_types(data.dtype, "float32"))
        total = np.sum(wide * wide, axis=self.axis, keepdims=True)
        return np.asarray((wide / np.sqrt(np.maximum(total, self.eps))).astype(data.dtype))

    def compute(self, data: Buffer) -> Stage:
        axes, wide = sorted(normalize_axes(self, self.axis, len(data.shape))), accumulator(data.dtype)

        def square(i: Index, _: Index) -> LoopExpr:
            x = data[i].astype(wide)
            return x * x

        total = reduced(data.shape, axes, sum_over, square, name="total")

        def element(*i: LoopExpr) -> LoopExpr:
            root = intrin("sqrt", maximum(total[place(i, axes)], self.eps))
            return (data[i].astype(wide) / root).astype(data.dtype)

        return compute(data.shape, element)


class Lrn(Op, name="nn.lrn", fusion=Fusion.OPAQUE):
    """Local response normalization over ``size`` neighbouring channels, along ``axis``.  data: (...) floats -> (...).

    ``data / (bias + alpha / size * squares) ** beta``, with the sum of the neighbours' squares, 0 outside.
    """

    size: int = 5
    axis: int = 1
    bias: float = 2.0
    alpha: float = 1e-5
    beta: float = 0.75

    def infer(self, data: TensorType) -> TensorType:
        require_kind(self, data, "f", "the input")
        normalize_axis(self, self.axis, data.rank)
        if self.size < 1:
            raise self.reject(f"size={self.size} must be positive")
        return data

    def reference(self, data: np.ndarray) -> np.ndarray:
        moved = np.moveaxis(data.astype(np.promote_types(data.dtype, "float32")), self.axis, 0)
        squares, channels, half = moved * moved, moved.shape[0], (self.size - 1) // 2
        total = np.zeros_like(moved)
        for c in range(channels):
            total[c] = squares[max(0, c - half) : c - half + self.size].sum(axis=0)
        out = moved / (self.bias + self.alpha / self.size * total) ** self.beta
        return np.ascontiguousarray(np.moveaxis(out, 0, self.axis)).astype(data.dtype)

    def compute(self, data: Buffer) -> Stage:
        axis, wide = self.axis % len(data.shape), accumulator(data.dtype)
        half, furthest = (self.size - 1) // 2, max(data.shape[axis] - 1, 0)
        before, after = min(half, furthest), min(self.size - 1 - half, furthest)

        def neighbour(i: Sequence[LoopExpr], r: LoopExpr) -> LoopExpr:
            c = i[axis] + r - before
            x = data[replaced(i, axis, c)].astype(wide)
            return select(all_of(inside(c, data.shape[axis])), x * x, 0)

        total = compute(data.shape, lambda *i: sum_over(before + after + 1, lambda r: neighbour(i, r)), name="total")

        def element(*i: LoopExpr) -> LoopExpr:
            base = total[i] * (self.alpha / self.size) + self.bias
            return (data[i].astype(wide) / binary("pow", base, const(self.beta, wide))).astype(data.dtype)

        return compute(data.shape, element)

    def relayout(self, site: Site) -> Placement | Declined:
        return along_axis(site, self.axis, "its window runs over")


class Dropout(Op, name="nn.dropout", fusion=Fusion.OPAQUE, outputs=2):
    """Nothing at inference, whatever the ``rate``.  data: (...) -> data and a mask of ones."""

    rate: float = 0.5

    def infer(self, data: TensorType) -> TupleType:
        return TupleType((data, data))

    def reference(self, data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return data.copy(), np.ones_like(data)

    def compute(self, data: Buffer) -> tuple[Stage, Stage]:
        return compute(data.shape, lambda *i: data[i]), compute(data.shape, lambda *i: const(1, data.dtype))


class SoftmaxBase(Axiswise, fusion=Fusion.OUT_ELEMWISE_FUSABLE, kinds="f", argument="the input"):
    """Over one axis.  data: (...) floats -> (...)."""

    def _wide(self, data: np.ndarray) -> np.ndarray:
        """``data`` less the axis' maximum, in single precision at least."""
        wide = data.astype(np.promote_types(data.dtype, "float32"))
        return np.asarray(wide - wide.max(axis=self.axis, keepdims=True, initial=-np.inf))

    def _stages(self, data: Buffer) -> tuple[Stage, Stage, Stage]:
        """Data less the axis' maximum, exp of that, and the sum of that (its axis removed), in single at least.

        NaN goes its way by exp and the sum, so the maximum need not see it.  That no argument of exp is above 0 is said
        to those who compute it.
        """
        axes, wide = (self.axis % len(data.shape),), accumulator(data.dtype)
        row_max = reduced(
            data.shape, axes, largest_over, lambda i, _: data[i].astype(wide), keepdims=False, name="row_max"
        )
        shifted = compute(data.shape, lambda *i: data[i].astype(wide) - row_max[place(i, axes, False)], name="shifted")
        exponentials = compute(data.shape, lambda *i: intrin("exp", minimum(shifted[i], 0.0)), name="exponentials")
        row_sum = reduced(data.shape, axes, sum_over, lambda i, _: exponentials[i], keepdims=False, name="row_sum")
        return shifted, exponentials, row_sum

    def relayout(self, site: Site) -> Placement | Declined:
        return along_axis(site, self.axis, "it runs over")


class Softmax(SoftmaxBase, name="nn.softmax"):
    """exp(data) over its sum along ``axis``.  data: (...) floats -> (...)."""

    def reference(self, data: np.ndarray) -> np.ndarray:
        exponentials = np.exp(self._wide(data))
        return np.asarray((exponentials / exponentials.sum(axis=self.axis, keepdims=True)).astype(data.dtype))

    def compute(self, data: Buffer) -> Stage:
        axes, (_, exponentials, row_sum) = (self.axis % len(data.shape),), self._stages(data)
        reciprocal = compute(row_sum.shape, lambda *i: const(1, row_sum.dtype) / row_sum[i], name="reciprocal")
        return compute(data.shape, lambda *i: (exponentials[i] * reciprocal[place(i, axes, False)]).astype(data.dtype))


class LogSoftmax(SoftmaxBase, name="nn.log_softmax"):
    """log(softmax(data)), without the loss of digits.  data: (...) floats -> (...)."""

    def reference(self, data: np.ndarray) -> np.ndarray:
        shifted = self._wide(data)
        return np.asarray((shifted - np.log(np.exp(shifted).sum(axis=self.axis, keepdims=True))).astype(data.dtype))

    def compute(self, data: Buffer) -> Stage:
        axes, (shifted, _, row_sum) = (self.axis % len(data.shape),), self._stages(data)
        logs = compute(row_sum.shape, lambda *i: intrin("log", row_sum[i]), name="logs")
        return compute(data.shape, lambda *i: (shifted[i] - logs[place(i, axes, False)]).astype(data.dtype))
