"""Generators of ONNX Runtime's quantized operators, as its quantizer writes them: one scale for a tensor."""

from __future__ import annotations

import numpy as np

from minitvm.testing.fuzz.case import Value
from minitvm.testing.fuzz.draw import Draw, Reject, generates

_BYTES = ("uint8", "int8")


def _parameters(d: Draw, dtype: str) -> list[Value]:
    """A scale and a zero point."""
    low, high = (0, 20) if dtype == "uint8" else (-10, 10)
    return [d.within((), "float32", 0.01, 0.2, 1.0), d.within((), dtype, low, high, 1.0)]


def _input(d: Draw, least: int = 1, most: int = 4) -> Value:
    return d.operand(_BYTES, least, most)


@generates("com.microsoft.QLinearAdd", "com.microsoft.QLinearMul")
def binary(d: Draw) -> list[Value]:
    a = _input(d, 0)
    b = d.other(a)
    shape = np.broadcast_shapes(d.known(a), d.known(b))
    operands = [a, *_parameters(d, a.dtype), b, *_parameters(d, a.dtype), *_parameters(d, a.dtype)]
    return d.node(operands, types=[(a.dtype, shape)])


@generates("com.microsoft.QLinearLeakyRelu", "com.microsoft.QLinearSigmoid", "com.microsoft.QLinearSoftmax")
def unary(d: Draw) -> list[Value]:
    x = _input(d)
    operands = [x, *_parameters(d, x.dtype), *_parameters(d, x.dtype)]
    kind = d.op.removeprefix("com.microsoft.")
    if kind == "QLinearSoftmax":
        return d.node(operands, types=[(x.dtype, x.shape)], axis=d.axis(x.rank), opset=d.choice((9, 13)))
    return d.node(operands, types=[(x.dtype, x.shape)], alpha=d.maybe(d.real(0.1)) if "Leaky" in kind else None)


@generates("com.microsoft.QLinearAveragePool", "com.microsoft.QLinearGlobalAveragePool")
def pool(d: Draw) -> list[Value]:
    x = _input(d, 4, 4)
    n, c, *spatial = d.known(x)
    operands = [x, *_parameters(d, x.dtype), *_parameters(d, x.dtype)]
    if d.op.endswith("GlobalAveragePool"):
        return d.node(operands, types=[(x.dtype, (n, c, 1, 1))])
    kernel, strides = [d.between(1, 3) for _ in spatial], [d.between(1, 2) for _ in spatial]
    if any(k > s for k, s in zip(kernel, spatial, strict=True)):
        raise Reject("the window is larger than the image")
    made = tuple((s - k) // t + 1 for s, k, t in zip(spatial, kernel, strides, strict=True))
    return d.node(operands, types=[(x.dtype, (n, c, *made))], kernel_shape=kernel, strides=strides)


@generates("com.microsoft.QLinearConcat")
def concat(d: Draw) -> list[Value]:
    x = _input(d)
    axis, count = d.axis(x.rank), d.between(1, 3)
    shape = list(d.known(x))
    parts = [x, *(d.like(d.known(x), x.dtype) for _ in range(count - 1))]
    shape[axis] *= count
    operands = [o for part in parts for o in (part, *_parameters(d, x.dtype))]
    return d.node([*_parameters(d, x.dtype), *operands], types=[(x.dtype, tuple(shape))], axis=axis)


@generates("com.microsoft.QGemm")
def gemm(d: Draw) -> list[Value]:
    a = _input(d, 2, 2)
    (rows, depth), columns = d.known(a), d.size(64)
    if depth == 0:
        raise Reject("ONNX Runtime leaves out the bias of no products")
    b = d.new((depth, columns), a.dtype, 0.9)
    bias = d.maybe(d.within((columns,), "int32", -500, 500, 1.0))
    operands = [a, *_parameters(d, a.dtype), b, *_parameters(d, a.dtype), bias, *_parameters(d, a.dtype)]
    return d.node(operands, types=[(a.dtype, (rows, columns))], transA=0, transB=0)


@generates("com.microsoft.QLinearWhere")
def where(d: Draw) -> list[Value]:
    x = _input(d, 0)
    shape = d.known(x)
    operands = [x, *_parameters(d, x.dtype), d.like(shape, x.dtype), *_parameters(d, x.dtype)]
    return d.node([d.like(shape, "bool"), *operands, *_parameters(d, x.dtype)], types=[(x.dtype, shape)])


@generates("com.microsoft.QuantizeLinear", "com.microsoft.DequantizeLinear")
def quantize(d: Draw) -> list[Value]:
    if d.op.endswith("DequantizeLinear"):
        x = _input(d, 0)
        return d.node([x, *_parameters(d, x.dtype)], types=[("float32", x.shape)])
    x, dtype = d.operand(("float32",)), d.choice(_BYTES)
    return d.node([x, *_parameters(d, dtype)], types=[(dtype, x.shape)])
