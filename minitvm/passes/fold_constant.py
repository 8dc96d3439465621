"""FoldConstant: what depends on constants only is computed now, by the operators' numpy references."""

from __future__ import annotations

import numpy as np

from minitvm.ir.decision import Declined, decide
from minitvm.ir.evaluate import NOT_CONSTANT, folded, unfoldable
from minitvm.ir.expr import Call, Constant, Expr, Function, Module
from minitvm.ir.op import Op
from minitvm.ir.ops.control import If
from minitvm.ir.ops.tensor import NdArraySize, ShapeOf
from minitvm.ir.types import TensorType, tensor_fields
from minitvm.ir.visitor import as_function, post_order, rewrite, simplify_projection, substitute
from minitvm.passes.manager import FunctionPass, PassContext, register_config

MAX_BYTES = register_config(
    "minitvm.FoldConstant.max_bytes",
    int,
    1 << 20,
    "bytes up to which a folded result may be of any size; larger ones may be 4 times their operands",
)
MAX_GROWTH = 4  # int8 weights may become float32


class FoldConstant(FunctionPass, opt_level=2):
    """Replace calls of constants by their values.

    Left alone: calls without arguments (``zeros``, ``ones``: a fill is cheaper than a stored tensor), stateful
    operators, ``qnn.*`` unless ``fold_qnn``, and results much larger than their operands (``broadcast_to``).
    Also folded: fields of tuples, ``shape_of`` and ``ndarray_size`` of a static type, an ``If`` whose condition is
    known.
    """

    def __init__(self, fold_qnn: bool = False) -> None:
        self.fold_qnn = fold_qnn

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        limit = context.option(MAX_BYTES.name)
        return as_function(fold_constant_expr(function, self.fold_qnn, limit))


def fold_constant_expr(expr: Expr, fold_qnn: bool = False, max_bytes: int = MAX_BYTES.default) -> Expr:
    """An expression or a function with all that can be folded folded; itself where nothing can."""

    def visit(_: Expr, new: Expr) -> Expr:
        if isinstance(new, Call) and isinstance(new.op, Op):
            return _fold_call(new, new.op, fold_qnn, max_bytes)
        return simplify_projection(new)

    return rewrite(expr, visit)


def _fold_call(call: Call, op: Op, fold_qnn: bool, max_bytes: int) -> Expr:
    if isinstance(op, (NdArraySize, ShapeOf)):
        return _fold_shape(call, op)
    if isinstance(op, If) and isinstance(call.args[0], Constant):
        return _fold_branch(call, op, fold_qnn, max_bytes)
    refusal = unfoldable(call) if call.args else NOT_CONSTANT
    if refusal is NOT_CONSTANT:
        return call
    refusal = refusal or _refusal(call, op, fold_qnn, max_bytes)
    decide("FoldConstant", call, refusal or "computed now")
    return call if refusal else folded(call, _common_name(call))


def _refusal(call: Call, op: Op, fold_qnn: bool, max_bytes: int) -> Declined | None:
    """Why a call of constants is left to the model's runs."""
    if op.name.startswith("qnn.") and not fold_qnn:
        return Declined("quantized operators are kept (fold_qnn)")
    if not call.type.is_static:
        return None
    result = sum(t.nbytes for t in tensor_fields(call.type))
    operands = sum(t.nbytes for arg in call.args for t in tensor_fields(arg.type))
    fits = result <= max(max_bytes, MAX_GROWTH * operands)
    return None if fits else Declined(f"its result is much larger than its operands: {call.type}")


def _fold_shape(call: Call, op: ShapeOf | NdArraySize) -> Expr:
    type_ = call.args[0].checked_type
    if not isinstance(type_, TensorType) or not type_.is_static:
        return call
    decide("FoldConstant", call, "its argument's shape is known")
    value = type_.size if isinstance(op, NdArraySize) else type_.static_shape
    return Constant(np.asarray(value, op.dtype))


def _fold_branch(call: Call, op: If, fold_qnn: bool, max_bytes: int) -> Expr:
    """The body of the branch that a constant condition takes, over the captured values."""
    condition = call.args[0]
    assert isinstance(condition, Constant)
    taken = bool(condition.value.item())
    decide("FoldConstant", call, f"its condition is known to be {str(taken).lower()}")
    branch = op.then_branch if taken else op.else_branch
    captured: dict[Expr, Expr] = dict(zip(branch.params, call.args[1:], strict=True))
    return fold_constant_expr(substitute(branch.body, captured), fold_qnn, max_bytes)


def _common_name(call: Call) -> str | None:
    """The parameter that a folded value was made of, where there is just one."""
    names = {node.name for node in post_order(*call.args) if isinstance(node, Constant) and node.name is not None}
    return names.pop() if len(names) == 1 else None
