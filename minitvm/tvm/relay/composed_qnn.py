"""Relay's quantized operators made of ours: sums of integers around zero points, and floats for what is between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minitvm.ir.expr import Expr, Tuple
from minitvm.tvm.relay.composed import COMPOSED, composed, like, made, rank_of
from minitvm.tvm.relay.forms import const
from minitvm.tvm.relay.operators import tensor


def _quantized(real: Expr, scale: Any, zero_point: Any, dtype: str, axis: Any = -1) -> Expr:
    return made("qnn.quantize", real, scale, zero_point, axis=axis, out_dtype=dtype)


def _real(data: Any, scale: Any, zero_point: Any, axis: Any = -1) -> Expr:
    return made("qnn.dequantize", data, scale, zero_point, axis=axis, out_dtype="float32")


def along(vector: Expr, axis: int, rank: int) -> Expr:
    """A vector along an axis of a tensor; a scalar as it is."""
    if rank_of(vector) == 0 or vector.tensor_type.shape == (1,):
        return made("reshape", vector, newshape=())
    return made("reshape", vector, newshape=tuple(-1 if d == axis % rank else 1 for d in range(rank)))


def _centred(data: Any, zero_point: Any, axis: int = 0) -> Expr:
    """Integers less their zero point, as int32."""
    wide, zero = made("cast", data, dtype="int32"), made("cast", zero_point, dtype="int32")
    return made("subtract", wide, along(zero, axis, rank_of(wide)))


@composed("qnn.op.quantize")
def quantize(data: Any, output_scale: Any, output_zero_point: Any, axis: Any, out_dtype: str) -> Expr:
    """Numbers as integers on a scale; as int32, sums of such."""
    if out_dtype != "int32":
        return _quantized(data, output_scale, output_zero_point, out_dtype, axis)
    wide, rank = made("cast", data, dtype="float64"), rank_of(tensor(data))
    scale, zero = (along(made("cast", one, dtype="float64"), axis, rank) for one in (output_scale, output_zero_point))
    steps = made("add", made("round", made("divide", wide, scale)), zero)
    ends = np.iinfo(out_dtype)
    return made("cast", made("clip", steps, a_min=float(ends.min), a_max=float(ends.max)), dtype=out_dtype)


@composed("qnn.op.requantize")
def requantize(
    data: Any,
    input_scale: Any,
    input_zero_point: Any,
    output_scale: Any,
    output_zero_point: Any,
    axis: Any,
    rounding: str,
    compute_dtype: str,
    out_dtype: str,
) -> Expr:
    """Integers of one scale as those of another: halves up (``UPWARD``), or away from zero (``TONEAREST``)."""
    wide = made("cast", _centred(data, input_zero_point, axis), dtype="float64")
    scales = [made("cast", scale, dtype="float64") for scale in (input_scale, output_scale)]
    found = made("multiply", wide, along(made("divide", *scales), axis, rank_of(wide)))
    half = made("add", made("abs", found) if rounding == "TONEAREST" else found, const(0.5, "float64"))
    whole = made("floor", half)
    whole = made("multiply", whole, made("sign", found)) if rounding == "TONEAREST" else whole
    moved = made("add", whole, along(made("cast", output_zero_point, dtype="float64"), axis, rank_of(wide)))
    ends = np.iinfo(out_dtype)
    return made("cast", made("clip", moved, a_min=float(ends.min), a_max=float(ends.max)), dtype=out_dtype)


@composed("qnn.op.dense")
def dense(
    data: Any,
    weight: Any,
    input_zero_point: Any,
    kernel_zero_point: Any,
    input_scale: Any,
    kernel_scale: Any,
    units: Any,
    out_dtype: str,
) -> Expr:
    """The sums of products of integers less their zero points."""
    return made("nn.dense", _centred(data, input_zero_point), _centred(weight, kernel_zero_point), units=units)


@composed("qnn.op.batch_matmul")
def batch_matmul(
    x: Any, y: Any, x_zero_point: Any, y_zero_point: Any, x_scale: Any, y_scale: Any, out_dtype: str
) -> Expr:
    """The products of matrices of integers less their zero points."""
    return made("nn.batch_matmul", _centred(x, x_zero_point), _centred(y, y_zero_point))


def _convolution(name: str, kernel: str) -> Callable[..., Expr]:
    def call(input_zero_point: Any, kernel_zero_point: Any, input_scale: Any, kernel_scale: Any, **how: Any) -> Expr:
        """The sums of products of integers less their zero points; what is padded is the zero point."""
        data, weight = _centred(how.pop("data"), input_zero_point), how.pop(kernel)
        return made(name, data, _centred(weight, kernel_zero_point, how["kernel_layout"].index("O")), **how)

    return call


COMPOSED["qnn.op.conv2d"] = _convolution("nn.conv2d", "kernel")
COMPOSED["qnn.op.conv2d_transpose"] = _convolution("nn.conv2d_transpose", "weight")


def _binary(name: str) -> Callable[..., Expr]:
    def call(
        lhs: Any,
        rhs: Any,
        lhs_scale: Any,
        lhs_zero_point: Any,
        rhs_scale: Any,
        rhs_zero_point: Any,
        output_scale: Any,
        output_zero_point: Any,
        lhs_axis: Any,
        rhs_axis: Any,
    ) -> Expr:
        """The numbers that integers stand for, computed with, and as integers again."""
        real = made(
            name, _real(lhs, lhs_scale, lhs_zero_point, lhs_axis), _real(rhs, rhs_scale, rhs_zero_point, rhs_axis)
        )
        return _quantized(real, output_scale, output_zero_point, tensor(lhs).dtype)

    return call


COMPOSED |= {f"qnn.op.{n}": _binary(o) for n, o in (("add", "add"), ("mul", "multiply"), ("subtract", "subtract"))}


def _unary(compute: Callable[[Expr], Expr]) -> Callable[..., Expr]:
    def call(x: Any, scale: Any, zero_point: Any, output_scale: Any, output_zero_point: Any, **_: Any) -> Expr:
        """A function of the numbers that integers stand for, as integers again."""
        return _quantized(compute(_real(x, scale, zero_point)), output_scale, output_zero_point, tensor(x).dtype)

    return call


def _hardswish(x: Expr) -> Expr:
    gate = made("clip", made("add", x, like(3, x)), a_min=0.0, a_max=6.0)
    return made("multiply", x, made("divide", gate, like(6, x)))


def _named(name: str) -> Callable[[Expr], Expr]:
    return lambda x: made(name, x)


COMPOSED |= {f"qnn.op.{n}": _unary(_named(n)) for n in ("tanh", "exp", "sqrt", "rsqrt", "erf", "sigmoid", "log", "abs")}
COMPOSED["qnn.op.hardswish"] = _unary(_hardswish)


@composed("qnn.op.softmax")
def softmax(x: Any, scale: Any, zero_point: Any, output_scale: Any, output_zero_point: Any, axis: Any) -> Expr:
    """The softmax of the numbers that integers stand for."""
    found = made("nn.softmax", _real(x, scale, zero_point), axis=axis)
    return _quantized(found, output_scale, output_zero_point, tensor(x).dtype)


@composed("qnn.op.leaky_relu")
def leaky_relu(
    x: Any, alpha: Any, input_scale: Any, input_zero_point: Any, output_scale: Any, output_zero_point: Any
) -> Expr:
    """The leaky rectifier of the numbers that integers stand for."""
    found = made("nn.leaky_relu", _real(x, input_scale, input_zero_point), alpha=alpha)
    return _quantized(found, output_scale, output_zero_point, tensor(x).dtype)


@composed("qnn.op.avg_pool2d")
def avg_pool2d(
    data: Any, input_scale: Any, input_zero_point: Any, output_scale: Any, output_zero_point: Any, **how: Any
) -> Expr:
    """Means of windows of the numbers that integers stand for."""
    found = made("nn.avg_pool2d", _real(data, input_scale, input_zero_point), **how)
    return _quantized(found, output_scale, output_zero_point, tensor(data).dtype)


@composed("qnn.op.concatenate")
def concatenate(
    data: Any, input_scales: Any, input_zero_points: Any, output_scale: Any, output_zero_point: Any, axis: Any
) -> Expr:
    """The numbers that integers of different scales stand for, side by side, as integers of one."""
    parts = list(tensor(data))
    scales, zeros = (
        list(one) if isinstance(one, (list, tuple)) else list(tensor(one)) for one in (input_scales, input_zero_points)
    )
    real = [_real(*one) for one in zip(parts, scales, zeros, strict=True)]
    return _quantized(made("concatenate", Tuple(real), axis=axis), output_scale, output_zero_point, parts[0].dtype)
