"""Operators on whole tensors: running sums, shapes as values, ranges, triangles, fills, broadcasting."""

from typing import ClassVar

import numpy as np

from minitvm.ir.dims import Dim, anonymous, differ, product
from minitvm.ir.loop import Buffer, Const, LoopExpr, Stage, as_index, const, select
from minitvm.ir.loop.scalar import convert
from minitvm.ir.op import Fusion, Op, broadcast_index, compute, define, identity_of, prod_over, sum_over
from minitvm.ir.ops._shape import (
    Axiswise,
    broadcast_shapes,
    normalize_axis,
    replaced,
    require_kind,
    require_same_dtype,
    require_scalars,
    shapes_differ,
)
from minitvm.ir.ops.elemwise import Elementwise, Unary
from minitvm.ir.types import DType, TensorType, accumulator


class Running(Axiswise, fusion=Fusion.OPAQUE, kinds="iuf"):
    """What ``ufunc`` makes of all elements up to each one along ``axis`` (``exclusive``: without it), in the dtype of
    data; ``kind`` names the reduction of the loops."""

    ufunc: ClassVar[np.ufunc]
    kind: ClassVar[str]
    axis: int = 0
    exclusive: bool = False

    def reference(self, data: np.ndarray) -> np.ndarray:
        wide = data.astype("float64") if data.dtype.kind == "f" else data
        total = self.ufunc.accumulate(wide, self.axis, wide.dtype)
        if self.exclusive and total.size:
            total = np.roll(total, 1, self.axis)
            np.moveaxis(total, self.axis, 0)[0] = self.ufunc.identity
        return np.asarray(total).astype(data.dtype)

    def compute(self, data: Buffer) -> Stage:
        axis = self.axis % len(data.shape)
        kept = accumulator(data.dtype)
        over = sum_over if self.kind == "sum" else prod_over

        def element(*i: LoopExpr) -> LoopExpr:
            def term(r: LoopExpr) -> LoopExpr:
                counts = r < i[axis] if self.exclusive else r <= i[axis]
                return select(counts, data[replaced(i, axis, r)].astype(kept), identity_of(self.kind, kept))

            return over(data.shape[axis], term).astype(data.dtype)

        return compute(data.shape, element)


define(Running, "cumsum", "Sums of all elements up to each one.", ufunc=np.add, kind="sum")
define(Running, "cumprod", "Products of all elements up to each one.", ufunc=np.multiply, kind="prod")


class ShapeOf(Op, name="shape_of", fusion=Fusion.OPAQUE, takes_stored=True):
    """The shape of data.  data: (d_0, ..., d_n) -> (n + 1,), of ``dtype``."""

    dtype: DType = "int32"

    def infer(self, data: TensorType) -> TensorType:
        return TensorType((data.rank,), self.dtype)

    def reference(self, data: np.ndarray) -> np.ndarray:
        return np.array(data.shape, self.dtype)

    def compute(self, data: Buffer) -> Stage:
        def element(i: LoopExpr) -> LoopExpr:
            value: LoopExpr = const(0, self.dtype)
            for d, extent in enumerate(data.shape):
                value = select(i.equal(d), as_index(extent).astype(self.dtype), value)
            return value

        return compute((len(data.shape),), element)


class NdArraySize(Op, name="ndarray_size", fusion=Fusion.OPAQUE, takes_stored=True):
    """The number of elements of data.  data: (...) -> (), of ``dtype``."""

    dtype: DType = "int32"

    def infer(self, data: TensorType) -> TensorType:
        return TensorType((), self.dtype)

    def reference(self, data: np.ndarray) -> np.ndarray:
        return np.array(data.size, self.dtype)

    def compute(self, data: Buffer) -> Stage:
        return compute((), lambda: as_index(product(data.shape)).astype(self.dtype))


class Arange(Op, name="arange", fusion=Fusion.OPAQUE):
    """start, start + step, ... below stop (above, for a negative step).  Three scalars of one dtype -> (n,).

    How long the result is depends on the values, so n is unknown until the operands are constant and folded.
    """

    def infer(self, start: TensorType, stop: TensorType, step: TensorType) -> TensorType:
        dtype = require_same_dtype(self, start, stop, step)
        require_kind(self, start, "iuf", "start")
        require_scalars(self, start=start, stop=stop, step=step)
        return TensorType((anonymous(),), dtype)

    def reference(self, start: np.ndarray, stop: np.ndarray, step: np.ndarray) -> np.ndarray:
        return np.arange(start.item(), stop.item(), step.item()).astype(start.dtype)


