"""Generators of convolutions, pooling, products, recurrent layers, attention and normalizations."""

import math
from typing import Any

from tests.fuzz.case import Value
from tests.fuzz.draw import Draw, Reject, Shape, generates

_ACTIVATIONS = ("Elu", "HardSigmoid", "LeakyRelu", "Relu", "Sigmoid", "Softplus", "Softsign", "Tanh")
"""Of whose alpha and beta all know the same defaults."""
_WORK = 2_000_000
"""The most multiplications of one layer: the peers' references are in Python."""


def window(d: Draw, spatial: tuple[int, ...], pooling: bool = False, dilated: float = 0.3) -> dict[str, Any]:
    """Attributes of a sliding window that fits at least once: kernel, strides, dilations, pads."""
    rank = len(spatial)
    kernel = [d.choice((1, 1, 2, 3, 3, 4, 5, 7)) for _ in spatial]
    kernel = kernel if d.chance(0.5) else kernel[:1] * rank
    strides = [d.choice((1, 1, 2, 3)) for _ in spatial] if d.chance(0.4) else [d.choice((1, 1, 2, 2, 3))] * rank
    dilations = [d.between(1, 3) if d.chance(dilated) else 1 for _ in spatial]
    pads = [d.between(0, k - 1 if pooling else k) for k in (*kernel, *kernel)]
    if d.chance(0.5):
        pads = [k // 2 for k in (*kernel, *kernel)]
    auto = d.choice((None, None, None, "SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"))
    padded = [s + pads[i] + pads[i + rank] if auto in (None, "NOTSET") else s for i, s in enumerate(spatial)]
    if any((k - 1) * r + 1 > s for k, r, s in zip(kernel, dilations, padded, strict=True)):
        raise Reject("the window is larger than the image")
    explicit = auto in (None, "NOTSET") and d.chance(0.9)
    if auto in ("SAME_UPPER", "SAME_LOWER") and any(r > 1 for r in dilations):
        raise Reject("ONNX Runtime knows no dilation with padding of its own")
    return {
        "kernel_shape": kernel,
        "strides": d.maybe(strides, 0.8),
        "dilations": dilations if any(r > 1 for r in dilations) else None,
        "pads": pads if explicit and any(pads) else None,
        "auto_pad": auto,
    }


def _channels(d: Draw, channels: int) -> tuple[int, int]:
    """Groups, and output channels of each: depthwise often."""
    divisors = [g for g in range(1, channels + 1) if channels % g == 0]
    groups = d.choice((1, 1, channels, d.choice(divisors or [1])))
    return max(groups, 1), d.choice((1, 2, 3, 7, 8, 16, 17, 21, 33, 64)) if groups < 5 else d.choice((1, 1, 2))


@generates("Conv", "ConvTranspose")
def conv(d: Draw) -> list[Value]:
    x = d.operand(None, 3, 5)
    shape = d.known(x)
    groups, per_group = _channels(d, shape[1])
    given = window(d, shape[2:])
    channels = (groups * per_group, shape[1] // groups)
    if d.op == "ConvTranspose":
        channels = shape[1], per_group
        given["output_padding"] = _output_padding(d, given)
    weight = (*channels, *given["kernel_shape"])
    if math.prod(weight) * math.prod(shape[2:]) * shape[0] > _WORK:
        raise Reject("too much work")
    bias = d.maybe(d.weight((groups * per_group,), x.dtype))
    given["kernel_shape"] = d.maybe(given["kernel_shape"])
    return d.node([x, d.weight(weight, x.dtype), bias], group=groups if groups > 1 else None, **given)


def _output_padding(d: Draw, given: dict[str, Any]) -> list[int] | None:
    strides = given["strides"] or [1] * len(given["kernel_shape"])
    same = given["auto_pad"] in ("SAME_UPPER", "SAME_LOWER")
    if same and any(k < s for k, s in zip(given["kernel_shape"], strides, strict=True)):
        raise Reject("ONNX Runtime and ONNX differ in the size of the result")
    return d.maybe([d.between(0, s - 1) for s in strides], 0.3)


@generates("MaxPool", "AveragePool", "LpPool")
def pool(d: Draw) -> list[Value]:
    x = d.operand(None, 3, 5)
    dilated = 0.2 if d.opset >= {"MaxPool": 10, "AveragePool": 19, "LpPool": 18}[d.op] else 0.0
    given = window(d, d.known(x)[2:], pooling=True, dilated=dilated)
    ceil = d.maybe(1, 0.3) if d.opset >= {"LpPool": 18}.get(d.op, 10) else None
    if d.op == "LpPool":
        given["p"] = d.choice((None, 1, 2, 3))
    if d.op == "AveragePool":
        given["count_include_pad"] = d.choice((None, 0, 1))
    return d.node([x], ceil_mode=ceil, **given)


@generates("MatMul")
def matmul(d: Draw) -> list[Value]:
    a = d.operand(least=1, most=4)
    shape = d.known(a)
    depth, columns = shape[-1], d.size(100)
    batch = d.partner(shape[:-2]) if d.chance(0.5) else ()
    if math.prod(shape) * columns > _WORK:
        raise Reject("too much work")
    if len(shape) > 1 and d.chance(0.4):
        left = (*batch, columns, shape[-2])
        return d.node([d.weight(left, a.dtype) if d.chance(0.4) else d.like(left, a.dtype), a])
    right = (depth,) if d.chance(0.15) else (*batch, depth, columns)
    return d.node([a, d.weight(right, a.dtype) if d.chance(0.6) else d.like(right, a.dtype)])


_EINSUMS = (
    *("ij,jk->ik", "bij,bjk->bik", "ij,kj->ik", "i,j->ij", "ij->ji", "ij->j", "ij->", "bhid,bhjd->bhij", "bij,bjk"),
    *("...ij,...jk->...ik", "ij,ij->ij", "ij,j->i", "abc->cab", "bshd,bthd->bhst", "i,i->", "abc,cd,de->abe", "ii->i"),
)


@generates("Einsum")
def einsum(d: Draw) -> list[Value]:
    equation = d.choice(_EINSUMS)
    extent = {letter: d.size(17) for letter in "abcdehijkst"}
    left = equation.partition("->")[0]
    terms = [term.replace("...", "b") for term in left.split(",")]
    dtype = d.dtype()
    return d.node([d.like(tuple(extent[c] for c in t), dtype) for t in terms], equation=equation)


@generates("RNN", "GRU", "LSTM")
def recurrent(d: Draw) -> list[Value]:
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[d.op]
    x = d.operand(least=3, most=3, budget=2000)
    steps, batch, features = d.known(x)
    hidden, both = d.choice((1, 2, 5, 8, 16, 17, 33, 64)), d.chance(0.3)
    count, bound = 1 + both, hidden**-0.5  # larger weights make it chaotic: roundings grow from step to step
    inputs = [
        d.within((count, gates * hidden, features), x.dtype, -1, 1, 0.8),
        d.within((count, gates * hidden, hidden), x.dtype, -bound, bound, 0.8),
        d.maybe(d.weight((count, 2 * gates * hidden), x.dtype)),
        d.maybe(d.within((batch,), "int32", min(1, steps), steps, 0.2), 0.2),
        d.maybe(d.like((count, batch, hidden), x.dtype)),
    ]
    given: dict[str, Any] = {"direction": "bidirectional" if both else d.choice((None, "forward", "reverse"))}
    if d.op == "LSTM":
        inputs.append(d.maybe(d.like((count, batch, hidden), x.dtype)))
        inputs.append(d.maybe(d.weight((count, 3 * hidden), x.dtype), 0.2))
        given["input_forget"] = d.maybe(1, 0.1)
    if d.op == "GRU":
        given["linear_before_reset"] = d.choice((None, 0, 1))
    given["clip"] = d.maybe(1.5, 0.1)
    if x.dtype != "float16" and d.chance(0.2):  # what roundings do to them no reference says
        given["activations"] = [d.choice(_ACTIVATIONS) for _ in range({"RNN": 1, "GRU": 2, "LSTM": 3}[d.op] * count)]
    outputs = d.between(1, 3 if d.op == "LSTM" else 2)
    return d.node([x, *inputs], outputs, hidden_size=hidden, **given)


@generates("Attention")
def attention(d: Draw) -> list[Value]:
    batch, heads, size = d.size(3), d.choice((1, 2, 4)), d.choice((1, 8, 16, 5))
    queries, keys = d.size(17), d.size(17)
    group = d.choice([g for g in (1, 2, 4) if heads % g == 0])
    dtype = d.dtype()
    inner = [(heads, queries), *[(heads // group, keys)] * 2]
    shapes: list[Shape] = [(batch, h, s, size) for h, s in inner]
    given: dict[str, Any] = {"is_causal": d.maybe(1, 0.3), "scale": d.maybe(0.25, 0.3)}
    if d.chance(0.4):
        shapes = [(batch, s, h * size) for h, s in inner]
        given |= {"q_num_heads": heads, "kv_num_heads": heads // group}
    mask = d.maybe(d.like((queries, keys), d.choice((dtype, "bool"))), 0.3)
    return d.node([*(d.like(s, dtype) for s in shapes), mask], softcap=d.maybe(5.0, 0.2), **given)


@generates("LayerNormalization", "RMSNormalization")
def layer_norm(d: Draw) -> list[Value]:
    x = d.operand(least=1)
    axis = d.axis(x.rank)
    shape = d.known(x)[axis:] if d.chance(0.8) else d.known(x)[-1:]
    scale = d.weight(shape, x.dtype)
    if d.op == "RMSNormalization":
        return d.node([x, scale], axis=axis, epsilon=d.maybe(1e-3))
    outputs = d.choice((1, 1, 1, 2, 3))
    return d.node([x, scale, d.maybe(d.weight(shape, x.dtype))], outputs, axis=axis, epsilon=d.maybe(1e-3))
