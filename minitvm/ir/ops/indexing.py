"""Operators that read at positions held in a tensor: take, gather, one_hot, argwhere.

Positions below 0 count from the end (except in ``one_hot``); what is still out of range is clamped, so that no
input makes a kernel touch memory that is not its own.
"""

from typing import Literal

import numpy as np

from minitvm.ir.dims import Dim, Undecided, anonymous, differ, falls_short, lacks, larger, product
from minitvm.ir.loop import Buffer, LoopExpr, Stage, as_index, maximum, minimum, select
from minitvm.ir.loop.scalar import convert
from minitvm.ir.op import Fusion, Op, compute
from minitvm.ir.ops._shape import normalize_axis, replaced, require_kind, require_scalars, unflatten_index
from minitvm.ir.types import DType, Shape, TensorType


def wrapped(position: LoopExpr, extent: int) -> LoopExpr:
    """A position within the extent: negative ones from the end, others clamped."""
    wide = position.astype("int64")
    return minimum(maximum(select(wide < 0, wide + extent, wide), 0), extent - 1)


def clamped(position: np.ndarray, extent: int) -> np.ndarray:
    return np.asarray(np.clip(np.where(position < 0, position + extent, position), 0, extent - 1))


def require_elements(op: Op, data: TensorType, indices: TensorType, extents: Shape) -> None:
    if lacks(product(extents), product(indices.shape)):
        raise op.reject(f"there is no element to take from {data}")


class Take(Op, name="take", fusion=Fusion.INJECTIVE, looks_up=True):
    """Slices of data at ``indices`` along ``axis`` (of the flattened data where it is not given).

    data: (..., n, ...), indices: (i...) integers -> (..., i..., ...).
    ``mode`` ``"clip"`` clamps positions to 0..n-1, ``"wrap"`` takes them modulo n (so -1 is the last).
    """

    axis: int | None = None
    mode: Literal["clip", "wrap"] = "clip"

    def infer(self, data: TensorType, indices: TensorType) -> TensorType:
        require_kind(self, indices, "iu", "indices")
        if self.axis is None:
            require_elements(self, data, indices, data.shape)
            return data.with_shape(indices.shape)
        axis = normalize_axis(self, self.axis, data.rank)
        require_elements(self, data, indices, (data.shape[axis],))
        return data.with_shape(data.shape[:axis] + indices.shape + data.shape[axis + 1 :])

    def reference(self, data: np.ndarray, indices: np.ndarray) -> np.ndarray:
        extent = data.size if self.axis is None else data.shape[self.axis]
        wide = indices.astype("int64")
        within = np.clip(wide, 0, max(extent - 1, 0)) if self.mode == "clip" else wide % larger(extent, 1)
        return np.asarray(np.take(data, within, self.axis))

    def _bounded(self, position: LoopExpr, extent: Dim) -> LoopExpr:
        wide = position.astype("int64")
        return minimum(maximum(wide, 0), extent - 1) if self.mode == "clip" else wide % larger(extent, 1)

    def compute(self, data: Buffer, indices: Buffer) -> Stage:
        if self.axis is None:
            size = product(data.shape)
            return compute(
                indices.shape, lambda *i: data[tuple(unflatten_index(self._bounded(indices[i], size), data.shape))]
            )
        axis, rank = self.axis % len(data.shape), len(indices.shape)
        shape = data.shape[:axis] + indices.shape + data.shape[axis + 1 :]

        def element(*i: LoopExpr) -> LoopExpr:
            position = self._bounded(indices[i[axis : axis + rank]], data.shape[axis])
            return data[i[:axis] + (position,) + i[axis + rank :]]

        return compute(shape, element)


class Gather(Op, name="gather", fusion=Fusion.INJECTIVE, looks_up=True):
    """``data[..., indices[...], ...]`` at ``axis``, elsewhere the same position (ONNX GatherElements).

    data: (d...), indices: (i...) integers of the same rank, no larger than data but at ``axis`` -> (i...).
    """

    axis: int = 0

    def infer(self, data: TensorType, indices: TensorType) -> TensorType:
        require_kind(self, indices, "iu", "indices")
        check_elements(self, data, indices, normalize_axis(self, self.axis, data.rank))
        return data.with_shape(indices.shape)

    def reference(self, data: np.ndarray, indices: np.ndarray) -> np.ndarray:
        axis = self.axis % data.ndim
        window = data[tuple(slice(None) if d == axis else slice(n) for d, n in enumerate(indices.shape))]
        return np.take_along_axis(window, clamped(indices.astype("int64"), data.shape[axis]), axis)

    def compute(self, data: Buffer, indices: Buffer) -> Stage:
        axis = self.axis % len(data.shape)
        return compute(indices.shape, lambda *i: data[replaced(i, axis, wrapped(indices[i], data.shape[axis]))])


def check_elements(op: Op, data: TensorType, indices: TensorType, axis: int) -> None:
    if indices.rank != data.rank:
        raise op.reject(f"ranks differ: data {data} and indices {indices}")
    for d, (n, have) in enumerate(zip(indices.shape, data.shape, strict=True)):
        if d != axis and falls_short(have, n):
            raise op.reject(f"dimension {d} of indices {indices} is larger than that of data {data}")
    require_elements(op, data, indices, (data.shape[axis],))


