"""Nodes over floats that are only stored: what moves elements takes them as they are, what computes gets float32.

Results are rounded once for each node, whatever its builder makes of it.
"""

from collections.abc import Callable
from typing import Any

from minitvm.frontend.onnx.node import OnnxNode, at, cast
from minitvm.ir.dtypes import STORED, is_float
from minitvm.ir.expr import Expr
from minitvm.ir.types import TensorType

_COMPUTE = frozenset(
    ("Col2Im", "Equal", "GridSample", "IsInf", "IsNaN", "NonZero", "QLinearMatMul", "Resize", "Unique")
)
"""Of the operators that take strings or float8; all others only move them."""
_IN_STEPS = frozenset(("Attention", "FlexAttention"))
"""Of many steps, of which half precision would round each."""
_CONVERT = frozenset(("Cast", "CastLike", "DequantizeLinear", "QuantizeLinear"))
"""Whose builders know stored dtypes."""

Results = list[Expr | None]


def with_float32(node: OnnxNode, build: Callable[[], Results]) -> Results:
    """What ``build`` makes of the node, over float32 in place of the stored floats that it computes with."""
    takes, returns = (node.schema.inputs, node.schema.outputs) if node.schema is not None else ((), ())
    given = node.inputs
    widened = {i: x.dtype for i, x in enumerate(given) if x is not None and _is_widened(node, x, at(takes, i))}
    if not widened:
        return build()
    node.inputs = [cast(x, "float32") if x is not None and i in widened else x for i, x in enumerate(given)]
    narrow = {_type_variable(at(takes, i)): dtype for i, dtype in widened.items()}
    return [_narrowed(x, narrow.get(_type_variable(at(returns, i)))) for i, x in enumerate(build())]


def _is_widened(node: OnnxNode, value: Expr, parameter: Any) -> bool:
    type_ = value.type
    if node.op_type in _IN_STEPS and isinstance(type_, TensorType) and type_.dtype == "float16":
        return True
    if not isinstance(type_, TensorType) or type_.dtype not in STORED or not is_float(type_.dtype):
        return False
    if parameter is None:
        return type_.dtype == "bfloat16"
    if node.op_type in _COMPUTE or node.attr("reduction", "none") != "none":
        return True
    return node.op_type not in _CONVERT and not {"tensor(string)", "tensor(float8e4m3fn)"} & set(parameter.types)


def _type_variable(parameter: Any) -> str:
    """``T``: inputs and results that share it are of one dtype."""
    return str(parameter.type_str) if parameter is not None else ""


def _narrowed(result: Expr | None, dtype: str | None) -> Expr | None:
    return result if result is None or dtype is None or result.dtype != "float32" else cast(result, dtype)
