"""Normalization layers.  SimplifyInference decomposes most of them; here is what they mean."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from minitvm.ir.compute import accumulator, compute, sum_over
from minitvm.ir.decision import Declined
from minitvm.ir.dims import differ
from minitvm.ir.loop import Buffer, LoopExpr, Stage, all_of, binary, const, intrin, maximum, select
from minitvm.ir.op import Fusion, Op
from minitvm.ir.ops._shape import normalize_axes, normalize_axis, require_kind, require_same_dtype
from minitvm.ir.ops._window import inside, known_dim
from minitvm.ir.relayout import Move, Placement, Site, along_axis, calling
from minitvm.ir.types import TensorType, TupleType, Type


def _check_vectors(op: Op, data: TensorType, axis: int, **vectors: TensorType) -> None:
    """Every vector has one element for each place along ``axis`` and the data's dtype."""
    require_kind(op, data, "f", "the input")
    size = data.shape[normalize_axis(op, axis, data.rank)]
    for name, type_ in vectors.items():
        require_same_dtype(op, data, type_)
        if type_.rank != 1 or differ(type_.shape[0], size):
            raise op.reject(
                f"{name} must be ({size},), one number for each place along axis {axis} of the input, not {type_}",
                hint=f"the input is {data}",
            )


def _fill_vectors(op: Op, axis: int, types: list[Type | None]) -> list[Type | None]:
    """The types of the per-channel arguments after the data."""
    data = types[0]
    if not isinstance(data, TensorType):
        return types
    vector = TensorType((data.shape[normalize_axis(op, axis, data.rank)],), data.dtype)
    return [data, *(vector if t is None else t for t in types[1:])]


def _along(vector: np.ndarray, axis: int, rank: int) -> np.ndarray:
    """A vector shaped to broadcast along ``axis``."""
    return vector.reshape(-1, *[1] * (rank - axis % rank - 1))


