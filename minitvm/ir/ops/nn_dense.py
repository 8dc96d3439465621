"""Fully connected layers, matrix products, and what follows them channel by channel: bias and prelu."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from minitvm.ir.decision import Declined
from minitvm.ir.dims import Dim, broadcast_dims, differ
from minitvm.ir.expr import Call, Constant, Expr
from minitvm.ir.layout import Layout
from minitvm.ir.loop import Buffer, Const, LoopExpr, Stage, select
from minitvm.ir.op import Fusion, Op, Precision, compute, sum_over
from minitvm.ir.ops._shape import (
    Channelwise,
    beside,
    buffer_type,
    normalize_axis,
    product_dtype,
    require_same_dtype,
    widened,
)
from minitvm.ir.ops.elemwise import Add, Less, Multiply, Where
from minitvm.ir.relayout import Placement, Site, along_axis, calling, vector_along
from minitvm.ir.types import ResultDType, TensorType, Type, accumulator


def _matmul(a: np.ndarray, b: np.ndarray, out_dtype: str) -> np.ndarray:
    dtype = out_dtype or a.dtype.name
    wide = widened(a.dtype.name, dtype)
    return np.asarray((a.astype(wide, copy=False) @ b.astype(wide, copy=False)).astype(dtype, copy=False))


def _dot(depth: int, dtype: str, lhs: Callable[..., LoopExpr], rhs: Callable[..., LoopExpr]) -> LoopExpr:
    """The sum of ``depth`` products, in half precision summed in single."""
    wide = accumulator(dtype)
    return sum_over(depth, lambda r: lhs(r).astype(wide) * rhs(r).astype(wide)).astype(dtype)


def _check_rank(op: Op, type_: TensorType, rank: int, what: str, form: str) -> None:
    if type_.rank != rank:
        raise op.reject(f"{what} must have {rank} dimensions, {form}, not {type_}", hint="reshape it")


def _check_inner(op: Op, lhs: Dim, rhs: Dim, types: str, hint: str) -> None:
    if differ(lhs, rhs):
        raise op.reject(f"inner dimensions differ: {types}", hint=hint)


class MatrixProduct(Op, fusion=Fusion.OUT_ELEMWISE_FUSABLE, precision=Precision.SHORT):
    """What multiplies matrices; the depth is the last dimension of the first, or the one before (``transpose_a``)."""

    def flops(self, args: Sequence[TensorType], results: Sequence[TensorType]) -> float:
        """Two per multiplication."""
        return 2.0 * results[0].size * args[0].static_shape[-2 if self.attributes().get("transpose_a") else -1]


class Dense(MatrixProduct, name="nn.dense"):
    """data @ weight.T, the fully connected layer.  data: (m, k), weight: (units, k) -> (m, units).

    ``units`` is needed only where the weight's type is to be inferred; ``out_dtype`` (empty: as the data) lets 8-bit
    integers be summed in int32.
    """

    units: int | None = None
    out_dtype: ResultDType = ""

    def channel_layouts(self) -> tuple[Layout, Layout, Layout]:
        return Layout("NC"), Layout("OI"), Layout("NC")

    def solve(self, types: list[Type | None]) -> list[Type | None]:
        data, weight = types
        if weight is not None or self.units is None or not isinstance(data, TensorType):
            return types
        return [data, TensorType((self.units, data.shape[-1]), data.dtype)]

    def infer(self, data: TensorType, weight: TensorType) -> TensorType:
        _check_rank(self, data, 2, "the input", "(rows, features)")
        _check_rank(self, weight, 2, "the weight", "(units, features)")
        hint = "weight is (units, features): its second dimension must equal the input's"
        _check_inner(self, data.shape[1], weight.shape[1], f"{data} and {weight}", hint)
        if self.units is not None and differ(weight.shape[0], self.units):
            raise self.reject(f"units={self.units} but the weight has {weight.shape[0]} rows")
        dtype = product_dtype(self, data, weight, self.out_dtype)
        return TensorType((data.shape[0], weight.shape[0]), dtype)

    def reference(self, data: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return _matmul(data, weight.T, self.out_dtype)

    def compute(self, data: Buffer, weight: Buffer) -> Stage:
        (m, k), n, dtype = data.shape, weight.shape[0], self.out_dtype or data.dtype
        return compute((m, n), lambda i, j: _dot(k, dtype, lambda r: data[i, r], lambda r: weight[j, r]))


class DensePack(MatrixProduct, name="nn.contrib_dense_pack"):
    """``nn.dense`` with its weight in panels.  data: (m, k), weight: (ceil(units / n), k, n) -> (m, units).

    ``weight_layout`` is ``NC[n]n``, for example ``NC8n``.  ``units`` says how many of the last panel's columns belong
    to no unit; without it all do.  ``out_dtype`` is ``nn.dense``'s.
    """

    weight_layout: str = "NC8n"
    units: int | None = None
    out_dtype: ResultDType = ""

    def infer(self, data: TensorType, weight: TensorType) -> TensorType:
        layout = Layout(self.weight_layout)
        if layout.primal != "NC" or layout.rank != 3 or "n" not in layout or layout.index("n") != 2:
            raise self.reject(f"weight_layout={self.weight_layout!r} must be NC[n]n, for example NC8n")
        _check_rank(self, data, 2, "the input", "(rows, features)")
        _check_rank(self, weight, 3, "the weight", "(units / n, features, n)")
        extents = layout.primal_shape(weight.shape)
        hint = "weight is (units / n, features, n): its second dimension must equal the input's"
        _check_inner(self, data.shape[1], extents["C"], f"{data} and {weight}", hint)
        dtype = product_dtype(self, data, weight, self.out_dtype)
        return TensorType((data.shape[0], self._units(extents["N"], weight)), dtype)

    def _units(self, columns: Dim, weight: TensorType) -> Dim:
        """Those of the panels' columns that are units."""
        if self.units is None or not isinstance(columns, int):
            return columns if self.units is None else self.units
        width = Layout(self.weight_layout).factor("N")
        if not columns - width < self.units <= columns:
            raise self.reject(
                f"units={self.units} but the weight has {weight.shape[0]} panels of {width}",
                hint="only columns of the last panel may belong to no unit",
            )
        return self.units

    def reference(self, data: np.ndarray, weight: np.ndarray) -> np.ndarray:
        blocks, k, n = weight.shape
        columns = weight.transpose(1, 0, 2).reshape(k, blocks * n)
        return _matmul(data, columns[:, : self.units], self.out_dtype)

    def compute(self, data: Buffer, weight: Buffer) -> Stage:
        (m, k), (blocks, _, n), dtype = data.shape, weight.shape, self.out_dtype or data.dtype
        return compute(
            (m, self.units or blocks * n),
            lambda i, j: _dot(k, dtype, lambda r: data[i, r], lambda r: weight[j // n, r, j % n]),
        )


def _swapped(shape: Sequence[Any], swap: bool) -> tuple[Any, Any]:
    """The last two dimensions as the product sees them."""
    return (shape[-1], shape[-2]) if swap else (shape[-2], shape[-1])


class TransposedProduct(MatrixProduct):
    """Matrices by matrices; ``transpose_a`` and ``transpose_b`` say which operand comes with its dimensions swapped,
    ``out_dtype`` (empty: as the data) what is computed in."""

    rank: ClassVar[int] = 2
    out_dtype: ResultDType = ""
    transpose_a: bool = False
    transpose_b: bool = False

    def infer(self, tensor_a: TensorType, tensor_b: TensorType) -> TensorType:
        batch, what = ("batch, ", "each product") if self.rank == 3 else ("", "the product")
        _check_rank(self, tensor_a, self.rank, "tensor_a", f"({batch}{'k, m' if self.transpose_a else 'm, k'})")
        _check_rank(self, tensor_b, self.rank, "tensor_b", f"({batch}{'n, k' if self.transpose_b else 'k, n'})")
        (m, k), (depth, n) = _swapped(tensor_a.shape, self.transpose_a), _swapped(tensor_b.shape, self.transpose_b)
        flags = f"transpose_a={self.transpose_a} and transpose_b={self.transpose_b}"
        hint = f"with {flags} {what} is ({m}, {k}) by ({depth}, {n})"
        _check_inner(self, k, depth, f"{tensor_a} and {tensor_b}", hint)
        try:
            batches = tuple(map(broadcast_dims, tensor_a.shape[:-2], tensor_b.shape[:-2]))
        except ValueError:
            raise self.reject(
                f"batches differ: {tensor_a} and {tensor_b}", hint="they must be equal, or one of them 1"
            ) from None
        return TensorType((*batches, m, n), product_dtype(self, tensor_a, tensor_b, self.out_dtype))

    def reference(self, tensor_a: np.ndarray, tensor_b: np.ndarray) -> np.ndarray:
        a = tensor_a.swapaxes(-1, -2) if self.transpose_a else tensor_a
        b = tensor_b.swapaxes(-1, -2) if self.transpose_b else tensor_b
        return _matmul(a, b, self.out_dtype)

    def compute(self, tensor_a: Buffer, tensor_b: Buffer) -> Stage:
        shape = self.infer(buffer_type(tensor_a), buffer_type(tensor_b)).extents
        k, dtype = _swapped(tensor_a.shape, self.transpose_a)[1], self.out_dtype or tensor_a.dtype

        def at(tensor: Buffer, p: Sequence[LoopExpr], i: LoopExpr, j: LoopExpr, swap: bool) -> LoopExpr:
            pairs = zip(p, tensor.shape, strict=False)
            index = (*(Const(0) if extent == 1 else q for q, extent in pairs), *((j, i) if swap else (i, j)))
            return tensor[index]

        def element(*index: LoopExpr) -> LoopExpr:
            p, (i, j) = index[:-2], index[-2:]
            return _dot(
                k,
                dtype,
                lambda r: at(tensor_a, p, i, r, self.transpose_a),
                lambda r: at(tensor_b, p, r, j, self.transpose_b),
            )

        return compute(shape, element)


class Matmul(TransposedProduct, name="nn.matmul"):
    """The product of two matrices.  tensor_a: (m, k), tensor_b: (k, n) -> (m, n).

    ``units`` is n, needed only where the type of ``tensor_b`` is to be inferred.
    """

    units: int | None = None

    def solve(self, types: list[Type | None]) -> list[Type | None]:
        a, b = types
        if b is not None or self.units is None or not isinstance(a, TensorType):
            return types
        k = _swapped(a.shape, self.transpose_a)[1]
        return [a, TensorType((self.units, k) if self.transpose_b else (k, self.units), a.dtype)]


class BatchMatmul(TransposedProduct, name="nn.batch_matmul", rank=3):
    """One matrix product per batch entry.  tensor_a: (b, m, k), tensor_b: (b, n, k) -> (b, m, n).

    As in Relay ``tensor_b`` comes transposed unless ``transpose_b=False``.  A batch of 1 is repeated for the other.
    """

    transpose_b: bool = True


class BiasAdd(
    Channelwise, name="nn.bias_add", fusion=Fusion.BROADCAST, additive=True, exact=True, precision=Precision.FOLLOW
):
    """Adds a vector along one axis.  data: (...), bias: (data.shape[axis],) -> as data."""

    def infer(self, data: TensorType, bias: TensorType) -> TensorType:
        axis = normalize_axis(self, self.axis, data.rank)
        _check_rank(self, bias, 1, "the bias", f"(data.shape[{self.axis}],)")
        require_same_dtype(self, data, bias)
        if differ(size := data.shape[axis], bias.shape[0]):
            raise self.reject(f"the bias has {bias.shape[0]} elements but axis {self.axis} of the input has {size}")
        return data

    def reference(self, data: np.ndarray, bias: np.ndarray) -> np.ndarray:
        return np.asarray(data + beside(bias, self.axis, data.ndim))

    def compute(self, data: Buffer, bias: Buffer) -> Stage:
        axis = self.axis % len(data.shape)
        return compute(data.shape, lambda *i: data[i] + bias[i[axis]])

    def relayout(self, site: Site) -> Placement | Declined:
        """The bias is an operand of a broadcasting add where channels come in blocks."""
        if not site.data.blocks:
            return along_axis(site, self.axis, "its bias lies along")
        return Placement((site.data, vector_along(site.data, self.axis)), site.data, calling(Add()))


class Prelu(
    Channelwise, name="nn.prelu", fusion=Fusion.BROADCAST, homogeneous=True, exact=True, precision=Precision.FOLLOW
):
    """``leaky_relu`` with a slope per channel.  data: (...) floats, alpha: (data.shape[axis],) -> as data."""

    def infer(self, data: TensorType, alpha: TensorType) -> TensorType:
        self.check_vectors(data, "slope", alpha=alpha)
        return data

    def reference(self, data: np.ndarray, alpha: np.ndarray) -> np.ndarray:
        return np.asarray(np.where(data < 0, data * beside(alpha, self.axis, data.ndim), data))

    def compute(self, data: Buffer, alpha: Buffer) -> Stage:
        axis = self.axis % len(data.shape)
        return compute(data.shape, lambda *i: select(data[i] < 0, data[i] * alpha[i[axis]], data[i]))

    def relayout(self, site: Site) -> Placement | Declined:
        """The layer is ``max(x, 0) + alpha * min(x, 0)``, with alpha broadcast, where channels come in blocks."""
        if not site.data.blocks:
            return along_axis(site, self.axis, "its slopes lie along")
        if site.type(1).size == 1:
            return Declined("one slope for all channels")
        return Placement((site.data, vector_along(site.data, self.axis)), site.data, _broadcast_prelu)


def _broadcast_prelu(args: Sequence[Expr]) -> Expr:
    x, alpha = args
    negative = Call(Less(), (x, Constant(np.zeros((), x.dtype))))
    return Call(Where(), (negative, Call(Multiply(), (x, alpha)), x))
