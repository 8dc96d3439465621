"""What rewrites of sums and products look for, with constants that cancel, overflow or vanish."""

import numpy as np

from tests.fuzz.case import Value
from tests.fuzz.draw import Reject
from tests.fuzz.families.net import Net, family
from tests.fuzz.families.parts import activation

MAGIC = {"float16": 1536.0, "float32": 12582912.0, "float64": 6755399441055744.0}
"""1.5 times the largest number of all digits: to add it and to take it away rounds to whole numbers."""
ENDS = {
    "float16": (1e-3, 300.0, 6e4, 6e-5, 1e-5),
    "float32": (1e10, 1e-30, 1e30, 3e38, 1e-38),
    "float64": (1e100, 1e-200, 1e200, 1e308, 1e-300),
}
"""Numbers whose products leave the dtype."""
_WATCHED = (
    "Reciprocal",
    "Reciprocal",
    "Reciprocal",
    "Floor",
    "Sign",
    "Round",
    "IsInf",
    "Elu",
    "Atan",
    "Ceil",
    "Identity",
    "Identity",
    "Sqrt",
)


def _number(n: Net, pool: list[float]) -> float:
    """One that a constant before it cancels, often; then -0.0, what rounds, what overflows, or an everyday one."""
    if pool and n.chance(0.5):
        return n.choice(pool) * n.choice((1.0, -1.0, -1.0))
    everyday = (1.0, -1.0, 0.1, 3.0, 100.0, 123.456, 255.0, 1600000.0 if n.kind != "float16" else 1600.0, 0.5)
    ends = (*ENDS[n.kind], MAGIC[n.kind], 0.0, -0.0, 0.0)
    return float(n.choice(everyday if n.chance(0.5) else ends))


def _constant(n: Net, x: Value, pool: list[float]) -> Value:
    """For all elements, or one for each channel."""
    number = _number(n, pool)
    pool.append(number)
    shape = n.known(x)
    if len(shape) > 1 and n.chance(0.3):
        each = [number] + [_number(n, pool) for _ in range(shape[1] - 1)]
        return n.array(np.array(each).reshape(shape[1], *[1] * (len(shape) - 2)))
    if n.chance(0.15):
        return n.array(np.full(n.known(x), number))
    return n.array(np.array(number))


def _step(n: Net, x: Value, pool: list[float]) -> Value:
    op = n.choice(
        ("Add", "Add", "Sub", "Mul", "Mul", "Div", "Div", "Max", "Clip", "Cast", "Activation", "Twice", "Nothing")
    )
    if op == "Clip":
        low, high = sorted((_number(n, pool), _number(n, pool)))
        return n.at("Clip", x, n.scalar(low), n.scalar(high))
    if op == "Cast":
        to, back = n.choice((("float16", 10), ("float64", 11), ("float32", 1), ("int32", 6)))[1], _code(n)
        return n.at("Cast", n.at("Cast", x, to=to), to=back)
    if op == "Activation":
        return activation(n, x)
    if op == "Nothing":
        return n.at(*n.choice((("Add", x, n.scalar(0.0)), ("Sub", x, n.scalar(-0.0)), ("Mul", x, n.scalar(1.0)))))
    if op == "Twice":
        return n.at(n.choice(("Add", "Mul", "Sub")), x, x)
    operands = [x, _constant(n, x, pool)]
    return n.at(op, *(operands if n.chance(0.7) else operands[::-1]))


def _code(n: Net) -> int:
    return {"float16": 10, "float32": 1, "float64": 11}[n.kind]


def _linear(n: Net, x: Value, pool: list[float]) -> Value:
    """A convolution or a product whose weights are near the ends of the dtype as a whole."""
    shape, size = n.known(x), abs(_number(n, pool)) if n.chance(0.5) else 1.0
    if len(shape) == 4:
        groups = n.choice((1, 1, shape[1]))
        k = n.choice((1, 3, 3))
        channels = shape[1] if groups > 1 else n.choice((1, 3, 8, 32))
        return n.at("Conv", x, _times(n, size, channels, shape[1] // groups, k, k), pads=[k // 2] * 4, group=groups)
    if len(shape) == 2:
        return n.at("MatMul", x, _times(n, size, shape[1], n.choice((1, 3, 8))))
    raise Reject("rows or images")


def _times(n: Net, size: float, *shape: int) -> Value:
    draw = np.random.default_rng(n.rng.getrandbits(64))
    with np.errstate(all="ignore"):
        return n.array(draw.normal(0, 1, shape) * size)


@family("algebra", "float32", "float32", "float16", "float64")
def algebra(n: Net) -> None:
    shape = n.choice(((5,), (4, 3), (2, 8), (1, 3, 4, 5), (1, 32, 12, 12), (1, 2, 6, 6)))
    pool: list[float] = []
    x = n.input(shape)
    with np.errstate(all="ignore"):
        for _ in range(n.choice((1, 2, 2, 3, 4))):
            kept = n.saved()
            try:
                x = _linear(n, x, pool) if n.chance(0.2) else _step(n, x, pool)
            except Reject:
                n.restore(kept)
    n.result(n.at(n.choice(_WATCHED), x), x)
