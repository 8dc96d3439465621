"""Graphs over symbolic sizes, by what is in them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from minitvm.ir.builder import call_op, const
from minitvm.ir.expr import Expr

RNG = np.random.default_rng(0)


def array(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


@functools.cache
def weight(*shape: int) -> np.ndarray:
    """The same one again."""
    return array(*shape)


W, B = array(40, 24), array(40)


def _dense(x: Expr) -> Expr:
    return call_op("nn.relu", call_op("nn.dense", x, const(W)) + const(B))


def _cut(x: Expr, rows: object) -> Expr:
    return call_op("strided_slice", x, begin=(0,), end=(rows,), axes=(0,))


def _heads(x: Expr) -> Expr:
    """(n, s, 24) -> (n * 3, s, 8)."""
    apart = call_op("transpose", call_op("reshape", x, newshape=(0, 0, 3, 8)), axes=(0, 2, 1, 3))
    return call_op("reshape", apart, newshape=(-3, 0, 0))


def _attention(x: Expr) -> Expr:
    q = _heads(x)
    weights = call_op("nn.softmax", call_op("nn.batch_matmul", q, q, transpose_b=True), axis=-1)
    return call_op("nn.batch_matmul", weights, q, transpose_b=False)


def _conv(x: Expr, weight: np.ndarray, **attributes: Any) -> Expr:
    return call_op("nn.relu", call_op("nn.conv2d", x, const(weight), **attributes))


def _winograd(x: Expr) -> Expr:
    """With weights so small that results are near 1."""
    first, second = (np.float32(0.05) * weight(n, 32, 3, 3) for n in (32, 16))
    return _conv(_conv(x, first), second)


def _mean(x: Expr) -> Expr:
    return call_op("nn.global_avg_pool2d", x)


def _zeros(x: Expr, hidden: int, states: int) -> list[Expr]:
    return [call_op("zeros", shape=(x.tensor_type.shape[1], hidden))] * states


_GRU = const(weight(18, 6)), const(weight(18))
_CHANNELS_LAST = {"data_layout": "NHWC", "kernel_layout": "OHWI"}

Make: TypeAlias = Callable[[Expr], Expr]

GRAPHS: dict[str, tuple[tuple[object, ...], Make]] = {
    "elementwise": (("n", "s"), lambda x: call_op("exp", x) * x),
    "broadcast": (("n", 24), lambda x: x + const(W[0])),
    "a row": (("s",), lambda x: call_op("nn.relu", x)),
    "dense": (("n", 24), _dense),
    "softmax": (("n", "s"), lambda x: call_op("nn.softmax", x, axis=-1)),
    "softmax across": (("n", "s", 5), lambda x: call_op("nn.softmax", x, axis=1)),
    "layer norm": (("n", "s", 24), lambda x: call_op("nn.layer_norm", x, const(W[0]), const(W[1]))),
    "sum of rows": (("n", "s"), lambda x: call_op("sum", x, axis=(1,))),
    "sum of columns": (("n", "s"), lambda x: call_op("sum", x, axis=(0,))),
    "mean of all": (("n", "s"), lambda x: call_op("max", x, axis=(0, 1), keepdims=True) + x),
    "transpose": (("n", "s", 3), lambda x: call_op("transpose", x, axes=(1, 0, 2))),
    "reshape": (("n", "s", 24), lambda x: call_op("reshape", x, newshape=(-1, 12))),
    "concatenate": (("n", "s"), lambda x: call_op("concatenate", [x, call_op("nn.relu", x)], axis=1)),
    "slice": (("n", "s"), lambda x: call_op("strided_slice", x, begin=(0,), end=(3,), axes=(1,))),
    "positions": (("s", 24), lambda x: call_op("nn.dense", _cut(const(weight(70, 24)), x.tensor_type.shape[0]), x)),
    "running sum": (("n", "s", 3), lambda x: call_op("cumsum", x, axis=1)),
    "running sum of columns": (("n", "s"), lambda x: call_op("cumsum", x, axis=0)),
    "count": (("n", "s"), lambda x: x + call_op("iota", size=x.tensor_type.shape[1], dtype="float32")),
    "attention": (("n", "s", 24), _attention),
    "convolution of pixels": (("n", 3, 9, 7), lambda x: _conv(x, weight(5, 3, 3, 3))),
    "convolution of strides": (("n", 3, 9, 7), lambda x: _conv(x, weight(5, 3, 3, 2), strides=(2, 3), padding=(1, 0))),
    "convolution in blocks": (("n", 16, 6, 5), lambda x: _conv(_conv(x, weight(32, 16, 3, 3)), weight(8, 32, 1, 1))),
    "Winograd's convolutions": (("n", 32, 9, 7), _winograd),
    "depthwise convolution": (("n", 16, 6, 5), lambda x: _conv(x, weight(16, 1, 3, 3), groups=16, padding=(1, 1))),
    "convolution as a product": (("n", 12, 4, 5), lambda x: _conv(x, weight(7, 12, 1, 1))),
    "convolution, pixels first": (("n", 6, 5, 3), lambda x: _conv(x, weight(4, 3, 2, 3), **_CHANNELS_LAST)),
    "transposed convolution": (("n", 3, 5, 4), lambda x: call_op("nn.conv2d_transpose", x, const(weight(3, 4, 3, 3)))),
    "pools": (("n", 16, 7, 6), lambda x: call_op("nn.max_pool2d", x, pool_size=(3, 3), padding=(1, 1)) + _mean(x)),
    "recurrent layer": (("s", "n", 24), lambda x: call_op("nn.lstm", x, const(weight(24, 6)), *_zeros(x, 6, 2))[0]),
    "its last state": (("s", 3, 24), lambda x: call_op("nn.lstm", x, const(weight(24, 6)), *_zeros(x, 6, 2))[2]),
    "backwards": (("s", "n", 18), lambda x: call_op("nn.gru", x, *_GRU, *_zeros(x, 6, 1), reverse=True)[0]),
    "resizing": (("n", 3, 5, 4), lambda x: call_op("image.resize2d", x, size=(9, 7))),
}
