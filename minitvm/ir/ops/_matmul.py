"""Dtypes of sums of products: what is accumulated in what, for the reference and for the result's type."""

from __future__ import annotations

from typing import Any

import numpy as np

from minitvm.ir.op import Op
from minitvm.ir.types import TensorType

_EIGHT_BITS = ("int8", "uint8")


def product_dtype(op: Op, lhs: TensorType, rhs: TensorType, out_dtype: str) -> str:
    """The result's dtype.  Operands agree, or both are 8-bit integers and ``out_dtype`` names a wider one."""
    if lhs.dtype == "bool" or rhs.dtype == "bool":
        raise op.reject(f"takes numbers, not {lhs} and {rhs}", hint="cast the operands")
    mixed = lhs.dtype != rhs.dtype
    if mixed and not (lhs.dtype in _EIGHT_BITS and rhs.dtype in _EIGHT_BITS and out_dtype):
        raise op.reject(f"dtypes differ: {lhs} and {rhs}", hint="cast one side; int8 with uint8 needs out_dtype")
    return out_dtype or lhs.dtype


def widened(dtype: str, out_dtype: str) -> Any:
    """What the numpy references accumulate in: exact for 8-bit integers, and fast where BLAS has it."""
    if dtype in _EIGHT_BITS:
        return np.float64
    if dtype == "float16":
        return np.float32
    return np.dtype(out_dtype) if np.dtype(out_dtype).itemsize > np.dtype(dtype).itemsize else np.dtype(dtype)