class GatherNd(Op, name="gather_nd", fusion=Fusion.INJECTIVE, looks_up=True):
    """Slices of data at positions: ``data[b, indices[0, b, y], indices[1, b, y], ..., :]``.

    data: (b..., x_0, ..., x_n), indices: (m, b..., y...) integers -> (b..., y..., x_m, ...), where b... are
    ``batch_dims`` dimensions that both share.
    """

    batch_dims: int = 0

    def infer(self, data: TensorType, indices: TensorType) -> TensorType:
        require_kind(self, indices, "iu", "indices")
        depth = depth_of(self, data, indices, self.batch_dims)
        require_elements(self, data, indices, data.shape[self.batch_dims : self.batch_dims + depth])
        return data.with_shape(indices.shape[1:] + data.shape[self.batch_dims + depth :])

    def reference(self, data: np.ndarray, indices: np.ndarray) -> np.ndarray:
        grid: list[np.ndarray] = list(np.indices(indices.shape[1:], sparse=True)[: self.batch_dims])
        extents = data.shape[self.batch_dims :]
        grid += [clamped(row.astype("int64"), n) for row, n in zip(indices, extents, strict=False)]
        found = np.asarray(data[tuple(grid)])
        shape = indices.shape[1:] + data.shape[self.batch_dims + len(indices) :]
        return np.array(np.broadcast_to(found, shape))

    def compute(self, data: Buffer, indices: Buffer) -> Stage:
        batch, depth, rank = self.batch_dims, indices.shape[0], len(indices.shape) - 1
        extents = data.shape[batch : batch + depth]

        def element(*i: LoopExpr) -> LoopExpr:
            positions = tuple(wrapped(indices[(as_index(m),) + i[:rank]], n) for m, n in enumerate(extents))
            return data[i[:batch] + positions + i[rank:]]

        return compute(indices.shape[1:] + data.shape[batch + depth :], element)


def depth_of(op: Op, data: TensorType, indices: TensorType, batch_dims: int = 0) -> int:
    """The number of dimensions of data that one position names."""
    depth = indices.shape[0] if indices.rank else None
    if not isinstance(depth, int):
        raise op.reject(f"the first dimension of indices must be known, found {indices}") from Undecided(depth)
    if batch_dims < 0:
        raise op.reject(f"batch_dims is {batch_dims}; expected 0 or more")
    if depth + batch_dims > data.rank or batch_dims >= indices.rank:
        raise op.reject(f"{depth} positions and {batch_dims} batch dimensions do not fit data {data}")
    for d, (n, have) in enumerate(zip(indices.shape[1 : batch_dims + 1], data.shape, strict=False)):
        if differ(n, have):
            raise op.reject(f"batch dimension {d} differs: data {data} and indices {indices}")
    return depth


class OneHot(Op, name="one_hot", fusion=Fusion.OUT_ELEMWISE_FUSABLE, takes_stored=True):
    """``on_value`` at position indices[...] of a new dimension of extent ``depth``, ``off_value`` elsewhere.

    indices: (i...) integers, on_value: (), off_value: () -> (i... with depth inserted at ``axis``), of ``dtype``.
    """

    depth: int
    axis: int = -1
    dtype: DType = "float32"

    def infer(self, indices: TensorType, on_value: TensorType, off_value: TensorType) -> TensorType:
        require_kind(self, indices, "iu", "indices")
        require_scalars(self, on_value=on_value, off_value=off_value)
        axis = normalize_axis(self, self.axis, indices.rank + 1)
        return TensorType(indices.shape[:axis] + (self.depth,) + indices.shape[axis:], self.dtype)

    def reference(self, indices: np.ndarray, on_value: np.ndarray, off_value: np.ndarray) -> np.ndarray:
        axis = self.axis % (indices.ndim + 1)
        positions = np.arange(self.depth).reshape(-1, *(1,) * (indices.ndim - axis))
        hit = np.expand_dims(indices.astype("int64"), axis) == positions
        return np.where(hit, convert(on_value, self.dtype), convert(off_value, self.dtype))

    def compute(self, indices: Buffer, on_value: Buffer, off_value: Buffer) -> Stage:
        axis = self.axis % (len(indices.shape) + 1)

        def element(*i: LoopExpr) -> LoopExpr:
            hit = indices[i[:axis] + i[axis + 1 :]].astype("int64").equal(i[axis])
            return select(hit, on_value[()].astype(self.dtype), off_value[()].astype(self.dtype))

        return compute((*indices.shape[:axis], self.depth, *indices.shape[axis:]), element)


class ArgWhere(Op, name="argwhere", fusion=Fusion.OPAQUE):
    """Positions of the elements that are not zero, in order.  x: (d...) -> (number of them, rank), int64."""

    def infer(self, condition: TensorType) -> TensorType:
        return TensorType((anonymous(), condition.rank), "int64")

    def reference(self, condition: np.ndarray) -> np.ndarray:
        return np.argwhere(condition).astype("int64")
