"""Sample rows for what turns floats into integers and back, and for products of such: as in ``op_samples.py``."""

from __future__ import annotations

import numpy as np
from op_samples import Sample, floats, ints, row, scalar
from operator_cases.products import few_bits_operands


def _zeros(*shape: int, dtype: str) -> np.ndarray:
    info = np.iinfo(dtype)
    return ints(*shape, low=max(info.min, -9), high=9, dtype=dtype)


_ROWS = [
    (floats(3, 40), 16),
    (np.array([[0, 0, 0, 127, 2.5, -3.5], [np.nan, 1, 2, np.inf, 5, 1e-44]], "float32"), 3),
    (floats(1, 64, dtype="float16"), 32),
    (floats(2, 2, 20), 8),
    (floats(9), 4),
    (floats(0, 20), 16),
]
_PRODUCTS = [
    ((3, 3, 21), 16, 4, True, "float32"),
    ((1, 2, 40), 32, 4, False, "float16"),
    ((2, 1, 16), 32, 2, True, "float32"),
    ((5, 2, 7), 16, 8, True, "float32"),
    ((0, 2, 7), 16, 8, False, "float32"),
    ((2, 2, 0), 16, 4, False, "float32"),
    ((2, 3, 21), 16, 4, True, "float32", 3),
]


def _dense(sizes: tuple[int, int, int], block: int, bits: int, zeros: bool, dtype: str, parts: int = 1) -> Sample:
    operands = few_bits_operands(np.random.default_rng(bits), sizes, block, bits, zeros, dtype, parts)
    return row("qnn.dense_blocks", *operands, units=sizes[-1], block=block, bits=bits, parts=parts)


QUANTIZED = [
    *(
        row("annotation.simulated_quantize", data, *(scalar(n, data.dtype) for n in (0.03, -30, 31)), kind=kind)
        for data, kind in ((floats(3, 40), 1), (floats(7, dtype="float16"), 2), (floats(2, 3, 4), 0), (floats(0, 3), 3))
    ),
    row("annotation.cast_hint", floats(3, 5)),
    row("annotation.cast_hint", ints(7, dtype="int8"), dtype="int32"),
    row("qnn.quantize", floats(3, 40), floats(low=0.01, high=0.02), _zeros(dtype="int8")),
    row(
        "qnn.quantize",
        np.array([0.5, 1.5, 2.5, -0.5, 300, -300], "float32"),
        scalar(1, "float32"),
        _zeros(dtype="uint8"),
        out_dtype="uint8",
    ),
    row(
        "qnn.quantize",
        floats(2, 3, 4),
        floats(3, low=0.01, high=0.1),
        _zeros(3, dtype="uint8"),
        out_dtype="uint8",
        axis=1,
    ),
    row("qnn.quantize", floats(2, 4), floats(1, low=1e-4, high=1e-3), _zeros(1, dtype="int16"), out_dtype="int16"),
    row("qnn.dequantize", ints(3, 5, low=-128, high=127, dtype="int8"), floats(), _zeros(dtype="int8")),
    row("qnn.dequantize", ints(3, 5, low=0, high=255, dtype="uint8"), floats(3), _zeros(3, dtype="uint8"), axis=0),
    row("qnn.dequantize", ints(3, 5, low=-999999, high=999999), floats(), _zeros(dtype="int32")),
    row("qnn.dequantize", np.array([-(2**31), 2**31 - 1], "int32"), scalar(1.5, "float32"), scalar(-7, "int32")),
    row("qnn.dequantize", ints(3, 5, dtype="int8"), floats(dtype="float16"), _zeros(dtype="int8"), out_dtype="float16"),
    row(
        "qnn.dequantize_blocks",
        ints(3, 5, low=0, high=255, dtype="uint8"),
        floats(3, 3),
        ints(3, 3, low=0, high=15, dtype="uint8"),
        block=4,
        bits=4,
        extent=9,
    ),
    row("qnn.dequantize_blocks", ints(4, 5, dtype="int8"), floats(2, 5), _zeros(dtype="int8"), axis=0, block=3),
    row("qnn.quantize", floats(0, 3), floats(low=0.1), _zeros(dtype="int8")),
    row("qnn.block_panels", floats(5, 3)),
    row("qnn.block_panels", ints(32, 2, low=0, high=255, dtype="uint8")),
    *(row("qnn.block_panels", ints(21, 8, low=0, high=255, dtype="uint8"), bits=bits) for bits in (2, 4, 8)),
    *(row("qnn.quantize_blocks", x, block=block) for x, block in _ROWS),
    *(row("qnn.quantize_blocks", x, block=block, parts=3) for x, block in _ROWS[:4]),
    *(_dense(*form) for form in _PRODUCTS),
]
