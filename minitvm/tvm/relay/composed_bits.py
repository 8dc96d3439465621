"""Relay's operators of bits, of simulated quantization, of blocked convolutions and of correlation: made of ours."""

from __future__ import annotations

from typing import Any

import numpy as np

from minitvm.ir.expr import Expr, Tuple
from minitvm.tvm.relay.composed import COMPOSED, composed, like, made, many, rank_of, refuse, shaped
from minitvm.tvm.relay.composed_nn import pad
from minitvm.tvm.relay.composed_qnn import along
from minitvm.tvm.relay.forms import const
from minitvm.tvm.relay.operators import tensor

# --- bits -------------------------------------------------------------------------------------------------------


@composed("nn.bitpack")
def bitpack(data: Any, bits: int, pack_axis: int, bit_axis: int, pack_type: str, name: str) -> Expr:
    """The bits of integers, each as a plane along ``bit_axis``, in words whose highest bit is the first."""
    expr, width = tensor(data), np.iinfo(pack_type).bits
    axis, count = pack_axis % rank_of(expr), expr.tensor_type.static_shape[pack_axis]
    if count % width:
        raise refuse("nn.bitpack", f"{count} integers, which words of {width} bits do not hold")
    shape = [*expr.tensor_type.static_shape]
    shape[axis : axis + 1] = [count // width, width]
    weights = np.left_shift(np.uint64(1), np.arange(width - 1, -1, -1, dtype="uint64")).astype(pack_type)
    by_place = const(weights.reshape([-1 if d == axis + 1 else 1 for d in range(len(shape))]), pack_type)
    planes = []
    for bit in range(bits):
        one = made("bitwise_and", made("right_shift", expr, like(bit, expr)), like(1, expr))
        words = made("multiply", shaped(made("cast", one, dtype=pack_type), shape), by_place)
        planes.append(made("sum", words, axis=(axis + 1,)))
    return made("stack", Tuple(planes), axis=bit_axis)


def _low_bits(data: Any, bits: int) -> Expr:
    """The lowest bits of integers, as int32."""
    wide = made("cast", data, dtype="int32")
    return made("bitwise_and", wide, like(2**bits - 1, wide))


def _bit_weights(weight: Any, bits: int, unipolar: bool) -> Expr:
    """What the bits of weights stand for: 0 and 1, or, ``unipolar``, -1 and 1, times their powers of 2."""
    low = _low_bits(weight, bits)
    return made("subtract", made("multiply", low, like(2, low)), like(2**bits - 1, low)) if unipolar else low


@composed("nn.bitserial_conv2d")
def bitserial_conv2d(
    data: Any, weight: Any, activation_bits: int, weight_bits: int, pack_dtype: str, unipolar: bool, **how: Any
) -> Expr:
    """The convolution of integers of few bits, in int32 and then in ``out_dtype``."""
    if rank_of(tensor(weight)) != 4:
        raise refuse("nn.bitserial_conv2d", "weights that are packed already")
    dtype = how.pop("out_dtype") or "int16"
    image, filters = _low_bits(data, activation_bits), _bit_weights(weight, weight_bits, unipolar)
    return made("cast", made("nn.conv2d", image, filters, **how), dtype=dtype)


@composed("nn.bitserial_dense")
def bitserial_dense(
    data: Any,
    weight: Any,
    units: Any,
    data_bits: int,
    weight_bits: int,
    pack_dtype: str,
    out_dtype: str,
    unipolar: bool,
) -> Expr:
    """The product of matrices of integers of few bits, in int32 and then in ``out_dtype``."""
    if rank_of(tensor(weight)) != 2:
        raise refuse("nn.bitserial_dense", "weights that are packed already")
    found = made("nn.dense", _low_bits(data, data_bits), _bit_weights(weight, weight_bits, unipolar), units=units)
    return made("cast", found, dtype=out_dtype or "int16")


# --- simulated quantization -------------------------------------------------------------------------------------


def _simulated(name: str, dtype: Any) -> bool:
    """True if something is to be simulated: ``disable`` is Relay's word for nothing."""
    if dtype not in ("int8", "uint8", "int32", "disable"):
        raise refuse(name, f"dtype {dtype!r}: int8, uint8, int32 or disable")
    return bool(dtype != "disable")


def _along_axis(data: Expr, axis: int, *given: Any) -> list[Expr]:
    """Scales and zero points in the dtype of ``data``, one for each place along the axis."""
    return [along(made("cast", one, dtype=data.dtype), axis, rank_of(data)) for one in given]


@composed("qnn.op.simulated_quantize")
def simulated_quantize(data: Any, output_scale: Any, output_zero_point: Any, axis: int, out_dtype: Any) -> Expr:
    """The integers that quantization would give, as floats."""
    expr = tensor(data)
    if not _simulated("qnn.op.simulated_quantize", out_dtype):
        return expr
    scale, zero = _along_axis(expr, axis, output_scale, output_zero_point)
    ends = np.iinfo(out_dtype)
    steps = made("add", made("round", made("divide", expr, scale)), zero)
    return made("clip", steps, a_min=float(ends.min), a_max=float(ends.max))


@composed("qnn.op.simulated_dequantize")
def simulated_dequantize(data: Any, input_scale: Any, input_zero_point: Any, axis: int, in_dtype: Any) -> Expr:
    """The numbers that integers, as floats, stand for."""
    expr = tensor(data)
    if not _simulated("qnn.op.simulated_dequantize", in_dtype):
        return expr
    scale, zero = _along_axis(expr, axis, input_scale, input_zero_point)
    return made("multiply", made("subtract", expr, zero), scale)


# --- convolutions in blocks of channels, and correlation --------------------------------------------------------


def _blocked(name: str) -> Any:
    def call(data: Any, kernel: Any, out_layout: str, **how: Any) -> Expr:
        """A convolution of an image, and of filters, in blocks of channels."""
        return made(name, data, kernel, out_layout=out_layout or how["data_layout"], **how)

    return call


COMPOSED["nn.contrib_conv2d_nchwc"] = _blocked("nn.contrib_conv2d_NCHWc")
COMPOSED["nn.contrib_depthwise_conv2d_nchwc"] = _blocked("nn.contrib_depthwise_conv2d_NCHWc")


@composed("nn.correlation")
def correlation(
    data1: Any,
    data2: Any,
    kernel_size: int,
    max_displacement: int,
    stride1: int,
    stride2: int,
    padding: Any,
    is_multiply: bool,
    layout: str,
) -> Expr:
    """The likeness of an image's windows to those of another, moved by up to ``max_displacement`` pixels: the means of
    their products, or of their absolute differences; a channel for each move."""
    if layout != "NCHW" or kernel_size % 2 == 0:
        raise refuse("nn.correlation", f"layout {layout} and windows of {kernel_size}: NCHW and an odd number")
    ends = (many(padding) * 4)[:4] if len(many(padding)) in (1, 2) else many(padding)
    widths = [(0, 0), (0, 0), (ends[0], ends[2]), (ends[1], ends[3])]
    one, two = (pad(data, widths, 0, "constant") for data in (data1, data2))
    sizes = [n - 2 * max_displacement for n in one.tensor_type.static_shape[2:]]

    def at(image: Expr, down: int, right: int) -> Expr:
        """The part that begins so far from the middle one."""
        begin = [max_displacement + down, max_displacement + right]
        return made(
            "strided_slice", image, begin=begin, end=[b + n for b, n in zip(begin, sizes, strict=True)], axes=[2, 3]
        )

    reach, middle, found = max_displacement // stride2, at(one, 0, 0), []
    for down in range(-reach, reach + 1):
        for right in range(-reach, reach + 1):
            moved = at(two, down * stride2, right * stride2)
            alike = made("multiply", middle, moved) if is_multiply else made("abs", made("subtract", middle, moved))
            found.append(made("mean", alike, axis=(1,), keepdims=True))
    window, steps = (kernel_size,) * 2, (stride1,) * 2
    return made("nn.avg_pool2d", made("concatenate", Tuple(found), axis=1), pool_size=window, strides=steps)
