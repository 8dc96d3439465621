"""Passes whose results Relay spells in another way: slices over leading axes, stacked copies, products of ``rsqrt``.

The graphs compute the same; scripts of TVM's compare them with what Relay makes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minitvm.ir.expr import Call, Expr, Function, Module, Tuple
from minitvm.ir.op import OPS
from minitvm.ir.ops.nn_conv import Conv2d
from minitvm.ir.ops.nn_dense import BatchMatmul
from minitvm.ir.ops.slicing import StridedSlice
from minitvm.ir.ops.transform import ExpandDims
from minitvm.ir.visitor import as_function, post_order, rebuild, rewrite
from minitvm.passes import combine, on_request, simplify_expr
from minitvm.passes.manager import FunctionPass, Pass, PassContext
from minitvm.passes.places import Asked, in_pipeline
from minitvm.tvm import transform


class Spelled(FunctionPass):
    """A pass, and then Relay's spelling of the nodes that it made."""

    def __init__(self, own: FunctionPass, spell: Callable[[Call], Expr], **config: Any) -> None:
        self.own, self.spell, self.config, self.info = own, spell, config, own.info

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        with PassContext(opt_level=context.opt_level, config={**context.config, **self.config}) as inner:
            made = self.own.transform_function(function, module, inner)
        before = {*post_order(function)}

        def visit(old: Expr, new: Expr) -> Expr:
            return self.spell(new) if old not in before and isinstance(new, Call) else new

        return made if made is function else as_function(rewrite(made, visit))


def leading(call: Call) -> Expr:
    """A slice of one axis as one of this axis and all before it; a product of one matrix with many of copies of it; a
    convolution with its number of filters."""
    op = call.op
    if isinstance(op, StridedSlice) and op.slice_mode == "size" and op.axes is not None and len(op.axes) == 1:
        (axis,), (begin,), (end,) = op.axes, op.begin, op.end
        spelled = StridedSlice((*[0] * axis, begin), (*[-1] * axis, end), (1,) * (axis + 1), None, "size")
        return Call(spelled, call.args, span=call.span)
    if isinstance(op, Conv2d) and op.channels is None:
        filters = call.tensor_type.shape[op.layouts[2].index("C")]
        return Call(op.with_attributes(channels=filters), call.args, span=call.span)
    if isinstance(op, BatchMatmul):
        return _stacked(call)
    return call


def _stacked(call: Call) -> Expr:
    data, count = call.args[0], call.args[1].tensor_type.shape[0]
    if not isinstance(data, Call) or not isinstance(data.op, ExpandDims) or not isinstance(count, int):
        return call
    copies = Call(OPS["stack"].of({"axis": 0}), (Tuple(data.args * count),))
    return rebuild(call, (copies, *call.args[1:]))


def CombineParallelConv2D(min_num_branches: int = 3) -> Pass:
    """Relay's, whose results are slices over leading axes."""
    return Spelled(combine.CombineParallelConv2D(min_num_branches), leading)


def CombineParallelDense(min_num_branches: int = 3, to_batch: bool = True) -> Pass:
    """Relay's, which stacks copies of the input."""
    return Spelled(combine.CombineParallelDense(min_num_branches, to_batch), leading)


def CombineParallelBatchMatmul(min_num_branches: int = 3) -> Pass:
    """Relay's, whose results are slices over leading axes."""
    return Spelled(combine.CombineParallelBatchMatmul(min_num_branches), leading)


def SimplifyExpr() -> Pass:
    """Relay's, which rounds otherwise where that is faster: for scripts of TVM's."""
    return Spelled(simplify_expr.SimplifyExpr(), lambda call: call, **{"minitvm.allow_fast_math": True})


def fast_math(asked: Asked) -> tuple[Pass, ...]:
    """FastMath, where the context requires it."""
    required = "FastMath" in PassContext.current().required_pass
    return (on_request.FastMath(),) if required else ()


def install() -> None:
    """Has builds and ``transform`` do so, for scripts of TVM's."""
    in_pipeline(after="SimplifyExpr")(fast_math)
    vars(transform)["SimplifyExpr"] = SimplifyExpr
