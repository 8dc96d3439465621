"""Operators that move elements about: reshape, transpose, expand, squeeze, tile, repeat, reverse."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minitvm.ir.compute import compute
from minitvm.ir.loop import Buffer, Const, LoopExpr, Stage
from minitvm.ir.op import Fusion, Op
from minitvm.ir.ops._reshape import resolve_reshape
from minitvm.ir.ops._shape import (
    freeze_ints,
    normalize_axes,
    normalize_axis,
    product,
    replaced,
    reshape_index,
)
from minitvm.ir.types import Dim, Shape, TensorType


def _reshaped(x: Buffer, result: TensorType | Buffer) -> Stage:
    shape = result.static_shape if isinstance(result, TensorType) else result.shape
    return compute(shape, lambda *i: x[tuple(reshape_index(i, shape, x.shape))])


@dataclass(frozen=True)
class Reshape(Op):
    """The same elements, row-major, in another shape.  x: (...) -> newshape.

    In ``newshape``, 0 copies a dimension of x (unless ``allowzero``), -1 is what remains, -2 copies all
    remaining dimensions, -3 merges two, and -4 splits one into the two that follow it.
    """

    name = "reshape"
    fusion = Fusion.INJECTIVE
    newshape: tuple[int, ...]
    allowzero: bool = False

    def __post_init__(self) -> None:
        freeze_ints(self, "newshape")

    def infer(self, x: TensorType) -> TensorType:
        return x.with_shape(resolve_reshape(self, x, self.newshape, self.allowzero))

    def reference(self, x: np.ndarray) -> np.ndarray:
        target = TensorType(x.shape, x.dtype.name)
        return x.reshape(resolve_reshape(self, target, self.newshape, self.allowzero))

    def compute(self, x: Buffer) -> Stage:
        return _reshaped(x, self.infer(TensorType(x.shape, x.dtype)))


@dataclass(frozen=True)
class ReshapeLike(Op):
    """The elements of x in the shape of another tensor.  x: (...), shape_like: (...) -> shape_like's shape."""

    name = "reshape_like"
    fusion = Fusion.INJECTIVE

    def infer(self, x: TensorType, shape_like: TensorType) -> TensorType:
        if x.is_static and shape_like.is_static and x.size != shape_like.size:
            raise self.reject(f"{x} has {x.size} elements, {shape_like} has {shape_like.size}")
        return x.with_shape(shape_like.shape)

    def reference(self, x: np.ndarray, shape_like: np.ndarray) -> np.ndarray:
        return x.reshape(shape_like.shape)

    def compute(self, x: Buffer, shape_like: Buffer) -> Stage:
        return _reshaped(x, shape_like)


@dataclass(frozen=True)
class BatchFlatten(Op):
    """All dimensions but the first merged.  x: (n, ...) -> (n, product of the others)."""

    name = "nn.batch_flatten"
    fusion = Fusion.INJECTIVE

    def infer(self, x: TensorType) -> TensorType:
        if x.rank < 1:
            raise self.reject(f"expected at least one dimension, not {x}")
        return x.with_shape((x.shape[0], product(x.shape[1:])))

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(x.shape[0], int(np.prod(x.shape[1:])))

    def compute(self, x: Buffer) -> Stage:
        return _reshaped(x, self.infer(TensorType(x.shape, x.dtype)))


@dataclass(frozen=True)
class Transpose(Op):
    """Dimension ``axes[d]`` of x becomes dimension d; reversed where ``axes`` is not given."""

    name = "transpose"
    fusion = Fusion.INJECTIVE
    axes: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        freeze_ints(self, "axes")

    def _order(self, rank: int) -> tuple[int, ...]:
        if self.axes is None:
            return tuple(reversed(range(rank)))
        if len(self.axes) != rank:
            raise self.reject(f"{len(self.axes)} axes given for rank {rank}: {list(self.axes)}")
        return normalize_axes(self, self.axes, rank)

    def infer(self, x: TensorType) -> TensorType:
        return x.with_shape(tuple(x.shape[a] for a in self._order(x.rank)))

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.array(x.transpose(self.axes), order="C")

    def compute(self, x: Buffer) -> Stage:
        order = self._order(len(x.shape))
        place = {axis: d for d, axis in enumerate(order)}
        shape = [x.shape[a] for a in order]
        return compute(shape, lambda *i: x[tuple(i[place[a]] for a in range(len(order)))])