class BatchNorm(Op, name="nn.batch_norm", fusion=Fusion.OUT_ELEMWISE_FUSABLE, outputs=3):
    """Normalizes with statistics of the training.  Results: the tensor, moving_mean, moving_var (unchanged).

    data: (...), gamma, beta, moving_mean, moving_var: (data.shape[axis],) ->
    (data - moving_mean) / sqrt(moving_var + epsilon) * gamma (where ``scale``) + beta (where ``center``).
    """

    axis: int = 1
    epsilon: float = 1e-5
    center: bool = True
    scale: bool = True

    def solve(self, types: list[Type | None]) -> list[Type | None]:
        return _fill_vectors(self, self.axis, types)

    def infer(
        self, data: TensorType, gamma: TensorType, beta: TensorType, moving_mean: TensorType, moving_var: TensorType
    ) -> TupleType:
        vectors = {"gamma": gamma, "beta": beta, "moving_mean": moving_mean, "moving_var": moving_var}
        _check_vectors(self, data, self.axis, **vectors)
        return TupleType((data, moving_mean, moving_var))

    def reference(
        self, data: np.ndarray, gamma: np.ndarray, beta: np.ndarray, moving_mean: np.ndarray, moving_var: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        factor = 1 / np.sqrt(moving_var + data.dtype.type(self.epsilon))
        factor = factor * gamma if self.scale else factor
        out = (data - _along(moving_mean, self.axis, data.ndim)) * _along(factor, self.axis, data.ndim)
        out = out + _along(beta, self.axis, data.ndim) if self.center else out
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
    kept = tuple(1 if d in axes else n for d, n in enumerate(data.shape))
    extents = [data.shape[d] for d in axes]
    share = const(1 / max(1, math.prod(extents)), wide)

    def at(index: Sequence[LoopExpr], r: Sequence[LoopExpr]) -> tuple[LoopExpr, ...]:
        inner = dict(zip(axes, r, strict=True))
        return tuple(inner.get(d, i) for d, i in enumerate(index))

    mean = compute(kept, lambda *i: sum_over(extents, lambda *r: data[at(i, r)].astype(wide)) * share, name="mean")

    def square(i: Sequence[LoopExpr], r: Sequence[LoopExpr]) -> LoopExpr:
        centred = data[at(i, r)].astype(wide) - mean[tuple(i)]
        return centred * centred

    variance = compute(kept, lambda *i: sum_over(extents, lambda *r: square(i, r)) * share, name="variance")
    return mean, variance


def _standardize(data: np.ndarray, axes: tuple[int, ...], epsilon: float) -> np.ndarray:
    """Zero mean and unit variance over ``axes``, in single precision at least."""
    wide = data.astype(np.promote_types(data.dtype, "float32"))
    centred = wide - wide.mean(axis=axes, keepdims=True)
    variance = np.mean(centred * centred, axis=axes, keepdims=True)
    return np.asarray(centred / np.sqrt(variance + wide.dtype.type(epsilon)))


class MomentNorm(Op, fusion=Fusion.OUT_ELEMWISE_FUSABLE):
    """Normalizes with mean and variance of the data itself, then scales by gamma and shifts by beta.

    data: (...) floats, gamma, beta: (data.shape[axis],) -> as data.  A subclass says over which axes.
    """

    axis: int = 1
    epsilon: float = 1e-5
    center: bool = True
    scale: bool = True

    def _axes(self, rank: int) -> tuple[int, ...]:
        """The axes whose elements share a mean and a variance."""
        raise NotImplementedError(self.name)

    def solve(self, types: list[Type | None]) -> list[Type | None]:
        return _fill_vectors(self, self.axis, types)

    def infer(self, data: TensorType, gamma: TensorType, beta: TensorType) -> TensorType:
        _check_vectors(self, data, self.axis, gamma=gamma, beta=beta)
        return data

    def reference(self, data: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
        return self._affine(_standardize(data, self._axes(data.ndim), self.epsilon), gamma, beta).astype(data.dtype)

    def _affine(self, out: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
        out = out * _along(gamma, self.axis, out.ndim) if self.scale else out
        return np.asarray(out + _along(beta, self.axis, out.ndim) if self.center else out)

    def compute(self, data: Buffer, gamma: Buffer, beta: Buffer) -> Stage:
        axes, axis = self._axes(len(data.shape)), self.axis % len(data.shape)
        mean, variance = _moments(data, axes)
        inverse = compute(mean.shape, lambda *i: intrin("rsqrt", variance[i] + self.epsilon), name="inverse")

        def element(*i: LoopExpr) -> LoopExpr:
            row = tuple(const(0, "int64") if d in axes else x for d, x in enumerate(i))
            value = (data[i].astype(mean.dtype) - mean[row]) * inverse[row]
            return self._scaled(value, gamma[i[axis]], beta[i[axis]]).astype(data.dtype)

        return compute(data.shape, element)

    def _scaled(self, value: LoopExpr, gamma: LoopExpr, beta: LoopExpr) -> LoopExpr:
        value = value * gamma.astype(value.dtype) if self.scale else value
        return value + beta.astype(value.dtype) if self.center else value


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
    """Normalizes groups of neighbouring channels.  data: (N, C, ...) floats, gamma, beta: (C,) -> as data."""

    num_groups: int = 1

    def infer(self, data: TensorType, gamma: TensorType, beta: TensorType) -> TensorType:
        channels = known_dim(self, data.shape[normalize_axis(self, self.axis, data.rank)], "the channels")
        if self.num_groups < 1 or channels % self.num_groups:
            raise self.reject(f"num_groups={self.num_groups} does not divide the {channels} channels")
        return super().infer(data, gamma, beta)

    def _grouped(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        axis = self.axis % len(shape)
        return (*shape[:axis], self.num_groups, shape[axis] // self.num_groups, *shape[axis + 1 :])

    def _axes(self, rank: int) -> tuple[int, ...]:
        """Of the grouped data: all but the batch and the groups."""
        return tuple(d for d in range(1, rank + 1) if d != self.axis % rank)

    def reference(self, data: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
        grouped = data.reshape(self._grouped(data.shape))
        out = _standardize(grouped, self._axes(data.ndim), self.epsilon).reshape(data.shape)
        return self._affine(out, gamma, beta).astype(data.dtype)

    def compute(self, data: Buffer, gamma: Buffer, beta: Buffer) -> Stage:
        axis, axes = self.axis % len(data.shape), self._axes(len(data.shape))
        per = data.shape[axis] // self.num_groups

        def merged(*i: LoopExpr) -> LoopExpr:
            position = (*i[:axis], i[axis] * per + i[axis + 1], *i[axis + 2 :])
            return data[position]

        mean, variance = _moments(compute(self._grouped(data.shape), merged), axes)

        def element(*i: LoopExpr) -> LoopExpr:
            split = (*i[:axis], i[axis] // per, i[axis] % per, *i[axis + 1 :])
            row = tuple(const(0, "int64") if d in axes else x for d, x in enumerate(split))
            centred = data[i].astype(mean.dtype) - mean[row]
            value = centred * intrin("rsqrt", variance[row] + self.epsilon)
            return self._scaled(value, gamma[i[axis]], beta[i[axis]]).astype(data.dtype)

        return compute(data.shape, element)


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
        axes, wide = normalize_axes(self, self.axis, len(data.shape)), accumulator(data.dtype)
        kept = tuple(1 if d in axes else n for d, n in enumerate(data.shape))

        def square(i: Sequence[LoopExpr], r: Sequence[LoopExpr]) -> LoopExpr:
            inner = dict(zip(axes, r, strict=True))
            x = data[tuple(inner.get(d, v) for d, v in enumerate(i))].astype(wide)
            return x * x

        total = compute(kept, lambda *i: sum_over([data.shape[d] for d in axes], lambda *r: square(i, r)), name="total")

        def element(*i: LoopExpr) -> LoopExpr:
            row = tuple(const(0, "int64") if d in axes else x for d, x in enumerate(i))
            return (data[i].astype(wide) / intrin("sqrt", maximum(total[row], self.eps))).astype(data.dtype)

        return compute(data.shape, element)


class Lrn(Op, name="nn.lrn", fusion=Fusion.OPAQUE):
    """Local response normalization over ``size`` neighbouring channels.  data: (...) floats -> (...).

    data / (bias + alpha / size * sum of squares of the neighbours) ** beta, neighbours outside being 0.
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
            position = (*i[:axis], c, *i[axis + 1 :])
            x = data[position].astype(wide)
            return select(all_of(inside(c, data.shape[axis])), x * x, 0)

        total = compute(data.shape, lambda *i: sum_over(before + after + 1, lambda r: neighbour(i, r)), name="total")

        def element(*i: LoopExpr) -> LoopExpr:
            base = total[i] * (self.alpha / self.size) + self.bias
            return (data[i].astype(wide) / binary("pow", base, const(self.beta, wide))).astype(data.dtype)

        return compute(data.shape, element)

    def relayout(self, site: Site) -> Placement | Declined:
        return along_axis(site, self.axis, "its window runs over")


class Dropout(Op, name="nn.dropout", fusion=Fusion.OPAQUE, outputs=2):
    """Nothing at inference.  data: (...) -> data and a mask of ones."""

    rate: float = 0.5

    def infer(self, data: TensorType) -> TupleType:
        return TupleType((data, data))

    def reference(self, data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return data.copy(), np.ones_like(data)

    def compute(self, data: Buffer) -> tuple[Stage, Stage]:
        return (
            compute(data.shape, lambda *i: data[i]),
            compute(data.shape, lambda *i: const(1, data.dtype)),
        )
