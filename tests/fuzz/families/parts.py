"""Activations and normalizations: as one operator, and in the parts in which exporters write them."""

from collections.abc import Callable

import numpy as np

from tests.fuzz.case import Value
from tests.fuzz.families.net import Net

Part = Callable[[Net, Value], Value]


def _hard_swish(n: Net, x: Value) -> Value:
    six = n.at("Clip", n.at("Add", x, n.scalar(3.0)), n.scalar(0.0), n.scalar(6.0))
    return n.at("Mul", x, n.at("Div", six, n.scalar(6.0)))


def _gelu_erf(n: Net, x: Value) -> Value:
    """As ``torch.nn.functional.gelu`` is exported."""
    erf = n.at("Erf", n.at("Div", x, n.scalar(2**0.5)))
    return n.at("Mul", n.at("Mul", x, n.at("Add", erf, n.scalar(1.0))), n.scalar(0.5))


def _gelu_half(n: Net, x: Value) -> Value:
    erf = n.at("Erf", n.at("Mul", x, n.scalar(0.5**0.5)))
    return n.at("Mul", n.at("Mul", n.scalar(0.5), x), n.at("Add", n.scalar(1.0), erf))


def _gelu_tanh(n: Net, x: Value) -> Value:
    cube = n.at("Mul", n.scalar(0.044715), n.at("Pow", x, n.scalar(3.0)))
    inner = n.at("Mul", n.scalar((2 / np.pi) ** 0.5), n.at("Add", x, cube))
    return n.at("Mul", n.at("Mul", n.scalar(0.5), x), n.at("Add", n.scalar(1.0), n.at("Tanh", inner)))


def _swish(n: Net, x: Value) -> Value:
    return n.at("Mul", x, n.at("Sigmoid", x))


def _mish(n: Net, x: Value) -> Value:
    return n.at("Mul", x, n.at("Tanh", n.at("Softplus", x)))


def _prelu(n: Net, x: Value) -> Value:
    shape = n.known(x)
    return n.at("PRelu", x, n.bias(shape[1], *[1] * (len(shape) - 2)) if len(shape) > 1 else n.scalar(0.1))


def _relu6(n: Net, x: Value) -> Value:
    return n.at("Clip", x, n.scalar(0.0), n.scalar(6.0))


def relu(n: Net, x: Value) -> Value:
    return n.at("Relu", x)


_SIMPLE = "Relu Relu Relu LeakyRelu Elu Selu Celu Sigmoid HardSigmoid Tanh Softplus Softsign ThresholdedRelu"
ACTIVATIONS: list[Part] = [lambda n, x, op=op: n.at(op, x) for op in _SIMPLE.split()]  # type: ignore[misc]
ACTIVATIONS += [_hard_swish, _gelu_erf, _gelu_half, _gelu_tanh, _swish, _mish, _prelu, _relu6]
GELUS: list[Part] = [_gelu_erf, _gelu_half, _gelu_tanh, _swish]


def activation(n: Net, x: Value) -> Value:
    if n.chance(0.15) and n.opset >= 20:
        return n.at("Gelu", x, approximate=n.choice(("none", "tanh")))
    return n.choice(ACTIVATIONS)(n, x)


def _layer_norm(n: Net, x: Value, size: int) -> Value:
    return n.at("LayerNormalization", x, n.near_one(size), n.maybe(n.bias(size), 0.8), axis=-1, epsilon=_epsilon(n))


def _epsilon(n: Net) -> float:
    return float(n.choice((1e-5, 1e-5, 1e-6, 1e-12, 1e-3)))


def _mean(n: Net, x: Value, axis: int = -1) -> Value:
    """Axes are an attribute up to opset 17."""
    return n.at("ReduceMean", x, n.numbers(axis)) if n.opset >= 18 else n.at("ReduceMean", x, axes=[axis])


def _layer_norm_parts(n: Net, x: Value, size: int) -> Value:
    off = n.at("Sub", x, _mean(n, x))
    square = n.at("Pow", off, n.scalar(2.0)) if n.chance(0.6) else n.at("Mul", off, off)
    root = n.at("Sqrt", n.at("Add", _mean(n, square), n.scalar(_safe(n))))
    return n.at("Add", n.at("Mul", n.at("Div", off, root), n.near_one(size)), n.bias(size))


def _safe(n: Net) -> float:
    """What float16 does not round to 0."""
    return 1e-3 if n.kind == "float16" else _epsilon(n)


def _rms_parts(n: Net, x: Value, size: int) -> Value:
    """As Llama's: in float32, whatever the model's dtype."""
    wide = n.at("Cast", x, to=1) if n.kind in ("float16", "bfloat16") else x
    square = n.at("Pow", wide, n.scalar(2.0, wide.dtype)) if n.chance(0.7) else n.at("Mul", wide, wide)
    root = n.at("Sqrt", n.at("Add", _mean(n, square), n.scalar(_epsilon(n), wide.dtype)))
    if n.chance(0.5):
        scaled = n.at("Mul", wide, n.at("Reciprocal", root))
    else:
        scaled = n.at("Mul", wide, n.at("Div", n.scalar(1.0, wide.dtype), root))
    narrow = scaled if wide is x else n.at("CastLike", scaled, x) if n.opset >= 15 else scaled
    return n.at("Mul", n.near_one(size), narrow)


def _rms(n: Net, x: Value, size: int) -> Value:
    if n.opset < 23:
        return _rms_parts(n, x, size)
    return n.at("RMSNormalization", x, n.near_one(size), axis=-1, epsilon=_epsilon(n))


def normalization(n: Net, x: Value) -> Value:
    """Over the last axis."""
    size = n.known(x)[-1]
    options = [_layer_norm_parts, _layer_norm_parts, _rms_parts, _rms]
    return n.choice([*options, _layer_norm, _layer_norm] if n.opset >= 17 else options)(n, x, size)
