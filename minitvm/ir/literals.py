"""Numbers in the text of graphs and of loops: one rule for both.

A number carries its dtype: ``3`` int64, ``3i32``, ``3u8``, ``2f`` float32, ``2f16``, ``2f64``, ``-inff``, ``True``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

SUFFIXES = {
    "float16": "f16", "float32": "f", "float64": "f64", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "",
    "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64", "bool": "",
}  # fmt: skip
_DTYPES = {suffix: dtype for dtype, suffix in SUFFIXES.items() if suffix} | {"f32": "float32", "i64": "int64"}


def format_number(value: Any, dtype: str, suffix: bool = True) -> str:
    """What the dtype can hold of a value, exact, in the fewest digits; without a suffix inside a larger constant."""
    if dtype == "bool":
        return str(bool(value))
    with np.errstate(over="ignore"):
        text = str(np.dtype(dtype).type(value)) if dtype.startswith("float") else str(int(value))
    return text.removesuffix(".0") + (SUFFIXES[dtype] if suffix else "")


def dtype_of(suffix: str, is_decimal: bool) -> str:
    """The dtype of a number that is read; a decimal without a suffix is float32."""
    return _DTYPES[suffix] if suffix else "float32" if is_decimal else "int64"
