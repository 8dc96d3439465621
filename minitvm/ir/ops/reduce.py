"""Reductions over axes.

``axis``: the axes to reduce, all where it is not given; ``exclude``: reduce the other axes instead;
``keepdims``: reduced dimensions stay, with extent 1.  data: (...) -> (... without the reduced dimensions).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from minitvm.ir.decision import Declined
from minitvm.ir.dims import lacks, product
from minitvm.ir.loop import Buffer, LoopExpr, Stage, as_index, binary, const, intrin, select
from minitvm.ir.op import Fusion, Op, broadcast_index, define, max_over, min_over, prod_over, sum_over
from minitvm.ir.ops._shape import (
    Index,
    Ranking,
    broadcast_shapes,
    flatten_index,
    normalize_axes,
    place,
    reduced,
    require_kind,
    require_same_dtype,
    shapes_differ,
)
from minitvm.ir.relayout import Move, Placement, Site, beside, calling, with_ones
from minitvm.ir.types import TensorType, accumulator

Element = Callable[[Index, Index], LoopExpr]
"""The summand: gets the whole index into data, and the index along the reduced axes alone."""


class Reduction(Op, fusion=Fusion.COMM_REDUCE):
    """A reduction goes over the dimensions ``axis``, by default over all of them; with ``exclude`` over all others.
    ``keepdims`` keeps them, with extent 1.
    """

    # A subclass sets ``kinds``, the numpy dtype kinds that it takes, and may say what it is by ``ufunc``, numpy's
    # function, and ``over``, that of compute rules.

    kinds: ClassVar[str] = "iuf"
    ufunc: ClassVar[Callable[..., Any]]
    over: ClassVar[Callable[..., LoopExpr]]
    axis: tuple[int, ...] | None = None
    keepdims: bool = False
    exclude: bool = False

    def axes(self, rank: int) -> tuple[int, ...]:
        """The reduced axes, ascending."""
        given = range(rank) if self.axis is None else normalize_axes(self, self.axis, rank)
        return tuple(d for d in range(rank) if (d in given) != (self.exclude and self.axis is not None))

    def infer(self, data: TensorType) -> TensorType:
        require_kind(self, data, self.kinds)
        return data.with_shape(self._kept(data.shape))

    def _kept(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        axes = self.axes(len(shape))
        if self.keepdims:
            return tuple(1 if d in axes else extent for d, extent in enumerate(shape))
        return tuple(extent for d, extent in enumerate(shape) if d not in axes)

    def _numpy(self, function: Callable[..., Any], data: np.ndarray, **options: Any) -> np.ndarray:
        return np.asarray(function(data, axis=self.axes(data.ndim), keepdims=self.keepdims, **options))

    def _stage(
        self,
        data: Buffer,
        over: Callable[..., LoopExpr],
        element: Element,
        finish: Callable[..., LoopExpr] | None = None,
    ) -> Stage:
        """``over`` the reduced axes of ``element``; ``finish`` gets the reduced value and the whole index at 0."""
        axes = self.axes(len(data.shape))
        return reduced(data.shape, axes, over, element, finish or (lambda result, _: result), self.keepdims)

    def _place(self, index: Index) -> Index:
        """The place where the result has what the element at ``index`` of data went into."""
        return place(index, self.axes(len(index)), self.keepdims)

    def _count(self, shape: Sequence[int]) -> int:
        return math.prod(shape[a] for a in self.axes(len(shape)))

    def relayout(self, site: Site) -> Placement | Declined | None:
        """Reduces the same axes; over a split one, both its parts.  A second argument (variance's mean) follows."""
        if not isinstance(site.carries[0], Move):
            return Declined("its first argument has not moved")
        move, rank = site.data, site.type(0).rank
        arguments = (move, *(beside(site.type(i), move) for i in range(1, len(site.carries))))
        letters = "".join(move.axis(d) for d in self.axes(rank))
        build = calling(self.with_attributes(axis=move.places(letters), exclude=False))
        if len(letters) == rank:
            return Placement(arguments, None, build) if not self.keepdims else Declined("nothing but ones is left")
        if self.keepdims:
            return Placement(arguments, Move(move.old, with_ones(move.new, letters)), build)
        return Placement(arguments, move.without(letters), build)


class Total(Reduction):
    """A reduction that adds, floats in double (compute: in single at least); integers wrap around in their own
    dtype."""

    def reference(self, data: np.ndarray) -> np.ndarray:
        wide = data.astype("float64") if data.dtype.kind == "f" else data
        return self._numpy(self.ufunc, wide, dtype=wide.dtype).astype(data.dtype)

    def compute(self, data: Buffer) -> Stage:
        kept = accumulator(data.dtype)
        return self._stage(data, self.over, lambda i, r: data[i].astype(kept), lambda s, i: s.astype(data.dtype))


define(Total, "sum", "The sum; integers wrap around in their own dtype.", ufunc=np.sum, over=sum_over)
define(Total, "prod", "The product; integers wrap around in their own dtype.", ufunc=np.prod, over=prod_over)


class Mean(Reduction, name="mean"):
    """The mean, in the dtype of data; of integers truncated towards zero.  NaN of no elements."""

    def reference(self, data: np.ndarray) -> np.ndarray:
        if data.dtype.kind == "f":
            total = self._numpy(np.sum, data.astype("float64"))
            return np.asarray(total / np.float64(self._count(data.shape))).astype(data.dtype)
        total = self._numpy(np.sum, data.astype("int64"))
        return np.asarray(np.sign(total) * (np.abs(total) // self._count(data.shape))).astype(data.dtype)

    def compute(self, data: Buffer) -> Stage:
        kept = accumulator(data.dtype) if data.dtype.startswith("float") else "int64"
        count = self._count(data.shape)
        return self._stage(
            data, sum_over, lambda i, r: data[i].astype(kept), lambda s, i: binary("div", s, count).astype(data.dtype)
        )


_ENDS: dict[str, tuple[Any, Any]] = {"f": (-np.inf, np.inf), "b": (False, True)}


class Extreme(Reduction, kinds="biuf", exact=True):
    """The largest or the smallest; of no elements minus infinity or the smallest integer, or the other way round."""

    def reference(self, data: np.ndarray) -> np.ndarray:
        ends = _ENDS.get(data.dtype.kind) or (np.iinfo(data.dtype).min, np.iinfo(data.dtype).max)
        return self._numpy(self.ufunc, data, initial=ends[self.ufunc is np.min])

    def compute(self, data: Buffer) -> Stage:
        return self._stage(data, self.over, lambda i, r: data[i])


define(
    Extreme, "max", "The largest; NaN if one is; of nothing -inf or the lowest integer.", ufunc=np.max, over=max_over
)
define(
    Extreme, "min", "The smallest; NaN if one is; of nothing inf or the highest integer.", ufunc=np.min, over=min_over
)
define(Extreme, "all", "Whether all are true.", kinds="b", ufunc=np.min, over=min_over)
define(Extreme, "any", "Whether at least one is true.", kinds="b", ufunc=np.max, over=max_over)


class Variance(Reduction, name="variance", kinds="f"):
    """The mean of (data - mean)**2; ``unbiased`` divides by one less.

    data: (...), mean: broadcasts to data (the mean with keepdims) -> (... without the reduced dimensions).
    """

    unbiased: bool = False

    def infer(self, data: TensorType, mean: TensorType) -> TensorType:  # type: ignore[override]
        require_same_dtype(self, data, mean)
        common = broadcast_shapes(self, data, mean)
        if shapes_differ(data.shape, common):
            raise self.reject(f"mean {mean} does not broadcast to {data}", hint="compute the mean with keepdims=True")
        return super().infer(data)

    def reference(self, data: np.ndarray, mean: np.ndarray) -> np.ndarray:
        squares = (data.astype("float64") - mean.astype("float64")) ** 2
        return np.asarray(self._numpy(np.sum, squares) / (self._count(data.shape) - self.unbiased)).astype(data.dtype)

    def compute(self, data: Buffer, mean: Buffer) -> Stage:
        kept = accumulator(data.dtype)
        count = as_index(self._count(data.shape) - int(self.unbiased)).astype(kept)

        def square(i: Index, r: Index) -> LoopExpr:
            distance = data[i].astype(kept) - mean[broadcast_index(mean, i)].astype(kept)
            return distance * distance

        return self._stage(data, sum_over, square, lambda s, i: (s / count).astype(data.dtype))


class ArgReduction(Reduction, Ranking, exact=True):
    """The position (int32) of the extreme along the reduced axes, counted row-major over several of them; of equal ones
    the first, with ``select_last_index`` the last."""

    select_last_index: bool = False

    def infer(self, data: TensorType) -> TensorType:
        found = super().infer(data).with_dtype("int32")
        if lacks(product(data.shape[a] for a in self.axes(data.rank)), product(found.shape)):
            raise self.reject(f"there is no element to choose in {data}")
        return found

    def reference(self, data: np.ndarray) -> np.ndarray:
        axes = self.axes(data.ndim)
        kept = [d for d in range(data.ndim) if d not in axes]
        rows = data.transpose([*kept, *axes]).reshape(*(data.shape[d] for d in kept), self._count(data.shape))
        if not rows.size:
            return np.zeros(self._kept(data.shape), "int32")
        last = self.select_last_index
        found = rows.shape[-1] - 1 - self.ufunc(rows[..., ::-1], -1) if last else self.ufunc(rows, -1)
        return np.asarray(found, "int32").reshape(self._kept(data.shape))

    def compute(self, data: Buffer) -> Stage:
        """The extreme first, then the first (or last) position that equals it or, as in numpy, is NaN."""
        best = self._stage(data, self.over, lambda i, r: data[i])
        extents = [data.shape[a] for a in self.axes(len(data.shape))]
        missing = as_index(-1 if self.select_last_index else self._count(data.shape)).astype("int32")

        def position(i: Index, r: Index) -> LoopExpr:
            value = data[i]
            hit = value.equal(best[self._place(i)])
            hit = hit | intrin("isnan", value) if data.dtype.startswith("float") else hit
            return select(hit, flatten_index(r, extents).astype("int32"), missing)

        return self._stage(data, max_over if self.select_last_index else min_over, position)

    def relayout(self, site: Site) -> None:
        """A position in a split axis is another number."""


_position = "The position of the first {} (or the last one) as int32."
ArgMax = define(ArgReduction, "argmax", _position.format("largest"), ufunc=np.argmax, over=max_over)
ArgMin = define(ArgReduction, "argmin", _position.format("smallest"), ufunc=np.argmin, over=min_over)


class LogSumExp(Reduction, name="logsumexp", fusion=Fusion.OUT_ELEMWISE_FUSABLE, kinds="f"):
    """log(sum(exp(data))), without overflow; minus infinity of no elements."""

    def reference(self, data: np.ndarray) -> np.ndarray:
        wide = data.astype("float64")
        for axis in self.axes(data.ndim):
            wide = np.expand_dims(np.logaddexp.reduce(wide, axis), axis)
        return wide.reshape(self._kept(data.shape)).astype(data.dtype)

    def compute(self, data: Buffer) -> Stage:
        kept = accumulator(data.dtype)
        high = self._stage(data, max_over, lambda i, r: data[i].astype(kept))

        def shift(i: Index) -> LoopExpr:
            peak = high[self._place(i)]
            return select(intrin("isinf", peak), const(0, kept), peak)

        def element(i: Index, r: Index) -> LoopExpr:
            return intrin("exp", data[i].astype(kept) - shift(i))

        return self._stage(data, sum_over, element, lambda s, i: (intrin("log", s) + shift(i)).astype(data.dtype))
