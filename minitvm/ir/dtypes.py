"""The dtypes of tensors: numpy's, which are computed with, and those of ``ml_dtypes``, which are only stored."""

from functools import cache, lru_cache
from typing import Annotated, Any, TypeAlias

import numpy as np

_FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
STORED = dict.fromkeys(("bfloat16", *_FLOAT8, "float4_e2m1fn"), "float32")
STORED |= {"int4": "int8", "uint4": "uint8", "int2": "int8", "uint2": "uint8"}
"""Dtypes that are stored, moved and cast, never computed with -> what holds all of their values, and is computed with
in their place.  An element takes a byte (the low bits of it), of bfloat16 two."""

INTEGERS = tuple(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))
COMPUTED = ("bool", *INTEGERS, "float16", "float32", "float64")
DTYPES = (*COMPUTED, *STORED)
SHORT = ("float16", "bfloat16")
"""Floats of two bytes."""

DType: TypeAlias = Annotated[str, DTYPES]
ResultDType: TypeAlias = Annotated[str, ("", *DTYPES)]
"""A result's dtype as an attribute; empty: as the operands."""


def carrier(dtype: str) -> str:
    """What numbers of a dtype are computed in: what holds those of a stored one, otherwise itself."""
    return STORED.get(dtype, dtype)


@lru_cache(1 << 8)
def is_float(dtype: str) -> bool:
    return carrier(dtype).startswith("float")


@cache
def register() -> Any:
    """``ml_dtypes``; numpy knows its dtypes from then on.  Not before one is met: what only runs should start soon."""
    import ml_dtypes

    return ml_dtypes


def limits(dtype: str) -> tuple[float, float]:
    """The least and the largest finite number."""
    info = register().finfo(dtype) if is_float(dtype) else register().iinfo(dtype)
    return float(info.min), float(info.max)


def step_after_one(dtype: str) -> float:
    return float(register().finfo(dtype).eps)


_BITS = {"bfloat16": 16, "int4": 4, "uint4": 4, "float4_e2m1fn": 4, "int2": 2, "uint2": 2}


@lru_cache(1 << 8)
def bits_of(dtype: str) -> int:
    """The bits of an element where it is packed, as in a file; in memory it takes whole bytes."""
    return _BITS.get(dtype, 8) if dtype in STORED else 8 * np.dtype(dtype).itemsize


def packed_bytes(dtype: str, size: int) -> int:
    """The bytes of that many elements, packed."""
    return -(-size * bits_of(dtype) // 8)


def packed(array: np.ndarray) -> bytes:
    """The elements in a row, little endian; of those with fewer than 8 bits the first one in a byte's lowest bits."""
    bits = bits_of(array.dtype.name)
    if bits >= 8:
        return np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    codes = np.zeros((packed_bytes(array.dtype.name, array.size), 8 // bits), np.uint8)
    codes.ravel()[: array.size] = np.ravel(array).view(np.uint8) & ((1 << bits) - 1)
    joined: np.ndarray = np.bitwise_or.reduce(codes << np.arange(0, 8, bits, dtype=np.uint8), axis=1)
    return joined.tobytes()


def unpacked(data: bytes | memoryview, dtype: str, size: int) -> np.ndarray:
    """The elements that :func:`packed` made bytes of, in a row."""
    if dtype in STORED:
        register()
    bits = bits_of(dtype)
    if bits >= 8:
        return np.frombuffer(data, np.dtype(dtype).newbyteorder("<"), size).astype(dtype, copy=False)
    codes = np.frombuffer(data, np.uint8)[:, None] >> np.arange(0, 8, bits, dtype=np.uint8)
    return (codes & ((1 << bits) - 1)).ravel()[:size].view(dtype)
