"""ONNX arithmetic, comparison, logic and casts: operators that go element by element."""

from functools import partial, reduce

import numpy as np

from minitvm.frontend.onnx.elsewhere import foreign
from minitvm.frontend.onnx.node import OnnxNode, cast, emit, onnx_dtype
from minitvm.frontend.onnx.registry import formulas, onnx_op
from minitvm.ir.expr import Expr

_SAME = (
    "Abs Acos Acosh Add Asin Asinh Atan Atanh Ceil Cos Cosh Equal Exp Floor Greater IsNaN Less Log Round Sigmoid "
    "Sign Sin Sinh Sqrt Tan Tanh Where"
)
"""Operators that Relay has under the same name."""

_CALLS = {name: name.lower() for name in _SAME.split()} | {
    "And": "logical_and",
    "BitwiseAnd": "bitwise_and",
    "BitwiseNot": "bitwise_not",
    "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor",
    "Div": "divide",
    "GreaterOrEqual": "greater_equal",
    "LessOrEqual": "less_equal",
    "Mul": "multiply",
    "Neg": "negative",
    "Not": "logical_not",
    "Or": "logical_or",
    "Relu": "nn.relu",
    "Sub": "subtract",
    "Xor": "logical_xor",
}
"""Operators that are one call of Relay's."""

_CHAINS = {"Max": "maximum", "Mean": "add", "Min": "minimum", "Sum": "add"}
"""Of any number of inputs: the operator between two."""


@onnx_op(*_CALLS)
def one_call(node: OnnxNode) -> Expr:
    return emit(_CALLS[node.op_type], *node.operands())


@onnx_op(*_CHAINS)
def chain(node: OnnxNode) -> Expr:
    operands = node.operands()
    found = reduce(partial(emit, _CHAINS[node.op_type]), operands)
    return found / len(operands) if node.op_type == "Mean" else found


@onnx_op("Identity", "Dropout")
def identity(node: OnnxNode) -> list[Expr | None]:
    """And Dropout that drops nothing; its mask, where somebody asks, is all true (before opset 12: ones)."""
    trains = node.op_type == "Dropout" and node.get(2) is not None and np.any(node.constant(2, "training_mode"))
    ratio = node.known(1) if trains else None
    if trains and (ratio is None or ratio.item()):
        return foreign(node)
    if not node.wants(1):
        return [node[0]]
    ones = emit("ones_like", node[0])
    return [node[0], cast(ones, "bool") if node.opset >= 10 else ones]


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


def _converted(node: OnnxNode, dtype: str) -> Expr:
    x, saturate, mode = node[0], bool(node.attr("saturate", 1)), node.attr("round_mode", "up")
    return x if x.dtype == dtype else emit("cast", x, dtype=dtype, saturate=saturate, round_mode=mode)


_SHIFTS = {"LEFT": "left_shift", "RIGHT": "right_shift"}


def _erf(node: OnnxNode) -> Expr:
    """Of integers, which opset 9 takes, in single precision, as onnx's reference."""
    x = node[0]
    return emit("erf", x) if x.tensor_type.is_float else cast(emit("erf", cast(x, "float32")), x.dtype)


formulas(
    {
        "BitCast-26": lambda n: emit("reinterpret", n[0], dtype=onnx_dtype(n, n.require("to"))),
        "BitShift-11": lambda n: emit(_SHIFTS[n.require("direction")], n[0], n[1]),
        "Cast": lambda n: _converted(n, onnx_dtype(n, n.require("to"))),
        "CastLike-15": lambda n: _converted(n, n[1].dtype),
        "Clip-6": lambda n: emit("clip", n[0], a_min=n.attr("min"), a_max=n.attr("max")),
        "Erf-9": _erf,
        "Mod-10": lambda n: emit("mod" if n.attr("fmod") else "floor_mod", n[0], n[1]),
        "Reciprocal": lambda n: emit("divide", 1, n[0]),
    }
)


@onnx_op("IsInf", since=10)
def is_inf(node: OnnxNode) -> Expr:
    x, infinite = node[0], emit("isinf", node[0])
    if node.attr("detect_positive") and node.attr("detect_negative"):
        return infinite
    if not node.attr("detect_positive") and not node.attr("detect_negative"):
        return emit("zeros_like", infinite)
    side = "greater" if node.attr("detect_positive") else "less"
    return emit("logical_and", infinite, emit(side, x, 0))


@onnx_op("Clip", since=11)
def clip(node: OnnxNode) -> Expr:
    """Bounds that are known while importing give ``clip``, others maximum and minimum."""
    x, low, high = node[0], node.get(1), node.get(2)
    least, most = (_bound(node, i) for i in (1, 2))
    if least is not None and most is not None and least <= most:
        return x if low is None and high is None else emit("clip", x, a_min=least, a_max=most)
    x = x if low is None else emit("maximum", x, low)
    return x if high is None else emit("minimum", x, high)


def _bound(node: OnnxNode, index: int) -> float | None:
    """The bound that input ``index`` of Clip is, or the dtype's where it is left out; ``None`` if not known."""
    dtype, known = np.dtype(node[0].dtype), node.known(index)
    if node.get(index) is not None:
        if known is not None and known.size != 1:
            raise node.misfit(f"bound {index} is {node[index].tensor_type}, not one number")
        return None if known is None else known.item()
    if dtype.kind == "f":
        return float("-inf") if index == 1 else float("inf")
    return int(np.iinfo(dtype).min if index == 1 else np.iinfo(dtype).max)
