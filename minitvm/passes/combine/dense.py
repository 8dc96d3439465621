"""CombineParallelDense and CombineParallelBatchMatmul: matrix products of one left operand become one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from minitvm.ir import builder as ir
from minitvm.ir.expr import Call, Expr, Function, Module
from minitvm.ir.op import Op
from minitvm.ir.ops.broadcast import Add
from minitvm.ir.ops.nn_dense import BatchMatmul, BiasAdd, Dense
from minitvm.passes.combine.branches import Combiner, Concatenation, checked_branches, combine_parallel
from minitvm.passes.manager import FunctionPass, PassContext


class CombineParallelDense(FunctionPass, opt_level=3):
    """Combine at least ``min_num_branches`` dense layers of one input.

    ``to_batch``: layers with weights of one shape become one ``nn.batch_matmul``.  Otherwise their weights are
    concatenated into one ``nn.dense``, whatever the units of each; that is one large product, faster on a CPU.
    """

    def __init__(self, min_num_branches: int = 3, to_batch: bool = True) -> None:
        self.min_num_branches = checked_branches(min_num_branches)
        self.to_batch = to_batch

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        combiner: Combiner = _StackedDense() if self.to_batch else _FlatDense()
        return combine_parallel(function, combiner, self.min_num_branches)


class CombineParallelBatchMatmul(FunctionPass, opt_level=3):
    """Combine at least ``min_num_branches`` batched products of one left operand along the right one's columns.

    Products must have the right operand transposed (``transpose_b``), the left one not, and equal batches.
    """

    def __init__(self, min_num_branches: int = 3) -> None:
        self.min_num_branches = checked_branches(min_num_branches)

    def transform_function(self, function: Function, module: Module, context: PassContext) -> Function:
        return combine_parallel(function, _BatchMatmuls(), self.min_num_branches)


def _dense_of(call: Call) -> Dense | None:
    return call.op if isinstance(call.op, Dense) and call.type.is_static else None


class _FlatDense(Concatenation):
    repeat = True

    def axis(self, rank: int) -> int:
        return rank - 1

    def key(self, call: Call) -> Hashable | None:
        op = _dense_of(call)
        return None if op is None else (op.out_dtype, call.args[1].shape[1], call.args[1].dtype)

    def combine(self, calls: Sequence[Call]) -> Expr:
        weight = ir.concatenate([call.args[1] for call in calls], axis=0)
        return Call(_with_units(calls[0].op, weight.shape[0]), [calls[0].args[0], weight])


def _with_units(op: Op | Function, units: int) -> Op:
    assert isinstance(op, Dense)
    return op if op.units is None else op.with_attributes(units=units)


class _BatchMatmuls(Concatenation):
    def axis(self, rank: int) -> int:
        return rank - 1

    def key(self, call: Call) -> Hashable | None:
        op = call.op
        if not isinstance(op, BatchMatmul) or op.transpose_a or not op.transpose_b or not call.type.is_static:
            return None
        (batch, _, depth), dtype = call.args[1].shape, call.args[1].dtype
        return (op, batch, depth, dtype)

    def combine(self, calls: Sequence[Call]) -> Expr:
        return Call(calls[0].op, [calls[0].args[0], ir.concatenate([call.args[1] for call in calls], axis=1)])


class _StackedDense(Combiner):
    """Branches are the entries of a batch: the combined value has one more dimension, in front."""

    def key(self, call: Call) -> Hashable | None:
        op = _dense_of(call)
        return None if op is None else (op.out_dtype, call.args[1].checked_type)

    def combine(self, calls: Sequence[Call]) -> Expr:
        op = calls[0].op
        assert isinstance(op, Dense)
        weight = ir.stack([call.args[1] for call in calls], axis=0)
        data = ir.expand_dims(calls[0].args[0], axis=0)  # a batch of 1 serves all
        return Call(BatchMatmul(out_dtype=op.out_dtype), [data, weight])

    def follower(self, op: Op, calls: Sequence[Call]) -> Op | None:
        if isinstance(op, BiasAdd):
            return Add() if op.axis % 2 == 1 else None
        return op

    def operand(self, op: Op, calls: Sequence[Call], operands: Sequence[Expr]) -> Expr | None:
        first = operands[0].tensor_type
        if any(o.checked_type != first for o in operands):
            return None
        missing = 2 - first.rank
        wide = [ir.expand_dims(o, axis=0, num_newaxis=missing) if missing else o for o in operands]
        return ir.stack(wide, axis=0)

    def parts(self, combined: Expr, calls: Sequence[Call]) -> list[Expr]:
        entries = ir.split(combined, indices_or_sections=len(calls), axis=0)
        return [ir.squeeze(entries[i], axis=(0,)) for i in range(len(calls))]
