"""Quantized networks: QDQ and QLinear forms, odd scales and zero points, any axis, 4 to 16 bits, dynamic ones."""

import numpy as np

from tests.fuzz.case import Value
from tests.fuzz.draw import Reject
from tests.fuzz.families.net import Block, Dim, Net, family
from tests.fuzz.families.parts import GELUS

BYTES = ("uint8", "int8")
_WORK = 2_000_000


def _range(dtype: str) -> tuple[int, int]:
    if dtype.endswith("int4"):
        return (0, 15) if dtype == "uint4" else (-8, 7)
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def _codes(n: Net) -> tuple[str, ...]:
    return (*BYTES * 3, *(("uint16", "int16") if n.opset >= 21 else ()))


def _scale(n: Net, size: int | None, dtype: str, spread: float = 8.0) -> Value:
    """For everyday numbers to fill some of the range; often a power of two, so that halves are met; now and then out of
    all proportion."""
    low, high = _range(dtype)
    shape = () if size is None else (size,)
    draw = np.random.default_rng(n.rng.getrandbits(64))
    found = draw.uniform(0.3, 1.5, shape) * spread / (high - low)
    if n.chance(0.4):
        found = np.exp2(np.round(np.log2(found)))
    if n.chance(0.05):
        found = found * n.choice((1e-6, 1e4))
    return n.constant(np.asarray(found, np.float32))


def _zero(n: Net, size: int | None, dtype: str, symmetric: bool = False) -> Value:
    low, high = _range(dtype)
    draw = np.random.default_rng(n.rng.getrandbits(64))
    middle = (low + high + 1) // 2
    ends = (middle, middle + 1) if symmetric else n.choice(((low, high + 1), (middle - 3, middle + 4), (low, low + 1)))
    return n.constant(draw.integers(*ends, () if size is None else (size,)).astype(dtype))


def _qdq(n: Net, x: Value, axis: int | None = None, dtype: str = "") -> Value:
    """Through integers and back; by axis now and then."""
    dtype = dtype or n.choice(_codes(n))
    by_axis = axis is None and n.chance(0.1) and x.rank > 1 and not n.is_open
    axis = n.between(0, x.rank - 1) if by_axis else axis
    size = None if axis is None else n.known(x)[axis]
    scale, zero = _scale(n, size, dtype), n.maybe(_zero(n, size, dtype), 0.9 if dtype == "uint8" else 1.0)
    given = {} if axis is None else {"axis": axis}
    q = n.at("QuantizeLinear", x, scale, zero, **given)
    if n.chance(0.1):
        n.result(q)
    if n.chance(0.2):
        q = n.at("Flatten", q) if q.rank > 2 and axis is None and n.chance(0.2) else n.at("Identity", q)
    return n.at("DequantizeLinear", q, scale, zero, **given)


def _dequantized(n: Net, shape: tuple[int, ...], axis: int | None, dtype: str = "") -> Value:
    """A weight as integers."""
    four = ("int4", "uint4") if n.opset >= 21 and len(shape) == 2 else ()
    dtype = dtype or n.choice(("int8", "int8", "uint8", *four))
    low, high = _range(dtype)
    draw = np.random.default_rng(n.rng.getrandbits(64))
    stored = n.constant(draw.integers(low, high + 1, shape).astype(dtype))
    size = None if axis is None else shape[axis]
    fan = float(np.prod(shape[1:])) ** -0.5
    scale, zero = _scale(n, size, dtype, 4 * fan), n.maybe(_zero(n, size, dtype, symmetric=True), 0.7)
    if dtype in ("uint8", "uint4") and zero is None:
        zero = _zero(n, size, dtype)
    return n.at("DequantizeLinear", stored, scale, zero, **({} if axis is None else {"axis": axis}))


