"""Matrix products as BLAS has them: what vendors' libraries are asked for."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from minitvm.ir.decision import Declined
from minitvm.ir.expr import Call
from minitvm.ir.ops.nn_dense import BatchMatmul, Dense, Matmul
from minitvm.ir.types import TensorType

DTYPES = {"float32": "s", "float64": "d"}
"""That BLAS multiplies, with its letter for each."""


@dataclass(frozen=True)
class Gemm:
    """``batch`` products of an m x k matrix by a k x n one, by rows, each operand perhaps stored transposed.

    ``stride_a`` and ``stride_b`` are elements from one batch entry's matrix to the next one's; 0 repeats it.
    """

    dtype: str
    m: int
    n: int
    k: int
    transpose_a: bool = False
    transpose_b: bool = False
    batch: int = 1
    stride_a: int = 0
    stride_b: int = 0

    @property
    def name(self) -> str:
        return f"{DTYPES[self.dtype]}gemm"

    @property
    def lda(self) -> int:
        """Elements from one stored row to the next."""
        return self.m if self.transpose_a else self.k

    @property
    def ldb(self) -> int:
        return self.k if self.transpose_b else self.n


def gemm_of(call: Call, known: Collection[str] = DTYPES) -> Gemm | Declined | None:
    """The product that a call is; why a BLAS of these dtypes does not compute it; ``None`` for what is no product."""
    if not isinstance(call.op, (Dense, Matmul, BatchMatmul)):
        return None
    a, b = (arg.tensor_type for arg in call.args)
    result = call.tensor_type
    dtypes = sorted({a.dtype, b.dtype, result.dtype})
    if len(dtypes) > 1 or result.dtype not in known:
        return Declined(f"the library multiplies {' or '.join(known)}, not {', '.join(dtypes)}")
    if not (a.is_static and b.is_static):
        return Declined(f"the library is called for numbers only, not for {a} by {b}")
    if not (result.size and a.size):
        return Declined(f"nothing is multiplied: {a} by {b}")
    swapped = (False, True) if isinstance(call.op, Dense) else (call.op.transpose_a, call.op.transpose_b)
    return _gemm(a, b, result, *swapped)


def _gemm(a: TensorType, b: TensorType, result: TensorType, transpose_a: bool, transpose_b: bool) -> Gemm:
    *batches, m, n = result.static_shape
    k = a.static_shape[-2 if transpose_a else -1]
    strides = [0 if x.static_shape[0] == 1 else x.static_shape[1] * x.static_shape[2] for x in (a, b) if x.rank == 3]
    return Gemm(result.dtype, m, n, k, transpose_a, transpose_b, *batches, *strides)