class Iota(Op, name="iota", fusion=Fusion.ELEMWISE):
    """0, 1, 2, ... as many as ``size`` says.  -> (size,), of ``dtype``."""

    size: Dim
    dtype: DType = "int64"

    def infer(self) -> TensorType:
        return TensorType((self.size,), self.dtype)

    def reference(self) -> np.ndarray:
        return np.arange(TensorType((self.size,)).size).astype(self.dtype)

    def compute(self) -> Stage:
        return compute((self.size,), lambda i: i.astype(self.dtype))


class Extent(Op, name="extent", fusion=Fusion.ELEMWISE):
    """The dimension ``size`` as a number.  -> (), of ``dtype``."""

    size: Dim
    dtype: DType = "int64"

    def infer(self) -> TensorType:
        return TensorType((), self.dtype)

    def reference(self) -> np.ndarray:
        if not isinstance(self.size, int):
            raise self.reject(f"{self.size} is a number only when the model runs")
        return np.asarray(self.size, self.dtype)

    def compute(self) -> Stage:
        return compute((), lambda: as_index(self.size).astype(self.dtype))


class Trilu(Op, name="trilu", fusion=Fusion.INJECTIVE):
    """The ``upper`` (or lower) triangle of each matrix, from diagonal k; 0 elsewhere.  data: (..., m, n), k: ()."""

    upper: bool = True

    def infer(self, data: TensorType, k: TensorType) -> TensorType:
        require_kind(self, k, "iu", "k")
        if data.rank < 2 or k.shape:
            raise self.reject(f"expected matrices and a scalar, found {data} and {k}")
        return data

    def reference(self, data: np.ndarray, k: np.ndarray) -> np.ndarray:
        return np.asarray((np.triu if self.upper else np.tril)(data, int(k)))

    def compute(self, data: Buffer, k: Buffer) -> Stage:
        def element(*i: LoopExpr) -> LoopExpr:
            distance, diagonal = i[-1] - i[-2], k[()].astype("int64")
            kept = diagonal <= distance if self.upper else distance <= diagonal
            return select(kept, data[i], const(0, data.dtype))

        return compute(data.shape, element)


class Eye(Op, name="eye", fusion=Fusion.INJECTIVE, takes_stored=False):
    """Ones on diagonal ``k``, zeros elsewhere, of ``dtype``; ``shape`` is (rows, columns)."""

    shape: tuple[Dim, ...]
    k: int = 0
    dtype: DType = "float32"

    def infer(self) -> TensorType:
        if len(self.shape) != 2:
            raise self.reject(f"shape {list(self.shape)} is not (rows, columns)")
        return TensorType(self.shape, self.dtype)

    def reference(self) -> np.ndarray:
        rows, columns = map(int, self.shape)
        return np.asarray(np.eye(rows, columns, self.k)).astype(self.dtype)

    def compute(self) -> Stage:
        one, zero = const(1, self.dtype), const(0, self.dtype)
        return compute(self.shape, lambda i, j: select((j - i).equal(self.k), one, zero))


class ReverseSequence(Op, name="reverse_sequence", fusion=Fusion.INJECTIVE):
    """The first seq_lengths[b] elements along ``seq_axis`` of each b along ``batch_axis`` back to front.

    data: (...), seq_lengths: (batch,) integers -> (...).  A length outside of ``seq_axis`` leaves its b as it is.
    """

    seq_axis: int = 1
    batch_axis: int = 0

    def infer(self, data: TensorType, seq_lengths: TensorType) -> TensorType:
        require_kind(self, seq_lengths, "iu", "seq_lengths")
        seq, batch = (normalize_axis(self, a, data.rank) for a in (self.seq_axis, self.batch_axis))
        if seq == batch or seq_lengths.rank != 1:
            raise self.reject(f"expected two different axes and one length per batch, found {seq_lengths}")
        if differ(seq_lengths.shape[0], data.shape[batch]):
            raise self.reject(f"{seq_lengths} does not match dimension {batch} of {data}")
        return data

    def reference(self, data: np.ndarray, seq_lengths: np.ndarray) -> np.ndarray:
        rows = np.moveaxis(data.copy(), (self.batch_axis, self.seq_axis), (0, 1))
        for row, length in zip(rows, seq_lengths.astype("int64").tolist(), strict=True):
            if 0 <= length <= len(row):
                row[:length] = row[:length][::-1].copy()
        return np.ascontiguousarray(np.moveaxis(rows, (0, 1), (self.batch_axis, self.seq_axis)))

    def compute(self, data: Buffer, seq_lengths: Buffer) -> Stage:
        seq, batch = self.seq_axis % len(data.shape), self.batch_axis % len(data.shape)

        def element(*i: LoopExpr) -> LoopExpr:
            length = seq_lengths[i[batch]].astype("int64")
            last = length - Const(1)
            return data[
                replaced(i, seq, select((i[seq] < length) & (length <= data.shape[seq]), last - i[seq], i[seq]))
            ]

        return compute(data.shape, element)


