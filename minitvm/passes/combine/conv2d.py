"""CombineParallelConv2D: convolutions of one input become one with all their filters (Inception's branches)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from minitvm.ir import builder as ir
from minitvm.ir.expr import Call, Expr, Function, Module
from minitvm.ir.op import Op
from minitvm.ir.ops.nn_conv import Conv2d
from minitvm.ir.visitor import calls
from minitvm.passes.combine.branches import Concatenation, checked_branches, combine_parallel
from minitvm.passes.manager import FunctionPass, PassContext


class CombineParallelConv2D(FunctionPass, opt_level=3):
    """Combine at least ``min_num_branches`` convolutions of one input that differ in their filters only.

    They must agree in strides, padding, dilation, kernel extent, layouts and dtypes, and have one group.
    Element-wise and broadcast calls behind them are combined as far as all branches agree; results are slices.
    """

    def __init__(self, min_num_branches: int = 3) -> None:
        self.min_num_branches = checked_branches(min_num_branches)

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        for layout in sorted({_out_layout(node) for node in _convolutions(function)}):
            function = combine_parallel(function, _Convolutions(layout), self.min_num_branches)
        return function


def _convolutions(function: Function) -> list[Conv2d]:
    return [call.op for call in calls(function.body) if isinstance(call.op, Conv2d)]


def _out_layout(op: Conv2d) -> str:
    return op.out_layout or op.data_layout


class _Convolutions(Concatenation):
    """Those with results in one layout, which says where their channels lie."""

    def __init__(self, layout: str) -> None:
        self.layout = layout

    def axis(self, rank: int) -> int:
        return self.layout.index("C")

    def key(self, call: Call) -> Hashable | None:
        op = call.op
        if not isinstance(op, Conv2d) or _out_layout(op) != self.layout or op.groups != 1:
            return None
        if not call.type.is_static or not (op.kernel_layout.isalpha() and self.layout.isalpha()):
            return None
        weight = call.args[1].tensor_type
        taps = tuple(n for n, axis in zip(weight.shape, op.kernel_layout, strict=True) if axis != "O")
        return (op.with_attributes(channels=None, kernel_size=None), taps, weight.dtype)

    def combine(self, calls: Sequence[Call]) -> Expr:
        first = calls[0].op
        assert isinstance(first, Conv2d)
        axis = first.kernel_layout.index("O")
        weight = ir.concatenate([call.args[1] for call in calls], axis=axis)
        op: Op = first if first.channels is None else first.with_attributes(channels=weight.shape[axis])
        return Call(op, [calls[0].args[0], weight])