def _conv(n: Net, x: Value) -> Value:
    shape, channels = n.known(x), n.choice((1, 3, 4, 8, 16, 17))
    if len(shape) != 4:
        raise Reject("images")
    groups = n.choice((1, 1, 1, shape[1]))
    channels = channels if groups == 1 else groups
    k = n.choice((1, 3, 3, 5))
    if channels * k * k * int(np.prod(shape)) // groups > _WORK:
        raise Reject("too much work")
    w = _dequantized(n, (channels, shape[1] // groups, k, k), n.choice((None, 0, 0)), "int8")
    bias = n.maybe(n.bias(channels))
    pads = [k // 2] * 4 if n.chance(0.7) else [k - 1, 0, k - 1, 0]
    return n.at("Conv", x, w, bias, pads=pads, group=groups, strides=[n.choice((1, 1, 2))] * 2)


def _product(n: Net, x: Value) -> Value:
    shape, units = n.known(x), n.choice((1, 3, 8, 17, 32))
    if len(shape) > 3:
        x = n.at("Flatten", x) if n.is_open else n.reshaped(x, 0, int(np.prod(shape[1:])))
        shape = n.known(x)
    if n.opset >= 21 and n.chance(0.2) and shape[-1] % 2 == 0:
        w = _blocked(n, shape[-1], units)
    else:
        w = _dequantized(n, (shape[-1], units), n.choice((None, 0, 1, 1)))
    return n.at("Add", n.at("MatMul", x, w), n.bias(units)) if n.chance(0.5) else n.at("MatMul", x, w)


def _blocked(n: Net, rows: int, units: int) -> Value:
    """By blocks of rows, 4 bits or 8."""
    dtype, block = n.choice(("int4", "uint4", "int8")), n.choice([b for b in (2, 4, 16, 32) if rows % b == 0])
    low, high = _range(dtype)
    draw = np.random.default_rng(n.rng.getrandbits(64))
    stored = n.constant(draw.integers(low, high + 1, (rows, units)).astype(dtype))
    scales = n.constant(draw.uniform(0.01, 0.2, (rows // block, units)).astype("float32"))
    zeros = n.constant(draw.integers(low, high + 1, (rows // block, units)).astype(dtype))
    return n.at("DequantizeLinear", stored, scales, n.maybe(zeros), axis=0, block_size=block)


def _between(n: Net, x: Value) -> Value:
    """What tools leave in floats, or see through."""
    op = n.choice(
        [
            "Relu",
            "Relu",
            "Sigmoid",
            "Tanh",
            "MaxPool",
            "AveragePool",
            "Transpose",
            "Concat",
            "Add",
            "Mul",
            "Softmax",
            "Gelu",
            "Clip",
            "Pad",
        ]
    )
    if op in ("MaxPool", "AveragePool"):
        if x.rank != 4:
            raise Reject("images")
        return n.at(op, x, kernel_shape=[2, 2], strides=[1, 1], pads=[1, 1, 0, 0])
    if op == "Transpose":
        return n.at(op, x, perm=[0, *range(x.rank - 1, 0, -1)])
    if op == "Concat":
        return n.at(op, x, _qdq(n, x), axis=1)
    if op in ("Add", "Mul"):
        return n.at(op, x, _qdq(n, n.at("Relu", x)))
    if op == "Gelu":
        return n.choice(GELUS)(n, x)
    if op == "Clip":
        return n.at(op, x, n.scalar(n.choice((0.0, -1.0))), n.scalar(n.choice((1.0, 6.0))))
    if op == "Pad":
        return n.at(op, x, n.numbers(*[0] * (x.rank - 1), 1, *[0] * (x.rank - 1), 1))
    return n.at(op, x)


def _dynamic(n: Net, x: Value) -> Value:
    """As ``quantize_dynamic`` writes a product."""
    shape, units = n.known(x), n.choice((1, 3, 8, 17))
    if len(shape) > 3:
        x = n.at("Flatten", x)
        shape = n.known(x)
    kind = n.choice(BYTES)
    draw = np.random.default_rng(n.rng.getrandbits(64))
    q, scale, zero = n.ops("DynamicQuantizeLinear", x, outputs=3)
    size = n.choice((None, units))
    w = n.constant(draw.integers(*_range(kind), (shape[-1], units)).astype(kind))
    total = n.at("Cast", n.at("MatMulInteger", q, w, zero, _zero(n, size, kind)), to=1)
    y = n.at("Mul", total, n.at("Mul", scale, _scale(n, size, kind, 1.0)))
    return n.at("Add", y, n.bias(units)) if n.chance(0.6) else y


def _linear(n: Net, x: Value) -> Value:
    """QLinearConv, QLinearMatMul and the operators of com.microsoft between a quantization and its opposite."""
    kind = n.choice(BYTES)
    scale, zero = _scale(n, None, kind), _zero(n, None, kind)
    q = n.at("QuantizeLinear", x, scale, zero)
    for _ in range(n.between(1, 3)):
        q, scale, zero = n.choice((_q_conv, _q_matmul, _q_binary, _q_unary))(n, q, scale, zero)
    return n.at("DequantizeLinear", q, scale, zero)


Step = tuple[Value, Value, Value]


def _q_conv(n: Net, q: Value, scale: Value, zero: Value) -> Step:
    shape = n.known(q)
    if len(shape) != 4:
        raise Reject("images")
    channels, k = n.choice((1, 3, 8, 17)), n.choice((1, 3))
    size = n.choice((None, channels))
    draw = np.random.default_rng(n.rng.getrandbits(64))
    w = n.constant(draw.integers(-128, 128, (channels, shape[1], k, k)).astype("int8"))
    bias = n.maybe(n.constant(draw.integers(-2000, 2000, (channels,)).astype("int32")))
    weight_scale = _scale(n, size, "int8", 4 / (shape[1] * k * k) ** 0.5)
    nothing = n.constant(np.zeros(() if size is None else (size,), "int8"))
    out = _scale(n, None, q.dtype), _zero(n, None, q.dtype)
    return n.at("QLinearConv", q, scale, zero, w, weight_scale, nothing, *out, bias, pads=[k // 2] * 4), *out


def _q_matmul(n: Net, q: Value, scale: Value, zero: Value) -> Step:
    depth, units, kind = n.known(q)[-1], n.choice((1, 3, 8, 17)), n.choice(BYTES)
    draw = np.random.default_rng(n.rng.getrandbits(64))
    w = n.constant(draw.integers(*_range(kind), (depth, units)).astype(kind))
    size = n.choice((None, units))
    other = _scale(n, size, kind, 4 / max(depth, 1) ** 0.5), _zero(n, size, kind)
    out = _scale(n, None, q.dtype), _zero(n, None, q.dtype)
    return n.at("QLinearMatMul", q, scale, zero, w, *other, *out), *out


def _q_binary(n: Net, q: Value, scale: Value, zero: Value) -> Step:
    op = n.choice(("com.microsoft.QLinearAdd", "com.microsoft.QLinearMul"))
    draw = np.random.default_rng(n.rng.getrandbits(64))
    shape = n.known(q) if n.chance(0.5) and not n.is_open else n.known(q)[-1:]
    b = n.constant(draw.integers(*_range(q.dtype), shape).astype(q.dtype))
    other, out = (
        (_scale(n, None, q.dtype), _zero(n, None, q.dtype)),
        (_scale(n, None, q.dtype), _zero(n, None, q.dtype)),
    )
    return n.same(op, q, scale, zero, b, *other, *out), *out


def _q_unary(n: Net, q: Value, scale: Value, zero: Value) -> Step:
    out = _scale(n, None, q.dtype), _zero(n, None, q.dtype)
    op, given = n.choice((("QLinearSigmoid", {}), ("QLinearLeakyRelu", {"alpha": 0.1})))
    return n.same(f"com.microsoft.{op}", q, scale, zero, *out, **given), *out


_BLOCKS: tuple[Block, ...] = (
    *[lambda n, x: _qdq(n, _conv(n, _qdq(n, x)))] * 3,
    *[lambda n, x: _qdq(n, _product(n, _qdq(n, x)))] * 2,
    *[lambda n, x: _qdq(n, _between(n, _qdq(n, x)))] * 3,
    _qdq, _product, _dynamic, _linear, _linear, _between,
)  # fmt: skip


@family("quantized", "float32")
def quantized(n: Net) -> None:
    n.sizes |= {"H": n.choice((4, 5, 8, 11)), "S": n.choice((1, 2, 7))}
    dims: list[Dim] = (
        ["N", n.choice((1, 3, 4, 8)), "H", "H"] if n.chance(0.6) else ["N", "S", n.choice((3, 8, 16, 17, 32))]
    )
    x = n.input(dims)
    x = n.trunk(x, _BLOCKS, n.between(1, 4))
    n.result(x)