@dataclass(frozen=True)
class ExpandDims(Op):
    """``num_newaxis`` dimensions of extent 1 inserted before ``axis`` (negative: after it)."""

    name = "expand_dims"
    fusion = Fusion.BROADCAST
    axis: int
    num_newaxis: int = 1

    def infer(self, x: TensorType) -> TensorType:
        at = normalize_axis(self, self.axis, x.rank + 1)
        return x.with_shape(x.shape[:at] + (1,) * self.num_newaxis + x.shape[at:])

    def reference(self, x: np.ndarray) -> np.ndarray:
        at = self.axis if self.axis >= 0 else self.axis + x.ndim + 1
        return np.expand_dims(x, tuple(range(at, at + self.num_newaxis)))

    def compute(self, x: Buffer) -> Stage:
        return _reshaped(x, self.infer(TensorType(x.shape, x.dtype)))


@dataclass(frozen=True)
class Squeeze(Op):
    """Dimensions of extent 1 removed: those in ``axis``, all of them where it is not given."""

    name = "squeeze"
    fusion = Fusion.INJECTIVE
    axis: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        freeze_ints(self, "axis")

    def infer(self, x: TensorType) -> TensorType:
        if self.axis is None:
            if not x.is_static:
                raise self.reject(f"axis is needed where a dimension is unknown: {x}")
            return x.with_shape(tuple(d for d in x.shape if d != 1))
        axes = normalize_axes(self, self.axis, x.rank)
        for a in axes:
            if x.shape[a] not in (1, None):
                raise self.reject(f"dimension {a} of {x} is {x.shape[a]}, not 1")
        return x.with_shape(tuple(dim for d, dim in enumerate(x.shape) if d not in axes))

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.squeeze(x, self.axis)

    def compute(self, x: Buffer) -> Stage:
        return _reshaped(x, self.infer(TensorType(x.shape, x.dtype)))


@dataclass(frozen=True)
class Tile(Op):
    """x repeated ``reps[d]`` times along dimension d; the shorter of shape and reps is padded with 1 in front."""

    name = "tile"
    fusion = Fusion.BROADCAST
    reps: tuple[int, ...]

    def __post_init__(self) -> None:
        freeze_ints(self, "reps")

    def _padded(self, shape: Shape) -> list[tuple[Dim, int]]:
        rank = max(len(shape), len(self.reps))
        dims = (1,) * (rank - len(shape)) + shape
        return list(zip(dims, (1,) * (rank - len(self.reps)) + self.reps, strict=True))

    def infer(self, x: TensorType) -> TensorType:
        if any(n < 0 for n in self.reps):
            raise self.reject(f"reps must not be negative: {list(self.reps)}")
        return x.with_shape(tuple(None if d is None else d * n for d, n in self._padded(x.shape)))

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(np.tile(x, self.reps))

    def compute(self, x: Buffer) -> Stage:
        shape = [(d or 0) * n for d, n in self._padded(x.shape)]

        def element(*i: LoopExpr) -> LoopExpr:
            tail = i[len(i) - len(x.shape) :]
            full = shape[len(shape) - len(x.shape) :]
            return x[tuple(v if e == n else v % max(e, 1) for v, e, n in zip(tail, x.shape, full, strict=True))]

        return compute(shape, element)


@dataclass(frozen=True)
class Repeat(Op):
    """Each element along ``axis`` ``repeats`` times in a row."""

    name = "repeat"
    fusion = Fusion.BROADCAST
    repeats: int
    axis: int = 0

    def infer(self, x: TensorType) -> TensorType:
        axis = normalize_axis(self, self.axis, x.rank)
        if self.repeats < 1:
            raise self.reject(f"repeats must be positive, not {self.repeats}")
        shape = list(x.shape)
        extent = shape[axis]
        shape[axis] = None if extent is None else extent * self.repeats
        return x.with_shape(tuple(shape))

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(np.repeat(x, self.repeats, self.axis))

    def compute(self, x: Buffer) -> Stage:
        axis = self.axis % len(x.shape)
        shape = list(x.shape)
        shape[axis] *= self.repeats
        return compute(shape, lambda *i: x[replaced(i, axis, i[axis] // self.repeats)])


@dataclass(frozen=True)
class Reverse(Op):
    """x back to front along ``axis``."""

    name = "reverse"
    fusion = Fusion.INJECTIVE
    axis: int = 0

    def infer(self, x: TensorType) -> TensorType:
        normalize_axis(self, self.axis, x.rank)
        return x

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.array(np.flip(x, self.axis))

    def compute(self, x: Buffer) -> Stage:
        axis = self.axis % len(x.shape)
        last = Const(x.shape[axis] - 1)
        return compute(x.shape, lambda *i: x[replaced(i, axis, last - i[axis])])
