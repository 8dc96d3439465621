"""ONNX arithmetic, comparison, logic and casts: operators that go element by element."""

from __future__ import annotations

from functools import reduce

import numpy as np

from minitvm.frontend.onnx.node import OnnxNode, cast, emit, onnx_dtype, scalar
from minitvm.frontend.onnx.registry import onnx_op
from minitvm.ir.expr import Expr

_UNARY = {
    "Abs": "abs",
    "Acos": "acos",
    "Acosh": "acosh",
    "Asin": "asin",
    "Asinh": "asinh",
    "Atan": "atan",
    "Atanh": "atanh",
    "BitwiseNot": "bitwise_not",
    "Ceil": "ceil",
    "Cos": "cos",
    "Cosh": "cosh",
    "Erf": "erf",
    "Exp": "exp",
    "Floor": "floor",
    "IsNaN": "isnan",
    "Log": "log",
    "Neg": "negative",
    "Not": "logical_not",
    "Relu": "nn.relu",
    "Round": "round",
    "Sigmoid": "sigmoid",
    "Sign": "sign",
    "Sin": "sin",
    "Sinh": "sinh",
    "Sqrt": "sqrt",
    "Tan": "tan",
    "Tanh": "tanh",
}
_BINARY = {
    "Add": "add",
    "And": "logical_and",
    "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor",
    "Div": "divide",
    "Equal": "equal",
    "Greater": "greater",
    "GreaterOrEqual": "greater_equal",
    "Less": "less",
    "LessOrEqual": "less_equal",
    "Mul": "multiply",
    "Or": "logical_or",
    "Sub": "subtract",
    "Xor": "logical_xor",
}
_VARIADIC = {"Max": "maximum", "Min": "minimum", "Sum": "add"}


@onnx_op(*_UNARY)
def unary(node: OnnxNode) -> Expr:
    return emit(_UNARY[node.op_type], node[0])


@onnx_op(*_BINARY, since=7)
def binary(node: OnnxNode) -> Expr:
    return emit(_BINARY[node.op_type], node[0], node[1])


@onnx_op(*_VARIADIC)
def variadic(node: OnnxNode) -> Expr:
    return reduce(lambda a, b: emit(_VARIADIC[node.op_type], a, b), _all_inputs(node))


@onnx_op("Mean")
def mean(node: OnnxNode) -> Expr:
    inputs = _all_inputs(node)
    return emit("divide", reduce(lambda a, b: emit("add", a, b), inputs), scalar(len(inputs), inputs[0]))


def _all_inputs(node: OnnxNode) -> list[Expr]:
    return [node[i] for i in range(len(node.inputs))]


@onnx_op("Identity", "Dropout")
def identity(node: OnnxNode) -> list[Expr | None]:
    """Inference of Dropout; its mask, where somebody asks, is all true (before opset 12: ones of the data's dtype)."""
    if node.op_type == "Dropout" and len(node.inputs) > 2 and np.any(node.constant(2, "training_mode")):
        raise node.fail("training_mode is not supported", "export the model for inference")
    if not node.wants(1):
        return [node[0]]
    ones = emit("ones_like", node[0])
    return [node[0], cast(ones, "bool") if node.opset >= 10 else ones]


@onnx_op("Reciprocal")
def reciprocal(node: OnnxNode) -> Expr:
    return emit("divide", scalar(1, node[0]), node[0])


@onnx_op("Pow", since=7)
def power(node: OnnxNode) -> Expr:
    """Squares and square roots as such; the exponent may have another dtype than the base."""
    base, exponent = node[0], node.known(1)
    if exponent is not None and exponent.size == 1 and exponent.ndim <= base.tensor_type.rank:
        if exponent.item() == 2:
            return emit("multiply", base, base)
        if exponent.item() == 0.5 and base.tensor_type.is_float:
            return emit("sqrt", base)
    wide = _dtype_of_power(base.dtype, node[1].dtype, exponent)
    return cast(emit("power", cast(base, wide), cast(node[1], wide)), base.dtype)


def _dtype_of_power(base: str, exponent: str, known: np.ndarray | None) -> str:
    """What a power is computed in: a float that holds both where one is a float, the wider integer otherwise.

    An exponent that were rounded would be even: (-1) ** 16777217 is -1.
    """
    kinds = np.dtype(base).kind + np.dtype(exponent).kind
    if "f" not in kinds:
        return base if np.dtype(base).itemsize >= np.dtype(exponent).itemsize else exponent
    if kinds == "ff":
        return max(base, exponent, key=lambda d: np.dtype(d).itemsize)
    if kinds[0] != "f":
        return "float64"
    held = np.iinfo(exponent).bits <= np.finfo(base).nmant + 1
    return base if held or (known is not None and np.array_equal(known.astype(base), known)) else "float64"


@onnx_op("Mod", since=10)
def mod(node: OnnxNode) -> Expr:
    return emit("mod" if node.attr("fmod") else "floor_mod", node[0], node[1])


@onnx_op("BitShift", since=11)
def bit_shift(node: OnnxNode) -> Expr:
    return emit({"LEFT": "left_shift", "RIGHT": "right_shift"}[node.require("direction")], node[0], node[1])


@onnx_op("IsInf", since=10)
def is_inf(node: OnnxNode) -> Expr:
    x, infinite = node[0], emit("isinf", node[0])
    if node.attr("detect_positive") and node.attr("detect_negative"):
        return infinite
    if not node.attr("detect_positive") and not node.attr("detect_negative"):
        return emit("zeros_like", infinite)
    side = "greater" if node.attr("detect_positive") else "less"
    return emit("logical_and", infinite, emit(side, x, scalar(0, x)))


@onnx_op("Clip", since=6)
def clip_6(node: OnnxNode) -> Expr:
    return emit("clip", node[0], a_min=node.attr("min"), a_max=node.attr("max"))


@onnx_op("Clip", since=11)
def clip(node: OnnxNode) -> Expr:
    """With bounds known while importing ``clip``, otherwise maximum and minimum."""
    x, low, high = node[0], node.get(1), node.get(2)
    if low is None and high is None:
        return x
    known_low, known_high = node.known(1), node.known(2)
    if (low is None or known_low is not None) and (high is None or known_high is not None):
        least, most = _limits(x.dtype)
        a_min = least if known_low is None else known_low.item()
        a_max = most if known_high is None else known_high.item()
        return emit("clip", x, a_min=a_min, a_max=a_max) if a_min <= a_max else _bounded(x, low, high)
    return _bounded(x, low, high)


def _bounded(x: Expr, low: Expr | None, high: Expr | None) -> Expr:
    """At least ``low``, then at most ``high``: ``high`` wins where they cross."""
    x = x if low is None else emit("maximum", x, low)
    return x if high is None else emit("minimum", x, high)


def _limits(dtype: str) -> tuple[float, float]:
    if dtype.startswith("float"):
        return float("-inf"), float("inf")
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


@onnx_op("Cast", since=6)
def cast_to(node: OnnxNode) -> Expr:
    return cast(node[0], onnx_dtype(node, node.require("to")))


@onnx_op("CastLike", since=15)
def cast_like(node: OnnxNode) -> Expr:
    return cast(node[0], node[1].dtype)


@onnx_op("Where", since=9)
def where(node: OnnxNode) -> Expr:
    return emit("where", node[0], node[1], node[2])
