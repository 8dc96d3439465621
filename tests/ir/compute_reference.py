"""Element by element: compute rules evaluated over index grids by numpy, sharing no code with the compiler."""

from __future__ import annotations

from typing import Any

import numpy as np

from minitvm.ir.loop import (
    Binary,
    Buffer,
    Cast,
    Const,
    Intrin,
    Load,
    LoopExpr,
    LoopVar,
    Reduce,
    Select,
    Stage,
    walk_exprs,
)


def _truncated(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "f":
        return a / b
    exact = [abs(int(x)) // abs(int(y)) * (1 if (x < 0) == (y < 0) else -1) for x, y in np.broadcast(a, b)]
    return np.array(exact, a.dtype).reshape(np.broadcast_shapes(a.shape, b.shape))


_BINARY: dict[str, Any] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": _truncated, "mod": np.fmod,
    "floordiv": np.floor_divide, "floormod": np.mod, "min": np.minimum, "max": np.maximum, "pow": np.power,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "shl": np.left_shift, "shr": np.right_shift,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
}  # fmt: skip


def _erf(x: np.ndarray) -> np.ndarray:
    """2/sqrt(pi) times the integral from 0 to x, by Simpson's rule."""
    end = np.clip(np.asarray(x, "float64"), -6, 6)
    t = np.linspace(0.0, 1.0, 2001) * end[..., None]
    weights = np.r_[1.0, np.tile([4.0, 2.0], 1000)[:-1], 1.0]
    return (np.exp(-t * t) * weights).sum(-1) * end / (2000 * 3) * 2 / np.sqrt(np.pi)


def _unsigned(words: np.ndarray, shift: int) -> Any:
    return words >> shift & 255


def _signed(words: np.ndarray, shift: int) -> Any:
    return (words >> shift & 255 ^ 128) - 128


_INTRINSIC: dict[str, Any] = {
    "neg": np.negative, "abs": np.abs, "not": np.invert, "sign": np.sign, "floor": np.floor, "ceil": np.ceil,
    "round": np.rint, "trunc": np.trunc, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "exp": np.exp,
    "log": np.log, "log2": np.log2, "log1p": np.log1p, "expm1": np.expm1, "tanh": np.tanh, "erf": _erf,
    "bitcast_int": lambda x: x.view(f"i{x.itemsize}"), "bitcast_float": lambda x: x.view(f"f{x.itemsize}"),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin,
    "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "asinh": np.arcsinh, "acosh": np.arccosh,
    "atanh": np.arctanh, "isnan": np.isnan, "isinf": np.isinf, "fma": lambda a, b, c: a * b + c,
    "dot4": lambda a, b, c: c + sum(_unsigned(a, s) * _signed(b, s) for s in (0, 8, 16, 24)),
    "sdot4": lambda a, b, c: c + sum(_signed(a, s) * _signed(b, s) for s in (0, 8, 16, 24)),
    "udot4": lambda a, b, c: c + sum(_unsigned(a, s) * _unsigned(b, s) for s in (0, 8, 16, 24)),
    "dot2": lambda a, b, c: c + (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16),
}  # fmt: skip

_REDUCE: dict[str, Any] = {
    "sum": np.sum, "dot": np.sum, "prod": np.prod, "max": np.max, "larger": np.fmax.reduce, "min": np.min,
}  # fmt: skip


class Elements:
    """Values of stages.  Each loop variable and reduction axis is one dimension of a common grid."""

    def __init__(self, inputs: dict[Buffer, np.ndarray]) -> None:
        self.values = dict(inputs)

    def stage(self, buffer: Buffer) -> np.ndarray:
        """The whole tensor of a stage or an input."""
        if buffer not in self.values:
            assert isinstance(buffer, Stage), f"{buffer} is neither an argument nor a stage"
            self.values[buffer] = self._fill(buffer)
        return self.values[buffer]

    def _fill(self, stage: Stage) -> np.ndarray:
        extents = dict(zip(stage.axes, stage.shape, strict=True))
        for node in walk_exprs(stage.value):
            if isinstance(node, Reduce):
                extents |= dict(node.axes)
        grid = _Grid(self, extents)
        found = grid.value(stage.value)
        assert found.dtype.name == stage.dtype, f"{found.dtype} in a stage of {stage.dtype}"
        assert all(e == 1 for e in found.shape[len(stage.axes) :]), "a reduction axis is used outside of its reduction"
        return np.broadcast_to(found.reshape(found.shape[: len(stage.axes)]), stage.shape)


class _Grid:
    def __init__(self, elements: Elements, extents: dict[LoopVar, int]) -> None:
        self.elements = elements
        self.extents = extents
        self.place = {var: d for d, var in enumerate(extents)}
        self.done: dict[int, np.ndarray] = {}

    def value(self, node: LoopExpr) -> np.ndarray:
        if id(node) not in self.done:
            found = np.asarray(self._evaluate(node)).astype(node.dtype, copy=False)
            self.done[id(node)] = found if found.ndim else found.reshape((1,) * len(self.place))
        return self.done[id(node)]

    def _evaluate(self, node: LoopExpr) -> Any:
        match node:
            case Const(value, dtype):
                return np.asarray(value, dtype)
            case LoopVar():
                shape = [1] * len(self.place)
                shape[self.place[node]] = -1
                return np.arange(self.extents[node]).reshape(shape)
            case Load(buffer, index):
                return self._load(buffer, index)
            case Binary(op, lhs, rhs):
                return _BINARY[op](self.value(lhs), self.value(rhs))
            case Intrin(name, args):
                return _INTRINSIC[name](*map(self.value, args))
            case Select(condition, then, orelse):
                return np.where(self.value(condition), self.value(then), self.value(orelse))
            case Cast(value, dtype):
                return self.value(value).astype(dtype)
            case Reduce(kind, axes, value):
                return self._reduce(kind, [var for var, _ in axes], self.value(value))
        raise AssertionError(f"unknown expression {node}")

    def _load(self, buffer: Buffer, index: tuple[LoopExpr, ...]) -> np.ndarray:
        """Clipped, because the side of a select that is not chosen may be out of bounds."""
        array = self.elements.stage(buffer)
        at = [np.clip(self.value(i), 0, max(extent - 1, 0)) for i, extent in zip(index, array.shape, strict=True)]
        shape = np.broadcast_shapes(*(i.shape for i in at)) if at else (1,) * len(self.place)
        if array.size == 0:
            return np.zeros(shape, array.dtype)
        return np.broadcast_to(array[tuple(at)], shape)

    def _reduce(self, kind: str, axes: list[LoopVar], value: np.ndarray) -> np.ndarray:
        places = tuple(self.place[var] for var in axes)
        shape = [self.extents[axes[places.index(d)]] if d in places else n for d, n in enumerate(value.shape)]
        whole = np.broadcast_to(value, shape)
        if kind in ("sum", "dot", "prod"):
            return _REDUCE[kind](whole, axis=places, keepdims=True, dtype=value.dtype)
        return _REDUCE[kind](whole, axis=places, keepdims=True, initial=_neutral(kind, value.dtype))


def _neutral(kind: str, dtype: np.dtype) -> Any:
    if dtype.kind == "f":
        return np.inf if kind == "min" else -np.inf
    if dtype.kind == "b":
        return kind == "min"
    return np.iinfo(dtype).max if kind == "min" else np.iinfo(dtype).min
