"""Branching convolutional networks of one, two and three spatial dimensions."""

import math
from typing import Any

import numpy as np

from tests.fuzz.case import Value
from tests.fuzz.draw import Reject
from tests.fuzz.families.net import Block, Net, family
from tests.fuzz.families.parts import activation

CHANNELS = (1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 24, 32, 33)
_WORK = 3_000_000


def _conv(n: Net, x: Value, channels: int, k: int = 0, groups: int = 1, same: bool = False) -> Value:
    """A convolution with a kernel of any size; ``same``: the image keeps its size."""
    shape = n.known(x)
    rank = len(shape) - 2
    kernel = [k or n.choice((1, 1, 3, 3, 3, 5, 2))] * rank
    if k == 0 and n.chance(0.2):
        kernel = [n.choice((1, 2, 3, 7)) for _ in range(rank)]
    dilations = [1] * rank if n.chance(0.8) else [n.choice((1, 2, 3)) for _ in range(rank)]
    strides = [1] * rank if same or n.chance(0.7) else [n.choice((1, 2, 3)) for _ in range(rank)]
    pads = _padding(n, kernel, dilations, same)
    if n.is_open and not same:
        pads = [max(p, (k - 1) * d) for p, k, d in zip(pads, kernel * 2, dilations * 2, strict=True)]
    if math.prod(kernel) * channels * math.prod(shape) // groups > _WORK:
        raise Reject("too much work")
    weight = n.weights(channels, shape[1] // groups, *kernel)
    given = {"strides": n.maybe(strides, 0.9) or [1] * rank, "pads": pads, "group": groups, "dilations": dilations}
    return n.at("Conv", x, weight, n.maybe(n.bias(channels)), **given)


def _padding(n: Net, kernel: list[int], dilations: list[int], same: bool) -> list[int]:
    whole = [(k - 1) * d for k, d in zip(kernel, dilations, strict=True)]
    if same or n.chance(0.7):
        return [w // 2 for w in whole] + [w - w // 2 for w in whole]
    return [n.between(0, k) for k in (*kernel, *kernel)]


def _norm(n: Net, x: Value) -> Value:
    c = n.known(x)[1]
    if n.chance(0.1):
        return n.at("InstanceNormalization", x, n.near_one(c), n.bias(c))
    operands = (n.near_one(c), n.bias(c), n.bias(c), n.near_one(c))
    return n.at("BatchNormalization", x, *operands, epsilon=n.choice((1e-5, 1e-3)))


def _scaled(n: Net, x: Value) -> Value:
    """A scale or an offset for each channel, or for all, that a rewrite may fold."""
    c, rank = n.known(x)[1], len(n.known(x)) - 2
    operand = n.near_one(c, *[1] * rank) if n.chance(0.7) else n.scalar(n.choice((0.5, 3.0, -1.0, 255.0, 1e-3)))
    return n.at(n.choice(("Mul", "Mul", "Add", "Sub", "Div")), x, operand)


def conv_block(n: Net, x: Value, channels: int = 0, k: int = 0, same: bool = False) -> Value:
    """Convolution, normalization and activation, in one of their orders."""
    channels = channels or n.choice(CHANNELS)
    if n.chance(0.2):
        x = activation(n, _norm(n, x))
    x = _conv(n, x, channels, k, same=same)
    x = _norm(n, x) if n.chance(0.6) else _scaled(n, x) if n.chance(0.4) else x
    return activation(n, x) if n.chance(0.85) else x


def _residual(n: Net, x: Value) -> Value:
    c = n.known(x)[1]
    y = conv_block(n, conv_block(n, x, n.choice(CHANNELS), same=True), c, same=True)
    short = x if n.chance(0.7) else _norm(n, _conv(n, x, c, 1, same=True))
    return activation(n, n.at("Add", *n.choice(((y, short), (short, y)))))


def _dense(n: Net, x: Value) -> Value:
    for _ in range(n.between(1, 3)):
        grown = conv_block(n, x, n.choice((1, 3, 4, 8)), same=True)
        x = n.at("Concat", x, grown, axis=1)
    return x


def _inception(n: Net, x: Value) -> Value:
    """Branches of one operand; some are a pool."""
    branches = [conv_block(n, x, n.choice(CHANNELS), k, same=True) for k in n.choice(((1, 3), (1, 1, 1), (3, 3, 5)))]
    if n.chance(0.5):
        rank = len(n.known(x)) - 2
        op = n.choice(("MaxPool", "AveragePool"))
        pooled = n.at(op, x, kernel_shape=[3] * rank, pads=[1] * 2 * rank, strides=[1] * rank)
        branches.append(conv_block(n, pooled, n.choice(CHANNELS), 1, same=True))
    return n.at("Concat", *branches, axis=1)


def _squeeze_excite(n: Net, x: Value) -> Value:
    c = n.known(x)[1]
    y = activation(n, _conv(n, n.at("GlobalAveragePool", x), max(c // 4, 1), 1, same=True))
    return n.at("Mul", x, n.at(n.choice(("Sigmoid", "HardSigmoid")), _conv(n, y, c, 1, same=True)))


def _depthwise(n: Net, x: Value) -> Value:
    c = n.known(x)[1]
    y = _conv(n, x, c * n.choice((1, 1, 2)), groups=c, same=n.chance(0.7))
    return conv_block(n, activation(n, _norm(n, y)), k=1, same=True)


def _grouped(n: Net, x: Value) -> Value:
    """Groups, and channels shuffled between them."""
    shape = n.known(x)
    c, rank = shape[1], len(shape) - 2
    groups = n.choice([g for g in range(1, c + 1) if c % g == 0])
    y = activation(n, _conv(n, x, groups * n.choice((1, 2, 3, 8)), groups=groups, same=True))
    each = n.known(y)[1] // groups
    if rank != 2 or n.is_open:
        return y
    split = n.reshaped(y, 0, groups, each, *shape[2:])
    return n.reshaped(n.permuted(split, 0, 2, 1, 3, 4), 0, groups * each, *shape[2:])


def _transposed(n: Net, x: Value) -> Value:
    shape = n.known(x)
    rank, c = len(shape) - 2, n.choice(CHANNELS)
    k, s = n.choice((1, 2, 3, 4)), n.choice((1, 2, 2, 3))
    if (k * s) ** rank * c * math.prod(shape) > _WORK:
        raise Reject("too much work")
    pads, extra = [n.between(0, (k - 1) // 2)] * 2 * rank, [n.choice((0, s - 1))] * rank
    weight = n.weights(shape[1], c, *[k] * rank)
    return n.at("ConvTranspose", x, weight, n.bias(c), strides=[s] * rank, pads=pads, output_padding=extra)


def _pool(n: Net, x: Value) -> Value:
    rank = len(n.known(x)) - 2
    op, k = n.choice(("MaxPool", "AveragePool")), n.choice((2, 2, 3))
    given: dict[str, Any] = {"kernel_shape": [k] * rank, "strides": [n.choice((1, 2, 2, 3))] * rank}
    given |= {"pads": [n.between(0, k - 1)] * 2 * rank, "ceil_mode": n.choice((0, 1))}
    if n.is_open:
        given["pads"] = [k - 1] * 2 * rank
    if op == "AveragePool":
        given["count_include_pad"] = n.choice((0, 1))
    return n.at(op, x, **given)


def _upsample(n: Net, x: Value) -> Value:
    rank = len(n.known(x)) - 2
    mode = n.choice(("nearest", "nearest", "linear" if rank < 3 else "nearest"))
    places = n.choice(("asymmetric", "half_pixel") if n.opset >= 11 else ("asymmetric",))
    scales = n.array(np.array([1, 1, *[n.choice((1, 2, 2, 3))] * rank], "float32"), "float32")
    how = {"nearest_mode": "floor"} if mode == "nearest" else {}
    y = n.at("Resize", x, None, scales, mode=mode, coordinate_transformation_mode=places, **how)
    return conv_block(n, y, same=True) if n.chance(0.6) else y


def _shuffle(n: Net, x: Value) -> Value:
    """Pixels in channels, or channels in pixels."""
    shape = n.known(x)
    if len(shape) != 4:
        raise Reject("images only")
    if n.chance(0.5) and not n.is_open and shape[2] % 2 == shape[3] % 2 == 0:
        return n.at("SpaceToDepth", x, blocksize=2)
    return n.at("DepthToSpace", conv_block(n, x, 4 * n.choice((1, 2, 3)), same=True), blocksize=2, mode="CRD")


def _padded(n: Net, x: Value) -> Value:
    shape = n.known(x)
    rank = len(shape) - 2
    mode = "constant" if n.is_open or min(shape[2:]) < 3 else n.choice(("constant", "reflect", "edge"))
    pads = [0, 0, *(n.between(0, 2) for _ in range(rank))] * 2
    return conv_block(n, n.at("Pad", x, n.numbers(*pads), mode=mode))


def _split(n: Net, x: Value) -> Value:
    """Halves of the channels go through layers of their own."""
    c = n.known(x)[1]
    if c < 2:
        raise Reject("one channel")
    a, b = n.ops("Split", x, n.numbers(c // 2, c - c // 2), outputs=2, axis=1)
    return n.at("Concat", conv_block(n, a, same=True), b, axis=1)


_BLOCKS: tuple[Block, ...] = (
    conv_block, conv_block, _residual, _residual, _dense, _inception, _inception, _squeeze_excite, _depthwise, _grouped,
    _transposed, _pool, _pool, _upsample, _shuffle, _padded, _split, _scaled,
)  # fmt: skip


def _head(n: Net, x: Value) -> Value:
    """Pooled, flattened, classified."""
    c = n.known(x)[1]
    pooled = n.at(n.choice(("GlobalAveragePool", "GlobalMaxPool")), x)
    flat = n.at("Flatten", pooled) if n.chance(0.6) or n.is_open else n.reshaped(pooled, 0, -1)
    classes = n.choice((1, 3, 10, 17))
    y = n.at("Gemm", flat, n.weights(classes, c), n.bias(classes), transB=1)
    return n.at(n.choice(("Softmax", "Sigmoid", "LogSoftmax", "Identity")), y)


@family("cnn", "float32")
def cnn(n: Net) -> None:
    rank = n.choice((1, 2, 2, 2, 2, 3))
    extents = {1: (7, 16, 33, 64), 2: (5, 7, 8, 12, 15, 16, 24), 3: (3, 4, 5, 7)}[rank]
    n.sizes |= {name: n.choice(extents) for name in "HWD"[:rank]}
    if n.chance(0.3):
        n.sizes["W"] = n.sizes["H"]
    x = n.input(["N", n.choice((1, 2, 3, 3, 4, 8, 16)), *"HWD"[:rank]])
    middle = n.trunk(x, _BLOCKS, n.between(1, 3))
    y = n.trunk(middle, _BLOCKS, n.between(0, 2))
    n.result(_head(n, y) if n.chance(0.4) else y)
    if n.chance(0.3):
        n.result(middle)
