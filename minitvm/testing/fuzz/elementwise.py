"""Generators of operators that work element by element."""

from __future__ import annotations

from typing import Any

import numpy as np

from minitvm.testing.fuzz.case import Value, code_of
from minitvm.testing.fuzz.draw import FLOATS, Draw, accepted, generates

_UNARY = (
    *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Ceil", "Cos", "Cosh", "Erf", "Exp"),
    *("Floor", "HardSwish", "Identity", "IsNaN", "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Sigmoid"),
    *("Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh"),
)
_BINARY = (
    *("Add", "And", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater", "GreaterOrEqual", "Less"),
    *("LessOrEqual", "Mul", "Or", "Sub", "Xor"),
)
_WITH_FLOATS: dict[str, dict[str, tuple[float, ...]]] = {
    "Celu": {"alpha": (1.0, 2.0)},
    "Elu": {"alpha": (1.0,)},
    "HardSigmoid": {"alpha": (0.2,), "beta": (0.5,)},
    "LeakyRelu": {"alpha": (0.01, 0.2)},
    "Selu": {"alpha": (1.67,), "gamma": (1.05,)},
    "Shrink": {"lambd": (0.5, 1.5), "bias": (0.0, 1.0)},
    "Swish": {"alpha": (1.0, 1.702)},
    "ThresholdedRelu": {"alpha": (1.0,)},
}


@generates(*_UNARY)
def unary(d: Draw) -> list[Value]:
    return d.node([d.operand()])


@generates(*_BINARY)
def binary(d: Draw) -> list[Value]:
    """Many operands are constant: what rewrites at level 3 look for."""
    x = d.operand()
    pair = [x, d.weight(d.partner(d.known(x)), x.dtype) if d.chance(0.35 + d.follows / 2) else d.other(x)]
    d.rng.shuffle(pair)
    return d.node(pair)


@generates("Max", "Min", "Sum", "Mean")
def variadic(d: Draw) -> list[Value]:
    x = d.operand()
    return d.node([x, *(d.other(x) for _ in range(d.choice((0, 1, 1, 1, 2, 5))))])


@generates(*_WITH_FLOATS)
def with_floats(d: Draw) -> list[Value]:
    given: dict[str, Any] = {name: d.maybe(d.real(*usual)) for name, usual in _WITH_FLOATS[d.op].items()}
    return d.node([d.operand()], **given)


@generates("Gelu")
def gelu(d: Draw) -> list[Value]:
    return d.node([d.operand()], approximate=d.choice(("none", "tanh", None)))


@generates("IsInf")
def is_inf(d: Draw) -> list[Value]:
    ways: dict[str, Any] = {name: d.maybe(d.between(0, 1)) for name in ("detect_negative", "detect_positive")}
    return d.node([d.operand()], **ways)


@generates("Dropout")
def dropout(d: Draw) -> list[Value]:
    """Before opset 12 ONNX does not say what the mask holds."""
    x = d.operand()
    if d.opset < 12:
        return d.node([x], ratio=d.maybe(0.3))
    return d.node([x, d.maybe(d.within((), "float32", 0, 0.9, 1.0))], d.between(1, 2))


@generates("Pow")
def power(d: Draw) -> list[Value]:
    x = d.operand()
    dtype = d.choice((x.dtype, d.dtype(1))) if d.opset >= 12 else x.dtype
    shape = d.partner(d.known(x))
    exponent = d.new(shape, dtype) if d.chance(0.3) else d.within(shape, dtype, 0, 3, 0.8)
    return d.node([x, exponent])


@generates("Mod")
def modulo(d: Draw) -> list[Value]:
    x = d.operand()
    shape = d.partner(d.known(x))
    divisor = d.within(shape, x.dtype, 1, 9) if d.chance(0.7) else d.other(x)
    fmod = 1 if x.dtype.startswith("float") else d.choice((None, 0, 1))
    return d.node([x, divisor], fmod=fmod)


@generates("BitShift")
def bit_shift(d: Draw) -> list[Value]:
    x = d.operand()
    by = d.within(d.partner(d.known(x)), x.dtype, 0, 7)
    return d.node([x, by], direction=d.choice(("LEFT", "RIGHT")))


@generates("Clip")
def clip(d: Draw) -> list[Value]:
    x = d.operand()
    signed = not x.dtype.startswith("u")
    low, high = sorted((d.between(-3 * signed, 5), d.between(-3 * signed, 5)))
    if np.dtype(x.dtype).kind in "iu" and d.chance(0.2):
        low, high = int(np.iinfo(x.dtype).min), int(np.iinfo(x.dtype).max)
    if d.opset < 11:
        return d.node([x], min=d.maybe(float(low)), max=d.maybe(float(high)))
    bounds = [d.maybe(d.constant(np.array(v, x.dtype), 0.2), 0.7) for v in (low, high)]
    return d.node([x, *bounds])


@generates("Cast")
def cast(d: Draw) -> list[Value]:
    x = d.operand()
    return d.node([x], to=code_of(x.dtype if d.chance(0.1) else d.choice(_targets(d))))


@generates("CastLike")
def cast_like(d: Draw) -> list[Value]:
    x = d.operand()
    return d.node([x, d.new(d.shape(0, 2, 20), d.choice(_targets(d)))])


def _targets(d: Draw) -> tuple[str, ...]:
    return accepted(d.op, d.opset, 0)


@generates("Where")
def where(d: Draw) -> list[Value]:
    x = d.operand()
    condition = d.like(d.partner(d.known(x)), "bool")
    pair = [x, d.other(x)]
    d.rng.shuffle(pair)
    return d.node([condition, *pair])


@generates("PRelu")
def prelu(d: Draw) -> list[Value]:
    x = d.operand(least=1)
    shape = d.known(x)
    slope = d.choice([(1,), shape, (shape[1], *(1 for _ in shape[2:])) if len(shape) > 1 else shape])
    return d.node([x, d.weight(slope, x.dtype)])


@generates("com.microsoft.Gelu", "com.microsoft.QuickGelu")
def contrib_gelu(d: Draw) -> list[Value]:
    x = d.operand(FLOATS)
    alpha = d.maybe(d.real(1.702)) if d.op.endswith("QuickGelu") else None
    return d.node([x], types=[(x.dtype, x.shape)], alpha=alpha)


@generates("com.microsoft.BiasGelu", "com.microsoft.FastGelu")
def bias_gelu(d: Draw) -> list[Value]:
    x = d.operand(FLOATS, least=1)
    bias = d.weight(d.known(x)[-1:], x.dtype)
    optional = d.op.endswith("FastGelu") and d.chance(0.5)
    return d.node([x, None if optional else bias], types=[(x.dtype, x.shape)])


@generates("SwiGLU")
def swiglu(d: Draw) -> list[Value]:
    gate = d.operand()
    return d.node([gate, d.like(d.known(gate), gate.dtype)], alpha=d.maybe(d.real(1.702)))
