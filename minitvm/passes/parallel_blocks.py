"""CombineParallelBlocks: products of the same quantized rows become one, with the panels of all their weights.

    dense_blocks(x, w1), dense_blocks(x, w2)  ->  y = dense_blocks(x, w1 | w2); y[:, :n1], y[:, n1:]

A decoder's queries, keys and values, its gate and what it lets through: a step of one row waits for the first weights
of each product to come, and then reads as fast as memory is.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence

from minitvm.ir import builder as ir
from minitvm.ir.decision import Declined, decide, name_of
from minitvm.ir.expr import Call, Constant, Expr, Function, Module, span_scope
from minitvm.ir.ops.more.qnn_blocks import PANEL, BlockPanels, DenseBlocks
from minitvm.ir.visitor import as_function, calls, rewrite, span_of
from minitvm.passes.manager import FunctionPass, PassContext
from minitvm.passes.places import in_pipeline

_ROWS = 3
"""Operands that say of which rows: their numbers, scales and sums."""


@in_pipeline(before="AlterOpLayout")
class CombineParallelBlocks(FunctionPass, opt_level=3):
    """Products of the same rows by constants: each result is computed as before."""

    needs = (DenseBlocks,)

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        found: dict[Hashable, list[Call]] = {}
        for call in calls(function):
            if isinstance(call.op, DenseBlocks):
                found.setdefault(_key(call, call.op), []).append(call)
        group_of = {call: group for group in map(self._decided, found.values()) for call in group}
        parts: dict[Call, Expr] = {}

        def visit(old: Expr, new: Expr) -> Expr:
            if not isinstance(old, Call) or old not in group_of:
                return new
            if old not in parts:
                assert isinstance(new, Call)
                parts.update(zip(group_of[old], _combined(group_of[old], new.args[:_ROWS]), strict=True))
            return parts[old]

        return as_function(rewrite(function, visit)) if group_of else function

    def _decided(self, group: list[Call]) -> list[Call]:
        """Those that are combined: all that end with a panel, and one that does not, or none."""
        whole = [call for call in group if _op(call).units % PANEL == 0]
        whole += [call for call in group if call not in whole][:1]
        if len(whole) < 2:
            decide(self.info.name, group[0], Declined("no other product of its rows ends with a panel of units"))
            return []
        decide(self.info.name, name_of(whole[0]), f"{len(whole)} products of the same rows become one")
        return whole


def _key(call: Call, op: DenseBlocks) -> Hashable:
    """Products with equal keys may be one: of the same rows, by constants that are alike."""
    *_, scale, zero = call.args
    is_alone = not all(map(_is_constant, call.args[_ROWS:]))
    zeros = zero.value.item() if isinstance(zero, Constant) and not zero.value.ndim else None
    return call.args[:_ROWS], op.with_attributes(units=0), scale.dtype, zeros, is_alone and call


def _is_constant(operand: Expr) -> bool:
    if isinstance(operand, Call) and isinstance(operand.op, BlockPanels):
        operand = operand.args[0]
    return isinstance(operand, Constant)


def _op(product: Call) -> DenseBlocks:
    assert isinstance(product.op, DenseBlocks)
    return product.op


def _combined(group: Sequence[Call], rows: Sequence[Expr]) -> list[Expr]:
    """The results of a group, parts of one product."""
    units = [_op(call).units for call in group]
    with span_scope(span_of(*group)):
        panels = [
            ir.concatenate(list(some), axis=0) if some[0].tensor_type.rank else some[0]
            for some in zip(*(call.args[_ROWS:] for call in group), strict=True)
        ]
        made = Call(_op(group[0]).with_attributes(units=sum(units)), [*rows, *panels])
    found = list[Expr]()
    for call, start, size in zip(group, itertools.accumulate(units, initial=0), units, strict=False):
        with span_scope(call.span):
            found.append(ir.strided_slice(made, begin=(start,), end=(size,), axes=(1,), slice_mode="size"))
    return found
