"""Operators that write at positions held in a tensor: scatter_elements, scatter_nd, tensor_scatter.

Positions are taken as those of what is read there (``indexing.py``): below 0 from the end, others clamped.
"""

from collections.abc import Callable, Sequence
from typing import Annotated

import numpy as np

from minitvm.ir.dims import Dim, falls_short, larger
from minitvm.ir.loop import Buffer, LoopExpr, Stage, Stmt, as_index, binary, const, nest, select, seq, store
from minitvm.ir.op import Fusion, Op, compute
from minitvm.ir.ops._shape import normalize_axis, replaced, require_kind, require_same_dtype, shapes_differ
from minitvm.ir.ops.indexing import check_elements, clamped, depth_of, require_elements, wrapped
from minitvm.ir.types import TensorType

_REDUCTIONS: dict[str, Callable[..., None] | None] = {
    "update": None,
    "add": np.add.at,
    "mul": np.multiply.at,
    "min": np.minimum.at,
    "max": np.maximum.at,
}


def _scatter(data: np.ndarray, at: tuple[np.ndarray, ...], updates: np.ndarray, reduction: str) -> np.ndarray:
    """A copy of data with ``updates`` written, or accumulated in order, at positions."""
    result: np.ndarray = data.copy()
    accumulate = _REDUCTIONS[reduction]
    if accumulate is None:
        result[at] = updates
    else:
        accumulate(result, at, updates)
    return result


def merged(kind: str, old: LoopExpr, update: LoopExpr) -> LoopExpr:
    """What a scatter leaves where ``old`` is."""
    return update if kind == "update" else binary("and" if (kind, old.dtype) == ("mul", "bool") else kind, old, update)


def _copied(data: Buffer, result: Buffer) -> Stmt:
    return nest(data.shape, lambda *i: store(result, i, data[i]))


class ScatterElements(Op, name="scatter_elements", fusion=Fusion.OPAQUE, takes_stored=True):
    """data with each of ``updates`` combined in at ``indices[...]`` along ``axis``, elsewhere at its own position.

    data: (d...), indices: (i...) integers, updates: (i...) -> (d...).  ``reduction``: update, add, mul, min, max.
    """

    axis: int = 0
    reduction: Annotated[str, tuple(_REDUCTIONS)] = "update"

    def infer(self, data: TensorType, indices: TensorType, updates: TensorType) -> TensorType:
        require_kind(self, indices, "iu", "indices")
        require_same_dtype(self, data, updates)
        require_kind(self, data, "biufV" if self.reduction == "update" else "biuf", "data")
        check_elements(self, data, indices, normalize_axis(self, self.axis, data.rank))
        _check_same_shape(self, indices.shape, updates)
        return data

    def reference(self, data: np.ndarray, indices: np.ndarray, updates: np.ndarray) -> np.ndarray:
        axis = self.axis % data.ndim
        at: list[np.ndarray] = list(np.indices(indices.shape, sparse=True))
        at[axis] = clamped(indices.astype("int64"), data.shape[axis])
        return _scatter(data, tuple(at), updates, self.reduction)

    def statements(self, data: Buffer, indices: Buffer, updates: Buffer, result: Buffer) -> Stmt:
        axis = self.axis % len(data.shape)

        def update(*i: LoopExpr) -> Stmt:
            at = replaced(i, axis, wrapped(indices[i], data.shape[axis]))
            return store(result, at, merged(self.reduction, result[at], updates[i]))

        return seq(_copied(data, result), nest(indices.shape, update))


def _check_same_shape(op: Op, expected: Sequence[Dim], updates: TensorType) -> None:
    if shapes_differ(expected, updates.shape):
        wanted = TensorType(tuple(expected), updates.dtype)
        raise op.reject(f"updates are {updates}; expected {wanted}")