class Fill(Unary, takes_stored=True):
    """Every element the same value, in the shape of another tensor.  data: (...) -> (...), same dtype."""

    value: ClassVar[int] = 0

    def reference(self, data: np.ndarray) -> np.ndarray:
        return np.full_like(data, convert(np.array(self.value), data.dtype))

    def element(self, x: LoopExpr) -> LoopExpr:
        return const(self.value, x.dtype)


ZerosLike = define(Fill, "zeros_like", "Zeros in the shape and dtype of data.")
OnesLike = define(Fill, "ones_like", "Ones in the shape and dtype of data.", value=1)


class FullLike(Elementwise, name="full_like", fusion=Fusion.ELEMWISE, ufunc=np.full_like, takes_stored=True):
    """A scalar's value in every element.  data: (...), fill_value: () -> (...), both of one dtype."""

    def infer(self, data: TensorType, fill_value: TensorType) -> TensorType:
        if fill_value.shape or fill_value.dtype != data.dtype:
            raise self.reject(f"fill_value is {fill_value}; expected a scalar of {data.dtype}")
        return data

    def element(self, x: LoopExpr, fill_value: LoopExpr) -> LoopExpr:
        return fill_value


class Full(Op, name="full", fusion=Fusion.ELEMWISE, takes_stored=True):
    """A tensor of one value.  fill_value: () -> ``shape``, of ``dtype`` (the scalar's by default)."""

    shape: tuple[Dim, ...]
    dtype: DType | None = None

    def infer(self, fill_value: TensorType) -> TensorType:
        require_scalars(self, fill_value=fill_value)
        return TensorType(self.shape, self.dtype or fill_value.dtype)

    def reference(self, fill_value: np.ndarray) -> np.ndarray:
        return np.full(TensorType(self.shape).static_shape, convert(fill_value, self.dtype or fill_value.dtype))

    def compute(self, fill_value: Buffer) -> Stage:
        return compute(self.shape, lambda *i: fill_value[()].astype(self.dtype or fill_value.dtype))


class Zeros(Op, name="zeros", fusion=Fusion.ELEMWISE, takes_stored=True):
    """Zeros of ``shape`` and ``dtype``, from nothing."""

    shape: tuple[Dim, ...]
    dtype: DType = "float32"
    value: ClassVar[int] = 0

    def infer(self) -> TensorType:
        return TensorType(self.shape, self.dtype)

    def reference(self) -> np.ndarray:
        return np.full(TensorType(self.shape).static_shape, convert(np.array(self.value), self.dtype))

    def compute(self) -> Stage:
        return compute(self.shape, lambda *i: const(self.value, self.dtype))


Ones = define(Zeros, "ones", "Ones of ``shape`` and ``dtype``, from nothing.", value=1)


class BroadcastTo(Op, name="broadcast_to", fusion=Fusion.BROADCAST, takes_stored=True):
    """data repeated along dimensions of extent 1, and new ones in front, until it has ``shape``."""

    shape: tuple[Dim, ...]

    def infer(self, data: TensorType) -> TensorType:
        target = TensorType(self.shape, data.dtype)
        padded = (1,) * (target.rank - data.rank) + data.shape
        if target.rank < data.rank or any(a != 1 and differ(a, b) for a, b in zip(padded, self.shape, strict=True)):
            raise self.reject(f"{data} cannot be broadcast to shape {list(self.shape)}")
        return target

    def reference(self, data: np.ndarray) -> np.ndarray:
        return np.array(np.broadcast_to(data, TensorType(self.shape).static_shape))

    def compute(self, data: Buffer) -> Stage:
        return compute(self.shape, lambda *i: data[broadcast_index(data, i)])


class BroadcastToLike(Op, name="broadcast_to_like", fusion=Fusion.BROADCAST, takes_stored=True):
    """data broadcast to the shape of another tensor.  data: (...), shape_like: (...) -> shape_like's shape."""

    def infer(self, data: TensorType, shape_like: TensorType) -> TensorType:
        common = broadcast_shapes(self, data, shape_like)
        if shapes_differ(shape_like.shape, common):
            raise self.reject(f"{data} cannot be broadcast to the shape of {shape_like}")
        return TensorType(shape_like.shape, data.dtype)

    def reference(self, data: np.ndarray, shape_like: np.ndarray) -> np.ndarray:
        return np.array(np.broadcast_to(data, shape_like.shape))

    def compute(self, data: Buffer, shape_like: Buffer) -> Stage:
        return compute(shape_like.shape, lambda *i: data[broadcast_index(data, i)])