class ScatterNd(Op, name="scatter_nd", fusion=Fusion.OPAQUE, takes_stored=True):
    """data with slices combined in: ``result[indices[0, y], indices[1, y], ..., :] = updates[y, :]``.

    data: (x_0, ..., x_n), indices: (m, y...) integers, updates: (y..., x_m, ...) -> the shape of data.
    ``mode``: update, add, mul, min, max.
    """

    mode: Annotated[str, tuple(_REDUCTIONS)] = "update"

    def infer(self, data: TensorType, indices: TensorType, updates: TensorType) -> TensorType:
        require_kind(self, indices, "iu", "indices")
        require_same_dtype(self, data, updates)
        require_kind(self, data, "biufV" if self.mode == "update" else "biuf", "data")
        depth = depth_of(self, data, indices)
        require_elements(self, data, indices, data.shape[:depth])
        _check_same_shape(self, indices.shape[1:] + data.shape[depth:], updates)
        return data

    def reference(self, data: np.ndarray, indices: np.ndarray, updates: np.ndarray) -> np.ndarray:
        at = tuple(clamped(row.astype("int64"), n) for row, n in zip(indices, data.shape, strict=False))
        return _scatter(data, at, updates, self.mode)

    def statements(self, data: Buffer, indices: Buffer, updates: Buffer, result: Buffer) -> Stmt:
        depth, rank = indices.shape[0], len(indices.shape) - 1

        def update(*i: LoopExpr) -> Stmt:
            where = (wrapped(indices[(as_index(m),) + i[:rank]], data.shape[m]) for m in range(depth))
            at = (*where, *i[rank:])
            return store(result, at, merged(self.mode, result[at], updates[i]))

        return seq(_copied(data, result), nest(updates.shape, update))


class TensorScatter(Op, name="tensor_scatter", fusion=Fusion.OPAQUE, takes_stored=True):
    """data with ``updates`` from place ``start[...]`` of each sequence on, as a cache of keys or values has it.

    data: (batch, ..., n, ...), updates: (batch, ..., m, ...) with ``m`` places along ``axis``, start: (batch,) int64 ->
    the shape of data.  Places that are out of range are left out, or with ``circular`` counted from the first again.
    ``clears``: what lies behind the updates is 0, unless the result's memory is that of data, where it stays (ONNX's
    TensorScatter; the buffers of ONNX Runtime's GroupQueryAttention).
    """

    axis: int = -2
    circular: bool = False
    clears: bool = False
    in_place = 0

    def infer(self, data: TensorType, updates: TensorType, start: TensorType) -> TensorType:
        axis = normalize_axis(self, self.axis, data.rank)
        require_same_dtype(self, data, updates)
        if self.circular and self.clears:
            raise self.reject("nothing lies behind updates in a circle that could be cleared")
        if axis == 0 or updates.rank != data.rank:
            raise self.reject(f"updates {updates} do not lie along a dimension behind the first one of {data}")
        _check_same_shape(self, (*data.shape[:axis], updates.shape[axis], *data.shape[axis + 1 :]), updates)
        if start.dtype != "int64" or shapes_differ(start.shape, data.shape[:1]):
            raise self.reject(f"start is {start}; expected {TensorType(data.shape[:1], 'int64')}")
        if self.circular and falls_short(data.shape[axis], updates.shape[axis]):
            raise self.reject(f"{updates.shape[axis]} updates do not fit in a circle of {data.shape[axis]} places")
        return data

    def reference(self, data: np.ndarray, updates: np.ndarray, start: np.ndarray) -> np.ndarray:
        axis = self.axis % data.ndim
        result: np.ndarray = data.copy()
        extent, length = data.shape[axis], updates.shape[axis]
        for written, new, first in zip(result, updates, start, strict=True):
            rows, news = np.moveaxis(written, axis - 1, 0), np.moveaxis(new, axis - 1, 0)
            if self.clears:
                rows[max(0, first + length) :] = 0
            for k in range(length):
                place = (first + k) % extent if self.circular and extent else first + k
                if 0 <= place < extent:
                    rows[place] = news[k]
        return result

    def compute(self, data: Buffer, updates: Buffer, start: Buffer) -> Stage:
        axis = self.axis % len(data.shape)
        extent, length = data.shape[axis], updates.shape[axis]

        def element(*i: LoopExpr) -> LoopExpr:
            distance = i[axis] - start[(i[0],)]
            distance = distance % larger(extent, 1) if self.circular else distance
            rest = select(distance < 0, data[i], const(0, data.dtype)) if self.clears else data[i]
            return select((distance >= 0) & (distance < as_index(length)), updates[replaced(i, axis, distance)], rest)

        return compute(data.shape, element)
